"""MaxText: one line per step.

`completed step: 49, seconds: 7.908, TFLOP/s/device: 460.480, ..., loss: 0.000`
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from statistics import median
from typing import Any

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.dialect_reader import (
    FieldTable,
    PrintedField,
    RecordLines,
    StepColumns,
    count_most_digits,
    list_names,
    match_rows,
)
from pytest_llmbench.logs.step_records import (
    HOLE,
    NAN,
    NOT_FINITE,
    RecordOrigin,
    StepRecord,
    Tally,
    TruncatedRecord,
    count_digits,
    find_line_stop,
    get_printed_unit,
    get_printed_units,
    read_without_codes,
)

MARKER = b"completed step: "

SECONDS = rb"\d{1,15}+\.\d{3,9}+"
HEAD = compile_on_use(
    rb"completed step: (\d{1,15}+), seconds: (-?(?:%b|%b))," % (SECONDS, NOT_FINITE)
)
CUT_HEAD = compile_on_use(rb"completed step: (?:\d|$)")

# JAX dispatches a step and returns. Until its queue is full, MaxText prints how long
# the dispatch took: `seconds: 0.319` in step 1 of a run with steps of 5.66 s. Such
# steps are among the first, and take less than FAST of later steps.
FIRST_STEPS = 5
FEWEST_LATER = 5
FAST = 0.75

LOSS = b"loss"
# The target tokens per step of the whole run (524288 is 128 samples of 4096 tokens).
# They do not determine the batch size: the sequence length is unknown, and padding
# lowers them.
TARGETS = b"total_weights"
LOSS_PRINTED = compile_on_use(rb", loss: (-?\d{1,18}\.\d{3})")
# Prefix of the steps in which the batch size still grows. Their batch is not the
# configured one.
RAMP_UP = b"[Rampup Batch Size Phase], "
# MaxText prints fixed formats: a number with all decimals is complete, whatever
# follows, unless the next character may continue the number.
THREE_DECIMALS = rb"-?\d{1,18}+\.\d{3}(?![\d.e])"
EXPONENT = rb"-?\d\.\d{3}e[+-]\d\d(?!\d)"
FIELDS = FieldTable(
    PrintedField(b"TFLOP/s/device", "tflops", THREE_DECIMALS),
    PrintedField(b"Tokens/s/device", "tokens", THREE_DECIMALS),
    PrintedField(LOSS, "loss", THREE_DECIMALS),
    PrintedField(b"grad_norm", "grad_norm", EXPONENT),
    PrintedField(TARGETS, "targets", rb"\d{1,15}+(?:\.\d{1,9}+)?", required=False),
)
TARGETS_PRINTED = compile_on_use(
    rb", total_weights: (%b)(?=,)" % FIELDS.by_name[TARGETS].finite
)
NUMBERS = {
    field.name: FIELDS.numbers[field.name] for field in FIELDS.fields if field.required
}


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the step at `text[start]`.

    Returns a TruncatedRecord if the record is incomplete, None for other text with the
    same beginning.

    A step of the batch ramp-up has mean_of 0: `resolve_steps` drops it.
    """
    return read_without_codes(_read_uncoloured, text, start, end, origin)


