"""Records of single steps, the choice between duplicates, and counts of drops."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from operator import itemgetter, methodcaller
from typing import NamedTuple

from msgspec.structs import replace

from pytest_llmbench.core.log_records import (
    NO_QUOTE,
    DroppedRecords,
    DropReason,
    ProgressRecord,
    Quote,
)
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.scan import REACH_BACK, Hit

NAN = math.nan
# A NaN or infinity, as frameworks print it.
NOT_FINITE = rb"(?i:nan|inf(?:inity)?)"
BAD_NUMBER = compile_on_use(rb"-?%b" % NOT_FINITE)

LINE_BREAK = compile_on_use(rb"[\r\n]")
# The content of a page of a file that was never written. The text before it and after
# it belongs to different records.
HOLE = b"\x00"

DIGITS = b"0123456789"

COLOUR = compile_on_use(rb"\x1b\[[\d;]*m")
ESCAPE_CODES = compile_on_use(rb"(?:\x1b\[[\d;?]*[A-Za-z])+")
# The digits before and after the code may belong to different numbers.
CODE_IN_NUMBER = compile_on_use(rb"[\d.]%b(?:[\d.]|[eE][+-]?\d)" % ESCAPE_CODES.pattern)

TASK = compile_on_use(rb"[ \t\r]*(\d{1,9}): ")  # "9: "
ROLE = compile_on_use(rb"([A-Za-z][\w.-]{0,99}/\d{1,9}) ")  # "train/0 "
RANK = compile_on_use(rb"\[((?:rank|default)\d{1,9})\]")  # "[default3]"
PROCESS = compile_on_use(rb"\b(pid=\d{1,9})\b")  # "(worker pid=4112)"
# Every label contains a match of this; most lines without labels do not.
LABEL_HINT = compile_on_use(rb"/\d|\[[dr]|\d: |pid=")


class RecordOrigin(NamedTuple):
    """Position of a record: byte offset, 1-based line, and rank label."""

    offset: int
    line: int
    rank: str


class StepRecord(NamedTuple):
    """The values of one step in one record; None or NaN if not printed."""

    origin: RecordOrigin
    step: int
    seconds: float = NAN  # as in `Steps`, including impossible values
    resolution: float = 0.0
    total: int | None = None  # the planned number of steps
    loss: float | None = None
    grad_norm: float | None = None
    tflops: float = NAN
    tokens: float = NAN
    batch: float = NAN  # samples per step, over all ranks
    memory: float = NAN  # bytes
    precise: bool = False  # printed with full precision: preferred to a rounded record
    # As in `Steps`. 0 means that the record is not a training step; its meaning depends
    # on the dialect.
    mean_of: int = 1
    asynchronous: bool = False
    stamp: float = NAN  # time stamp of the line, in seconds since any fixed moment
    since: tuple[int, float] | None = None
    """Step and time stamp from which the time counts.

    Only set if the clock started later than the previous record.
    """
    # epoch and 1-based count of a progress bar while the step number is uncertain
    bar: tuple[int, int] | None = None
    rounded: bool = False  # the step number is uncertain, or was counted
    rate: float = NAN  # the learning rate
    consumed: float = NAN  # samples since the run began
    targets: float = NAN  # tokens that contribute to the loss
    skipped: float = NAN  # steps without a weight update
    loss_digits: int = 0  # number of digits of the printed loss
    rewards: bool = False
    step_tokens: float = NAN  # as in `Steps`
    # tokens since the run began, and the number of their printed digits
    consumed_tokens: tuple[float, int] | None = None
    samples: float = NAN  # samples per second, over all GPUs
    bad_validation: bool = False  # the record prints a NaN or infinite validation loss
    progress: tuple[ProgressRecord, ...] = ()  # set in the record of a whole run
    # Time stamp in front of the record, like `stamp`, if the dialect reads none.
    clock: float = NAN
    paused: int = 0  # as in `Steps`
    throughput: float = NAN  # as in `Steps`
    layout: tuple[bytes, ...] = ()
    """The names of the record's fields.

    A trailing empty name means that the last number cannot be truncated.
    """
    doubt: str = ""  # contradiction of the time elsewhere in the log, in words

    @property
    def possible(self) -> bool:
        """True if a step can take this time: positive and finite."""
        return 0 < self.seconds < math.inf

    @property
    def has_value(self) -> bool:
        """True if the record has a time, a time stamp or a token rate.

        Some dialects keep the start and end of a run as records without values.
        """
        return not all(map(math.isnan, (self.seconds, self.stamp, self.tokens)))


GET_FIELD = {field: itemgetter(index) for index, field in enumerate(StepRecord._fields)}
"""Getters for the fields of a record, by name.

