"""Metrics of an event file, a table or JSON lines: `llmb scalar: 2/15 1774532589.120000
0.53 iteration-time`.

`sources/metric_files.py` makes these lines; each holds one value of a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.logs import clock, event_times
from pytest_llmbench.logs.metric_names import METRIC_NAMES, STEP_TIMES, MetricKind
from pytest_llmbench.logs.step_records import (
    NAN,
    RecordOrigin,
    StepRecord,
    Tally,
    Torn,
    find_line_stop,
)

LINE = re.compile(
    rb"llmb scalar: (\d{1,15})/(\d{0,15}) (\S{1,40}) (-?(?:\d\S{0,39}|nan|inf)) ([ -~]{1,100})"
)

FIELDS = {
    MetricKind.LOSS: "loss",
    MetricKind.GRAD_NORM: "grad_norm",
    MetricKind.TFLOPS: "tflops",
    MetricKind.FLOPS: "tflops",
    MetricKind.TOKENS: "tokens",
    MetricKind.BATCH: "batch",
    MetricKind.LEARNING_RATE: "rate",
    MetricKind.CONSUMED: "consumed",
    MetricKind.SAMPLES: "samples",
    MetricKind.STEP_TOKENS: "step_tokens",
    MetricKind.TARGETS: "targets",
}
TERA = 1e12


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | Torn | None:
    """Return one value of a step, for `join`; its name stands in `layout`."""
    stop = find_line_stop(text, start, end)
    match = LINE.fullmatch(text, start, stop)
    if match is None:
        return Torn(origin, text[start:stop])
    try:
        moment, value = float(match[3]), float(match[4])
    except ValueError:
        return Torn(origin, text[start:stop])
    total = int(match[2]) if match[2] else None
    # A clock makes it a sign of life, wherever its run is.
    bad = (
        not math.isfinite(value)
        and METRIC_NAMES.get(match[5].decode("ascii")) is MetricKind.VALIDATION_LOSS
    )
    return StepRecord(
        origin,
        int(match[1]),
        value,
        0.0,
        total,
        stamp=moment,
        bad_validation=bad,
        layout=(match[5],),
    )


def join(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return one record for each step that has a time, with the other values of that
    step; steps that fall are of another run."""
    joined: list[StepRecord] = []
    run: list[StepRecord] = []
    last = -1
    for record in records:
        if record.step < last:
            joined += _join_run(run, tally)
            run, last = [], -1
        run.append(record)
        last = record.step if _get_name(record) in STEP_TIMES else last
    return [*joined, *_join_run(run, tally)]


def _join_run(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the steps of one run; of two times of a step the slower one counts:
    another process wrote the second."""
    steps: dict[int, StepRecord] = {}
    others: dict[int, dict[str, float]] = {}
    validations: dict[int, float] = {}
    restarts = False
    for record in records:
        name = _get_name(record)
        kind = METRIC_NAMES.get(name)
        if name in STEP_TIMES:
            restarts |= kind is MetricKind.RESTARTED_SECONDS
            time = record._replace(
                layout=(), rounded=kind is not MetricKind.STEP_SECONDS
            )
            before = steps.setdefault(record.step, time)
            if before.seconds != time.seconds:
                text = f"step {time.step} again: {time.seconds:g} s, but {before.seconds:g} s before"
                tally.add(DropReason.REPEAT_DISAGREES, time.origin.line, text)
                steps[record.step] = max(before, time, key=lambda each: each.seconds)
        elif kind is MetricKind.VALIDATION_LOSS:
            validations[record.step] = record.stamp
        elif kind in FIELDS:
            value = record.seconds / (TERA if kind is MetricKind.FLOPS else 1.0)
            of_step = others.setdefault(record.step, {})
            if math.isfinite(
                of_step.get(FIELDS[kind], 0.0)
            ):  # what diverged once stays so
                of_step[FIELDS[kind]] = value
    joined = [record._replace(**others.get(step, {})) for step, record in steps.items()]  # type: ignore[arg-type]
    if restarts:
        joined = event_times.restore_divisor(joined, validations, tally)
    return event_times.convert_unit(joined, tally)


def _get_name(record: StepRecord) -> str:
    return record.layout[0].decode("ascii")


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt with how many steps each time is the mean of.

    The first time is left out where it stands for fewer steps than others do:
    torchtitan divides it by as many.
    """
    if not any(record.rounded for record in records):
        return list(records)
    usual = clock.count_usual_gap(records)
    first = records[0]._replace(mean_of=min(usual, max(1, records[0].step)))
    if len(records) > 1 and first.step < usual:
        first = first._replace(seconds=NAN)
    rest = [
        record._replace(mean_of=max(1, min(record.step - before.step, usual)))
        for before, record in pairwise(records)
    ]
    return [first, *rest]
