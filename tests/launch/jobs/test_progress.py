"""The progress lines of a launching session, and their frequency."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.job_specs import START, Clock, ended, job, job_spec, running, waiting

from pytest_llmbench.core.job_records import (
    Blame,
    Job,
    JobEnd,
    JobStatus,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.launch.jobs.progress import Progress, format_duration, summarize

HERE = Path("/scratch")

REFUSED: dict[str, Any] = {"problem": "no", "submission": SubmissionState.NOT_SUBMITTED}


def at(time: datetime) -> str:
    return f"{time.astimezone():%H:%M}"


@pytest.fixture
def lines() -> list[str]:
    return []


def test_each_state_change_of_a_job_prints_a_line(lines: list[str]) -> None:
    progress, first = Progress(lines.append), job(HERE)
    progress.report_submitted(first, START)
    progress.report_change(
        replace(first, status=running("n1", "n2", "n3", "n4", "n5", "n6")), None, START
    )
    progress.report_ended(
        replace(first, status=ended(elapsed_seconds=300.0)), JobEnd(Blame.NONE), START
    )
    progress.report_ended(
        replace(first, status=ended("FAILED", "7:0")),
        JobEnd(Blame.RUN, "it exited with 7"),
        START,
    )
    text = [re.sub(r"\s+", " ", line)[9:] for line in lines]
    assert text == [
        "job 4711 submitted: grok1_314b-25.05-gb200-bf16-128",
        "job 4711 running on n1, n2, n3, n4 and 2 more: grok1_314b-25.05-gb200-bf16-128",
        "job 4711 ended COMPLETED after 5 min: grok1_314b-25.05-gb200-bf16-128",
        "job 4711 ended FAILED: grok1_314b-25.05-gb200-bf16-128: it exited with 7",
    ]
    assert all(line.startswith(f"{START.astimezone():%H:%M:%S}  ") for line in lines)


def test_refused_submission_is_reported_in_full(lines: list[str]) -> None:
    Progress(lines.append).report_ended(
        job(HERE, job_id="", **REFUSED),
        JobEnd(Blame.RUN, "refused:\n    no account"),
        START,
    )
    assert lines == [f"{START.astimezone():%H:%M:%S}  refused:\n          no account"]


def test_progress_line_of_a_job_names_purpose_run_and_attempt(lines: list[str]) -> None:
    spec = replace(job(HERE).spec, purpose=Purpose.PROFILE)
    Progress(lines.append).report_submitted(
        job(HERE, spec=spec, attempt=2, repeat=3), START
    )
    assert "(profile, run 3, attempt 2)" in " ".join(lines[0].split())


@pytest.mark.parametrize(
    ("jobs", "waits", "expected"),
    [
        ([], 0, "no job"),
        ([], 3, "3 not submitted yet"),
        ([None, waiting(), waiting("Priority")], 0, "3 pending (Priority, Resources)"),
        (
            [running(), ended(), ended("FAILED")],
            1,
            "1 running, 2 ended, 1 not submitted yet",
        ),
        ([JobStatus(Phase.UNKNOWN, "")], 0, "1 unknown to Slurm"),
    ],
)
def test_summary_counts_all_jobs_by_state(
    jobs: list[JobStatus | None], waits: int, expected: str
) -> None:
    spec = job_spec(HERE, via="sbatch")
    followed = [
        job(HERE, number, spec=spec, status=status)
        for number, status in enumerate(jobs)
    ]
    assert summarize(followed, waits) == expected
    assert summarize([job(HERE, **REFUSED), job(HERE, 2)]) == "1 pending, 1 refused"


def follow(
    progress: Progress,
    hours: float,
    status: Callable[[float], JobStatus] = lambda seconds: running(),
) -> list[float]:
    """Poll every 5 s; return the seconds at which a line was printed."""
    clock, printed = Clock(), [0.0]
    progress._tell = lambda line: printed.append((clock.now() - START).total_seconds())
    for _ in range(int(hours * 720)):
        progress.update(
            [job(HERE, status=status((clock.now() - START).total_seconds()))],
            0,
            clock.now(),
        )
        clock.sleep(5.0)
    return printed


@pytest.mark.slow
def test_progress_report_without_changes_slows_down_to_every_5_minutes() -> None:
    printed = follow(Progress(print), 2.0)
    gaps = [later - earlier for earlier, later in pairwise(printed)]
    assert gaps[0] == 10.0, "the first line is a change"
    assert gaps[1] == 60.0
    assert gaps == sorted(gaps)
    assert gaps[-1] == 300.0


def test_changes_are_reported_at_most_every_10_seconds() -> None:
    flapping = follow(
        Progress(print),
        0.1,
        lambda seconds: running() if int(seconds / 5) % 2 else waiting(),
    )
    gaps = [later - earlier for earlier, later in pairwise(flapping)]
    assert min(gaps) >= 10.0
    assert len(gaps) > 10


def steps(
    steps_by_job: dict[int, tuple[int, int | None, float]],
) -> Callable[[Job], tuple[int, int | None, float] | None]:
    return lambda step_job: steps_by_job.get(step_job.number)


@pytest.mark.parametrize(
    ("steps_by_job", "expected"),
    [
        ({}, "2 running"),
        (
            {1: (23, 50, 9.0)},
            f"2 running; {{id}} step 23/50, about 4 min left ({at(START + timedelta(seconds=253))})",
        ),
        (
            {1: (23, 50, 9.0), 2: (49, 50, 9.0)},
            f"step 23/50, about 4 min left ({at(START + timedelta(seconds=253))})",
        ),
        ({1: (23, None, 9.0)}, "2 running; {id} step 23"),
        ({1: (23, None, 9.0), 2: (50, 50, 9.0)}, "step 50/50, about 0 s left"),
    ],
)
def test_progress_line_shows_the_run_expected_to_end_last(
    lines: list[str],
    steps_by_job: dict[int, tuple[int, int | None, float]],
    expected: str,
) -> None:
    progress = Progress(lines.append, steps(steps_by_job))
    jobs = [job(HERE, number, status=running()) for number in (1, 2)]
    progress.update(jobs, 0, START)
    progress.update(jobs, 0, START + timedelta(seconds=10))
    assert expected.format(id=jobs[0].spec.case_id) in " ".join(lines[0].split())


def test_progress_of_an_allocation_shows_no_training_step(lines: list[str]) -> None:
    """A log with the allocation's id belongs to a run in the allocation."""
    held = replace(job(HERE).spec, purpose=Purpose.ALLOCATION)
    jobs = [job(HERE, 1, spec=held, status=running()), job(HERE, 2, status=running())]
    for count, expected in (
        (1, "1 running"),
        (2, f"2 running; {held.case_id} step 23"),
    ):
        progress = Progress(lines.append, steps({1: (50, 50, 9.0), 2: (23, None, 9.0)}))
        progress.update(jobs[:count], 0, START)
        progress.update(jobs[:count], 0, START + timedelta(seconds=10))
        assert " ".join(lines[-1].split())[9:].lstrip() == expected


