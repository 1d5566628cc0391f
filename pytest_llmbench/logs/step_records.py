"""Records of steps as a dialect reads them, which of several prints of a step counts,
and a tally of the others."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from pytest_llmbench.core.log_records import (
    NO_QUOTE,
    DroppedRecords,
    DropReason,
    ProgressRecord,
    Quote,
)
from pytest_llmbench.logs.scan import REACH_BACK, Hit

NAN = math.nan
# How frameworks spell a value that is no number.
NOT_FINITE = rb"(?i:nan|inf(?:inity)?)"
BAD_NUMBER = re.compile(rb"-?%b" % NOT_FINITE)

LINE_BREAK = re.compile(rb"[\r\n]")
# How a page of a file reads that was never written: what stands before and after it is
# of different records.
HOLE = b"\x00"

DIGITS = b"0123456789"

COLOUR = re.compile(rb"\x1b\[[\d;]*m")
CODES = re.compile(rb"(?:\x1b\[[\d;?]*[A-Za-z])+")
# Nothing shows then that both parts are of one number.
CODE_IN_NUMBER = re.compile(rb"[\d.]%b(?:[\d.]|[eE][+-]?\d)" % CODES.pattern)

TASK = re.compile(rb"[ \t\r]*(\d{1,9}): ")
ROLE = re.compile(rb"([A-Za-z][\w.-]{0,99}/\d{1,9}) ")
RANK = re.compile(rb"\[((?:rank|default)\d{1,9})\]")
PROCESS = re.compile(rb"\b(pid=\d{1,9})\b")
# Part of every label: most lines that have none are told by it alone.
SIGN = re.compile(rb"[/\[]|: |pid=")


class RecordOrigin(NamedTuple):
    """Where a record stands: its place in the log (bytes), 1-based line, and the rank
    that its prefix names."""

    offset: int
    line: int
    rank: str


class StepRecord(NamedTuple):
    """The values of one step in one record; None or NaN if they are not printed."""

    origin: RecordOrigin
    step: int
    seconds: float = NAN  # as in `Steps`, impossible times as they are printed
    resolution: float = 0.0
    total: int | None = None  # the number of steps of the run
    loss: float | None = None
    grad_norm: float | None = None
    tflops: float = NAN
    tokens: float = NAN
    batch: float = NAN  # samples in a step, of all ranks
    memory: float = NAN  # bytes
    precise: bool = False  # whether it is printed in full, to be preferred
    # as in `Steps`. With 0 it is no step that counts, and only its dialect knows
    # what it is.
    mean_of: int = 1
    asynchronous: bool = False
    stamp: float = NAN  # the time stamp of the line, in seconds since any fixed moment
    since: tuple[int, float] | None = None
    """A step and a time stamp from which on the time counts, where that is later than
    the record before."""
    bar: tuple[int, int] | None = (
        # epoch and 1-based count of a progress bar whose step number is not certain yet
        None
    )
    rounded: bool = False  # whether the step number is not certain, or counted
    rate: float = NAN  # the learning rate
    consumed: float = NAN  # samples since the run began
    targets: float = NAN  # tokens whose loss counts
    skipped: float = NAN  # steps without an update of the weights
    loss_digits: int = 0  # how many digits the loss is printed with
    rewards: bool = False
    step_tokens: float = NAN  # as in `Steps`
    consumed_tokens: tuple[float, int] | None = (
        None  # tokens since the run began, and how many digits they have
    )
    samples: float = NAN  # samples per second, of all GPUs
    bad_validation: bool = (
        False  # whether it prints a validation loss that is NaN or infinite
    )
    progress: tuple[ProgressRecord, ...] = ()  # of a record of a whole run
    # the time stamp before the record, like `stamp`, where its dialect reads none
    clock: float = NAN
    paused: int = 0  # as in `Steps`
    throughput: float = NAN  # as in `Steps`
    layout: tuple[bytes, ...] = ()
    """The names of its fields, with an empty one behind them where it cannot end in a
    number that was cut."""
    doubt: str = ""  # what else in the log contradicts its time, in words

    @property
    def possible(self) -> bool:
        """Whether the time is one that a step can take."""
        return 0 < self.seconds < math.inf

    @property
    def has_value(self) -> bool:
        """Whether it says anything of a time: some dialects keep their starts and ends
        as records without a value."""
        return not all(map(math.isnan, (self.seconds, self.stamp, self.tokens)))


GET_FIELD = {field: itemgetter(place) for place, field in enumerate(StepRecord._fields)}
"""What takes a field out of a record, in a fifth of the time of its name: for all
records of a log."""

# Which column of `Steps` holds which numbers of the records.
COLUMNS = {
    "seconds": "seconds",
    "resolution_seconds": "resolution",
    "loss": "loss",
    "grad_norm": "grad_norm",
    "tflops_per_gpu": "tflops",
    "tokens_per_second_per_gpu": "tokens",
    "global_batch_size": "batch",
    "peak_memory_bytes": "memory",
    "learning_rate": "rate",
    "consumed_samples": "consumed",
    "target_tokens": "targets",
    "skipped_steps": "skipped",
    "step_tokens": "step_tokens",
    "samples_per_second": "samples",
    "throughput": "throughput",
}


class TruncatedRecord(NamedTuple):
    """A record that began and did not end as it should."""

    origin: RecordOrigin
    text: bytes


class Unmatched(NamedTuple):
    """A line that should hold a record, and holds none that a pattern matches; `group`
    is the first that it lacks."""

    origin: RecordOrigin
    text: bytes
    group: str = ""


StepParser = Callable[
    [bytes, int, int, RecordOrigin], StepRecord | TruncatedRecord | None
]
"""Reads what stands at a place of a text, of which it may look at what is before
another one."""


def strip_codes(text: bytes, start: int, stop: int, end: int) -> bytes | None:
    """Return a record, which ends at `stop`, and the text after it up to `end`, with
    the colour codes of the record removed; None if a code is inside a number."""
    record = text[start:stop]
    if b"\x1b" not in record:
        return text[start:end]
    return (
        None
        if CODE_IN_NUMBER.search(record)
        else CODES.sub(b"", record) + text[stop:end]
    )


def read_without_codes(
    read: StepParser, text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Read a record as if its line had no colour codes; torn if a code is inside a
    number."""
    stop = find_line_stop(text, start, end)
    if text.find(b"\x1b", start, stop) < 0:
        return read(text, start, end, origin)
    plain = strip_codes(text, start, stop, end)
    return (
        TruncatedRecord(origin, text[start:stop])
        if plain is None
        else read(plain, 0, len(plain), origin)
    )


