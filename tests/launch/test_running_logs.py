"""The progress that the engine reads from the logs of running jobs."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.job_specs import Clock, job, running

from pytest_llmbench.core.run_records import Discovery
from pytest_llmbench.core.stall_limits import LogProgress
from pytest_llmbench.launch import running_logs
from pytest_llmbench.launch.running_logs import RunningLogs
from pytest_llmbench.logs.sources.files import File
from pytest_llmbench.runs.discover import discovery as discover
from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.settings import Settings


class Watched:
    """A running job, its log, and the reader under test."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.logs = RunningLogs(load(Settings()), self.clock.now)
        self.job = job(folder, log_folder=folder, status=running())
        self.log = folder / f"log-nemo_fake_8b_8_{self.job.job_id}.out"

    def read(self) -> LogProgress:
        return self.logs.read_progress(self.job)

    def write_steps(self, count: int) -> None:
        self.log.write_text("".join(LINE.format(step) for step in range(count)))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Path]]:
    """The folders of each search for a log."""
    searched: list[Sequence[Path]] = []
    original = discover.find_runs

    def find_runs(paths: Sequence[Path]) -> Discovery:
        searched.append(paths)
        return original(paths)

    monkeypatch.setattr(running_logs, "find_runs", find_runs)
    return searched


LINE = (
    "Training epoch 0, iteration {0}/49 | lr: 1e-05 | global_batch_size: 128 | global_step: {0} |"
    " reduced_train_loss: 11.9 | train_step_timing in s: 2.5 | consumed_samples: 128\n"
)


@pytest.mark.slow
def test_log_is_searched_until_it_has_steps(
    watched: Watched, searched: list[Sequence[Path]]
) -> None:
    logs = watched.logs
    assert logs.read_last_step(watched.job) is None
    watched.log.write_text("no step yet\n")
    assert logs.read_last_step(watched.job) is None
    assert len(searched) == 1
    watched.clock.sleep(1.0)
    assert logs.read_last_step(watched.job) is None
    assert len(searched) == 2
    watched.clock.sleep(2.0)
    for count in (1, 2, 3):
        watched.write_steps(count)
        assert logs.read_last_step(watched.job) == (count, 50, 2.5)
    assert len(searched) == 3
    assert logs.read_last_step(replace(watched.job, status=running(restarts=1))) == (
        3,
        50,
        2.5,
    )
    assert len(searched) == 4, "again after a requeue"


@pytest.mark.slow
def test_run_in_an_allocation_follows_the_recipes_log(tmp_path: Path) -> None:
    """The recipe's log and the output have the same job id; the output is the fallback."""
    recipe, output = tmp_path / "a", tmp_path / "z"
    for folder in (recipe, output):
        folder.mkdir()
    (output / "slurm-4711.out").write_text(LINE.format(0) * 5)
    run = job(output, job_id="4711-2", log_folder=output, status=running())
    run = replace(
        run,
        spec=replace(run.spec, via="allocation", allocation=1, log_folders=(recipe,)),
    )
    assert RunningLogs(load(Settings()), Clock().now).read_progress(run).steps > 0
    log = recipe / "log-nemo_fake_8b_8_4711.out"
    log.write_text("no step yet\n")
    assert RunningLogs(load(Settings()), Clock().now).read_progress(run).path == log


@pytest.mark.slow
def test_missing_log_is_searched_ever_more_rarely(
    watched: Watched, searched: list[Sequence[Path]]
) -> None:
    for _ in range(360):
        assert watched.read().path is None
        watched.clock.sleep(10.0)
    assert len(searched) < 70, "in an hour, with a look every 10 s"


@pytest.mark.slow
def test_requeued_job_is_followed_in_its_later_log(
    watched: Watched, tmp_path: Path
) -> None:
    watched.write_steps(8)
    assert watched.read().path == watched.log
    watched.job = replace(watched.job, status=running(restarts=1))
    assert watched.read().path == watched.log, "the only one so far"
    watched.clock.sleep(120.0)
    second = tmp_path / f"log-nemo_fake_8b_8_{watched.job.job_id}_1.out"
    second.write_text(LINE.format(0))
    progress = watched.read()
    assert (progress.path, progress.steps) == (second, 1)


@pytest.mark.slow
def test_log_is_read_once_for_its_steps(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = watched.read()
    assert (absent.path, absent.steps, absent.problem) == (None, 0, "")
    assert str(tmp_path) in absent.place
    watched.write_steps(8)
    watched.clock.sleep(60.0)
    progress = watched.read()
    assert (progress.path, progress.steps, progress.starting) == (watched.log, 8, False)
    assert (progress.slowest_seconds, progress.taken_seconds) == (2.5, 17.5)
    assert progress.modified == datetime.fromtimestamp(watched.log.stat().st_mtime, UTC)
    monkeypatch.setattr(File, "read", lambda *_: pytest.fail("nothing is new in it"))
    assert watched.read() == progress


@pytest.mark.slow
def test_removed_log_is_a_problem(watched: Watched) -> None:
    watched.write_steps(1)
    assert watched.read().steps == 1
    watched.log.unlink()
    watched.clock.sleep(600.0)
    assert str(watched.log) in watched.read().problem
    assert watched.logs.read_last_step(watched.job) is None


@pytest.mark.slow
def test_compressed_log_is_a_problem(watched: Watched) -> None:
    watched.write_steps(8)
    watched.log.with_suffix(".out.gz").write_bytes(
        gzip.compress(watched.log.read_bytes())
    )
    watched.log.unlink()
    assert "compressed" in watched.read().problem


@pytest.mark.slow
def test_log_of_an_earlier_job_is_ignored(watched: Watched) -> None:
    """A reinstalled Slurm restarts at job id 1."""
    watched.write_steps(1)
    os.utime(watched.log, (1e9, 1e9))
    assert watched.read().path is None


@pytest.mark.slow
@pytest.mark.parametrize(("dialect", "late"), [("huggingface", True), ("nemo2", False)])
def test_dialect_with_late_step_records_is_recognised(
    watched: Watched, dialect: str, late: bool
) -> None:
    catalog, key = load(Settings()), watched.job.spec.key
    baselines = {
        key: tuple(
            replace(baseline, dialect=dialect) for baseline in catalog.baselines[key]
        )
    }
    logs = RunningLogs(replace(catalog, baselines=baselines), watched.clock.now)
    assert logs.read_progress(watched.job).prints_late is late
