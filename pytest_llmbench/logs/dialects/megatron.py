"""Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and Megatron-Bridge.

A step has an iteration line, a step time line, or both:

` iteration        3/      20 | consumed samples: 384 |
elapsed time per iteration (ms): 32208.7 | ... |`
`Step Time : 12.78s GPU utilization: 528.1 TFLOP/s/GPU`
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from itertools import pairwise

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.clock import find_format
from pytest_llmbench.logs.dialect_reader import (
    INNER_REACH,
    RecordLines,
    StepColumns,
    ascends,
    count_most_digits,
    match_rows,
    parse_numbers,
)
from pytest_llmbench.logs.printed_times import (
    get_scale,
    read_timestamp,
    read_timestamps,
)
from pytest_llmbench.logs.step_records import (
    COLOUR,
    GET_FIELD,
    HOLE,
    LINE_BREAK,
    NAN,
    NOT_FINITE,
    RecordOrigin,
    StepRecord,
    Tally,
    TruncatedRecord,
    count_digits,
    count_step_tokens,
    find_line_stop,
    get_printed_unit,
    have_same_time,
)

# The step number is padded to eight characters. A record in which it fills all eight
# without a separating blank is truncated.
HEAD = compile_on_use(rb"iteration {2,9}(\d{1,15})/ *(\d{1,15}) ?\|")
# "iteration        3/" at the end of a text
CUT_HEAD = compile_on_use(rb"iteration {2,9}\d{1,15}/[ \d]*\Z")
ELAPSED = b"elapsed time per iteration ("
# "iteration (ms): 32208.7": the marker `iteration ` within the time of a record
TIME_FIELD = compile_on_use(rb"iteration \(m?s\): *\d")
BEFORE_TIME_FIELD = b"elapsed time per "
HEAD_BEGIN = compile_on_use(rb"iteration {2,9}\d")

# "[2025-04-11 14:48:45] " or "[2026-01-01 00:00:00.123456] " right before a record
STAMP_TIME = rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?"
STAMP = compile_on_use(rb"\[(%b)\] *\Z" % STAMP_TIME)
STAMP_REACH = 40

# A value: "32208.7", "1.258695E+01", "nan"; the first of "37.1/36.9" (instant/average).
NUMBER = compile_on_use(
    rb"(-?(?:\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]\d{1,3})?|%b))(?:/[^/|]+)?" % NOT_FINITE
)
NAME = compile_on_use(rb"[\w ()/.,%-]{1,99}")

SAMPLES = b"consumed samples:"
MILLISECONDS = b"elapsed time per iteration (ms)"
SECONDS = b"elapsed time per iteration (s)"
SKIPPED = b"number of skipped iterations"
# the last field: a record without it is truncated, and text after it belongs to another
# rank
NOT_NUMBERS = b"number of nan iterations"
LOSSES = (b"lm loss", b"lm-loss", b"lm_loss")
NORM = b"grad norm"
BATCH = b"global batch size"
TFLOPS = (b"throughput per GPU (TFLOP/s/GPU)", b"TFLOPs")
# GPT-NeoX selects the unit by the size of the number: `37.3TFLOPS`.
APPROXIMATE = b"approx flops per GPU"
WITH_LETTERS = compile_on_use(rb"(\d{1,18}\.\d{1,9})([A-Z]{1,9})")
TOKENS = (b"tokens per GPU (tokens/s/GPU)", b"tokens per gpu per second (tgs)")
RATE = b"learning rate"
CONSUMED = b"consumed samples"
CONSUMED_TOKENS = b"consumed tokens"
SAMPLES_RATE = b"samples per second"
# Optional fields.
EXTRA = frozenset({RATE, CONSUMED, CONSUMED_TOKENS, SAMPLES_RATE})
# GPT-NeoX prints it before the step: "samples/sec: 12.345 | iteration ...".
RATE_BEFORE = compile_on_use(rb"samples/sec: (\d{1,9}\.\d{1,9}) \| \Z")
RATE_REACH = 40
BAR = b" | "
NUMBERS = frozenset(
    {
        MILLISECONDS,
        SECONDS,
        SKIPPED,
        NOT_NUMBERS,
        NORM,
        BATCH,
        *LOSSES,
        *TFLOPS,
        *TOKENS,
    }
)

# The fields that are read by columns.
READ = NUMBERS | EXTRA | {APPROXIMATE}

# The step number of a record that prints none.
UNNUMBERED = 0

STEP_TIME = compile_on_use(
    rb"Step Time : (-?(?:\d{1,15}\.\d{1,9}|%b))s GPU utilization: (-?(?:\d{1,15}\.\d{1,9}|%b)) ?(?:MODEL_)?TFLOP/s/GPU"
    % (NOT_FINITE, NOT_FINITE)
)
CUT_STEP_TIME = compile_on_use(rb"Step Time : (?:-?\d|\Z)")


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the step at `text[start]`.

    Returns a TruncatedRecord if the record is incomplete, None for other text with the
    same beginning.

    A `Step Time` has no step number: its record has UNNUMBERED, and NaN seconds if it
    is truncated. A record without its head is truncated. A record that was split after
    its head is counted once, at the head.
    """
    stop = find_line_stop(text, start, end)
    if text.startswith(b"Step Time", start):
        return _read_step_time(text[start:stop], origin)
    head = HEAD.match(text, start, stop)
    if head is None:
        is_truncated = CUT_HEAD.match(text[start:stop].rstrip()) or _is_headless(
            text, start, stop
        )
        return TruncatedRecord(origin, text[start:stop]) if is_truncated else None
    next_head = HEAD.search(text, head.end(), stop)
    stop = next_head.start() if next_head else stop
    body = COLOUR.sub(b"", text[head.end() : stop])
    if not _is_record(body):
        return None
    values = _read_values(body)
    if values is None or HOLE in body or int(head[1]) == UNNUMBERED:
        return TruncatedRecord(origin, text[start:stop])
    if text.startswith(BAR, start - len(BAR)):
        rate = RATE_BEFORE.search(text[max(0, start - RATE_REACH) : start])
        if rate:
            values.setdefault(SAMPLES_RATE, rate[1])
    return _build_record(
        origin, int(head[1]), int(head[2]), values, _read_stamp(text, start)
    )


