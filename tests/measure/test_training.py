"""Whether a run trained: tables over columns, with what must not be taken for a run that did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from builders import BASELINE, NOW, at, log, run, segment, steps

from pytest_llmbench.core.models import Measurement, Reason, Segment, StatedField, Statement
from pytest_llmbench.measure import measure

Judge = Callable[[], Measurement]

EVERY = np.ones(50, dtype=bool)
FALLING = 12.0 - 0.01 * np.arange(50)


def judged(
    dialect: str = "nemo2", *, digits: int = 4, made: dict[str, Any] | None = None, **columns: Any
) -> Measurement:
    """Return what is measured of a run with these columns, each a number or 50 of them."""
    arrays: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(value, dtype=float), 50) for name, value in columns.items()
    }
    if "grad_norm" in arrays:
        arrays["has_grad_norm"] = EVERY
    part = replace(segment(steps(**arrays)), loss_digits=digits, **(made or {}))
    return measure(run(replace(log(part), dialect=dialect)), BASELINE, NOW)


def reasons(measurement: Measurement) -> set[Reason]:
    return {problem.reason for problem in measurement.problems}


def codes(measurement: Measurement) -> set[str]:
    return {note.code for note in measurement.notes}


def stated(field: StatedField) -> dict[str, Any]:
    return {"stated": (Statement(field, "x", 3),)}


CHANGING = 1 + np.arange(50) % 7 / 10
LATE = np.arange(50) >= 11

UNTRAINED: dict[str, Judge] = {
    "loss of 0 in significant digits": partial(judged, loss=0.0, digits=2),
    "loss of 0 in megatron": partial(judged, "megatron", loss=0.0, digits=7),
    "loss of 0 in decimals, and no gradient": partial(judged, "maxtext", loss=0.0, grad_norm=0.0),
    "constant in six digits": partial(judged, loss=11.0312, digits=6),
    "constant from the window on": partial(judged, loss=np.where(LATE, 11.0312, FALLING), digits=6),
    "constant in four digits, and so is the gradient": partial(judged, loss=11.03, grad_norm=1.5),
    "constant in four digits, and no learning rate": partial(judged, loss=11.03, learning_rate=0.0),
    "no gradient": partial(judged, grad_norm=0.0),
    "no learning rate": partial(judged, learning_rate=0.0),
    "never out of the warm-up": partial(judged, learning_rate=np.where(np.arange(50) >= 45, 1e-6, 0.0)),
    "negative": partial(judged, loss=np.where(np.arange(50) == 30, -0.1, FALLING)),
    "doubles in few digits": partial(
        judged, loss=np.array([float(f"{value:.3g}") for value in 1.37 * 1.99 ** np.arange(50)])
    ),
    "explodes": partial(judged, loss=np.where(np.arange(50) > 20, 5e4, FALLING)),
    "most steps are skipped": partial(judged, "megatron", skipped_steps=np.arange(50) % 3 > 0),
    "rewards, and no gradient": partial(judged, loss=-0.1, grad_norm=0.0, made={"rewards": True}),
}


@pytest.mark.parametrize("judge", UNTRAINED.values(), ids=UNTRAINED)
def test_window_without_training_is_invalid(judge: Judge) -> None:
    assert reasons(judge()) == {Reason.DID_NOT_TRAIN}


SOUND: dict[str, Judge] = {
    "falling": judged,
    "gradient of 0 before the window": partial(judged, grad_norm=np.where(LATE, CHANGING, 0.0)),
    "learning rate of 0 before the window": partial(judged, learning_rate=np.where(LATE, 1e-5, 0.0)),
    "learning rate of 0 in the last step": partial(judged, learning_rate=np.where(np.arange(50) == 49, 0.0, 1e-5)),
    "gradient that stands still, and a loss that falls": partial(judged, grad_norm=1.0),
    "rises": partial(judged, loss=12 + np.arange(50) / 10),
    "a spike": partial(judged, loss=np.where(np.arange(50) == 30, 900.0, FALLING)),
    "a small loss that is learned away": partial(judged, loss=np.geomspace(1.0, 1e-4, 50)),
    "a small loss that grows": partial(judged, loss=np.geomspace(0.01, 0.5, 50)),
    "rewards": partial(judged, loss=-0.2, grad_norm=CHANGING, made={"rewards": True}),
    "a trainer of preferences": partial(
        judged, loss=0.0, grad_norm=CHANGING, digits=7, made=stated(StatedField.OBJECTIVE)
    ),
    "DeepSpeed": partial(judged, "megatron", grad_norm=0.0, digits=7, made=stated(StatedField.ENGINE)),
    "a few steps are skipped": partial(judged, "megatron", skipped_steps=np.arange(50) % 9 == 0),
    "another stage of the pipeline": partial(judged, "torchtitan", loss=-1.0, digits=6, grad_norm=CHANGING),
}


@pytest.mark.parametrize("judge", SOUND.values(), ids=SOUND)
def test_training_is_valid(judge: Judge) -> None:
    measurement = judge()
    assert measurement.valid, measurement.problems
    assert "loss-stands-still" not in codes(measurement)


@pytest.mark.parametrize(
    "judge",
    [
        partial(judged, loss=11.03),
        partial(judged, loss=11.03, grad_norm=CHANGING, learning_rate=1e-5),
        partial(judged, "maxtext", loss=0.0),
        partial(judged, "regex:own", loss=2.5, digits=2),
    ],
)
def test_few_digits_that_stand_still_are_a_note(judge: Judge) -> None:
    measurement = judge()
    assert measurement.valid
    assert "loss-stands-still" in codes(measurement)


def test_what_is_known_and_no_fault_is_a_note() -> None:
    assert "norm-unknown" in codes(SOUND["DeepSpeed"]())
    assert "skipped-steps" in codes(SOUND["a few steps are skipped"]())
    assert "unverified-loss" in codes(SOUND["another stage of the pipeline"]())


@pytest.mark.parametrize(("place", "value"), [(0, np.inf), (48, np.nan)])
def test_a_loss_or_gradient_that_is_no_number_outside_of_the_window_has_diverged(place: int, value: float) -> None:
    bad = np.where(np.arange(50) == place, value, 5.0 + CHANGING)
    assert Reason.DIVERGED in reasons(judged(loss=bad))
    assert Reason.DIVERGED in reasons(judged(grad_norm=bad))


@pytest.mark.parametrize("changes", [{"recipe": "llama3_dpo"}, {"task": "grpo"}])
def test_the_name_of_a_configuration_may_say_that_it_learns_from_rewards(changes: dict[str, Any]) -> None:
    configuration = BASELINE.configuration
    baseline = at(BASELINE, configuration=replace(configuration, key=replace(configuration.key, **changes)))
    part = segment(steps(loss=np.full(50, -0.5)))
    assert measure(run(log(part)), baseline, NOW).valid
    assert reasons(measure(run(log(part)), BASELINE, NOW)) == {Reason.DID_NOT_TRAIN}


def test_a_log_without_a_loss_is_no_proof_of_anything() -> None:
    part: Segment = segment(steps(loss=np.full(50, np.nan), has_loss=~EVERY))
    measured = measure(run(replace(log(part), prints_loss=False)), BASELINE, NOW)
    assert measured.valid
    assert "unverified-loss" in codes(measured)


def test_gradients_of_half_the_steps_prove_nothing() -> None:
    part = segment(steps(grad_norm=np.zeros(50), has_grad_norm=np.arange(50) % 2 == 0))
    assert measure(run(log(part)), BASELINE, NOW).valid
