"""Evidence that a run trained: tables over columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
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


def measure_columns(
    dialect: str = "nemo2",
    *,
    digits: int = 4,
    made: dict[str, Any] | None = None,
    **columns: Any,
) -> Measurement:
    """Measure a run with these columns, each one number or 50 values."""
    arrays: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(value, dtype=float), 50)
        for name, value in columns.items()
    }
    if "grad_norm" in arrays:
        arrays["has_grad_norm"] = EVERY
    content = replace(segment(steps(**arrays)), loss_digits=digits, **(made or {}))
    return measure(run(replace(log(content), dialect=dialect)), BASELINE, NOW)


def list_reasons(measurement: Measurement) -> set[Reason]:
    return {problem.reason for problem in measurement.problems}


def list_codes(measurement: Measurement) -> set[str]:
    return {note.code for note in measurement.notes}


def make_statement(field: StatedField) -> dict[str, Any]:
    return {"stated": (Statement(field, "x", 3),)}


NOISE = 11 + np.random.default_rng(1).normal(0, 0.02, 50)
CHANGING = 1 + np.arange(50) % 7 / 10
LATE = np.arange(50) >= 11
SAW = np.arange(50) % 4 / 4
GROWING = 8 + 0.75 * (np.arange(50) - 20)

UNTRAINED: dict[str, Judge] = {
    "loss of 0 in significant digits": partial(measure_columns, loss=0.0, digits=2),
    "loss of 0 in megatron": partial(measure_columns, "megatron", loss=0.0, digits=7),
    "loss of 0 in decimals, and no gradient": partial(
        measure_columns, "maxtext", loss=0.0, grad_norm=0.0
    ),
    "constant in six digits": partial(measure_columns, loss=11.0312, digits=6),
    "constant from the window on": partial(
        measure_columns, loss=np.where(LATE, 11.0312, FALLING), digits=6
    ),
    "constant in four digits, and so is the gradient": partial(
        measure_columns, loss=11.03, grad_norm=1.5
    ),
    "constant in four digits, and no learning rate": partial(
        measure_columns, loss=11.03, learning_rate=0.0
    ),
    "no gradient, and a loss of frozen weights": partial(
        measure_columns, loss=NOISE, grad_norm=0.0
    ),
    "no gradient in most steps, and a loss of frozen weights": partial(
        measure_columns, loss=NOISE, grad_norm=np.where(np.arange(50) < 30, 0.0, 1.2)
    ),
    "no learning rate": partial(measure_columns, learning_rate=0.0),
    "never out of the warm-up": partial(
        measure_columns, learning_rate=np.where(np.arange(50) >= 45, 1e-6, 0.0)
    ),
    "negative": partial(
        measure_columns, loss=np.where(np.arange(50) == 30, -0.1, FALLING)
    ),
    "no learning rate in most steps of the run": partial(
        measure_columns, learning_rate=np.where(np.arange(50) < 20, 1e-4, 0.0)
    ),
    "no learning rate in most steps of the window": partial(
        measure_columns,
        learning_rate=np.where((np.arange(50) > 8) & (np.arange(50) < 30), 0.0, 1e-4),
    ),
    "falls to 0 at once": partial(
        measure_columns, loss=np.where(np.arange(50) < 40, FALLING, 0.0)
    ),
    "falls to 0 at once in the first half, with one exception": partial(
        measure_columns,
        "maxtext",
        loss=np.where((np.arange(50) < 10) | (np.arange(50) == 30), FALLING, 0.0),
    ),
    "some of the later steps are skipped": partial(
        measure_columns,
        "megatron",
        skipped_steps=(np.arange(50) % 3 == 0) & (np.arange(50) > 25),
    ),
    "most steps are skipped": partial(
        measure_columns, "megatron", skipped_steps=np.arange(50) % 3 > 0
    ),
    "rewards, and no gradient": partial(
        measure_columns, loss=-0.1, grad_norm=0.0, made={"rewards": True}
    ),
}


@pytest.mark.parametrize("judge", UNTRAINED.values(), ids=UNTRAINED)
def test_window_without_training_is_invalid(judge: Judge) -> None:
    assert list_reasons(judge()) == {Reason.DID_NOT_TRAIN}


DIVERGED: dict[str, Judge] = {
    "doubles in few digits": partial(
        measure_columns,
        loss=np.array(
            [float(f"{value:.3g}") for value in 1.37 * 1.99 ** np.arange(50)]
        ),
    ),
    "explodes in the window": partial(
        measure_columns, loss=np.where(np.arange(50) > 20, 5e4, FALLING)
    ),
    "explodes after the window": partial(
        measure_columns, loss=np.where(np.arange(50) > 45, 3000.0, FALLING)
    ),
    "explodes in the first half, and stays": partial(
        measure_columns, loss=np.where(np.arange(50) > 8, 80 + 20 * SAW, FALLING)
    ),
    "grows from 8 to 30": partial(
        measure_columns,
        loss=np.where(np.arange(50) < 20, 10 - 0.1 * np.arange(50), GROWING),
    ),
    "grows from a small one": partial(
        measure_columns, loss=0.5 + 0.02 * np.arange(50) + 0.1 * SAW
    ),
}


@pytest.mark.parametrize("judge", DIVERGED.values(), ids=DIVERGED)
def test_losses_far_above_first_are_diverged(judge: Judge) -> None:
    assert list_reasons(judge()) == {Reason.DIVERGED}


SOUND: dict[str, Judge] = {
    "falling": measure_columns,
    "no gradient by its digits, and a loss that falls": partial(
        measure_columns, grad_norm=0.0
    ),
    "loss of frozen weights without a printed norm": partial(
        measure_columns, loss=NOISE
    ),
    "noise of a fine-tuning": partial(
        measure_columns, loss=0.5 * np.exp(np.random.default_rng(2).normal(0, 0.5, 50))
    ),
    "learning rate of 0 in the first step and the last ones": partial(
        measure_columns,
        learning_rate=np.where((np.arange(50) == 0) | (np.arange(50) > 44), 0.0, 1e-5),
    ),
    "spikes that recover": partial(
        measure_columns, loss=np.where(np.arange(50) % 20 > 16, 40.0, FALLING)
    ),
    "a small loss that is rounded to 0 at last": partial(
        measure_columns, loss=np.round(np.geomspace(0.5, 1e-5, 50), 4), digits=5
    ),
    "a loss scale that is searched for": partial(
        measure_columns, "megatron", skipped_steps=np.arange(50) < 12
    ),
    "a tenth of the later steps is skipped": partial(
        measure_columns,
        "megatron",
        skipped_steps=(np.arange(50) % 10 == 5) & (np.arange(50) > 20),
    ),
    "gradient of 0 before the window": partial(
        measure_columns, grad_norm=np.where(LATE, CHANGING, 0.0)
    ),
    "learning rate of 0 before the window": partial(
        measure_columns, learning_rate=np.where(LATE, 1e-5, 0.0)
    ),
    "learning rate of 0 in the last step": partial(
        measure_columns, learning_rate=np.where(np.arange(50) == 49, 0.0, 1e-5)
    ),
    "constant gradient and falling loss": partial(measure_columns, grad_norm=1.0),
    "rises": partial(measure_columns, loss=12 + np.arange(50) / 10),
    "a spike": partial(
        measure_columns, loss=np.where(np.arange(50) == 30, 900.0, FALLING)
    ),
    "a small loss that is learned away": partial(
        measure_columns, loss=np.geomspace(1.0, 1e-4, 50)
    ),
    "a small loss that grows little": partial(
        measure_columns, loss=np.geomspace(0.3, 0.5, 50)
    ),
    "rewards": partial(
        measure_columns, loss=-0.2, grad_norm=CHANGING, made={"rewards": True}
    ),
    "a trainer of preferences": partial(
        measure_columns,
        loss=0.0,
        grad_norm=CHANGING,
        digits=7,
        made=make_statement(StatedField.OBJECTIVE),
    ),
    "DeepSpeed": partial(
        measure_columns,
        "megatron",
        grad_norm=0.0,
        digits=7,
        made=make_statement(StatedField.ENGINE),
    ),
    "a few steps are skipped": partial(
        measure_columns, "megatron", skipped_steps=np.arange(50) % 9 == 0
    ),
    "another stage of the pipeline": partial(
        measure_columns, "torchtitan", loss=-1.0, digits=6, grad_norm=CHANGING
    ),
}


@pytest.mark.parametrize("judge", SOUND.values(), ids=SOUND)
def test_run_that_learns_is_valid(judge: Judge) -> None:
    measurement = judge()
    assert measurement.valid, measurement.problems
    assert "loss-stands-still" not in list_codes(measurement)


@pytest.mark.parametrize(
    "judge",
    [
        partial(measure_columns, loss=11.03),
        partial(measure_columns, loss=11.03, grad_norm=CHANGING, learning_rate=1e-5),
        partial(measure_columns, "maxtext", loss=0.0),
        partial(measure_columns, "regex:own", loss=2.5, digits=2),
    ],
)
def test_constant_loss_of_few_digits_is_noted(judge: Judge) -> None:
    measurement = judge()
    assert measurement.valid
    assert "loss-stands-still" in list_codes(measurement)


def test_harmless_findings_about_training_are_notes() -> None:
    assert "norm-unknown" in list_codes(SOUND["DeepSpeed"]())
    assert "skipped-steps" in list_codes(SOUND["a few steps are skipped"]())
    assert "unverified-loss" in list_codes(SOUND["another stage of the pipeline"]())


@pytest.mark.parametrize(("step", "value"), [(0, np.inf), (48, np.nan)])
def test_non_finite_value_outside_window_is_diverged(step: int, value: float) -> None:
    bad = np.where(np.arange(50) == step, value, 5.0 + CHANGING)
    assert Reason.DIVERGED in list_reasons(measure_columns(loss=bad))
    assert Reason.DIVERGED in list_reasons(measure_columns(grad_norm=bad))


@pytest.mark.parametrize("changes", [{"recipe": "llama3_dpo"}, {"task": "grpo"}])
def test_configuration_name_marks_training_on_rewards(
    changes: dict[str, Any],
) -> None:
    configuration = BASELINE.configuration
    baseline = at(
        BASELINE,
        configuration=replace(configuration, key=replace(configuration.key, **changes)),
    )
    content = segment(steps(loss=np.full(50, -0.5)))
    assert measure(run(log(content)), baseline, NOW).valid
    assert list_reasons(measure(run(log(content)), BASELINE, NOW)) == {
        Reason.DID_NOT_TRAIN
    }


def test_log_that_prints_no_loss_is_valid_with_a_note() -> None:
    content: Segment = segment(steps(loss=np.full(50, np.nan), has_loss=~EVERY))
    measured = measure(run(replace(log(content), prints_loss=False)), BASELINE, NOW)
    assert measured.valid
    assert "unverified-loss" in list_codes(measured)


def make_recorded_baseline(**observed: float) -> Baseline:
    """Return a baseline whose recorded runs observed these values."""
    recording = Recording(
        "2026-01-01", 1, 7.3, 7.3, 0.1, (7.3,), (), observed=tuple(observed.items())
    )
    return at(BASELINE, recording=recording)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (np.full(50, 80.0) + SAW, Reason.DIVERGED),  # from the first step on
        (
            np.where(np.arange(50) < 20, 11 - 0.4 * np.arange(50), 9 + SAW),
            Reason.DIVERGED,
        ),  # below its first losses
        (np.linspace(11, 4, 50), None),
        (np.linspace(11, 6, 50), None),  # other data
    ],
)
def test_losses_are_compared_with_recorded_runs(
    loss: Any, reason: Reason | None
) -> None:
    measured = measure(
        run(log(segment(steps(loss=loss)))),
        make_recorded_baseline(first_loss=11.0, last_loss=4.0),
        NOW,
    )
    assert list_reasons(measured) == ({reason} if reason else set())


@pytest.mark.parametrize(
    ("losses", "observed", "reason"),
    [
        (0, {"first_loss": 11.0, "last_loss": 4.0}, Reason.LOSS_MISSING),
        (1, {"first_loss": 11.0, "last_loss": 4.0}, Reason.LOSS_MISSING),
        (25, {"first_loss": 11.0, "last_loss": 9.0}, None),
        (0, {"gradient_norm": 1.2}, None),
    ],
)
def test_missing_losses_are_invalid_if_recorded_runs_printed_losses(
    losses: int, observed: dict[str, float], reason: Reason | None
) -> None:
    rows = np.linspace(0, 49, losses).astype(int)
    printed = np.isin(np.arange(50), rows)
    content = segment(steps(loss=np.where(printed, FALLING, np.nan), has_loss=printed))
    measured = measure(
        run(replace(log(content), prints_loss=False)),
        make_recorded_baseline(**observed),
        NOW,
    )
    assert list_reasons(measured) == ({reason} if reason else set())


def test_divergence_is_detected_if_losses_are_printed_every_fifth_step() -> None:
    printed = np.arange(50) % 5 == 0
    loss = np.where(printed, np.where(np.arange(50) < 25, FALLING, 60.0), np.nan)
    content = segment(steps(loss=loss, has_loss=printed))
    assert list_reasons(
        measure(run(replace(log(content), prints_loss=False)), BASELINE, NOW)
    ) == {Reason.DIVERGED}


def test_memorised_data_may_reach_any_small_loss() -> None:
    baseline = make_recorded_baseline(first_loss=11.0, last_loss=0.001)
    assert measure(
        run(log(segment(steps(loss=np.geomspace(11, 0.05, 50))))), baseline, NOW
    ).valid


@pytest.mark.parametrize(("norm", "valid"), [(0.0, True), (1.2, False)])
def test_zero_gradient_norm_is_valid_if_recorded_runs_had_it_too(
    norm: float, valid: bool
) -> None:
    content = segment(steps(loss=NOISE, grad_norm=np.zeros(50), has_grad_norm=EVERY))
    assert (
        measure(
            run(log(content)), make_recorded_baseline(gradient_norm=norm), NOW
        ).valid
        is valid
    )


@pytest.mark.parametrize(("last", "reason"), [(20, Reason.DID_NOT_TRAIN), (47, None)])
def test_run_that_stops_printing_its_loss_before_the_window_ends_did_not_train(
    last: int, reason: Reason | None
) -> None:
    printed = np.arange(50) < last
    content = segment(steps(loss=np.where(printed, FALLING, np.nan), has_loss=printed))
    measured = measure(run(replace(log(content), prints_loss=False)), BASELINE, NOW)
    assert list_reasons(measured) == ({reason} if reason else set())


def test_progress_records_of_a_whole_run_show_whether_it_trained() -> None:
    sound = tuple(
        ProgressRecord(10 + row, 1.5 - 0.1 * row, 0.9, 1e-5) for row in range(10)
    )
    cases = {
        Reason.DIVERGED: [
            replace(value, loss=0.5 + 20 * (row > 5)) for row, value in enumerate(sound)
        ],
        Reason.DID_NOT_TRAIN: [replace(value, learning_rate=0.0) for value in sound],
    }
    assert measure_columns(made={"progress": sound}).valid
    for reason, progress in cases.items():
        assert list_reasons(measure_columns(made={"progress": tuple(progress)})) == {
            reason
        }


def test_non_finite_validation_loss_is_diverged() -> None:
    assert list_reasons(measure_columns(made={"bad_validation_line": 7})) == {
        Reason.DIVERGED
    }


def test_recording_contains_losses_and_gradients() -> None:
    observed = dict(measure_columns(grad_norm=1.5).observed)
    assert observed["gradient_norm"] == 1.5
    assert observed["first_loss"] == pytest.approx(11.98)
    assert observed["last_loss"] == pytest.approx(12 - 0.01 * 42.5)
    assert "first_loss" not in dict(measure_columns(made={"rewards": True}).observed)


def test_zero_gradient_norm_printed_at_every_second_step_is_valid() -> None:
    content = segment(
        steps(grad_norm=np.zeros(50), has_grad_norm=np.arange(50) % 2 == 0)
    )
    assert measure(run(log(content)), BASELINE, NOW).valid


@pytest.mark.parametrize(
    ("loss", "first", "last", "valid"),
    [
        (9.5, 11.0, 4.0, False),  # the loss falls in the recorded runs
        (0.0, 11.0, 4.0, False),
        (4.0, 11.0, 4.0, True),  # continues at the recorded end
        (0.0, 11.0, 0.001, True),  # memorised there, too
        (11.0, 11.0, 10.9, True),  # hardly moves in the recorded runs
    ],
)
def test_constant_loss_of_few_digits_is_invalid_if_recorded_losses_fell(
    loss: float, first: float, last: float, valid: bool
) -> None:
    content = replace(segment(steps(loss=np.full(50, loss))), loss_digits=3)
    baseline = make_recorded_baseline(first_loss=first, last_loss=last)
    assert (
        measure(run(replace(log(content), dialect="maxtext")), baseline, NOW).valid
        == valid
    )


def test_loss_of_zero_is_detected_if_printed_every_fifth_step() -> None:
    printed = np.arange(50) % 5 == 0
    content = segment(steps(loss=np.where(printed, 0.0, np.nan), has_loss=printed))
    measured = measure(
        run(replace(log(content), prints_loss=False, dialect="mlperf")), BASELINE, NOW
    )
    assert list_reasons(measured) == {Reason.DID_NOT_TRAIN}
