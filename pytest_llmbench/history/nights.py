"""The runs of earlier sessions, as judging and reports need them: one query for all, columns only."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from datetime import UTC
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pytest_llmbench.history.migrations import is_current
from pytest_llmbench.history.place import Place
from pytest_llmbench.history.store import connected
from pytest_llmbench.models import PastRun, Window

if TYPE_CHECKING:
    from sqlalchemy import Select

LAST = 365
"""The runs of so many of the last days of each configuration are read."""

SHOWN = ("PASS", "REGRESSION", "IMPROVEMENT", "INCONCLUSIVE", "INVALID", "TEST_FAILED", "NOT_ASSERTED")
"""The verdicts of a night; a profiled run is none, and a recording gives none."""


def past_runs(place: Place, configurations: Collection[str]) -> dict[str, tuple[PastRun, ...]]:
    """Return by configuration (ids) the runs of its last days, oldest first.

    Each is there once for each window, as it was judged last. Nothing from a store without tables. HistoryError where
    it cannot be read.
    """
    with connected(place, writes=False) as connection:
        current = is_current(connection, place.shown)
        rows = connection.execute(_last_runs(configurations)).all() if current else []
        sessions = connection.execute(_sessions()).scalars() if current else ()
        began = {session: position for position, session in enumerate(sessions)}  # one may be pruned just now
    windows, environments = lru_cache(None)(Window), lru_cache(None)(json.loads)
    found: dict[str, dict[object, PastRun]] = defaultdict(dict)
    for row in sorted(rows, key=lambda row: (began.get(row[0], -1), row[1])):
        _, _, run, configuration, begun, job_id, logs, environment, first, last, statistic, *judged = row
        known = (begun.replace(tzinfo=UTC), job_id, logs, windows(first, last, statistic), environments(environment))
        found[configuration][run, first, last, statistic] = PastRun(*known, *judged)
    return {name: tuple(sorted(runs.values(), key=attrgetter("started"))) for name, runs in found.items()}


def _sessions() -> Select[Any]:
    """Return the query for all sessions by their time: one that could not be stored is added after later ones."""
    from sqlalchemy import select

    from pytest_llmbench.history.tables import SESSION

    return select(SESSION.c.id).order_by(SESSION.c.started)


def _last_runs(configurations: Collection[str]) -> Select[Any]:
    """Return the query: each row begins with the session and the number of the verdict, by which the last one on a run
    is known."""
    from sqlalchemy import func, select

    from pytest_llmbench.history.tables import RUN, VERDICT

    by_day = func.date(RUN.c.started).desc()
    newest_first = func.dense_rank().over(partition_by=RUN.c.configuration, order_by=by_day)
    dated = RUN.c.configuration.in_(configurations), RUN.c.started.is_not(None)
    ranked = select(RUN.c.id, newest_first.label("rank")).where(*dated).subquery()  # numbers only: a cheap sort
    wanted = select(ranked.c.id).where(ranked.c.rank <= LAST)
    columns = (
        VERDICT.c.session,
        VERDICT.c.id,
        RUN.c.id,
        RUN.c.configuration,
        RUN.c.started,
        RUN.c.job_id,
        RUN.c.fingerprint,
        RUN.c.environment,
        VERDICT.c.first_step,
        VERDICT.c.last_step,
        VERDICT.c.statistic,
        VERDICT.c.counts,
        VERDICT.c.run_seconds,
        VERDICT.c.verdict,
        VERDICT.c.reason,
        VERDICT.c.step_time_seconds,
        VERDICT.c.expected_seconds,
        VERDICT.c.log_difference,
    )
    joined = select(*columns).join_from(VERDICT, RUN, RUN.c.id == VERDICT.c.run)
    return joined.where(RUN.c.id.in_(wanted), VERDICT.c.verdict.in_(SHOWN))
