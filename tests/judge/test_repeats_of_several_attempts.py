"""Repeats whose log contains several finished attempts, measured from their logs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import numpy as np
import pytest
from support.builders import BASELINE, NOW, evidence, log, run, segment, steps

from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.log_records import Segment
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.runs.measure.older_runs import measure_older

STALL = {20: 3.0, 33: 1.55}
"""Factors of the times of two steps."""


def make_attempt(seed: int, slow_steps: Mapping[int, float]) -> Segment:
    """Return an attempt with the noise of a real run, and some slow steps."""
    seconds = 7.325 * (1 + 0.002 * np.random.default_rng(seed).standard_normal(50))
    for step, factor in slow_steps.items():
        seconds[step] *= factor
    return segment(steps(list(seconds)))


def make_history(first_day: int) -> list[Run]:
    """Return clean daily runs, beginning that many days ago."""
    return [
        run(
            log(make_attempt(day, {})),
            id=f"day{day}",
            job_id=f"9{day}",
            started=NOW - timedelta(days=day),
        )
        for day in range(first_day, first_day + 8)
    ]


@pytest.mark.parametrize("slow_steps", [STALL, {20: 8.0}])
def test_stall_of_a_repeat_with_two_finished_attempts_counts(
    slow_steps: Mapping[int, float],
) -> None:
    """Its slowest attempt represents it, so that its stall is not replaced."""
    newest = run(
        log(make_attempt(0, {})),
        id="newest",
        started=NOW - timedelta(hours=3),
        launch="one",
    )
    repeat = run(
        log(make_attempt(201, {}), make_attempt(1, slow_steps)),
        id="repeat",
        job_id="71",
        started=NOW - timedelta(hours=4),
        launch="one",
    )
    older = measure_older([repeat, *make_history(2)], BASELINE, NOW)
    judgement = judge(evidence(measure(newest, BASELINE, NOW), *older))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.estimate is not None
    assert judgement.estimate.difference > 0.03
