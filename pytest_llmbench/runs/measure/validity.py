"""Validity of a run: the problems that prevent judging it, with their log lines."""

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

# An unfinished log modified this recently probably belongs to a running job
RECENT = timedelta(minutes=10)

# steps of a run that only verifies that a checkpoint loads (the documents use one)
LARGEST_LOAD_RUN = 2

LACKING = (Reason.WINDOW_INCOMPLETE, Reason.INCOMPLETE, Reason.STILL_RUNNING)
"""Reasons that interleaved writers may cause: their steps are spread over segments."""

NO_CONFIGURATION = Key("", "", "", "", "", 1)
"""The key of the default baseline, for runs without a known configuration."""

# Unknown number of steps: only the total or the end marker in the log shows that a run
# finished
UNKNOWN_STEPS = sys.maxsize


def find_exclusion(run: Run, choice: Choice | None) -> Problem | None:
    """Return the reason to exclude a run from comparison, or None.

    A run is excluded if it was profiled, traced, or only loaded a checkpoint.
    """
    if run.found.excluded is not None:
        return Problem(run.found.excluded, run.found.excluded_because)
    if choice is None:
        return None
    log = choice.attempt.log
    if switched := configuration.find_profiler(choice):
        return Problem(
            Reason.PROFILED,
            "the log shows that a profiler was switched on or off",
            switched.line,
        )
    if is_traced(choice.attempt, choice.number):
        return Problem(
            Reason.TRACED, "the log contains NCCL trace records", log.nccl_line
        )
    if log.checkpoints.load_line and choice.segment.finished:
        segments = [
            segment
            for attempt in run.attempts
            for segment in attempt.log.segments
            if len(segment.steps)
        ]
        # sum the steps per line: a long run may print only every tenth step
        step_count = int(choice.segment.steps.mean_of.sum())
        # a run with a longer segment continued training
        if all(
            int(segment.steps.mean_of.sum()) <= LARGEST_LOAD_RUN for segment in segments
        ):
            text = f"it loaded a checkpoint and ran {step_count} step"
            return Problem(Reason.CHECKPOINT_LOAD, text, log.checkpoints.load_line)
    return None


def explain_no_steps(run: Run, baseline: Baseline, now: datetime) -> Problem:
    """Return the problem of a run without steps."""
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
    unparsed = next(
        (
            unread_records
            for unread_records in run.attempts[-1].log.unread
            if unread_records.dialect == baseline.dialect
        ),
        None,
    )
    details = f"; {formatting.describe_unread(unparsed)}" if unparsed else ""
    line = unparsed.first_line if unparsed else 0
    if _is_recently_modified(run, now):
        return Problem(
            Reason.STILL_RUNNING,
            f"no training step yet; probably still running{details}",
            line,
        )
    text = f"no training step of dialect {baseline.dialect} in the log{details}"
    truncated = next(
        (
            dropped
            for dropped in run.attempts[-1].log.dropped
            if dropped.reason is DropReason.TORN
        ),
        None,
    )
    if truncated is None:
        return Problem(Reason.NO_STEPS, text, line)
    lines = formatting.count_noun(truncated.count, "line")
    return Problem(
        Reason.NO_STEPS,
        f"{text}; {lines} could not be read, the first is: {truncated.shown}",
        truncated.first_line,
    )


def _describe_missing_log(run: Run) -> str:
    """Describe a job without a log, and the file or folder it left."""
    path = run.found.logless_path
    remedy = ""
    if path is not None and run.found.logless_job is LoglessJob.FOLDER:
        remedy = f" in {path.name}; remove that folder if no job was ever started there"
    elif path is not None:
        remedy = f", only {path.name}"
    return (
        f"the job left no log: it is still queued, or died before it wrote one{remedy}"
    )


def find_problems(
    run: Run, choice: Choice, timing: Timing, baseline: Baseline, now: datetime
) -> tuple[Problem, ...]:
    """Return all problems of the chosen segment, causes first; empty if it is valid."""
    problems = [
        # Without a known configuration there is nothing to contradict.
        *(
            ()
            if baseline.key == NO_CONFIGURATION
            else configuration.find_problems(run, choice, timing, baseline)
        ),
        *_find_unreadable_attempts(run, choice),
        *_find_contradicted_times(choice),
        *find_not_finite(choice.segment.steps),
        *training.find_problems(run, choice, timing, baseline),
        *dropped_records.find_problems(choice, timing),
        *_find_unfinished(run, choice, baseline, now),
        *_find_newer_start(run, choice),
        *find_gaps(timing, baseline),
        *find_unit_mismatch(timing),
        *(
            _find_missing_losses(choice.segment.steps, baseline.window)
            if choice.attempt.log.prints_loss
            else ()
        ),
    ]
    if any(problem.reason in LACKING for problem in problems):  # put the cause first
        problems = [*_find_interleaved_writers(choice), *problems]
    return tuple(problems)


def _find_interleaved_writers(choice: Choice) -> Iterator[Problem]:
    """Yield a problem if two processes write into the log."""
    # No segment of such a log contains consecutive steps of one process, so steps are
    # missing.
    for dropped in choice.attempt.log.dropped:
        if dropped.reason is DropReason.INTERLEAVED:
            text = f"two processes write their steps into this file at once: {dropped.shown}"
            yield Problem(Reason.WINDOW_INCOMPLETE, text, dropped.first_line)


