"""Query a history: entries for `llmbench history`, earlier runs for judging and
reports."""

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

# The columns that contain lists, with their element types.
_LISTS: dict[str, type[Any] | UnionType] = {
    **dict.fromkeys(("nodes", "log_fingerprints", "options"), str),
    "jobs": object,
    "mean_of": int,
    "log_sha256": str | None,
}

# The columns that contain lists of texts.
TEXT_LISTS = tuple(name for name, kind in _LISTS.items() if kind is str)

# The columns that contain lists or dictionaries, except `metrics`.
NESTED = (*_LISTS, "environment")

REMOVE = "restore a backup, or remove the verdicts of that session: DELETE FROM {} WHERE session = '{}'"


_NEVER = datetime.min.replace(tzinfo=UTC)


def list_runs(
    location: StoreLocation, words: str, since: datetime | None, limit: int
) -> list[ListedRun]:
    """Return the last `limit` runs of each configuration, oldest first, with the last
    verdict.

    Sorted by configuration. `words` select configurations, as in `grok1 and not fp8 or
    llama`. Configurations without runs are omitted.
    """
    run_columns = (
        RUN.c.id.label("number"),
        RUN.c.configuration,
        RUN.c.started,
        RUN.c.job_id,
        VERDICT.c.session,
    )
    verdict_columns = (
        VERDICT.c.verdict,
        VERDICT.c.step_time_seconds,
        VERDICT.c.log_difference,
    )
    joined = select(*run_columns, *verdict_columns).join_from(
        VERDICT, RUN, RUN.c.id == VERDICT.c.run
    )
    query = joined.join(SESSION, SESSION.c.id == VERDICT.c.session)
    query = query.order_by(*list_order(location))
    if since is not None:
        query = query.where(RUN.c.started >= convert_to_stored(since))
    # Verdicts are sorted by session, so the last one of each run remains.
    run_by_number = {
        run.number: run
        for run in fetch_rows(location, query, lambda row: ListedRun(**row))
        if _matches(run.configuration, words)
    }
    runs_by_configuration: dict[str, list[ListedRun]] = {}
    for run in run_by_number.values():
        runs_by_configuration.setdefault(run.configuration, []).append(run)
    listed: list[ListedRun] = []
    for _, runs in sorted(runs_by_configuration.items()):
        runs.sort(key=lambda run: _rank_start(location, run.started))
        listed += runs[-limit:]
    return listed


def list_verdicts(location: StoreLocation, key: str) -> list[StoredEntry]:
    """Return all verdicts on a run, or on the last run of a configuration.

    `key` is the number of a run or the id of a configuration. Oldest first. Raises
    HistoryError, with the nearest id, if there is no such run.
    """
    number: int | None = None
    if key.isdecimal() and len(key) < 19:  # fits into 64 bits
        number = int(key)
    else:
        number = _find_last_run(location, configuration=key)
    entries = []
    if number is not None:
        query = select_everything(location).where(RUN.c.id == number)
        entries = _fetch_entries(location, query)
    if not entries:
        rows = fetch_rows(location, select(RUN.c.configuration).distinct(), dict)
        nearest = did_you_mean(key, [row["configuration"] for row in rows])
        raise HistoryError(
            f"{location.shown}: no run {key}{nearest}; `llmbench history list` lists all runs"
        )
    return entries


def _find_last_run(location: StoreLocation, configuration: str) -> int | None:
    """Return the number of the last run of a configuration, or None."""
    query = select(RUN.c.id, RUN.c.started).where(RUN.c.configuration == configuration)
    rows = fetch_rows(location, query.order_by(RUN.c.id), dict)
    if not rows:
        return None
    last = max(rows, key=lambda row: _rank_start(location, row["started"]))
    number: int = last["id"]
    return number


def list_everything(
    location: StoreLocation, sessions: Collection[str] | None = None
) -> Rows:
    """Return every verdict of these sessions, or of all, as table rows, oldest first.

    Includes the run and session, the stored noise of the configuration in the session,
    and verdicts without a run.
    """
    query = select_everything(location)
    if sessions is not None:
        query = query.where(VERDICT.c.session.in_(sessions))
    rows = fetch_rows(location, query, _decode)
    noises = list_noises(location)
    if noises:
        for row in rows:
            row.update(noises.get((row["session"], row["configuration"]), {}))
    return rows


def list_columns() -> dict[str, type]:
    """Return the columns of `list_everything`, without metrics, with their types."""
    any_location = StoreLocation("")  # the columns do not depend on the location
    columns = select_everything(any_location).selected_columns
    return {
        column.name: column.type.python_type
        for column in columns
        if column.name != "metrics"
    }


