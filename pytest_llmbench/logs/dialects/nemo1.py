"""NeMo 1 (NeMo Framework Launcher): progress bars, and DLLogger records with full
precision.

`Epoch 0: : 100%|███| 50/50 [23:22<00:00, ..., global_step=49.00, ..., train_step_timing
in s=24.00]` `DLL 2025-06-11 05:14:49.562847 - 0 ...  global_step : 0.0  ...
train_step_timing in s : 52.33449 `
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.logs.dialect_reader import (
    FieldTable,
    PrintedField,
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

# What stands before the time so far of a bar; its minutes and seconds. (A regular
# expression takes ten times as long.)
BRACKET = b" ["
SIXTY = {b"%02d" % number: number for number in range(60)}

MARKERS = (b"Epoch ", b"DLL ")
# Of a bar: `24.00` means 23.95 to 24.05.
DIGITS = 3

BAR_BEGIN = (
    rb"Epoch (\d{1,9}+):[: ]*+\d{1,3}+%\|[^|\r\n]*+\| *+(\d{1,15}+)/(\d{1,15}+) \["
)
BAR = re.compile(BAR_BEGIN + rb"([^\]\r\n]*+)\]")
BAR_HEAD = re.compile(rb"Epoch \d{1,9}:[: ]*\d{1,3}%")
DLL = re.compile(rb"DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) - (\d{1,15}) ")
WHOLE = re.compile(rb"\d{1,15}(?:\.0{1,9})?|\d(?:\.\d{1,2})?e\+\d{1,2}")
FINITE = rb"-?\d{1,18}+(?:\.\d{1,40}+)?(?:e[+-]\d{1,3}+)?"
# Bars fill up short values: `nan.0`.
PADDED = re.compile(rb"(-?%b)\.0" % NOT_FINITE)

TIME = b"train_step_timing in s"
STEP = b"global_step"
LOSS = b"reduced_train_loss"
SAMPLES = b"consumed_samples"
NORM = b"grad_norm"
RATE = b"lr"
VALIDATION = b"val_loss"
BAD_RESULT = re.compile(rb"val_loss : -?%b *\Z" % NOT_FINITE)
BAD_VALIDATION = re.compile(rb"val_loss=-?%b" % NOT_FINITE)


def _parse_consumed(samples: bytes) -> float:
    """Return a number of samples that is printed in full, NaN for any other."""
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
# Stands behind the names of a DLLogger record in which no number that is read may have
# been cut at its end.
NOT_CUT = b""


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Return the step of the bar or DLLogger record at `text[start]`, what is left of
    it, or None where there is none.

    A bar rounds `global_step` from 1000 on (`2e+3`); such a record is marked `rounded`,
    and `resolve_steps` finds its step.
    """
    stop = find_line_stop(text, start, end)
    if text.find(b"\x1b", start, stop) >= 0:
        plain = strip_codes(text, start, stop, end)
        return (
            _read_truncated(text[start:stop], origin)
            if plain is None
            else _read_plain(plain, 0, len(plain), origin)
        )
    return _read_plain(text, start, end, origin)


def read_columns(
    text: bytes, places: Sequence[int], stops: Sequence[int]
) -> StepColumns | None:
    """Return the steps of the bars at these places, each on a line of its own; None
    where one is not as the others.

    A bar that repeats a step with all its values is left out; one without values is
    none.
    """
    inside = BAR.match(text, places[-1])
    parts = inside[4].split(b", ") if inside else []
    names = list_names([part for part in parts if b"=" in part], b"=")
    if not {TIME, STEP} <= set(names):
        return None
    if VALIDATION in names and BAD_VALIDATION.search(text, places[0], stops[-1]):
        return None
    rows = match_rows(_compile_layout(names), text, places, stops)
    if rows is None:
        return None
    heads, rest = [row[:3] for row in rows], [row[3:] for row in rows]
    valued = [place for place, values in enumerate(rest) if values[0]]
    again = [place for before, place in pairwise(valued) if rest[before] == rest[place]]
    totals = {heads[place][2] for place in valued}
    if not rest[-1][0] or len(totals) > 1:
        return None
    read = [name for name in names if name in READ]
    repeated = frozenset(again)
    kept = [place for place in valued if place not in repeated]
    columns = list(zip(*(rest[place] for place in kept), strict=True))
    value = LAYOUT_FIELDS.name_columns(names, columns)
    steps = [int(float(step)) for step in value[STEP]]
    number = FIELDS.parse_columns(value)
    where = read.index(STEP)
    sure = any(
        _counts_step(heads[place], int(float(rest[place][where]))) for place in valued
    )
    return StepColumns(
        steps,
        resolution=get_significant_units(number["seconds"], DIGITS),
        total=int(totals.pop()) if sure else None,
        batch=list(map(_get_batch, value[SAMPLES], value[STEP], steps))
        if SAMPLES in value
        else None,
        stamp=[
            _read_time_so_far(text, text.find(BRACKET, places[row]) + len(BRACKET))
            for row in kept
        ],
        loss_digits=count_most_digits(value.get(LOSS)),
        kept=kept,
        repeated=_describe_repeated(again, dict(zip(read, rest[again[0]], strict=True)))
        if again
        else None,
        **number,
    )


