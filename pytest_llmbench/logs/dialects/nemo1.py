"""NeMo 1 (NeMo Framework Launcher): progress bars and DLLogger records.

DLLogger records have full precision.

`Epoch 0: : 100%|███| 50/50 [23:22<00:00, ..., global_step=49.00, ...,
train_step_timing in s=24.00]`
`DLL 2025-06-11 05:14:49.562847 - 0 ...  global_step : 0.0  ...
train_step_timing in s : 52.33449 `
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.dialect_reader import (
    FieldTable,
    PrintedField,
    RecordLines,
    Repeated,
    StepColumns,
    count_most_digits,
    list_names,
    match_rows,
    share_names,
)
from pytest_llmbench.logs.printed_times import read_stamp
from pytest_llmbench.logs.step_records import (
    BAD_NUMBER,
    HOLE,
    NAN,
    NOT_FINITE,
    RecordOrigin,
    StepRecord,
    Tally,
    TruncatedRecord,
    count_digits,
    find_line_stop,
    get_significant_unit,
    get_significant_units,
    strip_codes,
)

# Printed minutes and seconds.
SIXTY = {b"%02d" % number: number for number in range(60)}

MARKERS = (b"Epoch ", b"DLL ")
# Digits of a number in a bar: `24.00` means 23.95 to 24.05.
DIGITS = 3

BAR_BEGIN = (
    rb"Epoch (\d{1,9}+):[: ]*+\d{1,3}+%\|[^|\r\n]*+\| *+(\d{1,15}+)/(\d{1,15}+) \["
)
# "Epoch 0: : 100%|███| 50/50 [23:22<00:00, ..., global_step=49.00, ...]"
BAR = compile_on_use(BAR_BEGIN + rb"([^\]\r\n]*+)\]")
BAR_HEAD = compile_on_use(rb"Epoch \d{1,9}:[: ]*\d{1,3}%")
# "DLL 2025-06-11 05:14:49.562847 - 0 ": time stamp and step
DLL = compile_on_use(rb"DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) - (\d{1,15}) ")
# "49", "49.00" or, rounded, "1.5e+3"
WHOLE = compile_on_use(rb"\d{1,15}(?:\.0{1,9})?|\d(?:\.\d{1,2})?e\+\d{1,2}")
FINITE = rb"-?\d{1,18}+(?:\.\d{1,40}+)?(?:e[+-]\d{1,3}+)?"
# Bars pad short values: `nan.0`.
PADDED = compile_on_use(rb"(-?%b)\.0" % NOT_FINITE)

# "global_step=1.5e+3"
ROUNDED_STEP = compile_on_use(rb"global_step=[^e]*+e")

TIME = b"train_step_timing in s"
STEP = b"global_step"
LOSS = b"reduced_train_loss"
SAMPLES = b"consumed_samples"
NORM = b"grad_norm"
RATE = b"lr"
VALIDATION = b"val_loss"
BAD_RESULT = compile_on_use(rb"val_loss : -?%b *\Z" % NOT_FINITE)
BAD_VALIDATION = compile_on_use(rb"val_loss=-?%b" % NOT_FINITE)


def _parse_consumed(samples: bytes) -> float:
    """Return a number of samples that is printed in full, otherwise NaN."""
    return NAN if b"e" in samples else float(samples)


FIELDS = FieldTable(
    PrintedField(TIME, "seconds", FINITE),
    PrintedField(LOSS, "loss", FINITE),
    PrintedField(SAMPLES, "consumed", FINITE, _parse_consumed),
    PrintedField(NORM, "grad_norm", FINITE),
)
DLLOGGER_FIELDS = FieldTable(
    *FIELDS.fields, PrintedField(RATE, "rate", FINITE, required=False)
)
LAYOUT_FIELDS = FieldTable(
    *FIELDS.fields, PrintedField(STEP, "step", rb"\d{1,15}+(?:\.0{1,9}+)?")
)
READ = LAYOUT_FIELDS.by_name.keys()
# Stands for a missing number of samples: like a rounded number (`2e+3`), it determines
# no batch size.
NO_SAMPLES = b"e"
# Appended to the names of a DLLogger record if its last number cannot be truncated, or
# is not read.
NOT_TRUNCATED = b""


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the bar or DLLogger record at `text[start]`.

    Returns a TruncatedRecord if the record is incomplete, None if there is no step.
    From 1000 on, bars round `global_step` (`2e+3`): such a record has `rounded` set,
    and `resolve_steps` finds its step.
    """
    stop = find_line_stop(text, start, end)
    if text.find(b"\x1b", start, stop) >= 0:
        uncoloured = strip_codes(text, start, stop, end)
        if uncoloured is None:
            return _read_truncated(text[start:stop], origin)
        return _read_uncoloured(uncoloured, 0, len(uncoloured), origin)
    return _read_uncoloured(text, start, end, origin)


