"""What the logs of running jobs tell the engine."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from job_specs import Clock, job, running

from pytest_llmbench.core.models import Discovery
from pytest_llmbench.ingest import discover
from pytest_llmbench.ingest.sources.files import File
from pytest_llmbench.pipeline.catalog import load
from pytest_llmbench.pipeline.launch.running_logs import RunningLogs
from pytest_llmbench.pipeline.settings import Settings

LINE = (
    "Training epoch 0, iteration {0}/49 | lr: 1e-05 | global_batch_size: 128 | global_step: {0} |"
    " reduced_train_loss: 11.9 | train_step_timing in s: 2.5 | consumed_samples: 128\n"
)


def test_a_running_jobs_log_is_looked_for_until_it_has_steps_and_again_after_a_requeue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[Sequence[Path]] = []

    def find_runs(paths: Sequence[Path]) -> Discovery:
        searched.append(paths)
        return found(paths)

    found = discover.find_runs
    monkeypatch.setattr(discover, "find_runs", find_runs)
    clock = Clock()
    runs = RunningLogs(load(Settings()), clock.now)
    one = job(tmp_path, log_folder=tmp_path, status=running())
    log = tmp_path / f"log-nemo_fake_8b_8_{one.job_id}.out"
    assert runs.read_last_step(one) is None
    log.write_text("no step yet\n")
    assert runs.read_last_step(one) is None
    assert len(searched) == 1
    clock.sleep(1.0)
    assert runs.read_last_step(one) is None
    assert len(searched) == 2
    clock.sleep(2.0)
    for step in range(3):
        log.write_text("".join(LINE.format(number) for number in range(step + 1)))
        assert runs.read_last_step(one) == (step + 1, 50, 2.5)
    assert len(searched) == 3
    assert runs.read_last_step(replace(one, status=running(restarts=1))) == (3, 50, 2.5)
    assert len(searched) == 4


def test_of_a_run_in_an_allocation_the_recipes_log_is_followed_and_not_what_its_script_printed(tmp_path: Path) -> None:
    """Both bear the job id of the allocation; where there is no other, what it printed is the log."""
    recipe, own = tmp_path / "a", tmp_path / "z"
    for folder in (recipe, own):
        folder.mkdir()
    (own / "slurm-4711.out").write_text(LINE.format(0) * 5)
    run = job(own, job_id="4711-2", log_folder=own, status=running())
    run = replace(run, spec=replace(run.spec, via="allocation", allocation=1, log_folders=(recipe,)))
    assert RunningLogs(load(Settings()), Clock().now).read_progress(run).steps > 0
    log = recipe / "log-nemo_fake_8b_8_4711.out"
    log.write_text("no step yet\n")
    assert RunningLogs(load(Settings()), Clock().now).read_progress(run).path == log


def test_a_log_without_steps_is_looked_for_ever_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = 0

    def find_runs(paths: Sequence[Path]) -> Discovery:
        nonlocal searched
        searched += 1
        return found(paths)

    found = discover.find_runs
    monkeypatch.setattr(discover, "find_runs", find_runs)
    clock = Clock()
    logs, one = RunningLogs(load(Settings()), clock.now), job(tmp_path, log_folder=tmp_path, status=running())
    for _ in range(360):
        assert logs.read_progress(one).path is None
        clock.sleep(10.0)
    assert searched < 70, "in an hour, with a look every 10 s"


def test_a_requeued_job_whose_new_log_comes_later_than_its_start_is_followed_in_that(tmp_path: Path) -> None:
    clock = Clock()
    logs, one = RunningLogs(load(Settings()), clock.now), job(tmp_path, log_folder=tmp_path, status=running())
    first, second = (tmp_path / f"log-nemo_fake_8b_8_{one.job_id}_{start}.out" for start in (0, 1))
    first.write_text("".join(LINE.format(step) for step in range(8)))
    assert logs.read_progress(one).path == first
    again = replace(one, status=running(restarts=1))
    assert logs.read_progress(again).path == first  # there is no other yet
    clock.sleep(120.0)
    second.write_text(LINE.format(0))
    shown = logs.read_progress(again)
    assert (shown.path, shown.steps) == (second, 1)


def test_what_a_log_shows_is_told_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    logs, one = RunningLogs(load(Settings()), clock.now), job(tmp_path, log_folder=tmp_path, status=running())
    absent = logs.read_progress(one)
    assert (absent.path, absent.steps, absent.problem) == (None, 0, "")
    assert str(tmp_path) in absent.place
    log = tmp_path / f"log-nemo_fake_8b_8_{one.job_id}.out"
    log.write_text("".join(LINE.format(step) for step in range(8)))
    clock.sleep(60.0)
    shown = logs.read_progress(one)
    assert (shown.path, shown.steps, shown.starting, shown.slowest_seconds, shown.taken_seconds) == (
        log,
        8,
        False,
        2.5,
        17.5,
    )
    assert shown.modified == datetime.fromtimestamp(log.stat().st_mtime, UTC)
    monkeypatch.setattr(File, "read", lambda *_: pytest.fail("nothing is new in it"))
    assert logs.read_progress(one) == shown


def test_a_log_that_goes_away_is_a_problem_and_none_that_was_never_found(tmp_path: Path) -> None:
    clock = Clock()
    logs, one = RunningLogs(load(Settings()), clock.now), job(tmp_path, log_folder=tmp_path, status=running())
    log = tmp_path / f"log-nemo_fake_8b_8_{one.job_id}.out"
    log.write_text(LINE.format(0))
    assert logs.read_progress(one).steps == 1
    log.unlink()
    clock.sleep(600.0)
    assert str(log) in logs.read_progress(one).problem
    assert logs.read_last_step(one) is None


def test_a_log_that_is_compressed_while_it_grows_says_nothing(tmp_path: Path) -> None:
    logs, one = RunningLogs(load(Settings()), Clock().now), job(tmp_path, log_folder=tmp_path, status=running())
    log = tmp_path / f"log-nemo_fake_8b_8_{one.job_id}.out.gz"
    log.write_bytes(gzip.compress("".join(map(LINE.format, range(8))).encode()))
    assert "compressed" in logs.read_progress(one).problem


def test_the_log_of_an_earlier_job_with_the_same_number_is_not_its_log(tmp_path: Path) -> None:
    """A Slurm that was set up anew begins with job id 1 again."""
    logs, one = RunningLogs(load(Settings()), Clock().now), job(tmp_path, log_folder=tmp_path, status=running())
    log = tmp_path / f"log-nemo_fake_8b_8_{one.job_id}.out"
    log.write_text(LINE.format(0))
    os.utime(log, (1e9, 1e9))
    assert logs.read_progress(one).path is None


@pytest.mark.parametrize(("dialect", "late"), [("huggingface", True), ("nemo2", False), ("regex:own-1", False)])
def test_a_log_that_holds_no_step_before_its_end_is_known_by_its_dialect(
    tmp_path: Path, dialect: str, late: bool
) -> None:
    catalog, one = load(Settings()), job(tmp_path, log_folder=tmp_path, status=running())
    baselines = {one.spec.key: tuple(replace(each, dialect=dialect) for each in catalog.baselines[one.spec.key])}
    logs = RunningLogs(replace(catalog, baselines=baselines), Clock().now)
    assert logs.read_progress(one).prints_late is late