def _counts_step(head: Sequence[bytes], step: int) -> bool:
    """Tell whether a bar of epoch, count and total counts a step, or the one behind it:
    then its total is of steps."""
    return int(head[0]) == 0 and int(head[1]) - step in (1, 2)


def _describe_repeated(places: Sequence[int], first: dict[bytes, bytes]) -> Repeated:
    return Repeated(
        places[0],
        f"step {int(float(first[STEP]))} again: {float(first[TIME]):g} s",
        len(places),
    )


@cache
def _compile_layout(names: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return what a bar looks like, without values or with these."""
    fields = b", ".join(LAYOUT_FIELDS.describe(names, b"=", rb"[^,\]\r\n\x00]*+"))
    rest = rb"[^\]=,\r\n]*+(?:, [^\]=,\r\n]++(?!=))?(?:, %b)?\]\n" % fields
    return re.compile(BAR_BEGIN + rest)


def resolve_steps(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the records of one rank with every step certain: a rounded one follows
    from the count of its bar.

    Where bars are printed twice, the first one of a step is stale. With whole steps
    that shows by itself; of rounded ones the first is left out.
    """
    records = [record for record in records if record.mean_of]
    if not any(record.rounded for record in records):
        return records
    counts = Counter(record.bar for record in records if record.bar)
    twice = 2 * sum(count > 1 for count in counts.values()) > len(counts)
    offsets: dict[int, int] = {}
    previous = None
    settled = []
    for record in records:
        stale = twice and record.bar != previous
        previous = record.bar or previous
        if not record.rounded:
            _learn_offset(offsets, record)
            settled.append(record)
        elif stale:
            tally.add(
                DropReason.REPEATED,
                record.origin.line,
                f"stale bar near step {record.step}",
            )
        elif (step := _count_step(offsets, record)) is None:
            tally.add(
                DropReason.UNKNOWN_STEP, record.origin.line, f"step near {record.step}"
            )
        else:
            settled.append(record._replace(step=step))
    return settled


def _learn_offset(offsets: dict[int, int], record: StepRecord) -> None:
    """Note by how much the steps of an epoch are ahead of its bar; a stale bar shows
    one less."""
    if record.bar:
        epoch, count = record.bar
        ahead = record.step + 1 - count
        if offsets.get(epoch) != ahead + 1:
            offsets[epoch] = ahead


def _count_step(offsets: dict[int, int], record: StepRecord) -> int | None:
    """Return the step that a rounded bar counts, if its rounded step number agrees."""
    if record.bar is None:
        return None
    epoch, count = record.bar
    step = count - 1 + offsets.get(epoch, 0)
    return step if float(f"{step:.3g}") == record.step else None


def _read_plain(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    read = _read_bar if text.startswith(b"Epoch ", start) else _read_dllogger
    return read(text, start, end, origin)


def _read_bar(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    if not BAR_HEAD.match(text, start, end):
        return None
    bar = BAR.match(text, start, end)
    if bar is None:
        return _read_truncated(text[start : find_line_stop(text, start, end)], origin)
    parts = [part for part in bar[4].split(b", ") if b"=" in part]
    if not parts:
        return None
    values = _read_values(parts, b"=")
    number = FIELDS.parse_record(values) if values else None
    if values is None or number is None:
        return TruncatedRecord(origin, bar[0])
    epoch, count, total = int(bar[1]), int(bar[2]), int(bar[3])
    rounded = b"e" in values[STEP]
    step = int(float(values[STEP]))
    sure = epoch == 0 and (rounded or step in (count - 1, count - 2))
    return StepRecord(
        origin,
        step,
        resolution=get_significant_unit(number["seconds"], DIGITS),
        total=total if sure else None,
        batch=_get_batch(values.get(SAMPLES, b"e"), values[STEP], step),
        stamp=_read_time_so_far(text, bar.start(4)),
        loss_digits=count_digits(values.get(LOSS, b"")),
        bad_validation=BAD_NUMBER.fullmatch(values.get(VALIDATION, b"")) is not None,
        bar=(epoch, count),
        rounded=rounded,
        **number,
    )


def _read_time_so_far(text: bytes, begin: int) -> float:
    """Return the time since a bar began, as it stands there (`1:03:17<`, `23:22<`), in
    seconds; NaN without one."""
    stop = text.find(b"<", begin, begin + 12)
    if stop < begin + 5:
        return NAN
    try:
        seconds = 60 * SIXTY[text[stop - 5 : stop - 3]] + SIXTY[text[stop - 2 : stop]]
        return (
            seconds + 3600.0 * int(text[begin : stop - 6])
            if stop > begin + 5
            else float(seconds)
        )
    except (KeyError, ValueError):
        return NAN


def _read_truncated(rest: bytes, origin: RecordOrigin) -> TruncatedRecord | None:
    """Return what is left of a record; None where it is a bar without values."""
    return (
        TruncatedRecord(origin, rest)
        if any(name in rest for name in (STEP, LOSS, TIME))
        else None
    )


def _read_dllogger(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    head = DLL.match(text, start, end)
    if head is None:
        return None
    stop = find_line_stop(text, start, end)
    stop = min(
        (
            place
            for marker in MARKERS
            if (place := text.find(marker, head.end(), stop)) >= 0
        ),
        default=stop,
    )
    parts = text[head.end() : stop].split(b"  ")
    if not parts[-1].endswith(
        b" "
    ):  # every value is followed by a space, the last one too
        parts.pop()
    elif not any(part.startswith((TIME, LOSS)) for part in parts):
        bad = any(
            BAD_RESULT.match(part) for part in parts
        )  # of something else, such as a validation
        return (
            StepRecord(origin, int(head[2]), mean_of=0, bad_validation=True)
            if bad
            else None
        )
    values = _read_values(parts, b" : ")
    number = DLLOGGER_FIELDS.parse_record(values) if values else None
    if values is None or number is None or float(values[STEP]) != int(head[2]):
        return TruncatedRecord(origin, text[start:stop])
    step = int(head[2])
    time = read_stamp(head[1])
    return StepRecord(
        origin,
        step,
        resolution=0.0,
        batch=_get_batch(values.get(SAMPLES, b"e"), values[STEP], step),
        loss_digits=count_digits(values.get(LOSS, b"")),
        stamp=time.stamp if time else NAN,
        bad_validation=BAD_NUMBER.fullmatch(values.get(VALIDATION, b"")) is not None,
        precise=True,  # in full, where the bar beside it has three digits
        layout=share_names(
            tuple(values) if next(reversed(values)) in READ else (*values, NOT_CUT)
        ),
        **number,
    )


def _read_values(parts: Sequence[bytes], separator: bytes) -> dict[bytes, bytes] | None:
    """Return the fields of a record that has a step and a time, None if it is torn."""
    values: dict[bytes, bytes] = {}
    for part in parts:
        name, separated, value = part.partition(separator)
        if (
            not separated or name in values or HOLE in part or name.startswith(b" ")
        ):  # where a blank stands for a digit
            return None
        value = value.strip(b" ")
        padded = PADDED.fullmatch(value)
        values[name] = padded[1] if padded else value
    return values if TIME in values and WHOLE.fullmatch(values.get(STEP, b"")) else None


def _get_batch(samples: bytes, printed: bytes, step: int) -> float:
    """Return the samples in a step, as a whole number from printed numbers that were
    not rounded; else NaN."""
    if b"e" in samples or b"e" in printed:
        return NAN
    batch = float(samples) / (step + 1)  # steps count from 0
    return batch if batch.is_integer() and batch > 0 else NAN
