"""Whether a run may be judged: what is wrong with it, in words, with the log line."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.measure import derive
from pytest_llmbench.measure.window import Choice, in_window, is_finished, is_traced, missing_steps
from pytest_llmbench.models import Baseline, Ending, Problem, Reason, Run, Steps

if TYPE_CHECKING:
    from pytest_llmbench.models import Floats

RECENT = timedelta(minutes=10)
"""An unfinished log that was written this recently probably belongs to a job that still runs."""

LONGEST_SECONDS = 1e6
"""A step time from here on (11 days) is no step time."""

KNOWN_FACTOR_BAND = 0.05
"""How far logged TFLOP/s may lie from computed ones where the recipe's factor between them is known."""

UNKNOWN_FACTOR_BAND = 0.2
"""The same where it is not: frameworks count FLOPs up to some percent differently."""

TOKENS_BAND = 0.02
"""How far logged tokens/s times step time may lie from sequence length times batch size: rounding of both."""

LARGEST_LOAD_RUN = 2
"""Steps of a run that only verifies the loading of a checkpoint (the documents say one)."""

CLAIMED_FIELDS = ("tp", "pp", "cp", "ep", "etp", "vp")


def exclusion(run: Run, choice: Choice | None) -> Problem | None:
    """Return why a run cannot be compared, by positive evidence: profiled, traced, or only loading a checkpoint."""
    if run.found.excluded is not None:
        return Problem(run.found.excluded, run.found.excluded_because)
    if choice is None:
        return None
    log = choice.attempt.log
    if is_traced(choice.attempt, choice.number):
        return Problem(Reason.TRACED, "the log holds NCCL trace records", log.nccl_line)
    if log.checkpoint_load_line and choice.segment.finished and len(choice.segment.steps) <= LARGEST_LOAD_RUN:
        text = f"it loaded a checkpoint and ran {len(choice.segment.steps)} step"
        return Problem(Reason.CHECKPOINT_LOAD, text, log.checkpoint_load_line)
    return None


def unusable(run: Run, baseline: Baseline, now: datetime) -> Problem:
    """Return the problem of a run without any step."""
    if not run.attempts:
        return Problem(Reason.NO_STEPS, "the job left no log: it still waits in the queue, or died before it wrote one")
    log = run.attempts[-1].log
    if log.ending:
        return Problem(Reason.NO_STEPS, f"no training step in the log: {log.ending.text}", log.ending.line)
    if _recent(run, now):
        return Problem(Reason.STILL_RUNNING, "no training step yet; probably still running")
    return Problem(Reason.NO_STEPS, f"no training step of dialect {baseline.dialect} in the log")


def problems(run: Run, choice: Choice, steps: Steps, baseline: Baseline, now: datetime) -> tuple[Problem, ...]:
    """Return all that is wrong with the chosen segment, the cause of the others first; empty when it is valid."""
    found = [
        *_wrong_configuration(run, steps, baseline),
        *_unread(run, choice),
        *not_finite(choice.segment.steps),
        *_unfinished(run, choice, baseline, now),
        *_window(choice, steps, baseline),
        *_unprinted(choice.segment.steps),
    ]
    return tuple(found)


def possible_seconds(baseline: Baseline) -> float:
    """Return the step time in seconds at 100 % MFU: no step of this configuration can be faster.

    Without a peak the smallest positive number: what can be excluded then is a step that takes no time.
    """
    if math.isnan(baseline.peak_tflops):
        return sys.float_info.min
    return derive.model_flops_utilization(baseline.configuration, 1.0, baseline.peak_tflops)


def _unread(run: Run, choice: Choice) -> Iterator[Problem]:
    """Yield later attempts that could not be read: they may be the ones that count."""
    for attempt in run.attempts[run.attempts.index(choice.attempt) + 1 :]:
        ending = attempt.log.ending
        if ending is not None and ending.code in ("unreadable", "compressed"):
            text = f"the later attempt {attempt.files.number} cannot be read: {ending.text}"
            yield Problem(Reason.UNREADABLE, text)


def _recent(run: Run, now: datetime) -> bool:
    return run.found.modified is not None and now - run.found.modified < RECENT


def _unfinished(run: Run, choice: Choice, baseline: Baseline, now: datetime) -> Iterator[Problem]:
    segment, ending = choice.segment, choice.attempt.log.ending
    if is_finished(segment, baseline.steps):
        return
    total = segment.total_steps or baseline.steps
    reached = f"stopped after step {int(segment.steps.index[-1])} of {total}"
    line = int(segment.steps.line[-1])
    if ending is not None:
        yield Problem(Reason.INCOMPLETE, f"{reached}: {_described(ending)}", ending.line or line)
    elif _recent(run, now):
        yield Problem(Reason.STILL_RUNNING, f"{reached}; written minutes ago, probably still running", line)
    else:
        yield Problem(Reason.INCOMPLETE, f"{reached}; the log does not say why", line)


def _described(ending: Ending) -> str:
    return f"{ending.code.replace('-', ' ')}: {ending.text}"


