"""Markers next to logs of A/B comparisons, which are not runs of their recipe."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.formatting import to_path
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover.discovery import find_runs
from pytest_llmbench.runs.layouts import trial_markers as trial_marks


def test_marker_next_to_a_log_excludes_only_the_run_of_this_log(tmp_path: Path) -> None:
    for name in (
        "log-grok1_314b_128_1_0.out",
        "log-grok1_314b_128_2_0.out",
        "log-grok1_314b_128_1_0.out.ab",
    ):
        (tmp_path / name).touch()
    found = find_runs([tmp_path])
    assert {run.job_id: run.excluded for run in found.runs} == {
        "1": Reason.VARIANT,
        "2": None,
    }
    assert not found.ignored
    assert next(run for run in found.runs if run.excluded).excluded_because == (
        "log-grok1_314b_128_1_0.out.ab is next to its log: a run of an A/B"
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
def test_marker_above_the_target_of_a_link_excludes_the_run(
    stage: Path, above: Callable[[Path], Path]
) -> None:
    write(stage, "t1 1 1")
    found = find_runs([above(stage / DEEP / "log-grok1_314b_128_1_0.out")])
    assert {run.job_id: run.excluded for run in found.runs}["1"] is Reason.VARIANT


@pytest.mark.parametrize("by_file", [True, False])
@pytest.mark.parametrize(
    "how", [compress, archive, link, lambda log: to_path(f"file://{log.parent}")]
)
def test_marker_is_found_for_any_log_source(
    tmp_path: Path, how: Callable[[Path], Path], by_file: bool
) -> None:
    log = tmp_path / "jobs" / "log-grok1_314b_128_1_0.out"
    log.parent.mkdir()
    log.write_text(
        "Training epoch 0, iteration 0/1 | global_step: 0 | train_step_timing in s: 1.5\n"
    )
    shutil.copy(log, log.with_name("log-grok1_314b_128_2_0.out"))
    if by_file:
        log.with_name(f"{log.name}.ab").touch()
    else:
        log.with_name(".llmbench-ab").write_text("t1 1 1\n")
    excluded = {
        run.job_id: run.excluded for run in find_runs([how(log)], Stores()).runs
    }
    assert excluded.pop("1") is Reason.VARIANT
    assert excluded == ({} if how is link else {"2": None})


DEEP = "results/24.11/exp/exp_1764/task"


NOW = 1_767_000_000
LONG_AGO = NOW - 1_000_000
LATER = NOW + 1_000_000


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """Return a folder with logs of jobs 1 and 2, modified at NOW."""
    (tmp_path / DEEP).mkdir(parents=True)
    for number in (1, 2):
        log = tmp_path / DEEP / f"log-grok1_314b_128_{number}_0.out"
        log.touch()
        os.utime(log, (NOW, NOW))
    return tmp_path


def find_excluded(stage: Path) -> set[str]:
    return {
        run.job_id for run in find_runs([stage]).runs if run.excluded is Reason.VARIANT
    }


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
        ([f"t1 {NOW} 11"], set()),
        ([f"t1 {NOW}", f"t1 {LATER} 1"], {"1"}),
        ([f"t1 {NOW}", f"t1 {NOW} 1", f"t2 {LATER}", f"t2 {LATER} 1"], {"1"}),
    ],
    ids=[
        "its job",
        "a job with an unknown id",
        "a known job and an unknown job",
        "logs from before it",
        "a job that never was",
        "a job of another Slurm with its number",
        "another job",
        "its job, found out long after its log was written",
        "a later run in the same allocation",
    ],
)
def test_marker_in_a_parent_folder_excludes_the_jobs_listed_in_it(
    stage: Path, lines: list[str], excluded: set[str]
) -> None:
    """A job that may have started and has no known id excludes all logs since then."""
    write(stage, *lines)
    assert find_excluded(stage) == excluded
    found = find_runs([stage])
    assert not found.ignored
    assert not found.unreadable


def find_marker_problems(stage: Path) -> dict[Path, str]:
    """Return the problem of each marker; assert that no marker excludes a run."""
    found = find_runs([stage])
    assert {run.excluded for run in found.runs} == {None}
    assert not found.ignored
    assert not found.unreadable
    return dict(found.unreadable_marks)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"abc", "line 1 is neither"),
        (b"t1", "line 1 is neither"),
        (b"t1\n", "line 1 is neither"),
        (b"t1 0\n", "line 1 is neither"),
        (b"t1 0000000000\n", "line 1 is neither"),
        (b"t1 0999999999\n", "line 1 is neither"),
        (f"t2 {NOW} 9\n\nt1 17\n".encode(), "line 3 is neither"),
        (f"t1 {NOW} 1".encode(), "line 1 is neither"),
        (b"\x00\xff\xfe\n\x80", "line 1 is neither"),
        (f"t1 {NOW} 1 1\n".encode(), "line 1 is neither"),
        (f"t1 {NOW} \xb9\n".encode(), "line 1 is neither"),
    ],
)
def test_unreadable_marker_excludes_no_run(
    stage: Path, content: bytes, problem: str
) -> None:
    file = stage / "results" / ".llmbench-ab"
    file.write_bytes(content)
    (text,) = find_marker_problems(stage).values()
    assert text.startswith(problem)


def test_too_large_marker_excludes_no_run(
    stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_marks, "LARGEST_BYTES", 20)
    write(stage, f"t1 {NOW} 1", f"t2 {NOW} 2")
    assert list(find_marker_problems(stage).values()) == ["it is larger than 20 bytes"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_marker_without_read_permission_excludes_no_run(stage: Path) -> None:
    file = write(stage, f"t1 {NOW} 9")
    file.chmod(0)
    assert list(find_marker_problems(stage)) == [file]


def test_folder_in_place_of_marker_is_unreadable(stage: Path) -> None:
    folder = stage / "results" / ".llmbench-ab"
    folder.mkdir()
    assert list(find_marker_problems(stage)) == [folder]


@pytest.mark.parametrize("content", ["", "\n", "\n\n \r\n"])
def test_empty_marker_lists_no_run(stage: Path, content: str) -> None:
    """A full disk leaves an empty file, and its job was never submitted."""
    (stage / "results" / ".llmbench-ab").write_text(content)
    assert find_marker_problems(stage) == {}


def test_readable_lines_of_a_damaged_marker_still_exclude_their_jobs(
    stage: Path,
) -> None:
    write(stage, f"t1 {NOW} 1", "garbage")
    assert find_excluded(stage) == {"1"}
    assert len(find_runs([stage]).unreadable_marks) == 1


@pytest.mark.parametrize("cut", ["t1 17", "t1", "t"])
def test_truncated_marker_line_is_ignored_if_a_later_line_completes_it(
    stage: Path, cut: str
) -> None:
    write(stage, cut, f"t1 {NOW} 1")
    assert find_excluded(stage) == {"1"}
    assert not find_runs([stage]).unreadable_marks


def test_run_contains_start_of_a_pending_trial_whose_marker_lacks_the_job_id(
    stage: Path,
) -> None:
    write(stage, f"t1 {LONG_AGO}", f"t2 {NOW}", f"t3 {LATER}", f"t4 {NOW} 2")
    runs = {run.job_id: run for run in find_runs([stage]).runs}
    assert runs["1"].trial_pending_since == datetime.fromtimestamp(NOW, UTC)
    assert runs["2"].trial_pending_since is None
    assert runs["2"].excluded is Reason.VARIANT


def test_profiled_run_of_a_trial_is_excluded_as_profiled(tmp_path: Path) -> None:
    """Otherwise a profiled run would count in its A/B comparison."""
    for name in ("log-grok1_314b_128_1_0.out", "log-grok1_314b_128_1_0.out.ab"):
        (tmp_path / name).touch()
    metadata = "job_info: {job_id: '1'}\njob_config: {profile_enabled: true}\n"
    (tmp_path / "llmb-config_1.yaml").write_text(metadata)
    (run,) = find_runs([tmp_path]).runs
    assert run.excluded is Reason.PROFILED


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Path.mkdir, "not a regular file"),
        (lambda marker: marker.symlink_to("nowhere"), "No such file or directory"),
        (lambda marker: marker.symlink_to(marker), "Too many levels of symbolic links"),
        (os.mkfifo, "not a regular file"),
    ],
    ids=["folder", "broken link", "link to itself", "FIFO"],
)
def test_marker_that_is_no_regular_file_is_reported_and_excludes_no_run(
    stage: Path, make: Callable[[Path], object], problem: str
) -> None:
    marker = stage / DEEP / "log-grok1_314b_128_1_0.out.ab"
    make(marker)
    found = find_runs([stage])
    assert {run.excluded for run in found.runs} == {None}
    assert dict(found.unreadable_marks) == {marker: problem}
