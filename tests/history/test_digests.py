"""What sessions read of a year of nights: the same from the digests as from the verdicts, whatever was stored when."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import builders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remembered import ID, START, document, nights, outcome
from sqlalchemy import delete, func, select, text, update

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.models import StoredRun
from pytest_llmbench.history import digests, look
from pytest_llmbench.history import stored_runs as reading
from pytest_llmbench.history.location import StoreLocation
from pytest_llmbench.history.store import connect
from pytest_llmbench.history.stored_runs import read_stored_runs
from pytest_llmbench.history.tables import DIGEST, RUN, VERDICT
from pytest_llmbench.history.write import write

pytestmark = pytest.mark.slow

OTHER = replace(builders.KEY, dtype="fp8")

Past = dict[str, tuple[StoredRun, ...]]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "SIZE", 4)


def past(place: StoreLocation) -> Past:
    return read_stored_runs(place, (ID, OTHER.id))


def covered(place: StoreLocation) -> int:
    with connect(place, writes=False) as connection:
        return digests.find_covered(connection)


def from_verdicts(place: StoreLocation) -> Past:
    """Return the same without digests, which are left as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "find_covered", lambda _connection: 0)
        return past(place)


def change(place: StoreLocation, statement: Any) -> None:
    with connect(place, writes=True) as connection:
        connection.execute(statement)


def test_so_many_new_verdicts_are_packed(place: StoreLocation) -> None:
    seen = []
    for night in range(9):
        write(place, document(outcome(7.4 + night / 1000, night)))
        seen.append(covered(place))
    assert seen == [0, 0, 0, 4, 4, 4, 4, 8, 8]
    assert [one.statistic_seconds for one in past(place)[ID]] == [7.4 + night / 1000 for night in range(9)]
    assert past(place) == from_verdicts(place)


def test_what_is_in_a_digest_is_read_from_there(place: StoreLocation) -> None:
    write(place, document(*nights([7.4, 7.5, 7.6, 7.7])))
    write(place, document(outcome(7.8, 4)))
    with connect(place, writes=False) as connection:
        wanted = select(DIGEST.c.verdicts).where(DIGEST.c.configuration == ID)
        text = json.loads(connection.execute(wanted).scalar_one())
    text["run_seconds"][1] = 9.9
    change(place, update(DIGEST).where(DIGEST.c.configuration == ID).values(verdicts=json.dumps(text)))
    assert [one.statistic_seconds for one in past(place)[ID]] == [7.4, 9.9, 7.6, 7.7, 7.8]


