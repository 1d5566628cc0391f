"""MaxText: `completed step: 49, seconds: 7.908, TFLOP/s/device: 460.480, ..., loss:
0.000`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from statistics import median
from typing import Any

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.logs.dialect_reader import (
    FieldTable,
    PrintedField,
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
    read_without_codes,
)

MARKER = b"completed step: "

SECONDS = rb"\d{1,15}+\.\d{3,9}+"
HEAD = re.compile(
    rb"completed step: (\d{1,15}+), seconds: (-?(?:%b|%b))," % (SECONDS, NOT_FINITE)
)
CUT_HEAD = re.compile(rb"completed step: (?:\d|$)")

# JAX hands a step over and goes on. Until its queue is full MaxText prints how long the
# handing over took: `seconds: 0.319` in step 1 of a run of 5.66 s. Such steps are among
# the first, and take less than FAST of later ones.
FIRST_STEPS = 5
FEWEST_LATER = 5
FAST = 0.75

LOSS = b"loss"
# The target tokens in a step of the whole run (524288 is 128 samples of 4096 tokens):
# without the sequence length they give no batch size, and padding lowers them.
TARGETS = b"total_weights"
LOSS_PRINTED = re.compile(rb", loss: (-?\d{1,18}\.\d{3})")
# What stands before the steps in which the batch grows, which are not those of the
# configuration.
RAMP_UP = b"[Rampup Batch Size Phase], "
# MaxText prints fixed formats: a number is whole when it has all its places, whatever
# follows, unless that may continue the number.
THREE_DECIMALS = rb"-?\d{1,18}+\.\d{3}(?![\d.e])"
EXPONENT = rb"-?\d\.\d{3}e[+-]\d\d(?!\d)"
FIELDS = FieldTable(
    PrintedField(b"TFLOP/s/device", "tflops", THREE_DECIMALS),
    PrintedField(b"Tokens/s/device", "tokens", THREE_DECIMALS),
    PrintedField(LOSS, "loss", THREE_DECIMALS),
    PrintedField(b"grad_norm", "grad_norm", EXPONENT),
    PrintedField(TARGETS, "targets", rb"\d{1,15}+(?:\.\d{1,9}+)?", required=False),
)
TARGETS_PRINTED = re.compile(
    rb", total_weights: (%b)(?=,)" % FIELDS.by_name[TARGETS].finite
)
NUMBERS = {
    field.name: FIELDS.numbers[field.name] for field in FIELDS.fields if field.required
}


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Return the step at `text[start]`, what is left of it, or None where a sentence
    only begins the same way.

    A step of the phase in which the batch grows has mean_of 0: `settle` leaves it out.
    """
    return read_without_codes(_read_plain, text, start, end, origin)


def _read_plain(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    stop = find_line_stop(text, start, end)
    whole = stop < end
    glued = text.find(MARKER, start + len(MARKER), stop)
    stop = stop if glued < 0 else glued
    head = HEAD.match(text, start, stop)
    if head is None:
        return (
            TruncatedRecord(origin, text[start:stop])
            if CUT_HEAD.match(text, start, stop)
            else None
        )
    number = _read_numbers(text[head.end() : stop])
    if number is None or not (whole or FIELDS.by_name[LOSS].column in number):
        return TruncatedRecord(origin, text[start:stop])
    return StepRecord(
        origin,
        int(head[1]),
        float(head[2]),
        get_printed_unit(head[2]) if head[2][-1:].isdigit() else 0.0,
        targets=_read_targets(text[head.end() : stop]),
        loss_digits=_count_loss_digits(text[head.end() : stop]),
        mean_of=0 if text.endswith(RAMP_UP, 0, start) else 1,
        **number,
    )


def settle(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the steps of one rank without those whose batch had not its size yet."""
    for record in records:
        if not record.mean_of:
            tally.add(
                DropReason.RAMPED_UP,
                record.origin.line,
                f"step {record.step}: {record.seconds:g} s",
            )
    return [record for record in records if record.mean_of]


def read_columns(
    text: bytes, places: Sequence[int], stops: Sequence[int]
) -> StepColumns | None:
    """Return the steps at these places, each on a line of its own; None where one is
    not as the first, or not whole."""
    names = list_names(text[places[0] : stops[0]].split(b", ")[2:], b": ")
    if not names or text.endswith(RAMP_UP, 0, places[0]):
        return None
    rows = match_rows(_compile_layout(names), text, places, stops)
    if rows is None:
        return None
    steps, printed, *columns = zip(*rows, strict=True)
    value = FIELDS.name_columns(names, columns)
    seconds = list(map(float, printed))
    return StepColumns(
        list(map(int, steps)),
        seconds,
        [get_printed_unit(text) for text in printed],
        loss_digits=count_most_digits(value.get(LOSS)),
        asynchronous=_find_dispatched(seconds),
        **FIELDS.parse_columns(value),
    )


@cache
def _compile_layout(names: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return the pattern of a record with these fields."""
    fields = FIELDS.describe(names, b": ", rb"[^,\r\n\x00]*+")
    rest = b"".join(b", " + field for field in fields)
    return re.compile(
        rb"completed step: (\d{1,15}+), seconds: (-?%b)%b\n" % (SECONDS, rest)
    )


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt, those marked asynchronous whose time is that of
    dispatching them only."""
    begin, end = _find_dispatched([record.seconds for record in records])
    return [
        record._replace(asynchronous=begin <= place < end)
        for place, record in enumerate(records)
    ]


def _find_dispatched(seconds: Sequence[float]) -> tuple[int, int]:
    """Return the first place, and the one behind the last, of the times that are those
    of dispatching a step only.

    They follow the steps that compile, are at most FIRST_STEPS with those, and take
    less than FAST of the next step and of the median of the later ones, which the next
    step has reached. A step that is fast later on is not judged here.
    """
    later = [value for value in seconds[FIRST_STEPS:] if 0 < value < math.inf]
    if len(later) < FEWEST_LATER:
        return 0, 0
    level = median(later)
    first = sum(
        1 for _ in takewhile(lambda value: value * FAST > level, seconds[:FIRST_STEPS])
    )
    fast = list(takewhile(lambda value: 0 < value < FAST * level, seconds[first:]))
    after = first + len(fast)
    sure = after <= FIRST_STEPS and all(value < FAST * seconds[after] for value in fast)
    return (first, after) if sure else (0, 0)


def _read_targets(text: bytes) -> float:
    """Return the target tokens that a record goes on with, NaN without them."""
    match = TARGETS_PRINTED.search(text)
    return float(match[1]) if match else NAN


def _count_loss_digits(text: bytes) -> int:
    """Return with how many digits a record prints its loss."""
    match = LOSS_PRINTED.search(text)
    return count_digits(match[1]) if match else 0


def _read_numbers(text: bytes) -> dict[str, Any] | None:
    """Return the numbers of the rest of a record by column.

    None if a number is not whole, or is printed twice.
    """
    number: dict[bytes, bytes] = {}
    if HOLE in text:
        return None
    for part in filter(None, text.strip().split(b",")):
        name, colon, value = part.strip().partition(b": ")
        if name not in NUMBERS:
            if not colon and LOSS not in number:
                return None
            continue
        match = NUMBERS[name].match(value)
        if match is None or name in number:
            return None
        number[name] = match[0]
    return FIELDS.parse_record(number)
