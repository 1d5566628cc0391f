"""NeMo 2 (NeMo-Run): `Training epoch 0, iteration 49/49 | global_step: 49 | ... | train_step_timing in s: 12.39`."""

from __future__ import annotations

import re

from pytest_llmbench.parse.records import (
    COLOUR_RESET,
    HOLE,
    NAN,
    NOT_FINITE,
    Origin,
    StepRecord,
    Torn,
    line_stop,
    printed_unit,
    significant_unit,
)

NEEDLE = b"Training epoch "
DIGITS = 4

HEAD = re.compile(rb"Training epoch (\d{1,9}), iteration (\d{1,15})/(\d{1,15}) \| ")
CUT_HEAD = re.compile(rb"Training epoch \d+(?:, |$)")
STEP = re.compile(rb"\d{1,15}")
NUMBER = re.compile(rb"-?(?:\d{1,18}(?:\.\d{1,18})?(?:e[+-]\d{2,3})?|%b)" % NOT_FINITE)
REST = re.compile(rb"(?=[^\r\n]*[\d|])[\d.]*(?:e?[+-]?\d\d)?(?: \| [A-Za-z_][\w ]*: |[ \t\r]*$)")
REST_LINES = 8

TIME = b"train_step_timing in s"
NUMBERS = (
    TIME,
    b"global_batch_size",
    b"reduced_train_loss",
    b"grad_norm",
    b"TFLOPS_per_GPU",
    b"peak_memory_usage",
    b"max_memory_allocated",
)


def read_step(text: bytes, start: int, end: int, origin: Origin) -> StepRecord | Torn | None:
    """Return the step at `text[start]`, what is left of it, or None where a sentence only begins the same way.

    Peak memory is `peak_memory_usage` (until 25.04) or `max_memory_allocated`: what tensors took, not what the
    allocator had reserved. The total is known in epoch 0 only, where `iteration` and `global_step` are the same.
    """
    stop = line_stop(text, start, end)
    head = HEAD.match(text, start, stop)
    if head is None:
        return Torn(origin, text[start:stop]) if CUT_HEAD.match(text, start, stop) else None
    values = _values(text, head.end(), stop, end)
    if values is None:
        return Torn(origin, text[start:stop])
    epoch, iteration, last = (int(number) for number in head.groups())
    step = int(values[b"global_step"])
    return _record(origin, step, last + 1 if epoch == 0 and iteration == step else None, values)


def _record(origin: Origin, step: int, total: int | None, values: dict[bytes, bytes]) -> StepRecord:
    number = {name: float(values[name]) for name in NUMBERS if name in values}
    seconds = number[TIME]
    return StepRecord(
        origin,
        step,
        seconds,
        min(significant_unit(seconds, DIGITS), printed_unit(values[TIME])) if seconds > 0 else 0.0,
        total,
        loss=number.get(b"reduced_train_loss"),
        grad_norm=number.get(b"grad_norm"),
        tflops=number.get(b"TFLOPS_per_GPU", NAN),
        batch=number.get(b"global_batch_size", NAN),
        memory=number.get(b"peak_memory_usage", number.get(b"max_memory_allocated", NAN)),
    )


def _values(text: bytes, begin: int, stop: int, end: int) -> dict[bytes, bytes] | None:
    """Return the fields of a record that has a step and a time, with every number whole; None if it is torn."""
    glued = text.find(NEEDLE, begin, stop)
    line_ends = stop < end and glued < 0
    parts = COLOUR_RESET.sub(b"", text[begin : stop if glued < 0 else glued]).split(b" | ")
    if not line_ends or b": " not in parts[-1]:
        parts.pop()
    values: dict[bytes, bytes] = {}
    for part in parts:
        name, colon, value = part.partition(b": ")
        if not colon or name in values:
            return None
        values[name] = value.rstrip()
    if HOLE in b"".join(parts):
        return None
    if TIME not in values or not STEP.fullmatch(values.get(b"global_step", b"")):
        return None
    if not all(NUMBER.fullmatch(values[name]) for name in NUMBERS if name in values):
        return None
    if line_ends and parts[-1].partition(b": ")[0] in NUMBERS and _goes_on_below(text, stop, end):
        return None
    return values


def _goes_on_below(text: bytes, stop: int, end: int) -> bool:
    """Tell whether one of the next lines is the rest of this one: a number cut at the end of a line looks whole."""
    for _ in range(REST_LINES):
        begin = text.find(b"\n", stop, end) + 1
        if begin == 0:
            return False
        stop = text.find(b"\n", begin, end)
        line = text[begin : end if stop < 0 else stop]
        if REST.match(line):
            return True
        if stop < 0 or NEEDLE in line:
            return False
    return False
