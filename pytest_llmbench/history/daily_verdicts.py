"""Read the verdicts of all configurations by day, for `llmbench site`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache

from sqlalchemy import and_, or_, select

from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.history.queries import (
    Row,
    fetch_rows,
    parse_environment,
    parse_list,
    parse_metrics,
    require_time_if_counted,
)
from pytest_llmbench.history.session_record import StoredSession
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.history.stored_verdicts import StoredVerdict
from pytest_llmbench.history.tables import (
    RUN,
    SESSION,
    VERDICT,
    convert_to_stored,
    is_in_time,
)

ParseEnvironment = Callable[[str], Mapping[str, str]]


def read_verdicts(
    location: StoreLocation, since: datetime | None, damaged: dict[str, str]
) -> list[StoredVerdict]:
    """Return every verdict since `since`, in session order.

    Includes verdicts without a run. Invalid verdicts are omitted, and the error is
    added to `damaged` under the session. Raises HistoryError if the store cannot be
    read.
    """
    run_columns = (RUN.c.started, RUN.c.job_id, RUN.c.nodes, RUN.c.environment)
    verdict_columns = [column for column in VERDICT.c if column.name not in _OMITTED]
    columns = (*run_columns, *verdict_columns, SESSION.c.started.label("judged"))
    joined = select(*columns).join_from(
        VERDICT, SESSION, SESSION.c.id == VERDICT.c.session
    )
    joined = joined.where(is_in_time(location, SESSION))
    query = joined.join(RUN, RUN.c.id == VERDICT.c.run, isouter=True).order_by(
        SESSION.c.started, VERDICT.c.id
    )
    if since is not None:
        first = convert_to_stored(since)
        # A verdict without a dated run has the day of its session.
        is_undated_since = and_(RUN.c.started.is_(None), SESSION.c.started >= first)
        query = query.where(or_(RUN.c.started >= first, is_undated_since))
    parse = cache(parse_environment)  # the same texts recur every day

    def make_verdict_in_time(row: Row) -> StoredVerdict:
        """Make the verdict of a row, without a start of the run in the future."""
        started = row["started"]
        if location.latest and started and started > location.latest:
            # The clock was wrong. An undated verdict has the day of its session.
            row = {**row, "started": None}
        return _make_verdict(row, parse)

    return fetch_rows(location, query, make_verdict_in_time, damaged)


_OMITTED = ("id", "bound_seconds", "item", "mean_of", "step_seconds", "log_sha256")
"""Columns of a verdict that no page needs; steps are most of a store's size."""


def _make_verdict(row: Row, parse: ParseEnvironment) -> StoredVerdict:
    """Read a verdict from its row. Raises ValueError for an invalid value."""
    metrics = parse_metrics(row["metrics"])
    require_time_if_counted(row["counts"], row["run_seconds"])
    computed_mfu, _ = metrics.get("mfu", (None, None))
    # From the FLOPs that the framework counted.
    logged_mfu, _ = metrics.get("mfu_logged", (None, None))
    return StoredVerdict(
        **{name: row[name] for name in _COPIED},
        step_seconds=row["step_time_seconds"],
        mfu=logged_mfu if computed_mfu is None else computed_mfu,
        mfu_logged=computed_mfu is None and logged_mfu is not None,
        window=Window(row["first_step"], row["last_step"], row["statistic"]),
        job_id=row["job_id"] or "",
        nodes=tuple(parse_list("nodes", row["nodes"] or "[]")),
        environment=parse(row["environment"] or "{}"),
    )


_COPIED = (
    "configuration",
    "run",
    "started",
    "judged",
    "session",
    "verdict",
    "reason",
    "status",
    "text",
    "counts",
    "run_seconds",
    "expected_seconds",
    "log_difference",
    "baseline",
    "tolerance",
)
"""Columns that are copied to a verdict unchanged."""


def read_session(
    location: StoreLocation, identifier: str, damaged: dict[str, str]
) -> StoredSession:
    """Return a stored session, without its options if they are damaged.

    The damage is added to `damaged` under the session.
    """
    query = select(SESSION, SESSION.c.id.label("session")).where(
        SESSION.c.id == identifier
    )
    rows = fetch_rows(location, query, _make_session, damaged)
    # No row: a value is invalid, probably in the options, the only parsed column.
    if not rows:
        sound_columns = [
            column for column in query.selected_columns if column.name != "options"
        ]
        rows = fetch_rows(location, select(*sound_columns), _make_session)
    return rows[0]


def _make_session(row: Row) -> StoredSession:
    """Build a session from its row, which may lack the options."""
    fields = ("id", "started", "host", "program", "git_commit", "ci_url")
    options = tuple(parse_list("options", row.get("options", "[]")))
    return StoredSession(**{name: row[name] for name in fields}, options=options)
