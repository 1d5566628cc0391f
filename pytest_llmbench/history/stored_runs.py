"""The runs of earlier sessions, as judging and reports need them."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.models import StoredRun, Window
from pytest_llmbench.history.store import StoreLocation, connect

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select

LAST = 365  # the runs of so many of the last days of each configuration are read

# The verdicts of a night; a profiled run is none, and a recording gives none.
SHOWN = frozenset(("PASS", "REGRESSION", "IMPROVEMENT", "INCONCLUSIVE", "INVALID", "TEST_FAILED", "NOT_ASSERTED"))

_STARTED: Callable[[StoredRun], datetime] = attrgetter("started")

# A year of nights of a cluster are 30,000 runs: its __new__ would take longer than the query.
_make_stored_run = partial(tuple.__new__, StoredRun)


def read_stored_runs(place: StoreLocation, configurations: Collection[str]) -> dict[str, tuple[StoredRun, ...]]:
    """Return by configuration (ids) the runs of its last days, oldest first.

    Each is there once for each window, as it was judged last. Nothing from a store without tables. HistoryError where
    it cannot be read.
    """
    from pytest_llmbench.history.tables import has_tables

    try:
        with connect(place, writes=False) as connection:
            return _read_last_days(connection, configurations) if has_tables(connection, place.shown) else {}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # what the values in a damaged row raise
        raise HistoryError(f"{place.shown}: holds what no session stored ({error!r})") from None


def _read_last_days(connection: Connection, configurations: Collection[str]) -> dict[str, tuple[StoredRun, ...]]:
    first_days = _find_first_days(connection, configurations)
    runs = _read_runs(connection, configurations, first_days)
    # Days on which a configuration only has verdicts that are not shown do not count: then older ones do.
    short = [name for name in first_days if _count_days(runs.get(name, ())) < LAST]
    if short:
        runs |= _read_runs(connection, short, {})
    return {name: _select_last_days(runs[name]) for name in configurations if name in runs}


def _find_first_days(connection: Connection, configurations: Collection[str]) -> dict[str, datetime]:
    """Return of each configuration with more runs than days are read the first of the last days on which one began.

    It is read from an index alone, so that a store of many years takes hardly longer than one of one.
    """
    from sqlalchemy import func, select

    from pytest_llmbench.history.tables import RUN

    many = select(RUN.c.configuration).group_by(RUN.c.configuration).having(func.count(RUN.c.started) > LAST)
    first_days = {}
    for name in set(connection.execute(many).scalars()).intersection(configurations):
        began = select(RUN.c.started).where(RUN.c.configuration == name, RUN.c.started.is_not(None))
        with connection.execute(began.order_by(RUN.c.started.desc())) as rows:
            days = (next(same_day) for _, same_day in groupby(rows.scalars(), datetime.toordinal))
            first = next(islice(days, LAST - 1, None), None)
        if first is not None:
            first_days[name] = first.replace(hour=0, minute=0, second=0, microsecond=0)
    return first_days


def _read_runs(
    connection: Connection, configurations: Collection[str], first_days: Mapping[str, datetime]
) -> dict[str, list[StoredRun]]:
    """Return by configuration its runs; of those in `first_days` older ones than all of these days may be missing."""
    from sqlalchemy import or_

    from pytest_llmbench.history.tables import RUN, VERDICT

    # The run's configuration is the same, but would be searched first: verdicts in their order are read twice as fast.
    wanted = _select_shown().where(VERDICT.c.configuration.in_(configurations), RUN.c.started.is_not(None))
    if first_days:
        others = [name for name in configurations if name not in first_days]
        wanted = wanted.where(or_(RUN.c.started >= min(first_days.values()), RUN.c.configuration.in_(others)))
    runs = defaultdict(list)
    for name, run in _make_stored_runs(connection.execute(wanted.order_by(VERDICT.c.id)).all()):
        runs[name].append(run)
    return runs


def _select_shown() -> Select[Any]:
    """Return the query for the verdicts on runs: what tells them apart, and from `started` on fields of StoredRun."""
    from sqlalchemy import select

    from pytest_llmbench.history.tables import RUN, SESSION, VERDICT

    columns = (
        *(SESSION.c.started, RUN.c.configuration, VERDICT.c.run),
        *(VERDICT.c.first_step, VERDICT.c.last_step, VERDICT.c.statistic),
        *(RUN.c.started, RUN.c.job_id, RUN.c.fingerprint, RUN.c.environment),
        *(VERDICT.c.counts, VERDICT.c.run_seconds, VERDICT.c.verdict, VERDICT.c.reason),
        *(VERDICT.c.step_time_seconds, VERDICT.c.expected_seconds, VERDICT.c.log_difference),
    )
    joined = select(*columns).join_from(VERDICT, RUN, RUN.c.id == VERDICT.c.run)
    joined = joined.join(SESSION, SESSION.c.id == VERDICT.c.session)
    return joined.where(VERDICT.c.verdict.in_(SHOWN))


def _make_stored_runs(rows: Iterable[Sequence[Any]]) -> Iterable[tuple[str, StoredRun]]:
    """Return each run once for each window, with the verdict of the session that began last, and its configuration."""
    make_window, parse = cache(Window), cache(json.loads)  # they repeat themselves night after night
    last = {}
    # A session that was added late was stored after others that had begun after it.
    for _, name, number, first, last_step, statistic, started, job_id, logs, environment, *judged in sorted(
        rows, key=itemgetter(0)
    ):
        window = make_window(first, last_step, statistic)
        fields = (started.replace(tzinfo=UTC), job_id, logs, window, parse(environment), *judged)
        last[number, first, last_step, statistic] = name, _make_stored_run(fields)
    return last.values()


def _count_days(runs: Sequence[StoredRun]) -> int:
    return len({run.started.date() for run in runs})


def _select_last_days(runs: Iterable[StoredRun]) -> tuple[StoredRun, ...]:
    """Return the runs of the last days, oldest first."""
    dated = sorted(runs, key=_STARTED)
    days = list(dict.fromkeys(map(datetime.toordinal, map(_STARTED, dated))))
    if len(days) > LAST:
        dated = dated[bisect_left(dated, days[-LAST], key=lambda run: _STARTED(run).toordinal()) :]
    return tuple(dated)
