"""Collect the daily verdicts of all configurations of a history, for `llmbench site`.

Also finds the level changes and the last good run of each configuration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from pytest_llmbench.comparison.compare_sides import compare_sides
from pytest_llmbench.comparison.comparison_records import ComparedSide, SidesCompared
from pytest_llmbench.comparison.sides import SideRequest, read_stored_side
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.formatting import add_changes, escape
from pytest_llmbench.core.judgement_records import DailyRun, LevelChange, Noise
from pytest_llmbench.core.redaction import make_redactor, redact_text
from pytest_llmbench.core.run_records import Acknowledgement
from pytest_llmbench.history.stored_verdicts import StoredVerdict
from pytest_llmbench.judge.acknowledged import select_covering
from pytest_llmbench.judge.change_points import FEWEST
from pytest_llmbench.judge.level_changes import find_changes
from pytest_llmbench.judge.noise import (
    assume_noise,
    estimate_fleet_correlation,
    estimate_from_daily_runs,
    estimate_from_fleet,
    with_prior,
)
from pytest_llmbench.session.acknowledgements import read_acknowledged
from pytest_llmbench.session.settings import Settings
from pytest_llmbench.tools.site.fleet_records import FleetDays, FleetRow

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_llmbench.history.store import StoreLocation

SESSION_SPAN = timedelta(hours=18)
"""Sessions that started within this time of the newest session are current."""

GOOD_VERDICTS = ("PASS", "IMPROVEMENT")
"""The verdicts of a good run, if its item passed, too."""

MOST_DAMAGED = 5
"""Number of damaged sessions that are named."""

SEVERITY = ("skipped", "passed", "failed")
"""Outcomes of items, mildest first.

