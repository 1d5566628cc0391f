"""Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and Megatron-Bridge: two kinds of record of
the same steps.

` iteration        3/      20 | consumed samples: 384 | elapsed time per iteration (ms):
32208.7 | ... |` `Step Time : 12.78s GPU utilization: 528.1 TFLOP/s/GPU`
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.logs.printed_times import get_scale, read_timestamp
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
    show_same_time,
)

# A number has eight places; a record with one that fills them all is torn.
HEAD = re.compile(rb"iteration {2,9}(\d{1,15})/ *(\d{1,15}) ?\|")
CUT_HEAD = re.compile(rb"iteration {2,9}\d{1,15}/[ \d]*\Z")
ELAPSED = b"elapsed time per iteration ("
REST = re.compile(rb"iteration \(m?s\): *\d")
BEFORE_REST = b"elapsed time per "
BEGUN = re.compile(rb"iteration {2,9}\d")
# How far before its time a record begins, at most.
HEAD_REACH = 400

STAMP = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)\] *\Z")
STAMP_REACH = 40

# A value; of `instant/average` the instant.
NUMBER = re.compile(
    rb"(-?(?:\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]\d{1,3})?|%b))(?:/[^/|]+)?" % NOT_FINITE
)
NAME = re.compile(rb"[\w ()/.,%-]{1,99}")

SAMPLES = b"consumed samples:"
MILLISECONDS = b"elapsed time per iteration (ms)"
SECONDS = b"elapsed time per iteration (s)"
SKIPPED = b"number of skipped iterations"
# the last field: a record without it is torn, what follows is another rank's
NOT_NUMBERS = b"number of nan iterations"
LOSSES = (b"lm loss", b"lm-loss", b"lm_loss")
NORM = b"grad norm"
BATCH = b"global batch size"
TFLOPS = (b"throughput per GPU (TFLOP/s/GPU)", b"TFLOPs")
# GPT-NeoX chooses the unit by the size of the number: `37.3TFLOPS`.
APPROXIMATE = b"approx flops per GPU"
WITH_LETTERS = re.compile(rb"(\d{1,18}\.\d{1,9})([A-Z]{1,9})")
TOKENS = (b"tokens per GPU (tokens/s/GPU)", b"tokens per gpu per second (tgs)")
RATE = b"learning rate"
CONSUMED = b"consumed samples"
CONSUMED_TOKENS = b"consumed tokens"
SAMPLES_RATE = b"samples per second"
# Fields without which a record is whole.
EXTRA = frozenset({RATE, CONSUMED, CONSUMED_TOKENS, SAMPLES_RATE})
# GPT-NeoX prints it before the step.
RATE_BEFORE = re.compile(rb"samples/sec: (\d{1,9}\.\d{1,9}) \| \Z")
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

# The step of a record that says none.
UNNUMBERED = 0

STEP_TIME = re.compile(
    rb"Step Time : (-?(?:\d{1,15}\.\d{1,9}|%b))s GPU utilization: (-?(?:\d{1,15}\.\d{1,9}|%b)) ?(?:MODEL_)?TFLOP/s/GPU"
    % (NOT_FINITE, NOT_FINITE)
)
CUT_STEP_TIME = re.compile(rb"Step Time : (?:-?\d|\Z)")


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Read the step at `text[start]`: a record, `TruncatedRecord`, or None for a sentence that
    only begins like a record.

    A `Step Time` has no step number: its record has UNNUMBERED, and NaN seconds if it
    is truncated. A record without its head is torn. A record that was cut in two after
    its head is counted once, at the head.
    """
    stop = find_line_stop(text, start, end)
    if text.startswith(b"Step Time", start):
        return _read_step_time(text[start:stop], origin)
    head = HEAD.match(text, start, stop)
    if head is None:
        lost = CUT_HEAD.match(text[start:stop].rstrip()) or _is_headless(
            text, start, stop
        )
        return TruncatedRecord(origin, text[start:stop]) if lost else None
    glued = HEAD.search(text, head.end(), stop)
    stop = glued.start() if glued else stop
    body = COLOUR.sub(b"", text[head.end() : stop])
    if not _is_record(body):
        return None
    values = _read_values(body)
    if values is None or HOLE in body or int(head[1]) == UNNUMBERED:
        return TruncatedRecord(origin, text[start:stop])
    if text.startswith(BAR, start - len(BAR)) and (
        match := RATE_BEFORE.search(text[max(0, start - RATE_REACH) : start])
    ):
        values.setdefault(SAMPLES_RATE, match[1])
    return _build_record(
        origin, int(head[1]), int(head[2]), values, _read_stamp(text, start)
    )


