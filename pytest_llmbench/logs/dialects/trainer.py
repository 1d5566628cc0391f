"""Records of the Hugging Face Trainer with a step and the elapsed time.

LLaMA-Factory and ms-swift write them:

`{"current_steps": 10, "total_steps": 6750, "loss": 2.219, "elapsed_time": "0:00:32"}`
`{'loss': 3.95, 'global_step/max_steps': '10/438', 'elapsed_time': '51s',
'train_speed(iter/s)': 0.193342}`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs import clock
from pytest_llmbench.logs.dialects.huggingface import (
    NUMBER,
    QUOTES,
    REWARD_NAMES,
    read_fields,
)
from pytest_llmbench.logs.scan import REACH_BACK, find_line_begin
from pytest_llmbench.logs.step_records import (
    BAD_NUMBER,
    NAN,
    RecordOrigin,
    StepRecord,
    Tally,
    TruncatedRecord,
    count_digits,
    find_line_stop,
    get_printed_unit,
)

CURRENT, TOTAL, BOTH = b"current_steps", b"total_steps", b"global_step/max_steps"
STEPS = compile_on_use(rb"(\d{1,15})/(\d{1,15})")
COUNT = compile_on_use(rb"\d{1,15}")
# "0:00:32" or "1 day, 2:03:04"
CLOCK = compile_on_use(rb"(?:(\d{1,5}) days?, )?(\d{1,5}):([0-5]\d):([0-5]\d)")
# "51s" or "1d 2h 3m 4s"
WORDS = compile_on_use(rb"(?:(\d{1,5})d )?(?:(\d{1,5})h )?(?:(\d{1,5})m )?(\d{1,5})s")
ELAPSED = b"elapsed_time"
RATE, TIME = b"train_speed(iter/s)", b"train_speed(s/it)"
GIB = 2**30

# Tolerance of the time computed from the printed speed. The printed time is truncated
# to whole seconds.
WHOLE_SECOND = 1.01


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the record around `text[start]`, without the step time.

    `time_steps` computes the time. An evaluation has mean_of 0. Returns a
    TruncatedRecord if the record is incomplete, None for other records.
    """
    stop = find_line_stop(text, start, end)
    line_begin = find_line_begin(text, max(0, start - REACH_BACK), start)
    begin = text.rfind(b"{", line_begin, start)
    if begin < 0 or not text.startswith((b'"', b"'"), start - 1):
        return None
    fields = read_fields(text, begin + 1, stop)
    if fields is None:
        return TruncatedRecord(origin, text[begin:stop])
    # LLaMA-Factory of early 2024 prints every name in every record, with null for a
    # missing value.
    values = {
        name: value.strip(QUOTES) for name, value in fields.items() if value != b"null"
    }
    if b"train_runtime" in values:
        return None  # the record of the whole run
    record = _build_record(origin, values)
    if record is None:
        return TruncatedRecord(origin, text[begin:stop])
    return record if record.step else None


def _build_record(
    origin: RecordOrigin, values: Mapping[bytes, bytes]
) -> StepRecord | None:
    """Build a step, or an evaluation with mean_of 0.

    A record that is neither gets the step 0. Returns None if a number is incomplete.
    """
    step, total = _read_counts(values)
    elapsed = _read_elapsed(values.get(ELAPSED, b""))
    if step is None or elapsed is None:
        return None
    stamp, unit = _read_stamp(values, step, elapsed)
    loss, norm = values.get(b"loss"), values.get(b"grad_norm")
    if loss is None:
        is_evaluation = any(name.startswith(b"eval_") for name in values)
        is_bad = BAD_NUMBER.fullmatch(values.get(b"eval_loss", b"")) is not None
        return StepRecord(
            origin,
            step if is_evaluation else 0,
            NAN,
            unit,
            total,
            mean_of=0 if is_evaluation else 1,
            stamp=stamp,
            bad_validation=is_evaluation and is_bad,
        )
    if not all(number is None or NUMBER.fullmatch(number) for number in (loss, norm)):
        return None
    return StepRecord(
        origin,
        step,
        NAN,
        unit,
        total,
        loss=float(loss),
        grad_norm=float(norm) if norm is not None else None,
        memory=_read_number(values, b"memory(GiB)") * GIB,
        stamp=stamp,
        rate=_read_number(values, b"learning_rate", b"lr"),
        loss_digits=count_digits(loss),
        rewards=any(map(REWARD_NAMES.match, values)),
        # total so far: `time_steps` divides it
        step_tokens=_read_number(values, b"total_tokens", b"num_input_tokens_seen"),
    )


def resolve_steps(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the training steps of one rank."""
    return clock.mark_restarts(list(clock.drop_evaluations(records)), tally)


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Compute the times of one attempt's steps."""
    if not all(math.isnan(record.step_tokens) for record in records):
        first = [record._replace(step_tokens=NAN) for record in records[:1]]
        later = [
            record._replace(step_tokens=_count_tokens(record, before))
            for before, record in pairwise(records)
        ]
        records = [*first, *later]
    return clock.time_steps(records, first_step=1)


def _count_tokens(record: StepRecord, before: StepRecord) -> float:
    """Return the tokens per step since the record before."""
    return (record.step_tokens - before.step_tokens) / (record.step - before.step)


def _read_counts(values: Mapping[bytes, bytes]) -> tuple[int | None, int | None]:
    """Return the step and the total number of steps, (None, None) if one is missing."""
    step_and_total = STEPS.fullmatch(values.get(BOTH, b""))  # "10/438"
    if step_and_total:
        return int(step_and_total[1]), int(step_and_total[2])
    step, total = values.get(CURRENT, b""), values.get(TOTAL, b"")
    if COUNT.fullmatch(step) and COUNT.fullmatch(total):
        return int(step), int(total)
    return None, None


def _read_elapsed(text: bytes) -> int | None:
    """Return the whole seconds since the beginning of training, None if invalid."""
    match = CLOCK.fullmatch(text) or WORDS.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _read_stamp(
    values: Mapping[bytes, bytes], step: int, elapsed: int
) -> tuple[float, float]:
    """Return the elapsed time and the unit of its last digit, in seconds.

    ms-swift also prints the mean speed so far, with more digits: if both agree, the
    speed determines the time.
    """
    for name in (RATE, TIME):
        text = values.get(name, b"")
        speed = float(text) if NUMBER.fullmatch(text) else 0.0
        if speed > 0:
            stamp = step / speed if name == RATE else step * speed
            # The elapsed time is truncated to whole seconds.
            if elapsed <= stamp < elapsed + WHOLE_SECOND:
                return stamp, stamp * get_printed_unit(text) / speed
    return float(elapsed), 1.0


def _read_number(values: Mapping[bytes, bytes], *names: bytes) -> float:
    """Return the first of these fields that is printed, NaN if it is not a number."""
    text = next((values[name] for name in names if name in values), b"")
    return float(text) if NUMBER.fullmatch(text) else NAN
