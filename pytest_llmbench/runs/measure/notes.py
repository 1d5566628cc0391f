"""Notes on a measured run: facts worth knowing that do not fail it."""

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
from pytest_llmbench.runs.measure.validity import is_restarted_without_steps
from pytest_llmbench.runs.measure.window import Timing, is_inside, mask_window

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags


def list_notes(
    run: Run,
    choice: Choice,
    timing: Timing,
    baseline: Baseline,
    observed_work: Mapping[Observed, float],
) -> Iterator[Note]:
    """Yield the notes on the judged segment and its log.

    `observed_work` contains the values that `configuration.observe` yields.
    """
    yield from _list_timing_notes(timing, baseline.window)
    if is_restarted_without_steps(run, choice):
        line = choice.attempt.log.begun_again_line
        yield Note(
            NoteCode.BEGUN_AGAIN,
            "a process started after the last step and logged no step",
            line,
        )
    if choice.attempt.log.prints_loss:
        before_window = timing.steps.index < baseline.window.first
        without_loss = ~timing.steps.has_loss & before_window
        text = "before the window without a loss, first step"
        yield from _list_step_notes(
            timing.steps, without_loss, NoteCode.LOSS_MISSING_BEFORE, text
        )
    elif not timing.steps.has_loss.all():
        yield Note(
            NoteCode.UNVERIFIED_LOSS,
            "the log prints no loss, so a divergence would go unnoticed",
        )
    yield from training.list_notes(run, choice, timing, baseline)
    yield from configuration.list_notes(timing, baseline, observed_work)
    yield from configuration.compare_power(run, choice, baseline)
    yield from configuration.check_mfu_peak(choice.segment, baseline)
    total = choice.segment.total_steps
    last, printed_last = timing.steps.index[-1], choice.segment.steps.index[-1]
    if int(last) != int(printed_last):  # corrected by `window._apply_planned_steps`
        text = f"the log's rounded values suggest about {total} steps; assumed are the recipe's {baseline.steps}"
        yield Note(NoteCode.STEPS, text)
    elif total is not None and total != baseline.steps:
        text = f"the run has {total} steps, the recipe {baseline.steps}"
        yield Note(NoteCode.STEPS, text)
    speeds = timing.steps.tokens_per_second_per_gpu[timing.usable & ~timing.filled]
    prints_batch = np.isfinite(timing.steps.global_batch_size).any()
    prints_speed = np.isfinite(speeds[speeds > 0]).any()
    if not prints_batch and not prints_speed:
        yield Note(
            NoteCode.UNVERIFIED_BATCH,
            "the log prints no batch size; the configuration's is assumed",
        )
    yield from _list_assumption_notes(run, baseline)
    yield from dropped_records.list_notes(choice, timing)


def list_moving_mean_notes(steps: Steps, window: Window, width: int) -> Iterator[Note]:
    """Yield a note if the window contains moving means over the segment's first step.

    The first step of a segment is always slow.
    """
    if width == 1:
        return
    first = int(steps.index[0])
    includes_first = steps.index < first + width
    rows = np.flatnonzero(mask_window(steps, window) & includes_first)
    if len(rows):
        first_row, last_row = rows[0], rows[-1]
        text = f"the window contains warm-up: up to step {steps.index[last_row]} its values are means that include step {first}"
        yield Note(NoteCode.MOVING_MEAN_WARM_UP, text, int(steps.line[first_row]))


def _list_timing_notes(timing: Timing, window: Window) -> Iterator[Note]:
    """Yield notes on steps whose time is not printed or does not count."""
    # Such steps inside the window are also a problem (`window.find_gaps`).
    steps = timing.steps
    untimed = np.isnan(steps.seconds) & ~steps.asynchronous
    impossible = ~timing.usable & ~untimed & ~steps.asynchronous
    if impossible.any():
        text = f"{int(impossible.sum())} impossible steps (above 100 % MFU) set aside, first step"
        yield _make_first_step_note(steps, impossible, NoteCode.IMPOSSIBLE_STEPS, text)
    dispatched = steps.asynchronous & ~is_inside(steps, window)
    yield from _list_step_notes(
        steps,
        dispatched,
        NoteCode.ASYNCHRONOUS_DISPATCH,
        "timed only until dispatch, set aside; first step",
    )
    yield from _list_step_notes(
        steps, untimed, NoteCode.UNTIMED_STEPS, "without a time, set aside; first step"
    )
    yield from _list_averaging_notes(timing.window)
    from_tokens = "without a printed time (computed from tokens/s), first step"
    yield from _list_step_notes(
        steps, timing.filled & timing.counted, NoteCode.TIME_FROM_TOKENS, from_tokens
    )


def _list_averaging_notes(window: Steps) -> Iterator[Note]:
    """Yield a note if times in the window are means of several steps."""
    averaged = window.mean_of > 1
    if not averaged.any():
        return
    fewest, most = int(window.mean_of[averaged].min()), int(window.mean_of.max())
    width = f"{most}" if fewest == most else f"{fewest} to {most}"
    times = formatting.count_noun(len(window), "time")
    text = f"{int(averaged.sum())} of {times} are the means of {width} steps"
    if averaged.all():
        step_count = int(window.mean_of.sum())
        text = f"each time is the mean of {width} steps: {times} for {step_count} steps"
    text = f"{text}; the first is at step"
    yield _make_first_step_note(window, averaged, NoteCode.INTERVAL_MEAN, text)