def _read_uncoloured(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the step at `text[start]`, which contains no colour codes."""
    stop = find_line_stop(text, start, end)
    line_ends = stop < end
    next_record = text.find(MARKER, start + len(MARKER), stop)
    stop = stop if next_record < 0 else next_record
    head = HEAD.match(text, start, stop)
    if head is None:
        if CUT_HEAD.match(text, start, stop):
            return TruncatedRecord(origin, text[start:stop])
        return None
    body = text[head.end() : stop]
    numbers = _read_numbers(body)
    # A line without its end is complete if it contains the last required field, the
    # loss.
    if numbers is None or not (line_ends or FIELDS.by_name[LOSS].column in numbers):
        return TruncatedRecord(origin, text[start:stop])
    step, seconds = head.groups()
    is_finite = seconds[-1:].isdigit()
    return StepRecord(
        origin,
        int(step),
        float(seconds),
        get_printed_unit(seconds) if is_finite else 0.0,
        targets=_read_targets(body),
        loss_digits=_count_loss_digits(body),
        mean_of=0 if text.endswith(RAMP_UP, 0, start) else 1,
        **numbers,
    )


def resolve_steps(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Drop the steps of one rank in which the batch size still grew (mean_of 0)."""
    for record in records:
        if not record.mean_of:
            tally.add(
                DropReason.RAMPED_UP,
                record.origin.line,
                f"step {record.step}: {record.seconds:g} s",
            )
    return [record for record in records if record.mean_of]


def read_columns(lines: RecordLines) -> StepColumns | None:
    """Read the steps at these offsets, each on its own line.

    Returns None if a record has another layout than the first, or is incomplete, and if
    the first record follows a batch ramp-up.
    """
    text, offsets, stops = lines.text, lines.offsets, lines.stops
    # The first two fields, step and seconds, are in the head of the layout.
    fields = text[offsets[0] : stops[0]].split(b", ")[2:]
    names = list_names(fields, b": ")
    if not names or text.endswith(RAMP_UP, 0, offsets[0]):
        return None
    rows = match_rows(_compile_layout(names), lines)
    if rows is None:
        return None
    steps, printed, *columns = zip(*rows, strict=True)
    printed_columns = FIELDS.name_columns(names, columns)
    seconds = list(map(float, printed))
    return StepColumns(
        list(map(int, steps)),
        seconds,
        get_printed_units(printed),
        loss_digits=count_most_digits(printed_columns.get(LOSS)),
        asynchronous=_find_dispatched_range(seconds),
        **FIELDS.parse_columns(printed_columns),
    )


@cache
def _compile_layout(names: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return the pattern of a record with these fields.

    Matches `completed step: 49, seconds: 7.908, TFLOP/s/device: 460.480, ...`.
    """
    fields = FIELDS.describe(names, b": ", rb"[^,\r\n\x00]*+")
    remaining = b"".join(b", " + field for field in fields)
    return re.compile(
        rb"completed step: (\d{1,15}+), seconds: (-?%b)%b\n" % (SECONDS, remaining)
    )


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Mark the steps of one attempt that were only dispatched.

    See `_find_dispatched_range`.
    """
    begin, end = _find_dispatched_range([record.seconds for record in records])
    return [
        record._replace(asynchronous=begin <= index < end)
        for index, record in enumerate(records)
    ]


def _find_dispatched_range(seconds: Sequence[float]) -> tuple[int, int]:
    """Return the range of steps whose times are dispatch times only.

    Returns the first index and the index after the last. The slow steps at the start
    compile the program. The dispatched steps follow them; together they are at most
    FIRST_STEPS. A dispatched step takes less than FAST of the next step, and of the
    median of the later steps. A fast step later on is not examined.
    """
    later = [value for value in seconds[FIRST_STEPS:] if 0 < value < math.inf]
    if len(later) < FEWEST_LATER:
        return 0, 0
    usual_seconds = median(later)
    compiling = list(
        takewhile(lambda value: value * FAST > usual_seconds, seconds[:FIRST_STEPS])
    )
    first = len(compiling)
    fast = list(
        takewhile(lambda value: 0 < value < FAST * usual_seconds, seconds[first:])
    )
    after = first + len(fast)
    if after > FIRST_STEPS:  # too many for a queue that fills
        return 0, 0
    is_dispatched = all(value < FAST * seconds[after] for value in fast)
    return (first, after) if is_dispatched else (0, 0)


def _read_targets(text: bytes) -> float:
    """Return the target tokens of a record, NaN if missing."""
    match = TARGETS_PRINTED.search(text)
    return float(match[1]) if match else NAN


def _count_loss_digits(text: bytes) -> int:
    """Return the number of digits of the printed loss, 0 if missing."""
    match = LOSS_PRINTED.search(text)
    return count_digits(match[1]) if match else 0


def _read_numbers(text: bytes) -> dict[str, Any] | None:
    """Return the numbers after the head of a record, by column.

    Returns None if a number is incomplete, or if a field is printed twice.
    """
    printed: dict[bytes, bytes] = {}
    if HOLE in text:
        return None
    for field in filter(None, text.strip().split(b",")):
        name, colon, value = field.strip().partition(b": ")
        if name not in NUMBERS:
            # before the loss, a text without a colon is a truncated field
            if not colon and LOSS not in printed:
                return None
            continue
        match = NUMBERS[name].match(value)
        if match is None or name in printed:
            return None
        printed[name] = match[0]
    return FIELDS.parse_record(printed)
