"""Which print of a step counts, where there are several."""

from __future__ import annotations

import math

from pytest_llmbench.ingest.parse.records import StepRecord

DISAGREEMENT = 0.01


def choose_print(old: StepRecord, new: StepRecord) -> StepRecord:
    """Return the print that counts, with the divergence of either.

    A possible time beats an impossible one, then a precise record beats a bar. Of two that contradict each other the
    slower one counts, for a gate must not pass on the faster; of two that agree the first.
    """
    return add_divergence(new, old) if _beats(new, old) else add_divergence(old, new)


def show_same_time(old: StepRecord, new: StepRecord) -> bool:
    """Tell whether two prints show the same time: within 1 %, or both NaN."""
    if old.seconds == new.seconds or (math.isnan(old.seconds) and math.isnan(new.seconds)):
        return True
    return abs(new.seconds - old.seconds) <= DISAGREEMENT * min(abs(new.seconds), abs(old.seconds))


def add_divergence(record: StepRecord, other: StepRecord) -> StepRecord:
    """Return `record`, with the loss and gradient norm of `other` where those are NaN or infinite."""
    return record._replace(
        loss=other.loss if _is_no_number(other.loss) else record.loss,
        grad_norm=other.grad_norm if _is_no_number(other.grad_norm) else record.grad_norm,
    )


def has_diverged(record: StepRecord) -> bool:
    """Tell whether a record prints a loss or gradient norm that is NaN or infinite."""
    return _is_no_number(record.loss) or _is_no_number(record.grad_norm)


def _beats(new: StepRecord, old: StepRecord) -> bool:
    if new.possible != old.possible:
        return new.possible
    if new.precise != old.precise:
        return new.precise
    return new.seconds > old.seconds and not show_same_time(old, new)


def _is_no_number(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
