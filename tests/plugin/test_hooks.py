"""The data that the plugin attaches to test reports."""

from __future__ import annotations

import json
import marshal
from typing import Any

import pytest
from support.sessions import Judge, Write

from pytest_llmbench.report.outcome_documents import SCHEMA

GROK = "grok1_314b-25.05-gb200-bf16-128"


@pytest.mark.slow
def test_test_report_attributes_are_plain_data(
    pytester: pytest.Pytester, judged: Judge, generated: Write
) -> None:
    """pytest-forked takes a report to the parent process by marshal, and logs of
    reports are JSON."""
    carried: list[dict[str, Any]] = []

    class Carrier:
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
            report = yield
            carried.append(
                {
                    name: value
                    for name, value in vars(report).items()
                    if name.startswith("llmb") or name == "user_properties"
                }
            )
            return report

    folder = generated(GROK, factor=1.2, noise=0.0)
    judged(f"--llmb-logs={folder}", "-k", GROK, plugins=[Carrier()])
    outcomes = [attributes["llmb"] for attributes in carried if "llmb" in attributes]
    assert [(plain["schema"], plain["verdict"]) for plain in outcomes] == [
        (SCHEMA, "REGRESSION")
    ]
    for attributes in carried:
        assert marshal.loads(marshal.dumps(attributes)) == attributes  # noqa: S302 (our own)
        assert json.loads(json.dumps(attributes)).keys() == attributes.keys()
