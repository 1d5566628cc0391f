"""Which run is the newest: jobs that left no log, clocks that cannot be compared, and files that were copied."""

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
from sessions import Judge

from pytest_llmbench.core.models import Baseline

NEMOTRON = "nemotron4_340b-25.01-h100-bf16-128"
LLAMA = "llama3.1_8b-25.04-h100-bf16-16"
GROK = "grok1_314b-25.05-gb200-bf16-128"
MAXTEXT = "maxtext_llama2_70b-24.11-h100-bf16-64"
OLD, NEW, LATER = "1530101", "1530222", "1530333"


def now() -> datetime:
    """The time of the test itself: a suite may take longer than a launch is awaited."""
    return datetime.now(UTC)


@pytest.fixture
def night(tmp_path: Path, baselines: dict[str, Baseline]) -> Any:
    """Write a run of a configuration some days after the first one, or at a moment, and return its log."""

    def write(name: str, day: float, job: str, started: datetime = STARTED, **options: Any) -> Path:
        return write_run(tmp_path, baselines[name], job_id=job, started=started + timedelta(days=day), **options)

    return write


def told(judged: Judge, folder: Path, name: str, *options: str) -> tuple[str, str, str]:
    """Return verdict, reason and judged job of a configuration."""
    return outline(judged(f"--llmb-logs={folder}", "-k", name, *options).described[name])


def outline(one: dict[str, Any]) -> tuple[str, str, str]:
    """Return verdict, reason and judged job of an outcome."""
    return one["verdict"], one["reason"], (one["run"] or {}).get("job_id", "")


# --- jobs without a log ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("days", [1, 30])
def test_a_newest_job_that_left_only_standard_error_is_invalid(
    judged: Judge, tmp_path: Path, night: Any, days: int
) -> None:
    night(NEMOTRON, 0, OLD)
    night(NEMOTRON, days, NEW).unlink()
    one = judged(f"--llmb-logs={tmp_path}", "-k", NEMOTRON).described[NEMOTRON]
    assert outline(one) == ("INVALID", "no-steps", NEW)
    assert f"log-nemo_nemotron4_340b_128_{NEW}.err" in one["text"]
    night(NEMOTRON, days + 1, LATER)
    assert told(judged, tmp_path, NEMOTRON) == ("PASS", "within-tolerance", LATER)


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["", "sbatch_a-b.x_9.out", "config.yaml", "train.sh"])
def test_a_newest_launch_without_a_log_is_invalid(judged: Judge, tmp_path: Path, night: Any, beside: str) -> None:
    names, arguments = (LLAMA, GROK), (f"--llmb-logs={tmp_path}", "-k", f"{LLAMA} or {GROK}")
    launches = {}
    for name in names:
        night(name, 0, OLD)
        folder = night(name, 9, NEW).parent
        shutil.rmtree(folder)
        folder.mkdir()
        if beside:
            (folder / beside).write_text("x\n")
        launches[name] = folder.parent.name
    described = judged(*arguments).described
    assert {name: outline(described[name]) for name in names} == dict.fromkeys(names, ("INVALID", "no-steps", ""))
    for name in names:
        assert launches[name] in described[name]["text"]
        night(name, 10, LATER)
    described = judged(*arguments).described
    expected = ("PASS", "within-tolerance", LATER)
    assert {name: outline(described[name]) for name in names} == dict.fromkeys(names, expected)


@pytest.mark.slow
def test_a_newest_job_that_left_only_metadata_is_invalid_however_long_ago(
    judged: Judge, tmp_path: Path, night: Any
) -> None:
    night(GROK, 0, OLD)
    night(GROK, 20, NEW).unlink()
    assert told(judged, tmp_path, GROK) == ("INVALID", "no-steps", NEW)
    night(GROK, 21, LATER)
    assert told(judged, tmp_path, GROK) == ("PASS", "within-tolerance", LATER)


def test_a_launch_of_this_minute_is_told_and_no_alarm(judged: Judge, tmp_path: Path, night: Any) -> None:
    night(LLAMA, 0, OLD, now() - timedelta(days=1))
    folder = night(LLAMA, 0, NEW, now() - timedelta(minutes=2)).parent
    shutil.rmtree(folder)
    folder.mkdir()
    one = judged(f"--llmb-logs={tmp_path}", "-k", LLAMA).described[LLAMA]
    assert (one["verdict"], one["run"]["job_id"]) == ("PASS", OLD)
    assert "newer-job" in [note["code"] for note in one["notes"]]


def test_a_launch_that_waits_for_hours_is_no_green_light(judged: Judge, tmp_path: Path, night: Any) -> None:
    night(LLAMA, 0, OLD, now() - timedelta(days=1))
    folder = night(LLAMA, 0, NEW, now() - timedelta(hours=3)).parent
    shutil.rmtree(folder)
    assert told(judged, tmp_path, LLAMA)[:2] == ("INVALID", "no-steps")


