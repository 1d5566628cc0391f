"""The newest run: logless jobs, inconsistent clocks, copied files."""

from __future__ import annotations

import os
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from generator import write_run
from generator.plan import STARTED
from support.sessions import Judge

from pytest_llmbench.core.baseline_records import Baseline

NEMOTRON = "nemotron4_340b-25.01-h100-bf16-128"
LLAMA = "llama3.1_8b-25.04-h100-bf16-16"
GROK = "grok1_314b-25.05-gb200-bf16-128"
MAXTEXT = "maxtext_llama2_70b-24.11-h100-bf16-64"
OLD, NEW, LATER = "1530101", "1530222", "1530333"


def now() -> datetime:
    """The time of the test itself: a suite may take longer than a launch is awaited."""
    return datetime.now(UTC)


@pytest.fixture
def write_day(tmp_path: Path, baselines: dict[str, Baseline]) -> Any:
    """Write a run that started `day` days after `started`, and return its log."""

    def write(
        name: str, day: float, job: str, started: datetime = STARTED, **options: Any
    ) -> Path:
        return write_run(
            tmp_path,
            baselines[name],
            job_id=job,
            started=started + timedelta(days=day),
            **options,
        )

    return write


def judge_outline(
    judged: Judge, folder: Path, name: str, *options: str
) -> tuple[str, str, str]:
    """Judge a configuration and return its verdict, reason and judged job."""
    return outline(
        judged(f"--llmb-logs={folder}", "-k", name, *options).described[name]
    )


def outline(outcome: dict[str, Any]) -> tuple[str, str, str]:
    """Return the verdict, reason and judged job of an outcome."""
    return (
        outcome["verdict"],
        outcome["reason"],
        (outcome["run"] or {}).get("job_id", ""),
    )


# --- jobs without a log ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "evidence"),
    [(NEMOTRON, f"log-nemo_nemotron4_340b_128_{NEW}.err"), (GROK, "")],
)
def test_newest_job_without_a_log_is_invalid(
    judged: Judge, tmp_path: Path, write_day: Any, name: str, evidence: str
) -> None:
    """It left its standard error, or only metadata; a later job takes its place,
    however long ago it was."""
    write_day(name, 0, OLD)
    write_day(name, 20, NEW).unlink()
    outcome = judged(f"--llmb-logs={tmp_path}", "-k", name).described[name]
    assert outline(outcome) == ("INVALID", "no-steps", NEW)
    assert evidence in outcome["text"]
    write_day(name, 21, LATER)
    assert judge_outline(judged, tmp_path, name) == ("PASS", "within-tolerance", LATER)


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["", "sbatch_a-b.x_9.out", "config.yaml"])
def test_newest_launch_without_a_log_is_invalid(
    judged: Judge, tmp_path: Path, write_day: Any, beside: str
) -> None:
    names, arguments = (
        (LLAMA, GROK),
        (f"--llmb-logs={tmp_path}", "-k", f"{LLAMA} or {GROK}"),
    )
    launches = {}
    for name in names:
        write_day(name, 0, OLD)
        folder = write_day(name, 9, NEW).parent
        shutil.rmtree(folder)
        folder.mkdir()
        if beside:
            (folder / beside).write_text("x\n")
        launches[name] = folder.parent.name
    described = judged(*arguments).described
    assert {name: outline(described[name]) for name in names} == dict.fromkeys(
        names, ("INVALID", "no-steps", "")
    )
    for name in names:
        assert launches[name] in described[name]["text"]
        write_day(name, 10, LATER)
    described = judged(*arguments).described
    expected = ("PASS", "within-tolerance", LATER)
    assert {name: outline(described[name]) for name in names} == dict.fromkeys(
        names, expected
    )


