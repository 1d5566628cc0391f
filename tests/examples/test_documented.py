"""Generating a run of every shipped configuration."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

import pytest
from generator import write_run

from pytest_llmbench.core.baseline_records import Baseline

LAYOUTS = {
    "24.11": "results",
    "25.01": "results",
    "25.04": "experiments",
    "25.05": "workloads",
}
PRINTED = {
    "nemo1": re.compile(
        r"global_step=([\d.]+),[^\r\n]*?train_step_timing in s=([\d.e+]+)]"
    ),
    "nemo2": re.compile(r"global_step: (\d+) .*?train_step_timing in s: (\S+)"),
    "maxtext": re.compile(r"completed step: (\d+), seconds: ([\d.]+),"),
}


@pytest.mark.slow
def test_every_shipped_configuration_has_the_documented_step_time(
    documented: dict[str, Baseline], tmp_path: Path
) -> None:
    """The printed mean differs by at most 0.02 %, and the layout is the release's."""
    baselines = documented.values()
    assert len(baselines) == 82
    for baseline in baselines:
        log = write_run(tmp_path, baseline, factor=1.08, last_step_factor=1.5)
        text = log.read_bytes().decode()
        steps = {
            int(float(step)): float(seconds)
            for step, seconds in PRINTED[baseline.dialect].findall(text)
        }
        assert sorted(steps) == list(range(50)), baseline.key.id
        mean = fmean(
            steps[step]
            for step in range(baseline.window.first, baseline.window.last + 1)
        )
        expected = baseline.step_seconds * 1.08
        assert mean == pytest.approx(expected, rel=2e-4), baseline.key.id
        assert steps[49] == pytest.approx(1.5 * expected, rel=0.03), baseline.key.id
        assert log.relative_to(tmp_path).parts[0] == LAYOUTS[baseline.key.release]
