"""Self-test of the gate: damaged copies of passed runs must fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.judgement_records import Evidence, Judgement
from pytest_llmbench.core.log_records import (
    ArraySteps,
    Segment,
    StatedField,
    Steps,
    replace_columns,
)
from pytest_llmbench.core.outcome_records import Check, CheckKind, Finding, Status
from pytest_llmbench.core.run_records import Attempt, Measurement, Run
from pytest_llmbench.judge.final_verdict import judge_evidence
from pytest_llmbench.judge.item_status import decide_status
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.session.outcomes import JudgedConfigurations
from pytest_llmbench.session.settings import Settings

Damage = Callable[[Segment, Measurement], Segment | None]
"""Returns the damaged segment, or None if the log cannot express the damage."""

Decide = Callable[[Evidence], tuple[Judgement, Status]]
"""Returns the verdict and the status of the item."""


# If the error is unknown, the detectable slowdown is exactly at the bound.
JUST_BEYOND = 1 + 1e-6
# Rounding is a larger fraction of a shorter time, which widens its interval.
WELL_BELOW = 0.97


class Mutant(Struct, frozen=True):
    """The verdict on one damaged copy; `caught` is None if the log cannot express the
    damage."""

    name: str
    caught: bool | None
    outcome: str


class SelfTest(Struct, frozen=True):
    """The damaged copies of one item's run.

    `detectable` is the smallest slowdown that the run detects, as a fraction.
    """

    id: str
    detectable: float
    mutants: tuple[Mutant, ...]

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """The damaged copies that passed."""
        return tuple(mutant for mutant in self.mutants if mutant.caught is False)


def run_selftests(judged: JudgedConfigurations, settings: Settings) -> Iterator[Check]:
    """Yield a self-test of each passed run, against the deciding baseline."""

    def judge_alone(item: Evidence) -> tuple[Judgement, Status]:
        judgement = judge_evidence(item, alone=True)
        return judgement, decide_status(judgement, settings.rules)

    def judge_with_others(item: Evidence) -> tuple[Judgement, Status]:
        judgement = judge_evidence(item, alone=False)
        return judgement, decide_status(judgement, settings.rules)

    for name, (result, evidence) in judged.by_id.items():
        if decide_status(result.judgement, settings.rules) is not Status.PASSED:
            continue
        # With --llmb-runs=each, every run has its own item.
        decide = judge_alone if result.case.run_id else judge_with_others
        tested = run_selftest(
            name, result.pick_deciding(evidence), result.judgement, decide
        )
        if tested is not None:
            yield _make_check(tested)


def _make_check(tested: SelfTest) -> Check:
    """Return the item of a self-test; it fails if a damaged copy passed."""
    survivors = tested.survivors
    caught = [mutant for mutant in tested.mutants if mutant.caught]
    untestable = [mutant.name for mutant in tested.mutants if mutant.caught is None]
    detectable = formatting.format_difference(1 + tested.detectable)
    text = f"caught {len(caught)} of {len(caught) + len(survivors)}; detects {detectable} or more"
    if survivors:
        text += f"; survived: {formatting.join_first([mutant.name for mutant in survivors])}"
    if untestable:
        text += f"; not testable: {formatting.join_first(untestable)}"
    return Check(
        kind=CheckKind.SELFTEST,
        id=tested.id,
        status=Status.FAILED if survivors else Status.PASSED,
        verdict=Finding.SURVIVED if survivors else Finding.CAUGHT,
        text=text,
        lines=tuple(_list_lines(tested.mutants)),
        decides=True,
    )


def _list_lines(mutants: tuple[Mutant, ...]) -> Iterator[str]:
    """Yield a line for each damaged copy: its name, whether it was caught, its verdict."""
    for mutant in mutants:
        word = {True: "caught", False: "SURVIVED", None: "not testable"}[mutant.caught]
        yield f"  {mutant.name:<36} {word:<13} {mutant.outcome}"


def run_selftest(
    identifier: str, evidence: Evidence, judgement: Judgement, decide: Decide
) -> SelfTest | None:
    """Judge damaged copies of a passed run; None if nothing was compared."""
    newest, estimate = judgement.measurement, judgement.estimate
    if newest is None or estimate is None:
        return None
    # Slow down the runs from their time to the smallest slowdown that they detect.
    # `difference` is the logarithm of the ratio of the run's time to the baseline's, so
    # `to_baseline` changes the run's time to the baseline's.
    to_baseline = float(np.exp(-estimate.difference))
    factor = (1 + estimate.detectable) * JUST_BEYOND * to_baseline
    name = f"slowed to {formatting.format_difference(1 + estimate.detectable)}"
    mutants = [
        _judge_damaged(name, judgement.runs, slow_down(factor), evidence, decide)
    ]
    if evidence.plausible is not None:
        # Speed up the runs until even the upper end of the interval is implausible.
        upper_end_to_baseline = float(np.exp(-estimate.high))
        factor = (1 - evidence.plausible) * upper_end_to_baseline * WELL_BELOW
        name = "too fast to be true"
        mutants.append(
            _judge_damaged(name, judgement.runs, slow_down(factor), evidence, decide)
        )
    # Damage the newest run in other ways.
    mutants += [
        _judge_damaged(name, (newest,), change, evidence, decide)
        for name, change in CHANGES.items()
    ]
    return SelfTest(identifier, estimate.detectable, tuple(mutants))


def _judge_damaged(
    name: str,
    runs: tuple[Measurement, ...],
    change: Damage,
    evidence: Evidence,
    decide: Decide,
) -> Mutant:
    """Judge a configuration again, with damaged copies in place of some runs."""
    damaged_runs = {
        id(measurement): _apply_damage(measurement, change) for measurement in runs
    }
    is_impossible = None in damaged_runs.values()
    if is_impossible:
        return Mutant(name, None, "this log cannot express it")
    measurements = []
    for measurement in evidence.measurements:
        damaged_run = damaged_runs.get(id(measurement))
        if damaged_run is None:
            measurements.append(measurement)
        else:
            baseline = measurement.baseline
            measurements.append(measure(damaged_run, baseline, evidence.now))
    judgement, status = decide(replace(evidence, measurements=tuple(measurements)))
    outcome = f"{judgement.verdict} ({judgement.reason})"
    return Mutant(name, caught=status is Status.FAILED, outcome=outcome)


def _apply_damage(measurement: Measurement, change: Damage) -> Run | None:
    """Return the run with only the judged segment, damaged; None if impossible."""
    run = measurement.run
    attempt = next(
        attempt
        for attempt in run.attempts
        if attempt.files.number == measurement.attempt
    )
    segment = change(attempt.log.segments[measurement.segment - 1], measurement)
    if segment is None:
        return None
    # The judged segment is not traced; only other segments may be.
    log = replace(attempt.log, segments=(segment,), nccl_line=0, nccl_last_line=0)
    return replace(run, attempts=(Attempt(attempt.files, log),))


# --- damage ---------------------------------------------------------------------------


def slow_down(factor: float) -> Damage:
    """Return a damage that multiplies all step times and adapts the derived values."""

    def change(segment: Segment, _: Measurement) -> Segment:
        steps = segment.steps
        return _replace_columns(
            segment,
            seconds=steps.seconds * factor,
            tflops_per_gpu=steps.tflops_per_gpu / factor,
            tokens_per_second_per_gpu=steps.tokens_per_second_per_gpu / factor,
        )

    return change


def set_nan_loss(segment: Segment, measurement: Measurement) -> Segment | None:
    """Set the loss to NaN from the middle of the window on."""
    # A step without a printed loss cannot have a NaN either.
    steps = segment.steps
    bad = steps.has_loss & (steps.index >= _find_middle(measurement))
    return (
        _replace_columns(segment, loss=np.where(bad, np.nan, steps.loss))
        if bad.any()
        else None
    )


def truncate(segment: Segment, measurement: Measurement) -> Segment:
    """End the log in the middle of the window."""
    steps = _keep_steps(segment.steps, segment.steps.index < _find_middle(measurement))
    return replace(segment, steps=steps, finished=False)


def read_as_milliseconds(segment: Segment, measurement: Measurement) -> Segment | None:
    """Misread the unit of the step times."""
    # Missing step times are derived from tokens/s, which have no such unit.
    is_in_window = np.isin(segment.steps.index, measurement.window_steps)
    if np.isnan(segment.steps.seconds[is_in_window]).all():
        return None
    return _replace_columns(segment, seconds=segment.steps.seconds / 1000)


def remove_window(segment: Segment, measurement: Measurement) -> Segment:
    """Remove the steps of the window, but keep the steps around it."""
    window, index = measurement.baseline.window, segment.steps.index
    return replace(
        segment,
        steps=_keep_steps(
            segment.steps, (index < window.first) | (index > window.last)
        ),
    )


def double_batch(segment: Segment, _: Measurement) -> Segment | None:
    """Double the batch size and all values that the log derives from it."""
    steps = segment.steps
    columns = (
        steps.global_batch_size,
        steps.tokens_per_second_per_gpu,
        steps.tflops_per_gpu,
    )
    if not any(np.isfinite(column).any() for column in columns):
        return None
    return _replace_columns(
        segment,
        global_batch_size=steps.global_batch_size * 2,
        tokens_per_second_per_gpu=steps.tokens_per_second_per_gpu * 2,
        tflops_per_gpu=steps.tflops_per_gpu * 2,
    )


def freeze_weights(segment: Segment, _: Measurement) -> Segment | None:
    """Make the log show that no step changed the weights.

    Sets the learning rate to 0. Without a learning rate, sets the gradient norm to 0 and
    the loss to a constant. Without a gradient norm, negates the loss.
    """
    steps, fields = segment.steps, {claim.field for claim in segment.stated}
    if np.isfinite(steps.learning_rate).any():
        return _replace_columns(segment, learning_rate=steps.learning_rate * 0)
    # The gate does not check the gradient norm if the log states an engine.
    if steps.has_grad_norm.any() and StatedField.ENGINE not in fields:
        # The first printed loss: a NaN would be caught as a divergence instead.
        losses = steps.loss[np.isfinite(steps.loss)]
        frozen = np.full_like(steps.loss, losses[0]) if len(losses) else steps.loss
        return _replace_columns(segment, grad_norm=steps.grad_norm * 0, loss=frozen)
    # A cross-entropy is never negative. The loss of training on rewards may be.
    may_be_negative = segment.rewards or StatedField.OBJECTIVE in fields
    if may_be_negative or not (steps.loss[steps.has_loss] > 0).any():
        return None
    return _replace_columns(segment, loss=-steps.loss)


def double_world_size(segment: Segment, _: Measurement) -> Segment | None:
    """Double the stated number of GPUs, if the log states it."""
    if not any(claim.field == StatedField.GPUS for claim in segment.stated):
        return None
    stated = (
        replace(claim, value=str(2 * int(claim.value)))
        if claim.field == StatedField.GPUS
        else claim
        for claim in segment.stated
    )
    return replace(segment, stated=tuple(stated))


CHANGES: dict[str, Damage] = {
    "NaN loss": set_nan_loss,
    "truncated": truncate,
    "seconds read as milliseconds": read_as_milliseconds,
    "missing window": remove_window,
    "another batch size": double_batch,
    "another number of GPUs": double_world_size,
    "nothing learned": freeze_weights,
}


def _find_middle(measurement: Measurement) -> int:
    """Return the number of the step in the middle of the window."""
    window = measurement.baseline.window
    return (window.first + window.last + 1) // 2


def _replace_columns(segment: Segment, **columns: Any) -> Segment:
    """Return the segment with other values in some columns of its steps."""
    return replace(segment, steps=replace_columns(segment.steps, **columns))


def _keep_steps(steps: Steps, mask: object) -> Steps:
    """Return the steps for which the mask is true."""
    names = (field.name for field in dataclasses.fields(steps))
    return ArraySteps(**{name: getattr(steps, name)[mask] for name in names})