def list_days(
    location: StoreLocation,
    first: datetime,
    end: datetime,
    configurations: Collection[str] | None = None,
) -> list[StoredEntry]:
    """Return every verdict on the runs that started in `first` to `end`, oldest first.

    `end` is excluded. With `configurations` (ids), returns only their verdicts.
    """
    began = RUN.c.started
    query = select_everything(location).where(
        began >= convert_to_stored(first), began < convert_to_stored(end)
    )
    if configurations is not None:
        query = query.where(VERDICT.c.configuration.in_(configurations))
    return _fetch_entries(location, query.where(is_in_time(location, SESSION)))


def list_session(location: StoreLocation, identifier: str) -> list[StoredEntry]:
    """Return every verdict of a session, except verdicts without a run.

    Raises HistoryError if the session does not exist or has no verdict with a run.
    """
    query = select_everything(location).where(
        SESSION.c.id == identifier, VERDICT.c.run.is_not(None)
    )
    rows = _fetch_entries(location, query)
    if not rows:
        raise HistoryError(
            f"{location.shown}: no session {identifier} with a run; `llmbench history show` prints session ids"
        )
    return rows


def _matches(configuration: str, words: str) -> bool:
    """True if a configuration id matches words such as `grok1 and not fp8 or llama`."""
    for alternative in words.split(" or "):
        required = alternative.split(" and ")
        if all(_matches_word(configuration, word.strip()) for word in required):
            return True
    return False


def _matches_word(configuration: str, word: str) -> bool:
    """True if a configuration id contains `grok1`, or does not for `not grok1`."""
    is_negated = word.startswith("not ")
    searched = word.removeprefix("not ").strip().lower()
    is_contained = searched in configuration.lower()
    return is_contained is not is_negated


# --- reading --------------------------------------------------------------------------


def _fetch_entries(location: StoreLocation, query: Select[Any]) -> list[StoredEntry]:
    return fetch_rows(location, query, lambda row: StoredEntry(**_decode(row)))


def fetch_rows(
    location: StoreLocation,
    query: Select[Any],
    convert: Callable[[Row], Converted],
    damaged: dict[str, str] | None = None,
) -> list[Converted]:
    """Return the converted rows of a query; empty for a store without tables.

    Raises HistoryError for an invalid row. With `damaged`, invalid rows are omitted
    instead, and the first error of each session is added there under the session's id.
    """
    kinds = {column.name: column.type.python_type for column in query.selected_columns}
    with connect(location, writes=False) as connection:
        if not has_tables(connection, location.shown):
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
                    describe_damage(location, f"{error!r}", row.get("session"))
                ) from None
    return rows


def describe_damage(location: StoreLocation, problem: str, session: str | None) -> str:
    """Describe an invalid value and its remedy."""
    remedy = REMOVE.format(VERDICT.name, session) if session else "restore a backup"
    return f"{location.shown}: contains an invalid value ({problem}): {remedy}"


def _refuse_other_types(row: Mapping[Any, Any], kinds: Mapping[str, type[Any]]) -> None:
    """Raise TypeError for a value of another type than its column's, or not finite."""
    for name, kind in kinds.items():
        value = row[name]
        if value is not None and not (
            isinstance(value, kind) and (kind is not float or math.isfinite(value))
        ):
            raise TypeError(f"{name} is {value!r}")


def _mark_utc(row: Row) -> Row:
    """Set the time zone of a row's times to UTC."""
    times = {
        name: row[name].replace(tzinfo=UTC)
        for name in ("started", "judged")
        if row.get(name)
    }
    return {**row, **times}


def _rank_start(
    location: StoreLocation, started: datetime | None
) -> tuple[bool, datetime]:
    """Return the sort key of a run's start.

    Runs in the future or without a start are the oldest.
    """
    began = started or _NEVER
    is_in_past = location.latest is None or began <= location.latest
    return is_in_past, began


def select_everything(location: StoreLocation) -> Select[Any]:
    """Build the query for all columns of each verdict, oldest first (`list_order`)."""
    run_columns = [
        column
        for column in RUN.c
        if column.name not in ("id", "configuration", "fingerprint")
    ]
    verdict_columns = [
        column for column in VERDICT.c if column.name not in ("id", "run", "session")
    ]
    session_columns = [
        SESSION.c.id.label("session"),
        SESSION.c.started.label("judged"),
        SESSION.c.host,
        SESSION.c.program,
        SESSION.c.options,
        SESSION.c.git_commit,
        SESSION.c.ci_url,
    ]
    number = RUN.c.id.label("number")
    columns = (number, *run_columns, *verdict_columns, *session_columns)
    joined = select(*columns).join_from(
        VERDICT, SESSION, SESSION.c.id == VERDICT.c.session
    )
    joined = joined.join(RUN, RUN.c.id == VERDICT.c.run, isouter=True)
    return joined.order_by(*list_order(location))


