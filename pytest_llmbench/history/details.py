"""Read details of a few runs from a history: nodes, launchers and steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any

from sqlalchemy import func, select

from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.job_records import Purpose
from pytest_llmbench.core.node_records import MeasuredRun, Software
from pytest_llmbench.core.run_records import RunKeys, StoredDetails, make_run_keys
from pytest_llmbench.history.queries import (
    SHOWN,
    Row,
    fetch_rows,
    parse_environment,
    parse_list,
    unpack_steps,
)
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.history.tables import (
    RUN,
    SESSION,
    VERDICT,
    convert_to_stored,
    is_in_time,
)

RunKey = tuple[str, str, datetime, Window]
"""Key of a judged run: configuration id, job, start, and the verdict's window."""

YEAR = timedelta(days=366)

TIMED = (Purpose.MEASURE, Purpose.CONFIRM_NODES)
"""Purposes of jobs whose step times are evidence about their nodes."""


def read_details(
    location: StoreLocation, requested: Collection[RunKey]
) -> dict[RunKey, StoredDetails]:
    """Return the details of the requested runs from each run's latest verdict.

    Runs that are not in the store are omitted. Raises HistoryError if the store cannot
    be read.
    """
    columns = (
        RUN.c.configuration,
        RUN.c.job_id,
        RUN.c.started,
        RUN.c.launcher,
        RUN.c.nodes,
        RUN.c.jobs,
    )
    judged = (
        VERDICT.c.first_step,
        VERDICT.c.last_step,
        VERDICT.c.statistic,
        VERDICT.c.mean_of,
    )
    joined = select(*columns, *judged, VERDICT.c.step_seconds).join_from(
        VERDICT, RUN, RUN.c.id == VERDICT.c.run
    )
    joined = joined.join(SESSION, SESSION.c.id == VERDICT.c.session).order_by(
        SESSION.c.started, VERDICT.c.id
    )
    query = joined.where(
        RUN.c.configuration.in_({name for name, *_ in requested}),
        RUN.c.started.in_(
            {convert_to_stored(started) for _, _, started, _ in requested}
        ),
        is_in_time(location, SESSION),
    )
    details = dict(fetch_rows(location, query, _make_details))
    return {key: details[key] for key in details.keys() & set(requested)}


def _make_details(row: Row) -> tuple[RunKey, StoredDetails]:
    window = Window(row["first_step"], row["last_step"], row["statistic"])
    steps = unpack_steps(row["step_seconds"])
    mean_of = parse_list("mean_of", row["mean_of"])
    key = (row["configuration"], row["job_id"], row["started"], window)
    return key, StoredDetails(row["launcher"], _list_nodes(row), steps, tuple(mean_of))


def _list_nodes(row: Row) -> tuple[str, ...]:
    """Return the nodes of a run's job.

    If the job is not among the stored jobs, returns the nodes of all of them.
    """
    matching = [
        job["nodes"]
        for job in parse_list("jobs", row["jobs"])
        if job.get("job_id") == row["job_id"]
    ]
    nodes = (
        parse_list("nodes", json.dumps(matching[0]))
        if matching and matching[0]
        else parse_list("nodes", row["nodes"])
    )
    return tuple(nodes)


# --- nodes of runs --------------------------------------------------------------------


def map_nodes(
    location: StoreLocation, configurations: Collection[str]
) -> dict[object, frozenset[str]]:
    """Map the keys of each run of these configurations (ids) to the run's nodes.

    A run has several keys: `make_run_keys` derives them from job, log and start.
    """
    columns = (RUN.c.job_id, RUN.c.fingerprint, RUN.c.started, RUN.c.nodes, RUN.c.jobs)
    query = select(*columns).where(
        RUN.c.configuration.in_(configurations), RUN.c.nodes != "[]"
    )
    nodes: dict[object, frozenset[str]] = {}
    for run_keys, of_run in fetch_rows(location, query, _find_nodes):
        nodes.update(dict.fromkeys(run_keys, of_run))
    return nodes


def _find_nodes(row: Row) -> tuple[RunKeys, frozenset[str]]:
    run_keys = make_run_keys(row["job_id"], row["fingerprint"], row["started"])
    return run_keys, frozenset(_list_nodes(row))


def has_nodes(location: StoreLocation) -> bool:
    """True if the store contains the nodes of any run.

    Raises HistoryError if the store cannot be read.
    """
    return bool(
        fetch_rows(location, select(RUN.c.id).where(RUN.c.nodes != "[]").limit(1), dict)
    )