def _find_unreadable_attempts(run: Run, choice: Choice) -> Iterator[Problem]:
    """Yield a problem for each later attempt that cannot be read."""
    # A later attempt may be the decisive one: an older attempt must not replace it.
    for attempt in run.attempts[run.attempts.index(choice.attempt) + 1 :]:
        ending = attempt.log.ending
        if ending is not None and (
            ending.code is EndingCode.UNREADABLE
            or (ending.code is EndingCode.CUT and not attempt.log.segments)
        ):
            text = f"the later attempt {attempt.files.number} cannot be read: {ending.problem}"
            yield Problem(Reason.UNREADABLE, text)


def _find_contradicted_times(choice: Choice) -> Iterator[Problem]:
    """Yield a problem if other numbers in the log contradict the step times."""
    if choice.segment.doubt:
        yield Problem(
            Reason.TIMES_DISAGREE, choice.segment.doubt, choice.segment.last_line
        )


def _is_recently_modified(run: Run, now: datetime) -> bool:
    return run.found.modified is not None and now - run.found.modified < RECENT


def _find_unfinished(
    run: Run, choice: Choice, baseline: Baseline, now: datetime
) -> Iterator[Problem]:
    """Yield a problem if the chosen segment did not reach its last step."""
    segment, ending = choice.segment, choice.attempt.log.ending
    if is_finished(segment, baseline.steps):
        return
    total = segment.total_steps or baseline.steps
    of_total = "" if total == UNKNOWN_STEPS else f" of {total}"
    progress = f"stopped after step {int(segment.steps.index[-1])}{of_total}"
    line = int(segment.steps.line[-1])
    if ending is not None and not (ending.went_on and _is_recently_modified(run, now)):
        text = f"{progress}: {formatting.describe_ending(ending, choice.attempt.files.log.name)}"
        yield Problem(
            _choose_reason(ending, Reason.INCOMPLETE),
            text,
            line if ending.file else ending.line or line,
        )
    elif _is_recently_modified(run, now):
        yield Problem(
            Reason.STILL_RUNNING,
            f"{progress}; written minutes ago, probably still running",
            line,
        )
    else:
        yield Problem(Reason.INCOMPLETE, f"{progress}; the log shows no cause", line)


def _find_newer_start(run: Run, choice: Choice) -> Iterator[Problem]:
    """Yield a problem if a newer run in the same log died before its first step.

    The older run must not be judged in its place.
    """
    # A start without an error is only a note: a rank may print its first lines at exit.
    log, ending = choice.attempt.log, choice.attempt.log.ending
    if not is_restarted_without_steps(run, choice) or ending is None or ending.went_on:
        return
    if not ending.file and ending.line > log.begun_again_line:
        text = f"another process started after the last step (line {log.begun_again_line}), and logged no step"
        cause = formatting.describe_ending(ending, choice.attempt.files.log.name)
        yield Problem(
            _choose_reason(ending, Reason.INCOMPLETE), f"{text}: {cause}", ending.line
        )


def is_restarted_without_steps(run: Run, choice: Choice) -> bool:
    """True if a process without steps started after the judged segment.

    False unless that segment is the last one of the run.
    """
    is_last = (
        choice.attempt is run.attempts[-1]
        and choice.segment is choice.attempt.log.segments[-1]
    )
    return is_last and choice.attempt.log.begun_again_line > 0


def _choose_reason(ending: Ending, default: Reason) -> Reason:
    return (
        Reason.DIVERGED
        if ending.code is EndingCode.DIVERGED and not ending.went_on
        else default
    )


def _find_missing_losses(steps: Steps, window: Window) -> Iterator[Problem]:
    """Yield a problem if a step in or after the window prints no loss."""
    # Some programs omit the loss once it is not finite. Before the window it may be
    # missing: in half precision the first steps overflow, and are skipped, until the
    # loss scale fits. A gradient norm that is not finite there is a divergence
    # nevertheless (find_not_finite).
    lossless = ~steps.has_loss & (steps.index >= window.first)
    if lossless.any():
        rows = np.flatnonzero(lossless)
        text = f"{len(rows)} steps print no loss, first step {steps.index[rows[0]]}"
        yield Problem(Reason.LOSS_MISSING, text, int(steps.line[rows[0]]))


def find_not_finite(steps: Steps) -> Iterator[Problem]:
    """Yield a problem for each loss or gradient norm that becomes NaN or infinite.

    Steps outside the window count, too.
    """
    for name, values, printed in (
        ("loss", steps.loss, steps.has_loss),
        ("grad norm", steps.grad_norm, steps.has_grad_norm),
    ):
        bad = printed & ~np.isfinite(values)
        if bad.any():
            rows = np.flatnonzero(bad)
            text = f"{name} is {values[rows[0]]} from step {steps.index[rows[0]]} on ({len(rows)} steps)"
            yield Problem(Reason.DIVERGED, text, int(steps.line[rows[0]]))


def count_expected_steps(choice: Choice) -> int:
    """Return the expected number of steps of a run without a baseline.

    UNKNOWN_STEPS if the run died and its log prints no total.
    """
    segment, ending = choice.segment, choice.attempt.log.ending
    ended_normally = (
        ending is None or ending.went_on or ending.code is EndingCode.EXITED
    )
    died = not ended_normally and not segment.finished
    return (
        UNKNOWN_STEPS if died and segment.total_steps is None else count_steps(segment)
    )


def make_default_baseline(run: Run, window: Window, steps: int) -> Baseline:
    """Make a placeholder baseline that contains only the steps and the window.

    Its sizes are 0 and its step time is NaN (unknown), so it can be used to find
    problems of a run but not to compute metrics (`step_time_only`).
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
