"""Older runs: measured together, with the results of measuring each of them alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.builders import BASELINE, NOW, at, log, means_of, run, segment, steps

from pytest_llmbench.core.baseline_records import Baseline, Window
from pytest_llmbench.core.codes import Observed, Reason
from pytest_llmbench.core.log_records import (
    NO_QUOTE,
    CheckpointAction,
    CheckpointRecord,
    Checkpoints,
    DroppedRecords,
    DropReason,
    Ending,
    EndingCode,
    ProgressRecord,
    StatedField,
    Statement,
    Steps,
)
from pytest_llmbench.core.run_records import DuplicateOf, Hint, Measurement, Run
from pytest_llmbench.runs.measure import (
    configuration,
    measurement,
    older_runs,
    training,
    validity,
)
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.runs.measure.older_runs import measure_older

COUNT = 50
BATCH = float(BASELINE.configuration.global_batch_size)
TOKENS = BATCH * BASELINE.configuration.architecture.sequence_length
TFLOPS = 1165.9
"""TFLOP/s of a GPU in a run at the baseline's step time."""

ODD = (0.0, -1.0, 1e-9, 1e7, 7.3, np.nan, np.inf, -np.inf)
FACTORS = (0.1, 0.79, 0.81, 0.94, 0.96, 0.97, 0.99, 1.01, 1.03, 1.19, 1.21, 2.1, 11.0)


def simulate_columns(random: Random) -> dict[str, Any]:
    """Return the columns of a healthy run that prints all quantities."""
    generator = np.random.default_rng(random.randrange(2**32))
    seconds = np.round(7.325 * (1 + 0.003 * generator.standard_normal(COUNT)), 3)
    return {
        "seconds": seconds,
        "grad_norm": 0.5 + generator.random(COUNT),
        "has_grad_norm": np.ones(COUNT, dtype=bool),
        "tflops_per_gpu": TFLOPS * 7.325 / seconds,
        "tokens_per_second_per_gpu": TOKENS / BASELINE.key.gpus / seconds,
        "learning_rate": np.linspace(0.0, 1e-4, COUNT),
        "consumed_samples": BATCH * np.arange(1, COUNT + 1),
        "target_tokens": np.full(COUNT, TOKENS),
        "skipped_steps": np.zeros(COUNT),
        "step_tokens": np.full(COUNT, TOKENS),
        "samples_per_second": BATCH / seconds,
        "stamp": 1e9 + np.cumsum(seconds),
    }


def make_run(columns: Steps, **log_facts: Any) -> Run:
    return run(log(segment(columns), **log_facts))


def list_values(measured: Measurement) -> dict[str, str]:
    """Return the exact text of each field, which distinguishes all floats."""
    return {
        name: repr(getattr(measured, name))
        for name in Measurement.__struct_fields__
        if name not in ("run", "baseline")
    }


def check_equal(runs: Sequence[Run], baseline: Baseline) -> list[Measurement]:
    """Measure runs together and each alone; return the equal measurements."""
    together = measure_older(runs, baseline, NOW)
    for content, measured in zip(runs, together, strict=True):
        alone = measure(content, baseline, NOW, step_time_only=True)
        assert measured.run is content
        assert list_values(measured) == list_values(alone)
    return together


