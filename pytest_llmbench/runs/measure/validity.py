"""Whether a run may be judged: what is wrong with it, in words, with the log line."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import (
    Architecture,
    Baseline,
    BaselineKind,
    Configuration,
    Key,
    Parallelism,
    Source,
    Window,
)
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import DropReason, Ending, EndingCode, Steps
from pytest_llmbench.core.run_records import LoglessJob, Problem, Run
from pytest_llmbench.runs.measure import configuration, dropped_records, training
from pytest_llmbench.runs.measure.attempts import Choice, is_finished, is_traced
from pytest_llmbench.runs.measure.wall_clock import find_unit_mismatch
from pytest_llmbench.runs.measure.window import Timing, count_steps, find_gaps

# An unfinished log that was written this recently probably belongs to a job that still
# runs
RECENT = timedelta(minutes=10)

# steps of a run that only verifies the loading of a checkpoint (the documents say one)
LARGEST_LOAD_RUN = 2

LACKING = (Reason.WINDOW_INCOMPLETE, Reason.INCOMPLETE, Reason.STILL_RUNNING)
"""What a run lacks that is there, in parts, where two processes write at once."""

NO_CONFIGURATION = Key("", "", "", "", "", 1)
"""The key of a stand-in."""

# The number of steps of a recipe that nobody knows: only the log's own total, or its
# end, says that a run finished
UNKNOWN_STEPS = sys.maxsize


def find_exclusion(run: Run, choice: Choice | None) -> Problem | None:
    """Return why a run cannot be compared, by positive evidence: profiled, traced, or
    only loading a checkpoint."""
    if run.found.excluded is not None:
        return Problem(run.found.excluded, run.found.excluded_because)
    if choice is None:
        return None
    log = choice.attempt.log
    if switched := configuration.find_profiler(choice):
        return Problem(
            Reason.PROFILED,
            "the log says that a profiler was switched on or off",
            switched.line,
        )
    if is_traced(choice.attempt, choice.number):
        return Problem(Reason.TRACED, "the log holds NCCL trace records", log.nccl_line)
    if log.checkpoints.load_line and choice.segment.finished:
        parts = [
            part
            for attempt in run.attempts
            for part in attempt.log.segments
            if len(part.steps)
        ]
        ran = int(
            choice.segment.steps.mean_of.sum()
        )  # a log that prints every tenth step has few lines of a long run
        if all(
            int(part.steps.mean_of.sum()) <= LARGEST_LOAD_RUN for part in parts
        ):  # else it went on with its steps
            text = f"it loaded a checkpoint and ran {ran} step"
            return Problem(Reason.CHECKPOINT_LOAD, text, log.checkpoints.load_line)
    return None


def explain_no_steps(run: Run, baseline: Baseline, now: datetime) -> Problem:
    """Return the problem of a run without any step."""
    if not run.attempts:
        return Problem(Reason.NO_STEPS, _describe_missing_log(run))
    files, ending = run.attempts[-1].files, run.attempts[-1].log.ending
    if ending and ending.code is EndingCode.UNREADABLE:
        return Problem(Reason.UNREADABLE, ending.problem)
    if ending:
        text = f"no training step in the log: {formatting.describe_ending(ending, files.log.name)}"
        return Problem(
            _choose_reason(ending, Reason.NO_STEPS),
            text,
            0 if ending.file else ending.line,
        )
    unread = next(
        (
            unread_records
            for unread_records in run.attempts[-1].log.unread
            if unread_records.dialect == baseline.dialect
        ),
        None,
    )
    why = f"; {formatting.describe_unread(unread)}" if unread else ""
    line = unread.first_line if unread else 0
    if _is_recent(run, now):
        return Problem(
            Reason.STILL_RUNNING,
            f"no training step yet; probably still running{why}",
            line,
        )
    text = f"no training step of dialect {baseline.dialect} in the log{why}"
    torn = next(
        (
            dropped
            for dropped in run.attempts[-1].log.dropped
            if dropped.reason is DropReason.TORN
        ),
        None,
    )
    if torn is None:
        return Problem(Reason.NO_STEPS, text, line)
    lines = formatting.count_noun(torn.count, "line")
    return Problem(
        Reason.NO_STEPS,
        f"{text}; {lines} could not be read, the first is: {torn.shown}",
        torn.first_line,
    )


def _describe_missing_log(run: Run) -> str:
    """Return what is said of a job that left no log, and what it left."""
    left = run.found.remains_at
    at = ""
    if left is not None and run.found.remains is LoglessJob.FOLDER:
        at = f" in {left.name}; where nothing was ever started, remove that folder"
    elif left is not None:
        at = f", only {left.name}"
    return f"the job left no log: it still waits in the queue, or died before it wrote one{at}"


def find_problems(
    run: Run, choice: Choice, timed: Timing, baseline: Baseline, now: datetime
) -> tuple[Problem, ...]:
    """Return all that is wrong with the chosen segment, the cause of the others first;
    empty when it is valid."""
    problems = [
        # A run of no known configuration is of no other one than it claims.
        *(
            ()
            if baseline.key == NO_CONFIGURATION
            else configuration.find_problems(run, choice, timed, baseline)
        ),
        *_find_unread(run, choice),
        *_find_contradicted(choice),
        *find_not_finite(choice.segment.steps),
        *training.find_problems(run, choice, timed, baseline),
        *dropped_records.find_problems(choice, timed),
        *_find_unfinished(run, choice, baseline, now),
        *_find_newer_start(run, choice),
        *find_gaps(timed, baseline),
        *find_unit_mismatch(timed),
        *(
            _find_unprinted_losses(choice.segment.steps, baseline.window)
            if choice.attempt.log.prints_loss
            else ()
        ),
    ]
    if any(problem.reason in LACKING for problem in problems):  # the cause stands first
        problems = [*_find_interleaved(choice), *problems]
    return tuple(problems)


def _find_interleaved(choice: Choice) -> Iterator[Problem]:
    """Yield that two processes write into the log."""
    # No part of such a log holds the steps of one of them in a row: that is why some
    # are missing.
    for dropped in choice.attempt.log.dropped:
        if dropped.reason is DropReason.INTERLEAVED:
            text = f"two processes write their steps into this file at once: {dropped.shown}"
            yield Problem(Reason.WINDOW_INCOMPLETE, text, dropped.first_line)


def _find_unread(run: Run, choice: Choice) -> Iterator[Problem]:
    """Yield later attempts that could not be read."""
    # They may be the ones that count: an older attempt must not stand for them.
    for attempt in run.attempts[run.attempts.index(choice.attempt) + 1 :]:
        ending = attempt.log.ending
        if ending is not None and (
            ending.code is EndingCode.UNREADABLE
            or (ending.code is EndingCode.CUT and not attempt.log.segments)
        ):
            text = f"the later attempt {attempt.files.number} cannot be read: {ending.problem}"
            yield Problem(Reason.UNREADABLE, text)


def _find_contradicted(choice: Choice) -> Iterator[Problem]:
    """Yield that something else in the log contradicts its times."""
    if choice.segment.doubt:
        yield Problem(
            Reason.TIMES_DISAGREE, choice.segment.doubt, choice.segment.last_line
        )


def _is_recent(run: Run, now: datetime) -> bool:
    return run.found.modified is not None and now - run.found.modified < RECENT


def _find_unfinished(
    run: Run, choice: Choice, baseline: Baseline, now: datetime
) -> Iterator[Problem]:
    segment, ending = choice.segment, choice.attempt.log.ending
    if is_finished(segment, baseline.steps):
        return
    total = segment.total_steps or baseline.steps
    of_all = "" if total == UNKNOWN_STEPS else f" of {total}"
    reached = f"stopped after step {int(segment.steps.index[-1])}{of_all}"
    line = int(segment.steps.line[-1])
    if ending is not None and not (ending.went_on and _is_recent(run, now)):
        text = f"{reached}: {formatting.describe_ending(ending, choice.attempt.files.log.name)}"
        yield Problem(
            _choose_reason(ending, Reason.INCOMPLETE),
            text,
            line if ending.file else ending.line or line,
        )
    elif _is_recent(run, now):
        yield Problem(
            Reason.STILL_RUNNING,
            f"{reached}; written minutes ago, probably still running",
            line,
        )
    else:
        yield Problem(Reason.INCOMPLETE, f"{reached}; the log does not say why", line)


def _find_newer_start(run: Run, choice: Choice) -> Iterator[Problem]:
    """Yield a newer run in the same log that died before its first step: the older one
    must not stand for it."""
    # A start alone is only a note: a rank may print its first lines when it ends.
    log, ending = choice.attempt.log, choice.attempt.log.ending
    if not is_begun_again(run, choice) or ending is None or ending.went_on:
        return
    if not ending.file and ending.line > log.begun_again_line:
        text = f"another process started after the last step, in line {log.begun_again_line}, and made no step"
        why = formatting.describe_ending(ending, choice.attempt.files.log.name)
        yield Problem(
            _choose_reason(ending, Reason.INCOMPLETE), f"{text}: {why}", ending.line
        )


def is_begun_again(run: Run, choice: Choice) -> bool:
    """Whether a process started behind the judged steps, which are the last ones, and
    printed none itself."""
    last = (
        choice.attempt is run.attempts[-1]
        and choice.segment is choice.attempt.log.segments[-1]
    )
    return last and choice.attempt.log.begun_again_line > 0


def _choose_reason(ending: Ending, other: Reason) -> Reason:
    return (
        Reason.DIVERGED
        if ending.code is EndingCode.DIVERGED and not ending.went_on
        else other
    )


def _find_unprinted_losses(steps: Steps, window: Window) -> Iterator[Problem]:
    """Yield a loss that is not printed from the window's first step on."""
    # Some leave the field out once it is no number. Before the window it may be
    # missing: in half precision the first steps overflow until the loss is scaled
    # right, and are skipped. Where the gradient norm is no number there, the run has
    # diverged all the same (find_not_finite).
    silent = ~steps.has_loss & (steps.index >= window.first)
    if silent.any():
        rows = np.flatnonzero(silent)
        text = f"{len(rows)} steps print no loss, first step {steps.index[rows[0]]}"
        yield Problem(Reason.LOSS_MISSING, text, int(steps.line[rows[0]]))


