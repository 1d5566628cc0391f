"""Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and Megatron-Bridge: two kinds of record of the same steps.

` iteration        3/      20 | consumed samples: 384 | elapsed time per iteration (ms): 32208.7 | ... |`
`Step Time : 12.78s GPU utilization: 528.1 TFLOP/s/GPU`
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from pytest_llmbench.ingest.parse.dialects.megatron_steps import UNNUMBERED, add_means, number, pair, renumber
from pytest_llmbench.ingest.parse.prints import get_scale
from pytest_llmbench.ingest.parse.records import (
    COLOUR_RESET,
    HOLE,
    LINE_BREAK,
    NAN,
    NOT_FINITE,
    RecordOrigin,
    StepRecord,
    Tally,
    Torn,
    count_digits,
    find_line_stop,
    get_printed_unit,
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
NUMBER = re.compile(rb"(-?(?:\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]\d{1,3})?|%b))(?:/[^/|]+)?" % NOT_FINITE)
NAME = re.compile(rb"[\w ()/.,%-]{1,99}")

SAMPLES = b"consumed samples:"
MILLISECONDS = b"elapsed time per iteration (ms)"
SECONDS = b"elapsed time per iteration (s)"
SKIPPED = b"number of skipped iterations"
NOT_NUMBERS = b"number of nan iterations"  # the last field: a record without it is torn, what follows is another rank's
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
# Fields without which a record is whole.
EXTRA = frozenset({RATE, CONSUMED})
NUMBERS = frozenset({MILLISECONDS, SECONDS, SKIPPED, NOT_NUMBERS, NORM, BATCH, *LOSSES, *TFLOPS, *TOKENS})

STEP_TIME = re.compile(
    rb"Step Time : (-?(?:\d{1,15}\.\d{1,9}|%b))s GPU utilization: (-?(?:\d{1,15}\.\d{1,9}|%b)) ?(?:MODEL_)?TFLOP/s/GPU"
    % (NOT_FINITE, NOT_FINITE)
)
CUT_STEP_TIME = re.compile(rb"Step Time : (?:-?\d|\Z)")


def read_step(text: bytes, start: int, end: int, origin: RecordOrigin) -> StepRecord | Torn | None:
    """Return the step at `text[start]`, what is left of it, or None where a sentence only begins the same way.

    A `Step Time` says no step number; its record has UNNUMBERED, and NaN seconds where it is cut. A record whose head
    is lost is torn; one that was cut in two behind its head is counted once, at the head.
    """
    stop = find_line_stop(text, start, end)
    if text.startswith(b"Step Time", start):
        return _read_step_time(text[start:stop], origin)
    head = HEAD.match(text, start, stop)
    if head is None:
        lost = CUT_HEAD.match(text[start:stop].rstrip()) or _is_headless(text, start, stop)
        return Torn(origin, text[start:stop]) if lost else None
    glued = HEAD.search(text, head.end(), stop)
    stop = glued.start() if glued else stop
    body = COLOUR_RESET.sub(b"", text[head.end() : stop])
    if not _is_record(body):
        return None
    values = _read_values(body)
    if values is None or HOLE in body or int(head[1]) == UNNUMBERED:
        return Torn(origin, text[start:stop])
    return _build_record(origin, int(head[1]), int(head[2]), values, _read_stamp(text, start))


def join(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return one record a print of a step, in the order of the log; without any iteration line counted step times."""
    return (pair if any(record.step != UNNUMBERED for record in records) else number)(records, tally)


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt, each with its number and how many steps its time is the mean of.

    Of step times alone nothing shows whether every step printed one.
    """
    counted = bool(records and records[0].rounded)
    return renumber(records) if counted else add_means(records)


def _read_step_time(line: bytes, origin: RecordOrigin) -> StepRecord | None:
    match = STEP_TIME.match(line)
    if match is None:
        return StepRecord(origin, UNNUMBERED, NAN, 0.0) if CUT_STEP_TIME.match(line) else None
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
    """Tell whether what follows a head is a training step: NeMo 2 has `iteration 49/49 | lr: ...`."""
    lead = body.strip()
    return ELAPSED in body or lead.startswith(SAMPLES) or SAMPLES.startswith(lead)


def _read_values(body: bytes) -> dict[bytes, bytes] | None:
    """Return the fields of a record that is there up to NOT_NUMBERS, with every number whole; None if it is torn.

    Every field ends with a bar, so that a number before one is whole. What other ranks glued behind is left out.
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
    return values if NOT_NUMBERS in values and (MILLISECONDS in values) != (SECONDS in values) else None