@pytest.fixture
def measured_alone(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were not measured together with others."""
    alone: list[Run] = []

    def record(content: Run, *values: Any, **options: Any) -> Measurement:
        alone.append(content)
        return measure(content, *values, **options)

    monkeypatch.setattr(older_runs, "measure", record)
    return alone


@pytest.mark.parametrize("statistic", ["mean", "trimmed_mean"])
def test_regular_runs_are_measured_together(
    measured_alone: list[Run], statistic: str
) -> None:
    random = Random(statistic)  # noqa: S311 (simulated steps)
    baseline = at(BASELINE, window=Window(11, 44, statistic))
    runs = [make_run(steps(**simulate_columns(random))) for _ in range(20)]
    runs += [make_run(steps(7.3 + 0.001 * number)) for number in range(5)]
    runs.append(make_run(means_of(1, simulate_columns(random)["seconds"], first=1)))
    assert all(measured.valid for measured in check_equal(runs, baseline))
    assert not measured_alone


def test_runs_of_other_lengths_are_measured_together(measured_alone: list[Run]) -> None:
    short = [make_run(steps([7.3, 7.4] * 25)), make_run(steps([7.3, 7.5] * 30))]
    check_equal([*short, *short], BASELINE)
    assert not measured_alone


def test_more_runs_than_fit_in_memory_are_all_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(older_runs, "MOST_TOGETHER", 2)
    check_equal([make_run(steps(7.3 + number / 10)) for number in range(5)], BASELINE)


def test_moving_means_are_recognised_in_each_row(measured_alone: list[Run]) -> None:
    single = np.array([30.0, 7.4, *[7.3, 7.35] * 24])
    widths = (1, 3, 5)
    runs = [
        make_run(
            steps(
                [single[max(0, k - width) : k].mean() for k in range(1, COUNT + 1)],
                resolution_seconds=np.zeros(COUNT),
            )
        )
        for width in widths
    ]
    measurements = check_equal(runs, BASELINE)
    assert tuple(one.moving_mean for one in measurements) == widths
    assert not measured_alone


Damage = Callable[[Random, "np.ndarray[Any, Any]"], None]


def set_value(random: Random, column: np.ndarray[Any, Any]) -> None:
    column[random.randrange(len(column))] = random.choice(ODD)


def set_all(random: Random, column: np.ndarray[Any, Any]) -> None:
    column[:] = random.choice(ODD)


def set_every_second(random: Random, column: np.ndarray[Any, Any]) -> None:
    column[random.randrange(2) :: 2] = random.choice(ODD)


def scale(random: Random, column: np.ndarray[Any, Any]) -> None:
    column *= random.choice(FACTORS)


def bend(random: Random, column: np.ndarray[Any, Any]) -> None:
    column *= np.linspace(1.0, random.choice(FACTORS), len(column))


DAMAGES: tuple[Damage, ...] = (set_value, set_all, set_every_second, scale, bend)


def damage_columns(random: Random) -> Steps:
    """Return the columns of a run with up to two damaged ones."""
    columns = steps(**simulate_columns(random))
    values = {
        name: np.array(getattr(columns, name)) for name in Steps.__dataclass_fields__
    }
    for _ in range(random.randrange(3)):
        name = random.choice((*values, "seconds", "loss"))
        column = values[name]
        row = random.randrange(COUNT)
        if column.dtype == np.bool_:
            column[row] = not column[row]
        elif column.dtype == np.int64:
            column[row] += random.choice((-1, 1, 2))
        else:
            random.choice(DAMAGES)(random, column)
    return dataclasses.replace(columns, **values)


RECORDED = {
    Observed.SAMPLES_PER_STEP: BATCH,
    Observed.TOKENS_PER_STEP: TOKENS,
    Observed.TARGETS_PER_STEP: TOKENS,
    Observed.SAMPLES_BY_RATE: BATCH,
    Observed.TOKENS_BY_RATE: TOKENS / BASELINE.key.gpus,
    Observed.FIRST_LOSS: 12.0,
    Observed.LAST_LOSS: 11.0,
    Observed.GRADIENT_NORM: 1.0,
}


def record_values(random: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let baselines have some recorded values, each by chance."""
    recorded = {
        name.value: value * random.choice((1.0, 1.0, 1.04, 1.06, 2.2))
        for name, value in RECORDED.items()
        if random.random() < 0.5
    }
    monkeypatch.setattr(Baseline, "observed", property(lambda _: recorded))


@pytest.mark.parametrize("seed", range(8))
def test_damaged_runs_are_measured_as_if_alone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)  # noqa: S311 (simulated steps)
    if seed % 2:
        record_values(random, monkeypatch)
    window = random.choice((Window(11, 44), Window(0, 49), Window(20, 24)))
    baseline = at(
        BASELINE,
        window=window,
        logged_tflops_factor=random.choice((None, 1.0, 1.04)),
        timed_window=random.choice((None, None, None, Window(30, 40))),
    )
    with np.errstate(all="ignore"):
        runs = [make_run(damage_columns(random)) for _ in range(30)]
        check_equal(runs, baseline)


