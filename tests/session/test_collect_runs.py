"""Ingestion of runs: duplicate logs, requeued jobs and logs of single processes."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from generator import write_run
from generator.__main__ import shipped
from support.own_runs import OwnRun, Text, maxtext, megatron, titan
from support.shared_data import shared

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.session.catalog import Catalog, load
from pytest_llmbench.session.collect_runs import IngestedRuns, ingest
from pytest_llmbench.session.settings import Settings

NOW = datetime(2026, 11, 21, tzinfo=UTC)
STEP = re.compile(rb"Training epoch|tps: ")
"""A text in the step lines of NeMo 2 and of torchtitan, whose first step has no time.
"""
LLAMA = "llama3.1_8b-25.04-h100-bf16-16"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """The shipped baselines."""
    return load(Settings())


def ingest_folder(root: Path, catalog: Catalog) -> IngestedRuns:
    return ingest(Settings(logs=(root,)), catalog, NOW)


def prefix_lines(log: Path) -> str:
    """Return a log as an attached launcher writes it.

    Each line follows the name of the task, among lines of the launcher.
    """
    lines = (f"train/0 {line}" for line in log.read_text().splitlines(keepends=True))
    return (
        "Log directory is: /tmp/x\n"
        + "".join(lines)
        + "Job train finished: SUCCEEDED\n"
    )


def list_jobs(ingested: IngestedRuns) -> Sequence[tuple[str, Sequence[str]]]:
    return [
        (run.found.job_id, [attempt.files.log.name for attempt in run.attempts])
        for run in ingested.runs
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sbatch_train_{}.out", "attached.log"])
def test_log_copies_with_launcher_line_prefixes_are_dropped(
    catalog: Catalog, tmp_path: Path, name: str
) -> None:
    """The real tree with a copy of each log with steps has the same runs in the same
    order."""
    root = tmp_path / "llmb_install"
    shutil.copytree(shared("logs/llmb_install"), root)
    before = ingest_folder(root, catalog)
    for log in sorted(root.rglob("log-*.out")):
        if STEP.search(log.read_bytes()):
            (log.parent / name.format(log.stem.split("_")[-2])).write_text(
                prefix_lines(log)
            )
    after = ingest_folder(root, catalog)
    assert len(before.runs) == 10
    assert list_jobs(after) == list_jobs(before)
    assert len(after.ignored) - len(before.ignored) == 8
    assert after.unreadable == before.unreadable == ()


def write_named_run(root: Path) -> Path:
    """Write a run that is identified by its folders and name, and return its log."""
    return write_run(root, shipped()[LLAMA], job_id="1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("attached_1.out", 1),
        ("sbatch_train_1.out", 1),
        ("log-again-again.pretrain_llama3.1_8b_bf16_16_1_0.out", 2),
        ("below/attached.out", 1),
    ],
)
def test_copied_log_is_recognised_by_its_steps(
    catalog: Catalog, tmp_path: Path, name: str, runs: int
) -> None:
    log = write_named_run(tmp_path)
    copy = log.parent / name
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(prefix_lines(log))
    ingested = ingest_folder(tmp_path, catalog)
    assert len(ingested.runs) == runs
    assert log in {run.attempts[0].files.log for run in ingested.runs}
    if runs == 1 and "attached" in name:
        assert any("a copy of" in file.reason for file in ingested.ignored)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        ("train_step_timing in s: 12", "train_step_timing in s: 13"),
        ("Training epoch 0, iteration 0", "x"),
    ],
)
def test_log_with_other_steps_is_not_a_copy(
    catalog: Catalog, tmp_path: Path, change: tuple[str, str]
) -> None:
    log = write_named_run(tmp_path)
    text = prefix_lines(log)
    assert change[0] in text
    (log.parent / "attached_1.out").write_text(text.replace(*change))
    assert len(ingest_folder(tmp_path, catalog).runs) == 2


@pytest.mark.slow
def test_log_of_another_job_is_not_a_copy(catalog: Catalog, tmp_path: Path) -> None:
    log = write_named_run(tmp_path)
    (log.parent / "pretrain_llama3.1_8b_bf16_16_77_0.out").write_text(prefix_lines(log))
    assert len(ingest_folder(tmp_path, catalog).runs) == 2


@pytest.mark.parametrize(
    ("hours", "excluded"),
    [(-15, None), (-1, Reason.VARIANT), (23, Reason.VARIANT), (25, None)],
)
def test_ab_marker_without_job_id_excludes_runs_started_within_one_day(
    catalog: Catalog, tmp_path: Path, hours: float, excluded: Reason | None
) -> None:
    """A run that starts before the submission, or more than a day later, is another
    job."""
    log = write_named_run(tmp_path)
    os.utime(log)  # copied without its time, it is newer than the mark
    start = next(iter(ingest_folder(tmp_path, catalog).runs)).started
    assert start is not None
    submitted = start - timedelta(hours=hours)
    (tmp_path / ".llmbench-ab").write_text(f"token {submitted.timestamp():.0f}\n")
    (run,) = ingest_folder(tmp_path, catalog).runs
    assert run.found.excluded is excluded


def test_each_unreadable_ab_marker_becomes_a_separate_item(
    catalog: Catalog, tmp_path: Path
) -> None:
    for number in ("1", "2"):
        write_run(tmp_path / number / "logs", shipped()[LLAMA], job_id=number)
        (tmp_path / number / "logs" / ".llmbench-ab").write_text("abc")
    ingested = ingest_folder(tmp_path, catalog)
    assert [run.found.excluded for run in ingested.runs] == [None, None]
    assert {entry.id: entry.reason for entry in ingested.unreadable} == {
        "unreadable-logs/.llmbench-ab": Reason.MARK_UNREADABLE,
        "unreadable-logs/.llmbench-ab~2": Reason.MARK_UNREADABLE,
    }


# --- requeued jobs that continue their log --------------------------------------------

FIRST, AGAIN = (
    datetime(2026, 11, 2, 2, tzinfo=UTC),
    datetime(2026, 11, 5, 2, tzinfo=UTC),
)


def interrupt(text: str, share: float) -> str:
    lines = text.splitlines(keepends=True)
    return (
        "".join(lines[: int(len(lines) * share)])
        + "slurmstepd: error: *** JOB 7 CANCELLED DUE TO PREEMPTION ***\n"
    )


@pytest.mark.parametrize(
    ("framework", "share", "first"),
    [(megatron, 0.7, 1), (megatron, 1.0, 1), (megatron, 0.7, 25), (titan, 0.7, 1)],
)
def test_log_of_a_requeued_job_is_dated_by_its_last_attempt(
    tmp_path: Path, framework: Text, share: float, first: int
) -> None:
    again = OwnRun(start=AGAIN, seed=2, first=first)
    log = tmp_path / "slurm-7.out"
    log.write_text(interrupt(framework(OwnRun(start=FIRST)), share) + framework(again))
    (run,) = ingest_folder(tmp_path, Catalog((), {})).runs
    assert run.started is not None
    assert abs(run.started - AGAIN) < timedelta(minutes=1)


def test_log_without_dates_keeps_its_first_timestamp(tmp_path: Path) -> None:
    text = interrupt(maxtext(OwnRun(start=FIRST)), 0.7) + maxtext(
        OwnRun(start=AGAIN, seed=2)
    )
    (tmp_path / "slurm-7.out").write_text(f"2026-11-02 02:00:00 INFO start\n{text}")
    (run,) = ingest_folder(tmp_path, Catalog((), {})).runs
    assert run.started == FIRST


# --- a log of each process ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "paces", "kept"),
    [
        ("rank{}.log", (1.0, 1.0, 1.0), ["rank0.log"]),
        ("train_rank_{}.log", (1.0, 1.001, 0.999), ["train_rank_0.log"]),
        ("log_77_worker-{}.out", (1.0, 1.002), ["log_77_worker-0.out"]),
        ("rank{}.log", (1.0, 1.2), ["rank0.log", "rank1.log"]),
        ("node{}.log", (1.0, 1.001), ["node0.log", "node1.log"]),
    ],
)
def test_logs_of_all_processes_are_one_run(
    tmp_path: Path, name: str, paces: Sequence[float], kept: Sequence[str]
) -> None:
    """Each process prints its own losses; a log of another pace or node is another run."""
    for rank, pace in enumerate(paces):
        process_run = OwnRun(
            start=FIRST, seconds=2.0 * pace, loss=partial(_lose, 3 + rank / 50)
        )
        (tmp_path / name.format(rank)).write_text(titan(process_run))
    runs = ingest_folder(tmp_path, Catalog((), {})).runs
    assert (
        sorted(attempt.files.log.name for run in runs for attempt in run.attempts)
        == kept
    )


def _lose(scale: float, step: int) -> float:
    return 4 + scale / step


def test_logs_of_one_rank_on_two_days_are_two_runs(tmp_path: Path) -> None:
    for rank, start in enumerate((FIRST, AGAIN)):
        (tmp_path / f"rank{rank}.log").write_text(titan(OwnRun(start=start, seed=rank)))
    assert len(ingest_folder(tmp_path, Catalog((), {})).runs) == 2
