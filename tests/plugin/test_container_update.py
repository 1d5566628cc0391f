"""Replay of a container update that NeMo's users reported as slower."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (its compiled parts cannot be imported twice, as pytester would)
from support.sessions import Judge, JudgedSession
from support.updated_container import (
    AFTER,
    BEFORE,
    CONTAINERS,
    date,
    plan_days,
    write_runs,
)

from pytest_llmbench.cli import main as cli
from pytest_llmbench.core.baseline_records import Baseline

RECORDED = 5
ROW = "nemotron4_340b-own-{}-128"
SLOWER, SLIGHTLY, LITTLE, UNCHANGED = (
    ROW.format(of) for of in ("gb200-fp8", "gb200-bf16", "b200-fp8", "b200-bf16")
)


@pytest.fixture
def sessions(
    judged: Judge,
    baselines: dict[str, Baseline],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[JudgedSession]:
    """Judge the days after the first five, and return the sessions.

    The first five days are recorded as the baseline.
    """
    monkeypatch.chdir(tmp_path)
    sessions = []
    for day, runs in enumerate(plan_days(baselines)):
        write_runs(Path("runs") / date(day), runs)
        if day == RECORDED - 1:
            judged("--llmb-logs=runs", "--llmb-record=own")
        if day >= RECORDED:
            logs = f"--llmb-logs=runs/{date(day)}"
            sessions.append(
                judged(
                    logs,
                    "--llmb-baselines=own",
                    "--llmb-history=history.db",
                    "-k",
                    "own",
                )
            )
    return sessions


@pytest.mark.slow
def test_regression_names_the_container_update_and_comparison_gives_its_cost(
    sessions: list[JudgedSession], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = sessions[: BEFORE - RECORDED], sessions[BEFORE - RECORDED :]
    assert all(set(session.verdicts.values()) == {"PASS"} for session in before)
    for session in after:
        assert session.verdicts == {
            SLOWER: "REGRESSION",
            SLIGHTLY: "PASS",
            LITTLE: "PASS",
            UNCHANGED: "PASS",
        }
        assert "cluster-wide" not in session.messages[SLOWER], (
            "four configurations moved by 0, 2, 3 and 31 %"
        )
    last = after[0].described[SLOWER]["last_good"]
    assert last["started"].startswith(date(BEFORE - 1))
    then_and_now = [f"nvcr.io#nvidia/{name}" for name in CONTAINERS]
    assert last["software"]["differs"] == {"container": then_and_now}
    capsys.readouterr()
    sides = [
        f"{date(0)}..{date(BEFORE - 1)}",
        f"{date(BEFORE)}..{date(BEFORE + AFTER - 1)}",
    ]
    code = cli.main(
        [
            "compare",
            *sides,
            "--history=history.db",
            "--baselines=own",
            "--json=sides.json",
        ]
    )
    assert code == 1
    told = {
        comparison["configuration"]: comparison
        for comparison in json.loads(Path("sides.json").read_text())["comparisons"]
    }
    assert {name: comparison["answer"] for name, comparison in told.items()} == {
        SLOWER: "slower",
        SLIGHTLY: "slower",
        LITTLE: "slower",
        UNCHANGED: "alike",
    }
    assert told[SLOWER]["difference"] == pytest.approx(1.68 / 1.28 - 1, abs=0.01)
    assert {comparison["candidate"] for comparison in told.values()} == {"container"}