Five times as fast as attribute access; used on all records of a log.
"""

# Columns of `Steps`, and the fields of the records that fill them.
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
    """A record that is cut off or damaged."""

    origin: RecordOrigin
    text: bytes


class Unmatched(NamedTuple):
    """A line with a dialect's marker that its pattern does not match.

    `group` is the first group of the pattern that the line lacks.
    """

    origin: RecordOrigin
    text: bytes
    group: str = ""


StepParser = Callable[
    [bytes, int, int, RecordOrigin], StepRecord | TruncatedRecord | None
]
"""Parses the record at an offset of a text.

Arguments: text, start, end, origin. The parser may look at the text before `start`.
"""


def strip_codes(text: bytes, start: int, stop: int, end: int) -> bytes | None:
    """Remove the escape codes from the record `text[start:stop]`.

    Returns the record and the text after it up to `end`; None if a code is inside a
    number.
    """
    record = text[start:stop]
    if b"\x1b" not in record:
        return text[start:end]
    if CODE_IN_NUMBER.search(record):
        return None
    return ESCAPE_CODES.sub(b"", record) + text[stop:end]


def read_without_codes(
    read: StepParser, text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse a record as if its line had no escape codes.

    Returns a TruncatedRecord if a code is inside a number.
    """
    stop = find_line_stop(text, start, end)
    if text.find(b"\x1b", start, stop) < 0:
        return read(text, start, end, origin)
    plain = strip_codes(text, start, stop, end)
    if plain is None:
        return TruncatedRecord(origin, text[start:stop])
    return read(plain, 0, len(plain), origin)


def get_significant_unit(value: float, digits: int) -> float:
    """Return the unit of the last of `digits` significant digits.

    Example: 0.1 for 24.0 and 3 digits. Returns 0 for zero, NaN and infinity.
    """
    if value == 0 or not math.isfinite(value):
        return 0.0
    return _get_power_of_ten(math.floor(math.log10(abs(value))) - digits + 1)


def get_significant_units(values: Sequence[float], digits: int) -> list[float]:
    """Return `get_significant_unit` of each value.

    `values` are n > 0 finite numbers.
    """
    # numbers between two of the same magnitude have the same unit
    least, most = min(values), max(values)
    unit = get_significant_unit(least, digits)
    if least > 0 and unit == get_significant_unit(most, digits):
        return [unit] * len(values)
    return [get_significant_unit(value, digits) for value in values]


FIND_POINT = methodcaller("find", b".")


def get_printed_unit(text: bytes) -> float:
    """Return the unit of the last printed digit of a number.

    Examples: 0.01 for `12.39`, 1 for `1.249e+03`.
    """
    mantissa, _, exponent = text.partition(b"e")
    decimals = len(mantissa.partition(b".")[2])
    return _get_power_of_ten(int(exponent or 0) - decimals)


def get_printed_units(numbers: Sequence[bytes]) -> list[float]:
    """Return the unit of the last printed digit of each number."""
    if b"e" in b"".join(numbers):
        return list(map(get_printed_unit, numbers))
    points = map(FIND_POINT, numbers)
    return list(map(_get_unit_of_shape, map(len, numbers), points))


@cache
def _get_unit_of_shape(length: int, point: int) -> float:
    """Return the unit of the last digit of a number that is `length` characters long.

    `point` is the index of the decimal point, -1 if there is none. Example: 0.01 for
    length 5 and point 2 (`12.39`).
    """
    decimals = length - 1 - point if point >= 0 else 0
    return _get_power_of_ten(-decimals)


@lru_cache(maxsize=256)
def _get_power_of_ten(exponent: int) -> float:
    """Return the float nearest to 10**exponent.

    Repeated multiplication by 10 may miss it.
    """
    return float(f"1e{exponent}")


def find_median(values: Iterable[float], default: float = NAN) -> float:
    """Return the median, or the upper median of an even number of values.

    Returns `default` if there are no values.
    """
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else default


def count_digits(printed: bytes) -> int:
    """Count the digits of a printed number, without its exponent.

    Examples: 4 for `11.03` and `0.000`, 7 for `1.258695E+01`.
    """
    mantissa = printed.lower().partition(b"e")[0]
    return len(mantissa) - len(mantissa.translate(None, DIGITS))


