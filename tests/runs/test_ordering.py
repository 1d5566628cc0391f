"""Runs of one configuration are ordered by one clock."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.builders import KEY, NOW, log, run, segment

from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.run_records import Clock, LoglessJob, Run, StartCandidate
from pytest_llmbench.runs.ordering import (
    drop_future_starts,
    drop_superseded,
    order_runs,
)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ZONED = (Clock.FOLDER_NAME, Clock.FILE_TIME)
WHOLE, DEAD = log(segment()), log()


def make_run(job: str, content: ParsedLog = WHOLE, /, **clocks: timedelta) -> Run:
    """Return a run with start times by these clocks, as durations before NOW."""
    start_candidates = tuple(
        StartCandidate(clock, NOW - ago, clock, zoned=clock in ZONED)
        for clock, ago in (
            (Clock(name.replace("_", "-")), ago) for name, ago in clocks.items()
        )
    )
    first = next(iter(drop_future_starts(start_candidates, NOW)), None)
    clock = first.clock if first else Clock.UNKNOWN
    ordered = run(
        content, key=KEY, id=job, job_id=job, started=first.timestamp if first else None
    )
    return replace(ordered, start_candidates=start_candidates, order_source=clock)


def order_jobs(*runs: Run) -> list[str]:
    """Return the job ids, newest first, for any order in which the runs were found."""
    ordered = [run.found.job_id for run in order_runs(runs, NOW)]
    assert [run.found.job_id for run in order_runs(runs[::-1], NOW)] == ordered
    return ordered


def find_order_source(*runs: Run) -> Clock:
    return order_runs(runs, NOW)[0].order_source


@pytest.mark.parametrize(
    ("first", "second", "newest", "clock"),
    [
        (
            {"metadata": DAY, "log": DAY},
            {"metadata": 2 * DAY, "log": HOUR},
            "2",
            Clock.LOG,
        ),
        ({"metadata": DAY}, {"metadata": 2 * DAY, "log": HOUR}, "1", Clock.METADATA),
        (
            {"metadata": HOUR, "log": 2 * DAY},
            {"folder_name": DAY, "log": DAY},
            "2",
            Clock.LOG,
        ),
        (
            {"folder_name": HOUR, "file_time": DAY},
            {"log": 2 * HOUR, "file_time": HOUR},
            "2",
            Clock.FILE_TIME,
        ),
        (
            {"folder_name": -20 * HOUR, "log": DAY},
            {"folder_name": HOUR, "log": HOUR},
            "2",
            Clock.LOG,
        ),
        ({"metadata": -9 * HOUR}, {"metadata": -8 * HOUR}, "1", Clock.METADATA),
        ({"metadata": DAY}, {"log": HOUR}, "2", Clock.MIXED),
    ],
)
def test_newest_of_two_runs_follows_from_the_best_time_source_that_both_have(
    first: dict[str, timedelta], second: dict[str, timedelta], newest: str, clock: Clock
) -> None:
    runs = make_run("1", **first), make_run("2", **second)
    assert order_jobs(*runs)[0] == newest
    assert find_order_source(*runs) is clock


@pytest.mark.parametrize(
    ("first", "second", "newest"),
    [
        ({"folder_name": DAY, "log": HOUR}, {"folder_name": DAY, "log": DAY}, "1"),
        ({"folder_name": DAY, "log": DAY}, {"folder_name": DAY, "log": HOUR}, "2"),
        ({"folder_name": DAY, "log": HOUR}, {"folder_name": DAY, "log": HOUR}, "2"),
        ({"folder_name": DAY, "log": HOUR}, {"folder_name": DAY}, "2"),
        (
            {"folder_name": DAY, "file_time": HOUR},
            {"folder_name": DAY, "file_time": DAY},
            "2",
        ),
    ],
    ids=["log", "log and job", "job alone", "one without", "files tell nothing"],
)
def test_last_started_job_of_folder_is_newest(
    first: dict[str, timedelta], second: dict[str, timedelta], newest: str
) -> None:
    """Job numbers may restart, and the first submitted may wait longest."""
    assert order_jobs(make_run("1", **first), make_run("2", **second))[0] == newest


def test_failed_job_in_shared_folder_stays_newest() -> None:
    runs = (
        make_run("1", folder_name=DAY, log=HOUR),
        make_run("2", folder_name=DAY, log=2 * HOUR),
    )
    assert order_jobs(*runs, make_run("3", DEAD, folder_name=DAY))[0] == "3"


def test_launch_times_with_and_without_time_zone_are_not_compared() -> None:
    """One metadata file has a zone, the other has none: they may differ by hours."""
    naive = make_run("1", metadata=2 * HOUR, log=3 * DAY)
    zoned = make_run("2", log=DAY)
    aware = StartCandidate(Clock.METADATA, NOW - 3 * HOUR, "metadata", zoned=True)
    zoned = replace(zoned, start_candidates=(aware, *zoned.start_candidates))
    assert (order_jobs(naive, zoned), find_order_source(naive, zoned)) == (
        ["2", "1"],
        Clock.LOG,
    )


def test_runs_are_not_ordered_by_a_clock_that_one_of_them_lacks() -> None:
    runs = [
        make_run("1", metadata=DAY, log=3 * DAY),
        make_run("2", metadata=2 * DAY, log=2 * DAY),
        make_run("3", log=DAY),
    ]
    assert order_jobs(*runs) == ["3", "2", "1"]


def test_future_start_time_is_dropped_unless_a_missing_time_zone_may_explain_it() -> (
    None
):
    soon = StartCandidate(
        Clock.FOLDER_NAME, NOW + timedelta(minutes=5), "x", zoned=True
    )
    later = replace(soon, timestamp=NOW + HOUR)
    elsewhere = replace(later, zoned=False)
    wrong = replace(elsewhere, timestamp=NOW + 2 * DAY)
    assert drop_future_starts((wrong, later, elsewhere, soon), NOW) == [
        elsewhere,
        soon,
    ]


@pytest.mark.parametrize(
    ("dead", "newest"),
    [
        ({"file_time": HOUR}, "9"),  # modified after all logs
        (
            {"file_time": 9 * DAY},
            "9",
        ),  # a copy lost the file time, and its job id is the highest
        ({"log": HOUR, "file_time": 9 * DAY}, "9"),
        ({"log": 3 * DAY, "file_time": HOUR}, "2"),
    ],
)
def test_run_without_steps_is_ordered_by_log_time_file_time_or_job_id(
    dead: dict[str, timedelta], newest: str
) -> None:
    """It does not change the clock of the runs with steps, which use their logs."""
    runs = [
        make_run("1", log=DAY, file_time=2 * HOUR),
        make_run("2", log=2 * HOUR, file_time=3 * HOUR),
    ]
    assert order_jobs(*runs) == ["2", "1"]
    assert order_jobs(*runs, make_run("9", DEAD, **dead))[0] == newest


def test_failed_job_with_lower_id_is_older() -> None:
    runs = [
        make_run("11", log=DAY, file_time=DAY),
        make_run("12", log=HOUR, file_time=HOUR),
    ]
    assert order_jobs(*runs, make_run("10", DEAD, file_time=9 * DAY)) == [
        "12",
        "11",
        "10",
    ]
    assert order_jobs(*runs, make_run("10", DEAD, file_time=2 * HOUR)) == [
        "12",
        "10",
        "11",
    ]


def make_logless_run(job: str, logless_job: LoglessJob, ago: timedelta) -> Run:
    run = make_run(job, DEAD, folder_name=ago)
    files = replace(
        run.found, attempts=(), logless_job=logless_job, logless_path=Path("/runs/x")
    )
    return replace(run, found=files, attempts=())


@pytest.mark.parametrize("logless_job", list(LoglessJob))
@pytest.mark.parametrize(
    ("ago", "logged", "kept"),
    [
        (HOUR, 2 * HOUR, ["9", "1"]),
        (30 * DAY, 31 * DAY, ["9", "1"]),
        (30 * DAY, 29 * DAY, ["1"]),
        (2 * DAY, HOUR, ["1", "9"]),
        (30 * DAY, None, []),
        (DAY, None, ["9"]),
    ],
)
def test_job_without_a_log_remains_a_run_while_queued_or_newer_than_all_logs(
    logless_job: LoglessJob, ago: timedelta, logged: timedelta | None, kept: list[str]
) -> None:
    runs = [make_logless_run("9", logless_job, ago)]
    if logged is not None:
        runs.append(make_run("1", folder_name=logged))
    ordered, notes = drop_superseded(order_runs(runs, NOW), NOW)
    assert [run.found.job_id for run in ordered] == kept
    assert bool(notes) is ("9" not in kept)


def test_job_launched_minutes_ago_is_noted_as_starting_on_the_judged_run() -> None:
    runs = order_runs(
        [
            make_logless_run("9", LoglessJob.FOLDER, timedelta(minutes=3)),
            make_run("1", folder_name=DAY),
        ],
        NOW,
    )
    (judged,), notes = drop_superseded(runs, NOW)
    assert judged.starting == ("9",)
    assert list(map(str, notes)) == ["9: launched minutes ago, no log yet"]


def test_old_log_without_timestamps_does_not_order_newer_logs_by_file_times() -> None:
    """Copying gave the good run the latest file time, but two logs have timestamps."""
    good = make_run("1", log=DAY, file_time=HOUR)
    slow = make_run("2", log=2 * HOUR, file_time=3 * HOUR)
    ancient = make_run("3", file_time=2 * HOUR)
    assert order_jobs(good, slow, ancient)[0] == "2"
    assert find_order_source(good, slow, ancient) is Clock.FILE_TIME