def join(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return one record a print of a step, in the order of the log; without any
    iteration line counted step times."""
    return (_pair if any(record.step != UNNUMBERED for record in records) else _number)(
        records, tally
    )


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt, each with its number and how many steps its time
    is the mean of.

    Of step times alone nothing shows whether every step printed one.
    """
    if not (records and records[0].rounded):
        counted = any(map(GET_FIELD["consumed_tokens"], records))
        return _add_means(count_step_tokens(records) if counted else records)
    before = (
        records[0].step - 1
    )  # of steps that were counted: they begin with the first of the attempt
    return [
        record._replace(step=record.step - before, rounded=False) for record in records
    ]


def _read_step_time(line: bytes, origin: RecordOrigin) -> StepRecord | None:
    match = STEP_TIME.match(line)
    if match is None:
        return StepRecord(origin, UNNUMBERED) if CUT_STEP_TIME.match(line) else None
    unit = get_printed_unit(match[1]) if match[1][-1:].isdigit() else 0.0
    return StepRecord(origin, UNNUMBERED, float(match[1]), unit, tflops=float(match[2]))


def _is_headless(text: bytes, start: int, stop: int) -> bool:
    """Tell whether this is the time of a record whose head is nowhere before it."""
    if not REST.match(text, start, stop) or not text.endswith(BEFORE_REST, 0, start):
        return False
    before = text[max(0, start - HEAD_REACH) : start]
    begun = [match.start() for match in BEGUN.finditer(before)]
    if not begun:
        return True
    return ELAPSED in before[begun[-1] :] and bool(LINE_BREAK.search(before, begun[-1]))


def _is_record(body: bytes) -> bool:
    """Tell whether what follows a head is a training step: NeMo 2 has `iteration 49/49
    | lr: ...`."""
    lead = body.strip()
    return ELAPSED in body or lead.startswith(SAMPLES) or SAMPLES.startswith(lead)


def _read_values(body: bytes) -> dict[bytes, bytes] | None:
    """Return the fields of a record that is there up to NOT_NUMBERS, with every number
    whole; None if it is torn.

    Every field ends with a bar, so that a number before one is whole. What other ranks
    glued behind is left out.
    """
    values: dict[bytes, bytes] = {}
    for part in body.split(b"|")[:-1]:
        name, colon, value = part.partition(b":")
        name, number = name.strip(), NUMBER.fullmatch(value.strip())
        if not colon or not NAME.fullmatch(name):
            if NOT_NUMBERS in values:
                break
            return None
        if name in NUMBERS:
            if number is None or name in values:
                return None
            values[name] = number[1]
        elif number is not None and (name in EXTRA or _is_bad_loss(name, number[1])):
            values.setdefault(name, number[1])
        elif name == APPROXIMATE:
            values[name] = value.strip()
    return (
        values
        if NOT_NUMBERS in values and (MILLISECONDS in values) != (SECONDS in values)
        else None
    )


def _build_record(
    origin: RecordOrigin,
    step: int,
    total: int,
    values: dict[bytes, bytes],
    stamp: float,
) -> StepRecord:
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
    """Return the time and one unit in its last printed place."""
    printed, power = (
        (values[SECONDS], 0) if SECONDS in values else (values[MILLISECONDS], -3)
    )
    seconds = Decimal(printed.decode("ascii")).scaleb(power)
    place = seconds.as_tuple().exponent
    return float(seconds), float(f"1e{place}") if isinstance(place, int) else 0.0


def _read_loss_and_norm(
    values: dict[bytes, bytes],
) -> tuple[float | None, float | None]:
    """Return loss and gradient norm, None where the step has none."""
    loss, norm = _get_first(values, LOSSES), _get_first(values, (NORM,))
    skipped = float(values.get(SKIPPED, b"0")) > 0
    if float(values[NOT_NUMBERS]) != 0 or any(
        name not in NUMBERS and _is_bad_loss(name, values[name]) for name in values
    ):
        return NAN, norm
    # A step that was skipped because FP16 gradients overflowed has no loss (0 in newer
    # versions) and no norm (or an infinite one). At the start of a run that is part of
    # finding the loss scale: its loss is missing, not NaN.
    if skipped and not (norm is not None and math.isnan(norm)):
        return loss or None, norm if norm is None or math.isfinite(norm) else None
    # Megatron leaves a loss that is NaN out of the mean, and then prints none.
    if loss is None and norm is not None and not math.isfinite(norm):
        return NAN, norm
    return loss, norm


def _is_bad_loss(name: bytes, printed: bytes) -> bool:
    """Tell whether a number is a loss besides the model's own (a router's, of further
    tokens) that is not finite."""
    return name.endswith(b"loss") and not math.isfinite(float(printed))


def _get_first(values: dict[bytes, bytes], names: Sequence[bytes]) -> float | None:
    return next((float(values[name]) for name in names if name in values), None)


def _parse_number(values: dict[bytes, bytes], *names: bytes) -> float:
    for name in names:
        if name in values:
            return float(values[name])
    return NAN


def _read_consumed_tokens(values: dict[bytes, bytes]) -> tuple[float, int] | None:
    printed = values.get(CONSUMED_TOKENS)
    return None if printed is None else (float(printed), count_digits(printed))


def _read_approximate_tflops(printed: bytes) -> float:
    """Return a number with its unit as TFLOP/s; NaN where the unit is none of the usual
    ones."""
    match = WITH_LETTERS.fullmatch(printed)
    scale = get_scale("tflops", match[2], "s", expected=False) if match else None
    return float(match[1]) * scale if match and scale else NAN


def _read_stamp(text: bytes, start: int) -> float:
    """Return the time of the log line in seconds, NaN without one."""
    match = STAMP.search(text[max(0, start - STAMP_REACH) : start])
    return read_timestamp(match[1]) if match else NAN


# --- what only the neighbours of a record tell: its step, its steps -------------------

# How many records apart the two lines of a step may stand: ranks print at the same
# time, in any order.
PAIR_REACH = 3

# So many step times at the end may have lost their iteration lines; more are a run that
# prints none.
STRAY = 2


def _pair(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the iteration records, with the TFLOP/s of the step times that belong to
    them.

    Both print the same number, rounded differently, so that lines in the same order, or
    near each other, whose times agree are of one step (or of two steps that took the
    same time, where it does not matter). Two lines side by side that are left over and
    contradict each other are one step too: the slower time counts. Other step times are
    of an unknown step.
    """
    steps = list(records)
    partners = _find_partners(records)
    for place, near in partners.items():
        steps[near] = _join_pair(records[near], records[place], tally)
    left = [
        record
        for place, record in enumerate(records)
        if record.step == UNNUMBERED and place not in partners
    ]
    last = max(record.origin.offset for record in records if record.step != UNNUMBERED)
    behind = [record for record in left if record.origin.offset > last]
    numbered = _number(behind, tally) if len(behind) > STRAY else []
    for record in left[: len(left) - len(behind)] if numbered else left:
        torn = math.isnan(record.seconds)
        tally.add(
            DropReason.TORN if torn else DropReason.UNKNOWN_STEP,
            record.origin.line,
            _describe(record),
        )
    return [record for record in steps if record.step != UNNUMBERED] + numbered


def _number(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return step times numbered from 1 for each rank, as uncertain: `time_steps`
    counts anew in each attempt.

    One that is cut keeps its number, with NaN seconds, so that the others keep theirs.
    """
    counts: Counter[str] = Counter()
    numbered = []
    for record in records:
        counts[record.origin.rank] += 1
        numbered.append(record._replace(step=counts[record.origin.rank], rounded=True))
        if math.isnan(record.seconds):
            tally.add(DropReason.TORN, record.origin.line, _describe(record))
    return numbered


def _find_partners(records: Sequence[StepRecord]) -> dict[int, int]:
    """Return the places of step times, each with that of its iteration record.

    Of a whole log the first with the first, and so on, for one rank's lines may come in
    a block. Else the nearest that agrees, then any beside it.
    """
    numbered = [
        place for place, record in enumerate(records) if record.step != UNNUMBERED
    ]
    bare = [
        place
        for place, record in enumerate(records)
        if record.step == UNNUMBERED and record.possible
    ]
    pairs = zip(bare, numbered, strict=False)
    if len(bare) == len(numbered) and all(
        _is_same_number(records[near], records[place]) for place, near in pairs
    ):
        return dict(zip(bare, numbered, strict=True))
    partners: dict[int, int] = {}
    free = set(numbered)
    for reach, contradicting in (
        *((reach, False) for reach in range(1, PAIR_REACH + 1)),
        (1, True),
    ):
        for place in bare:
            near = [
                each
                for each in (place - reach, place + reach)
                if each in free
                and (contradicting or _is_same_number(records[each], records[place]))
            ]
            if near and place not in partners:
                partners[place] = near[0]
                free.remove(near[0])
    return partners


def _is_same_number(record: StepRecord, other: StepRecord) -> bool:
    """Tell whether two times are one number, rounded to different places."""
    return abs(record.seconds - other.seconds) <= 0.51 * (
        record.resolution + other.resolution
    )


def _join_pair(
    iteration: StepRecord, step_time: StepRecord, tally: Tally
) -> StepRecord:
    tflops = step_time.tflops if math.isnan(iteration.tflops) else iteration.tflops
    if (
        not iteration.possible
        or _is_same_number(iteration, step_time)
        or show_same_time(iteration, step_time)
    ):
        return iteration._replace(tflops=tflops)
    text = f"step {iteration.step}: {iteration.seconds:g} s in line {iteration.origin.line}, but {_describe(step_time)}"
    tally.add(DropReason.REPEAT_DISAGREES, step_time.origin.line, text)
    slower = max(iteration, step_time, key=lambda record: record.seconds)
    return iteration._replace(
        seconds=slower.seconds, resolution=slower.resolution, tflops=slower.tflops
    )


def _describe(record: StepRecord) -> str:
    return (
        "a step time that is cut"
        if math.isnan(record.seconds)
        else f"Step Time {record.seconds:g} s"
    )


# So many equal gaps show an interval: fewer may be lost lines.
LEAST_GAPS = 3

# How much of the time between two lines is not spent in steps, at most, where lines are
# to tell what a time is of.
CLOCK_SHARE = 0.05


def _add_means(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt, in their order, with `mean_of`.

    An interval of n shows by prints at multiples of n only. A gap in a log of every
    step is lost lines, never a mean.
    """
    every = find_interval([record.step for record in records])
    means = [every] * len(records)
    if means and records[0].step % every:
        means[0] = 1
    if len(records) > 1:
        means[1] = _count_steps_of_second(records[0], records[1], every)
    return [
        record._replace(mean_of=mean)
        for record, mean in zip(records, means, strict=True)
    ]


def find_interval(steps: Sequence[int]) -> int:
    """Return every how many steps a log prints, from the ascending steps it prints; 1
    where that cannot be told.

    The first print may be out of turn: versions of 2026 print the first step of a
    process, whatever the interval.
    """
    gap = min((after - before for before, after in pairwise(steps[1:])), default=1)
    turns = [step for step in steps if step % gap == 0]
    if gap == 1 or not turns or len(steps) - len(turns) > bool(steps[0] % gap):
        return 1
    gaps = [
        after - before
        for before, after in pairwise([0, *turns] if turns[0] == gap else turns)
    ]
    equal = gaps.count(gap)
    return gap if equal >= LEAST_GAPS and 2 * equal > len(gaps) else 1


def _count_steps_of_second(first: StepRecord, second: StepRecord, every: int) -> int:
    """Count the steps of the second print of a process.

    Versions of 2026 print the first step of a process and continue to sum, so that the
    second print is the mean of that step, too. A first print out of turn is of such a
    version. Else the time between the two lines decides. If that is inconclusive and
    every step is printed, the fraction of a second in the stamps decides: the same
    versions introduced it.
    """
    steps = second.step - first.step
    if steps > every:
        return every
    if first.step % every:
        return steps + 1
    if (
        not (first.possible and second.possible)
        or (steps + 1) * second.seconds <= first.seconds
    ):
        return steps
    passed = second.stamp - first.stamp
    if math.isnan(passed):
        return steps
    fractions = bool(first.stamp % 1 or second.stamp % 1)
    newer = fractions and every == 1
    slack = CLOCK_SHARE * passed + (0 if fractions else 1)
    alone = abs(steps * second.seconds - passed) <= slack
    together = abs((steps + 1) * second.seconds - first.seconds - passed) <= slack
    return steps + (together if alone != together else newer)
