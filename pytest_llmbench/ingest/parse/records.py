"""One record of one step, as a dialect reads it, and which rank printed it: nothing is known of its neighbours yet."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from pytest_llmbench.ingest.parse.scan import REACH_BACK, Hit

NAN = math.nan
# How frameworks spell a value that is no number.
NOT_FINITE = rb"(?i:nan|inf(?:inity)?)"

LINE_BREAK = re.compile(rb"[\r\n]")
# How a page of a file reads that was never written: what stands before and after it is of different records.
HOLE = b"\x00"

DIGITS = tuple(b"%d" % digit for digit in range(10))

COLOUR_RESET = re.compile(rb"\x1b\[[\d;]*m")
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
    """Where a record stands: its place in the log (bytes), 1-based line, and the rank that its prefix names."""

    offset: int
    line: int
    rank: str


class StepRecord(NamedTuple):
    """What one record says of one step; None or NaN where it says nothing."""

    origin: RecordOrigin
    step: int
    seconds: float  # as in `models.Steps`, impossible times as they are printed
    resolution: float
    total: int | None = None  # the number of steps of the run
    loss: float | None = None
    grad_norm: float | None = None
    tflops: float = NAN
    tokens: float = NAN
    batch: float = NAN  # samples in a step, of all ranks
    memory: float = NAN  # bytes
    precise: bool = False  # whether it is printed in full, to be preferred
    mean_of: int = 1  # as in `models.Steps`. With 0 it is no step that counts, and only its dialect knows what it is.
    asynchronous: bool = False
    stamp: float = NAN  # the time stamp of the line, in seconds since any fixed moment
    since: tuple[int, float] | None = None
    """A step and a time stamp from which on the time counts, where that is later than the record before."""
    bar: tuple[int, int] | None = None  # epoch and 1-based count of a progress bar whose step number is not certain yet
    rounded: bool = False  # whether the step number is not certain, or counted
    rate: float = NAN  # the learning rate
    consumed: float = NAN  # samples since the run began
    targets: float = NAN  # tokens whose loss counts
    skipped: float = NAN  # steps without an update of the weights
    loss_digits: int = 0  # how many digits the loss is printed with
    rewards: bool = False
    layout: tuple[bytes, ...] = ()
    """The names of its fields, with an empty one behind them where it cannot end in a number that was cut."""

    @property
    def possible(self) -> bool:
        """Whether the time is one that a step can take."""
        return 0 < self.seconds < math.inf


# Which column of `models.Steps` holds which numbers of the records.
COLUMNS = {
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
}


class Torn(NamedTuple):
    """A record that began and did not end as it should."""

    origin: RecordOrigin
    text: bytes


class Unmatched(NamedTuple):
    """A line that should hold a record, and holds none that a pattern matches; `group` is the first that it lacks."""

    origin: RecordOrigin
    text: bytes
    group: str = ""


def strip_codes(text: bytes, start: int, stop: int, end: int) -> bytes | None:
    """Return a record, which ends at `stop`, and what can be seen behind it up to `end`, without the codes for colours.

    Codes in the record alone are taken out. None where one stands inside a number.
    """
    record = text[start:stop]
    return None if CODE_IN_NUMBER.search(record) else CODES.sub(b"", record) + text[stop:end]


def get_significant_unit(value: float, digits: int) -> float:
    """Return one unit in the last of `digits` significant digits: 0.1 for 24.0 and 3; 0 where there is none."""
    if value == 0 or not math.isfinite(value):
        return 0.0
    return float(f"1e{math.floor(math.log10(abs(value))) - digits + 1}")


def get_significant_units(values: Sequence[float], digits: int) -> list[float]:
    """Return one unit in the last of `digits` significant digits of each of n > 0 finite values."""
    least, most = min(values), max(values)
    unit = get_significant_unit(least, digits)
    if least > 0 and unit == get_significant_unit(most, digits):
        return [unit] * len(values)
    return [get_significant_unit(value, digits) for value in values]


def get_printed_unit(text: bytes) -> float:
    """Return one unit in the last printed place of a number: 0.01 for `12.39`, 1 for `1.249e+03`."""
    mantissa, _, exponent = text.partition(b"e")
    decimals = len(mantissa.partition(b".")[2])
    return float(f"1e{int(exponent or 0) - decimals}")


def count_digits(printed: bytes) -> int:
    """Return how many digits a number is printed with: 4 for `11.03` and `0.000`, 7 for `1.258695E+01`."""
    mantissa = printed.lower().partition(b"e")[0]
    return sum(map(mantissa.count, DIGITS))


def find_line_stop(text: bytes, start: int, end: int) -> int:
    """Return where the line ends that `start` stands on: its line feed or carriage return, else `end`."""
    match = LINE_BREAK.search(text, start, end)
    return match.start() if match else end


def read_rank(hit: Hit) -> str:
    """Return the labels before a record, such as `9 default3` for `9: [default3]: `, or an empty string.

    `9: ` (srun -l) and `train/0 ` (NeMo-Run) count at the beginning of a line or bar only; `[default3]:`, `[rank4]:`
    and `pid=4112` anywhere before the record, the last one where lines were glued.
    """
    earliest = max(0, hit.start - REACH_BACK)
    begin = hit.text.rfind(b"\n", earliest, hit.start) + 1 or earliest
    prefix = hit.text[begin : hit.start]
    if not (prefix and SIGN.search(prefix)):
        return ""
    heads = [prefix] if begin > earliest or hit.offset <= REACH_BACK else []
    if b"\r" in prefix:
        heads.insert(0, prefix[prefix.rindex(b"\r") + 1 :])
    labels = [next((match[1] for head in heads if (match := label.match(head))), b"") for label in (TASK, ROLE)]
    labels += [b"".join(label.findall(prefix)[-1:]) for label in (RANK, PROCESS)]
    return b" ".join(filter(None, labels)).decode("ascii")


def get_rank_order(rank: str) -> tuple[int, ...]:
    """Return a key that sorts ranks by their numbers; a line without a label sorts first."""
    return tuple(int(number) for number in re.findall(r"\d+", rank))
