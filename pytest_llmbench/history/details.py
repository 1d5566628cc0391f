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
    """Read the key and the details of a run from a row."""
    window = Window(row["first_step"], row["last_step"], row["statistic"])
    steps = unpack_steps(row["step_seconds"])
    mean_of = parse_list("mean_of", row["mean_of"])
    key = (row["configuration"], row["job_id"], row["started"], window)
    return key, StoredDetails(row["launcher"], _list_nodes(row), steps, tuple(mean_of))


def _list_nodes(row: Row) -> tuple[str, ...]:
    """Return the nodes of a run's job.

    If the job is not stored, or without nodes, returns the nodes of all jobs together.
    """
    for job in parse_list("jobs", row["jobs"]):
        if job.get("job_id") == row["job_id"]:
            if job["nodes"]:
                return tuple(parse_list("nodes", json.dumps(job["nodes"])))
            break
    return tuple(parse_list("nodes", row["nodes"]))


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
    nodes_by_key: dict[object, frozenset[str]] = {}
    for run_keys, nodes in fetch_rows(location, query, _find_nodes):
        nodes_by_key.update(dict.fromkeys(run_keys, nodes))
    return nodes_by_key


def _find_nodes(row: Row) -> tuple[RunKeys, frozenset[str]]:
    """Return the keys and the nodes of a run."""
    run_keys = make_run_keys(row["job_id"], row["fingerprint"], row["started"])
    return run_keys, frozenset(_list_nodes(row))


def has_nodes(location: StoreLocation) -> bool:
    """True if the store contains the nodes of any run.

    Raises HistoryError if the store cannot be read.
    """
    first_run_with_nodes = select(RUN.c.id).where(RUN.c.nodes != "[]").limit(1)
    return bool(fetch_rows(location, first_run_with_nodes, dict))


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
    newest_start = _find_newest_start(location)
    if newest_start is None:
        return []
    query = joined.where(
        VERDICT.c.verdict.in_(SHOWN),
        RUN.c.started >= convert_to_stored(newest_start - YEAR),
        is_in_time(location, RUN),
        is_in_time(location, SESSION),
    )
    # The same software recurs every day.
    make_runs = partial(_list_runs, parse=cache(_parse_software))
    # The last row of each run number is its latest verdict.
    runs_by_number = dict(fetch_rows(location, query, make_runs))
    # A session that resumes a launch stores its jobs again, with another newest run.
    run_by_key = {run.key: run for runs in runs_by_number.values() for run in runs}
    return sorted(run_by_key.values(), key=lambda run: (run.started, run.id))


def _find_newest_start(location: StoreLocation) -> datetime | None:
    """Return the start of the newest run, or None for a store without dated runs."""
    newest = select(func.max(RUN.c.started).label("started"))
    rows = fetch_rows(location, newest.where(is_in_time(location, RUN)), dict)
    return rows[0]["started"] if rows else None


def _parse_software(environment: str) -> Software:
    """Parse a stored environment as (name, version) pairs."""
    return frozenset(parse_environment(environment).items())


def _list_runs(
    row: Row, parse: Callable[[str], Software]
) -> tuple[int, list[MeasuredRun]]:
    """Return the number of a row's run, and the runs of its launch.

    Returns no runs if the verdict does not count, since its run is then invalid.
    """
    runs = []
    if row["counts"]:
        runs = list(_make_runs(row, parse(row["environment"] or "{}")))
    return row["number"], runs


def _make_runs(row: Row, software: Software) -> Iterator[MeasuredRun]:
    """Yield the run of a row, and the other timed jobs of its launch.

    All of them have the software of the run.
    """
    window = Window(row["first_step"], row["last_step"], row["statistic"])
    other_jobs = {
        job["job_id"]: job
        for job in parse_list("jobs", row["jobs"])
        if job.get("purpose") in TIMED
    }
    job_of_run = other_jobs.pop(row["job_id"], None)
    nodes: frozenset[str] = frozenset()
    # The attempt that contains the measured steps is unknown if there are several.
    if job_of_run is not None and row["attempts"] == 1:
        nodes = _list_job_nodes(job_of_run)
    common_fields = (row["number"], row["configuration"], window)
    yield MeasuredRun(
        *common_fields,
        row["started"],
        row["job_id"],
        row["run_seconds"],
        nodes,
        software,
        _read_start(job_of_run or {}),
    )
    for job_id, job in other_jobs.items():
        if job.get("step_seconds") is not None:
            job_start = _read_start(job)
            yield MeasuredRun(
                *common_fields,
                job_start or row["started"],
                job_id,
                _check_seconds(job["step_seconds"]),
                _list_job_nodes(job),
                software,
                job_start,
            )


def _read_start(job: dict[str, Any]) -> datetime | None:
    """Return the start of a stored job in UTC, or None if it is unknown."""
    if not job.get("started"):
        return None
    return datetime.fromisoformat(job["started"]).astimezone(UTC)


def _list_job_nodes(job: dict[str, Any]) -> frozenset[str]:
    """Return the nodes of a job.

    Empty if Slurm requeued the job: its steps may be from the earlier nodes.
    """
    nodes = parse_list("nodes", json.dumps(job["nodes"]))
    if job.get("gpu_hours", {}).get("requeued"):
        return frozenset()
    return frozenset(nodes)


def _check_seconds(seconds: Any) -> float:
    """Return a stored step time as a float. Raises ValueError for other values."""
    is_number = type(seconds) in (int, float)  # not a bool
    if not is_number or not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"a job took {seconds} s")
    return float(seconds)