@pytest.mark.slow
def test_configuration_whose_old_jobs_lost_their_logs_is_missing(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """Logs were pruned, and there is none that could be judged in the place of one of
    these jobs."""
    write_day(GROK, 0, OLD).unlink()
    shutil.rmtree(write_day(LLAMA, 0, OLD).parent)
    write_day(NEMOTRON, 0, OLD).unlink()
    write_day(MAXTEXT, 0, OLD)
    session = judged(f"--llmb-logs={tmp_path}")
    assert {session.verdicts[name] for name in (GROK, LLAMA, NEMOTRON)} == {"MISSING"}
    assert session.ret == pytest.ExitCode.OK


# --- clocks ---------------------------------------------------------------------------


def restamped(log: Path, moved: timedelta) -> None:
    """Give the folder of a launch the time of another clock."""
    launch = log.parents[1]
    stamp = int(launch.name.rpartition("_")[2])
    launch.rename(
        launch.with_name(
            launch.name.replace(str(stamp), str(stamp + int(moved.total_seconds())))
        )
    )


@pytest.mark.slow
def test_time_stamp_hours_in_the_future_is_ignored(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """An older good run whose launch bears tomorrow's time does not stand for the slow
    one of an hour ago."""
    restamped(
        write_day(LLAMA, 0, OLD, now() - timedelta(days=2)), timedelta(days=2, hours=20)
    )
    write_day(LLAMA, 0, NEW, now() - timedelta(hours=1), factor=1.3)
    assert judge_outline(judged, tmp_path, LLAMA) == (
        "REGRESSION",
        "slower-than-bound",
        NEW,
    )


def stampless(log: Path, written: datetime) -> None:
    """Take all times out of a log, and write it anew."""
    log.write_text(
        re.sub(r"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*", "-", log.read_text())
    )
    os.utime(log, (written.timestamp(), written.timestamp()))


@pytest.mark.slow
def test_verdict_notes_that_only_file_times_show_which_run_is_newest(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """Logs without a time stamp: copying them makes any of them the newest, and the
    line of the verdict says so."""
    stampless(write_day(MAXTEXT, 0, OLD), now() - timedelta(hours=1))
    alone = judged(f"--llmb-logs={tmp_path}", "-k", MAXTEXT).described[MAXTEXT]
    assert "order-file-time" not in [note["code"] for note in alone["notes"]]
    stampless(write_day(MAXTEXT, 1, NEW, factor=1.02), now() - timedelta(hours=2))
    outcome = judged(f"--llmb-logs={tmp_path}", "-k", MAXTEXT).described[MAXTEXT]
    assert (
        outcome["verdict"],
        outcome["run"]["job_id"],
        outcome["run"]["order_source"],
    ) == (
        "PASS",
        OLD,
        "file-time",
    )
    assert "only file times show" in outcome["text"]
    assert "order-file-time" in [note["code"] for note in outcome["notes"]]


# --- another run that may be newer ----------------------------------------------------


@pytest.mark.slow
def test_configuration_is_invalid_if_job_ids_contradict_timestamps_on_the_newest_run(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """Its job id is higher, and its log is stamped a day before the other: which is
    newer decides, and is unknown."""
    logs = write_day(MAXTEXT, 1, OLD), write_day(MAXTEXT, 0, NEW, factor=1.3)
    assert judge_outline(judged, tmp_path, MAXTEXT) == (
        "PASS",
        "within-tolerance",
        OLD,
    )  # as the files confirm
    for log in logs:
        os.utime(log, (1.77e9, 1.77e9))
    assert judge_outline(judged, tmp_path, MAXTEXT) == (
        "INVALID",
        "order-ambiguous",
        OLD,
    )
    write_day(MAXTEXT, 2, LATER)
    # Two nights that differ by 30 % are noisier than is assumed.
    assert judge_outline(judged, tmp_path, MAXTEXT) == (
        "INCONCLUSIVE",
        "cannot-tell",
        LATER,
    )


@pytest.mark.slow
def test_newest_run_is_the_last_started_not_the_last_submitted(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """Two jobs were submitted one after the other, and the first one ran last, by the
    stamps of the logs."""
    for job, submitted, ran, factor in ((OLD, 0, 3, 1.3), (NEW, 1, 2, 1.0)):
        restamped(
            write_day(LLAMA, ran, job, factor=factor), timedelta(days=submitted - ran)
        )
    assert judge_outline(judged, tmp_path, LLAMA) == (
        "REGRESSION",
        "slower-than-bound",
        OLD,
    )