def _decode(row: Row) -> Row:
    """Decode the lists, dictionaries and step times of a row.

    The columns of a run are None in a verdict without a run. Raises ValueError or
    TypeError for invalid values.
    """
    require_time_if_counted(row["counts"], row["run_seconds"])
    decoded = {
        **row,
        "metrics": parse_metrics(row["metrics"]),
        "step_seconds": _list_steps(unpack_steps(row["step_seconds"])),
    }
    for name in _LISTS:
        if row[name] is not None:
            decoded[name] = parse_list(name, row[name])
    if row["environment"] is not None:
        decoded["environment"] = parse_environment(row["environment"])
    return decoded


def unpack_steps(packed: bytes) -> tuple[float, ...]:
    """Unpack the step times of a window, NaN if missing."""
    return struct.unpack(f"<{len(packed) // 8}d", bytes(packed))


def _list_steps(steps: tuple[float, ...]) -> list[float | None]:
    """Return step times with None for NaN. Raises ValueError for an infinite time."""
    if math.inf in steps or -math.inf in steps:
        raise ValueError("a step time is not finite")
    return [None if math.isnan(value) else value for value in steps]


@lru_cache(maxsize=1_000)  # daily rows repeat
def parse_list(name: str, text: str) -> list[Any]:
    """Parse the list in a column. Raises TypeError or ValueError for other values."""
    values = _parse_finite(text)
    if not isinstance(values, list) or not all(
        isinstance(value, _LISTS[name]) for value in values
    ):
        raise TypeError(f"{name} is {text}")
    return values


def parse_metrics(text: str) -> dict[str, list[Any]]:
    """Parse metrics by name as [value, standard deviation or None].

    Raises TypeError or ValueError for other values.
    """
    metrics = {
        name: [value, deviation]
        for name, (value, deviation) in json.loads(text).items()
    }
    for number in chain.from_iterable(metrics.values()):
        if number is None:
            continue
        is_number = type(number) in (int, float)  # not a bool
        if not is_number or not -math.inf < number < math.inf:
            raise TypeError(f"a metric is {number!r}")
    return metrics


