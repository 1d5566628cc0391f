"""What was read and not kept, or kept with a doubt: the reasons, and a tally of them."""

from __future__ import annotations

from pytest_llmbench.core.models import DroppedRecords

TORN = "torn"
"""A record that was cut, or had foreign text in it."""
REPEATED = "repeated"
"""A step that was printed before, with the same time."""
REPEAT_DISAGREES = "repeat-disagrees"
"""A step that was printed before, with a time more than 1 % different; the slower one is kept."""
OTHER_RANK = "other-rank"
"""A step of another rank that printed the same steps."""
OTHER_DIALECT = "other-dialect"
"""A record of a dialect with fewer steps in the log."""
UNKNOWN_STEP = "unknown-step"
"""A record whose step number is rounded and follows from nothing else."""
RAMPED_UP = "ramped-up"
"""A step of the phase in which the batch grows to the size that it is to have."""

TWO_WRITERS = "two-writers"
"""A step that was printed before with another time, as half of all are: another process writes into the same file."""
INTERLEAVED = "interleaved"
"""A record of one of two processes that write into the same file and are at different steps."""
RUNNING_AVERAGE = "running-average"
"""A time that is kept, and that looks like a mean since the start of the run."""
RATE_OF_SAMPLES = "rate-of-samples"
"""A rate that is kept as one of steps, and that is printed as one of samples or tokens."""

REASONS = (
    *(TORN, REPEATED, REPEAT_DISAGREES, OTHER_RANK, OTHER_DIALECT, UNKNOWN_STEP),
    *(RAMPED_UP, TWO_WRITERS, INTERLEAVED, RUNNING_AVERAGE, RATE_OF_SAMPLES),
)

EXAMPLE_LENGTH = 80


class Tally:
    """Counts what is dropped, by reason, with the first example of each."""

    def __init__(self) -> None:
        self._by_reason: dict[str, DroppedRecords | None] = dict.fromkeys(REASONS)

    def add(self, reason: str, line: int, example: str, count: int = 1) -> None:
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
        """Return what was counted, in the order of REASONS."""
        return tuple(dropped for dropped in self._by_reason.values() if dropped)


def make_printable(text: bytes, length: int = EXAMPLE_LENGTH) -> str:
    """Return the beginning of a line, without anything that a terminal or XML would choke on."""
    line = text.strip()[: 4 * length].decode("utf-8", "ignore")
    shown = "".join(sign for sign in line if sign.isprintable())
    return shown if len(shown) <= length else shown[: length - 1] + "…"
