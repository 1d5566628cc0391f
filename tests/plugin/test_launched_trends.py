"""Launched runs with a history of daily runs: changes, acknowledgements, reports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (its compiled parts cannot be imported twice, as pytester would)
from generator import write_run
from support.fake_recipe import write_recipe
from support.sessions import Judge, JudgedSession

from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.settings import Settings

NAME = "fake_8b-24.11-h100-bf16-8"
NIGHTS, CHANGED = 33, 26
START = datetime.now(UTC).replace(
    hour=3, minute=0, second=0, microsecond=0
) - timedelta(days=NIGHTS)
DAY = (START + timedelta(days=CHANGED)).date()
WOBBLE = (0, 1, -1, 2, 0, -2, 1, 0, -1, 1)
"""Per mille of the step time, night by night."""

OWN_TEST = "def test_mine(llmb_verdict):\n    assert not llmb_verdict.failed\n"

WritePastDays = Callable[..., None]
Launch = Callable[..., JudgedSession]


@pytest.fixture
def write_past_days(pytester: pytest.Pytester) -> WritePastDays:
    """Write 33 daily runs to `old`, and a recipe.

    The last 7 runs take `level` times the published step time, as do the recipe's jobs
    by default.
    """

    def write(level: float, commands: str = "") -> None:
        write_recipe(
            pytester.path, {"8b": commands or f"steps {level:.4f}"}, kind="local"
        )
        baselines = load(Settings(baselines=(pytester.path / "baselines",))).baselines
        ((baseline, *_),) = [
            candidates for key, candidates in baselines.items() if key.id == NAME
        ]
        for day in range(NIGHTS):
            factor = (level if day >= CHANGED else 1.0) * (1 + 0.001 * WOBBLE[day % 10])
            job: dict[str, Any] = {
                "started": START + timedelta(days=day),
                "job_id": str(1000 + day),
            }
            write_run(
                pytester.path / "old", baseline, factor=factor, layout="results", **job
            )

    return write


@pytest.fixture
def launch(judged: Judge) -> Launch:
    """Launch the recipe with the old runs and these arguments."""
    return lambda *arguments: judged(
        "--llmb-launch", "--llmb-logs=old", "-k", "fake", *arguments
    )


def acknowledge(folder: Path, slower: str, *, days: int = 30) -> str:
    """Write an acknowledgement valid for `days` more days, and return its option."""
    (folder / "acknowledged.yaml").write_text(
        f"schema: 1\nacknowledged:\n  - configuration: fake*\n    slower: {slower}\n    since: {DAY}\n"
        f"    expires: {(datetime.now(UTC) + timedelta(days=days)).date()}\n"
        "    reason: the security fix\n    by: A. Person\n"
    )
    return "--llmb-acknowledged=acknowledged.yaml"


def trends(session: JudgedSession) -> list[dict[str, Any]]:
    return [check for check in session.reports if check.get("check") == "trend"]


@pytest.mark.slow
def test_slower_trend_fails_and_is_in_every_report(
    write_past_days: WritePastDays,
    launch: Launch,
    pytester: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The verdict alone would pass: the level is within the tolerance."""
    write_past_days(1.04)
    capsys.readouterr()
    session = launch(
        "--llmb-trend=fail",
        "--llmb-json=all.json",
        "--llmb-html=all.html",
        "--junitxml=junit.xml",
    )
    printed = capsys.readouterr().out
    assert session.verdicts == {NAME: "PASS"}
    (trend,) = trends(session)
    assert (trend["id"], trend["verdict"], trend["status"], trend["decides"]) == (
        NAME,
        "SLOWER",
        "failed",
        True,
    )
    assert f"since {DAY}" in trend["text"]
    (change,) = session.described[NAME]["changes"]
    assert change["night"] == CHANGED
    assert change["low"] < 0.04 < change["high"]
    assert len(session.described[NAME]["history"]) == NIGHTS
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert f"test_trend[{NAME}]" in printed
    assert "[ 66%]" in printed
    assert "1 failed, 2 passed" in printed
    assert "--lf" not in printed  # --lf would launch nothing
    written = json.loads((pytester.path / "all.json").read_text())
    (written_check,) = [
        check for check in written["outcomes"] if check["kind"] == "check"
    ]
    assert written_check["text"] == trend["text"]
    assert f"since {DAY}" in (pytester.path / "all.html").read_text()
    suite = ElementTree.parse(pytester.path / "junit.xml").getroot()[0]  # noqa: S314 (our own file)
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")


@pytest.mark.slow
def test_slower_trend_is_only_reported_by_default(
    write_past_days: WritePastDays, launch: Launch
) -> None:
    write_past_days(1.04)
    session = launch()
    assert [
        (check["verdict"], check["status"], check["decides"])
        for check in trends(session)
    ] == [("SLOWER", "passed", False)]
    assert session.ret == pytest.ExitCode.OK


