"""torchtitan: one line per step, without the step time.

`step:  2  loss:  5.97670  grad_norm:  2.2500  memory: 28.18GiB(89.87%)
tps: 2,110  ...  mfu: 4.11%`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from pytest_llmbench.core.log_records import DropReason, PauseKind
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs import clock
from pytest_llmbench.logs.dialect_reader import (
    FieldTable,
    PrintedField,
    RecordLines,
    StepColumns,
    ascends,
    count_most_digits,
    match_rows,
)
from pytest_llmbench.logs.printed_times import read_timestamp, read_timestamps
from pytest_llmbench.logs.scan import REACH_BACK, find_line_begin
from pytest_llmbench.logs.step_records import (
    COLOUR,
    GET_FIELD,
    HOLE,
    NAN,
    NOT_FINITE,
    RecordOrigin,
    StepRecord,
    Tally,
    TruncatedRecord,
    count_digits,
    find_line_stop,
)

STEP = b"step: "
# The gaps between more lines than this show the log interval.
FEWEST_LINES = 3
HEAD = compile_on_use(rb"(?<!\w)step: {1,9}(\d{1,15})  ")
VALIDATION = b"validate "
# Prefix of another kind of step: `validate step: 13000`, `evaluation:  step: 5`.
LOOK_ALIKE = compile_on_use(rb"\w:? {1,2}\Z")

# "loss:  5.97670  "
FIELD = compile_on_use(rb"([A-Za-z]\w{0,39}): {1,19}(\S{1,99})  ")
NUMBER = compile_on_use(rb"-?(?:\d{1,18}\.\d{1,9}|%b)" % NOT_FINITE)
BAD_LOSS = compile_on_use(rb"loss: {1,19}-?%b(?!\w)" % NOT_FINITE)
# "28.18GiB(89.87%)"
MEMORY = compile_on_use(rb"(\d{1,9}\.\d\d)GiB\(\d{1,9}\.\d\d%\)")
# "tps: 2,110  tflops: 127.60  mfu: 4.11%"
RATES = compile_on_use(
    rb"tps: (\d[\d,]{0,23})  (?:tflops: (\d[\d,]{0,23}\.\d\d|%b)  )?mfu: (?:[\d,]{1,24}\.\d\d%%|N/A)"
    % NOT_FINITE
)
CUT_RATES = compile_on_use(rb"tps: \d[\d,]*  (?:tflops|mfu): ")

RATES_LENGTH = 256

# --- of a line that is read by columns
RATE_NAMES = (b"tps", b"tflops", b"mfu")
NAME = compile_on_use(rb"([A-Za-z]\w{0,39}): ")
CODE = rb"\x1b\[[\d;]{0,20}+m"
# up to three: nested alternatives are matched faster than a repetition
CODES = rb"(?:%b(?:%b(?:%b|)|)|)" % (CODE, CODE, CODE)
MFU = rb"mfu: (?:[\d,]{1,24}\.\d\d%|N/A)"
# no colour code before the stamp: a digit may precede the code
STAMP_FIELDS = rb"(20(?<![\dm]20)\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - [\w.]{1,99} - [A-Z]{1,9} - "

# "2025-06-11 05:14:49,562 - root - INFO - ", right before a step
STAMP = compile_on_use(
    rb"(?<!\d)(20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - [\w.]{1,99} - [A-Z]{1,9} - \Z"
)
# Steps print no time: it is derived from the stamps of two lines, which have a
# millisecond.
STAMP_UNIT = 0.001

GIB = 2**30


def _parse_number(text: bytes) -> float:
    return float(text.replace(b",", b""))


def _parse_memory(text: bytes) -> float:
    """Return the memory in bytes, from `28.18GiB(89.87%)`."""
    return float(text.partition(b"GiB")[0]) * GIB


FINITE = rb"-?\d{1,18}\.\d{1,9}"
FIELDS = FieldTable(
    PrintedField(b"loss", "loss", FINITE),
    PrintedField(b"grad_norm", "grad_norm", FINITE),
    PrintedField(
        b"memory", "memory", rb"\d{1,9}\.\d\dGiB\(\d{1,9}\.\d\d%\)", _parse_memory
    ),
    PrintedField(b"tps", "tokens", rb"\d[\d,]{0,23}", _parse_number),
    PrintedField(b"tflops", "tflops", rb"\d[\d,]{0,23}\.\d\d", _parse_number),
)


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the training step whose `tps: ` is at `text[start]`.

    `time_steps` computes its time. A validation becomes a record with mean_of 0.
    Returns a TruncatedRecord if the record is incomplete, None for another line.
    """
    begin = find_line_begin(text, max(0, start - REACH_BACK), start)
    before = COLOUR.sub(b"", text[begin:start])
    stop = find_line_stop(text, start, min(end, start + RATES_LENGTH))
    rates = COLOUR.sub(b"", text[start:stop])
    step_start = before.rfind(STEP)
    if not (CUT_RATES.match(rates) or MEMORY.search(before)):
        return None
    if step_start < 0:
        return TruncatedRecord(origin, rates)
    head, match = HEAD.match(before, step_start), RATES.match(rates)
    if LOOK_ALIKE.search(before, 0, step_start):
        validation = _read_validation(origin, head, before[:step_start])
        is_bad = head is not None and BAD_LOSS.search(before, head.end()) is not None
        if validation is None:
            return None
        return validation._replace(bad_validation=is_bad)
    values = _read_values(before, head.end()) if head else None
    if head is None or match is None or values is None or HOLE in before:
        return TruncatedRecord(origin, before[step_start:] + rates)
    memory = MEMORY.fullmatch(values[b"memory"])
    return StepRecord(
        origin,
        int(head[1]),
        NAN,
        STAMP_UNIT,
        loss=float(values[b"loss"]),
        loss_digits=count_digits(values[b"loss"]),
        grad_norm=float(values[b"grad_norm"]) if b"grad_norm" in values else None,
        tflops=_parse_number(match[2]) if match[2] else NAN,
        # per GPU: torchtitan divides by the ranks that share the input
        tokens=_parse_number(match[1]),
        # peak of the memory reserved by the allocator
        memory=float(memory[1]) * GIB if memory else NAN,
        stamp=_read_stamp(before[:step_start]),
    )