def _build_record(origin: RecordOrigin, step: int, total: int, values: dict[bytes, bytes], stamp: float) -> StepRecord:
    seconds, unit = _read_seconds(values)
    loss, norm = _read_loss_and_norm(values)
    tflops = (
        _parse_number(values, TFLOPS) if APPROXIMATE not in values else _read_approximate_tflops(values[APPROXIMATE])
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
        tokens=_parse_number(values, TOKENS),
        batch=_parse_number(values, (BATCH,)),
        rate=_parse_number(values, (RATE,)),
        consumed=_parse_number(values, (CONSUMED,)),
        skipped=_parse_number(values, (SKIPPED,)),
        loss_digits=max((count_digits(values[name]) for name in LOSSES if name in values), default=0),
        stamp=stamp,
    )


def _read_seconds(values: dict[bytes, bytes]) -> tuple[float, float]:
    """Return the time and one unit in its last printed place."""
    printed, power = (values[SECONDS], 0) if SECONDS in values else (values[MILLISECONDS], -3)
    seconds = Decimal(printed.decode("ascii")).scaleb(power)
    place = seconds.as_tuple().exponent
    return float(seconds), float(f"1e{place}") if isinstance(place, int) else 0.0


def _read_loss_and_norm(values: dict[bytes, bytes]) -> tuple[float | None, float | None]:
    """Return loss and gradient norm, None where the step has none."""
    loss, norm = _get_first(values, LOSSES), _get_first(values, (NORM,))
    skipped = float(values.get(SKIPPED, b"0")) > 0
    if float(values[NOT_NUMBERS]) != 0 or any(
        name not in NUMBERS and _is_bad_loss(name, values[name]) for name in values
    ):
        return NAN, norm
    # A step that was skipped because FP16 gradients overflowed has no loss (0 in newer versions) and no norm (or an
    # infinite one). At the start of a run that is part of finding the loss scale: its loss is missing, not NaN.
    if skipped and not (norm is not None and math.isnan(norm)):
        return loss or None, norm if norm is None or math.isfinite(norm) else None
    # Megatron leaves a loss that is NaN out of the mean, and then prints none.
    if loss is None and norm is not None and not math.isfinite(norm):
        return NAN, norm
    return loss, norm


def _is_bad_loss(name: bytes, printed: bytes) -> bool:
    """Tell whether a number is a loss besides the model's own (a router's, of further tokens) that is not finite."""
    return name.endswith(b"loss") and not math.isfinite(float(printed))


def _get_first(values: dict[bytes, bytes], names: Sequence[bytes]) -> float | None:
    return next((float(values[name]) for name in names if name in values), None)


def _parse_number(values: dict[bytes, bytes], names: Sequence[bytes]) -> float:
    place = _get_first(values, names)
    return NAN if place is None else place


def _read_approximate_tflops(printed: bytes) -> float:
    """Return a number with its unit as TFLOP/s; NaN where the unit is none of the usual ones."""
    match = WITH_LETTERS.fullmatch(printed)
    scale = get_scale("tflops", match[2], "s", expected=False) if match else None
    return float(match[1]) * scale if match and scale else NAN


def _read_stamp(text: bytes, start: int) -> float:
    """Return the time of the log line in seconds, NaN without one."""
    match = STAMP.search(text[max(0, start - STAMP_REACH) : start])
    try:
        return datetime.fromisoformat(match[1].decode()).replace(tzinfo=UTC).timestamp() if match else NAN
    except ValueError:
        return NAN
