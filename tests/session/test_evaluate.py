"""Full measurements of the runs that may be judged."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from support.builders import BASELINE, KEY, NOW, run

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.session.evaluate import measure_runs


def measure_profiled(
    *excluded: bool, judged: str = "newest"
) -> tuple[Measurement, ...]:
    """Return the measurements of runs, newest first, of which some are profiled."""
    catalog: Any = SimpleNamespace(baselines={KEY: (BASELINE,)}, configurations=())
    runs = [
        run(
            started=NOW - timedelta(hours=hours),
            excluded=Reason.PROFILED if profiled else None,
        )
        for hours, profiled in enumerate(excluded, start=1)
    ]
    return measure_runs(runs, catalog, NOW, judged)[KEY][0]


@pytest.mark.parametrize(
    ("excluded", "judged", "whole"),
    [
        ((False, False, False), "newest", [True, False, False]),
        ((True, True, False, False), "newest", [True, True, True, False]),
        ((True, True), "newest", [True, True]),
        ((False, True, False), "each", [True, True, True]),
    ],
)
def test_all_metrics_are_computed_for_each_run_that_may_be_judged(
    excluded: tuple[bool, ...], judged: str, whole: list[bool]
) -> None:
    runs = measure_profiled(*excluded, judged=judged)
    assert [not measurement.step_time_only for measurement in runs] == whole
    assert [bool(measurement.metrics) for measurement in runs] == whole
