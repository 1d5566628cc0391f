"""Two processes that write their steps into one file, without a label that tells them apart."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.ingest.parse.dropped import INTERLEAVED, REPEAT_DISAGREES, TWO_WRITERS, Tally
from pytest_llmbench.ingest.parse.records import StepRecord

LATE_STEPS = 2
"""A step that falls no further may be a late print of another process of the same run."""

FEWEST_RETURNS = 3
"""So often have steps to fall and to go on where they were: a restart goes on from where it fell to."""

FEWEST_REPEATS = 10
"""So many steps, and half of all, have to be printed again with other times: less is a late print or two."""


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
    found = []
    fallen: tuple[StepRecord, StepRecord] | None = None
    before: StepRecord | None = None
    for record in records:
        if before is not None and record.step < before.step - LATE_STEPS:
            fallen = record, before
        elif fallen and before is not None and record.step == fallen[1].step + 1 != before.step + 1:
            found.append(fallen)
            fallen = None
        before = record
    return found if len(found) >= FEWEST_RETURNS else []
