"""The runs of earlier sessions, as judging and reports need them: from the digests, and the verdicts since."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from operator import attrgetter, itemgetter

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.models import StoredRun
from pytest_llmbench.history import digests
from pytest_llmbench.history.digests import DAMAGED, Digest, StoredVerdict
from pytest_llmbench.history.location import StoreLocation
from pytest_llmbench.history.migrations import is_current
from pytest_llmbench.history.store import connect

LAST = 365
"""The runs of so many of the last days of each configuration are read."""

_STARTED: Callable[[StoredRun], datetime] = attrgetter("started")

SHOWN = frozenset(("PASS", "REGRESSION", "IMPROVEMENT", "INCONCLUSIVE", "INVALID", "TEST_FAILED", "NOT_ASSERTED"))
"""The verdicts of a night; a profiled run is none, and a recording gives none."""


def read_stored_runs(place: StoreLocation, configurations: Collection[str]) -> dict[str, tuple[StoredRun, ...]]:
    """Return by configuration (ids) the runs of its last days, oldest first.

    Each is there once for each window, as it was judged last. Nothing from a store without tables. HistoryError where
    it cannot be read.
    """
    try:
        return _read_stored_runs(place, configurations, from_digests=True)
    except DAMAGED:  # they only repeat the verdicts
        digests.remove(place)
    try:
        return _read_stored_runs(place, configurations, from_digests=False)
    except DAMAGED as error:
        raise HistoryError(f"{place.shown}: holds what no session stored ({error!r})") from None


def _read_stored_runs(
    place: StoreLocation, configurations: Collection[str], *, from_digests: bool
) -> dict[str, tuple[StoredRun, ...]]:
    from pytest_llmbench.history.tables import VERDICT

    with connect(place, writes=False) as connection:
        if not is_current(connection, place.shown):
            return {}
        covered = digests.find_covered(connection) if from_digests else 0
        old = digests.read_digests(connection, configurations) if covered else {}
        new = defaultdict(list)
        wanted = VERDICT.c.configuration.in_(configurations)  # the run's is the same, but would be searched first
        for row in connection.execute(digests.select_after(covered).where(wanted)).all():
            new[row.configuration].append(row)
    read = ((name, _open_digests(old.get(name, ()), digests.pack_rows(new.get(name, ())))) for name in configurations)
    by_configuration = {name: _select_last_days(_select_last_verdicts(verdicts)) for name, verdicts in read}
    return {name: runs for name, runs in by_configuration.items() if runs}


def _open_digests(old: Sequence[Sequence[str]], new: Digest) -> list[StoredVerdict]:
    """Return the verdicts in digests, in their order; those in which all runs are older than needed are not opened."""
    opened, first = [new], ""
    for newest_day, text in reversed(old):
        first = first or _find_first_day(opened)
        if newest_day >= first:
            opened.append(json.loads(text))
    return [verdict for digest in reversed(opened) for verdict in digests.read_verdicts(digest)]


def _find_first_day(opened: Sequence[Digest]) -> str:
    """Return the first of the last days (ISO 8601) of which digests, newest first, hold nights; empty where they are
    too few. A run counts once, as its newest verdict dates it."""
    if sum(len(digest["started"]) for digest in opened) < LAST:
        return ""
    names = ("run", "started", "verdict")
    columns = ((digests.get_column(digest, name) for name in names) for digest in reversed(opened))
    nights = (night for lists in columns for night in zip(*lists, strict=True))
    days = {started[:10] for started in {run: day for run, day, verdict in nights if day and verdict in SHOWN}.values()}
    return sorted(days)[-LAST] if len(days) >= LAST else ""


def _select_last_verdicts(verdicts: Sequence[StoredVerdict]) -> list[StoredRun]:
    """Return each run once for each window, with the verdict of the session that began last.

    What is known of a run is what stands with its newest verdict: a session that is added late says nothing of it.
    """
    newest = {run: past for _, run, past in verdicts}
    if len(newest) == len(verdicts):  # none was judged twice: most often
        return [past for past in newest.values() if past.verdict in SHOWN]
    in_order = sorted(verdicts, key=itemgetter(0))
    last = {(run, past.window): past for _, run, past in in_order if past.verdict in SHOWN}
    return [past if newest[run] is past else _update_run(past, newest[run]) for (run, _), past in last.items()]


def _update_run(past: StoredRun, newest: StoredRun) -> StoredRun:
    return past._replace(started=newest.started, job_id=newest.job_id, logs=newest.logs, environment=newest.environment)


def _select_last_days(runs: Iterable[StoredRun]) -> tuple[StoredRun, ...]:
    """Return the runs of the last days, oldest first, without those of which nothing says when they started."""
    dated = sorted([run for run in runs if run.started], key=_STARTED)
    days = list(dict.fromkeys(map(datetime.toordinal, map(_STARTED, dated))))
    if len(days) > LAST:
        dated = dated[bisect_left(dated, days[-LAST], key=lambda run: _STARTED(run).toordinal()) :]
    return tuple(dated)
