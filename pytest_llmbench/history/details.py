"""What a history knows of a few runs besides what each session reads of all: their
nodes, launchers and steps."""

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

RunPlace = tuple[str, str, datetime, Window]
"""What finds a run in the store: the id of its configuration, its job, its start, and
the window of its verdict."""

YEAR = timedelta(days=366)

TIMED = (Purpose.MEASURE, Purpose.CONFIRM_NODES)
"""The purposes of jobs whose step time says something of their nodes."""


def read_details(
    place: StoreLocation, wanted: Collection[RunPlace]
) -> dict[RunPlace, StoredDetails]:
    """Return what else is known of these runs, of each as it was judged last; those
    that are not there are left out.

    HistoryError where the store cannot be read.
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
        RUN.c.configuration.in_({name for name, *_ in wanted}),
        RUN.c.started.in_({convert_to_stored(started) for _, _, started, _ in wanted}),
        is_in_time(place, SESSION),
    )
    details = dict(fetch_rows(place, query, _make_details))
    return {found: details[found] for found in details.keys() & set(wanted)}


def _make_details(row: Row) -> tuple[RunPlace, StoredDetails]:
    window = Window(row["first_step"], row["last_step"], row["statistic"])
    steps, mean_of = (
        unpack_steps(row["step_seconds"]),
        parse_list("mean_of", row["mean_of"]),
    )
    found = (row["configuration"], row["job_id"], row["started"], window)
    return found, StoredDetails(
        row["launcher"], _list_nodes(row), steps, tuple(mean_of)
    )


def _list_nodes(row: Row) -> tuple[str, ...]:
    """Return the nodes of the job of a run; where that is not among its jobs those of
    all of them."""
    own = [
        job["nodes"]
        for job in parse_list("jobs", row["jobs"])
        if job.get("job_id") == row["job_id"]
    ]
    nodes = (
        parse_list("nodes", json.dumps(own[0]))
        if own and own[0]
        else parse_list("nodes", row["nodes"])
    )
    return tuple(nodes)


# --- on which nodes runs were ---------------------------------------------------------


def map_nodes(
    place: StoreLocation, configurations: Collection[str]
) -> dict[object, frozenset[str]]:
    """Map the keys of each run of these configurations (ids) to the nodes of the
    run."""
    columns = (RUN.c.job_id, RUN.c.fingerprint, RUN.c.started, RUN.c.nodes, RUN.c.jobs)
    wanted = select(*columns).where(
        RUN.c.configuration.in_(configurations), RUN.c.nodes != "[]"
    )
    nodes: dict[object, frozenset[str]] = {}
    for run_keys, of_run in fetch_rows(place, wanted, _find_nodes):
        nodes.update(dict.fromkeys(run_keys, of_run))
    return nodes


def _find_nodes(row: Row) -> tuple[RunKeys, frozenset[str]]:
    run_keys = make_run_keys(row["job_id"], row["fingerprint"], row["started"])
    return run_keys, frozenset(_list_nodes(row))


def has_nodes(place: StoreLocation) -> bool:
    """Whether the store knows on which nodes any run was. HistoryError where it cannot
    be read."""
    return bool(
        fetch_rows(place, select(RUN.c.id).where(RUN.c.nodes != "[]").limit(1), dict)
    )


def list_measured_runs(place: StoreLocation) -> list[MeasuredRun]:
    """Return the runs of the year before the newest one that count, oldest first, each
    with the nodes of its own job.

    A run is there once, over the steps of the session that judged it last; the repeats
    of a launch, of which the store keeps the newest as a run, are runs, too.
    HistoryError where the store cannot be read.
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
        place,
        select(func.max(RUN.c.started).label("started")).where(is_in_time(place, RUN)),
        dict,
    )
    if not newest or newest[0]["started"] is None:
        return []
    first = convert_to_stored(newest[0]["started"] - YEAR)
    in_time = is_in_time(place, RUN), is_in_time(place, SESSION)
    query = joined.where(VERDICT.c.verdict.in_(SHOWN), RUN.c.started >= first, *in_time)
    make_runs = partial(_list_runs, parse=cache(_parse_software))
    last = dict(fetch_rows(place, query, make_runs))
    # Sessions that go on with a launch store its jobs again, with another newest run.
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
    """Yield the run of a row, and the other timed jobs of its launch, which ran on the
    same software."""
    window = Window(row["first_step"], row["last_step"], row["statistic"])
    jobs = {
        job["job_id"]: job
        for job in parse_list("jobs", row["jobs"])
        if job.get("purpose") in TIMED
    }
    own = jobs.pop(row["job_id"], None)
    # Nothing says in which attempt of several the steps were that count.
    nodes = (
        _list_job_nodes(own)
        if own is not None and row["attempts"] == 1
        else frozenset()
    )
    of_row = (row["number"], row["configuration"], window)
    began = _read_start(own or {})
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
            seconds, began = _refuse_no_time(job["step_seconds"]), _read_start(job)
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
    """Return the nodes of a job; none where Slurm had started it elsewhere before: its
    steps may be of then."""
    nodes = parse_list("nodes", json.dumps(job["nodes"]))
    return frozenset() if job.get("gpu_hours", {}).get("requeued") else frozenset(nodes)


def _refuse_no_time(seconds: Any) -> float:
    if type(seconds) not in (int, float) or not (
        math.isfinite(seconds) and seconds > 0
    ):
        raise ValueError(f"a job took {seconds} s")
    return float(seconds)
