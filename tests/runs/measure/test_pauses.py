"""Evaluations and saves between steps: allowed durations and regular gaps."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.core.codes import Observed
from pytest_llmbench.core.log_records import (
    CheckpointAction,
    CheckpointRecord,
    Checkpoints,
    PauseKind,
)
from pytest_llmbench.runs.measure.pauses import (
    compute_excess,
    find_regular,
    make_pauses,
)

LINES = np.arange(10, 110, 2)  # of 50 steps


def measure_excess(
    seconds: dict[int, float],
    kind: PauseKind,
    recorded: dict[Observed, float],
    *records: CheckpointRecord,
) -> list[float]:
    rows = np.array(list(seconds))
    kinds = np.full(len(rows), int(kind))
    made = make_pauses(
        rows, kinds, np.array(list(seconds.values())), LINES, Checkpoints(records)
    )
    return [
        float(value)
        for value in compute_excess(
            made, {str(name): value for name, value in recorded.items()}
        )
    ]


@pytest.mark.parametrize(
    ("seconds", "recorded", "excess"),
    [
        ({10: 40.0, 20: 40.0, 30: 40.0}, {}, [0.0, 0.0, 0.0]),
        ({10: 40.0, 20: 40.0, 30: 400.0}, {}, [0.0, 0.0, 340.0]),
        (
            {10: 400.0, 20: 400.0, 30: 40.0, 40: 40.0, 45: 40.0},
            {},
            [340.0, 340.0, 0.0, 0.0, 0.0],
        ),
        ({10: 100.0}, {Observed.LONGEST_SAVE: 40.0}, [40.0]),
        (
            {10: 100.0, 20: 100.0},
            {Observed.LONGEST_SAVE: 40.0},
            [0.0, 0.0],
        ),  # another disk
        ({10: 400.0, 20: 400.0}, {Observed.LONGEST_SAVE: 40.0}, [280.0, 280.0]),
        ({10: 100.0}, {Observed.LONGEST_EVALUATION: 40.0}, [np.nan]),
    ],
)
def test_excess_of_a_pause_is_compared_with_other_pauses(
    seconds: dict[int, float], recorded: dict[Observed, float], excess: list[float]
) -> None:
    assert measure_excess(seconds, PauseKind.SAVE, recorded) == pytest.approx(
        excess, nan_ok=True
    )


@pytest.mark.parametrize(
    ("line", "dispatched", "excess"),
    [(29, False, 355.0), (29, True, np.nan), (31, False, np.nan)],
)
def test_gap_of_a_single_save_is_compared_with_the_printed_save_duration(
    line: int, dispatched: bool, excess: float
) -> None:
    record = CheckpointRecord(CheckpointAction.SAVE, line, 30.0, dispatched=dispatched)
    assert measure_excess({10: 400.0}, PauseKind.SAVE, {}, record) == pytest.approx(
        [excess], nan_ok=True
    )


@pytest.mark.parametrize(
    ("gaps", "regular"),
    [
        ([20, 40], [20, 40]),
        ([21, 41], [21, 41]),
        ([15, 40], []),  # two gaps at any distance
        ([13, 26, 39], [13, 26, 39]),
        ([5, 15, 25, 35, 45], [5, 15, 25, 35, 45]),
        ([10, 20, 25, 30, 40], [10, 20, 30, 40]),
        (
            [10, 15, 20, 30, 40, 45],
            [10, 15, 20, 30, 40, 45],
        ),  # every 10 and every 15 steps
        (list(range(6, 50, 6)), []),
        (list(range(4, 50, 4)), []),
        ([30], []),
    ],
)
def test_gaps_are_regular_only_if_they_recur_until_the_last_step(
    gaps: list[int], regular: list[int]
) -> None:
    steps = np.arange(1, 50)
    mask = np.isin(steps, gaps)
    assert steps[find_regular(steps, steps, mask, mask)].tolist() == regular
