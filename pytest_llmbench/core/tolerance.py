"""How much slower is allowed: of a run by a tolerance, of recorded values by the drift
budget.

A gate whose baseline is recorded again each month follows a slow loss of performance
without ever failing. So a file keeps the values that it had, and a new one may be
slower than the first of them by no more than the drift budget, unless somebody says
why; that reason is kept, too, and from then on the value that it stands with is the one
that counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_llmbench.core.baseline_records import AcceptedValue, Recording, Tolerance
from pytest_llmbench.core.errors import did_you_mean
from pytest_llmbench.core.formatting import format_difference, format_seconds
from pytest_llmbench.core.metric_definitions import METRICS

# how much slower a run may be, where neither an option nor a file says another
DEFAULT_FRACTION = 0.05

LARGEST = (
    0.5  # a gate that lets a run take twice as long is a typing error: `5` for `5%`
)

TIME = "time"
"""The slot of `time`, `perf` and `step_time_seconds`: three ways to limit the step time
itself."""

NAMES = (
    "time",
    "perf",
    *(name for name, definition in METRICS.items() if definition.of_step_time),
)
"""What may stand before the colon."""

_WORDS = {
    "time": "time",
    "perf": "performance",
    "performance": "performance",
    "step_time_seconds": "time",
    "tflops": "tflops_per_gpu",
}
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,24})?|\.\d{1,24}", re.ASCII)
_DECIMAL_COMMA = re.compile(r"(?:\w+\s*:)?\s*\d+,\d+\s*%?", re.ASCII)


def parse_tolerances(text: str, source: str) -> tuple[Tolerance, ...]:
    """Read tolerances separated by commas: `5%`, `0.025`, `perf:5%` (less performance:
    5.26 % more time), `mfu:3%`.

    Each metric may stand once, and those of the step time itself are one (TIME). Raises
    ValueError for anything else, and outside of 0 (excluded) to 50 %. `source` is kept
    with each of them, for messages.
    """
    if _DECIMAL_COMMA.fullmatch(text.strip()):
        raise ValueError(
            f"found {text.strip()!r} with a comma, expected a decimal point: {text.replace(',', '.')}"
        )
    by_slot: dict[str, Tolerance] = {}
    for part in text.split(","):
        tolerance = _make_tolerance(part, source)
        other = by_slot.setdefault(get_slot(tolerance), tolerance)
        if other is not tolerance:
            synonyms = (
                " (time, perf and step_time_seconds are one)"
                if get_slot(tolerance) == TIME
                else ""
            )
            raise ValueError(
                f"found {other} and {tolerance}, expected each metric once{synonyms}"
            )
    return merge_tolerances(by_slot.values())


def merge_tolerances(*layers: Iterable[Tolerance]) -> tuple[Tolerance, ...]:
    """Return one tolerance for each slot, that of the last layer which has one; the
    step time's stands first."""
    slots = {get_slot(tolerance): tolerance for layer in layers for tolerance in layer}
    return tuple(
        slots[name] for name in sorted(slots, key=lambda name: (name != TIME, name))
    )


def get_slot(tolerance: Tolerance) -> str:
    """Return what a tolerance limits, for which only one can hold: TIME, or a metric's
    name."""
    return TIME if tolerance.of in ("time", "performance") else tolerance.of


def parse_fraction(text: str, expected: str, largest: float = LARGEST) -> float:
    """Read `5%`, `2.5 %` or `0.025` as a fraction above 0, at most `largest`;
    ValueError says what was `expected`."""
    number = text.strip()
    digits = number.removesuffix("%").strip()
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"found {number!r}, expected {expected}")
    fraction = float(digits) / 100 if number.endswith("%") else float(digits)
    if not 0 < fraction <= largest:
        hint = (
            f"; write {digits}% for {digits} percent"
            if not number.endswith("%") and fraction > LARGEST
            else ""
        )
        limits = f"expected above 0 and at most {largest * 100:g} %{hint}"
        raise ValueError(f"found {number!r}, that is {fraction * 100:g} %, {limits}")
    return fraction


def _make_tolerance(text: str, source: str) -> Tolerance:
    name, colon, number = text.rpartition(":")
    of = _describe_scope(name.strip().lower()) if colon else "time"
    fraction = parse_fraction(
        number, "a tolerance such as 5%, 2.5%, 0.05, perf:5% or mfu:3%"
    )
    larger_is_better = of == "performance" or (
        of in METRICS and METRICS[of].larger_is_better is True
    )
    return Tolerance(fraction, of, larger_is_better, source)


