"""Records that are not kept, or kept with a doubt: a tally of them, and which of several prints of a step counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_llmbench.core.models import DroppedRecords, DropReason
from pytest_llmbench.ingest.parse.records import StepRecord

EXAMPLE_LENGTH = 80


class Tally:
    """Counts what is dropped, by reason, with the first example of each."""

    def __init__(self) -> None:
        self._by_reason: dict[DropReason, DroppedRecords | None] = dict.fromkeys(DropReason)

    def add(self, reason: DropReason, line: int, example: str, count: int = 1) -> None:
        """Count `count` records more; the example with the lowest line is kept."""
        old = self._by_reason[reason]
        if old is None or line < old.first_line:
            self._by_reason[reason] = DroppedRecords(reason, count + (old.count if old else 0), line, example)
        else:
            self._by_reason[reason] = DroppedRecords(reason, old.count + count, old.first_line, old.example)

    def merge(self, other: Tally) -> None:
        """Count what another tally counted, too."""
        for each in other.result():
            self.add(each.reason, each.first_line, each.example, each.count)

    def result(self) -> tuple[DroppedRecords, ...]:
        """Return what was counted, in the order of the reasons."""
        return tuple(dropped for dropped in self._by_reason.values() if dropped)


def make_printable(text: bytes, length: int = EXAMPLE_LENGTH) -> str:
    """Return the beginning of a line, without anything that a terminal or XML would choke on."""
    line = text.strip()[: 4 * length].decode("utf-8", "ignore")
    shown = "".join(sign for sign in line if sign.isprintable())
    return shown if len(shown) <= length else shown[: length - 1] + "…"


DISAGREEMENT = 0.01

# A step that falls no further may be a late print of another process of the same run.
LATE_STEPS = 2

# So often have steps to fall and to go on where they were: a restart goes on from where it fell to.
FEWEST_RETURNS = 3

# So many steps, and half of all, have to be printed again with other times: less is a late print or two.
FEWEST_REPEATS = 10


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
        tally.add(DropReason.INTERLEAVED, first.origin.line, text, len(records))
    steps = len({record.step for record in records})
    for dropped in repeats.result():
        disagrees = dropped.reason == DropReason.REPEAT_DISAGREES
        twice = disagrees and dropped.count >= max(FEWEST_REPEATS, steps / 2)
        if not (disagrees and returned):
            tally.add(
                DropReason.TWO_WRITERS if twice else dropped.reason, dropped.first_line, dropped.example, dropped.count
            )


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
