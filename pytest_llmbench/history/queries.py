"""What is read from a history, and removed: rows for `llmbench history`, and earlier
runs for judging and reports."""

from __future__ import annotations

import json
import math
import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from functools import cache, lru_cache, partial
from itertools import chain
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import Any, TypeVar

from sqlalchemy import Connection, Date, Function, Select, func, or_, select

from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.errors import HistoryError, did_you_mean
from pytest_llmbench.core.run_records import StoredRun
from pytest_llmbench.history.paired_noise import list_noises
from pytest_llmbench.history.store import UNEXPECTED, StoreLocation, connect
from pytest_llmbench.history.stored_entries import ListedRun, StoredEntry
from pytest_llmbench.history.tables import (
    RUN,
    SESSION,
    VERDICT,
    convert_to_stored,
    has_tables,
    is_in_time,
    list_order,
)

Row = dict[str, Any]
Rows = list[Row]
Converted = TypeVar("Converted")

# The columns that hold lists, with what these hold.
_LISTS: dict[str, type[Any] | UnionType] = {
    **dict.fromkeys(("nodes", "log_fingerprints", "options"), str),
    "jobs": object,
    "mean_of": int,
    "log_sha256": str | None,
}

# Those that hold lists and dictionaries, besides `metrics`.
NESTED = (*_LISTS, "environment")

REMOVE = "restore a copy, or remove what that session said: DELETE FROM {} WHERE session = '{}'"


_NEVER = datetime.min.replace(tzinfo=UTC)


def list_runs(
    place: StoreLocation, words: str, since: datetime | None, limit: int
) -> list[ListedRun]:
    """Return the last `limit` runs of each configuration as they were judged last, by
    configuration, oldest first.

    A configuration has to hold what `words` ask for, as in `grok1 and not fp8 or
    llama`; those without any run are left out.
    """
    of_run = (
        RUN.c.id.label("number"),
        RUN.c.configuration,
        RUN.c.started,
        RUN.c.job_id,
        VERDICT.c.session,
    )
    judgement = (
        VERDICT.c.verdict,
        VERDICT.c.step_time_seconds,
        VERDICT.c.log_difference,
    )
    joined = select(*of_run, *judgement).join_from(
        VERDICT, RUN, RUN.c.id == VERDICT.c.run
    )
    query = joined.join(SESSION, SESSION.c.id == VERDICT.c.session)
    query = query.order_by(*list_order(place))
    if since is not None:
        query = query.where(RUN.c.started >= convert_to_stored(since))
    newest = {
        run.number: run
        for run in fetch_rows(place, query, lambda row: ListedRun(**row))
        if _is_wanted(run.configuration, words)
    }
    by_configuration: dict[str, list[ListedRun]] = {}
    for run in newest.values():
        by_configuration.setdefault(run.configuration, []).append(run)
    listed: list[ListedRun] = []
    for name in sorted(by_configuration):
        runs = by_configuration[name]
        runs.sort(key=lambda run: _rank_start(place, run.started))
        listed += runs[-limit:]
    return listed


def list_verdicts(place: StoreLocation, wanted: str) -> list[StoredEntry]:
    """Return all verdicts on a run (its number), or on the last run of a configuration
    (its id), oldest first.

    HistoryError, with the nearest id, for one that the history does not know.
    """
    number: int | None = None
    if wanted.isdecimal() and len(wanted) < 19:  # of 64 bits
        number = int(wanted)
    else:
        runs = select(RUN.c.id, RUN.c.started).where(RUN.c.configuration == wanted)
        of_one = fetch_rows(place, runs.order_by(RUN.c.id), dict)
        newest = max(
            of_one, key=lambda row: _rank_start(place, row["started"]), default=None
        )
        number = newest["id"] if newest else None
    query = _join_tables(place)
    rows = (
        [] if number is None else _fetch_entries(place, query.where(RUN.c.id == number))
    )
    if not rows:
        names = fetch_rows(place, select(RUN.c.configuration).distinct(), dict)
        ids = [row["configuration"] for row in names]
        nearest = did_you_mean(wanted, ids)
        raise HistoryError(
            f"{place.shown}: no run {wanted}{nearest}; `llmbench history list` shows all of them"
        )
    return rows