def read_columns(lines: RecordLines) -> StepColumns | None:
    """Read the steps of an attempt.

    Returns None if a record has another layout than the first, or is incomplete; if it
    is a validation, or if a time stamp is missing.
    """
    first_line = lines.text[lines.begins[0] : lines.stops[0]]
    _, _, record = COLOUR.sub(b"", first_line).rpartition(STEP)
    # "  2  loss:  5.97670  memory: 28.18GiB(89.87%)  tps: 2,110  tflops: 1.20  mfu: N/A"
    names = tuple(NAME.findall(record))
    codes = CODES if COLOUR.search(first_line) else b""
    layout = _compile_layout(names, codes)
    rows = match_rows(layout, lines) if layout else None
    if rows is None:
        return None
    printed_stamps, printed_steps, *columns = zip(*rows, strict=True)
    printed = FIELDS.name_columns(names, columns)
    steps = list(map(int, printed_steps))
    stamps = read_timestamps(printed_stamps)
    times = clock.time_columns(steps, stamps, STAMP_UNIT) if ascends(steps) else None
    if times is None:
        return None
    return StepColumns(
        steps,
        stamp=stamps,
        finds_pauses=False,
        loss_digits=count_most_digits(printed[b"loss"]),
        **times._asdict(),
        **FIELDS.parse_columns(printed),
    )


