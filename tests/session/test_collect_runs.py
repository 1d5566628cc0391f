"""From paths to runs: logs that are there twice are one run."""

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
"""What stands in the step lines of the tree: of NeMo 2, and of torchtitan, whose first
step has no time."""
LLAMA = "llama3.1_8b-25.04-h100-bf16-16"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """The shipped baselines."""
    return load(Settings())


def found(root: Path, catalog: Catalog) -> IngestedRuns:
    return ingest(Settings(logs=(root,)), catalog, NOW)


def attached(log: Path) -> str:
    """Return what an attached launcher writes of a log: each line behind the name of
    the task, among its own."""
    lines = (f"train/0 {line}" for line in log.read_text().splitlines(keepends=True))
    return (
        "Log directory is: /tmp/x\n"
        + "".join(lines)
        + "Job train finished: SUCCEEDED\n"
    )


def jobs(told: IngestedRuns) -> Sequence[tuple[str, Sequence[str]]]:
    return [
        (run.found.job_id, [attempt.files.log.name for attempt in run.attempts])
        for run in told.runs
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sbatch_train_{}.out", "attached.log"])
def test_the_copies_that_an_attached_launcher_writes_are_no_further_runs(
    catalog: Catalog, tmp_path: Path, name: str
) -> None:
    """The real tree with a copy of each log that holds a step: the same runs, newest
    first, however it is called."""
    root = tmp_path / "llmb_install"
    shutil.copytree(shared("logs/llmb_install"), root)
    before = found(root, catalog)
    for log in sorted(root.rglob("log-*.out")):
        if STEP.search(log.read_bytes()):
            (log.parent / name.format(log.stem.split("_")[-2])).write_text(
                attached(log)
            )
    after = found(root, catalog)
    assert len(before.runs) == 10
    assert jobs(after) == jobs(before)
    assert len(after.ignored) - len(before.ignored) == 8
    assert after.unreadable == before.unreadable == ()


def placed(root: Path) -> Path:
    """Write a run whose folders and name tell everything, without metadata, and return
    its log."""
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
def test_a_copy_beside_a_launchers_log_is_known_by_its_steps(
    catalog: Catalog, tmp_path: Path, name: str, runs: int
) -> None:
    log = placed(tmp_path)
    copy = log.parent / name
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(attached(log))
    told = found(tmp_path, catalog)
    assert len(told.runs) == runs
    assert log in {run.attempts[0].files.log for run in told.runs}
    if runs == 1 and "attached" in name:
        assert any("a copy of" in file.reason for file in told.ignored)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        ("train_step_timing in s: 12", "train_step_timing in s: 13"),
        ("Training epoch 0, iteration 0", "x"),
    ],
)
def test_a_log_with_other_steps_is_no_copy(
    catalog: Catalog, tmp_path: Path, change: tuple[str, str]
) -> None:
    log = placed(tmp_path)
    text = attached(log)
    assert change[0] in text
    (log.parent / "attached_1.out").write_text(text.replace(*change))
    assert len(found(tmp_path, catalog).runs) == 2


@pytest.mark.slow
def test_a_log_that_says_another_job_is_no_copy(
    catalog: Catalog, tmp_path: Path
) -> None:
    log = placed(tmp_path)
    (log.parent / "pretrain_llama3.1_8b_bf16_16_77_0.out").write_text(attached(log))
    assert len(found(tmp_path, catalog).runs) == 2


@pytest.mark.parametrize(
    ("hours", "excluded"),
    [(-15, None), (-1, Reason.VARIANT), (23, Reason.VARIANT), (25, None)],
)
def test_pending_mark_takes_out_a_day(
    catalog: Catalog, tmp_path: Path, hours: float, excluded: Reason | None
) -> None:
    """A job of unknown id hardly waits longer: what starts later is another, and so is
    what started before it."""
    log = placed(tmp_path)
    os.utime(log)  # copied without its time, it is newer than the mark
    start = next(iter(found(tmp_path, catalog).runs)).started
    assert start is not None
    submitted = start - timedelta(hours=hours)
    (tmp_path / ".llmbench-ab").write_text(f"token {submitted.timestamp():.0f}\n")
    (run,) = found(tmp_path, catalog).runs
    assert run.found.excluded is excluded


def test_unreadable_marks_are_items_of_their_own(
    catalog: Catalog, tmp_path: Path
) -> None:
    for number in ("1", "2"):
        write_run(tmp_path / number / "logs", shipped()[LLAMA], job_id=number)
        (tmp_path / number / "logs" / ".llmbench-ab").write_text("abc")
    told = found(tmp_path, catalog)
    assert [run.found.excluded for run in told.runs] == [None, None]
    assert {entry.id: entry.reason for entry in told.unreadable} == {
        "unreadable-logs/.llmbench-ab": Reason.MARK_UNREADABLE,
        "unreadable-logs/.llmbench-ab~2": Reason.MARK_UNREADABLE,
    }


# --- a job that was queued again writes on in its log ---------------------------------

FIRST, AGAIN = (
    datetime(2026, 11, 2, 2, tzinfo=UTC),
    datetime(2026, 11, 5, 2, tzinfo=UTC),
)


def cut(text: str, share: float) -> str:
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
    log.write_text(cut(framework(OwnRun(start=FIRST)), share) + framework(again))
    (run,) = found(tmp_path, Catalog((), {})).runs
    assert run.started is not None
    assert abs(run.started - AGAIN) < timedelta(minutes=1)


def test_log_without_dates_keeps_its_first_time(tmp_path: Path) -> None:
    text = cut(maxtext(OwnRun(start=FIRST)), 0.7) + maxtext(OwnRun(start=AGAIN, seed=2))
    (tmp_path / "slurm-7.out").write_text(f"2026-11-02 02:00:00 INFO start\n{text}")
    (run,) = found(tmp_path, Catalog((), {})).runs
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
    """Each prints losses of its own; a log of another pace, or of a node, is of another
    run."""
    for rank, pace in enumerate(paces):
        own = OwnRun(
            start=FIRST, seconds=2.0 * pace, loss=partial(_lose, 3 + rank / 50)
        )
        (tmp_path / name.format(rank)).write_text(titan(own))
    runs = found(tmp_path, Catalog((), {})).runs
    assert (
        sorted(attempt.files.log.name for run in runs for attempt in run.attempts)
        == kept
    )


def _lose(scale: float, step: int) -> float:
    return 4 + scale / step


def test_logs_of_one_rank_on_two_days_are_two_runs(tmp_path: Path) -> None:
    for rank, start in enumerate((FIRST, AGAIN)):
        (tmp_path / f"rank{rank}.log").write_text(titan(OwnRun(start=start, seed=rank)))
    assert len(found(tmp_path, Catalog((), {})).runs) == 2