def merge_records(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Merge the two lines of each step, in the order of the log.

    Without any iteration line, step times are counted instead.
    """
    if any(record.step != UNNUMBERED for record in records):
        return _pair_lines(records, tally)
    return _number_step_times(records, tally)


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Set the step number and `mean_of` of one attempt's steps.

    If there are only step times, it is unknown whether every step printed its time.
    """
    if not (records and records[0].rounded):
        counted = any(map(GET_FIELD["consumed_tokens"], records))
        return _add_means(count_step_tokens(records) if counted else records)
    # counted steps begin with the first step of the attempt
    before = records[0].step - 1
    return [
        record._replace(step=record.step - before, rounded=False) for record in records
    ]


def _read_step_time(line: bytes, origin: RecordOrigin) -> StepRecord | None:
    """Parse a `Step Time` line; a truncated time becomes NaN, other text None."""
    match = STEP_TIME.match(line)
    if match is None:
        return StepRecord(origin, UNNUMBERED) if CUT_STEP_TIME.match(line) else None
    unit = get_printed_unit(match[1]) if match[1][-1:].isdigit() else 0.0
    return StepRecord(origin, UNNUMBERED, float(match[1]), unit, tflops=float(match[2]))


def _is_headless(text: bytes, start: int, stop: int) -> bool:
    """True if this is the time of a record whose head is missing before it."""
    if not TIME_FIELD.match(text, start, stop) or not text.endswith(
        BEFORE_TIME_FIELD, 0, start
    ):
        return False
    before = text[max(0, start - INNER_REACH) : start]
    heads = [match.start() for match in HEAD_BEGIN.finditer(before)]
    if not heads:
        return True
    # If the last head already has a time, it belongs to an earlier record.
    last_head = heads[-1]
    return ELAPSED in before[last_head:] and bool(LINE_BREAK.search(before, last_head))


def _is_record(body: bytes) -> bool:
    """True if the text after a head belongs to a training step.

    False for a step of NeMo 2, such as `iteration 49/49 | lr: ...`.
    """
    beginning = body.strip()
    return (
        ELAPSED in body
        or beginning.startswith(SAMPLES)
        or SAMPLES.startswith(beginning)  # truncated within its first field
    )


def _read_values(body: bytes) -> dict[bytes, bytes] | None:
    """Return the fields of a record that is complete up to NOT_NUMBERS.

    Returns None if the record is truncated. Every field ends with a bar, so that the
    number before it is complete. Text of other ranks after the record is ignored.
    """
    values: dict[bytes, bytes] = {}
    # " consumed samples: 384 | elapsed time per iteration (ms): 32208.7 | ... |"
    for field in body.split(b"|")[:-1]:
        name, colon, value = field.partition(b":")
        name, number = name.strip(), NUMBER.fullmatch(value.strip())
        if not colon or not NAME.fullmatch(name):
            if NOT_NUMBERS in values:
                break
            return None
        if name in NUMBERS:
            if number is None or name in values:
                return None  # damaged, or mixed with another record
            values[name] = number[1]
        elif number is not None and (
            name in EXTRA or _is_non_finite_loss(name, number[1])
        ):
            values.setdefault(name, number[1])
        elif name == APPROXIMATE:
            values[name] = value.strip()
    has_one_time = (MILLISECONDS in values) != (SECONDS in values)
    return values if NOT_NUMBERS in values and has_one_time else None


def _build_record(
    origin: RecordOrigin,
    step: int,
    total: int,
    values: dict[bytes, bytes],
    stamp: float,
) -> StepRecord:
    """Build the record of an iteration line from its printed values."""
    seconds, unit = _read_seconds(values)
    loss, norm = _read_loss_and_norm(values)
    printed = values.get(APPROXIMATE)
    tflops = (
        _parse_number(values, *TFLOPS)
        if printed is None
        else _read_approximate_tflops(printed)
    )
    return StepRecord(
        origin,
        step,
        seconds,
        unit,
        total or None,
        loss=loss,
        grad_norm=norm,
        tflops=tflops,
        tokens=_parse_number(values, *TOKENS),
        batch=_parse_number(values, BATCH),
        rate=_parse_number(values, RATE),
        consumed=_parse_number(values, CONSUMED),
        skipped=_parse_number(values, SKIPPED),
        samples=_parse_number(values, SAMPLES_RATE),
        consumed_tokens=_read_consumed_tokens(values),
        loss_digits=max(
            (count_digits(values[name]) for name in LOSSES if name in values), default=0
        ),
        stamp=stamp,
    )


def _read_seconds(values: dict[bytes, bytes]) -> tuple[float, float]:
    """Return the time and the unit of its last digit, in seconds."""
    if SECONDS in values:
        seconds = Decimal(values[SECONDS].decode("ascii"))
    else:
        seconds = Decimal(values[MILLISECONDS].decode("ascii")).scaleb(-3)
    exponent = seconds.as_tuple().exponent
    return float(seconds), float(f"1e{exponent}") if isinstance(exponent, int) else 0.0


def _read_loss_and_norm(
    values: dict[bytes, bytes],
) -> tuple[float | None, float | None]:
    """Return the loss and the gradient norm; None if the step has none."""
    loss, norm = _get_first(values, LOSSES), _get_first(values, (NORM,))
    is_skipped = float(values.get(SKIPPED, b"0")) > 0
    if float(values[NOT_NUMBERS]) != 0:
        return NAN, norm
    if any(
        name not in NUMBERS and _is_non_finite_loss(name, values[name])
        for name in values
    ):
        return NAN, norm
    # A step that was skipped because FP16 gradients overflowed has no loss (0 in newer
    # versions) and no norm (or an infinite one). At the start of a run this is part of
    # finding the loss scale: the loss is missing, not NaN.
    has_nan_norm = norm is not None and math.isnan(norm)
    if is_skipped and not has_nan_norm:
        has_infinite_norm = norm is not None and math.isinf(norm)
        return loss or None, None if has_infinite_norm else norm
    # Megatron excludes a NaN loss from the mean, and then prints no loss.
    if loss is None and norm is not None and not math.isfinite(norm):
        return NAN, norm
    return loss, norm


def _is_non_finite_loss(name: bytes, printed: bytes) -> bool:
    """True if a field is an additional loss that is not finite.

    For example the loss of a router, or of further predicted tokens.
    """
    return name.endswith(b"loss") and not math.isfinite(float(printed))


def _get_first(values: dict[bytes, bytes], names: Sequence[bytes]) -> float | None:
    """Return the first of these fields that is printed, or None."""
    return next((float(values[name]) for name in names if name in values), None)


def _parse_number(values: dict[bytes, bytes], *names: bytes) -> float:
    """Return the first of these fields that is printed, or NaN."""
    for name in names:
        if name in values:
            return float(values[name])
    return NAN


def _read_consumed_tokens(values: dict[bytes, bytes]) -> tuple[float, int] | None:
    """Return the consumed tokens and the number of their digits; None if missing."""
    printed = values.get(CONSUMED_TOKENS)
    return None if printed is None else (float(printed), count_digits(printed))


def _read_approximate_tflops(printed: bytes) -> float:
    """Return a number with a unit as TFLOP/s.

    NaN if the unit is unknown.
    """
    match = WITH_LETTERS.fullmatch(printed)
    scale = get_scale("tflops", match[2], "s", expected=False) if match else None
    return float(match[1]) * scale if match and scale else NAN


def _read_stamp(text: bytes, start: int) -> float:
    """Return the time stamp of the log line in seconds, NaN if missing."""
    match = STAMP.search(text[max(0, start - STAMP_REACH) : start])
    return read_timestamp(match[1]) if match else NAN


# --- all records of a log by columns --------------------------------------------------

FINITE = rb"-?\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]\d{1,3})?"

# Numbers like 128, 7392.7 and 1.258695E+01.
SHAPES = tuple(
    compile_on_use(pattern)
    for pattern in (
        rb"\d{1,18}",
        rb"\d{1,18}\.\d{1,18}",
        rb"\d\.\d{1,18}[eE][+-]\d{1,3}",
    )
)

# The names of the columns that are not fields.
STEPS, TOTALS, TIMES_OF_DAY = b"#steps", b"#totals", b"#times of day"

NO_ORIGIN = RecordOrigin(0, 0, "")


def read_columns(lines: RecordLines) -> StepColumns | None:
    """Read the iteration lines of an attempt, with their step times.

    Returns None if a line has another layout than the first, or is incomplete; if a
    number is not finite, a step was skipped, or only some lines have a time stamp; or
    if the step times do not match the iteration lines.
    """
    printed = _match_lines(lines)
    times = _read_times(printed) if printed else None
    if not printed or times is None:
        return None
    seconds, resolution = times
    steps = list(map(int, printed[STEPS]))
    stamps = read_timestamps(printed[TIMES_OF_DAY]) if TIMES_OF_DAY in printed else None
    if (
        steps[0] == UNNUMBERED
        or not ascends(steps)
        or len(set(printed[TOTALS])) > 1
        or any(map(float, {*printed[NOT_NUMBERS], *printed.get(SKIPPED, ())}))
        or (stamps and any(map(math.isnan, stamps)))
    ):
        return None
    tflops = _read_column(printed, *TFLOPS)
    if lines.companions:
        paired_tflops = _read_step_times(lines, seconds, resolution)
        if paired_tflops is None or APPROXIMATE in printed:
            return None
        tflops = tflops or paired_tflops
    if APPROXIMATE in printed:
        approximate = map(bytes.strip, printed[APPROXIMATE])
        tflops = list(map(_read_approximate_tflops, approximate))
    first_records = [
        StepRecord(NO_ORIGIN, step, time, stamp=stamp)
        for step, time, stamp in zip(
            steps[:2], seconds, stamps or (NAN, NAN), strict=False
        )
    ]
    return StepColumns(
        steps,
        seconds,
        resolution,
        int(printed[TOTALS][0]) or None,
        loss=_read_column(printed, *LOSSES),
        grad_norm=_read_column(printed, NORM),
        tflops=tflops,
        tokens=_read_column(printed, *TOKENS),
        batch=_read_column(printed, BATCH),
        rate=_read_column(printed, RATE),
        consumed=_read_column(printed, CONSUMED),
        skipped=_read_column(printed, SKIPPED),
        samples=_read_column(printed, SAMPLES_RATE),
        step_tokens=_read_step_tokens(printed, steps),
        stamp=stamps,
        loss_digits=max(count_most_digits(printed.get(name)) for name in LOSSES),
        mean_of=_count_means(first_records, steps),
    )


def _match_lines(lines: RecordLines) -> dict[bytes, Sequence[bytes]] | None:
    """Return the columns of the printed fields, and of STEPS, TOTALS and TIMES_OF_DAY.

    Returns None if the lines are not alike.
    """
    fields = _list_fields(lines.text[lines.offsets[0] : lines.stops[0]])
    if fields is None:
        return None
    has_stamps = STAMP.search(lines.prefixes[0]) is not None
    names, shapes = zip(*fields, strict=True)
    any_shapes = (FINITE,) * len(names)
    rows = match_rows(_compile_layout(names, shapes, has_stamps), lines) or match_rows(
        _compile_layout(names, any_shapes, has_stamps), lines
    )
    if not rows:
        return None
    if not has_stamps and any(map(STAMP.search, set(lines.prefixes))):
        return None
    heads = (TIMES_OF_DAY, STEPS, TOTALS) if has_stamps else (STEPS, TOTALS)
    names_read = (*heads, *filter(READ.__contains__, names))
    printed: dict[bytes, Sequence[bytes]] = dict(
        zip(names_read, zip(*rows, strict=True), strict=True)
    )
    if lines.prefixes[0].endswith(BAR):
        rates = list(map(RATE_BEFORE.search, lines.prefixes))
        if None in rates:
            return None
        printed.setdefault(SAMPLES_RATE, [rate[1] for rate in rates if rate])
    return printed


def _read_column(
    printed: Mapping[bytes, Sequence[bytes]], *names: bytes
) -> Sequence[float] | None:
    """Return the numbers of the first of these fields that is printed, or None."""
    for name in names:
        if name in printed:
            return parse_numbers(printed[name])
    return None


def _read_step_tokens(
    printed: Mapping[bytes, Sequence[bytes]], steps: Sequence[int]
) -> list[float] | None:
    """Return the tokens of each step, None if the records print no tokens."""
    if CONSUMED_TOKENS not in printed:
        return None
    records = [
        StepRecord(
            NO_ORIGIN, step, consumed_tokens=(float(tokens), count_digits(tokens))
        )
        for step, tokens in zip(steps, printed[CONSUMED_TOKENS], strict=True)
    ]
    return [record.step_tokens for record in count_step_tokens(records)]


def _read_step_times(
    lines: RecordLines, seconds: Sequence[float], resolution: Sequence[float]
) -> list[float] | None:
    """Return the TFLOP/s of the step times of an attempt.

    Returns None unless each iteration line has a step time, which is the same time.
    """
    text = lines.text
    begins = [text.rfind(b"\n", 0, offset) + 1 for offset in lines.companions]
    prefixes = {
        text[begin:offset]
        for begin, offset in zip(begins, lines.companions, strict=True)
    }
    has_stamp = any(find_format(prefix) is not None for prefix in prefixes)
    matches = [STEP_TIME.match(text, offset) for offset in lines.companions]
    if has_stamp or len(matches) != len(seconds):
        return None
    tflops = []
    for match, time, unit in zip(matches, seconds, resolution, strict=True):
        if match is None or not match[1][-1:].isdigit():
            return None
        step_time = float(match[1])
        if step_time <= 0 or not _is_same_time(
            time, step_time, unit + get_printed_unit(match[1])
        ):
            return None
        tflops.append(float(match[2]))
    return tflops


def _list_fields(line: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return the names of an iteration line, each with a pattern of its number.

    Returns None if the line cannot be read by columns.
    """
    head = HEAD.match(line)
    if head is None:
        return None
    fields = []
    for field in line[head.end() :].split(b"|")[:-1]:
        name, _, value = field.partition(b":")
        fields.append((name.strip(), _find_shape(value.strip())))
    names = [name for name, _ in fields]
    if (
        NOT_NUMBERS not in names
        or (MILLISECONDS in names) == (SECONDS in names)
        or len(set(names)) < len(names)
        or not all(map(NAME.fullmatch, names))
    ):
        return None
    return fields


def _find_shape(number: bytes) -> bytes:
    """Return a pattern of the numbers that are printed like this one.

    It is matched in a third of the time of FINITE, which all these numbers match.
    """
    return next((shape.pattern for shape in SHAPES if shape.fullmatch(number)), FINITE)


@cache
def _compile_layout(
    names: tuple[bytes, ...], shapes: tuple[bytes, ...], has_stamps: bool
) -> re.Pattern[bytes]:
    """Return the pattern of an iteration line with these fields.

    It has groups for the stamp, the step, the total and each field that is read. A loss
    that is not read must be finite.
    """
    fields = []
    for name, shape in zip(names, shapes, strict=True):
        average = rb"(?:/[^/|\s][^/|\r\n]*)?" if shape == FINITE else b""
        if name == APPROXIMATE:
            value = rb"([^|\r\n]*+)"
        elif name in READ:
            value = rb" *+(%b)%b *+" % (shape, average)
        elif name.endswith(b"loss"):
            value = rb" *+%b%b *+" % (shape, average)
        else:
            value = rb"[^|\r\n]*+"
        fields.append(rb" *+%b *+:%b\|" % (re.escape(name), value))
    stamp = rb"\[(%b)\] {0,9}" % STAMP_TIME if has_stamps else b""
    return re.compile(stamp + HEAD.pattern + b"".join(fields) + rb"[^|\r\n]*+\n")


def _read_times(
    printed: Mapping[bytes, Sequence[bytes]],
) -> tuple[list[float], list[float]] | None:
    """Return the times and the units of their last digits, in seconds.

    Returns None if a time is not positive, or is printed with an exponent.
    """
    if SECONDS in printed:
        numbers, power = printed[SECONDS], 0
    else:
        numbers, power = printed[MILLISECONDS], -3
    if b"e" in b"".join(numbers).lower():
        return None
    exponent = b"e%d" % power
    seconds = [float(number + exponent) for number in numbers]
    if min(seconds) <= 0:
        return None
    units = {
        number: float(f"1e{power - len(number.partition(b'.')[2])}")
        for number in set(numbers)
    }
    return seconds, [units[number] for number in numbers]


# --- step numbers and means, from neighbouring records --------------------------------

# Maximum records between the two lines of a step: ranks print at the same time, in any
# order.
PAIR_REACH = 3

# Step times at the end that may have lost their iteration lines; more belong to a run
# that prints no iteration lines.
MAX_UNPAIRED = 2


def _pair_lines(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Merge step times into the iteration records of the same step.

    Both print the same number, rounded differently. Lines in the same order, or near
    each other, belong to one step if their times agree (or to two steps with the same
    time, which makes no difference). Two adjacent unpaired lines with contradicting
    times are one step, too: the slower time is kept. More than MAX_UNPAIRED step times
    after the last iteration record belong to another run and are numbered. All other
    step times are dropped, because their step is unknown.
    """
    steps = list(records)
    partners = _find_partners(records)
    for index, partner in partners.items():
        steps[partner] = _join_pair(records[partner], records[index], tally)
    unpaired = [
        record
        for index, record in enumerate(records)
        if record.step == UNNUMBERED and index not in partners
    ]
    last_iteration = max(
        record.origin.offset for record in records if record.step != UNNUMBERED
    )
    trailing = [record for record in unpaired if record.origin.offset > last_iteration]
    numbered: list[StepRecord] = []
    dropped = unpaired
    if len(trailing) > MAX_UNPAIRED:
        numbered = _number_step_times(trailing, tally)
        dropped = unpaired[: len(unpaired) - len(trailing)]
    for record in dropped:
        is_truncated = math.isnan(record.seconds)
        tally.add(
            DropReason.TORN if is_truncated else DropReason.UNKNOWN_STEP,
            record.origin.line,
            _describe_step_time(record),
        )
    return [record for record in steps if record.step != UNNUMBERED] + numbered


def _number_step_times(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Number step times from 1 within each rank.

    The numbers are marked as uncertain (`rounded`): `time_steps` counts again from 1 in
    each attempt. A truncated line keeps its number, with
    NaN seconds, so that later numbers stay right; it is counted in the tally.
    """
    counts: Counter[str] = Counter()
    numbered = []
    for record in records:
        counts[record.origin.rank] += 1
        numbered.append(record._replace(step=counts[record.origin.rank], rounded=True))
        if math.isnan(record.seconds):
            tally.add(DropReason.TORN, record.origin.line, _describe_step_time(record))
    return numbered


def _find_partners(records: Sequence[StepRecord]) -> dict[int, int]:
    """Map the index of each step time to the index of its iteration record.

    First tries to pair all lines of the log in order, because the lines of a rank may
    come in a block. Otherwise pairs the nearest record with the same time, then any
    adjacent record.
    """
    iterations = [
        index for index, record in enumerate(records) if record.step != UNNUMBERED
    ]
    step_times = [
        index
        for index, record in enumerate(records)
        if record.step == UNNUMBERED and record.possible
    ]
    if len(step_times) == len(iterations):
        pairs = dict(zip(step_times, iterations, strict=True))
        if all(
            _is_same_number(records[partner], records[index])
            for index, partner in pairs.items()
        ):
            return pairs
    partners: dict[int, int] = {}
    free = set(iterations)
    # Records with the same time first, the nearest ones before others; at last adjacent
    # records with another time.
    same_time_searches = [(distance, True) for distance in range(1, PAIR_REACH + 1)]
    for distance, needs_same_time in (*same_time_searches, (1, False)):
        for index in step_times:
            candidates = [
                candidate
                for candidate in (index - distance, index + distance)
                if candidate in free
                and (
                    not needs_same_time
                    or _is_same_number(records[candidate], records[index])
                )
            ]
            if candidates and index not in partners:
                partner = candidates[0]  # the earlier one
                partners[index] = partner
                free.remove(partner)
    return partners


def _is_same_number(record: StepRecord, other: StepRecord) -> bool:
    """True if two times are the same number, rounded to different digits."""
    return _is_same_time(
        record.seconds, other.seconds, record.resolution + other.resolution
    )


def _is_same_time(seconds: float, other: float, units: float) -> bool:
    """True if two times are the same number, rounded to units with the sum `units`."""
    # Rounding changes each time by at most half a unit of its last digit.
    return abs(seconds - other) <= 0.51 * units


def _join_pair(
    iteration: StepRecord, step_time: StepRecord, tally: Tally
) -> StepRecord:
    """Merge the two lines of one step.

    If their times contradict each other, the slower time is kept and the step time is
    counted in the tally.
    """
    tflops = step_time.tflops if math.isnan(iteration.tflops) else iteration.tflops
    if (
        not iteration.possible
        or _is_same_number(iteration, step_time)
        or have_same_time(iteration, step_time)
    ):
        return iteration._replace(tflops=tflops)
    text = f"step {iteration.step}: {iteration.seconds:g} s in line {iteration.origin.line}, but {_describe_step_time(step_time)}"
    tally.add(DropReason.REPEAT_DISAGREES, step_time.origin.line, text)
    slower = max(iteration, step_time, key=lambda record: record.seconds)
    return iteration._replace(
        seconds=slower.seconds, resolution=slower.resolution, tflops=slower.tflops
    )


def _describe_step_time(record: StepRecord) -> str:
    return (
        "a truncated step time"
        if math.isnan(record.seconds)
        else f"Step Time {record.seconds:g} s"
    )


# Equal gaps that prove an interval: fewer may be lost lines.
LEAST_GAPS = 3

# Maximum share of the time between two lines that is not spent in steps, if the lines
# are to decide which steps a time covers.
CLOCK_SHARE = 0.05


def _add_means(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Set `mean_of` of one attempt's steps.

    The log interval is n if only multiples of n are printed. A gap in a log that prints
    every step is a lost line, never a mean.
    """
    means = _count_means(records, [record.step for record in records])
    return [
        record._replace(mean_of=mean)
        for record, mean in zip(records, means, strict=True)
    ]


def _count_means(records: Sequence[StepRecord], steps: Sequence[int]) -> list[int]:
    """Return how many steps each time of one attempt is the mean of.

    `steps` are all printed steps; `records` are at least the first two.
    """
    interval = find_interval(steps)
    means = [interval] * len(steps)
    if means and steps[0] % interval:
        means[0] = 1  # the first step of a process, printed off the interval
    if len(steps) > 1:
        means[1] = _count_steps_of_second(records[0], records[1], interval)
    return means


def find_interval(steps: Sequence[int]) -> int:
    """Return the log interval, from the ascending steps that a log prints.

    Returns 1 if inconclusive. The first step may be off the interval: versions of 2026
    always print the first step of a process.
    """
    gap = min((after - before for before, after in pairwise(steps[1:])), default=1)
    multiples = [step for step in steps if step % gap == 0]
    if gap == 1 or not multiples:
        return 1
    # Only the first step may be off the interval.
    most_off_interval = 1 if steps[0] % gap else 0
    if len(steps) - len(multiples) > most_off_interval:
        return 1
    if multiples[0] == gap:
        multiples = [0, *multiples]  # the first steps of the run are a gap, too
    gaps = [after - before for before, after in pairwise(multiples)]
    equal_gaps = gaps.count(gap)
    return gap if equal_gaps >= LEAST_GAPS and 2 * equal_gaps > len(gaps) else 1


def _count_steps_of_second(first: StepRecord, second: StepRecord, interval: int) -> int:
    """Count the steps whose mean the second line of a process prints.

    Versions of 2026 print the first step of a process and keep summing, so that the
    second line also covers the first step. If the first step is not a multiple of
    `interval`, the log is of such a version. Otherwise the time between the two lines
    decides. If that is inconclusive and every step is printed, fractions of a second in
    the stamps decide: the same versions introduced them.
    """
    steps = second.step - first.step
    if steps > interval:
        return interval
    if first.step % interval:
        return steps + 1
    if (
        not (first.possible and second.possible)
        or (steps + 1) * second.seconds <= first.seconds
    ):
        return steps
    passed = second.stamp - first.stamp
    if math.isnan(passed):
        return steps
    has_fractions = bool(first.stamp % 1 or second.stamp % 1)
    is_version_of_2026 = has_fractions and interval == 1
    stamp_unit = 0 if has_fractions else 1
    slack = CLOCK_SHARE * passed + stamp_unit
    fits_without_first = abs(steps * second.seconds - passed) <= slack
    fits_with_first = (
        abs((steps + 1) * second.seconds - first.seconds - passed) <= slack
    )
    if fits_without_first != fits_with_first:
        covers_first = fits_with_first
    else:
        covers_first = is_version_of_2026
    return steps + 1 if covers_first else steps