def _describe_scope(name: str) -> str:
    if name in _WORDS or name in NAMES:
        return _WORDS.get(name, name)
    valid = ", ".join(NAMES)
    if name in METRICS:
        why = "it does not follow from the step time, so a baseline expects no value of it"
        raise ValueError(
            f"found {name} before the colon: {why}; expected one of {valid}"
        )
    raise ValueError(
        f"found {name!r} before the colon, expected one of {valid}{did_you_mean(name, NAMES)}"
    )


# --- recorded values: what was accepted first, what replaced it, and why --------------

DRIFT_BUDGET = 0.05  # where neither an option nor the file says another

# of the earlier values so many newest ones, besides the first and all with a reason
KEPT = 20

FASTER = "faster than the value before by more than the drift budget: from here on this one counts"
"""The reason of a value that needs nobody's word: the gate becomes stricter."""

EQUAL = 1e-9  # a value at the bound is not beyond it by rounding


def list_accepted(recording: Recording) -> tuple[AcceptedValue, ...]:
    """Return all values that a recorded baseline had, oldest first, the present one
    last."""
    now = AcceptedValue(
        recording.date, recording.trimmed_mean_seconds, recording.by, recording.reason
    )
    return (*recording.earlier, now)


def find_reference(recording: Recording) -> AcceptedValue:
    """Return the value that drift is counted from: the newest with a reason, or the
    first."""
    accepted = list_accepted(recording)
    return next((value for value in reversed(accepted) if value.reason), accepted[0])


def find_starting_value(recording: Recording) -> AcceptedValue:
    """Return the first value, or the newest that took its place because it is
    faster."""
    accepted = list_accepted(recording)
    return next(
        (value for value in reversed(accepted) if value.reason == FASTER), accepted[0]
    )


def is_beyond(seconds: float, first: AcceptedValue, budget: float) -> bool:
    """Whether a step time is slower than an accepted value by more than the budget, a
    fraction."""
    return seconds > first.seconds * (1 + budget) * (1 + EQUAL)


def explain_refusal(
    recording: Recording, previous: Recording | None, budget: float
) -> str:
    """Return why a value may not follow the one before without a reason; empty where it
    may."""
    step_seconds = recording.trimmed_mean_seconds
    if previous is None or not is_beyond(
        step_seconds, find_reference(previous), budget
    ):
        return ""
    return (
        f"{describe_move(step_seconds, find_reference(previous))}, the drift budget is {budget * 100:.10g} %: "
        "find what makes it slower, or accept it with `accept: drift` in the file of --llmb-acknowledged"
    )


def follow_recording(
    recording: Recording, previous: Recording | None, budget: float, reason: str
) -> Recording:
    """Return a recording with the values that it replaces, and its reason where it
    moves beyond the budget."""
    if previous is None:
        return recording
    # The same runs recorded once more replace nothing.
    if (recording.run_seconds, recording.log_sha256) == (
        previous.run_seconds,
        previous.log_sha256,
    ):
        return replace(recording, reason=previous.reason, earlier=previous.earlier)
    first, seconds = find_reference(previous), recording.trimmed_mean_seconds
    if is_beyond(seconds, first, budget):
        kept_reason = reason
    else:
        kept_reason = (
            FASTER
            if is_beyond(first.seconds, AcceptedValue("", seconds), budget)
            else ""
        )
    return replace(
        recording, reason=kept_reason, earlier=_prune(list_accepted(previous))
    )


def describe_move(seconds: float, first: AcceptedValue) -> str:
    """Return `7.702 s is +5.5 % from 7.300 s, accepted on 2025-11-20 by alice on
    login1`."""
    by = f" by {first.by}" if first.by else ""
    change = format_difference(seconds / first.seconds)
    accepted = f"{format_seconds(first.seconds)}, accepted on {first.date}{by}"
    return f"{format_seconds(seconds)} is {change} from {accepted}"


def _prune(accepted: Sequence[AcceptedValue]) -> tuple[AcceptedValue, ...]:
    newest = len(accepted) - KEPT
    return tuple(
        value
        for place, value in enumerate(accepted)
        if place == 0 or value.reason or place >= newest
    )