def find_line_stop(text: bytes, start: int, end: int) -> int:
    """Return the offset at which the line around `start` ends.

    This is the offset of its line feed or carriage return, or `end`.
    """
    # Twenty times as fast as LINE_BREAK on a long line.
    feed = text.find(b"\n", start, end)
    stop = end if feed < 0 else feed
    carriage_return = text.find(b"\r", start, stop)
    return stop if carriage_return < 0 else carriage_return


def read_rank(hit: Hit) -> str:
    """Return the rank labels before a record, or "".

    Example: `9 default3` for `9: [default3]: `.

    `9: ` (srun -l) and `train/0 ` (NeMo-Run) count only at the beginning of a line or
    progress bar. `[default3]:`, `[rank4]:` and `pid=4112` count anywhere before the
    record. If a line has several, the last one is used.
    """
    earliest = max(0, hit.start - REACH_BACK)
    begin = hit.text.rfind(b"\n", earliest, hit.start) + 1 or earliest
    if begin == hit.start:  # most records are at the beginning of a line
        return ""
    # False if the line begins before the visible context
    begins_line = begin > earliest or hit.offset <= REACH_BACK
    return read_labels(hit.text[begin : hit.start], begins_line=begins_line)


def read_labels(prefix: bytes, *, begins_line: bool = True) -> str:
    """Return the rank labels in the text before a record, like `read_rank`.

    `begins_line` is True if the text begins at the beginning of a line.
    """
    if not LABEL_HINT.search(prefix):
        return ""
    labels = []
    beginnings = [prefix] if begins_line else []
    if b"\r" in prefix:  # the beginning of a progress bar comes first
        beginnings.insert(0, prefix[prefix.rindex(b"\r") + 1 :])
    for pattern in (TASK, ROLE):  # count only at a beginning
        for beginning in beginnings:
            match = pattern.match(beginning)
            if match:
                labels.append(match[1])
                break
    for pattern in (RANK, PROCESS):  # the last label counts
        labels += pattern.findall(prefix)[-1:]
    return b" ".join(labels).decode("ascii")


def get_rank_order(rank: str) -> tuple[int, ...]:
    """Return a key that sorts rank labels by their numbers.

    The empty label sorts first.
    """
    return tuple(int(number) for number in re.findall(r"\d+", rank))


EXAMPLE_LENGTH = 80
_REASONS = tuple(DropReason)  # five times as fast as iterating over the enumeration


class Tally:
    """Counts of dropped records by reason, each with its first example."""

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
        """Count dropped records.

        Keeps the example of the lowest line: `example` in our words, or `quote` from
        the log. `last_line` is the line of the last dropped record.
        """
        previous = self._by_reason[reason]
        if previous:
            count += previous.count
            last_line = max(last_line, previous.last_line)
        if previous is None or line < previous.first_line:
            quote = make_printable(quote) if isinstance(quote, bytes) else quote
            self._by_reason[reason] = DroppedRecords(
                reason, count, line, example, quote, last_line
            )
        else:
            self._by_reason[reason] = replace(
                previous, count=count, last_line=last_line
            )

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally."""
        for dropped in other.result():
            self.add(
                dropped.reason,
                dropped.first_line,
                dropped.example,
                dropped.count,
                quote=dropped.quote,
                last_line=dropped.last_line,
            )

    def result(self) -> tuple[DroppedRecords, ...]:
        """Return the counts, in the order of the reasons."""
        return tuple(dropped for dropped in self._by_reason.values() if dropped)


def make_printable(text: bytes, length: int = EXAMPLE_LENGTH) -> Quote:
    """Return the beginning of a line as printable text.

    Characters that a terminal or XML cannot show are removed. At most `length`
    characters.
    """
    line = text.strip()[: 4 * length].decode("utf-8", "ignore")
    printable = line
    if not line.isprintable():
        printable = "".join(character for character in line if character.isprintable())
    return Quote(
        printable if len(printable) <= length else printable[: length - 1] + "…"
    )


# Printed token totals are rounded: the tokens per step are derived from two records
# whose totals differ by at least this many units.
FEWEST_UNITS = 100


def count_step_tokens(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Add the tokens per step, derived from the tokens consumed so far.

    `records` are those of one attempt. A record stays unchanged if rounding makes the
    result uncertain by more than one percent.
    """
    printed = [record.consumed_tokens or (NAN, 0) for record in records]
    totals = [total for total, _ in printed]
    digits = max((count for _, count in printed), default=0)
    with_tokens = []
    before = 0  # index of the latest record whose total is smaller by `least_growth`
    for row, (record, total) in enumerate(zip(records, totals, strict=True)):
        least_growth = FEWEST_UNITS * get_significant_unit(total, digits)
        while before + 1 < row and total - totals[before + 1] >= least_growth:
            before += 1
        steps = record.step - records[before].step
        growth = total - totals[before]
        is_known = steps > 0 and growth >= least_growth
        with_tokens.append(
            record._replace(step_tokens=growth / steps) if is_known else record
        )
    return with_tokens