def test_all_that_an_older_store_holds_is_packed_with_the_next_session(
    place: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a large store in pieces, so that none of the transactions is long."""
    monkeypatch.setattr(digests, "SIZE", 1000)
    write(place, document(*nights([7.4] * 10), outcome(None, key=OTHER)))
    monkeypatch.setattr(digests, "SIZE", 4)
    assert covered(place) == 0
    write(place, document(outcome(7.4, 10)))
    assert covered(place) == 12
    assert len(past(place)[ID]) == 11
    assert past(place) == from_verdicts(place)


def test_digests_hold_until_verdicts_are_removed(place: StoreLocation) -> None:
    old = builders.NOW - timedelta(days=400)
    write(place, document(*nights([7.4, 7.5, 7.6, 7.7, 7.8]), began=old))
    for night in range(5, 10):
        write(place, document(outcome(7.9, night)))
    assert covered(place) == 8
    look.prune(place, builders.NOW - timedelta(days=30), dry_run=True)
    assert covered(place) == 8
    look.prune(place, builders.NOW - timedelta(days=30), dry_run=False)
    assert covered(place) == 9  # packed again
    assert [one.job_id for one in past(place)[ID]] == [f"{1000 + night}" for night in range(5, 10)]


def test_a_verdict_that_somebody_removes_by_hand_is_gone(place: StoreLocation) -> None:
    write(place, document(*nights([7.4, 7.5, 7.6, 7.7])))
    change(place, delete(VERDICT).where(VERDICT.c.run == 2))
    assert covered(place) == 0
    assert [one.statistic_seconds for one in past(place)[ID]] == [7.4, 7.6, 7.7]
    write(place, document(outcome(7.8, 4)))  # makes them new
    assert covered(place) == 5
    assert [one.statistic_seconds for one in past(place)[ID]] == [7.4, 7.6, 7.7, 7.8]


def test_a_run_counts_once_however_often_its_start_moved(place: StoreLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that states no time is dated by its file, and may be copied again."""
    monkeypatch.setattr(reading, "LAST", 2)
    write(place, document(*nights([7.4] * 4)))
    for night in range(5, 13):
        write(place, document(outcome(7.5, night, job="7", logs="1-aa")))
    assert covered(place) == 12
    assert [one.job_id for one in past(place)[ID]] == ["1003", "7"]
    assert past(place) == from_verdicts(place)


def test_digests_of_verdicts_that_are_gone_never_stand_for_others(place: StoreLocation) -> None:
    """A file gives the numbers of removed verdicts again."""
    write(place, document(*nights([7.4] * 4), began=builders.NOW - timedelta(days=400)))
    look.prune(place, builders.NOW, dry_run=False)
    write(place, document(*nights([7.9] * 3)))
    write(place, document(outcome(7.9, 3)))
    assert [one.statistic_seconds for one in past(place)[ID]] == [7.9] * 4


def test_the_last_verdicts_may_be_removed_by_hand_as_well(place: StoreLocation) -> None:
    """New ones then get their numbers in a file, and are as many."""
    write(place, document(*nights([7.4, 7.5, 7.6, 7.7])))
    change(place, delete(VERDICT).where(VERDICT.c.run > 2))
    write(place, document(outcome(7.8, 4), outcome(7.9, 5)))
    assert [one.statistic_seconds for one in past(place)[ID]] == [7.4, 7.5, 7.8, 7.9]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "null",
        lambda _: "{}",
        lambda text: text.replace('"run"', '"ran"'),
        lambda text: re.sub(r'"window": \[\[\[.*?\]\]', '"window": [[]', text),
        lambda text: text.replace('"counts": [true, ', '"counts": [', 1),
        lambda text: text.replace("2025-11-01T", "2025-11-99T"),
        lambda _: "[" * 100_000,
    ],
)
def test_a_damaged_digest_stops_nobody(place: StoreLocation, damage: Callable[[str], str]) -> None:
    write(place, document(*nights([7.4] * 4)))
    of_one = DIGEST.c.configuration == ID
    with connect(place, writes=True) as connection:
        text = connection.execute(select(DIGEST.c.verdicts).where(of_one)).scalar_one()
        assert damage(text) != text
        connection.execute(update(DIGEST).where(of_one).values(verdicts=damage(text)))
    assert covered(place) == 4
    assert len(past(place)[ID]) == 4
    assert covered(place) == 0  # it is made again
    write(place, document(outcome(7.4, 4)))
    assert (covered(place), len(past(place)[ID])) == (4, 5)


@pytest.mark.parametrize(
    "by_hand",
    [
        delete(DIGEST).where(DIGEST.c.configuration == ID),
        delete(DIGEST).where(DIGEST.c.configuration == digests.ALL, DIGEST.c.upto == 8),
        update(DIGEST).where(DIGEST.c.configuration == digests.ALL).values(verdicts="x"),
        delete(DIGEST),
    ],
    ids=["of one configuration", "the last that says how many", "what it says", "all"],
)
def test_digests_that_somebody_removes_are_made_again(place: StoreLocation, by_hand: Any) -> None:
    for night in range(9):
        write(place, document(outcome(7.4, night)))
    change(place, by_hand)
    assert covered(place) in (0, 8)
    assert len(past(place)[ID]) == 9
    write(place, document(outcome(7.4, 9)))
    assert (covered(place), len(past(place)[ID])) == (8, 10)


def test_gaps_in_the_numbers_of_verdicts_are_stepped_over(place: StoreLocation) -> None:
    """A server leaves them where transactions fail, and a prune before all that is left."""
    write(place, document(outcome(7.4)))
    change(place, update(VERDICT).values(id=10**6))
    if place.file is None:
        change(place, text("SELECT setval(pg_get_serial_sequence('llmb_verdict', 'id'), 1000000)"))
    for night in range(1, 8):
        write(place, document(outcome(7.4, night)))
    with connect(place, writes=False) as connection:
        assert connection.execute(select(DIGEST.c.upto).distinct()).scalars().all() == [10**6 + 3, 10**6 + 7]
    assert len(past(place)[ID]) == 8


