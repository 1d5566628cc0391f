"""Whether a run trained: tables over columns, with what must not be taken for a run
that did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.builders import BASELINE, NOW, at, log, run, segment, steps

from pytest_llmbench.core.baseline_records import Baseline, Recording
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import (
    ProgressRecord,
    Segment,
    StatedField,
    Statement,
)
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.runs.measure.measurement import measure

Judge = Callable[[], Measurement]

EVERY = np.ones(50, dtype=bool)
FALLING = 12.0 - 0.01 * np.arange(50)


def judged(
    dialect: str = "nemo2",
    *,
    digits: int = 4,
    made: dict[str, Any] | None = None,
    **columns: Any,
) -> Measurement:
    """Return what is measured of a run with these columns, each a number or 50 of
    them."""
    arrays: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(value, dtype=float), 50)
        for name, value in columns.items()
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


NOISE = 11 + np.random.default_rng(1).normal(0, 0.02, 50)
CHANGING = 1 + np.arange(50) % 7 / 10
LATE = np.arange(50) >= 11
SAW = np.arange(50) % 4 / 4
GROWING = 8 + 0.75 * (np.arange(50) - 20)

UNTRAINED: dict[str, Judge] = {
    "loss of 0 in significant digits": partial(judged, loss=0.0, digits=2),
    "loss of 0 in megatron": partial(judged, "megatron", loss=0.0, digits=7),
    "loss of 0 in decimals, and no gradient": partial(
        judged, "maxtext", loss=0.0, grad_norm=0.0
    ),
    "constant in six digits": partial(judged, loss=11.0312, digits=6),
    "constant from the window on": partial(
        judged, loss=np.where(LATE, 11.0312, FALLING), digits=6
    ),
    "constant in four digits, and so is the gradient": partial(
        judged, loss=11.03, grad_norm=1.5
    ),
    "constant in four digits, and no learning rate": partial(
        judged, loss=11.03, learning_rate=0.0
    ),
    "no gradient, and a loss of frozen weights": partial(
        judged, loss=NOISE, grad_norm=0.0
    ),
    "no gradient in most steps, and a loss of frozen weights": partial(
        judged, loss=NOISE, grad_norm=np.where(np.arange(50) < 30, 0.0, 1.2)
    ),
    "no learning rate": partial(judged, learning_rate=0.0),
    "never out of the warm-up": partial(
        judged, learning_rate=np.where(np.arange(50) >= 45, 1e-6, 0.0)
    ),
    "negative": partial(judged, loss=np.where(np.arange(50) == 30, -0.1, FALLING)),
    "no learning rate in most steps of the run": partial(
        judged, learning_rate=np.where(np.arange(50) < 20, 1e-4, 0.0)
    ),
    "no learning rate in most steps of the window": partial(
        judged,
        learning_rate=np.where((np.arange(50) > 8) & (np.arange(50) < 30), 0.0, 1e-4),
    ),
    "falls to 0 at once": partial(
        judged, loss=np.where(np.arange(50) < 40, FALLING, 0.0)
    ),
    "falls to 0 at once in the first half, where one record is none": partial(
        judged,
        "maxtext",
        loss=np.where((np.arange(50) < 10) | (np.arange(50) == 30), FALLING, 0.0),
    ),
    "some of the later steps are skipped": partial(
        judged,
        "megatron",
        skipped_steps=(np.arange(50) % 3 == 0) & (np.arange(50) > 25),
    ),
    "most steps are skipped": partial(
        judged, "megatron", skipped_steps=np.arange(50) % 3 > 0
    ),
    "rewards, and no gradient": partial(
        judged, loss=-0.1, grad_norm=0.0, made={"rewards": True}
    ),
}


@pytest.mark.parametrize("judge", UNTRAINED.values(), ids=UNTRAINED)
def test_window_without_training_is_invalid(judge: Judge) -> None:
    assert reasons(judge()) == {Reason.DID_NOT_TRAIN}


DIVERGED: dict[str, Judge] = {
    "doubles in few digits": partial(
        judged,
        loss=np.array(
            [float(f"{value:.3g}") for value in 1.37 * 1.99 ** np.arange(50)]
        ),
    ),
    "explodes in the window": partial(
        judged, loss=np.where(np.arange(50) > 20, 5e4, FALLING)
    ),
    "explodes after the window": partial(
        judged, loss=np.where(np.arange(50) > 45, 3000.0, FALLING)
    ),
    "explodes in the first half, and stays": partial(
        judged, loss=np.where(np.arange(50) > 8, 80 + 20 * SAW, FALLING)
    ),
    "grows from 8 to 30": partial(
        judged, loss=np.where(np.arange(50) < 20, 10 - 0.1 * np.arange(50), GROWING)
    ),
    "grows from a small one": partial(
        judged, loss=0.5 + 0.02 * np.arange(50) + 0.1 * SAW
    ),
}


@pytest.mark.parametrize("judge", DIVERGED.values(), ids=DIVERGED)
def test_losses_far_above_the_first_ones_diverged(judge: Judge) -> None:
    assert reasons(judge()) == {Reason.DIVERGED}


SOUND: dict[str, Judge] = {
    "falling": judged,
    "no gradient by its digits, and a loss that falls": partial(judged, grad_norm=0.0),
    "loss of frozen weights whose norm nobody prints": partial(judged, loss=NOISE),
    "noise of a fine-tuning": partial(
        judged, loss=0.5 * np.exp(np.random.default_rng(2).normal(0, 0.5, 50))
    ),
    "learning rate of 0 in the first step and the last ones": partial(
        judged,
        learning_rate=np.where((np.arange(50) == 0) | (np.arange(50) > 44), 0.0, 1e-5),
    ),
    "spikes that recover": partial(
        judged, loss=np.where(np.arange(50) % 20 > 16, 40.0, FALLING)
    ),
    "a small loss that is rounded to 0 at last": partial(
        judged, loss=np.round(np.geomspace(0.5, 1e-5, 50), 4), digits=5
    ),
    "a loss scale that is searched for": partial(
        judged, "megatron", skipped_steps=np.arange(50) < 12
    ),
    "a tenth of the later steps is skipped": partial(
        judged,
        "megatron",
        skipped_steps=(np.arange(50) % 10 == 5) & (np.arange(50) > 20),
    ),
    "gradient of 0 before the window": partial(
        judged, grad_norm=np.where(LATE, CHANGING, 0.0)
    ),
    "learning rate of 0 before the window": partial(
        judged, learning_rate=np.where(LATE, 1e-5, 0.0)
    ),
    "learning rate of 0 in the last step": partial(
        judged, learning_rate=np.where(np.arange(50) == 49, 0.0, 1e-5)
    ),
    "gradient that stands still, and a loss that falls": partial(judged, grad_norm=1.0),
    "rises": partial(judged, loss=12 + np.arange(50) / 10),
    "a spike": partial(judged, loss=np.where(np.arange(50) == 30, 900.0, FALLING)),
    "a small loss that is learned away": partial(
        judged, loss=np.geomspace(1.0, 1e-4, 50)
    ),
    "a small loss that grows little": partial(judged, loss=np.geomspace(0.3, 0.5, 50)),
    "rewards": partial(judged, loss=-0.2, grad_norm=CHANGING, made={"rewards": True}),
    "a trainer of preferences": partial(
        judged,
        loss=0.0,
        grad_norm=CHANGING,
        digits=7,
        made=stated(StatedField.OBJECTIVE),
    ),
    "DeepSpeed": partial(
        judged, "megatron", grad_norm=0.0, digits=7, made=stated(StatedField.ENGINE)
    ),
    "a few steps are skipped": partial(
        judged, "megatron", skipped_steps=np.arange(50) % 9 == 0
    ),
    "another stage of the pipeline": partial(
        judged, "torchtitan", loss=-1.0, digits=6, grad_norm=CHANGING
    ),
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
def test_a_loss_or_gradient_that_is_no_number_outside_of_the_window_has_diverged(
    place: int, value: float
) -> None:
    bad = np.where(np.arange(50) == place, value, 5.0 + CHANGING)
    assert Reason.DIVERGED in reasons(judged(loss=bad))
    assert Reason.DIVERGED in reasons(judged(grad_norm=bad))


@pytest.mark.parametrize("changes", [{"recipe": "llama3_dpo"}, {"task": "grpo"}])
def test_the_name_of_a_configuration_may_say_that_it_learns_from_rewards(
    changes: dict[str, Any],
) -> None:
    configuration = BASELINE.configuration
    baseline = at(
        BASELINE,
        configuration=replace(configuration, key=replace(configuration.key, **changes)),
    )
    part = segment(steps(loss=np.full(50, -0.5)))
    assert measure(run(log(part)), baseline, NOW).valid
    assert reasons(measure(run(log(part)), BASELINE, NOW)) == {Reason.DID_NOT_TRAIN}


def test_a_log_without_a_loss_is_no_proof_of_anything() -> None:
    part: Segment = segment(steps(loss=np.full(50, np.nan), has_loss=~EVERY))
    measured = measure(run(replace(log(part), prints_loss=False)), BASELINE, NOW)
    assert measured.valid
    assert "unverified-loss" in codes(measured)


def recorded(**observed: float) -> Baseline:
    """Return a baseline whose runs observed these values."""
    recording = Recording(
        "2026-01-01", 1, 7.3, 7.3, 0.1, (7.3,), (), observed=tuple(observed.items())
    )
    return at(BASELINE, recording=recording)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (np.full(50, 80.0) + SAW, Reason.DIVERGED),  # from its first step on
        (
            np.where(np.arange(50) < 20, 11 - 0.4 * np.arange(50), 9 + SAW),
            Reason.DIVERGED,
        ),  # below its first losses
        (np.linspace(11, 4, 50), None),
        (np.linspace(11, 6, 50), None),  # other data
    ],
)
def test_losses_are_compared_with_recorded_ones(
    loss: Any, reason: Reason | None
) -> None:
    measured = measure(
        run(log(segment(steps(loss=loss)))),
        recorded(first_loss=11.0, last_loss=4.0),
        NOW,
    )
    assert reasons(measured) == ({reason} if reason else set())


@pytest.mark.parametrize(
    ("losses", "observed", "reason"),
    [
        (0, {"first_loss": 11.0, "last_loss": 4.0}, Reason.LOSS_MISSING),
        (1, {"first_loss": 11.0, "last_loss": 4.0}, Reason.LOSS_MISSING),
        (25, {"first_loss": 11.0, "last_loss": 9.0}, None),
        (0, {"gradient_norm": 1.2}, None),
    ],
)
def test_run_without_a_loss_is_invalid_if_recorded_runs_print_one(
    losses: int, observed: dict[str, float], reason: Reason | None
) -> None:
    rows = np.linspace(0, 49, losses).astype(int)
    printed = np.isin(np.arange(50), rows)
    part = segment(steps(loss=np.where(printed, FALLING, np.nan), has_loss=printed))
    measured = measure(
        run(replace(log(part), prints_loss=False)), recorded(**observed), NOW
    )
    assert reasons(measured) == ({reason} if reason else set())


def test_losses_of_some_steps_are_compared() -> None:
    printed = np.arange(50) % 5 == 0
    loss = np.where(printed, np.where(np.arange(50) < 25, FALLING, 60.0), np.nan)
    part = segment(steps(loss=loss, has_loss=printed))
    assert reasons(
        measure(run(replace(log(part), prints_loss=False)), BASELINE, NOW)
    ) == {Reason.DIVERGED}


def test_memorised_data_may_end_at_any_small_loss() -> None:
    baseline = recorded(first_loss=11.0, last_loss=0.001)
    assert measure(
        run(log(segment(steps(loss=np.geomspace(11, 0.05, 50))))), baseline, NOW
    ).valid


@pytest.mark.parametrize(("norm", "valid"), [(0.0, True), (1.2, False)])
def test_gradients_of_0_are_sound_if_recorded(norm: float, valid: bool) -> None:
    part = segment(steps(loss=NOISE, grad_norm=np.zeros(50), has_grad_norm=EVERY))
    assert measure(run(log(part)), recorded(gradient_norm=norm), NOW).valid is valid


@pytest.mark.parametrize(("last", "reason"), [(20, Reason.DID_NOT_TRAIN), (47, None)])
def test_loss_that_is_printed_no_more_is_missing(
    last: int, reason: Reason | None
) -> None:
    printed = np.arange(50) < last
    part = segment(steps(loss=np.where(printed, FALLING, np.nan), has_loss=printed))
    measured = measure(run(replace(log(part), prints_loss=False)), BASELINE, NOW)
    assert reasons(measured) == ({reason} if reason else set())


def test_progress_of_a_whole_run_is_checked() -> None:
    sound = tuple(
        ProgressRecord(10 + row, 1.5 - 0.1 * row, 0.9, 1e-5) for row in range(10)
    )
    cases = {
        Reason.DIVERGED: [
            replace(each, loss=0.5 + 20 * (row > 5)) for row, each in enumerate(sound)
        ],
        Reason.DID_NOT_TRAIN: [replace(each, learning_rate=0.0) for each in sound],
    }
    assert judged(made={"progress": sound}).valid
    for reason, progress in cases.items():
        assert reasons(judged(made={"progress": tuple(progress)})) == {reason}


def test_validation_loss_without_a_number_has_diverged() -> None:
    assert reasons(judged(made={"bad_validation_line": 7})) == {Reason.DIVERGED}


def test_recordings_keep_losses_and_gradients() -> None:
    observed = dict(judged(grad_norm=1.5).observed)
    assert observed["gradient_norm"] == 1.5
    assert observed["first_loss"] == pytest.approx(11.98)
    assert observed["last_loss"] == pytest.approx(12 - 0.01 * 42.5)
    assert "first_loss" not in dict(judged(made={"rewards": True}).observed)


def test_gradients_of_half_the_steps_prove_nothing() -> None:
    part = segment(steps(grad_norm=np.zeros(50), has_grad_norm=np.arange(50) % 2 == 0))
    assert measure(run(log(part)), BASELINE, NOW).valid


@pytest.mark.parametrize(
    ("loss", "first", "last", "valid"),
    [
        (9.5, 11.0, 4.0, False),  # falls in the recorded runs
        (0.0, 11.0, 4.0, False),
        (4.0, 11.0, 4.0, True),  # goes on from where they ended
        (0.0, 11.0, 0.001, True),  # memorised there, too
        (11.0, 11.0, 10.9, True),  # hardly moves in them
    ],
)
def test_loss_of_few_digits_that_stands_still_is_compared(
    loss: float, first: float, last: float, valid: bool
) -> None:
    part = replace(segment(steps(loss=np.full(50, loss))), loss_digits=3)
    baseline = recorded(first_loss=first, last_loss=last)
    assert (
        measure(run(replace(log(part), dialect="maxtext")), baseline, NOW).valid
        == valid
    )


def test_zeros_in_losses_of_some_steps_are_seen() -> None:
    printed = np.arange(50) % 5 == 0
    part = segment(steps(loss=np.where(printed, 0.0, np.nan), has_loss=printed))
    measured = measure(
        run(replace(log(part), prints_loss=False, dialect="mlperf")), BASELINE, NOW
    )
    assert reasons(measured) == {Reason.DID_NOT_TRAIN}
