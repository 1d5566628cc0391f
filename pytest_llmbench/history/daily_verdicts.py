"""Read the verdicts of all configurations by day, for `llmbench site`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from functools import cache
from typing import Any

from sqlalchemy import Select, and_, or_, select

from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.redaction import make_redactor
from pytest_llmbench.history.queries import (
    Row,
    fetch_rows,
    parse_environment,
    parse_list,
    parse_metrics,
    require_time_if_counted,
)
from pytest_llmbench.history.session_record import StoredSession
from pytest_llmbench.history.store import UNEXPECTED, StoreLocation
from pytest_llmbench.history.stored_verdicts import StoredVerdict
from pytest_llmbench.history.tables import (
    RUN,
    SESSION,
    VERDICT,
    convert_to_stored,
    is_in_time,
)
from pytest_llmbench.history.verdict_columns import (
    Columns,
    MetricsByName,
    decode_metrics,
    iterate_columns,
)

ROWS = 2_000
"""Number of verdicts that are read at once."""


def read_verdicts(
    location: StoreLocation, since: datetime | None, damaged: dict[str, str]
) -> list[StoredVerdict]:
    """Return every verdict since `since`, in session order.

    Includes verdicts without a run. Environments and reasons are redacted, because
    older versions stored them unredacted. Invalid verdicts are omitted, and the error
    is added to `damaged` under the session. Raises HistoryError if the store cannot be
    read.
    """
    query = _select_verdicts(location, since)
    converters = _Converters(location)
    try:
        with closing(iterate_columns(location, query, ROWS)) as parts:
            return [
                verdict
                for columns in parts
                for verdict in _make_verdicts(columns, converters)
            ]
    except (HistoryError, *UNEXPECTED):
        # Reading by rows omits the invalid verdicts only.
        return fetch_rows(
            location, query, lambda row: _make_verdict(row, converters), damaged
        )


def _select_verdicts(location: StoreLocation, since: datetime | None) -> Select[Any]:
    """Build the query for all verdicts since `since`, in session order."""
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
    return query


_OMITTED = ("bound_seconds", "item", "mean_of", "step_seconds", "log_sha256")
"""Columns of a verdict that no page needs; steps are most of a store's size."""


def read_texts(location: StoreLocation, ids: Sequence[int]) -> dict[int, str]:
    """Return the texts of verdicts by their numbers; not redacted.

    Texts are most of the memory of a verdict, and pages show only the last ones.
    """
    texts: dict[int, str] = {}
    for first in range(0, len(ids), ROWS):
        query = select(VERDICT.c.id, VERDICT.c.text).where(
            VERDICT.c.id.in_(ids[first : first + ROWS])
        )
        texts |= {row["id"]: row["text"] for row in fetch_rows(location, query, dict)}
    return texts


class _Converters:
    """Converters of the values of a column, which repeat every day.

    Equal values become one object, so that a year takes little memory.
    """

    def __init__(self, location: StoreLocation) -> None:
        redactor = make_redactor()

        def convert_start(started: datetime | None) -> datetime | None:
            """Set the time zone; None for a run in the future (by a wrong clock)."""
            if started is None:
                return None
            time = started.replace(tzinfo=UTC)
            # An undated verdict has the day of its session.
            return None if location.latest and time > location.latest else time

        def find_day(started: datetime | None, judged: datetime) -> date:
            """Return the day of a run, or of its session."""
            return (convert_start(started) or judged).date()

        def convert_environment(text: str | None) -> Mapping[str, str]:
            """Parse an environment and redact its values."""
            return {
                name: value and redactor.redact_variable(name, value)
                for name, value in parse_environment(text or "{}").items()
            }

        self.by_column: dict[str, Callable[[Any], Any]] = {
            "started": cache(convert_start),
            "judged": cache(lambda judged: judged.replace(tzinfo=UTC)),
            "reason": cache(redactor.redact),
            "expected_seconds": cache(lambda seconds: seconds),
            "nodes": cache(lambda text: tuple(parse_list("nodes", text or "[]"))),
            "environment": cache(convert_environment),
            "job_id": lambda text: text or "",
        }
        self.by_column |= {name: cache(str) for name in _REPEATED}
        self.make_window = cache(Window)
        self.find_day = cache(find_day)


_REPEATED = ("configuration", "session", "verdict", "status", "baseline", "tolerance")
"""Text columns with few different values."""


def _make_verdicts(
    columns: Columns, converters: _Converters
) -> Iterable[StoredVerdict]:
    """Make the verdicts of some rows. Raises ValueError for an invalid value."""
    for counts, seconds in zip(columns["counts"], columns["run_seconds"], strict=True):
        require_time_if_counted(counts, seconds)
    values: dict[str, Iterable[Any]] = dict(columns)
    for name, convert in converters.by_column.items():
        values[name] = map(convert, columns[name])
    window = (columns[name] for name in ("first_step", "last_step", "statistic"))
    values["window"] = map(converters.make_window, *window)
    values["day"] = map(converters.find_day, columns["started"], columns["judged"])
    mfus = list(map(_find_mfu, decode_metrics(columns["metrics"])))
    values["mfu"] = [mfu for mfu, _ in mfus]
    values["mfu_logged"] = [is_logged for _, is_logged in mfus]
    # A mean of one run is equal to its time, and becomes the same object.
    values["step_seconds"] = [
        seconds if seconds == mean else mean
        for seconds, mean in zip(
            columns["run_seconds"], columns["step_time_seconds"], strict=True
        )
    ]
    return map(
        StoredVerdict, *[values[name] for name in StoredVerdict.__struct_fields__]
    )


def _make_verdict(row: Row, converters: _Converters) -> StoredVerdict:
    """Make the verdict of one row. Raises ValueError for an invalid value."""
    parse_metrics(row["metrics"])
    (verdict,) = _make_verdicts(
        {name: [value] for name, value in row.items()}, converters
    )
    return verdict


def _find_mfu(metrics: MetricsByName) -> tuple[float | None, bool]:
    """Return the MFU, and True if the framework counted the FLOPs."""
    computed, _ = metrics.get("mfu", (None, None))
    logged, _ = metrics.get("mfu_logged", (None, None))
    if computed is not None:
        return computed, False
    return logged, logged is not None


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