def get_significant_unit(value: float, digits: int) -> float:
    """Return one unit in the last of `digits` significant digits: 0.1 for 24.0 and 3; 0
    where there is none."""
    if value == 0 or not math.isfinite(value):
        return 0.0
    return _get_power_of_ten(math.floor(math.log10(abs(value))) - digits + 1)


def get_significant_units(values: Sequence[float], digits: int) -> list[float]:
    """Return one unit in the last of `digits` significant digits of each of n > 0
    finite values."""
    least, most = min(values), max(values)
    unit = get_significant_unit(least, digits)
    if least > 0 and unit == get_significant_unit(most, digits):
        return [unit] * len(values)
    return [get_significant_unit(value, digits) for value in values]


def get_printed_unit(text: bytes) -> float:
    """Return one unit in the last printed place of a number: 0.01 for `12.39`, 1 for
    `1.249e+03`."""
    mantissa, _, exponent = text.partition(b"e")
    decimals = len(mantissa.partition(b".")[2])
    return _get_power_of_ten(int(exponent or 0) - decimals)


@lru_cache(maxsize=256)
def _get_power_of_ten(exponent: int) -> float:
    """Return the float that is nearest to a power of ten, which no product of tens need
    be."""
    return float(f"1e{exponent}")


def find_median(values: Iterable[float], default: float = NAN) -> float:
    """Return the median, of an even number of values the larger one in the middle."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else default


def count_digits(printed: bytes) -> int:
    """Return how many digits a number is printed with: 4 for `11.03` and `0.000`, 7 for
    `1.258695E+01`."""
    mantissa = printed.lower().partition(b"e")[0]
    return len(mantissa) - len(mantissa.translate(None, DIGITS))


def find_line_stop(text: bytes, start: int, end: int) -> int:
    """Return where the line ends that `start` stands on: its line feed or carriage
    return, else `end`."""
    # Twenty times as fast in a long line as LINE_BREAK is.
    feed = text.find(b"\n", start, end)
    stop = end if feed < 0 else feed
    carriage_return = text.find(b"\r", start, stop)
    return stop if carriage_return < 0 else carriage_return


def read_rank(hit: Hit) -> str:
    """Return the labels before a record, such as `9 default3` for `9: [default3]: `, or
    an empty string.

    `9: ` (srun -l) and `train/0 ` (NeMo-Run) count at the beginning of a line or bar
    only; `[default3]:`, `[rank4]:` and `pid=4112` anywhere before the record, the last
    one where lines were glued.
    """
    earliest = max(0, hit.start - REACH_BACK)
    begin = hit.text.rfind(b"\n", earliest, hit.start) + 1 or earliest
    if begin == hit.start:  # most records begin their line
        return ""
    begins_line = begin > earliest or hit.offset <= REACH_BACK
    return read_labels(hit.text[begin : hit.start], begins_line=begins_line)


def read_labels(prefix: bytes, *, begins_line: bool = True) -> str:
    """Return the labels in the text before a record, as `read_rank` does."""
    if not SIGN.search(prefix):
        return ""
    heads = [prefix] if begins_line else []
    if b"\r" in prefix:
        heads.insert(0, prefix[prefix.rindex(b"\r") + 1 :])
    labels = [
        next((match[1] for head in heads if (match := label.match(head))), b"")
        for label in (TASK, ROLE)
    ]
    labels += [b"".join(label.findall(prefix)[-1:]) for label in (RANK, PROCESS)]
    return b" ".join(filter(None, labels)).decode("ascii")


def get_rank_order(rank: str) -> tuple[int, ...]:
    """Return a key that sorts ranks by their numbers; a line without a label sorts
    first."""
    return tuple(int(number) for number in re.findall(r"\d+", rank))


EXAMPLE_LENGTH = 80
_REASONS = tuple(DropReason)  # to go through an enumeration takes five times as long


class Tally:
    """Counts what is dropped, by reason, with the first example of each."""

    def __init__(self) -> None:
        self._by_reason: dict[DropReason, DroppedRecords | None] = dict.fromkeys(
            _REASONS
        )

    def add(
        self,
        reason: DropReason,
        line: int,
        example: str = "",
        count: int = 1,
        *,
        quote: Quote | bytes = NO_QUOTE,
        last_line: int = 0,
    ) -> None:
        """Count records up to `last_line`; the example with the lowest line, in our
        words or as a quote, is kept."""
        old = self._by_reason[reason]
        last_line = max(last_line, old.last_line) if old else last_line
        if old is None or line < old.first_line:
            quote = make_printable(quote) if isinstance(quote, bytes) else quote
            count += old.count if old else 0
            self._by_reason[reason] = DroppedRecords(
                reason, count, line, example, quote, last_line
            )
        else:
            self._by_reason[reason] = replace(
                old, count=old.count + count, last_line=last_line
            )

    def merge(self, other: Tally) -> None:
        """Count what another tally counted, too."""
        for each in other.result():
            self.add(
                each.reason,
                each.first_line,
                each.example,
                each.count,
                quote=each.quote,
                last_line=each.last_line,
            )

    def result(self) -> tuple[DroppedRecords, ...]:
        """Return what was counted, in the order of the reasons."""
        return tuple(dropped for dropped in self._by_reason.values() if dropped)


def make_printable(text: bytes, length: int = EXAMPLE_LENGTH) -> Quote:
    """Return the beginning of a line, without anything that a terminal or XML would
    choke on."""
    line = text.strip()[: 4 * length].decode("utf-8", "ignore")
    shown = "".join(sign for sign in line if sign.isprintable())
    return Quote(shown if len(shown) <= length else shown[: length - 1] + "…")


# Tokens so far are rounded: those of a step follow from two records that are so many
# units apart.
FEWEST_UNITS = 100


def count_step_tokens(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the records of one attempt, each with the tokens of a step if those so far
    show them to one percent."""
    printed = [record.consumed_tokens or (NAN, 0) for record in records]
    digits = max((count for _, count in printed), default=0)
    counted, before = [], 0
    for row, record in enumerate(records):
        tokens, apart = (
            printed[row][0],
            FEWEST_UNITS * get_significant_unit(printed[row][0], digits),
        )
        while before + 1 < row and tokens - printed[before + 1][0] >= apart:
            before += 1
        steps, grown = record.step - records[before].step, tokens - printed[before][0]
        known = steps > 0 and grown >= apart
        counted.append(record._replace(step_tokens=grown / steps) if known else record)
    return counted


