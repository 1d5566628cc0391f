"""MaxText: `completed step: 49, seconds: 7.908, TFLOP/s/device: 460.480, ..., loss: 0.000`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from statistics import median

from pytest_llmbench.parse.records import HOLE, NAN, NOT_FINITE, Origin, StepRecord, Torn, line_stop, printed_unit

NEEDLE = b"completed step: "

HEAD = re.compile(rb"completed step: (\d{1,15}), seconds: (-?(?:\d{1,15}\.\d{1,9}|%b))," % NOT_FINITE)
CUT_HEAD = re.compile(rb"completed step: (?:\d|$)")
THREE_DECIMALS = re.compile(rb"-?(?:\d{1,18}\.\d{3}(?![\d.e])|%b)" % NOT_FINITE)
EXPONENT = re.compile(rb"-?(?:\d\.\d{3}e[+-]\d\d(?!\d)|%b)" % NOT_FINITE)
"""MaxText prints fixed formats: a number is whole when it has all its places, whatever follows."""

FIRST_STEPS = 5
FEWEST_LATER = 5
FAST = 0.75

LOSS = b"loss"
NUMBERS = {
    b"TFLOP/s/device": THREE_DECIMALS,
    b"Tokens/s/device": THREE_DECIMALS,
    LOSS: THREE_DECIMALS,
    b"grad_norm": EXPONENT,
}


def read_step(text: bytes, start: int, end: int, origin: Origin) -> StepRecord | Torn | None:
    """Return the step at `text[start]`, what is left of it, or None where a sentence only begins the same way.

    `total_weights`, the target tokens in a step of the whole run (524288 is 128 samples of 4096 tokens), is not read:
    without the sequence length it gives no batch size, and padding lowers it.
    """
    stop = line_stop(text, start, end)
    whole = stop < end
    glued = text.find(NEEDLE, start + len(NEEDLE), stop)
    stop = stop if glued < 0 else glued
    head = HEAD.match(text, start, stop)
    if head is None:
        return Torn(origin, text[start:stop]) if CUT_HEAD.match(text, start, stop) else None
    number = _numbers(text[head.end() : stop])
    if number is None or not (whole or LOSS in number):
        return Torn(origin, text[start:stop])
    return StepRecord(
        origin,
        int(head[1]),
        float(head[2]),
        printed_unit(head[2]) if head[2][-1:].isdigit() else 0.0,
        loss=number.get(LOSS),
        grad_norm=number.get(b"grad_norm"),
        tflops=number.get(b"TFLOP/s/device", NAN),
        tokens=number.get(b"Tokens/s/device", NAN),
    )


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt, those marked asynchronous whose time is that of dispatching them only.

    They follow the steps that compile, are at most FIRST_STEPS with those, and take less than FAST of the next step and
    of the median of the later ones, which the next step has reached. A step that is fast later on is not judged here.
    """
    later = [record.seconds for record in records[FIRST_STEPS:] if record.possible]
    if len(later) < FEWEST_LATER:
        return list(records)
    level = median(later)
    first = sum(1 for _ in takewhile(lambda record: record.seconds * FAST > level, records[:FIRST_STEPS]))
    fast = list(takewhile(lambda record: 0 < record.seconds < FAST * level, records[first:]))
    after = first + len(fast)
    if after > FIRST_STEPS or not all(record.seconds < FAST * records[after].seconds for record in fast):
        return list(records)
    return [record._replace(asynchronous=first <= place < after) for place, record in enumerate(records)]


def _numbers(text: bytes) -> dict[bytes, float] | None:
    """Return the numbers that a record goes on with; None if one of them is not whole, or stands there twice."""
    number: dict[bytes, float] = {}
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
        number[name] = float(match[0])
    return number
