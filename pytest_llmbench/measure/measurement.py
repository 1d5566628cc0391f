"""From a run and a baseline to what the run measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.measure import checks, metrics
from pytest_llmbench.measure.moving import moving_mean
from pytest_llmbench.measure.window import Choice, choose_segment, in_window, statistic
from pytest_llmbench.models import Baseline, Measurement, Metric, Note, Problem, Run, Steps, Window

if TYPE_CHECKING:
    from pytest_llmbench.models import Flags, Floats

DROPPED = {
    "torn": "{} torn records dropped",
    "repeated": "{} steps printed again",
    "repeat-disagrees": "{} steps printed again with another time; the slower counts",
    "other-rank": "{} steps of other ranks",
    "other-dialect": "{} records of another dialect",
    "unknown-step": "{} records without a certain step number",
}
"""What the reasons of the parse stage mean, for a count."""


def measure(run: Run, baseline: Baseline, now: datetime) -> Measurement:
    """Return what `run` measured over the baseline's window, or why it cannot be judged.

    Steps that are faster than 100 % MFU are set aside and noted; in the window they make the run invalid.
    """
    choice = choose_segment(run.attempts, baseline.window, baseline.steps)
    excluded = checks.exclusion(run, choice)
    if choice is None:
        problem = checks.unusable(run, baseline, now)
        return _unmeasured(run, baseline, (problem,) if excluded is None else (), excluded)
    steps = _possible(choice.segment.steps, baseline)
    counted = in_window(steps, baseline.window)
    found = () if excluded else checks.problems(run, choice, steps, baseline, now)
    seconds = statistic(steps.seconds[counted], baseline.window.statistic) if counted.any() else None
    width = moving_mean(choice.segment.steps)
    return Measurement(
        run=run,
        baseline=baseline,
        log=choice.attempt.files.log,
        attempt=choice.attempt.files.number,
        segment=choice.number,
        statistic_seconds=seconds,
        last_step_seconds=float(steps.seconds[-1]) if len(steps) else None,
        window_seconds=tuple(steps.seconds[counted].tolist()),
        metrics=_metrics(choice, baseline, steps, counted, seconds),
        window_steps=tuple(steps.index[counted].tolist()),
        window_lines=tuple(steps.line[counted].tolist()),
        moving_mean=width,
        resolution_seconds=_typical(steps.resolution_seconds[counted]),
        expected=metrics.expected(baseline),
        problems=found,
        notes=(*_notes(run, choice, steps, baseline), *_leaks(choice.segment.steps, baseline.window, width)),
        excluded=excluded,
    )


def _typical(values: Floats) -> float:
    """Return the median, so that one slow step, which prints fewer digits, does not make the others coarse."""
    return float(np.median(values)) if len(values) else 0.0


def _unmeasured(run: Run, baseline: Baseline, found: tuple[Problem, ...], excluded: Problem | None) -> Measurement:
    return Measurement(
        run=run,
        baseline=baseline,
        log=run.attempts[-1].files.log if run.attempts else None,
        attempt=run.attempts[-1].files.number if run.attempts else 0,
        segment=0,
        statistic_seconds=None,
        last_step_seconds=None,
        window_seconds=(),
        metrics=(),
        problems=found,
        excluded=excluded,
    )


def _metrics(
    choice: Choice, baseline: Baseline, steps: Steps, counted: Flags, seconds: float | None
) -> tuple[Metric, ...]:
    measured = metrics.of_window(baseline, steps, counted, seconds) if seconds is not None else ()
    return (*measured, *metrics.of_checkpoints(choice.attempt.log))


def _possible(steps: Steps, baseline: Baseline) -> Steps:
    """Return the steps without those that are faster than the hardware can be, or that no job outlives."""
    keep = (steps.seconds >= checks.possible_seconds(baseline)) & (steps.seconds < checks.LONGEST_SECONDS)
    if keep.all():
        return steps
    columns = (field.name for field in dataclasses.fields(steps))
    return Steps(**{name: getattr(steps, name)[keep] for name in columns})


def _leaks(steps: Steps, window: Window, width: int) -> Iterator[Note]:
    """Yield a note where the window holds moving means over the first step of the segment, which is always slow."""
    first = int(steps.index[0])
    rows = np.flatnonzero(in_window(steps, window) & (steps.index < first + width))
    if width > 1 and len(rows):
        text = (
            f"the warm-up is in the window: up to step {steps.index[rows[-1]]} its values are means over step {first}"
        )
        yield Note("moving-mean-warm-up", text, int(steps.line[rows[0]]))


def _notes(run: Run, choice: Choice, steps: Steps, baseline: Baseline) -> tuple[Note, ...]:
    notes: list[Note] = []
    whole = choice.segment.steps
    if len(steps) < len(whole):
        row = int(np.flatnonzero(~np.isin(whole.index, steps.index))[0])
        text = f"{len(whole) - len(steps)} impossible steps (above 100 % MFU) set aside, first step {whole.index[row]}"
        notes.append(Note("impossible-steps", text, int(whole.line[row])))
    if len(run.attempts) > 1:
        text = f"restarted: {len(run.attempts)} attempts, the one numbered {choice.attempt.files.number} is judged"
        notes.append(Note("attempts", text))
    segments = len(choice.attempt.log.segments)
    if segments > 1:
        notes.append(
            Note("segments", f"part {choice.number} of {segments} in the log is judged", choice.segment.first_line)
        )
    total = choice.segment.total_steps
    if total is not None and total != baseline.steps:
        notes.append(Note("steps", f"the run has {total} steps, the recipe {baseline.steps}"))
    if not np.isfinite(steps.global_batch_size).any() and not np.isfinite(steps.tokens_per_second_per_gpu).any():
        notes.append(Note("unverified-batch", "the log tells no batch size; it is taken from the configuration"))
    own = next((clue.value for clue in run.found.clues if clue.field == "release"), "")
    release = baseline.key.release
    if own and own.removeprefix("v") != release and not own.removeprefix("v").startswith(f"{release}."):
        notes.append(Note("other-release", f"a run of release {own}, judged against {release} as asked"))
    if run.identity.assumed:
        assumed = " and ".join(f"{name} {getattr(baseline.key, name)}" for name in run.identity.assumed)
        notes.append(Note("assumed", f"{assumed} assumed: nothing in the run says it"))
    for dropped in choice.attempt.log.dropped:
        text = DROPPED.get(dropped.reason, f"{{}} records dropped ({dropped.reason})").format(dropped.count)
        notes.append(Note(dropped.reason, f"{text}; the first: {dropped.example}", dropped.first_line))
    return tuple(notes)