def list_measured_runs(location: StoreLocation) -> list[MeasuredRun]:
    """Return the valid runs of the last year, oldest first, with their nodes.

    The year ends with the newest run. Each run occurs once, with the window of its
    latest verdict. The repeats of a launch are returned as runs, too, although the
    store contains only the newest repeat as a run, the others as its jobs. Raises
    HistoryError if the store cannot be read.
    """
    columns = (
        RUN.c.id.label("number"),
        RUN.c.configuration,
        RUN.c.started,
        RUN.c.job_id,
    )
    of_launch = (RUN.c.attempts, RUN.c.jobs, RUN.c.environment)
    judged = (
        VERDICT.c.first_step,
        VERDICT.c.last_step,
        VERDICT.c.statistic,
        VERDICT.c.counts,
        VERDICT.c.run_seconds,
    )
    joined = select(*columns, *of_launch, *judged).join_from(
        VERDICT, RUN, RUN.c.id == VERDICT.c.run
    )
    joined = joined.join(SESSION, SESSION.c.id == VERDICT.c.session).order_by(
        SESSION.c.started, VERDICT.c.id
    )
    newest = fetch_rows(
        location,
        select(func.max(RUN.c.started).label("started")).where(
            is_in_time(location, RUN)
        ),
        dict,
    )
    if not newest or newest[0]["started"] is None:
        return []
    first = convert_to_stored(newest[0]["started"] - YEAR)
    in_time = is_in_time(location, RUN), is_in_time(location, SESSION)
    query = joined.where(VERDICT.c.verdict.in_(SHOWN), RUN.c.started >= first, *in_time)
    make_runs = partial(_list_runs, parse=cache(_parse_software))
    last = dict(fetch_rows(location, query, make_runs))
    # A session that resumes a launch stores its jobs again, with another newest run.
    runs = {run.key: run for of_row in last.values() for run in of_row}
    return sorted(runs.values(), key=lambda run: (run.started, run.id))


def _parse_software(environment: str) -> Software:
    return frozenset(parse_environment(environment).items())


def _list_runs(
    row: Row, parse: Callable[[str], Software]
) -> tuple[int, list[MeasuredRun]]:
    runs = _make_runs(row, parse(row["environment"] or "{}")) if row["counts"] else ()
    return row["number"], list(runs)


def _make_runs(row: Row, software: Software) -> Iterator[MeasuredRun]:
    """Yield the run of a row, and the other timed jobs of its launch.

    All of them have the software of the run.
    """
    window = Window(row["first_step"], row["last_step"], row["statistic"])
    jobs = {
        job["job_id"]: job
        for job in parse_list("jobs", row["jobs"])
        if job.get("purpose") in TIMED
    }
    job_of_run = jobs.pop(row["job_id"], None)
    # The attempt that contains the measured steps is unknown if there are several.
    nodes = (
        _list_job_nodes(job_of_run)
        if job_of_run is not None and row["attempts"] == 1
        else frozenset()
    )
    of_row = (row["number"], row["configuration"], window)
    began = _read_start(job_of_run or {})
    yield MeasuredRun(
        *of_row,
        row["started"],
        row["job_id"],
        row["run_seconds"],
        nodes,
        software,
        began,
    )
    for name, job in jobs.items():
        if job.get("step_seconds") is not None:
            seconds, began = _check_seconds(job["step_seconds"]), _read_start(job)
            yield MeasuredRun(
                *of_row,
                began or row["started"],
                name,
                seconds,
                _list_job_nodes(job),
                software,
                began,
            )


def _read_start(job: dict[str, Any]) -> datetime | None:
    return (
        datetime.fromisoformat(job["started"]).astimezone(UTC)
        if job.get("started")
        else None
    )


def _list_job_nodes(job: dict[str, Any]) -> frozenset[str]:
    """Return the nodes of a job.

    Empty if Slurm requeued the job: its steps may be from the earlier nodes.
    """
    nodes = parse_list("nodes", json.dumps(job["nodes"]))
    return frozenset() if job.get("gpu_hours", {}).get("requeued") else frozenset(nodes)


def _check_seconds(seconds: Any) -> float:
    if type(seconds) not in (int, float) or not (
        math.isfinite(seconds) and seconds > 0
    ):
        raise ValueError(f"a job took {seconds} s")
    return float(seconds)