@pytest.mark.slow
def test_what_is_left_where_no_run_is_alarms_nobody_after_a_week(judged: Judge, tmp_path: Path, night: Any) -> None:
    """Logs were pruned, and there is none that could be judged in the place of one of these jobs."""
    night(GROK, 0, OLD).unlink()
    shutil.rmtree(night(LLAMA, 0, OLD).parent)
    night(NEMOTRON, 0, OLD).unlink()
    night(MAXTEXT, 0, OLD)
    session = judged(f"--llmb-logs={tmp_path}")
    assert {session.verdicts[name] for name in (GROK, LLAMA, NEMOTRON)} == {"MISSING"}
    assert session.ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_a_folder_whose_log_has_another_name_or_was_put_away_is_no_empty_launch(
    judged: Judge, tmp_path: Path, night: Any
) -> None:
    """Hard links and a log that somebody renamed: neither is a job without a log."""
    log = night(LLAMA, 0, OLD)
    mirror = tmp_path / "mirror" / log.parent.relative_to(tmp_path)
    mirror.mkdir(parents=True)
    os.link(log, mirror / log.name)
    bad = night(LLAMA, 3, NEW, factor=1.3)
    bad.rename(bad.with_suffix(".out.bak"))
    assert told(judged, tmp_path, LLAMA) == ("PASS", "within-tolerance", OLD)


def test_standard_error_in_a_folder_of_its_own_belongs_to_its_log(judged: Judge, tmp_path: Path, night: Any) -> None:
    log = night(NEMOTRON, 0, OLD)
    errors = tmp_path / "errors" / log.parent.relative_to(tmp_path)
    errors.mkdir(parents=True)
    log.with_suffix(".err").rename(errors / log.with_suffix(".err").name)
    assert told(judged, tmp_path, NEMOTRON) == ("PASS", "within-tolerance", OLD)


# --- clocks ---------------------------------------------------------------------------------------------------


def restamped(log: Path, moved: timedelta) -> None:
    """Give the folder of a launch the time of another clock."""
    launch = log.parents[1]
    stamp = int(launch.name.rpartition("_")[2])
    launch.rename(launch.with_name(launch.name.replace(str(stamp), str(stamp + int(moved.total_seconds())))))


def test_a_stamp_of_seconds_is_not_believed_where_it_lies_hours_ahead(
    judged: Judge, tmp_path: Path, night: Any
) -> None:
    """An older good run whose launch bears tomorrow's time does not stand for the slow one of an hour ago."""
    restamped(night(LLAMA, 0, OLD, now() - timedelta(days=2)), timedelta(days=2, hours=20))
    night(LLAMA, 0, NEW, now() - timedelta(hours=1), factor=1.3)
    assert told(judged, tmp_path, LLAMA) == ("REGRESSION", "slower-than-bound", NEW)


def test_local_times_of_a_cluster_hours_ahead_are_compared_with_each_other(
    judged: Judge, tmp_path: Path, night: Any
) -> None:
    """All logs bear the time of a zone nine hours ahead: the newest is the newest, and in the future of nobody."""
    ahead = timedelta(hours=9)
    night(NEMOTRON, 0, OLD, now() - timedelta(days=1) + ahead)
    log = night(NEMOTRON, 0, NEW, now() - timedelta(hours=2) + ahead, factor=1.3)
    os.utime(log, (now().timestamp() - 90_000, now().timestamp() - 90_000))  # a file time decides nothing here
    one = judged(f"--llmb-logs={tmp_path}", "-k", NEMOTRON).described[NEMOTRON]
    assert (one["verdict"], one["run"]["job_id"], one["run"]["order_source"]) == ("REGRESSION", NEW, "log")


def stampless(log: Path, written: datetime) -> None:
    """Take all times out of a log, and write it anew."""
    log.write_text(re.sub(r"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*", "-", log.read_text()))
    os.utime(log, (written.timestamp(), written.timestamp()))


def test_what_the_order_rests_on_is_said_where_only_files_tell_it(judged: Judge, tmp_path: Path, night: Any) -> None:
    """Logs without a time stamp: copying them makes any of them the newest, and the line of the verdict says so."""
    stampless(night(MAXTEXT, 0, OLD), now() - timedelta(hours=1))
    stampless(night(MAXTEXT, 1, NEW, factor=1.02), now() - timedelta(hours=2))
    one = judged(f"--llmb-logs={tmp_path}", "-k", MAXTEXT).described[MAXTEXT]
    assert (one["verdict"], one["run"]["job_id"], one["run"]["order_source"]) == ("PASS", OLD, "file-time")
    assert "only the times of the files say" in one["text"]
    assert "order-file-time" in [note["code"] for note in one["notes"]]


def test_one_run_alone_needs_no_order(judged: Judge, tmp_path: Path, night: Any) -> None:
    stampless(night(MAXTEXT, 0, OLD), now() - timedelta(hours=1))
    one = judged(f"--llmb-logs={tmp_path}", "-k", MAXTEXT).described[MAXTEXT]
    assert "order-file-time" not in [note["code"] for note in one["notes"]]


def test_runs_that_share_only_the_times_in_their_logs_are_ordered_by_those(
    judged: Judge, tmp_path: Path, night: Any
) -> None:
    """One has the folder of a launch, whose clock is a day late; the other one only stands in a folder."""
    night(LLAMA, 0, OLD)
    new = night(LLAMA, 1, NEW, factor=1.3)
    restamped(night(LLAMA, 0, LATER, STARTED - timedelta(hours=1)), timedelta(days=30))
    loose = tmp_path / "pretrain_llama3.1_8b_bf16_16"
    loose.mkdir()
    new.rename(loose / new.name)
    shutil.rmtree(new.parents[1])
    one = judged(f"--llmb-logs={tmp_path}", "-k", LLAMA).described[LLAMA]
    assert (one["verdict"], one["run"]["job_id"], one["run"]["order_source"]) == ("REGRESSION", NEW, "log")