def list_everything(
    place: StoreLocation, sessions: Collection[str] | None = None
) -> Rows:
    """Return every verdict, of these sessions or of all, with its run and session,
    those without a run too: columns for a table, oldest first."""
    query = _join_tables(place)
    query = query if sessions is None else query.where(VERDICT.c.session.in_(sessions))
    rows = fetch_rows(place, query, _decode)
    noises = list_noises(place)
    for row in rows if noises else ():
        row.update(noises.get((row["session"], row["configuration"]), {}))
    return rows


def list_columns() -> dict[str, type]:
    """Return the columns that each row of `list_everything` has, except the metrics,
    with their types."""
    columns = _join_tables(StoreLocation("")).selected_columns
    return {
        column.name: column.type.python_type
        for column in columns
        if column.name != "metrics"
    }


def list_days(
    place: StoreLocation, first: datetime, end: datetime
) -> list[StoredEntry]:
    """Return every verdict on the runs that started from `first` on and before `end`,
    oldest first."""
    began = RUN.c.started
    wanted = _join_tables(place).where(
        began >= convert_to_stored(first), began < convert_to_stored(end)
    )
    return _fetch_entries(place, wanted.where(is_in_time(place, SESSION)))


def list_session(place: StoreLocation, identifier: str) -> list[StoredEntry]:
    """Return every verdict of one session on a run; HistoryError for a session that is
    not there, or has none."""
    wanted = _join_tables(place).where(
        SESSION.c.id == identifier, VERDICT.c.run.is_not(None)
    )
    rows = _fetch_entries(place, wanted)
    if not rows:
        raise HistoryError(
            f"{place.shown}: no session {identifier} with a run; `llmbench history show` names sessions"
        )
    return rows


def _is_wanted(configuration: str, words: str) -> bool:
    return any(
        all(_fits(configuration, word.strip()) for word in each.split(" and "))
        for each in words.split(" or ")
    )


def _fits(configuration: str, word: str) -> bool:
    return (
        word.removeprefix("not ").strip().lower() in configuration.lower()
    ) is not word.startswith("not ")


# --- reading --------------------------------------------------------------------------


def _fetch_entries(place: StoreLocation, query: Select[Any]) -> list[StoredEntry]:
    return fetch_rows(place, query, lambda row: StoredEntry(**_decode(row)))


def fetch_rows(
    place: StoreLocation,
    query: Select[Any],
    convert: Callable[[Row], Converted],
    damaged: dict[str, str] | None = None,
) -> list[Converted]:
    """Return what a query finds, each row converted; nothing in a store without tables.

    HistoryError for a row that no session stored. With `damaged` such a row is left
    out, and the first problem of each session is added there, by the session's id.
    """
    kinds = {column.name: column.type.python_type for column in query.selected_columns}
    with connect(place, writes=False) as connection:
        if not has_tables(connection, place.shown):
            return []
        rows = []
        for row in connection.execute(query).mappings():
            try:
                _refuse_other_types(row, kinds)
                rows.append(convert(_mark_utc(dict(row))))
            except UNEXPECTED as error:
                if damaged is not None:
                    damaged.setdefault(f"{row['session']}", f"{error!r}")
                    continue
                raise HistoryError(
                    describe_damage(place, f"{error!r}", row.get("session"))
                ) from None
    return rows


def describe_damage(place: StoreLocation, problem: str, session: str | None) -> str:
    """Describe a value that no session stored, with what to do about it."""
    remedy = REMOVE.format(VERDICT.name, session) if session else "restore a copy"
    return f"{place.shown}: holds what no session stored ({problem}): {remedy}"


