"""Steps that are printed several times: which print counts, and whether two processes wrote them into one file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_llmbench.ingest.parse.dropped import INTERLEAVED, REPEAT_DISAGREES, TWO_WRITERS, Tally
from pytest_llmbench.ingest.parse.records import StepRecord

DISAGREEMENT = 0.01

LATE_STEPS = 2
"""A step that falls no further may be a late print of another process of the same run."""

FEWEST_RETURNS = 3
"""So often have steps to fall and to go on where they were: a restart goes on from where it fell to."""

FEWEST_REPEATS = 10
"""So many steps, and half of all, have to be printed again with other times: less is a late print or two."""


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


def tally_writers(records: Sequence[StepRecord], repeats: Tally, tally: Tally) -> None:
    """Count what is known of repeated steps of one rank; as one reason where two processes wrote them.

    They are at different steps, so that the numbers go back and forth, or at the same one with different times.
    """
    returned = find_returns(records)
    if returned:
        first, before = returned[0]
        text = f"step {first.step} after step {before.step}, and back to step {before.step + 1}"
        tally.add(INTERLEAVED, first.origin.line, text, len(records))
    steps = len({record.step for record in records})
    for dropped in repeats.result():
        disagrees = dropped.reason == REPEAT_DISAGREES
        twice = disagrees and dropped.count >= max(FEWEST_REPEATS, steps / 2)
        if not (disagrees and returned):
            tally.add(TWO_WRITERS if twice else dropped.reason, dropped.first_line, dropped.example, dropped.count)


def find_returns(records: Sequence[StepRecord]) -> list[tuple[StepRecord, StepRecord]]:
    """Return where steps fall, and later go on behind the step that they fell from: the record that falls, and the one
    before it. Nothing where that is too rare."""
    best = []
    fallen: tuple[StepRecord, StepRecord] | None = None
    before: StepRecord | None = None
    for record in records:
        if before is not None and record.step < before.step - LATE_STEPS:
            fallen = record, before
        elif fallen and before is not None and record.step == fallen[1].step + 1 != before.step + 1:
            best.append(fallen)
            fallen = None
        before = record
    return best if len(best) >= FEWEST_RETURNS else []