def _window(choice: Choice, steps: Steps, baseline: Baseline) -> Iterator[Problem]:
    missing = set(missing_steps(steps, baseline.window))
    impossible = missing - set(missing_steps(choice.segment.steps, baseline.window))
    if impossible:
        fastest = possible_seconds(baseline)
        rows = choice.segment.steps
        row = int(np.flatnonzero(np.isin(rows.index, list(impossible)))[0])
        bound = "" if math.isnan(baseline.peak_tflops) else f"; 100 % MFU would be {fastest:.4g} s"
        text = f"step {rows.index[row]} took {rows.seconds[row]:.4g} s{bound}"
        yield Problem(Reason.IMPOSSIBLE_SAMPLE, text, int(rows.line[row]))
    lost = missing - impossible
    if lost:
        window = baseline.window
        text = f"{len(lost)} of the steps {window.first} to {window.last} are missing: {_listed(lost)}"
        yield Problem(Reason.WINDOW_INCOMPLETE, text)


def _unprinted(steps: Steps) -> Iterator[Problem]:
    """Yield a loss that is not printed: some frameworks leave the field out once it is no number."""
    rows = np.flatnonzero(~steps.has_loss)
    if len(rows):
        text = f"{len(rows)} steps print no loss, first step {steps.index[rows[0]]}"
        yield Problem(Reason.LOSS_MISSING, text, int(steps.line[rows[0]]))


def _listed(numbers: set[int]) -> str:
    ordered = sorted(numbers)
    return ", ".join(map(str, ordered[:5])) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def not_finite(steps: Steps) -> Iterator[Problem]:
    """Yield where a printed loss or gradient norm is NaN or infinite, whether in the window or not."""
    for name, values, printed in (
        ("loss", steps.loss, steps.has_loss),
        ("grad norm", steps.grad_norm, steps.has_grad_norm),
    ):
        rows = np.flatnonzero(printed & ~np.isfinite(values))
        if len(rows):
            text = f"{name} is {values[rows[0]]} from step {steps.index[rows[0]]} on ({len(rows)} steps)"
            yield Problem(Reason.DIVERGED, text, int(steps.line[rows[0]]))


def _wrong_configuration(run: Run, steps: Steps, baseline: Baseline) -> Iterator[Problem]:
    configuration = baseline.configuration
    yield from _claims(run, baseline)
    batches = np.unique(steps.global_batch_size[np.isfinite(steps.global_batch_size)])
    wrong = batches[batches != configuration.global_batch_size]
    if len(wrong):
        row = int(np.flatnonzero(steps.global_batch_size == wrong[0])[0])
        text = f"global batch size {wrong[0]:g} in the log, {configuration.global_batch_size} in the baseline"
        yield Problem(Reason.WRONG_CONFIGURATION, text, int(steps.line[row]))
    yield from _triangulated(steps, baseline)


def _claims(run: Run, baseline: Baseline) -> Iterator[Problem]:
    configuration = baseline.configuration
    expected = {name: getattr(configuration.parallelism, name) for name in CLAIMED_FIELDS}
    expected |= {
        "global_batch_size": configuration.global_batch_size,
        "micro_batch_size": configuration.micro_batch_size,
        "sequence_length": configuration.architecture.sequence_length,
    }
    for clue in run.found.clues:
        value = expected.get(clue.field)
        if value is not None and clue.value != str(value):
            text = f"{clue.field.replace('_', ' ')} {clue.value} in {clue.source}, {value} in the baseline"
            yield Problem(Reason.WRONG_CONFIGURATION, text)


def _triangulated(steps: Steps, baseline: Baseline) -> Iterator[Problem]:
    configuration = baseline.configuration
    counted = in_window(steps, baseline.window)
    work = steps.tflops_per_gpu[counted] * steps.seconds[counted]
    expected = derive.tflops_per_gpu(configuration, 1.0) * (baseline.logged_tflops_factor or 1.0)
    band = KNOWN_FACTOR_BAND if baseline.logged_tflops_factor else UNKNOWN_FACTOR_BAND
    ratio = _middle(work) / expected
    if abs(ratio - 1) > band:
        text = (
            f"logged TFLOP/s x step time is {ratio:.3g} x what the baseline's model and batch need: "
            "another batch size, sequence length or number of layers"
        )
        yield Problem(Reason.WRONG_CONFIGURATION, text)
    tokens = _middle(steps.tokens_per_second_per_gpu[counted] * steps.seconds[counted]) * configuration.key.gpus
    wanted = configuration.architecture.sequence_length * configuration.global_batch_size
    if abs(tokens / wanted - 1) > TOKENS_BAND:
        text = (
            f"logged tokens/s x step time is {tokens:.6g} tokens a step on {configuration.key.gpus} GPUs, "
            f"the baseline has {wanted}: another batch size, sequence length or number of GPUs"
        )
        yield Problem(Reason.WRONG_CONFIGURATION, text)


def _middle(values: Floats) -> float:
    """Return the median of the finite values, NaN without any: a comparison with NaN raises no problem."""
    present = values[np.isfinite(values)]
    return float(np.median(present)) if len(present) else float("nan")