def _refuse_other_types(row: Mapping[Any, Any], kinds: Mapping[str, type[Any]]) -> None:
    """Raise TypeError for a value that its column is not for, or that is no number."""
    for name, kind in kinds.items():
        value = row[name]
        if value is not None and not (
            isinstance(value, kind) and (kind is not float or math.isfinite(value))
        ):
            raise TypeError(f"{name} is {value!r}")


def _mark_utc(row: Row) -> Row:
    """Return a row whose times say that they are UTC."""
    return {
        **row,
        **{
            name: row[name].replace(tzinfo=UTC)
            for name in ("started", "judged")
            if row.get(name)
        },
    }


def _rank_start(
    place: StoreLocation, started: datetime | None
) -> tuple[bool, datetime]:
    """Return by what runs are ordered: one that begins later than now is the oldest, as
    one without a start is."""
    began = started or _NEVER
    return place.latest is None or began <= place.latest, began


def _join_tables(place: StoreLocation) -> Select[Any]:
    """Return the query for all that is known of each verdict, oldest first, as
    `list_order` has it."""
    of_run = [
        column
        for column in RUN.c
        if column.name not in ("id", "configuration", "fingerprint")
    ]
    of_verdict = [
        column for column in VERDICT.c if column.name not in ("id", "run", "session")
    ]
    of_session = [
        SESSION.c.id.label("session"),
        SESSION.c.started.label("judged"),
        SESSION.c.host,
        SESSION.c.program,
        SESSION.c.options,
        SESSION.c.git_commit,
        SESSION.c.ci_url,
    ]
    columns = (RUN.c.id.label("number"), *of_run, *of_verdict, *of_session)
    joined = select(*columns).join_from(
        VERDICT, SESSION, SESSION.c.id == VERDICT.c.session
    )
    joined = joined.join(RUN, RUN.c.id == VERDICT.c.run, isouter=True)
    return joined.order_by(*list_order(place))


def _decode(row: Row) -> Row:
    """Return a row with lists and dictionaries in place of texts and bytes."""
    steps = unpack_steps(row["step_seconds"])
    refuse_no_time(row["counts"], row["run_seconds"])
    return {
        **row,
        **{
            name: None if row[name] is None else parse_list(name, row[name])
            for name in _LISTS
        },
        "environment": None
        if row["environment"] is None
        else parse_environment(row["environment"]),
        "metrics": parse_metrics(row["metrics"]),
        "step_seconds": _list_steps(steps),
    }


def unpack_steps(packed: bytes) -> tuple[float, ...]:
    """Return the step times of a window, NaN for no number."""
    return struct.unpack(f"<{len(packed) // 8}d", bytes(packed))


def _list_steps(steps: tuple[float, ...]) -> list[float | None]:
    if math.inf in steps or -math.inf in steps:
        raise ValueError("a step took no finite time")
    return [None if math.isnan(value) else value for value in steps]


@lru_cache(maxsize=1_000)  # nights repeat themselves
def parse_list(name: str, text: str) -> list[Any]:
    """Return what a column holds; TypeError or ValueError for what is no list of what
    it is for."""
    values = _parse_finite(text)
    if not isinstance(values, list) or not all(
        isinstance(value, _LISTS[name]) for value in values
    ):
        raise TypeError(f"{name} is {text}")
    return values


def parse_metrics(text: str) -> dict[str, list[Any]]:
    """Return by name the value of each metric and its standard deviation, None where
    there is none."""
    metrics = {
        name: [value, deviation]
        for name, (value, deviation) in json.loads(text).items()
    }
    for value in chain.from_iterable(metrics.values()):
        if value is not None and (
            type(value) not in (int, float) or not -math.inf < value < math.inf
        ):
            raise TypeError(f"a metric is {value!r}")
    return metrics


