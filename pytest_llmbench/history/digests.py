"""Digests: what later sessions ask of the verdicts, packed, so that a year of nights is read in a moment.

A digest is JSON text of the verdicts on the runs of one configuration, of a range of their numbers and in that order: a
list for each of COLUMNS, with windows and environments by their place in lists of them. No verdict is ever changed, so
digests hold until some are removed, which their number tells; what is newer is read from the verdicts themselves.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.models import StoredRun, Window
from pytest_llmbench.history.store import connect

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row, Select

    from pytest_llmbench.history.location import StoreLocation

SIZE = 2000
"""So many verdicts, of all configurations, are packed together; up to so many are read one by one."""

ALL = ""
"""The configuration of the row that says how many verdicts there were up to its number, and how many digests."""

DAMAGED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What `verdicts` and `packed` raise for what no session stored."""

OF_RUN = ("job_id", "fingerprint")
OF_VERDICT = ("counts", "run_seconds", "verdict", "reason", "step_time_seconds", "expected_seconds", "log_difference")
COLUMNS = ("session_started", "run", "started", *OF_RUN, "window", "environment", *OF_VERDICT)
"""From `started` on they are the fields of StoredRun."""

REPEATED = ("session_started", "window", "environment", "verdict", "reason", "expected_seconds")
"""Columns of few values: a list of these, and the place of each in it."""

Digest = dict[str, Any]

StoredVerdict = tuple[str, int, StoredRun]
"""One verdict: when its session began (ISO 8601), the number of its run, and the run with it."""


def read_verdicts(digest: Digest) -> Iterator[StoredVerdict]:
    """Yield the verdicts of a digest in the order of their numbers; `started` is None where nothing said it."""
    windows, places = digest["window"]
    digest = {**digest, "window": [[Window(*fields) for fields in windows], places]}
    began, runs, started, *past = [get_column(digest, name) for name in COLUMNS]
    moments = [fields and datetime.fromisoformat(fields) for fields in started]
    return zip(began, runs, map(_make_past_run, zip(moments, *past, strict=True)), strict=True)


_make_past_run = partial(tuple.__new__, StoredRun)
"""StoredRun of a tuple of its fields: a year of nights of a cluster are 30,000."""


def get_column(digest: Digest, name: str) -> Iterable[Any]:
    """Return the values of one of COLUMNS."""
    if name not in REPEATED:
        return digest[name]  # type: ignore[no-any-return]
    values, places = digest[name]
    return map(values.__getitem__, places)


def pack_rows(rows: Iterable[Sequence[Any]]) -> Digest:
    """Return rows of `after` as a digest."""
    lines = [
        (
            _format_moment(began),
            run,
            started and _format_moment(started),
            job_id,
            logs,
            (first, last, statistic),
            environment,
            *judged,
        )
        for began, run, _, started, environment, first, last, statistic, job_id, logs, *judged in rows
    ]
    digest: Digest = dict(zip(COLUMNS, zip(*lines, strict=True) if lines else [()] * len(COLUMNS), strict=True))
    for name in REPEATED:
        places: dict[Any, int] = {}
        at = [places.setdefault(value, len(places)) for value in digest[name]]
        digest[name] = [list(map(json.loads, places)) if name == "environment" else list(places), at]
    return digest


def _format_moment(moment: datetime) -> str:
    return moment.replace(tzinfo=UTC).isoformat()


# --- in the store -----------------------------------------------------------------------------------------


def select_after(number: int) -> Select[Any]:
    """Return the query for the verdicts on runs with a larger number, in their order."""
    from sqlalchemy import select

    from pytest_llmbench.history.tables import RUN, SESSION, VERDICT

    of_session = (SESSION.c.started.label("began"), VERDICT.c.run)
    of_run = (RUN.c.configuration, RUN.c.started, RUN.c.environment)
    of_window = (VERDICT.c.first_step, VERDICT.c.last_step, VERDICT.c.statistic)
    plain = (*(RUN.c[name] for name in OF_RUN), *(VERDICT.c[name] for name in OF_VERDICT))
    joined = select(*of_session, *of_run, *of_window, *plain).join_from(VERDICT, RUN, RUN.c.id == VERDICT.c.run)
    joined = joined.join(SESSION, SESSION.c.id == VERDICT.c.session)
    return joined.where(VERDICT.c.id > number).order_by(VERDICT.c.id)