def _refuse_infinite(value: str | float) -> float:
    """Convert a number of a JSON text. Raises ValueError for NaN and infinity."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number")
    return number


_parse_finite = json.JSONDecoder(
    parse_float=_refuse_infinite, parse_constant=_refuse_infinite
).decode


# --- the runs of earlier sessions, as judging and reports need them -------------------


LAST = 365  # number of last days with runs that are read per configuration

# The verdicts that represent a day. Profiled runs and recordings have others.
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

# A cluster makes 30,000 runs a year: calling the type's __new__ would take longer than
# the query.
_make_stored_run = partial(tuple.__new__, StoredRun)


def read_stored_runs(
    location: StoreLocation, configurations: Collection[str]
) -> dict[str, tuple[StoredRun, ...]]:
    """Map configurations (ids) to the runs of their last days, oldest first.

    Each run occurs once per window, with its latest verdict. Empty for a store without
    tables. Raises HistoryError if the store cannot be read.
    """
    with connect(location, writes=False) as connection:
        if not has_tables(connection, location.shown):
            return {}
        return _read_last_days(connection, configurations, location)


def _read_last_days(
    connection: Connection, configurations: Collection[str], location: StoreLocation
) -> dict[str, tuple[StoredRun, ...]]:
    """Read the last days of runs of each configuration, oldest first."""
    first_days = _find_first_days(connection, configurations)
    runs = _read_runs(connection, configurations, first_days, location)
    # Only runs with a verdict in SHOWN are read. If they cover fewer days, because some
    # days have other verdicts, all runs of the configuration are read.
    names_to_complete = [
        name for name in first_days if _count_days(runs.get(name, ())) < LAST
    ]
    if names_to_complete:
        runs |= _read_runs(connection, names_to_complete, {}, location)
    return {
        name: _select_last_days(runs[name]) for name in configurations if name in runs
    }


def _find_first_days(
    connection: Connection, configurations: Collection[str]
) -> dict[str, datetime]:
    """Return the day from which runs are read, for configurations with many runs.

    This is the first of the last LAST days with runs. Reads only an index, so a store
    of many years takes hardly longer than one of a year.
    """
    # Configurations with up to a quarter more runs are read completely: finding the day
    # takes as long.
    with_many_runs = (
        select(RUN.c.configuration)
        .group_by(RUN.c.configuration)
        .having(func.count(RUN.c.started) > LAST * 5 // 4)
    )
    names = set(connection.execute(with_many_runs).scalars())
    first_days = {}
    for name in names.intersection(configurations):
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
    location: StoreLocation,
) -> dict[str, list[StoredRun]]:
    """Return the runs by configuration.

    For the configurations in `first_days`, runs before the earliest of these days may
    be missing.
    """
    # The condition is on the verdict's configuration: on the run's, which is the same,
    # the database would search runs first, and reading verdicts in order is twice as
    # fast.
    query = _select_shown().where(
        VERDICT.c.configuration.in_(configurations), RUN.c.started.is_not(None)
    )
    query = query.where(is_in_time(location, SESSION), is_in_time(location, RUN))
    if first_days:
        others = [name for name in configurations if name not in first_days]
        query = query.where(
            or_(
                RUN.c.started >= min(first_days.values()),
                RUN.c.configuration.in_(others),
            )
        )
    rows = connection.execute(query.order_by(VERDICT.c.id)).all()
    runs = defaultdict(list)
    for name, run in _make_stored_runs(rows):
        runs[name].append(run)
    return runs


def _select_shown() -> Select[Any]:
    """Build the query for the verdicts in SHOWN, which represent a day.

    The first columns are the key of a verdict. The columns from the second `started` on
    are the fields of StoredRun.
    """
    key = (
        SESSION.c.started,
        RUN.c.configuration,
        VERDICT.c.run,
        VERDICT.c.first_step,
        VERDICT.c.last_step,
        VERDICT.c.statistic,
    )
    fields = (
        RUN.c.started,
        RUN.c.job_id,
        RUN.c.fingerprint,
        RUN.c.environment,
        VERDICT.c.counts,
        VERDICT.c.run_seconds,
        VERDICT.c.verdict,
        VERDICT.c.reason,
        VERDICT.c.step_time_seconds,
        VERDICT.c.expected_seconds,
        VERDICT.c.log_difference,
        VERDICT.c.status,
    )
    joined = select(*key, *fields).join_from(VERDICT, RUN, RUN.c.id == VERDICT.c.run)
    joined = joined.join(SESSION, SESSION.c.id == VERDICT.c.session)
    return joined.where(VERDICT.c.verdict.in_(SHOWN))


def _make_stored_runs(rows: Iterable[Sequence[Any]]) -> Iterable[tuple[str, StoredRun]]:
    """Return (configuration, run) once per window, with the verdict of the latest
    session.

    `rows` have the columns of `_select_shown`.
    """
    # Window and environment are cached, because the same values recur every day.
    make_window, parse = cache(Window), cache(parse_environment)
    runs_by_window = {}
    # Sorted by the start of the session, so that the latest verdict replaces earlier
    # ones. Row numbers do not have this order if a session was added late.
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
        key = number, first, last_step, statistic
        runs_by_window[key] = name, _make_stored_run(fields)
    _refuse_invalid(run for _, run in runs_by_window.values())
    return runs_by_window.values()


def parse_environment(text: str) -> dict[str, str]:
    """Parse the stored environment.

    Raises TypeError if it is not an object of strings and nulls.
    """
    environment = json.loads(text)
    if not isinstance(environment, dict):
        raise TypeError(f"environment is {text}")
    if not set(map(type, environment.values())) <= {str, NoneType}:
        raise TypeError(f"environment is {text}")
    return environment


def _refuse_invalid(runs: Iterable[StoredRun]) -> None:
    """Raise ValueError for a run with invalid values: SQLite columns can hold any
    value."""
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
        require_time_if_counted(run.valid, run.statistic_seconds)


def require_time_if_counted(counts: bool, seconds: float | None) -> None:
    """Raise ValueError for a run that counts but has no time."""
    if counts and not (seconds and seconds > 0):
        raise ValueError(f"a run that counts took {seconds} s")


def _count_days(runs: Sequence[StoredRun]) -> int:
    return len({run.started.date() for run in runs})


def _select_last_days(runs: Iterable[StoredRun]) -> tuple[StoredRun, ...]:
    """Return the runs of the last LAST days, oldest first."""
    oldest_first = sorted(runs, key=_STARTED)
    # Ordinals: numbers of days.
    days = list(dict.fromkeys(map(datetime.toordinal, map(_STARTED, oldest_first))))
    if len(days) > LAST:
        first_day = days[-LAST]
        first_index = bisect_left(
            oldest_first, first_day, key=lambda run: _STARTED(run).toordinal()
        )
        oldest_first = oldest_first[first_index:]
    return tuple(oldest_first)
