"""PaxML: step times without step numbers, which are counted.

`[PAX STATUS]: train_step() took 7.47 seconds.`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.step_records import (
    NOT_FINITE,
    RecordOrigin,
    StepRecord,
    Tally,
    TruncatedRecord,
    find_line_stop,
    get_printed_unit,
    strip_codes,
)

MARKER = b"[PAX STATUS]: "
TOOK = b"train_step() took "
LOOP = b"Starting training loop"
LOSS = b"step_i: "
END = b"Elapsed time for <_main>"

SECONDS = compile_on_use(
    rb"train_step\(\) took (-?(?:\d{1,9}(?:\.\d{1,9})?|%b)) seconds" % NOT_FINITE
)
# "Model initial global_step=300", after BEFORE_FIRST
FIRST = compile_on_use(rb"initial global_step=(\d{1,15})[ \t]*[\r\n]")
BEFORE_FIRST = b"Model "
# "step_i: 100, training loss: 2.5"
PRINTED_LOSS = compile_on_use(
    rb"step_i: \d{1,15}, train(?:ing)? loss: (-?(?:\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?|%b))[ \t,]*[\r\n]"
    % NOT_FINITE
)

# Stored as the step number until `resolve_steps` counts: a step, a truncated step, and
# lines other than steps. A step number >= 0 is the initial step of a line that FIRST
# matches.
UNNUMBERED, TRUNCATED, LOOP_BEGINS, HAS_LOSS, ENDED = -1, -2, -3, -4, -5


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the line at `text[start]`; `resolve_steps` counts the steps.

    Returns None for other text with the same beginning.
    """
    if text.startswith(TOOK, start):
        return _read_seconds(text, start, end, origin)
    if text.startswith(LOOP, start):
        has_marker = text.endswith(MARKER, 0, start)
        return StepRecord(origin, LOOP_BEGINS) if has_marker else None
    if text.startswith(END, start):
        return StepRecord(origin, ENDED)
    initial_step = FIRST.match(text, start, end)
    if initial_step and text.endswith(BEFORE_FIRST, 0, start):
        return StepRecord(origin, int(initial_step[1]))
    loss = PRINTED_LOSS.match(text, start, end)
    return StepRecord(origin, HAS_LOSS, loss=float(loss[1])) if loss else None


def resolve_steps(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Number the steps of one rank by counting their lines.

    Counts from 0, or from the initial step that the process prints. A truncated line
    counts as a step; a lost line cannot, so that later steps get lower numbers. If
    several processes begin to train without rank labels, no step can be numbered. A
    loss is printed about every hundred steps, and belongs to the step before it.
    """
    return [step for run in _split_runs(records) for step in _count_steps(run, tally)]


class RunLines(NamedTuple):
    """The lines of one run."""

    starts: list[StepRecord]  # the lines that begin the run
    later_lines: list[StepRecord]  # all lines after `starts`


def _split_runs(records: Sequence[StepRecord]) -> list[RunLines]:
    """Split the lines of a log into runs.

    A run begins at the first start line after other lines. A process prints its end
    after its last step: a step after that end belongs to another run, whose start line
    is missing.
    """
    run = RunLines([], [])
    runs = [run]
    has_ended = False  # True from the end of a process to the next step or start
    for record in records:
        is_start = record.step >= 0 or record.step == LOOP_BEGINS
        is_step = record.step in (UNNUMBERED, TRUNCATED)
        if (is_start and run.later_lines) or (is_step and has_ended):
            run = RunLines([], [])
            runs.append(run)
        if record.step == ENDED:
            has_ended = True
        elif is_start or is_step:
            has_ended = False
        (run.starts if is_start else run.later_lines).append(record)
    return runs


def _count_steps(run: RunLines, tally: Tally) -> list[StepRecord]:
    """Return the steps of one run with their numbers; see `resolve_steps`."""
    # Each process prints LOOP once, and its initial step if it has one.
    loops = sum(record.step == LOOP_BEGINS for record in run.starts)
    initial_steps = [record.step for record in run.starts if record.step >= 0]
    processes = max(loops, len(initial_steps))
    if processes > 1:
        text = f"train_step() of one of {processes} processes without rank labels"
        for record in run.later_lines:
            if record.step != ENDED:
                tally.add(DropReason.UNKNOWN_STEP, record.origin.line, text)
        return []
    number = initial_steps[0] if initial_steps else 0
    steps: list[StepRecord] = []
    for record in run.later_lines:
        if record.step == ENDED:
            continue
        if record.step == HAS_LOSS:
            if steps:
                steps[-1] = steps[-1]._replace(loss=record.loss)
            continue
        if record.step == TRUNCATED:
            tally.add(
                DropReason.TORN, record.origin.line, f"train_step() of step {number}"
            )
        else:
            steps.append(record._replace(step=number))
        number += 1
    return steps


def _read_seconds(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | None:
    """Parse the time of a step. `resolve_steps` numbers it.

    A line with a truncated time becomes a record with the step TRUNCATED, so that the
    steps after it get the right numbers. Returns None without MARKER.
    """
    stop = find_line_stop(text, start, end)
    match = SECONDS.match(strip_codes(text, start, stop, stop) or b"")
    has_marker = text.endswith(MARKER, 0, start)
    if match and has_marker:
        seconds = match[1]
        is_finite = seconds[-1:].isdigit()
        unit = get_printed_unit(seconds) if is_finite else 0.0
        return StepRecord(origin, UNNUMBERED, float(seconds), unit)
    return StepRecord(origin, TRUNCATED) if has_marker else None
