"""The runs that sessions read from a year of a store: each with its latest verdict."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import delete, select, update
from support import builders
from support.remembered import ID, START, document, nights, outcome

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.run_records import StoredRun
from pytest_llmbench.history import daily_verdicts, prune, queries
from pytest_llmbench.history.details import list_measured_runs
from pytest_llmbench.history.queries import read_stored_runs
from pytest_llmbench.history.record import prepare, write
from pytest_llmbench.history.store import StoreLocation, connect
from pytest_llmbench.history.tables import RUN, VERDICT

OTHER = replace(builders.KEY, dtype="fp8")

Past = dict[str, tuple[StoredRun, ...]]


def past(location: StoreLocation) -> Past:
    return read_stored_runs(location, (ID, OTHER.id))


def from_all_verdicts(location: StoreLocation) -> Past:
    """Return the same runs, reading also verdicts that are too old."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            queries, "_find_first_days", lambda _connection, _configurations: {}
        )
        return past(location)


def change(location: StoreLocation, statement: Any) -> None:
    with connect(location, writes=True) as connection:
        connection.execute(statement)


def test_verdict_deleted_by_hand_is_not_read(location: StoreLocation) -> None:
    write(location, document(*nights([7.4, 7.5, 7.6, 7.7])))
    change(location, delete(VERDICT).where(VERDICT.c.run == 2))
    assert [run.statistic_seconds for run in past(location)[ID]] == [7.4, 7.6, 7.7]
    write(location, document(outcome(7.8, 4)))
    assert [run.statistic_seconds for run in past(location)[ID]] == [7.4, 7.6, 7.7, 7.8]


@pytest.mark.slow
def test_run_counts_once_in_the_history_if_its_start_time_changes(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log without a timestamp is dated by its file, which may be copied again."""
    monkeypatch.setattr(queries, "LAST", 2)
    write(location, document(*nights([7.4] * 4)))
    for day in range(5, 13):
        write(location, document(outcome(7.5, day, job="7", logs="1-aa")))
    assert [run.job_id for run in past(location)[ID]] == ["1003", "7"]
    assert past(location) == from_all_verdicts(location)


def test_reused_row_numbers_are_read_correctly(location: StoreLocation) -> None:
    write(
        location, document(*nights([7.4] * 4), began=builders.NOW - timedelta(days=400))
    )
    prune.prune(location, builders.NOW, dry_run=False)
    write(location, document(*nights([7.9] * 3)))
    write(location, document(outcome(7.9, 3)))
    assert [run.statistic_seconds for run in past(location)[ID]] == [7.9] * 4


def test_unreadable_run_is_reported_and_later_sessions_are_stored(
    location: StoreLocation,
) -> None:
    write(location, document(outcome(7.4)))
    change(location, update(RUN).values(environment="[" * 100_000))
    with pytest.raises(HistoryError, match="contains an invalid value"):
        past(location)
    assert write(location, document(*nights([7.4] * 4, key=OTHER))) == 4


@pytest.mark.slow
def test_runs_of_older_days_are_not_read(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of many years takes no longer to read than one of a year. A configuration
    with few runs keeps all of them."""
    monkeypatch.setattr(queries, "LAST", 6)
    write(location, document(*nights([7.4] * 3, key=OTHER)))
    for day in range(20):
        write(
            location,
            document(
                outcome(7.4, day),
                {**outcome(7.5, day, logs="2-bb"), "verdict": "REGRESSION"},
            ),
        )
    oldest = (
        select(RUN.c.id)
        .where(RUN.c.configuration == ID)
        .order_by(RUN.c.id)
        .limit(1)
        .scalar_subquery()
    )
    change(location, update(RUN).where(RUN.c.id == oldest).values(environment="{"))
    result = past(location)
    assert [run.job_id for run in result[ID]] == [
        f"{1000 + day}" for day in range(14, 20) for _ in range(2)
    ]
    assert len(result[OTHER.id]) == 3
    monkeypatch.setattr(queries, "LAST", 17)
    assert len(past(location)[ID]) == 34
    monkeypatch.setattr(queries, "LAST", 20)
    with pytest.raises(HistoryError, match="contains an invalid value"):
        past(location)


VERDICTS = st.fixed_dictionaries(
    {
        "day": st.integers(0, 7),
        "key": st.sampled_from([builders.KEY, OTHER]),
        "verdict": st.sampled_from(["PASS", "REGRESSION", "NOT_COMPARABLE"]),
        "statistic": st.sampled_from(["mean", "trimmed_mean"]),
        "job": st.sampled_from(["", "7"]),
        "logs": st.sampled_from(["00ff", "1-aa", "2-bb", ""]),
        "dated": st.sampled_from([True, True, False]),
    }
)
SESSIONS = st.lists(
    st.tuples(st.integers(0, 9), st.lists(VERDICTS, min_size=1, max_size=3)),
    min_size=1,
    max_size=7,
)
"""The hour at which each session began, and its verdicts: stored in another order than
they began."""


def make_outcome(
    seconds: float, verdict: str, statistic: str, *, dated: bool, **run: Any
) -> dict[str, Any]:
    made = outcome(seconds, **run) if dated else outcome(seconds, **run, started=None)
    return {
        **made,
        "verdict": verdict,
        "window": {**made["window"], "statistic": statistic},
    }


@pytest.mark.slow
@given(SESSIONS, st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_history_query_for_the_last_days_equals_a_scan_of_all_verdicts(
    sessions: list[Any], last: int
) -> None:
    """Covers sessions added late, grown logs, and runs without a start."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "LAST", last)
        location = StoreLocation("history.db", Path(folder) / "history.db")
        for number, (hour, verdicts) in enumerate(sessions):
            outcomes = [
                make_outcome(7.4 + number / 100 + item / 1000, **one)
                for item, one in enumerate(verdicts)
            ]
            write(
                location,
                document(*outcomes, began=START + timedelta(days=20, hours=hour)),
            )
        assert past(location) == from_all_verdicts(location)


def test_empty_store_has_no_runs(location: StoreLocation) -> None:
    prepare(location)
    assert list_measured_runs(location) == []
    assert queries.read_stored_runs(location, [ID]) == {}


def test_verdicts_of_days_are_restricted_to_configurations(
    location: StoreLocation,
) -> None:
    write(location, document(outcome(7.4), outcome(5.0, key=OTHER, job="2", logs="2")))
    end = START + timedelta(days=1)
    names = [
        [entry.configuration for entry in queries.list_days(location, START, end, ids)]
        for ids in (None, [OTHER.id], [])
    ]
    assert names == [[ID, OTHER.id], [OTHER.id], []]


def test_texts_of_verdicts_are_read_by_number(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daily_verdicts, "ROWS", 2)
    for day in range(4):
        write(location, document({**outcome(7.4, day), "text": f"day {day}"}))
    assert daily_verdicts.read_texts(location, [1, 2, 4, 9]) == {
        1: "day 0",
        2: "day 1",
        4: "day 3",
    }
