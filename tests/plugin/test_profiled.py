"""Profiled runs are not judged and do not hide other runs."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from generator import write_run
from generator.plan import STARTED
from support.sessions import Judge, JudgedSession

from pytest_llmbench.core.baseline_records import Baseline

GROK = "grok1_314b-24.11-h100-bf16-512"
NEMOTRON = "nemotron4_340b-25.01-h100-bf16-128"
LLAMA = "llama3.1_70b-25.04-h100-fp8-256"
OLD, NEW = "1388101", "1388109"


@pytest.fixture
def write_day(tmp_path: Path, baselines: dict[str, Baseline]) -> Any:
    """Write a run that started `day` days after the first run, and return its log."""

    def write(name: str, day: int, job: str, **options: Any) -> Path:
        return write_run(
            tmp_path,
            baselines[name],
            job_id=job,
            started=STARTED + timedelta(days=day),
            **options,
        )

    return write


def judge_notes(
    judged: Judge, folder: Path, name: str, *options: str
) -> tuple[str, str, list[str]]:
    """Judge a configuration and return its verdict, judged job and note codes."""
    outcome = judged(f"--llmb-logs={folder}", *options).described[name]
    return (
        outcome["verdict"],
        (outcome["run"] or {}).get("job_id", ""),
        [note["code"] for note in outcome["notes"]],
    )


def verdicts(session: JudgedSession) -> dict[str, str]:
    return {
        outcome["run"]["job_id"]: outcome["verdict"]
        for outcome in session.described.values()
        if outcome.get("run")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [GROK, NEMOTRON])
@pytest.mark.parametrize("below", ["nsys/run", "."])
def test_profiler_report_in_a_results_folder_makes_only_its_job_not_comparable(
    judged: Judge, tmp_path: Path, write_day: Any, name: str, below: str
) -> None:
    """The newest comparable run is judged, with a note; the folder holds the logs of
    all nights."""
    write_day(name, 0, OLD)
    log = write_day(name, 1, NEW)
    folder = log.parent / below
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"model-size-dtype_512g_{NEW}_0_3.nsys-rep").touch()
    verdict, job, notes = judge_notes(judged, tmp_path, name)
    assert (verdict, job, "not-comparable" in notes) == ("PASS", OLD, True)
    write_day(name, 2, "1388120")
    verdict, job, notes = judge_notes(judged, tmp_path, name)
    assert (verdict, job, "not-comparable" in notes) == ("PASS", "1388120", False)


@pytest.mark.slow
def test_configuration_with_profiled_runs_alone_is_missing(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    for day, job in ((0, OLD), (1, NEW)):
        log = write_day(NEMOTRON, day, job)
        (log.parent / "nsys").mkdir(exist_ok=True)
        (log.parent / "nsys" / f"m-s-d_128g_{job}_0_0.nsys-rep").touch()
    session = judged(f"--llmb-logs={tmp_path}")
    assert session.verdicts[NEMOTRON] == "MISSING"
    assert session.described[NEMOTRON]["reason"] == "only-not-comparable"
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    second_session = judged(f"--llmb-logs={tmp_path}", "--llmb-runs=each")
    assert verdicts(second_session) == {OLD: "NOT_COMPARABLE", NEW: "NOT_COMPARABLE"}


@pytest.mark.slow
def test_profiler_report_in_an_experiment_folder_makes_its_only_run_not_comparable(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """`experiments/E/profile_<process>.nsys-rep`, where the document of 25.04 says that
    it is written."""
    log = write_day(LLAMA, 0, OLD)
    (log.parents[2] / "profile_4711.nsys-rep").touch()
    assert judge_notes(judged, tmp_path, LLAMA)[0] == "MISSING"
    assert verdicts(judged(f"--llmb-logs={tmp_path}", "--llmb-runs=each")) == {
        OLD: "NOT_COMPARABLE"
    }


@pytest.mark.slow
def test_old_profile_does_not_exclude_a_newer_run(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """Older runs were pruned: what they left of a profiler is not of the run that is
    there now."""
    log = write_day(LLAMA, 9, NEW)
    report = log.parents[2] / "profile_4711.nsys-rep"
    report.touch()
    os.utime(report, (STARTED.timestamp(), STARTED.timestamp()))
    verdict, job, notes = judge_notes(judged, tmp_path, LLAMA)
    assert (verdict, job, "profiler-report" in notes) == ("PASS", NEW, True)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["_nsys", "_nccltrace"])
def test_short_run_launched_beside_its_profiled_copy_is_not_comparable(
    judged: Judge, tmp_path: Path, write_day: Any, ending: str
) -> None:
    """NeMo-Run launches `E` and `E_nsys` together, both of 25 steps: neither is a
    measurement."""
    write_day(LLAMA, 0, OLD)
    log = write_day(LLAMA, 1, NEW, steps=25)
    beside = log.parent.with_name(log.parent.name + ending)
    beside.mkdir()
    (beside / log.name.replace(log.parent.name, beside.name)).write_text(
        log.read_text()
    )
    (log.parents[2] / "profile_4711.nsys-rep").touch()
    verdict, job, notes = judge_notes(judged, tmp_path, LLAMA)
    assert (verdict, job, "not-comparable" in notes) == ("PASS", OLD, True)
    assert (
        "profiler-report" not in notes or ending == "_nccltrace"
    )  # the profiled run explains it


@pytest.mark.slow
def test_complete_run_next_to_a_profiled_run_is_judged(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """It is none that is too short to compare: what it says must not be lost."""
    write_day(LLAMA, 0, OLD)
    log = write_day(LLAMA, 1, NEW, factor=1.2)
    log.parent.with_name(f"{log.parent.name}_nsys").mkdir()
    assert judge_notes(judged, tmp_path, LLAMA)[:2] == ("REGRESSION", NEW)
