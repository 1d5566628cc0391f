"""Logs of an A/B: the file beside them says that they are no runs of their recipe."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.core.formatting import to_path
from pytest_llmbench.core.models import Reason
from pytest_llmbench.ingest.discover import find_runs
from pytest_llmbench.ingest.sources.stores import Stores


def test_a_log_with_a_mark_is_of_an_ab_and_others_are_not(tmp_path: Path) -> None:
    for name in ("log-grok1_314b_128_1_0.out", "log-grok1_314b_128_2_0.out", "log-grok1_314b_128_1_0.out.ab"):
        (tmp_path / name).touch()
    found = find_runs([tmp_path])
    assert {run.job_id: run.excluded for run in found.runs} == {"1": Reason.VARIANT, "2": None}
    assert not found.ignored
    assert next(run for run in found.runs if run.excluded).excluded_because == (
        "log-grok1_314b_128_1_0.out.ab lies beside its log: a run of an A/B"
    )


def compress(log: Path) -> Path:
    packed = log.with_name(f"{log.name}.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    return log.parent


def archive(log: Path) -> Path:
    runs = log.parent.parent / "runs.tgz"
    with tarfile.open(runs, "w:gz") as packed:
        packed.add(log.parent, "jobs")
    return runs


def link(log: Path) -> Path:
    links = log.parent.parent / "links"
    links.mkdir()
    (links / log.name).symlink_to(log)
    return links


def link_folder(log: Path) -> Path:
    (log.parent.parent / "far").mkdir()
    folder = log.parent.parent / "far" / "link"
    folder.symlink_to(log.parent)
    return folder


def link_folder_of_file(log: Path) -> Path:
    return link_folder(log) / log.name


@pytest.mark.parametrize("above", [link_folder, link_folder_of_file])
def test_a_file_above_the_folder_that_a_given_link_leads_to_counts(stage: Path, above: Callable[[Path], Path]) -> None:
    write(stage, "t1 1 1")
    found = find_runs([above(stage / DEEP / "log-grok1_314b_128_1_0.out")])
    assert {run.job_id: run.excluded for run in found.runs}["1"] is Reason.VARIANT


@pytest.mark.parametrize("by_file", [True, False])
@pytest.mark.parametrize("how", [compress, archive, link, lambda log: to_path(f"file://{log.parent}")])
def test_wherever_its_log_is_read_from(tmp_path: Path, how: Callable[[Path], Path], by_file: bool) -> None:
    log = tmp_path / "jobs" / "log-grok1_314b_128_1_0.out"
    log.parent.mkdir()
    log.write_text("Training epoch 0, iteration 0/1 | global_step: 0 | train_step_timing in s: 1.5\n")
    shutil.copy(log, log.with_name("log-grok1_314b_128_2_0.out"))
    if by_file:
        log.with_name(f"{log.name}.ab").touch()
    else:
        log.with_name(".llmbench-ab").write_text("t1 1 1\n")
    excluded = {run.job_id: run.excluded for run in find_runs([how(log)], Stores()).runs}
    assert excluded.pop("1") is Reason.VARIANT
    assert excluded == ({} if how is link else {"2": None})


DEEP = "results/24.11/exp/exp_1764/task"


NOW = 1_767_000_000
LONG_AGO = NOW - 1_000_000
LATER = NOW + 1_000_000


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """Return a folder with logs of the jobs 1 and 2, which were written NOW, some folders below it."""
    (tmp_path / DEEP).mkdir(parents=True)
    for number in (1, 2):
        log = tmp_path / DEEP / f"log-grok1_314b_128_{number}_0.out"
        log.touch()
        os.utime(log, (NOW, NOW))
    return tmp_path


def find_excluded(stage: Path) -> set[str]:
    return {run.job_id for run in find_runs([stage]).runs if run.excluded is Reason.VARIANT}


def write(stage: Path, *lines: str) -> Path:
    file = stage / "results" / ".llmbench-ab"
    file.write_text("".join(f"\n{line}\n" for line in lines))
    return file


@pytest.mark.parametrize(
    ("lines", "excluded"),
    [
        ([f"t1 {NOW}", f"t1 {NOW} 1"], {"1"}),
        ([f"t1 {NOW}"], {"1", "2"}),
        ([f"t1 {LONG_AGO}", f"t1 {LONG_AGO} 1", f"t2 {NOW}"], {"1", "2"}),
        ([f"t1 {LATER}"], set()),
        ([f"t1 {NOW}", f"t1 {NOW} -"], set()),
        ([f"t1 {LATER}", f"t1 {LATER} 1"], set()),
        (["t1 17", f"t2 {NOW} 9"], {"1", "2"}),
        (["t1"], {"1", "2"}),
        ([f"t1 {NOW} 11"], set()),
        ([f"t1 {NOW}", f"t1 {LATER} 1"], {"1"}),
        ([f"t1 {NOW}", f"t1 {NOW} 1", f"t2 {LATER}", f"t2 {LATER} 1"], {"1"}),
    ],
    ids=[
        "its job",
        "a job that nobody knows yet",
        "one that is known, and one that is not",
        "logs from before it",
        "a job that never was",
        "a job of another Slurm with its number",
        "a time that was cut",
        "a line that was cut",
        "another job",
        "its job, found out long after its log was written",
        "a later run in the same allocation",
    ],
)
def test_a_file_in_a_folder_above_says_which_jobs_are_of_an_ab(
    stage: Path, lines: list[str], excluded: set[str]
) -> None:
    """Of a job that may have started, and whose id nobody knows, every log since then may be."""
    write(stage, *lines)
    assert find_excluded(stage) == excluded
    found = find_runs([stage])
    assert not found.ignored
    assert not found.unreadable


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_one_that_cannot_be_read_may_speak_of_any_log(stage: Path) -> None:
    write(stage, f"t1 {NOW} 9").chmod(0)
    assert find_excluded(stage) == {"1", "2"}


def test_a_folder_in_its_place_may_be_of_any_log(stage: Path) -> None:
    (stage / "results" / ".llmbench-ab").mkdir()
    assert find_excluded(stage) == {"1", "2"}


def test_what_else_excludes_a_run_stays(tmp_path: Path) -> None:
    """Or a profiled run would count in its A/B."""
    for name in ("log-grok1_314b_128_1_0.out", "log-grok1_314b_128_1_0.out.ab"):
        (tmp_path / name).touch()
    metadata = "job_info: {job_id: '1'}\njob_config: {profile_enabled: true}\n"
    (tmp_path / "llmb-config_1.yaml").write_text(metadata)
    (run,) = find_runs([tmp_path]).runs
    assert run.excluded is Reason.PROFILED