DROPPED = DroppedRecords(DropReason.TIMES_DISAGREE, 1, 120, "a step", last_line=130)
LOADED = Checkpoints((CheckpointRecord(CheckpointAction.LOAD, 5, 1.0),))
LOG_FACTS: tuple[dict[str, Any], ...] = (
    {"dropped": (DROPPED,)},
    {"dropped": (replace(DROPPED, reason=DropReason.REPEATED),)},
    {"nccl_line": 5},
    {"checkpoints": LOADED},
    {"prints_loss": False},
    {"begun_again_line": 300, "ending": Ending(EndingCode.EXITED, NO_QUOTE, 400)},
    {"ending": Ending(EndingCode.EXITED, NO_QUOTE, 400)},
)


@pytest.mark.parametrize("facts", LOG_FACTS)
def test_facts_of_logs_are_judged_as_if_alone(facts: dict[str, Any]) -> None:
    check_equal([make_run(steps()), make_run(steps(7.4), **facts)], BASELINE)


SEGMENT_FACTS: tuple[dict[str, Any], ...] = (
    {"doubt": "the bar shows more"},
    {"bad_validation_line": 7},
    {"finished": False, "total_steps": 60},
    {"finished": False, "total_steps": None},
    {"progress": (ProgressRecord(1, 0.0, 0.0, 0.0),)},
    {"stated": (Statement(StatedField.PROFILER, "on", 3),)},
    {"stated": (Statement(StatedField.GPUS, "128", 3),)},
    {"stated": (Statement(StatedField.GPUS, "64", 3),)},
    {"stated": (Statement(StatedField.QUANTIZATION, "fp8", 3),)},
    {"stated": (Statement(StatedField.MODEL, "/m/grok-2-314b", 3),)},
)


@pytest.mark.parametrize("facts", SEGMENT_FACTS)
def test_facts_of_segments_are_judged_as_if_alone(facts: dict[str, Any]) -> None:
    damaged = run(log(replace(segment(steps(7.4)), **facts)))
    check_equal([make_run(steps()), damaged], BASELINE)


RUN_FACTS: tuple[dict[str, Any], ...] = (
    {"excluded": Reason.PROFILED, "excluded_because": "profiled"},
    {"companion_of": Reason.PROFILED, "companion_because": "profiled"},
    {"hints": (Hint("tp", "4", "its name"),)},
    {"hints": (Hint("tp", "8", "its name"),)},
    {"hints": (Hint("global_batch_size", "512", "its metadata"),)},
)


@pytest.mark.parametrize("facts", RUN_FACTS)
def test_facts_of_files_are_judged_as_if_alone(facts: dict[str, Any]) -> None:
    check_equal([run(), run(**facts), run()], BASELINE)


@pytest.mark.parametrize("certain", [True, False])
def test_duplicates_are_judged_as_if_alone(certain: bool) -> None:
    duplicate = DuplicateOf("2", "x_2", 50, 50, certain)
    runs = [run(), replace(run(), duplicate_of=duplicate)]
    assert check_equal(runs, BASELINE)[1].valid is not certain


def test_restarted_and_empty_runs_are_judged_as_if_alone() -> None:
    restarted = log(segment(steps([7.3] * 20), finished=False), segment())
    check_equal([run(restarted), run(log()), run(log(), log(segment()))], BASELINE)


CHECKS: dict[Any, set[str]] = {
    measurement._compute_window_timing: {"_find_duplicate", "find_gaps"},
    validity.find_problems: {
        "_find_unreadable_attempts",
        "_find_contradicted_times",
        "find_not_finite",
        "_find_unfinished",
        "_find_newer_start",
        "find_gaps",
        "find_unit_mismatch",
        "_find_missing_losses",
        "_find_interleaved_writers",
    },
    configuration.find_problems: {
        "check_claims",
        "_find_stated_problems",
        "_check_rates",
        "_find_less_work",
    },
    configuration._find_stated_problems: {
        "check_statements",
        "_check_samples",
        "_check_target_tokens",
    },
    training.find_problems: {
        "_find_no_update",
        "_find_bad_loss",
        "_find_collapse",
        "_find_lost_loss",
        "_find_divergence",
        "_lacks_recorded_loss",
    },
}
"""The checks of a run by the function that calls them.

`older_runs` excludes the problem of each. Extend it before you add a check here.
"""


@pytest.mark.parametrize("caller", CHECKS, ids=lambda caller: caller.__module__)
def test_older_runs_are_screened_for_each_check(caller: Any) -> None:
    called = {
        name
        for name in caller.__code__.co_names
        if name.lstrip("_").startswith(("find_", "check_", "lacks_"))
    }
    assert called - {"find_problems"} == CHECKS[caller]
