"""What a reader should know of a measured run that makes it no worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Baseline, Window
from pytest_llmbench.core.codes import NoteCode, Observed
from pytest_llmbench.core.log_records import Checkpoints, Steps
from pytest_llmbench.core.run_records import DuplicateOf, Note, Run
from pytest_llmbench.runs.measure import configuration, dropped_records, training
from pytest_llmbench.runs.measure.attempts import Choice
from pytest_llmbench.runs.measure.validity import is_begun_again
from pytest_llmbench.runs.measure.window import Timing, is_inside, mask_window

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags


def list_notes(
    run: Run,
    choice: Choice,
    timed: Timing,
    baseline: Baseline,
    observed_work: Mapping[Observed, float],
) -> Iterator[Note]:
    """Yield what the judged segment and the log around it are worth a word for.

    `observed_work` is what `configuration.observe` yields.
    """
    yield from _note_times(timed, baseline.window)
    if is_begun_again(run, choice):
        line = choice.attempt.log.begun_again_line
        yield Note(
            NoteCode.BEGUN_AGAIN,
            "a process started after the last step and made none",
            line,
        )
    if choice.attempt.log.prints_loss:
        silent = ~timed.steps.has_loss & (timed.steps.index < baseline.window.first)
        text = "before the window without a loss, first step"
        yield from _note_steps(timed.steps, silent, NoteCode.LOSS_MISSING_BEFORE, text)
    elif not timed.steps.has_loss.all():
        yield Note(
            NoteCode.UNVERIFIED_LOSS,
            "the log prints no loss: it would not show that the run diverged",
        )
    yield from training.list_notes(run, choice, timed, baseline)
    yield from configuration.list_notes(timed, baseline, observed_work)
    yield from configuration.compare_power(run, choice, baseline)
    total = choice.segment.total_steps
    if int(timed.steps.index[-1]) != int(choice.segment.steps.index[-1]):
        yield Note(
            NoteCode.STEPS,
            f"by its few digits the log has about {total} steps; taken as the {baseline.steps} of the recipe",
        )
    elif total is not None and total != baseline.steps:
        yield Note(
            NoteCode.STEPS, f"the run has {total} steps, the recipe {baseline.steps}"
        )
    speeds = timed.steps.tokens_per_second_per_gpu[timed.usable & ~timed.filled]
    if (
        not np.isfinite(timed.steps.global_batch_size).any()
        and not np.isfinite(speeds[speeds > 0]).any()
    ):
        yield Note(
            NoteCode.UNVERIFIED_BATCH,
            "the log tells no batch size; it is taken from the configuration",
        )
    yield from _note_assumptions(run, baseline)
    yield from dropped_records.list_notes(choice, timed)


def find_leaks(steps: Steps, window: Window, width: int) -> Iterator[Note]:
    """Yield a note where the window holds moving means over the first step of the
    segment, which is always slow."""
    if width == 1:
        return
    first = int(steps.index[0])
    rows = np.flatnonzero(mask_window(steps, window) & (steps.index < first + width))
    if len(rows):
        text = f"the warm-up is in the window: up to step {steps.index[rows[-1]]} its values are means over step {first}"
        yield Note(NoteCode.MOVING_MEAN_WARM_UP, text, int(steps.line[rows[0]]))


def _note_times(timed: Timing, window: Window) -> Iterator[Note]:
    """Yield the steps whose time is none that was printed, or does not count."""
    # What that means for the window is a problem of its own.
    steps = timed.steps
    untimed = np.isnan(steps.seconds) & ~steps.asynchronous
    impossible = ~timed.usable & ~untimed & ~steps.asynchronous
    if impossible.any():
        text = f"{int(impossible.sum())} impossible steps (above 100 % MFU) set aside, first step"
        yield _note_first(steps, impossible, NoteCode.IMPOSSIBLE_STEPS, text)
    dispatched = steps.asynchronous & ~is_inside(steps, window)
    yield from _note_steps(
        steps,
        dispatched,
        NoteCode.ASYNCHRONOUS_DISPATCH,
        "only dispatched when timed, set aside; first step",
    )
    yield from _note_steps(
        steps, untimed, NoteCode.UNTIMED_STEPS, "without a time, set aside; first step"
    )
    yield from _note_averaged(timed.window)
    from_tokens = "without a printed time: it follows from tokens/s, first step"
    yield from _note_steps(
        steps, timed.filled & timed.counted, NoteCode.TIME_FROM_TOKENS, from_tokens
    )


def _note_averaged(window: Steps) -> Iterator[Note]:
    """Yield that the times in the window are not all those of single steps."""
    several = window.mean_of > 1
    if not several.any():
        return
    fewest, most = int(window.mean_of[several].min()), int(window.mean_of.max())
    many = f"{most}" if fewest == most else f"{fewest} to {most}"
    values = formatting.count_noun(len(window), "time")
    which = (
        "each time is the mean"
        if several.all()
        else f"{int(several.sum())} of {values} are the means"
    )
    count = f": {values} for {int(window.mean_of.sum())} steps" if several.all() else ""
    yield _note_first(
        window,
        several,
        NoteCode.INTERVAL_MEAN,
        f"{which} of {many} steps{count}; the first is at step",
    )


def _note_assumptions(run: Run, baseline: Baseline) -> Iterator[Note]:
    own = next((hint.value for hint in run.found.hints if hint.field == "release"), "")
    release = baseline.key.release
    by_name = (
        baseline.match is None
    )  # what is told apart by place and content is asked for nothing
    if (
        by_name
        and own
        and own.removeprefix("v") != release
        and not own.removeprefix("v").startswith(f"{release}.")
    ):
        yield Note(
            NoteCode.OTHER_RELEASE,
            f"a run of release {own}, judged against {release} as asked",
        )
    if run.identity.assumed:
        assumed = " and ".join(
            f"{name} {getattr(baseline.key, name)}" for name in run.identity.assumed
        )
        yield Note(NoteCode.ASSUMED, f"{assumed} assumed: nothing in the run says it")
    for text in run.identity.changes:
        yield Note(NoteCode.SETTING_CHANGED, text)
    for text in run.identity.one_sided:
        yield Note(NoteCode.SETTING_ONE_SIDED, text)


def _note_steps(
    steps: Steps, which: Flags, code: NoteCode, text: str
) -> Iterator[Note]:
    """Yield how many steps a mask of shape (n,) has, what is said of them, and which is
    the first; nothing of none."""
    if which.any():
        yield _note_first(
            steps,
            which,
            code,
            f"{formatting.count_noun(int(which.sum()), 'step')} {text}",
        )


def _note_first(steps: Steps, which: Flags, code: NoteCode, text: str) -> Note:
    row = int(np.argmax(which))
    return Note(code, f"{text} {steps.index[row]}", int(steps.line[row]))


def make_run_notes(run: Run, checkpoints: Checkpoints) -> Iterator[Note]:
    """Yield what is worth a word of the run as a whole: its checkpoint, and other jobs
    and files it may be mixed up with."""
    yield from _note_checkpoint(run, checkpoints)
    yield from _note_reports(run)
    yield from _note_coincidence(run)
    yield from _note_newer_jobs(run)


def _note_coincidence(run: Run) -> Iterator[Note]:
    """Yield that a run prints the same as another one, which honest runs may do."""
    copy_of = run.copy_of
    if copy_of is not None and not copy_of.certain:
        times = formatting.count_noun(copy_of.different_times, "different time")
        yield Note(
            NoteCode.SAME_STEPS,
            f"the same as {describe_duplicate(copy_of)}, but only {times}: two runs may "
            "print that",
        )


def _note_newer_jobs(run: Run) -> Iterator[Note]:
    """Yield the newer jobs that had no time to write a log: tonight's run may be one of
    them."""
    if run.starting:
        yield Note(
            NoteCode.NEWER_JOB,
            f"launched minutes ago, and no log yet: {formatting.join_first(run.starting)}",
        )


def _note_reports(run: Run) -> Iterator[Note]:
    """Yield the profiler's reports that no job id ties to a run: this one may have been
    profiled."""
    reports = run.found.loose_reports
    if reports:
        shown = formatting.join_first(reports)
        yield Note(
            NoteCode.PROFILER_REPORT,
            f"a profiler's report may be of this run, as it bears no job id: {shown}",
        )


def _note_checkpoint(run: Run, checkpoints: Checkpoints) -> Iterator[Note]:
    """Yield whether the checkpoint that a log says was saved is on disk, where its
    folder is there to be looked at."""
    line, shards = checkpoints.save_line, run.found.shards
    if not line or shards is None:
        return
    if shards.count:
        count = f"{'at least ' if shards.partial else ''}{formatting.count_noun(shards.count, '*.distcp file')}"
        yield Note(
            NoteCode.CHECKPOINT_SAVED,
            f"checkpoint saved: {count} in {shards.folder}",
            line,
        )
    elif not shards.partial:
        yield Note(
            NoteCode.CHECKPOINT_MISSING,
            f"saved by the log, but there is no *.distcp file in {shards.folder}",
            line,
        )


def describe_duplicate(copy_of: DuplicateOf) -> str:
    steps = formatting.count_noun(copy_of.steps, "step")
    return (
        f"{name_job(copy_of.job_id, copy_of.name)}: {steps} with the same time and loss"
    )


def name_job(job_id: str, name: str) -> str:
    return f"job {job_id} ({name})" if job_id else name
