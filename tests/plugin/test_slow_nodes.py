"""The item about slow nodes: failed, reported or skipped."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (its compiled parts cannot be imported twice, as pytester would)
from support.node_histories import store_sessions
from support.sessions import Judge, JudgedSession, Write

GROK = "grok1_314b-25.05-gb200-bf16-128"
HISTORY = "--llmb-history=h.db"
NODES = "test_slow_node[nodes]"


def find_check(session: JudgedSession) -> dict[str, Any]:
    (check,) = [
        report for report in session.reports if report.get("check") == "slow-node"
    ]
    return dict(check)


@pytest.fixture
def logs(generated: Write) -> str:
    """The run of the next day, on unknown nodes."""
    return (
        f"--llmb-logs={generated(GROK, started=datetime(2025, 12, 1, 2, tzinfo=UTC))}"
    )


@pytest.mark.slow
def test_slow_node_found_from_the_history_is_reported_as_a_failed_item(
    judged: Judge,
    logs: str,
    pytester: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the runs that show it and what leaves it out; it follows a selection of a
    configuration that it is about."""
    store_sessions(pytester.path / "h.db", {7: 0.1})
    capsys.readouterr()
    session = judged(
        logs, HISTORY, "-k", GROK, "--llmb-json=all.json", "--junitxml=junit.xml"
    )
    check = find_check(session)
    assert (check["status"], check["verdict"], check["decides"]) == (
        "failed",
        "SLOW_NODE",
        False,
    )
    assert check["text"].startswith("n07 is slow: +10.0 % (")
    assert "  exclude   --llmb-exclude=n07, in Slurm --exclude=n07" in check["lines"]
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert session.verdicts[GROK] == "PASS"
    printed = " ".join(capsys.readouterr().out.split())
    assert "SLOW-NODE SLOW_NODE nodes" in printed
    assert (
        "then list it under `repaired:` in the file of --llmb-acknowledged" in printed
    )
    written = json.loads((pytester.path / "all.json").read_text())
    assert [
        outcome["check"]
        for outcome in written["outcomes"]
        if outcome["kind"] == "check" and outcome["status"] == "failed"
    ] == ["slow-node"]
    assert NODES in (pytester.path / "junit.xml").read_text()


@pytest.mark.slow
def test_reported_result_is_the_same_with_an_xdist_worker(
    judged: Judge, logs: str, pytester: pytest.Pytester
) -> None:
    store_sessions(pytester.path / "h.db", {7: 0.1})
    assert find_check(judged(logs, HISTORY, "-n1"))["verdict"] == "SLOW_NODE"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (
            {"slow": {7: 0.1}, "days": 8},
            ("SUSPECT_NODES", "at least one node is slow, not yet identified"),
        ),
        ({"slow": {}, "shared_slowdown": 0.05}, ("NO_NODE", "no slow node found")),
        (
            {"slow": {7: 0.1}, "days": 6},
            ("NOTHING_TO_TELL", "no answer: no run has known nodes"),
        ),
        (
            {"slow": {}, "days": 0},
            ("NOTHING_TO_TELL", "no run in the history has known nodes"),
        ),
    ],
)
def test_slow_node_item_fails_without_failing_other_items(
    judged: Judge,
    logs: str,
    pytester: pytest.Pytester,
    options: dict[str, Any],
    answer: tuple[str, str],
) -> None:
    """Without evidence the item is skipped, with the reason."""
    verdict, text = answer
    if options.get("days", 30):
        store_sessions(pytester.path / "h.db", **options)
    session = judged(logs, HISTORY)
    check = find_check(session)
    assert (check["verdict"], check["status"]) == (
        verdict,
        "skipped" if verdict == "NOTHING_TO_TELL" else "passed",
    )
    assert check["text"].startswith(text)
    assert session.ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_slow_node_item_needs_a_history(judged: Judge, logs: str) -> None:
    assert "slow-node" not in {report.get("check") for report in judged(logs).reports}


@pytest.mark.slow
def test_repaired_node_passes(
    judged: Judge, logs: str, pytester: pytest.Pytester
) -> None:
    """Evidence about a node begins with its last repair."""
    store_sessions(pytester.path / "h.db", {7: 0.1})
    Path(pytester.path / "done.yaml").write_text(
        "schema: 1\nacknowledged: []\nrepaired:\n  - nodes: n07\n    since: 2025-12-01\n    reason: a new HCA\n"
        "    by: A. Person\n"
    )
    session = judged(logs, HISTORY, "--llmb-acknowledged=done.yaml")
    assert find_check(session)["status"] == "skipped"
    assert session.ret == pytest.ExitCode.OK