def find_not_finite(steps: Steps) -> Iterator[Problem]:
    """Yield where a printed loss or gradient norm is NaN or infinite, whether in the
    window or not."""
    for name, values, printed in (
        ("loss", steps.loss, steps.has_loss),
        ("grad norm", steps.grad_norm, steps.has_grad_norm),
    ):
        wrong = printed & ~np.isfinite(values)
        if wrong.any():
            rows = np.flatnonzero(wrong)
            text = f"{name} is {values[rows[0]]} from step {steps.index[rows[0]]} on ({len(rows)} steps)"
            yield Problem(Reason.DIVERGED, text, int(steps.line[rows[0]]))


def count_expected_steps(choice: Choice) -> int:
    """Return how many steps a run without a baseline has; UNKNOWN_STEPS if it died and
    its log prints no total."""
    segment, ending = choice.segment, choice.attempt.log.ending
    planned = ending is None or ending.went_on or ending.code is EndingCode.EXITED
    died = not planned and not segment.finished
    return (
        UNKNOWN_STEPS if died and segment.total_steps is None else count_steps(segment)
    )


def make_default_baseline(run: Run, window: Window, steps: int) -> Baseline:
    """Return a baseline that expects nothing of a run but its steps and its window;
    zeros are unknown numbers.

    Only what is wrong with the run may be asked of it: no metric follows from it
    (`step_time_only`).
    """
    dialects = (
        attempt.log.dialect for attempt in reversed(run.attempts) if attempt.log.dialect
    )
    model = Architecture(
        "", sequence_length=0, layers=0, hidden_size=0, vocabulary_size=0
    )
    return Baseline(
        configuration=Configuration(
            NO_CONFIGURATION, model, Parallelism(), global_batch_size=0
        ),
        kind=BaselineKind.RECIPE,
        step_seconds=math.nan,
        cells=(),
        window=window,
        timed="mean",
        steps=steps,
        dialect=next(dialects, "any"),
        peak_tflops=math.nan,
        source=Source(""),
    )
