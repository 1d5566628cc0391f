"""How far recorded values may move: what was accepted first, what replaced it, and why.

A gate whose baseline is recorded again each month follows a slow loss of performance without ever failing. So a file
keeps the values that it had, and a new one may be slower than the first of them by no more than the drift budget,
unless somebody says why; that reason is kept, too, and from then on the value that it stands with is the one that
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_llmbench.core.formatting import format_difference, format_seconds
from pytest_llmbench.core.models import AcceptedValue, Recording

DRIFT_BUDGET = 0.05
"""Where neither an option nor the file says another."""

KEPT = 20
"""Of the earlier values so many newest ones, besides the first and all with a reason."""

FASTER = "faster than the value before by more than the drift budget: from here on this one counts"
"""The reason of a value that needs nobody's word: the gate becomes stricter."""

EQUAL = 1e-9


def list_accepted(recording: Recording) -> tuple[AcceptedValue, ...]:
    """Return all values that a recorded baseline had, oldest first, the present one last."""
    now = AcceptedValue(recording.date, recording.trimmed_mean_seconds, recording.by, recording.reason)
    return (*recording.earlier, now)


def find_reference(recording: Recording) -> AcceptedValue:
    """Return the value that drift is counted from: the newest with a reason, or the first."""
    accepted = list_accepted(recording)
    return next((value for value in reversed(accepted) if value.reason), accepted[0])


def is_beyond(seconds: float, first: AcceptedValue, budget: float) -> bool:
    """Whether a step time is slower than an accepted value by more than the budget, a fraction."""
    return seconds > first.seconds * (1 + budget) * (1 + EQUAL)


def explain_refusal(recording: Recording, previous: Recording | None, budget: float) -> str:
    """Return why a value may not follow the one before without a reason; empty where it may."""
    step_seconds = recording.trimmed_mean_seconds
    if previous is None or not is_beyond(step_seconds, find_reference(previous), budget):
        return ""
    return (
        f"{describe_move(step_seconds, find_reference(previous))}, the drift budget is {budget * 100:.10g} %: "
        'find what makes it slower, or accept it with --llmb-accept-drift="the reason"'
    )


def follow_recording(recording: Recording, previous: Recording | None, budget: float, reason: str) -> Recording:
    """Return a recording with the values that it replaces, and its reason where it moves beyond the budget.

    The same runs recorded once more replace nothing. A value that is faster by more than the budget counts from now on.
    """
    if previous is None:
        return recording
    if (recording.run_seconds, recording.log_sha256) == (previous.run_seconds, previous.log_sha256):
        return replace(recording, reason=previous.reason, earlier=previous.earlier)
    first, seconds = find_reference(previous), recording.trimmed_mean_seconds
    if is_beyond(seconds, first, budget):
        kept_reason = reason
    else:
        kept_reason = FASTER if is_beyond(first.seconds, AcceptedValue("", seconds), budget) else ""
    return replace(recording, reason=kept_reason, earlier=_prune(list_accepted(previous)))


def describe_move(seconds: float, first: AcceptedValue) -> str:
    """Return `7.702 s is +5.5 % from 7.300 s, accepted on 2025-11-20 by alice on login1`."""
    by = f" by {first.by}" if first.by else ""
    change = format_difference(seconds / first.seconds)
    accepted = f"{format_seconds(first.seconds)}, accepted on {first.date}{by}"
    return f"{format_seconds(seconds)} is {change} from {accepted}"


def _prune(accepted: Sequence[AcceptedValue]) -> tuple[AcceptedValue, ...]:
    newest = len(accepted) - KEPT
    return tuple(value for place, value in enumerate(accepted) if place == 0 or value.reason or place >= newest)
