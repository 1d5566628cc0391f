"""What a history knows of a few runs besides what each session reads of all: their nodes, launchers and steps."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import select

from pytest_llmbench.core.models import StoredDetails, Window
from pytest_llmbench.history.queries import Row, fetch_rows, parse_list, unpack_steps
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.history.tables import RUN, SESSION, VERDICT, convert_to_stored

RunPlace = tuple[str, str, datetime, Window]
"""What finds a run in the store: the id of its configuration, its job, its start, and the window of its verdict."""


def read_details(place: StoreLocation, wanted: Collection[RunPlace]) -> dict[RunPlace, StoredDetails]:
    """Return what else is known of these runs, of each as it was judged last; those that are not there are left out.

    HistoryError where the store cannot be read.
    """
    columns = (RUN.c.configuration, RUN.c.job_id, RUN.c.started, RUN.c.launcher, RUN.c.nodes, RUN.c.jobs)
    judged = (VERDICT.c.first_step, VERDICT.c.last_step, VERDICT.c.statistic, VERDICT.c.mean_of)
    joined = select(*columns, *judged, VERDICT.c.step_seconds).join_from(VERDICT, RUN, RUN.c.id == VERDICT.c.run)
    joined = joined.join(SESSION, SESSION.c.id == VERDICT.c.session).order_by(SESSION.c.started, VERDICT.c.id)
    query = joined.where(
        RUN.c.configuration.in_({name for name, *_ in wanted}),
        RUN.c.started.in_({convert_to_stored(started) for _, _, started, _ in wanted}),
    )
    rows = fetch_rows(place, query, _add_details)
    return {row["place"]: row["details"] for row in rows if row["place"] in wanted}


def _add_details(row: Row) -> Row:
    window = Window(row["first_step"], row["last_step"], row["statistic"])
    steps, mean_of = unpack_steps(row["step_seconds"]), parse_list("mean_of", row["mean_of"])
    return {
        "place": (row["configuration"], row["job_id"], row["started"], window),
        "details": StoredDetails(row["launcher"], _list_nodes(row), steps, tuple(mean_of)),
    }


def _list_nodes(row: Row) -> tuple[str, ...]:
    """Return the nodes of the job of a run; where that is not among its jobs those of all of them."""
    own = [job["nodes"] for job in parse_list("jobs", row["jobs"]) if job["job_id"] == row["job_id"]]
    nodes = parse_list("nodes", json.dumps(own[0])) if own and own[0] else parse_list("nodes", row["nodes"])
    return tuple(nodes)