DISAGREEMENT = 0.01

# A step number that falls by no more than this may be a late line of another process of
# the same run.
LATE_STEPS = 2

# Two writers are assumed after this many jumps back that are each followed by a return.
# After a restart the steps continue from where they jumped to.
FEWEST_REVERSALS = 3

# Two writers are assumed if at least this many steps, and half of all steps, are
# repeated with other times. Fewer may be late lines.
FEWEST_REPEATS = 10


def choose_print(old: StepRecord, new: StepRecord) -> StepRecord:
    """Choose between two records of the same step.

    A possible time is preferred to an impossible one, then a `precise` record to a
    progress bar. If the times contradict each other, the slower record is kept, so that
    no gate passes because of the faster one. If they agree, the first record is kept. A
    non-finite loss or gradient norm of either record is copied.
    """
    if _is_preferred(new, old):
        return add_divergence(new, old)
    return add_divergence(old, new)


def have_same_time(old: StepRecord, new: StepRecord) -> bool:
    """True if two times agree within 1 %, or if both are NaN."""
    if old.seconds == new.seconds or (
        math.isnan(old.seconds) and math.isnan(new.seconds)
    ):
        return True
    return abs(new.seconds - old.seconds) <= DISAGREEMENT * min(
        abs(new.seconds), abs(old.seconds)
    )


def add_divergence(record: StepRecord, other: StepRecord) -> StepRecord:
    """Return `record` with a non-finite loss or gradient norm of `other`, if any."""
    loss, grad_norm = record.loss, record.grad_norm
    if _is_not_finite(other.loss):
        loss = other.loss
    if _is_not_finite(other.grad_norm):
        grad_norm = other.grad_norm
    return record._replace(loss=loss, grad_norm=grad_norm)


def has_diverged(record: StepRecord) -> bool:
    """True if the loss or gradient norm of a record is NaN or infinite."""
    return _is_not_finite(record.loss) or _is_not_finite(record.grad_norm)


def _is_preferred(new: StepRecord, old: StepRecord) -> bool:
    """True if `new` replaces `old`, by the rules of `choose_print`."""
    if new.possible != old.possible:
        return new.possible
    if new.precise != old.precise:
        return new.precise
    return new.seconds > old.seconds and not have_same_time(old, new)


def _is_not_finite(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def tally_repeats(records: Sequence[StepRecord], repeats: Tally, tally: Tally) -> None:
    """Count the repeated steps of one rank, and detect two writers.

    Two processes wrote the log if the step numbers alternate between two sequences, or
    if many steps are repeated with different times. Each case is counted under its own
    reason.
    """
    reversals = find_step_reversals(records)
    if reversals:
        first, before = reversals[0]  # the first jump back
        text = f"step {first.step} after step {before.step}, and back to step {before.step + 1}"
        tally.add(DropReason.INTERLEAVED, first.origin.line, text, len(records))
    steps = len({record.step for record in records})
    for dropped in repeats.result():
        disagrees = dropped.reason == DropReason.REPEAT_DISAGREES
        is_two_writers = disagrees and dropped.count >= max(FEWEST_REPEATS, steps / 2)
        # Counted as INTERLEAVED already.
        if not (disagrees and reversals):
            reason = DropReason.TWO_WRITERS if is_two_writers else dropped.reason
            tally.add(
                reason,
                dropped.first_line,
                dropped.example,
                dropped.count,
                quote=dropped.quote,
            )


def find_step_reversals(
    records: Sequence[StepRecord],
) -> list[tuple[StepRecord, StepRecord]]:
    """Find step numbers that jump back and later resume where they were.

    Returns pairs of the record after a jump and the record before it. Empty for fewer
    than FEWEST_REVERSALS jumps.
    """
    reversals = []
    jump: tuple[StepRecord, StepRecord] | None = None
    before: StepRecord | None = None
    for record in records:
        if before is not None and record.step < before.step - LATE_STEPS:
            jump = record, before
        elif jump and before is not None:
            _, before_jump = jump
            is_resumed = record.step == before_jump.step + 1
            # A sequence that counts up to this step again does not resume another one.
            if is_resumed and record.step != before.step + 1:
                reversals.append(jump)
                jump = None
        before = record
    return reversals if len(reversals) >= FEWEST_REVERSALS else []