def read_columns(lines: RecordLines) -> StepColumns | None:
    """Read the bars at these offsets, each on its own line.

    A bar that repeats a step with equal values is left out, and so is a bar without
    values. Returns None if a bar has another layout or another total, if a validation
    failed, or if the last bar has no values or a rounded step.
    """
    text, offsets, stops = lines.text, lines.offsets, lines.stops
    last_bar = BAR.match(text, offsets[-1])
    fields = last_bar[4].split(b", ") if last_bar else []
    names = list_names([field for field in fields if b"=" in field], b"=")
    if not {TIME, STEP} <= set(names):
        return None
    if any(ROUNDED_STEP.match(field) for field in fields):
        return None
    if VALIDATION in names and BAD_VALIDATION.search(text, offsets[0], stops[-1]):
        return None
    rows = match_rows(_compile_layout(names), lines)
    if rows is None:
        return None
    # A row begins with the epoch, count, total and elapsed time of the bar.
    heads, row_values = [row[:4] for row in rows], [row[4:] for row in rows]
    # A bar without values has an empty first value.
    bars_with_values = [index for index, values in enumerate(row_values) if values[0]]
    # A bar with the same values as the bar before repeats its step.
    repeats = [
        index
        for before, index in pairwise(bars_with_values)
        if row_values[before] == row_values[index]
    ]
    totals = {heads[index][2] for index in bars_with_values}
    if not row_values[-1][0] or len(totals) > 1:
        return None
    read_names = [name for name in names if name in READ]
    # Columns of the bars that are kept.
    repeated = frozenset(repeats)
    kept = [index for index in bars_with_values if index not in repeated]
    columns = list(zip(*(row_values[index] for index in kept), strict=True))
    printed = LAYOUT_FIELDS.name_columns(names, columns)
    steps = [int(float(step)) for step in printed[STEP]]
    numbers = FIELDS.parse_columns(printed)
    # One bar that counts steps proves that the total is the number of steps.
    step_column = read_names.index(STEP)
    total_is_known = any(
        _counts_step(heads[index], int(float(row_values[index][step_column])))
        for index in bars_with_values
    )
    batch = None
    if SAMPLES in printed:
        batch = list(map(_divide_samples, numbers["consumed"], steps))
    first_repeat = None
    if repeats:
        values = dict(zip(read_names, row_values[repeats[0]], strict=True))
        first_repeat = _make_repeated(repeats, values)
    return StepColumns(
        steps,
        resolution=get_significant_units(numbers["seconds"], DIGITS),
        total=int(totals.pop()) if total_is_known else None,
        batch=batch,
        stamp=[_parse_elapsed(heads[row][3]) for row in kept],
        loss_digits=count_most_digits(printed.get(LOSS)),
        kept=kept,
        repeated=first_repeat,
        **numbers,
    )


def _counts_step(head: Sequence[bytes], step: int) -> bool:
    """True if a bar counts steps, so that its total is the number of steps.

    `head` begins with the epoch and count of the bar. The count is then one above
    `step`, because steps begin at 0, or two if the bar still shows the values of the
    step before. True only in epoch 0.
    """
    epoch, count, *_ = head
    return int(epoch) == 0 and int(count) - step in (1, 2)


def _make_repeated(rows: Sequence[int], first: dict[bytes, bytes]) -> Repeated:
    """Describe repeated bars; `first` contains the printed values of the first one."""
    text = f"step {int(float(first[STEP]))} again: {float(first[TIME]):g} s"
    return Repeated(first=rows[0], text=text, times=len(rows))


