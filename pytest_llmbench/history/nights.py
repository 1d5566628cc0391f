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
from pytest_llmbench.history.digests import DAMAGED, Digest, Said
from pytest_llmbench.history.migrations import is_current
from pytest_llmbench.history.place import Place
from pytest_llmbench.history.store import connected

LAST = 365
"""The runs of so many of the last days of each configuration are read."""

_STARTED: Callable[[StoredRun], datetime] = attrgetter("started")

SHOWN = frozenset(("PASS", "REGRESSION", "IMPROVEMENT", "INCONCLUSIVE", "INVALID", "TEST_FAILED", "NOT_ASSERTED"))
"""The verdicts of a night; a profiled run is none, and a recording gives none."""


def past_runs(place: Place, configurations: Collection[str]) -> dict[str, tuple[StoredRun, ...]]:
    """Return by configuration (ids) the runs of its last days, oldest first.

    Each is there once for each window, as it was judged last. Nothing from a store without tables. HistoryError where
    it cannot be read.
    """
    try:
        return _past_runs(place, configurations, from_digests=True)
    except DAMAGED:  # they only repeat the verdicts
        digests.remove(place)
    try:
        return _past_runs(place, configurations, from_digests=False)
    except DAMAGED as error:
        raise HistoryError(f"{place.shown}: holds what no session stored ({error!r})") from None


def _past_runs(
    place: Place, configurations: Collection[str], *, from_digests: bool
) -> dict[str, tuple[StoredRun, ...]]:
    from pytest_llmbench.history.tables import VERDICT

    with connected(place, writes=False) as connection:
        if not is_current(connection, place.shown):
            return {}
        covered = digests.covered(connection) if from_digests else 0
        old = digests.read(connection, configurations) if covered else {}
        new = defaultdict(list)
        wanted = VERDICT.c.configuration.in_(configurations)  # the run's is the same, but would be searched first
        for row in connection.execute(digests.after(covered).where(wanted)).all():
            new[row.configuration].append(row)
    read = ((name, _read(old.get(name, ()), digests.packed(new.get(name, ())))) for name in configurations)
    found = {name: _last_days(_last_words(verdicts)) for name, verdicts in read}
    return {name: runs for name, runs in found.items() if runs}


def _read(old: Sequence[Sequence[str]], new: Digest) -> list[Said]:
    """Return the verdicts in digests, in their order; those in which all runs are older than needed are not opened."""
    opened, first = [new], ""
    for newest_day, text in reversed(old):
        first = first or _first_day(opened)
        if newest_day >= first:
            opened.append(json.loads(text))
    return [said for digest in reversed(opened) for said in digests.verdicts(digest)]


def _first_day(opened: Sequence[Digest]) -> str:
    """Return the first of the last days (ISO 8601) of which digests, newest first, hold nights; empty where they are
    too few. A run counts once, as its newest verdict dates it."""
    if sum(len(digest["started"]) for digest in opened) < LAST:
        return ""
    names = ("run", "started", "verdict")
    columns = ((digests.column(digest, name) for name in names) for digest in reversed(opened))
    nights = (night for one in columns for night in zip(*one, strict=True))
    days = {started[:10] for started in {run: day for run, day, verdict in nights if day and verdict in SHOWN}.values()}
    return sorted(days)[-LAST] if len(days) >= LAST else ""


def _last_words(verdicts: Sequence[Said]) -> list[StoredRun]:
    """Return each run once for each window, with the verdict of the session that began last.

    What is known of a run is what stands with its newest verdict: a session that is added late says nothing of it.
    """
    known = {run: past for _, run, past in verdicts}
    if len(known) == len(verdicts):  # none was judged twice: most often
        return [past for past in known.values() if past.verdict in SHOWN]
    in_order = sorted(verdicts, key=itemgetter(0))
    last = {(run, past.window): past for _, run, past in in_order if past.verdict in SHOWN}
    return [past if known[run] is past else _as_known(past, known[run]) for (run, _), past in last.items()]


def _as_known(past: StoredRun, known: StoredRun) -> StoredRun:
    return past._replace(started=known.started, job_id=known.job_id, logs=known.logs, environment=known.environment)


def _last_days(runs: Iterable[StoredRun]) -> tuple[StoredRun, ...]:
    """Return the runs of the last days, oldest first, without those of which nothing says when they started."""
    found = sorted([run for run in runs if run.started], key=_STARTED)
    days = list(dict.fromkeys(map(datetime.toordinal, map(_STARTED, found))))
    if len(days) > LAST:
        found = found[bisect_left(found, days[-LAST], key=lambda run: _STARTED(run).toordinal()) :]
    return tuple(found)