def _refuse_infinite(value: str | float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is no finite number")
    return number


_parse_finite = json.JSONDecoder(
    parse_float=_refuse_infinite, parse_constant=_refuse_infinite
).decode


# --- the runs of earlier sessions, as judging and reports need them -------------------


LAST = 365  # the runs of so many of the last days of each configuration are read

# The verdicts of a night; a profiled run is none, and a recording gives none.
SHOWN = frozenset(
    (
        "PASS",
        "REGRESSION",
        "IMPROVEMENT",
        "INCONCLUSIVE",
        "INVALID",
        "TEST_FAILED",
        "NOT_ASSERTED",
    )
)

_STARTED: Callable[[StoredRun], datetime] = attrgetter("started")

# A year of nights of a cluster are 30,000 runs: its __new__ would take longer than the
# query.
_make_stored_run = partial(tuple.__new__, StoredRun)


def read_stored_runs(
    place: StoreLocation, configurations: Collection[str]
) -> dict[str, tuple[StoredRun, ...]]:
    """Return by configuration (ids) the runs of its last days, oldest first.

    Each is there once for each window, as it was judged last. Nothing from a store
    without tables. HistoryError where it cannot be read.
    """
    with connect(place, writes=False) as connection:
        if not has_tables(connection, place.shown):
            return {}
        return _read_last_days(connection, configurations, place)


def _read_last_days(
    connection: Connection, configurations: Collection[str], place: StoreLocation
) -> dict[str, tuple[StoredRun, ...]]:
    first_days = _find_first_days(connection, configurations)
    runs = _read_runs(connection, configurations, first_days, place)
    # Days on which a configuration only has verdicts that are not shown do not count:
    # then older ones do.
    short = [name for name in first_days if _count_days(runs.get(name, ())) < LAST]
    if short:
        runs |= _read_runs(connection, short, {}, place)
    return {
        name: _select_last_days(runs[name]) for name in configurations if name in runs
    }


def _find_first_days(
    connection: Connection, configurations: Collection[str]
) -> dict[str, datetime]:
    """Return of each configuration with many more runs than days are read the first of
    the last days with one.

    It is read from an index alone, so that a store of many years takes hardly longer
    than one of one.
    """
    # Of a quarter more all are read: to find that day takes as long.
    runs = func.count(RUN.c.started)
    many = (
        select(RUN.c.configuration)
        .group_by(RUN.c.configuration)
        .having(runs > LAST * 5 // 4)
    )
    first_days = {}
    for name in set(connection.execute(many).scalars()).intersection(configurations):
        day: Function[date] = func.date(RUN.c.started, type_=Date)
        days = (
            select(day)
            .where(RUN.c.configuration == name, day.is_not(None))
            .distinct()
            .order_by(day.desc())
        )
        first = connection.execute(days.offset(LAST - 1).limit(1)).scalar()
        if first is not None:
            first_days[name] = datetime.combine(first, time())
    return first_days


def _read_runs(
    connection: Connection,
    configurations: Collection[str],
    first_days: Mapping[str, datetime],
    place: StoreLocation,
) -> dict[str, list[StoredRun]]:
    """Return by configuration its runs; of those in `first_days` older ones than all of
    these days may be missing."""
    # The run's configuration is the same, but would be searched first: verdicts in
    # their order are read twice as fast.
    wanted = _select_shown().where(
        VERDICT.c.configuration.in_(configurations), RUN.c.started.is_not(None)
    )
    wanted = wanted.where(is_in_time(place, SESSION), is_in_time(place, RUN))
    if first_days:
        others = [name for name in configurations if name not in first_days]
        wanted = wanted.where(
            or_(
                RUN.c.started >= min(first_days.values()),
                RUN.c.configuration.in_(others),
            )
        )
    runs = defaultdict(list)
    for name, run in _make_stored_runs(
        connection.execute(wanted.order_by(VERDICT.c.id)).all()
    ):
        runs[name].append(run)
    return runs


def _select_shown() -> Select[Any]:
    """Return the query for the verdicts on runs: what tells them apart, and from
    `started` on fields of StoredRun."""
    columns = (
        *(SESSION.c.started, RUN.c.configuration, VERDICT.c.run),
        *(VERDICT.c.first_step, VERDICT.c.last_step, VERDICT.c.statistic),
        *(RUN.c.started, RUN.c.job_id, RUN.c.fingerprint, RUN.c.environment),
        *(VERDICT.c.counts, VERDICT.c.run_seconds, VERDICT.c.verdict, VERDICT.c.reason),
        *(
            VERDICT.c.step_time_seconds,
            VERDICT.c.expected_seconds,
            VERDICT.c.log_difference,
            VERDICT.c.status,
        ),
    )
    joined = select(*columns).join_from(VERDICT, RUN, RUN.c.id == VERDICT.c.run)
    joined = joined.join(SESSION, SESSION.c.id == VERDICT.c.session)
    return joined.where(VERDICT.c.verdict.in_(SHOWN))


def _make_stored_runs(rows: Iterable[Sequence[Any]]) -> Iterable[tuple[str, StoredRun]]:
    """Return each run once for each window, with the verdict of the session that began
    last, and its configuration."""
    make_window, parse = (
        cache(Window),
        cache(parse_environment),
    )  # they repeat themselves night after night
    last = {}
    # A session that was added late was stored after others that had begun after it.
    for (
        _,
        name,
        number,
        first,
        last_step,
        statistic,
        started,
        job_id,
        logs,
        environment,
        *judged,
    ) in sorted(rows, key=itemgetter(0)):
        window = make_window(first, last_step, statistic)
        fields = (
            started.replace(tzinfo=UTC),
            job_id,
            logs,
            window,
            parse(environment),
            *judged,
        )
        last[number, first, last_step, statistic] = name, _make_stored_run(fields)
    _refuse_strange(run for _, run in last.values())
    return last.values()


def parse_environment(text: str) -> dict[str, str]:
    """Return what a run ran on, by name; TypeError for what no session stored."""
    environment = json.loads(text)
    if not isinstance(environment, dict) or not set(
        map(type, environment.values())
    ) <= {str, NoneType}:
        raise TypeError(f"environment is {text}")
    return environment


def _refuse_strange(runs: Iterable[StoredRun]) -> None:
    """Raise ValueError for a run with which nobody can calculate: a column of SQLite
    holds anything."""
    for run in runs:
        numbers = (
            run.statistic_seconds,
            run.step_time_seconds,
            run.expected_seconds,
            run.log_difference,
        )
        texts = (run.job_id, run.logs, run.verdict, run.reason, run.status)
        if not all(
            number is None or (type(number) is float and math.isfinite(number))
            for number in numbers
        ):
            raise ValueError(f"run of {run.started}: {numbers}")
        if not all(type(text) is str for text in texts):
            raise ValueError(f"run of {run.started}: {texts}")
        refuse_no_time(run.valid, run.statistic_seconds)


def refuse_no_time(counts: bool, seconds: float | None) -> None:
    """Raise ValueError for a run that counts without a time."""
    if counts and not (seconds and seconds > 0):
        raise ValueError(f"a run that counts took {seconds} s")


def _count_days(runs: Sequence[StoredRun]) -> int:
    return len({run.started.date() for run in runs})


def _select_last_days(runs: Iterable[StoredRun]) -> tuple[StoredRun, ...]:
    """Return the runs of the last days, oldest first."""
    dated = sorted(runs, key=_STARTED)
    days = list(dict.fromkeys(map(datetime.toordinal, map(_STARTED, dated))))
    if len(days) > LAST:
        dated = dated[
            bisect_left(dated, days[-LAST], key=lambda run: _STARTED(run).toordinal()) :
        ]
    return tuple(dated)