def _list_assumption_notes(run: Run, baseline: Baseline) -> Iterator[Note]:
    """Yield notes on assumed fields, another release and changed settings."""
    stated_release = next(
        (hint.value for hint in run.found.hints if hint.field == "release"), ""
    )
    release, stated_number = baseline.key.release, stated_release.removeprefix("v")
    # "v25.04.1" is a patch of release "25.04"
    is_same = stated_number == release or stated_number.startswith(f"{release}.")
    # runs matched by path and content are not required to name a release
    matched_by_name = baseline.match is None
    if matched_by_name and stated_release and not is_same:
        yield Note(
            NoteCode.OTHER_RELEASE,
            f"a run of release {stated_release}, judged against {release} as requested",
        )
    if run.identity.assumed:
        assumed = " and ".join(
            f"{name} {getattr(baseline.key, name)}" for name in run.identity.assumed
        )
        yield Note(NoteCode.ASSUMED, f"{assumed} assumed: the run does not state it")
    for text in run.identity.changes:
        yield Note(NoteCode.SETTING_CHANGED, text)
    for text in run.identity.one_sided:
        yield Note(NoteCode.SETTING_ONE_SIDED, text)


def _list_step_notes(
    steps: Steps, mask: Flags, code: NoteCode, text: str
) -> Iterator[Note]:
    """Yield a note with the number of masked steps and the first of these steps.

    Yields nothing for an empty mask. `mask` has shape (n,).
    """
    if mask.any():
        count = formatting.count_noun(int(mask.sum()), "step")
        yield _make_first_step_note(steps, mask, code, f"{count} {text}")


def _make_first_step_note(steps: Steps, mask: Flags, code: NoteCode, text: str) -> Note:
    """Make a note at the first masked step, whose number is appended to `text`."""
    row = int(np.argmax(mask))
    return Note(code, f"{text} {steps.index[row]}", int(steps.line[row]))


def list_run_notes(run: Run, checkpoints: Checkpoints) -> Iterator[Note]:
    """Yield notes on the whole run: its checkpoint, and related jobs and files."""
    yield from _list_checkpoint_notes(run, checkpoints)
    yield from _list_report_notes(run)
    yield from _list_duplicate_notes(run)
    yield from _list_newer_job_notes(run)


def _list_duplicate_notes(run: Run) -> Iterator[Note]:
    """Yield a note if the steps match another run's, which may be a coincidence."""
    duplicate = run.duplicate_of
    if duplicate is not None and not duplicate.certain:
        times = formatting.count_noun(duplicate.different_times, "different time")
        yield Note(
            NoteCode.SAME_STEPS,
            f"the same as {describe_duplicate(duplicate)}, but only {times}: it may be a "
            "coincidence",
        )


def _list_newer_job_notes(run: Run) -> Iterator[Note]:
    """Yield a note on newer jobs without a log yet: the latest run may be one of them."""
    if run.starting:
        yield Note(
            NoteCode.NEWER_JOB,
            f"launched minutes ago, no log yet: {formatting.join_first(run.starting)}",
        )


def _list_report_notes(run: Run) -> Iterator[Note]:
    """Yield a note on profiler reports without a job id: they may belong to this run."""
    reports = run.found.loose_reports
    if reports:
        listed = formatting.join_first(reports)
        yield Note(
            NoteCode.PROFILER_REPORT,
            f"a profiler report without a job id may belong to this run: {listed}",
        )


def _list_checkpoint_notes(run: Run, checkpoints: Checkpoints) -> Iterator[Note]:
    """Yield a note on whether the saved checkpoint is on disk.

    Yields nothing if the log reports no save or the checkpoint folder was not found.
    """
    line, shards = checkpoints.save_line, run.found.shards
    if not line or shards is None:
        return
    if shards.count:
        count = formatting.count_noun(shards.count, "*.distcp file")
        if shards.partial:
            count = f"at least {count}"
        text = f"checkpoint saved: {count} in {shards.folder}"
        yield Note(NoteCode.CHECKPOINT_SAVED, text, line)
    elif not shards.partial:
        text = f"the log reports a saved checkpoint, but there is no *.distcp file in {shards.folder}"
        yield Note(NoteCode.CHECKPOINT_MISSING, text, line)


def describe_duplicate(duplicate: DuplicateOf) -> str:
    """Name the run with the same steps, and the number of these steps."""
    steps = formatting.count_noun(duplicate.steps, "step")
    return f"{name_job(duplicate.job_id, duplicate.name)}: {steps} with the same time and loss"


def name_job(job_id: str, name: str) -> str:
    """Return `job 123 (name)`, or the name if the job id is unknown."""
    return f"job {job_id} ({name})" if job_id else name
