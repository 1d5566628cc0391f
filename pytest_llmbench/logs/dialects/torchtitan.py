"""torchtitan: `step:  2  loss:  5.97670  grad_norm:  2.2500  memory: 28.18GiB(89.87%)
tps: 2,110  ...  mfu: 4.11%`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from pytest_llmbench.core.log_records import DropReason, PauseKind
from pytest_llmbench.logs import clock
from pytest_llmbench.logs.printed_times import read_timestamp
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
# From more lines on their gaps show the log interval.
FEWEST_LINES = 3
HEAD = re.compile(rb"(?<!\w)step: {1,9}(\d{1,15})  ")
VALIDATION = b"validate "
# What stands before another kind of step: `validate step: 13000`, `evaluation:  step:
# 5`.
LOOK_ALIKE = re.compile(rb"\w:? {1,2}\Z")

FIELD = re.compile(rb"([A-Za-z]\w{0,39}): {1,19}(\S{1,99})  ")
NUMBER = re.compile(rb"-?(?:\d{1,18}\.\d{1,9}|%b)" % NOT_FINITE)
BAD_LOSS = re.compile(rb"loss: {1,19}-?%b(?!\w)" % NOT_FINITE)
MEMORY = re.compile(rb"(\d{1,9}\.\d\d)GiB\(\d{1,9}\.\d\d%\)")
RATES = re.compile(
    rb"tps: (\d[\d,]{0,23})  (?:tflops: (\d[\d,]{0,23}\.\d\d|%b)  )?mfu: (?:[\d,]{1,24}\.\d\d%%|N/A)"
    % NOT_FINITE
)
CUT_RATES = re.compile(rb"tps: \d[\d,]*  (?:tflops|mfu): ")

RATES_LENGTH = 256

STAMP = re.compile(
    rb"(?<!\d)(20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - [\w.]{1,99} - [A-Z]{1,9} - \Z"
)
# Steps print no time: it is that between two lines, whose stamps have a millisecond.
STAMP_UNIT = 0.001

GIB = 2**30


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Return the training step whose `tps: ` stands at `text[start]`, what is left of
    it, or None for another line.

    It has no seconds yet: `time_steps` finds them. A validation is returned as a record
    without tokens.
    """
    rates = COLOUR.sub(
        b"", text[start : find_line_stop(text, start, min(end, start + RATES_LENGTH))]
    )
    before = COLOUR.sub(
        b"", text[find_line_begin(text, max(0, start - REACH_BACK), start) : start]
    )
    place = before.rfind(STEP)
    if not (CUT_RATES.match(rates) or MEMORY.search(before)):
        return None
    if place < 0:
        return TruncatedRecord(origin, rates)
    head, match = HEAD.match(before, place), RATES.match(rates)
    if LOOK_ALIKE.search(before, 0, place):
        validation = _read_validation(origin, head, before[:place])
        bad = head is not None and BAD_LOSS.search(before, head.end()) is not None
        return validation and validation._replace(bad_validation=bad)
    values = _read_values(before, head.end()) if head else None
    if head is None or match is None or values is None or HOLE in before:
        return TruncatedRecord(origin, before[place:] + rates)
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
        tokens=_parse_number(
            match[1]
        ),  # of one GPU: what a rank reads is divided by the ranks that share it
        # the peak of what the allocator had reserved
        memory=float(memory[1]) * GIB if memory else NAN,
        stamp=_read_stamp(before[:place]),
    )


def resolve_steps(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the training steps of one rank.

    torchtitan counts anew after a validation, so its rates leave it out: the time has
    to do so, too.
    """
    marked = list(clock.drop_evaluations(records))
    for place in _find_partly_timed(marked):
        record, before = marked[place], marked[place - 1]
        steps, timed = (
            record.step - before.step,
            record.step - (record.since or (0, NAN))[0],
        )
        text = f"step {record.step}: its time is the mean of {timed} of the {steps} steps before it"
        tally.add(DropReason.PARTLY_TIMED, record.origin.line, text)
    return marked


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt with their times, by their stamps.

    The rates of the first one are of as many steps as there are between the others, or
    of all steps from 1 on. A time since a validation within an interval stands for the
    whole interval: how long the steps before it took is unknown.
    """
    timed = clock.time_steps(records)
    for place in _find_partly_timed(records):
        interval = records[place].step - records[place - 1].step
        timed[place] = timed[place]._replace(
            mean_of=interval, since=None, paused=PauseKind.EVALUATION
        )
    return timed


def _find_partly_timed(records: Sequence[StepRecord]) -> list[int]:
    """Return the places of records with a validation within their interval, if no line
    of it was lost."""
    if len(records) <= FEWEST_LINES or not any(map(GET_FIELD["since"], records)):
        return []
    usual = clock.count_usual_gap(records)
    return [
        place
        for place, (before, record) in enumerate(pairwise(records), 1)
        if record.since is not None
        and before.step < record.since[0] < record.step <= before.step + usual
    ]


def _read_validation(
    origin: RecordOrigin, head: re.Match[bytes] | None, before: bytes
) -> StepRecord | None:
    """Return where a validation stands and when it ended; None for any other
    look-alike."""
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
    """Return the fields between step and rates, with every number whole; None if they
    are torn."""
    values: dict[bytes, bytes] = {}
    while begin < len(before):
        field = FIELD.match(before, begin)
        if field is None or field[1] in values:
            return None
        values[field[1]] = field[2]
        begin = field.end()
    loss, norm = values.get(b"loss", b""), values.get(b"grad_norm")
    whole = (
        NUMBER.fullmatch(loss)
        and (norm is None or NUMBER.fullmatch(norm))
        and MEMORY.fullmatch(values.get(b"memory", b""))
    )
    return values if whole else None


def _parse_number(text: bytes) -> float:
    return float(text.replace(b",", b""))


def _read_stamp(before: bytes) -> float:
    """Return the time of the log record that begins with a step, in seconds; NaN where
    none stands right before it."""
    stamp = STAMP.search(before)
    return read_timestamp(stamp[1]) if stamp else NAN
