"""Markers of variants' runs: written before a job is submitted, with its id later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.job_specs import job, job_spec

from pytest_llmbench.core.job_records import Job, Purpose
from pytest_llmbench.launch.jobs.submitter import (
    recover_from_marker,
    submit_with_marker,
)
from pytest_llmbench.launch.schedulers.local import LocalScheduler
from pytest_llmbench.launch.schedulers.submission import Submission, SubmitError


class Inner(LocalScheduler):
    """A scheduler that reads the markers when it submits."""

    def __init__(
        self,
        read_markers: Callable[[], object],
        becomes: Submission | SubmitError | None,
    ) -> None:
        self.read_markers = read_markers
        self.becomes = becomes
        self.seen: list[object] = []

    def submit(self, job: Job) -> Submission:
        submission = self.recover(job)
        assert submission is not None
        return submission

    def recover(self, job: Job, seconds: float = 0.0) -> Submission | None:
        del job, seconds
        self.seen.append(self.read_markers())
        if isinstance(self.becomes, SubmitError):
            raise self.becomes
        return self.becomes


def read(folder: Path) -> list[list[str]]:
    """Return the words of each line of a marker file, except the time."""
    file = folder / ".llmbench-ab"
    lines = file.read_text().split("\n") if file.exists() else []
    return [
        [word for index, word in enumerate(line.split()) if index != 1]
        for line in lines
        if line
    ]


def make_job(tmp_path: Path, **changes: Any) -> Job:
    fields = {
        "via": "sbatch",
        "purpose": Purpose.BISECT,
        "log_folders": (tmp_path / "stage" / "results",),
        **changes,
    }
    return job(tmp_path, spec=job_spec(tmp_path, **fields), job_id="")


def test_marker_file_is_written_before_its_job_is_submitted_and_gets_the_job_id(
    tmp_path: Path,
) -> None:
    """Also in the folder that its launcher printed."""
    results, printed = tmp_path / "stage" / "results", tmp_path / "elsewhere"
    inner = Inner(lambda: read(results), Submission("4711", printed))
    assert submit_with_marker(make_job(tmp_path), inner).job_id == "4711"
    assert inner.seen == [[["token1"]]]
    assert read(results) == [["token1"], ["token1", "4711"]]
    assert read(printed) == [["token1", "4711"]]


def test_marker_contains_the_id_of_the_allocation(tmp_path: Path) -> None:
    """Slurm, and so the log's name, uses only the id of the allocation."""
    results, shared = tmp_path / "stage" / "results", make_job(tmp_path, allocation=1)
    assert (
        submit_with_marker(shared, Inner(lambda: None, Submission("4711-3"))).job_id
        == "4711-3"
    )
    assert read(results) == read(shared.folder) == [["token1"], ["token1", "4711"]]


def test_marker_is_in_the_job_folder_if_no_log_folder_is_known(tmp_path: Path) -> None:
    submit_with_marker(
        make_job(tmp_path, log_folders=()), Inner(lambda: None, Submission("4711"))
    )
    assert read(tmp_path) == [["token1"], ["token1", "4711"]]


@pytest.mark.parametrize(
    ("error", "markers"),
    [
        (SubmitError("no"), [["token1"], ["token1", "-"]]),
        (SubmitError("perhaps", uncertain=True), [["token1"]]),
    ],
    ids=["refused", "may run"],
)
def test_marker_records_a_refused_submission_and_stays_open_for_an_uncertain_one(
    tmp_path: Path, error: SubmitError, markers: list[list[str]]
) -> None:
    with pytest.raises(SubmitError):
        submit_with_marker(make_job(tmp_path), Inner(lambda: None, error))
    assert read(tmp_path / "stage" / "results") == markers


@pytest.mark.parametrize(
    ("becomes", "last"), [(Submission("4711"), "4711"), (None, "-")]
)
def test_resumed_session_adds_the_outcome_of_a_submission_to_its_marker(
    tmp_path: Path, becomes: Submission | None, last: str
) -> None:
    assert (
        recover_from_marker(make_job(tmp_path), Inner(lambda: None, becomes)) == becomes
    )
    assert read(tmp_path / "stage" / "results") == [["token1", last]]


def test_local_log_is_marked_before_its_job_starts(tmp_path: Path) -> None:
    inner = Inner(
        lambda: [path.name for path in tmp_path.glob("*.ab")], Submission("1")
    )
    local = make_job(tmp_path, via="local", experiment="exp", log_folders=())
    submit_with_marker(local, inner)
    recover_from_marker(local, inner)
    assert inner.seen[0] == ["log-exp_1_0.out.ab"]
    assert not (tmp_path / ".llmbench-ab").exists()


def test_job_that_measures_speed_has_no_exclusion_marker(tmp_path: Path) -> None:
    inner = Inner(lambda: None, Submission("4711"))
    submit_with_marker(make_job(tmp_path, purpose=Purpose.MEASURE), inner)
    recover_from_marker(make_job(tmp_path, purpose=Purpose.MEASURE), inner)
    assert not list(tmp_path.rglob("*.ab")) + list(tmp_path.rglob(".llmbench-ab"))


def test_unwritable_marker_prevents_submission(tmp_path: Path) -> None:
    (tmp_path / "stage").touch()
    inner = Inner(lambda: None, Submission("4711"))
    with pytest.raises(SubmitError, match="which marks the logs of variants"):
        submit_with_marker(make_job(tmp_path), inner)
    assert inner.seen == []


def test_job_is_followed_although_its_marker_cannot_be_written_after_submission(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    printed = Submission("4711", tmp_path / "file" / "folder")
    assert (
        submit_with_marker(make_job(tmp_path), Inner(lambda: None, printed)) == printed
    )
    assert read(tmp_path / "stage" / "results")[0] == ["token1"]
