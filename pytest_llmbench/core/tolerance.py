"""Limits of slowdowns: tolerances of runs, and the drift budget of recorded values.

A gate whose baseline is recorded again each month could follow a gradual loss of
performance without ever failing. Therefore a baseline file stores its earlier values,
and a new value may be slower than the first one by at most the drift budget. A user may
accept a larger move with a reason. The reason is stored, and drift is then counted from
the accepted value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import AcceptedValue, Recording, Tolerance
from pytest_llmbench.core.errors import did_you_mean
from pytest_llmbench.core.formatting import format_difference, format_seconds
from pytest_llmbench.core.metric_definitions import METRICS
from pytest_llmbench.core.patterns import compile_on_use

# the default tolerance of the step time
DEFAULT_FRACTION = 0.05

LARGEST = 0.5  # a larger fraction is a typing error, such as `5` for `5%`

TIME = "time"
"""Slot of `time`, `perf` and `step_time_seconds`, which all limit the step time itself.
"""

NAMES = (
    "time",
    "perf",
    *(name for name, definition in METRICS.items() if definition.of_step_time),
)
"""Valid names before the colon of a tolerance."""

_WORDS = {
    "time": "time",
    "perf": "performance",
    "performance": "performance",
    "step_time_seconds": "time",
    "tflops": "tflops_per_gpu",
}
_NUMBER = compile_on_use(r"\d{1,9}(?:\.\d{1,24})?|\.\d{1,24}", re.ASCII)
"""A number such as `5`, `2.5` or `.05`."""

_DECIMAL_COMMA = compile_on_use(r"(?:\w+\s*:)?\s*\d+,\d+\s*%?", re.ASCII)
"""A tolerance with a decimal comma, such as `2,5%` or `mfu: 2,5 %`."""


def parse_tolerances(text: str, source: str) -> tuple[Tolerance, ...]:
    """Parse tolerances separated by commas: `5%`, `0.025`, `perf:5%`, `mfu:3%`.

    `perf:5%` allows 5 % less performance, hence 5.26 % more time. Each metric may
    occur once; `time`, `perf` and `step_time_seconds` are one metric. `source` is
    stored in the results, for messages. Raises ValueError for other texts, and for values that
    are not above 0 and at most 50 %.
    """
    if _DECIMAL_COMMA.fullmatch(text.strip()):
        raise ValueError(
            f"found {text.strip()!r} with a comma, expected a decimal point: {text.replace(',', '.')}"
        )
    by_metric: dict[str, Tolerance] = {}
    for item in text.split(","):
        tolerance = _make_tolerance(item, source)
        metric = get_metric_name(tolerance)
        first = by_metric.setdefault(metric, tolerance)
        if first is not tolerance:
            synonyms = ""
            if metric == TIME:
                synonyms = " (time, perf and step_time_seconds are the same)"
            raise ValueError(
                f"found {first} and {tolerance}, expected each metric once{synonyms}"
            )
    return merge_tolerances(by_metric.values())


def merge_tolerances(*layers: Iterable[Tolerance]) -> tuple[Tolerance, ...]:
    """Return one tolerance per metric; later layers take precedence.

    The tolerance of the step time comes first.
    """
    by_metric = {
        get_metric_name(tolerance): tolerance for layer in layers for tolerance in layer
    }
    # False sorts before True, so TIME is the first name.
    names = sorted(by_metric, key=lambda name: (name != TIME, name))
    return tuple(by_metric[name] for name in names)


def get_metric_name(tolerance: Tolerance) -> str:
    """Return the metric that a tolerance limits: TIME, or the name of another metric.

    Only one tolerance applies to each metric.
    """
    return TIME if tolerance.of in ("time", "performance") else tolerance.of


def parse_fraction(text: str, expected: str, largest: float = LARGEST) -> float:
    """Parse `5%`, `2.5 %` or `0.025` as a fraction above 0 and at most `largest`.

    Raises ValueError that includes `expected`.
    """
    stated = text.strip()
    is_percentage = stated.endswith("%")
    digits = stated.removesuffix("%").strip()
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"found {stated!r}, expected {expected}")
    fraction = float(digits) / 100 if is_percentage else float(digits)
    if not 0 < fraction <= largest:
        hint = ""
        if not is_percentage and fraction > LARGEST:
            hint = f"; write {digits}% for {digits} percent"
        limits = f"expected above 0 and at most {largest * 100:g} %{hint}"
        raise ValueError(f"found {stated!r}, that is {fraction * 100:g} %, {limits}")
    return fraction


def _make_tolerance(text: str, source: str) -> Tolerance:
    """Parse one tolerance, such as `5%` or `mfu:3%`. Raises ValueError."""
    name, colon, number = text.rpartition(":")
    of = _find_metric(name.strip().lower()) if colon else "time"
    fraction = parse_fraction(
        number, expected="a tolerance such as 5%, 2.5%, 0.05, perf:5% or mfu:3%"
    )
    # Performance is the inverse of the step time, and no entry of METRICS.
    if of == "performance":
        larger_is_better = True
    else:
        larger_is_better = of in METRICS and METRICS[of].larger_is_better is True
    return Tolerance(fraction, of, larger_is_better, source)


def _find_metric(name: str) -> str:
    """Return the metric that a tolerance names. Raises ValueError if it is unknown."""
    if name in _WORDS or name in NAMES:
        return _WORDS.get(name, name)
    valid = ", ".join(NAMES)
    if name in METRICS:
        reason = (
            "it is not computed from the step time, so a baseline has no value for it"
        )
        raise ValueError(
            f"found {name} before the colon: {reason}; expected one of {valid}"
        )
    raise ValueError(
        f"found {name!r} before the colon, expected one of {valid}{did_you_mean(name, NAMES)}"
    )


# --- the history of recorded values ---------------------------------------------------

DRIFT_BUDGET = 0.05  # the default

# the number of newest earlier values to keep, in addition to the first value and to all
# values with a reason
KEPT = 20

FASTER = "faster than the value before by more than the drift budget: from here on this one counts"
"""Reason of a value that needs no acceptance, because it makes the gate stricter."""

EQUAL = 1e-9  # so that a value at the bound does not exceed it by rounding


def list_accepted(recording: Recording) -> tuple[AcceptedValue, ...]:
    """Return all values of a recorded baseline, oldest first, the current one last."""
    current = AcceptedValue(
        recording.date, recording.trimmed_mean_seconds, recording.by, recording.reason
    )
    return (*recording.earlier, current)


def find_reference(recording: Recording) -> AcceptedValue:
    """Return the recorded value from which drift is counted.

    This is the newest value that was recorded with a reason, because it differed from
    its reference by more than the drift budget; else the first value.
    """
    accepted = list_accepted(recording)
    first = accepted[0]
    return next((value for value in reversed(accepted) if value.reason), first)


def find_starting_value(recording: Recording) -> AcceptedValue:
    """Return the recorded value from which the sum of accepted slowdowns starts.

    This is the newest value recorded because it was faster than its reference by more
    than the drift budget (reason FASTER), else the first value.
    """
    accepted = list_accepted(recording)
    first = accepted[0]
    return next(
        (value for value in reversed(accepted) if value.reason == FASTER), first
    )


def is_beyond(seconds: float, accepted: AcceptedValue, budget: float) -> bool:
    """True if a step time exceeds an accepted value by more than `budget`, a fraction.

    A step time exactly at the limit is not beyond it, despite rounding (EQUAL).
    """
    return seconds > accepted.seconds * (1 + budget) * (1 + EQUAL)


def explain_refusal(
    recording: Recording, previous: Recording | None, budget: float
) -> str:
    """Return the reason to refuse a new recorded value, or "" if it is within the
    budget."""
    if previous is None:
        return ""
    step_seconds, reference = recording.trimmed_mean_seconds, find_reference(previous)
    if not is_beyond(step_seconds, reference, budget):
        return ""
    return (
        f"{describe_move(step_seconds, reference)}, the drift budget is {budget * 100:.10g} %: "
        "find the cause of the slowdown, or accept it with `accept: drift` in the file of --llmb-acknowledged"
    )


def follow_recording(
    recording: Recording, previous: Recording | None, budget: float, reason: str
) -> Recording:
    """Return a recording with its earlier values and its reason added from `previous`.

    The stored reason is `reason` if the new value is slower than the drift reference by
    more than the budget, FASTER if it is faster by more than the budget, otherwise "".
    A recording of the same runs keeps the reason and the earlier values of `previous`.
    """
    if previous is None:
        return recording
    # Recording the same runs again replaces no value.
    runs = (recording.run_seconds, recording.log_sha256)
    previous_runs = (previous.run_seconds, previous.log_sha256)
    if runs == previous_runs:
        return replace(recording, reason=previous.reason, earlier=previous.earlier)
    reference = find_reference(previous)
    recorded = AcceptedValue(recording.date, recording.trimmed_mean_seconds)
    if is_beyond(recorded.seconds, reference, budget):
        stored_reason = reason
    elif is_beyond(reference.seconds, recorded, budget):
        stored_reason = FASTER
    else:
        stored_reason = ""
    earlier = _prune(list_accepted(previous))
    return replace(recording, reason=stored_reason, earlier=earlier)


def describe_move(seconds: float, reference: AcceptedValue) -> str:
    """Return `7.702 s is +5.5 % from 7.300 s, accepted on 2025-11-20 by alice on
    login1`."""
    by = f" by {reference.by}" if reference.by else ""
    change = format_difference(seconds / reference.seconds)
    accepted = f"{format_seconds(reference.seconds)}, accepted on {reference.date}{by}"
    return f"{format_seconds(seconds)} is {change} from {accepted}"


def _prune(accepted: Sequence[AcceptedValue]) -> tuple[AcceptedValue, ...]:
    """Keep the first value, values with a reason, and the KEPT newest values."""
    newest_index = len(accepted) - KEPT
    return tuple(
        value
        for index, value in enumerate(accepted)
        if index == 0 or value.reason or index >= newest_index
    )
