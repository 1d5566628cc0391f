"""Logs of an A/B: the file beside them says that they are no runs of their recipe."""

from __future__ import annotations

from pathlib import Path

from pytest_llmbench.core.models import Reason
from pytest_llmbench.ingest.discover import find_runs


def test_a_log_with_a_mark_is_of_an_ab_and_others_are_not(tmp_path: Path) -> None:
    for name in ("log-grok1_314b_128_1_0.out", "log-grok1_314b_128_2_0.out", "log-grok1_314b_128_1_0.out.ab"):
        (tmp_path / name).touch()
    found = find_runs([tmp_path])
    assert {run.job_id: run.excluded for run in found.runs} == {"1": Reason.VARIANT, "2": None}
    assert not found.ignored
    assert next(run for run in found.runs if run.excluded).excluded_because == (
        "log-grok1_314b_128_1_0.out.ab lies beside its log: a run of an A/B"
    )