DISAGREEMENT = 0.01

# A step that falls no further may be a late print of another process of the same run.
LATE_STEPS = 2

# So often have steps to fall and to go on where they were: a restart goes on from where
# it fell to.
FEWEST_RETURNS = 3

# So many steps, and half of all, have to be printed again with other times: less is a
# late print or two.
FEWEST_REPEATS = 10


def choose_print(old: StepRecord, new: StepRecord) -> StepRecord:
    """Return the print that counts, with the divergence of either.

    A possible time beats an impossible one, then a precise record beats a bar. Of two
    that contradict each other the slower one counts, for a gate must not pass on the
    faster; of two that agree the first.
    """
    return add_divergence(new, old) if _beats(new, old) else add_divergence(old, new)


def show_same_time(old: StepRecord, new: StepRecord) -> bool:
    """Tell whether two prints show the same time: within 1 %, or both NaN."""
    if old.seconds == new.seconds or (
        math.isnan(old.seconds) and math.isnan(new.seconds)
    ):
        return True
    return abs(new.seconds - old.seconds) <= DISAGREEMENT * min(
        abs(new.seconds), abs(old.seconds)
    )


def add_divergence(record: StepRecord, other: StepRecord) -> StepRecord:
    """Return `record`, with the loss and gradient norm of `other` where those are NaN
    or infinite."""
    return record._replace(
        loss=other.loss if _is_no_number(other.loss) else record.loss,
        grad_norm=other.grad_norm
        if _is_no_number(other.grad_norm)
        else record.grad_norm,
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
    """Count what is known of repeated steps of one rank; as one reason where two
    processes wrote them.

    They are at different steps, so that the numbers go back and forth, or at the same
    one with different times.
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
            reason = DropReason.TWO_WRITERS if twice else dropped.reason
            tally.add(
                reason,
                dropped.first_line,
                dropped.example,
                dropped.count,
                quote=dropped.quote,
            )


def find_returns(records: Sequence[StepRecord]) -> list[tuple[StepRecord, StepRecord]]:
    """Find the records whose step falls before the steps continue after the fall: each
    with the record before it. Empty if they are too few."""
    best = []
    fallen: tuple[StepRecord, StepRecord] | None = None
    before: StepRecord | None = None
    for record in records:
        if before is not None and record.step < before.step - LATE_STEPS:
            fallen = record, before
        elif (
            fallen
            and before is not None
            and record.step == fallen[1].step + 1 != before.step + 1
        ):
            best.append(fallen)
            fallen = None
        before = record
    return best if len(best) >= FEWEST_RETURNS else []
