"""A metric declared in one table appears in all reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders import BASELINE, KEY, NOW, evidence, log, run, segment, steps

from pytest_llmbench.core.metric_definitions import METRICS, Definition
from pytest_llmbench.core.outcome_records import (
    Case,
    ConfigurationResult,
    Outcome,
    Status,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report import junit
from pytest_llmbench.report.describe_outcome import describe, list_properties
from pytest_llmbench.report.explain import explain
from pytest_llmbench.report.html import render
from pytest_llmbench.report.outcome_documents import make_plain
from pytest_llmbench.runs.measure.measurement import measure


def test_declared_metric_is_in_every_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared = Definition(
        "samples/s",
        larger_is_better=True,
        formula=lambda baseline, seconds: (
            baseline.configuration.global_batch_size / seconds
        ),
        label="samples/s",
        form="{:.3f}",
        is_property=True,
    )
    monkeypatch.setitem(METRICS, "samples_per_second", declared)
    judgement = judge(evidence(measure(run(log(segment(steps(8.0)))), BASELINE, NOW)))
    described = describe(
        Outcome(ConfigurationResult(Case(KEY.id, KEY), judgement), Status.FAILED),
        NOW,
        Path("/runs"),
    )
    batch = BASELINE.configuration.global_batch_size
    value, wanted = batch / 8.0, batch / BASELINE.step_seconds
    stored = json.loads(json.dumps(make_plain(described)))
    assert stored["metrics"]["samples_per_second"]["unit"] == "samples/s"
    assert stored["metrics"]["samples_per_second"]["value"] == pytest.approx(value)
    assert stored["expected_metrics"]["samples_per_second"] == pytest.approx(wanted)
    assert float(
        dict(list_properties(described))["samples_per_second"]
    ) == pytest.approx(value)
    assert f"samples_per_second: {value!r}" in junit.render([described], NOW).decode()
    assert f"{value:.3f}" in render([described], NOW)
    row = next(
        line
        for line in explain(described, short=False).splitlines()
        if "samples/s" in line
    )
    assert row.split()[1:3] == [f"{value:.3f}", f"{wanted:.3f}"]