def test_what_no_session_stored_is_told(place: StoreLocation) -> None:
    """At the start, and at the end nothing is lost for it."""
    write(place, document(outcome(7.4)))
    change(place, update(RUN).values(environment="{"))
    with pytest.raises(HistoryError, match="holds what no session stored"):
        past(place)
    assert write(place, document(*nights([7.4] * 4, key=OTHER))) == 4
    assert covered(place) == 0


def test_a_session_is_stored_where_its_digests_are_not(place: StoreLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are only faster."""

    def full(*_arguments: object) -> None:
        raise HistoryError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(digests, "_pack_more", full)
        assert write(place, document(*nights([7.4] * 4))) == 4
    assert (covered(place), len(past(place)[ID])) == (0, 4)
    write(place, document(outcome(7.4, 4)))
    assert (covered(place), len(past(place)[ID])) == (4, 5)


def test_digests_of_days_that_are_too_old_are_not_opened(place: StoreLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of many years takes no longer to read than one of one."""
    monkeypatch.setattr(reading, "LAST", 6)
    for night in range(20):
        write(place, document(outcome(7.4, night)))
    oldest = select(func.min(DIGEST.c.upto)).scalar_subquery()
    change(place, update(DIGEST).where(DIGEST.c.upto == oldest, DIGEST.c.configuration == ID).values(verdicts="{"))
    assert [one.job_id for one in past(place)[ID]] == [f"{1000 + night}" for night in range(14, 20)]
    assert covered(place) == 20
    monkeypatch.setattr(reading, "LAST", 17)
    assert len(past(place)[ID]) == 17
    assert covered(place) == 0  # it was opened


def verdict(**of_run: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    words = {"verdict": ["PASS", "REGRESSION", "NOT_COMPARABLE"], "statistic": ["mean", "trimmed_mean"]}
    sampled = {name: st.sampled_from(values) for name, values in words.items()}
    keys = st.sampled_from([builders.KEY, OTHER])
    return st.fixed_dictionaries({"night": st.integers(0, 7), "key": keys, **sampled, **of_run})


def sessions(verdicts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[Any]]:
    """Return the hour at which each began, and its verdicts: sessions are stored in another order than they began."""
    return st.lists(st.tuples(st.integers(0, 9), st.lists(verdicts, min_size=1, max_size=3)), min_size=1, max_size=7)


def same_from_both(found: list[Any], size: int, last: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "SIZE", size)
        patch.setattr(reading, "LAST", last)
        place = StoreLocation("history.db", Path(folder) / "history.db")
        for number, (hour, verdicts) in enumerate(found):
            told = [judged(7.4 + number / 100 + item / 1000, **one) for item, one in enumerate(verdicts)]
            write(place, document(*told, began=START + timedelta(days=20, hours=hour)))
        assert past(place) == from_verdicts(place)
        assert covered(place) > 0 or sum(len(verdicts) for _, verdicts in found) < size


def judged(seconds: float, verdict: str, statistic: str, *, dated: bool = True, **of_run: Any) -> dict[str, Any]:
    told = outcome(seconds, **of_run) if dated else outcome(seconds, **of_run, started=None)
    return {**told, "verdict": verdict, "window": {**told["window"], "statistic": statistic}}


@given(
    sessions(
        verdict(
            job=st.sampled_from(["", "7"]),
            logs=st.sampled_from(["00ff", "1-aa", "2-bb", ""]),
            dated=st.sampled_from([True, True, False]),
        )
    ),
    st.integers(1, 5),
)
@settings(max_examples=25, deadline=None)
def test_digests_say_the_same_as_the_verdicts(found: list[Any], size: int) -> None:
    """Runs that are judged again, in sessions that are added late, with logs that have grown, without a start."""
    same_from_both(found, size, reading.LAST)


@given(sessions(verdict()), st.integers(1, 3), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_digests_say_the_same_of_the_last_days(found: list[Any], size: int, last: int) -> None:
    same_from_both(found, size, last)