@cache
def _compile_layout(names: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return the pattern of a bar, with these fields or without any.

    Matches `Epoch 0: : 100%|███| 50/50 [23:22<00:00, v_num=0, lr=1e-4, ...]`.
    """
    described = LAYOUT_FIELDS.describe(names, b"=", rb"[^,\]\r\n\x00]*+")
    fields = b", ".join(described)
    if names[-1] == VALIDATION:  # missing before the first validation
        fields = b"%b(?:, %b)?" % (b", ".join(described[:-1]), described[-1])
    elapsed = rb"(?:([^<\]=,\r\n]{5,11}+)<)?"
    remaining = (
        elapsed + rb"[^\]=,\r\n]*+(?:, [^\]=,\r\n]++(?!=))?(?:, %b)?\]\n" % fields
    )
    return re.compile(BAR_BEGIN + remaining)


def resolve_steps(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Resolve the rounded step numbers of one rank.

    A rounded step follows from the count of its bar. If bars are printed twice, the
    first bar of a step shows the values of the step before. Exact step numbers reveal
    such stale bars. If step numbers are rounded, the first bar of each count is dropped
    as stale.
    """
    records = [record for record in records if record.mean_of]
    if not any(record.rounded for record in records):
        return records
    prints = Counter(record.bar for record in records if record.bar)
    repeated_bars = sum(count > 1 for count in prints.values())
    is_printed_twice = 2 * repeated_bars > len(prints)
    offsets: dict[int, int] = {}  # by epoch, see `_learn_offset`
    previous_bar = None
    resolved = []
    for record in records:
        is_stale = is_printed_twice and record.bar != previous_bar
        previous_bar = record.bar or previous_bar
        if not record.rounded:
            _learn_offset(offsets, record)
            resolved.append(record)
            continue
        line = record.origin.line
        if is_stale:
            tally.add(DropReason.REPEATED, line, f"stale bar near step {record.step}")
            continue
        step = _count_step(offsets, record)
        if step is None:
            tally.add(DropReason.UNKNOWN_STEP, line, f"step near {record.step}")
        else:
            resolved.append(record._replace(step=step))
    return resolved


def _learn_offset(offsets: dict[int, int], record: StepRecord) -> None:
    """Store the offset between the step numbers and the bar counts of an epoch.

    The offset is 0 in epoch 0, where step 49 has the count 50. A stale bar shows the
    step of the bar before: its offset, smaller by one, is ignored.
    """
    if record.bar:
        epoch, count = record.bar
        offset = record.step + 1 - count
        is_stale = offsets.get(epoch) == offset + 1
        if not is_stale:
            offsets[epoch] = offset


def _count_step(offsets: dict[int, int], record: StepRecord) -> int | None:
    """Return the step of a rounded bar, from its count.

    Returns None if it contradicts the rounded step number.
    """
    if record.bar is None:
        return None
    epoch, count = record.bar
    step = count - 1 + offsets.get(epoch, 0)
    return step if float(f"{step:.3g}") == record.step else None


def _read_uncoloured(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse a bar or a DLLogger record that contains no colour codes."""
    read = _read_bar if text.startswith(b"Epoch ", start) else _read_dllogger
    return read(text, start, end, origin)


def _read_bar(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse a progress bar; None for a bar without values."""
    if not BAR_HEAD.match(text, start, end):
        return None
    bar = BAR.match(text, start, end)
    if bar is None:
        return _read_truncated(text[start : find_line_stop(text, start, end)], origin)
    fields = [field for field in bar[4].split(b", ") if b"=" in field]
    if not fields:
        return None
    values = _read_values(fields, b"=")
    numbers = FIELDS.parse_record(values) if values else None
    if values is None or numbers is None:
        return TruncatedRecord(origin, bar[0])
    epoch, count, total = int(bar[1]), int(bar[2]), int(bar[3])
    elapsed, has_time, _ = bar[4][:12].partition(b"<")
    rounded = b"e" in values[STEP]
    step = int(float(values[STEP]))
    # The total of the bar is the number of steps only if the bar counts steps, see
    # `_counts_step`. A rounded step cannot be compared.
    total_is_known = epoch == 0 and (rounded or step in (count - 1, count - 2))
    return StepRecord(
        origin,
        step,
        resolution=get_significant_unit(numbers["seconds"], DIGITS),
        total=total if total_is_known else None,
        batch=_get_batch(values.get(SAMPLES, NO_SAMPLES), values[STEP], step),
        stamp=_parse_elapsed(elapsed) if has_time else NAN,
        loss_digits=count_digits(values.get(LOSS, b"")),
        bad_validation=VALIDATION in values
        and BAD_NUMBER.fullmatch(values[VALIDATION]) is not None,
        bar=(epoch, count),
        rounded=rounded,
        **numbers,
    )


def _parse_elapsed(printed: bytes) -> float:
    """Return the elapsed time of a bar (`1:03:17`, `23:22`) in seconds, NaN if it is
    another text."""
    try:
        seconds = 60.0 * SIXTY[printed[-5:-3]] + SIXTY[printed[-2:]]
        return seconds + 3600 * int(printed[:-6]) if len(printed) > 5 else seconds
    except (KeyError, ValueError):
        return NAN


def _read_truncated(text: bytes, origin: RecordOrigin) -> TruncatedRecord | None:
    """Return a TruncatedRecord; None for a bar without values."""
    has_values = any(name in text for name in (STEP, LOSS, TIME))
    return TruncatedRecord(origin, text) if has_values else None


def _read_dllogger(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse a DLLogger record.

    A non-finite validation result has mean_of 0; None for other records without a step.
    """
    head = DLL.match(text, start, end)
    if head is None:
        return None
    step = int(head[2])
    # The record ends at the next record on its line, if there is one.
    line_stop = find_line_stop(text, start, end)
    offsets = [text.find(marker, head.end(), line_stop) for marker in MARKERS]
    stop = min((offset for offset in offsets if offset >= 0), default=line_stop)
    fields = text[head.end() : stop].split(b"  ")
    # Every complete value is followed by a space, including the last.
    if not fields[-1].endswith(b" "):
        fields.pop()
    elif not any(field.startswith((TIME, LOSS)) for field in fields):
        # A record of another kind, such as a validation.
        if any(BAD_RESULT.match(field) for field in fields):
            return StepRecord(origin, step, mean_of=0, bad_validation=True)
        return None
    values = _read_values(fields, b" : ")
    number = DLLOGGER_FIELDS.parse_record(values) if values else None
    if values is None or number is None or float(values[STEP]) != step:
        return TruncatedRecord(origin, text[start:stop])
    time = read_stamp(head[1])
    layout = tuple(values)
    if next(reversed(values)) not in READ:  # the last field
        layout = (*layout, NOT_TRUNCATED)
    return StepRecord(
        origin,
        step,
        resolution=0.0,
        batch=_get_batch(values.get(SAMPLES, NO_SAMPLES), values[STEP], step),
        loss_digits=count_digits(values.get(LOSS, b"")),
        stamp=time.stamp if time else NAN,
        bad_validation=VALIDATION in values
        and BAD_NUMBER.fullmatch(values[VALIDATION]) is not None,
        precise=True,  # with full precision; the bar of the same step has three digits
        layout=share_names(layout),
        **number,
    )


def _read_values(
    fields: Sequence[bytes], separator: bytes
) -> dict[bytes, bytes] | None:
    """Return the fields of a record that has a step and a time.

    `fields` are "global_step=49.00" in a bar and "global_step : 49.0 " in a DLLogger
    record. Returns None if the record is truncated.
    """
    values: dict[bytes, bytes] = {}
    for field in fields:
        name, separated, value = field.partition(separator)
        # a blank may replace a digit
        if not separated or name in values or HOLE in field or name.startswith(b" "):
            return None
        value = value.strip(b" ")
        padded = PADDED.fullmatch(value) if value.endswith(b".0") else None
        values[name] = padded[1] if padded else value
    return values if TIME in values and WHOLE.fullmatch(values.get(STEP, b"")) else None


def _get_batch(samples: bytes, printed_step: bytes, step: int) -> float:
    """Return the samples per step, if it is an integer.

    `samples` is the printed total. Returns NaN if a printed number was rounded.
    """
    if b"e" in samples or b"e" in printed_step:  # "2e+3"
        return NAN
    return _divide_samples(float(samples), step)


def _divide_samples(consumed: float, step: int) -> float:
    """Return the samples per step, if it is an integer, otherwise NaN.

    `consumed` is the number of samples after step `step`, NaN if it was rounded.
    """
    batch = consumed / (step + 1)  # steps count from 0
    return batch if batch.is_integer() and batch > 0 else NAN
