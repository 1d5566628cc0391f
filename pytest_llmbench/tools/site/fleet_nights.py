"""All configurations of a history over their nights, for `llmbench site`: verdicts,
changes, last good nights."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pytest_llmbench.comparison.compare_sides import compare_sides
from pytest_llmbench.comparison.comparison_records import ComparedSide, SidesCompared
from pytest_llmbench.comparison.sides import SideRequest, read_stored_side
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.formatting import add_changes, escape
from pytest_llmbench.core.judgement_records import DailyRun, LevelChange, Noise
from pytest_llmbench.core.redaction import make_redactor
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

ONE_NIGHT = timedelta(hours=18)
"""Sessions that began within so long of each other are of one night."""

GOOD = ("PASS", "IMPROVEMENT")
"""The verdicts of a good night, where its item passed."""

MOST_DAMAGED = 5
"""So many damaged sessions are named."""

SEVERITY = ("skipped", "passed", "failed")
"""What became of an item; of several of one configuration in one session the last of
these is shown."""


def collect_days(
    place: StoreLocation,
    since: datetime | None,
    now: datetime,
    acknowledged: Path | None = None,
) -> FleetDays:
    """Return all configurations with a verdict on the nights from `since` on;
    HistoryError where there is none.

    `acknowledged` is the file of acknowledged changes, also of configurations that are
    not here; SettingsError where it is wrong.
    """
    from pytest_llmbench.history.daily_verdicts import read_session, read_verdicts
    from pytest_llmbench.history.prune import describe_future

    place = place.until(now)
    future = describe_future(place)
    problems: dict[str, str] = {}  # by session
    verdicts = _redact(read_verdicts(place, since, problems))
    if not verdicts:
        first = f" from {since:%Y-%m-%d} on; --days takes more" if since else " in it"
        why = [future] if future else [*_describe_damaged(place, problems)][:1]
        raise HistoryError("; ".join([f"{place.shown}: no verdict{first}", *why]))
    newest = max(verdicts, key=lambda verdict: verdict.judged)
    session = read_session(place, newest.session, problems)
    by_name: dict[str, list[StoredVerdict]] = defaultdict(list)
    for verdict in verdicts:
        by_name[verdict.configuration].append(verdict)
    series = {name: _select_series(of_name) for name, of_name in by_name.items()}
    entries: Sequence[Acknowledgement] = ()
    if acknowledged:
        names = list(series)
        entries = read_acknowledged(
            acknowledged, names, now.date(), others=True
        ).changes
    changes = _find_all_changes(series, entries, now)
    rows = tuple(
        _make_row(name, by_name[name], series[name], changes[name], session.started)
        for name in sorted(by_name)
    )
    days = {night.day for row in rows for night in row.nights}
    redact = cache(make_redactor().redact)
    return FleetDays(
        tuple(sorted(days)),
        rows,
        replace(
            session,
            host=redact(session.host),
            options=tuple(map(redact, session.options)),
        ),
        place.shown,
        redact(future),
        tuple(map(redact, _describe_damaged(place, problems))),
    )


def _make_row(
    name: str,
    verdicts: Sequence[StoredVerdict],
    series: Mapping[date, StoredVerdict],
    changes: tuple[LevelChange, ...],
    newest: datetime,
) -> FleetRow:
    """Return the row of a configuration; `newest` is the start of the newest
    session."""
    nights = _select_days(verdicts)
    total = add_changes(change.difference for change in changes)
    return FleetRow(
        name,
        nights,
        tuple(
            series[night.day].run_seconds if night.day in series else None
            for night in nights
        ),
        changes,
        total if len(series) >= FEWEST else None,
        _is_current(nights[-1], verdicts, newest),
        _find_last_passed(nights),
    )


def _describe_damaged(
    place: StoreLocation, problems: Mapping[str, str]
) -> Iterator[str]:
    from pytest_llmbench.history.queries import describe_damage

    for session, problem in list(problems.items())[:MOST_DAMAGED]:
        yield f"left out: {escape(describe_damage(place, problem, session))}"
    if len(problems) > MOST_DAMAGED:
        yield f"{len(problems) - MOST_DAMAGED} more sessions hold such values"


def _redact(verdicts: Iterable[StoredVerdict]) -> list[StoredVerdict]:
    """Return verdicts whose texts hold no secret: what an older version stored may hold
    one."""
    redactor = make_redactor()
    redact = cache(redactor.redact)
    environments: dict[int, Mapping[str, str]] = {}

    def redact_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
        # One object for all nights that say the same: the reader has parsed each text
        # once.
        if id(environment) not in environments:
            environments[id(environment)] = {
                name: value and redactor.redact_variable(name, value)
                for name, value in environment.items()
            }
        return environments[id(environment)]

    return [
        dataclasses.replace(
            verdict,
            text=redact(verdict.text),
            reason=redact(verdict.reason),
            environment=redact_environment(verdict.environment),
        )
        for verdict in verdicts
    ]


# --- which verdict stands for a night -------------------------------------------------


def _select_days(verdicts: Sequence[StoredVerdict]) -> tuple[StoredVerdict, ...]:
    """Return the verdict of each day, oldest first: of its newest run what the last
    session said; that there was none only where there was none."""
    days: dict[date, StoredVerdict] = {}
    for verdict in _select_last(verdicts):
        before = days.setdefault(verdict.day, verdict)
        if _rank(verdict) >= _rank(before):
            days[verdict.day] = verdict
    return tuple(days[day] for day in sorted(days))


def _select_last(verdicts: Iterable[StoredVerdict]) -> Iterable[StoredVerdict]:
    """Return of each run what the last session said of it; of several items of that
    session the worst."""
    last: dict[object, StoredVerdict] = {}
    for verdict in verdicts:
        key = verdict.day if verdict.run is None else verdict.run
        before = last.setdefault(key, verdict)
        if (verdict.judged, _rate_severity(verdict)) >= (
            before.judged,
            _rate_severity(before),
        ):
            last[key] = verdict
    return last.values()


def _rate_severity(verdict: StoredVerdict) -> int:
    return (
        SEVERITY.index(verdict.status) if verdict.status in SEVERITY else len(SEVERITY)
    )


def _rank(verdict: StoredVerdict) -> tuple[bool, datetime, datetime]:
    return verdict.run is not None, verdict.started or verdict.judged, verdict.judged


def _select_series(verdicts: Sequence[StoredVerdict]) -> dict[date, StoredVerdict]:
    """Return by day the newest valid run, of those measured over the window of the
    newest one: those of the others are of another statistic."""
    valid = [
        verdict
        for verdict in verdicts
        if verdict.counts and verdict.started is not None
    ]
    if not valid:
        return {}
    window = max(valid, key=_rank).window
    last = {verdict.run: verdict for verdict in valid if verdict.window == window}
    return {verdict.day: verdict for verdict in sorted(last.values(), key=_rank)}


def _is_current(
    night: StoredVerdict, verdicts: Iterable[StoredVerdict], newest: datetime
) -> bool:
    """Whether a night belongs to the newest sessions: they judged its run first, and it
    started then; or said that it failed.

    A folder that keeps its runs has the old ones judged again every night: that they
    pass says nothing of tonight. What is red stays so, whenever it ran.
    """
    if night.status == "failed" and newest - night.judged <= ONE_NIGHT:
        return True
    first = min(
        verdict.judged
        for verdict in verdicts
        if verdict is night or (night.run and verdict.run == night.run)
    )
    return (
        newest - first <= ONE_NIGHT and night.day >= (newest - timedelta(days=1)).date()
    )


def _find_last_passed(nights: Sequence[StoredVerdict]) -> StoredVerdict | None:
    """Return the last night that passed before a red last one, None if that is not red.

    An inconclusive night does not count, even if its session let it pass: the last good
    run of a verdict may be inconclusive.
    """
    if nights[-1].status != "failed":
        return None
    good = (
        night
        for night in reversed(nights)
        if night.counts and night.status == "passed" and night.verdict in GOOD
    )
    return next(good, None)


# --- changes of level -----------------------------------------------------------------


def _find_all_changes(
    series: Mapping[str, Mapping[date, StoredVerdict]],
    acknowledged: Sequence[Acknowledgement],
    now: datetime,
) -> dict[str, tuple[LevelChange, ...]]:
    """Return the changes of each configuration, as a session with these nights finds
    them."""
    runs = {name: tuple(_list_runs(of_day)) for name, of_day in series.items()}
    logarithms = {
        name: np.log(np.array([run.statistic_seconds for run in of_name]))
        for name, of_name in runs.items()
    }
    own = {
        name: estimate_from_daily_runs(values) for name, values in logarithms.items()
    }
    cv = Settings().assumed_cv
    prior = estimate_from_fleet(
        [noise for noise in own.values() if noise is not None]
    ) or assume_noise(cv)
    correlation = estimate_fleet_correlation(logarithms.values())

    def find(name: str, noise: Noise | None) -> tuple[LevelChange, ...]:
        if len(runs[name]) < FEWEST:
            return ()
        covering, own_noise = (
            select_covering(name, acknowledged),
            with_prior(noise, prior, cv),
        )
        return find_changes(
            runs[name], own_noise, covering, now.date(), correlation=correlation
        )

    return {name: find(name, noise) for name, noise in own.items()}


def _list_runs(of_day: Mapping[date, StoredVerdict]) -> Iterator[DailyRun]:
    for verdict in of_day.values():
        if verdict.started is not None and verdict.run_seconds is not None:
            yield DailyRun(verdict.started, verdict.run_seconds, verdict.environment)


# --- a red night beside the last good one ---------------------------------------------

Days = tuple[date, date]
"""Of a last good night, and of the red one after it."""


def compare_with_last_good(
    fleet: FleetDays, place: StoreLocation, settings: Settings, margin: float
) -> dict[Days, SidesCompared]:
    """Return for the days of each last good and red night what differs between them, of
    the configurations concerned.

    A pair of days of which no configuration can be compared is left out, as where the
    red run has no step time.
    """
    names: dict[Days, set[str]] = defaultdict(set)
    for row in fleet.rows:
        if row.last_good is not None and row.nights[-1].counts:
            names[row.last_good.day, row.nights[-1].day].add(row.configuration)
    read = cache(
        lambda label, day: read_stored_side(
            SideRequest(label, f"{day}", first=day, last=day), place
        )
    )
    compared = {
        days: compare_sides(
            _select(read("A", days[0]), concerned),
            _select(read("B", days[1]), concerned),
            settings,
            place,
            margin,
        )
        for days, concerned in names.items()
    }
    return {days: sides for days, sides in compared.items() if sides.comparisons}


def _select(side: ComparedSide, names: set[str]) -> ComparedSide:
    return dataclasses.replace(
        side,
        runs={key: runs for key, runs in side.runs.items() if key[0] in names},
        no_data=tuple(run for run in side.no_data if run.configuration in names),
    )