def test_progress_reads_few_logs_however_many_jobs_run(lines: list[str]) -> None:
    looked: list[int] = []
    jobs = [job(HERE, number, status=running()) for number in range(200)]
    progress = Progress(lines.append, lambda read_job: looked.append(read_job.number))
    for seconds in range(0, 600, 5):
        progress.update(jobs, 0, START + timedelta(seconds=seconds))
    assert set(looked) == {196, 197, 198, 199}
    assert len(looked) < 30


def test_progress_lines_fit_80_columns_without_control_characters(
    lines: list[str],
) -> None:
    name = "nemotron4_340b_with_a_rather_long_name-25.05.04-gb200-bf16-2048-pretrain-weak-proxy"
    spec = replace(job(HERE).spec, case_id=name)
    jobs = [
        job(HERE, number, spec=spec, status=waiting(f"Reason\x1b[2J{number}"))
        for number in range(9)
    ]
    progress = Progress(lines.append, lambda _job: (1, 50, 1e6))
    progress.update([*jobs, job(HERE, 10, spec=spec, status=running())], 5, START)
    progress.update(
        [*jobs, job(HERE, 10, spec=spec, status=running())],
        5,
        START + timedelta(seconds=10),
    )
    progress.report_ended(
        replace(jobs[0], status=ended()),
        JobEnd(Blame.RUN, "x" * 300 + "\a\n\r\n" + "y" * 200),
        START,
    )
    rows = [row for line in lines for row in line.split("\n")]
    assert rows
    assert max(map(len, rows)) <= 80
    assert all(row.isprintable() for row in rows)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (99, "99 s"),
        (100, "2 min"),
        (240, "4 min"),
        (7200, "2 h"),
        (7500, "2 h 5 min"),
    ],
)
def test_duration_is_formatted_in_readable_units(seconds: float, expected: str) -> None:
    assert format_duration(seconds) == expected
