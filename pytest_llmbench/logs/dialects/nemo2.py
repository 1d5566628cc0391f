"""NeMo 2 (NeMo-Run): one line per step.

`Training epoch 0, iteration 49/49 | global_step: 49 | ... |
train_step_timing in s: 12.39`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from operator import sub

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.dialect_reader import (
    FieldTable,
    PrintedField,
    RecordLines,
    StepColumns,
    count_most_digits,
    list_names,
    match_rows,
    share_names,
)
from pytest_llmbench.logs.scan import REACH
from pytest_llmbench.logs.step_records import (
    BAD_NUMBER,
    FIND_POINT,
    HOLE,
    NAN,
    NOT_FINITE,
    RecordOrigin,
    StepRecord,
    TruncatedRecord,
    count_digits,
    find_line_stop,
    get_printed_unit,
    get_significant_unit,
    read_without_codes,
)

MARKER = b"Training epoch "
# Trailing zeros are not printed: 6.08 has a resolution of 0.001. Large times are
# printed as `1.249e+03`.
DIGITS = 4

# "Training epoch 0, iteration 49/49 | ": epoch, iteration, last iteration
HEAD = compile_on_use(
    rb"Training epoch (\d{1,9}+), iteration (\d{1,15}+)/(\d{1,15}+) \| "
)
CUT_HEAD = compile_on_use(rb"Training epoch \d+(?:, |$)")
STEP = compile_on_use(rb"\d{1,15}+")
FINITE = rb"-?\d{1,18}+(?:\.\d{1,40}+)?(?:e[+-]\d{2,3}+)?"
# A number of samples with at most this many digits is exact as a float.
MAX_EXACT_DIGITS = 15
SAMPLES_PRINTED = compile_on_use(rb"\d{1,%d}+(?:\.0{1,9}+)?" % MAX_EXACT_DIGITS)
OTHER = rb"[^|\r\n\x00\x1b]*"
# The next line, if it begins with the rest of a number: ".39 | consumed_samples: 512".
NUMBER_END = compile_on_use(
    rb"(?=[^\r\n]*[\d|])[\d.]*(?:e?[+-]?\d\d)?(?: \| [A-Za-z_][\w ]*: |[ \t\r]*$)"
)
# A log in which no line matches this has no line that matches NUMBER_END. One search of
# the log takes a tenth of the time of matching the lines below each record.
ANY_NUMBER_END = compile_on_use(
    rb"\n(?![ \t]*$)[\d.]*(?:e?[+-]?\d\d)?(?: \| [A-Za-z_][\w ]*: |[ \t]*$)",
    re.MULTILINE,
)
MAX_LINES_BELOW = 8
# Characters of a number for which the significant digits follow from its shape.
MAX_SHORT_LENGTH = 10

TIME = b"train_step_timing in s"
STEP_NAME = b"global_step"
RATE, SAMPLES, LOSS = b"lr", b"consumed_samples", b"reduced_train_loss"
# Printed in every step from the first validation on.
VALIDATION = b"val_loss"
BAD_VALIDATION = compile_on_use(rb"val_loss: -?%b" % NOT_FINITE)


def _parse_samples(printed: bytes) -> float:
    """Return a number of samples that is printed in full, otherwise NaN."""
    # nearly always the case, and ten times as fast
    if printed.isdigit() and len(printed) <= MAX_EXACT_DIGITS:
        return float(printed)
    return float(printed) if SAMPLES_PRINTED.fullmatch(printed) else NAN


def _parse_rate(printed: bytes) -> float:
    """Return a learning rate, NaN if missing: the first step may lack it."""
    return float(printed or b"nan")


FIELDS = FieldTable(
    PrintedField(STEP_NAME, "step", STEP.pattern, int),
    PrintedField(TIME, "seconds", FINITE),
    PrintedField(b"global_batch_size", "batch", FINITE),
    PrintedField(LOSS, "loss", FINITE),
    PrintedField(b"grad_norm", "grad_norm", FINITE),
    PrintedField(b"TFLOPS_per_GPU", "tflops", FINITE),
    # `peak_memory_usage` until 25.04: the memory of tensors, not the memory that the
    # allocator reserved
    PrintedField(b"peak_memory_usage", "memory", FINITE),
    PrintedField(b"max_memory_allocated", "memory", FINITE),
    PrintedField(RATE, "rate", FINITE, _parse_rate, required=False),
    PrintedField(SAMPLES, "consumed", FINITE, _parse_samples, required=False),
)
# Optional fields: a record is complete even if they are missing or truncated.
EXTRA = frozenset(name for name, field in FIELDS.by_name.items() if not field.required)
READ = FIELDS.by_name.keys() - EXTRA
# Appended to the names of a record if its last number cannot be truncated, or is not
# read.
NOT_TRUNCATED = b""


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the step at `text[start]`.

    Returns a TruncatedRecord if the record is incomplete, None for other text with the
    same beginning.
    """
    return read_without_codes(_read_uncoloured, text, start, end, origin)


