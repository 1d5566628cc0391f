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

INCOMPLETE_REASONS = (Reason.WINDOW_INCOMPLETE, Reason.INCOMPLETE, Reason.STILL_RUNNING)
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
    profiler = configuration.find_profiler(choice)
    if profiler:
        text = "the log shows that a profiler was switched on or off"
        return Problem(Reason.PROFILED, text, profiler.line)
    if is_traced(choice.attempt, choice.number):
        return Problem(
            Reason.TRACED, "the log contains NCCL trace records", log.nccl_line
        )
    if log.checkpoints.load_line and choice.segment.finished:
        # sum the steps per line: a long run may print only every tenth step
        step_count = int(choice.segment.steps.mean_of.sum())
        segment_step_counts = [
            int(segment.steps.mean_of.sum())
            for attempt in run.attempts
            for segment in attempt.log.segments
            if len(segment.steps)
        ]
        # a run with a longer segment continued training
        if all(count <= LARGEST_LOAD_RUN for count in segment_step_counts):
            text = f"it loaded a checkpoint and ran {step_count} step"
            return Problem(Reason.CHECKPOINT_LOAD, text, log.checkpoints.load_line)
    return None


def explain_no_steps(run: Run, baseline: Baseline, now: datetime) -> Problem:
    """Return the problem of a run without steps."""
    if not run.attempts:
        return Problem(Reason.NO_STEPS, _describe_missing_log(run))
    files, log = run.attempts[-1].files, run.attempts[-1].log
    ending = log.ending
    if ending and ending.code is EndingCode.UNREADABLE:
        return Problem(Reason.UNREADABLE, ending.problem)
    if ending:
        text = f"no training step in the log: {formatting.describe_ending(ending, files.log.name)}"
        reason = _choose_reason(ending, default=Reason.NO_STEPS)
        # `ending.file` names another file than the log, such as standard error
        return Problem(reason, text, 0 if ending.file else ending.line)
    unparsed = next(
        (unread for unread in log.unread if unread.dialect == baseline.dialect), None
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
        (dropped for dropped in log.dropped if dropped.reason is DropReason.TORN), None
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
    problems: list[Problem] = []
    # Without a known configuration there is nothing to contradict.
    if baseline.key != NO_CONFIGURATION:
        problems += configuration.find_problems(run, choice, timing, baseline)
    problems += [
        *_find_unreadable_attempts(run, choice),
        *_find_contradicted_times(choice),
        *find_not_finite(choice.segment.steps),
        *training.find_problems(run, choice, timing, baseline),
        *dropped_records.find_problems(choice, timing),
        *_find_unfinished(run, choice, baseline, now),
        *_find_newer_start(run, choice),
        *find_gaps(timing, baseline),
        *find_unit_mismatch(timing),
    ]
    if choice.attempt.log.prints_loss:
        problems += _find_missing_losses(choice.segment.steps, baseline.window)
    if any(problem.reason in INCOMPLETE_REASONS for problem in problems):
        # the cause comes first
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
        if ending is None:
            continue
        is_cut_early = ending.code is EndingCode.CUT and not attempt.log.segments
        if ending.code is EndingCode.UNREADABLE or is_cut_early:
            text = f"the later attempt {attempt.files.number} cannot be read: {ending.problem}"
            yield Problem(Reason.UNREADABLE, text)


def _find_contradicted_times(choice: Choice) -> Iterator[Problem]:
    """Yield a problem if other numbers in the log contradict the step times."""
    if choice.segment.doubt:
        yield Problem(
            Reason.TIMES_DISAGREE, choice.segment.doubt, choice.segment.last_line
        )


def _is_recently_modified(run: Run, now: datetime) -> bool:
    """True if the log was modified within the last ten minutes."""
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
    last_line = int(segment.steps.line[-1])
    is_recent = _is_recently_modified(run, now)
    # If steps follow the ending, it may be only a warning in a run that continues.
    may_continue = ending is not None and ending.went_on and is_recent
    if ending is not None and not may_continue:
        text = f"{progress}: {formatting.describe_ending(ending, choice.attempt.files.log.name)}"
        line = ending.line
        if ending.file or not line:  # the ending is in another file, or in no line
            line = last_line
        yield Problem(_choose_reason(ending, default=Reason.INCOMPLETE), text, line)
    elif is_recent:
        text = f"{progress}; written minutes ago, probably still running"
        yield Problem(Reason.STILL_RUNNING, text, last_line)
    else:
        text = f"{progress}; the log shows no cause"
        yield Problem(Reason.INCOMPLETE, text, last_line)


def _find_newer_start(run: Run, choice: Choice) -> Iterator[Problem]:
    """Yield a problem if a newer run in the same log died before its first step.

    The older run must not be judged in its place.
    """
    # A start without an error is only a note: a rank may print its first lines at exit.
    log, ending = choice.attempt.log, choice.attempt.log.ending
    if not is_restarted_without_steps(run, choice) or ending is None or ending.went_on:
        return
    died_after_start = not ending.file and ending.line > log.begun_again_line
    if died_after_start:
        text = f"another process started after the last step (line {log.begun_again_line}), and logged no step"
        cause = formatting.describe_ending(ending, choice.attempt.files.log.name)
        reason = _choose_reason(ending, default=Reason.INCOMPLETE)
        yield Problem(reason, f"{text}: {cause}", ending.line)


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
    """Return DIVERGED if the run ended because it diverged, else `default`."""
    if ending.code is EndingCode.DIVERGED and not ending.went_on:
        return Reason.DIVERGED
    return default


def _find_missing_losses(steps: Steps, window: Window) -> Iterator[Problem]:
    """Yield a problem if a step in or after the window prints no loss."""
    # Some programs omit the loss once it is not finite. Before the window it may be
    # missing: in half precision the first steps overflow, and are skipped, until the
    # loss scale fits. A gradient norm that is not finite there is a divergence
    # nevertheless (find_not_finite).
    rows = np.flatnonzero(~steps.has_loss & (steps.index >= window.first))
    if len(rows):
        first_row = rows[0]
        text = f"{len(rows)} steps print no loss, first step {steps.index[first_row]}"
        yield Problem(Reason.LOSS_MISSING, text, int(steps.line[first_row]))


def find_not_finite(steps: Steps) -> Iterator[Problem]:
    """Yield a problem for each loss or gradient norm that becomes NaN or infinite.

    Steps outside the window count, too.
    """
    for name, values, printed in (
        ("loss", steps.loss, steps.has_loss),
        ("grad norm", steps.grad_norm, steps.has_grad_norm),
    ):
        rows = np.flatnonzero(printed & ~np.isfinite(values))
        if len(rows):
            first_row = rows[0]
            text = f"{name} is {values[first_row]} from step {steps.index[first_row]} on ({len(rows)} steps)"
            yield Problem(Reason.DIVERGED, text, int(steps.line[first_row]))


def count_expected_steps(choice: Choice) -> int:
    """Return the expected number of steps of a run without a baseline.

    UNKNOWN_STEPS if the run died and its log prints no total.
    """
    segment, ending = choice.segment, choice.attempt.log.ending
    ended_normally = (
        ending is None or ending.went_on or ending.code is EndingCode.EXITED
    )
    died = not ended_normally and not segment.finished
    if died and segment.total_steps is None:
        return UNKNOWN_STEPS
    return count_steps(segment)


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
    configuration_without_sizes = Configuration(
        NO_CONFIGURATION, model, Parallelism(), global_batch_size=0
    )
    return Baseline(
        configuration=configuration_without_sizes,
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