def find_covered(connection: Connection) -> int:
    """Return the number of the last verdict in the digests; 0 where there are none, or where some do not hold."""
    from sqlalchemy import select

    from pytest_llmbench.history.tables import DIGEST

    newest_first = select(DIGEST.c.upto, DIGEST.c.verdicts).where(DIGEST.c.configuration == ALL)
    last = connection.execute(newest_first.order_by(DIGEST.c.upto.desc()).limit(1)).first()
    return int(last.upto) if last and last.verdicts == _count_rows(connection, last.upto) else 0


def _count_rows(connection: Connection, upto: int) -> str:
    """Return how many verdicts have no larger number, and how many digests there are."""
    from sqlalchemy import func, select

    from pytest_llmbench.history.tables import DIGEST, VERDICT

    count = select(func.count()).select_from(VERDICT)  # all of them are in an index, and the newer ones are few
    verdicts = count.scalar_subquery() - count.where(VERDICT.c.id > upto).scalar_subquery()
    digests = select(func.count()).select_from(DIGEST).where(DIGEST.c.configuration != ALL)
    of_verdicts, of_digests = connection.execute(select(verdicts, digests.scalar_subquery())).one()
    return f"{of_verdicts} in {of_digests}"


def read_digests(connection: Connection, configurations: Collection[str]) -> dict[str, list[list[str]]]:
    """Return by configuration its digests in their order, each as the day (ISO 8601) of its newest run and its text."""
    from sqlalchemy import select

    from pytest_llmbench.history.tables import DIGEST

    wanted = select(DIGEST.c.configuration, DIGEST.c.newest_day, DIGEST.c.verdicts).order_by(DIGEST.c.upto)
    by_configuration = defaultdict(list)
    for name, *digest in connection.execute(wanted.where(DIGEST.c.configuration.in_(configurations))).all():
        by_configuration[name].append(digest)
    return by_configuration


def remove_stale(connection: Connection) -> int:
    """Remove all digests if some do not hold, and return what `covered` does."""
    from sqlalchemy import delete, select

    from pytest_llmbench.history.tables import DIGEST

    last = find_covered(connection)
    if not last and connection.execute(select(DIGEST.c.upto).limit(1)).first():
        connection.execute(delete(DIGEST))  # not every time: a user of a server may not be allowed to
    return last


def find_due(connection: Connection, last: int) -> int | None:
    """Return the number up to which the verdicts after the `last` one are to be packed; None while they are few."""
    from sqlalchemy import select

    from pytest_llmbench.history.tables import VERDICT

    numbers = select(VERDICT.c.id).where(VERDICT.c.id > last).order_by(VERDICT.c.id)
    return connection.execute(numbers.offset(SIZE - 1).limit(1)).scalar()


def renew(place: StoreLocation) -> None:
    """Pack what is due, in short transactions. What goes wrong is left to the next session: nothing needs them."""
    with suppress(HistoryError, *DAMAGED):
        while _pack_more(place):
            pass


def _pack_more(place: StoreLocation) -> bool:
    from sqlalchemy import insert

    from pytest_llmbench.history.tables import DIGEST, VERDICT

    with connect(place, writes=True) as connection:
        last = remove_stale(connection)
        upto = find_due(connection, last)
        if upto is None:
            return False
        by_configuration = defaultdict(list)
        for row in connection.execute(select_after(last).where(VERDICT.c.id <= upto)).all():
            by_configuration[row.configuration].append(row)
        for name, rows in by_configuration.items():
            values = {
                "configuration": name,
                "newest_day": _find_newest_day(rows),
                "verdicts": json.dumps(pack_rows(rows)),
            }
            connection.execute(insert(DIGEST).values(upto=upto, **values))
        marker = {"configuration": ALL, "newest_day": "", "verdicts": _count_rows(connection, upto)}
        connection.execute(insert(DIGEST).values(upto=upto, **marker))
    return True


def remove(place: StoreLocation) -> None:
    """Remove all digests, which are made again; where that cannot be, they stay."""
    from sqlalchemy import delete

    from pytest_llmbench.history.tables import DIGEST

    with suppress(HistoryError), connect(place, writes=True) as connection:
        connection.execute(delete(DIGEST))


def _find_newest_day(rows: Sequence[Row[Any]]) -> str:
    return max((_format_moment(row.started)[:10] for row in rows if row.started), default="")