If a session has several items of one configuration, the most severe is shown.
"""


def collect_days(
    store: StoreLocation,
    since: datetime | None,
    now: datetime,
    acknowledged: Path | None = None,
) -> FleetDays:
    """Collect the daily verdicts of all configurations since `since`.

    `acknowledged` is the file of acknowledged changes; it may name configurations that
    the history does not contain. Raises HistoryError if the history has no verdict, and
    SettingsError if the file is invalid.
    """
    from pytest_llmbench.history.daily_verdicts import (
        read_session,
        read_texts,
        read_verdicts,
    )
    from pytest_llmbench.history.prune import describe_future

    store = store.until(now)
    future_note = describe_future(store)  # sessions dated in the future, or ""
    problems: dict[str, str] = {}  # by session; the reader adds the damaged sessions
    verdicts = read_verdicts(store, since, problems)
    if not verdicts:
        message = f"{store.shown}: found no verdict"
        if since:
            message += f" since {since:%Y-%m-%d}; give more --days"
        # The first known reason: omitted future sessions, else a damaged session.
        reason = future_note or next(_describe_damaged(store, problems), "")
        if reason:
            message += f"; {reason}"
        raise HistoryError(message)
    # The newest session determines which verdicts are up to date.
    newest = max(verdicts, key=lambda verdict: verdict.judged)
    session = read_session(store, newest.session, problems)
    by_name: dict[str, list[StoredVerdict]] = defaultdict(list)
    for verdict in verdicts:
        by_name[verdict.configuration].append(verdict)
    # The step times of each configuration, and their level changes.
    series = {name: _select_series(listed) for name, listed in by_name.items()}
    entries: Sequence[Acknowledgement] = ()
    if acknowledged:
        names = list(series)
        entries = read_acknowledged(
            acknowledged, names, now.date(), allow_unknown=True
        ).changes
    changes = _find_all_changes(series, entries, now)
    rows = [
        _make_row(name, by_name[name], series[name], changes[name], session.started)
        for name in sorted(by_name)
    ]
    texts = read_texts(store, [row.verdicts[-1].id for row in rows])
    days = {verdict.day for row in rows for verdict in row.verdicts}
    redact = make_redactor().redact
    redacted_session = replace(
        session,
        host=redact(session.host),
        options=tuple(map(redact, session.options)),
    )
    return FleetDays(
        days=tuple(sorted(days)),
        # A verdict that was removed in the meantime has no text.
        rows=tuple(
            replace(row, text=redact_text(texts.get(row.verdicts[-1].id, "")))
            for row in rows
        ),
        session=redacted_session,
        location=store.shown,
        future=redact(future_note),
        damaged=tuple(map(redact, _describe_damaged(store, problems))),
    )


def _make_row(
    name: str,
    verdicts: Sequence[StoredVerdict],
    series: Sequence[StoredVerdict],
    changes: tuple[LevelChange, ...],
    newest: datetime,
) -> FleetRow:
    """Build the row of a configuration.

    `series` contains the valid verdict of each day, and `newest` is the start of the
    newest session.
    """
    daily = _select_days(verdicts)
    seconds_by_day = {verdict.day: verdict.run_seconds for verdict in series}
    seconds = tuple(seconds_by_day.get(verdict.day) for verdict in daily)
    total = add_changes(change.difference for change in changes)
    return FleetRow(
        configuration=name,
        verdicts=daily,
        seconds=seconds,
        changes=changes,
        total=total if len(series) >= FEWEST else None,
        current=_is_current(daily[-1], verdicts, newest),
        last_good=_find_last_good(daily),
    )


def _describe_damaged(
    store: StoreLocation, problems: Mapping[str, str]
) -> Iterator[str]:
    """Yield a note for each damaged session, up to MOST_DAMAGED, and a count of more.

    `problems` are the problems by session.
    """
    from pytest_llmbench.history.queries import describe_damage

    for session, problem in list(problems.items())[:MOST_DAMAGED]:
        yield f"skipped: {escape(describe_damage(store, problem, session))}"
    if len(problems) > MOST_DAMAGED:
        yield f"{len(problems) - MOST_DAMAGED} more sessions contain invalid values"


# --- one verdict for each day ---------------------------------------------------------


def _select_days(verdicts: Sequence[StoredVerdict]) -> tuple[StoredVerdict, ...]:
    """Select one verdict for each day, oldest first.

    It is the last verdict on the newest run of the day. A verdict without a run is used
    only if the day has no run.
    """
    days: dict[date, StoredVerdict] = {}
    for verdict in _select_last(verdicts):
        day = verdict.day
        selected = days.setdefault(day, verdict)
        if selected is not verdict and _rank(verdict) >= _rank(selected):
            days[day] = verdict
    return tuple(days[day] for day in sorted(days))


def _select_last(verdicts: Iterable[StoredVerdict]) -> Iterable[StoredVerdict]:
    """Select the verdict of the last session on each run.

    If that session has several items for a run, the most severe is used.
    """
    last: dict[object, StoredVerdict] = {}
    for verdict in verdicts:
        # Verdicts without a run: one for each day.
        key = verdict.day if verdict.run is None else verdict.run
        selected = last.setdefault(key, verdict)
        if selected is verdict:
            continue
        selected_rank = (selected.judged, _rate_severity(selected))
        if (verdict.judged, _rate_severity(verdict)) >= selected_rank:
            last[key] = verdict
    return last.values()


def _rate_severity(verdict: StoredVerdict) -> int:
    """Return the index of the outcome in SEVERITY; unknown outcomes are most severe."""
    if verdict.status not in SEVERITY:
        return len(SEVERITY)
    return SEVERITY.index(verdict.status)


def _rank(verdict: StoredVerdict) -> tuple[bool, datetime, datetime]:
    """Return the sort key: verdicts on a run last, then by start, then by judgement."""
    started = verdict.started or verdict.judged
    return verdict.run is not None, started, verdict.judged


def _select_series(verdicts: Sequence[StoredVerdict]) -> tuple[StoredVerdict, ...]:
    """Select the newest valid run of each day, oldest first, for the step times.

    Only runs with the same window as the newest run are used, because step times over
    different windows are not comparable.
    """
    valid = [
        verdict
        for verdict in verdicts
        if verdict.counts and verdict.started is not None
    ]
    if not valid:
        return ()
    window = max(valid, key=_rank).window
    # Later verdicts replace earlier ones: of each run, then of each day.
    last_by_run = {
        verdict.run: verdict for verdict in valid if verdict.window == window
    }
    by_day = {
        verdict.day: verdict for verdict in sorted(last_by_run.values(), key=_rank)
    }
    return tuple(by_day.values())


def _is_current(
    last: StoredVerdict, verdicts: Iterable[StoredVerdict], newest: datetime
) -> bool:
    """True if the last verdict of a configuration is up to date.

    `newest` is the start of the newest session; sessions within SESSION_SPAN before it
    are as new. A failed verdict is up to date if one of these sessions judged it. For
    any other verdict, these sessions must be the first that judged the run, and the run
    must be at most a day old: sessions over a folder of old runs judge these again
    every day.
    """
    if last.status == "failed" and newest - last.judged <= SESSION_SPAN:
        return True
    verdicts_on_run = [
        verdict
        for verdict in verdicts
        if verdict is last or (last.run and verdict.run == last.run)
    ]
    first_judged = min(verdict.judged for verdict in verdicts_on_run)
    yesterday = (newest - timedelta(days=1)).date()
    return newest - first_judged <= SESSION_SPAN and last.day >= yesterday


def _find_last_good(daily: Sequence[StoredVerdict]) -> StoredVerdict | None:
    """Return the last good verdict, if the newest verdict failed; else None.

    Inconclusive verdicts are not good, even if their items passed.
    """
    if daily[-1].status != "failed":
        return None
    for verdict in reversed(daily):
        is_passed = verdict.counts and verdict.status == "passed"
        if is_passed and verdict.verdict in GOOD_VERDICTS:
            return verdict
    return None


# --- changes of level -----------------------------------------------------------------


def _find_all_changes(
    series: Mapping[str, Sequence[StoredVerdict]],
    acknowledged: Sequence[Acknowledgement],
    now: datetime,
) -> dict[str, tuple[LevelChange, ...]]:
    """Find the level changes of each configuration, as a session would.

    The noise of all configurations is the prior for each.
    """
    # Runs are made again for each configuration: together they take much memory.
    logarithms = {
        name: np.log(np.array([run.statistic_seconds for run in _list_runs(verdicts)]))
        for name, verdicts in series.items()
    }
    noises = {
        name: estimate_from_daily_runs(values) for name, values in logarithms.items()
    }
    cv = Settings().assumed_cv  # coefficient of variation
    known_noises = [noise for noise in noises.values() if noise is not None]
    prior = estimate_from_fleet(known_noises) or assume_noise(cv)
    correlation = estimate_fleet_correlation(logarithms.values())

    def find(name: str, noise: Noise | None) -> tuple[LevelChange, ...]:
        """Find the changes of a configuration; () for too few days."""
        runs = tuple(_list_runs(series[name]))
        if len(runs) < FEWEST:
            return ()
        acknowledgements = select_covering(name, acknowledged)
        noise_with_prior = with_prior(noise, prior, cv)
        return find_changes(
            runs,
            noise_with_prior,
            acknowledgements,
            now.date(),
            correlation=correlation,
        )

    return {name: find(name, noise) for name, noise in noises.items()}


def _list_runs(verdicts: Iterable[StoredVerdict]) -> Iterator[DailyRun]:
    """Yield the run of each verdict, except verdicts without a start or a step time."""
    for verdict in verdicts:
        if verdict.started is not None and verdict.run_seconds is not None:
            yield DailyRun(verdict.started, verdict.run_seconds, verdict.environment)


# --- comparing a failed run with the last good run ------------------------------------

DayPair = tuple[date, date]
"""The day of a last good run, and the day of the failed run after it."""


def compare_with_last_good(
    fleet: FleetDays, store: StoreLocation, settings: Settings, margin: float
) -> dict[DayPair, SidesCompared]:
    """Compare each failed run with the last good run before it.

    Returns a comparison for each pair of days (last good run, failed run), with all
    configurations whose runs are of these days. Pairs without a comparable
    configuration are omitted, for example if the failed run has no step time.
    """
    names_by_days: dict[DayPair, set[str]] = defaultdict(set)
    for row in fleet.rows:
        last = row.verdicts[-1]
        if row.last_good is not None and last.counts:
            names_by_days[row.last_good.day, last.day].add(row.configuration)

    all_names = frozenset[str]().union(*names_by_days.values())

    @cache
    def read_day(label: str, day: date) -> ComparedSide:
        """Read the compared runs of a day as side A or B of a comparison."""
        request = SideRequest(label, f"{day}", first=day, last=day)
        return read_stored_side(request, store, all_names)

    compared: dict[DayPair, SidesCompared] = {}
    for (good_day, failed_day), names in names_by_days.items():
        good_side = _select_configurations(read_day("A", good_day), names)
        failed_side = _select_configurations(read_day("B", failed_day), names)
        sides = compare_sides(good_side, failed_side, settings, store, margin)
        if sides.comparisons:
            compared[good_day, failed_day] = sides
    return compared


def _select_configurations(side: ComparedSide, names: set[str]) -> ComparedSide:
    """Return the side with the runs of the named configurations only."""
    selected_runs = {
        (name, window): runs
        for (name, window), runs in side.runs.items()
        if name in names
    }
    no_data = tuple(run for run in side.no_data if run.configuration in names)
    return structs.replace(side, runs=selected_runs, no_data=no_data)