@pytest.mark.slow
@pytest.mark.parametrize(
    "selection",
    [
        ["--deselect=pytest_llmbench/suite/test_trend.py"],
        ["test_mine.py"],
    ],
    ids=["deselected", "own-test"],
)
def test_selection_does_not_hide_a_slower_trend(
    write_past_days: WritePastDays,
    launch: Launch,
    pytester: pytest.Pytester,
    selection: list[str],
) -> None:
    write_past_days(1.04)
    pytester.makepyfile(test_mine=OWN_TEST)
    session = launch("--llmb-trend=fail", *selection)
    assert [check["status"] for check in trends(session)] == ["failed"]
    assert (session.verdicts, session.ret) == (
        {NAME: "PASS"},
        pytest.ExitCode.TESTS_FAILED,
    )


@pytest.mark.slow
def test_trend_without_fail_option_adds_no_item_to_custom_tests(
    write_past_days: WritePastDays, launch: Launch, pytester: pytest.Pytester
) -> None:
    write_past_days(1.04)
    pytester.makepyfile(test_mine=OWN_TEST)
    session = launch("test_mine.py")
    assert (trends(session), session.ret) == ([], pytest.ExitCode.OK)
    assert session.described[NAME]["changes"]


@pytest.mark.slow
def test_acknowledged_slower_trend_passes_after_a_launch(
    write_past_days: WritePastDays, launch: Launch, pytester: pytest.Pytester
) -> None:
    write_past_days(1.06)
    session = launch("--llmb-trend=fail", acknowledge(pytester.path, "6%"))
    assert session.verdicts == {NAME: "PASS"}
    assert [(check["verdict"], check["status"]) for check in trends(session)] == [
        ("ACKNOWLEDGED", "passed")
    ]
    assert session.described[NAME]["changes"][0]["acknowledged"]["by"] == "A. Person"
    assert session.ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_expired_acknowledgement_covers_no_change(
    write_past_days: WritePastDays, launch: Launch, pytester: pytest.Pytester
) -> None:
    write_past_days(1.04)
    session = launch("--llmb-trend=fail", acknowledge(pytester.path, "6%", days=-1))
    assert [(check["verdict"], check["status"]) for check in trends(session)] == [
        ("SLOWER", "failed")
    ]
    assert session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_trend_after_a_launch_is_computed_from_stored_runs(
    write_past_days: WritePastDays, judged: Judge, pytester: pytest.Pytester
) -> None:
    write_past_days(1.04)
    stored = judged(
        "--llmb-logs=old", "-k", "fake", "--llmb-history=h.db", "--llmb-runs=each"
    )
    assert len(stored.verdicts) == NIGHTS
    shutil.rmtree(pytester.path / "old")
    session = judged(
        "--llmb-launch",
        "-k",
        "fake",
        "--llmb-history=h.db",
        "--llmb-trend=fail",
        "--llmb-json=all.json",
    )
    assert [check["status"] for check in trends(session)] == ["failed"]
    written = json.loads((pytester.path / "all.json").read_text())
    (configuration,) = [
        check for check in written["outcomes"] if check["kind"] == "configuration"
    ]
    assert len(configuration["history"]) == NIGHTS
    assert [
        (check["night"], check["started"][:10]) for check in configuration["changes"]
    ] == [(CHANGED, str(DAY))]


@pytest.mark.slow
def test_trend_of_earlier_runs_is_reported_although_the_launched_run_is_invalid(
    write_past_days: WritePastDays, launch: Launch
) -> None:
    write_past_days(1.04, "steps 1.0400 0 20; exit 3")
    session = launch("--llmb-trend=fail")
    assert session.verdicts == {NAME: "INVALID"}
    assert [(check["status"], check["decides"]) for check in trends(session)] == [
        ("failed", False)
    ]
    assert len(session.described[NAME]["history"]) == NIGHTS


@pytest.mark.slow
def test_recording_with_launch_computes_the_baseline_from_launched_runs_alone(
    write_past_days: WritePastDays, launch: Launch
) -> None:
    write_past_days(1.04)
    session = launch("--llmb-record=mine")
    report = session.described[NAME]
    assert (trends(session), report["verdict"]) == ([], "RECORDED")
    assert report["metrics"]["step_time_seconds"]["value"] == pytest.approx(
        1.04, rel=1e-3
    )
    assert "from 3 valid runs" in report["text"]


@pytest.mark.slow
def test_slow_launched_run_is_reported_with_the_last_good_stored_run(
    write_past_days: WritePastDays, launch: Launch, pytester: pytest.Pytester
) -> None:
    """The last good log is gone, but the history contains the run and its nodes."""
    write_past_days(1.0)
    shutil.rmtree(pytester.path / "old")
    (pytester.path / "old").mkdir()
    good = launch("--llmb-history=h.db").described[NAME]
    assert good["last_good"] is None
    write_recipe(pytester.path, {"8b": "steps 1.3"}, kind="local")
    slow = launch("--llmb-history=h.db").described[NAME]
    last, nodes = (
        slow["last_good"],
        [job["nodes"] for job in (*good["jobs"], *slow["jobs"])],
    )
    assert slow["status"] == "failed"
    assert (last["source"], last["job_id"]) == ("history", good["run"]["job_id"])
    assert last["nodes"] == {"before": nodes[0], "now": nodes[1]}
    assert last["settings"]["same"] == ["launcher"]