def _read_uncoloured(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the step at `text[start]`, which contains no colour codes."""
    stop = find_line_stop(text, start, end)
    head = HEAD.match(text, start, stop)
    if head is None:
        if CUT_HEAD.match(text, start, stop):
            return TruncatedRecord(origin, text[start:stop])
        return None
    values = _read_values(text, head.end(), stop, end)
    if values is None:
        return TruncatedRecord(origin, text[start:stop])
    number = FIELDS.parse_record(values)
    if number is None:
        return TruncatedRecord(origin, text[start:stop])
    epoch, iteration, last = map(int, head.groups())
    # `iteration` restarts in each epoch: it determines the total only if it equals
    # `global_step`
    counts_steps = epoch == 0 and iteration == number["step"]
    return StepRecord(
        origin,
        resolution=_get_resolution(values[TIME], number["seconds"]),
        total=last + 1 if counts_steps else None,
        loss_digits=count_digits(values.get(LOSS, b"")),
        bad_validation=BAD_NUMBER.fullmatch(values.get(VALIDATION, b"")) is not None,
        layout=share_names(tuple(values)),
        **number,
    )


def read_columns(lines: RecordLines) -> StepColumns | None:
    """Read the steps at these offsets, each on its own line.

    Returns None if a record has another layout, or is incomplete. The first step does
    not print `consumed_samples`, the last field of the other steps.
    """
    text, offsets, stops = lines.text, lines.offsets, lines.stops
    second = min(1, len(offsets) - 1)  # or the only one
    _head, *fields = text[offsets[second] : stops[second]].split(b" | ")
    names = list_names(fields, b": ")
    if not {TIME, STEP_NAME} <= set(names):
        return None
    if text.find(VALIDATION, offsets[0], stops[-1]) >= 0 and BAD_VALIDATION.search(
        text, offsets[0], stops[-1]
    ):
        return None
    rows = match_rows(_compile_layout(names), lines)
    # The first step lacks the last field.
    ends_with_number = not READ.isdisjoint(names[-2:])
    if rows is None or (ends_with_number and _is_truncated(text, offsets, stops)):
        return None
    last_name = names[-1]
    if last_name not in READ and _lacks_last(
        last_name, text, rows[second:], offsets[second:], stops[second:]
    ):
        # a later record lacks the last field of the others: its last number may be
        # truncated
        return None
    epochs, iterations, lasts, *columns = zip(*rows, strict=True)
    printed = FIELDS.name_columns(names, columns)
    numbers = FIELDS.parse_columns(printed)
    steps = numbers["step"]
    # Only an iteration that equals the step, in epoch 0, determines the total.
    is_first_epoch = not any(map(int, set(epochs)))
    if is_first_epoch and iterations == printed[STEP_NAME]:
        totals = set(lasts)
    else:
        heads = zip(epochs, map(int, iterations), lasts, steps, strict=True)
        totals = {
            last
            for epoch, iteration, last, step in heads
            if iteration == step and int(epoch) == 0
        }
    if len(totals) > 1:
        return None
    return StepColumns(
        resolution=_get_resolutions(printed[TIME], numbers["seconds"]),
        total=int(totals.pop()) + 1 if totals else None,
        loss_digits=count_most_digits(printed.get(LOSS)),
        **numbers,
    )


def _lacks_last(
    name: bytes,
    text: bytes,
    rows: Sequence[Sequence[bytes]],
    offsets: Sequence[int],
    stops: Sequence[int],
) -> bool:
    """True if one of the records lacks the last field of the others, `name`.

    Text between two records does not count.
    """
    if name in EXTRA:
        return not all(row[-1] for row in rows)
    field = b" | %b: " % name
    return any(
        text.find(field, offset, stop) < 0
        for offset, stop in zip(offsets, stops, strict=True)
    )


@cache
def _compile_layout(names: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return the pattern of a record with these fields.

    The last field is optional unless it is read. The loss of a validation may follow.
    Matches, for example, `Training epoch 0, iteration 49/49 | global_step: 49 |
    train_step_timing in s: 12.39`.
    """
    *fields, last = FIELDS.describe(names, b": ", OTHER)
    ending = rb" \| " + last if names[-1] in READ else rb"(?: \| %b)?" % last
    if VALIDATION not in names:
        ending += rb"(?: \| %b: %b)?" % (VALIDATION, OTHER)
    return re.compile(HEAD.pattern + rb" \| ".join(fields) + ending + rb"\n")


def _read_values(
    text: bytes, begin: int, stop: int, end: int
) -> dict[bytes, bytes] | None:
    """Return the fields of a record that has a step and a time.

    Returns None if the record is truncated. NOT_TRUNCATED is appended as a name if the
    last number cannot be truncated, or is not read.
    """
    next_record = text.find(MARKER, begin, stop)
    line_ends = stop < end and next_record < 0
    fields = text[begin : stop if next_record < 0 else next_record].split(b" | ")
    is_followed = not line_ends or b": " not in fields[-1]
    if is_followed:  # by text of another record, or by the cut end of the context
        fields.pop()
    values: dict[bytes, bytes] = {}
    for field in fields:
        name, colon, value = field.partition(b": ")
        if not colon or name in values:
            return None
        # The last value may have trailing blanks. In the others a blank may replace a
        # digit, so it is kept and makes the number invalid.
        values[name] = value if field is not fields[-1] else value.rstrip()
    if HOLE in b"".join(fields):
        return None
    if TIME not in values or not STEP.fullmatch(values.get(STEP_NAME, b"")):
        return None
    if not is_followed and fields[-1].partition(b": ")[0] in READ:
        return None if _continues_below(text, stop, end) else values
    return values | {NOT_TRUNCATED: b""}


def _get_resolutions(printed: Sequence[bytes], seconds: Sequence[float]) -> list[float]:
    """Return the resolution of each time.

    The resolution of a short number of at least 1 follows from its length and the
    position of its point: it is the same for 12.39 and 98.70. Of other numbers, each is
    examined.
    """
    has_other_numbers = (
        # as texts, numbers that begin with "0" or "-" sort before "1"
        min(printed) < b"1"
        or max(map(len, printed)) > MAX_SHORT_LENGTH
        or b"e" in b"".join(printed)
    )
    if has_other_numbers:
        return list(map(_get_resolution, printed, seconds))
    lengths, points = map(len, printed), map(FIND_POINT, printed)
    return list(map(_get_resolution_of_shape, lengths, points))


@cache
def _get_resolution_of_shape(length: int, point: int) -> float:
    """Return the resolution of a number printed with `length` characters.

    `point` is the index of its decimal point, -1 if there is none.
    """
    printed = b"1" * length  # any number of this shape
    if point >= 0:
        printed = printed[:point] + b"." + printed[point + 1 :]
    return _get_resolution(printed, float(printed))


def _get_resolution(printed: bytes, seconds: float) -> float:
    """Return the resolution of a printed time, 0 for an impossible time."""
    if seconds > 0:
        return min(get_significant_unit(seconds, DIGITS), get_printed_unit(printed))
    return 0.0


def _is_truncated(text: bytes, offsets: Sequence[int], stops: Sequence[int]) -> bool:
    """True if the text after one of the records continues the record's last number."""

    def is_continued(stop: int) -> bool:
        return _continues_below(text, stop, min(stop + REACH, len(text)))

    if is_continued(stops[-1]):
        return True
    longest_gap = max(map(sub, offsets[1:], stops), default=0)
    if longest_gap <= 1:  # no text between the records
        return False
    # If all lines between the records are in reach, none of them is cut off.
    is_in_reach = longest_gap + len(MARKER) <= REACH
    if is_in_reach and not ANY_NUMBER_END.search(text, stops[0], offsets[-1]):
        return False
    return any(
        is_continued(stop)
        for stop, next_offset in zip(stops, offsets[1:], strict=False)
        if stop + 1 != next_offset  # not followed by another record
    )


def _continues_below(text: bytes, stop: int, end: int) -> bool:
    """True if one of the next lines continues the number at the end of this line.

    The number looks complete without its continuation.
    """
    for _ in range(MAX_LINES_BELOW):
        begin = text.find(b"\n", stop, end) + 1
        if begin == 0:
            return False
        stop = text.find(b"\n", begin, end)
        line = text[begin : end if stop < 0 else stop]
        if NUMBER_END.match(line):
            return True
        if stop < 0 or MARKER in line:
            return False
    return False