@cache
def _compile_layout(names: tuple[bytes, ...], codes: bytes) -> re.Pattern[bytes] | None:
    """Return the pattern of a record with these fields, after its time stamp.

    `codes` matches the colour codes before each field. Returns None if the rates are
    not the last fields, or if another required field is missing.
    """
    body = names[: -2 if names[-2:] == RATE_NAMES[::2] else -3]
    if (
        names[len(body) :] not in (RATE_NAMES, RATE_NAMES[::2])
        or not {b"loss", b"memory"} <= set(body)
        or len(set(names)) < len(names)
    ):
        return None
    fields = [
        *FIELDS.describe(body, rb": {1,19}", rb"[^\s\[=]{1,99}"),
        *FIELDS.describe(names[len(body) : -1], b": ", b""),
    ]
    printed = b"".join(field + b"  " + codes for field in fields)
    return re.compile(
        rb"%b%bstep: {1,9}(\d{1,15})  %b%b%b"
        % (STAMP_FIELDS, codes, codes, printed, MFU)
    )


def resolve_steps(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the training steps of one rank, without validations.

    The rates of torchtitan exclude the validation before a step, and so does the time
    computed from them. Steps whose time covers only a part of their interval are counted
    in the tally.
    """
    training = list(clock.drop_evaluations(records))
    for index in _find_partly_timed(training):
        record, before = training[index], training[index - 1]
        validated_step, _ = record.since or (0, NAN)
        steps = record.step - before.step
        timed = record.step - validated_step
        text = f"step {record.step}: the time is the mean of {timed} of the {steps} steps before it"
        tally.add(DropReason.PARTLY_TIMED, record.origin.line, text)
    return training


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Compute the times of one attempt's steps from their time stamps.

    The first line has no time. Its rates cover the usual number of steps between two
    lines, or all steps from 1 on if there are fewer. If a validation is inside a log
    interval, the time since its end represents the whole interval, because the time of
    the steps before the validation is unknown.
    """
    timed = clock.time_steps(records)
    for index in _find_partly_timed(records):
        steps = records[index].step - records[index - 1].step
        timed[index] = timed[index]._replace(
            mean_of=steps, since=None, paused=PauseKind.EVALUATION
        )
    return timed


def _find_partly_timed(records: Sequence[StepRecord]) -> list[int]:
    """Return the indices of records whose interval contains a validation.

    The interval of a record begins at the record before. Skips a record if a line
    before it was lost. Empty for too few records to know the usual interval.
    """
    if len(records) <= FEWEST_LINES or not any(map(GET_FIELD["since"], records)):
        return []
    usual_gap = clock.count_usual_gap(records)
    return [
        index
        for index, (before, record) in enumerate(pairwise(records), 1)
        if record.since is not None
        and before.step < record.since[0] < record.step <= before.step + usual_gap
    ]


def _read_validation(
    origin: RecordOrigin, head: re.Match[bytes] | None, before: bytes
) -> StepRecord | None:
    """Parse the line of a validation: its step, and the clock at its end.

    Returns None for other similar lines.
    """
    if head is None or not before.endswith(VALIDATION):
        return None
    return StepRecord(
        origin,
        int(head[1]),
        NAN,
        0.0,
        stamp=_read_stamp(before.removesuffix(VALIDATION)),
        mean_of=0,
    )


def _read_values(before: bytes, begin: int) -> dict[bytes, bytes] | None:
    """Return the fields from `begin` to the end of the text.

    Returns None if a field is incomplete or printed twice, or if the loss or the memory
    is missing.
    """
    values: dict[bytes, bytes] = {}
    while begin < len(before):
        field = FIELD.match(before, begin)
        if field is None or field[1] in values:
            return None
        values[field[1]] = field[2]
        begin = field.end()
    loss, norm = values.get(b"loss", b""), values.get(b"grad_norm")
    is_complete = (
        NUMBER.fullmatch(loss)
        and (norm is None or NUMBER.fullmatch(norm))
        and MEMORY.fullmatch(values.get(b"memory", b""))
    )
    return values if is_complete else None


def _read_stamp(before: bytes) -> float:
    """Return the time stamp directly before a step, in seconds.

    NaN if missing.
    """
    stamp = STAMP.search(before)
    return read_timestamp(stamp[1]) if stamp else NAN
