"""Sessions and runs dated in the future are ignored, reported, and can be removed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support import builders
from support.node_histories import add_job
from support.remembered import ID, START, document, outcome, session, trials

from pytest_llmbench.cli import main as cli
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history import daily_verdicts, details, prune, queries
from pytest_llmbench.history.paired_noise import read_noises
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import AHEAD, StoreLocation, connect
from pytest_llmbench.session.session_history import SessionHistory
from pytest_llmbench.session.unsaved import write_unsaved
from pytest_llmbench.tools.site.fleet_days import collect_days

NOW = START + timedelta(days=5)
LATER = datetime(2099, 12, 31, 23, tzinfo=UTC)


@pytest.fixture
def store(location: StoreLocation) -> StoreLocation:
    return location.until(NOW)


def judge(location: StoreLocation, start: datetime, *outcomes: dict[str, Any]) -> None:
    write(location, document(*outcomes, began=start))


def red(day: int, **fields: Any) -> dict[str, Any]:
    return {
        **outcome(8.0, day, **fields),
        "status": "failed",
        "verdict": "REGRESSION",
    }


def dated(described: dict[str, Any], started: datetime) -> dict[str, Any]:
    return {**described, "run": {**described["run"], "started": started.isoformat()}}


@pytest.mark.parametrize("later", [NOW + AHEAD + timedelta(seconds=1), LATER])
def test_future_session_is_not_the_newest_of_a_site(
    store: StoreLocation, later: datetime
) -> None:
    judge(store, later, outcome(7.4, 3), outcome(None))
    judge(store, NOW, red(4))
    fleet = collect_days(store, None, NOW)
    assert fleet.session.started == NOW
    (row,) = fleet.rows
    assert [day.verdict for day in row.verdicts] == ["REGRESSION"]
    assert row.current
    assert fleet.future.startswith("1 session begins later than now (")
    assert f"on ci, {later:%Y-%m-%d %H:%M} UTC" in fleet.future


def test_session_dated_a_few_hours_ahead_is_read_as_current(
    store: StoreLocation,
) -> None:
    """Clocks of a cluster differ, and a clock may lack its time zone."""
    judge(store, NOW + AHEAD, red(4))
    fleet = collect_days(store, None, NOW)
    assert (fleet.future, fleet.session.started) == ("", NOW + AHEAD)


def test_site_error_states_that_all_sessions_are_dated_in_the_future(
    store: StoreLocation,
) -> None:
    judge(store, LATER, outcome(7.4, 3))
    with pytest.raises(
        HistoryError, match=r"found no verdict; 1 session begins later than now"
    ):
        collect_days(store, None, NOW)


def test_verdict_on_future_run_has_day_of_its_session(
    store: StoreLocation,
) -> None:
    judge(store, NOW - timedelta(days=1), outcome(7.4, 3))
    judge(store, NOW, dated(red(4), LATER))
    fleet = collect_days(store, None, NOW)
    (row,) = fleet.rows
    assert [(day.day, day.verdict) for day in row.verdicts][-1] == (
        NOW.date(),
        "REGRESSION",
    )
    assert row.current
    assert fleet.future.startswith("1 run begins later than now (2099-12-31 23:00 UTC)")


def test_session_dated_1970_is_pruned_as_old(store: StoreLocation) -> None:
    judge(store, datetime(1970, 1, 1, tzinfo=UTC), outcome(7.4, 3))
    judge(store, NOW, red(4))
    assert collect_days(store, None, NOW).session.started == NOW
    assert prune.prune(store, NOW - timedelta(days=400), dry_run=False)["sessions"] == 1


def test_verdict_dated_in_the_future_is_not_the_latest_verdict_on_a_run(
    store: StoreLocation,
) -> None:
    judge(store, LATER, outcome(7.4, 4))
    judge(store, NOW, red(4))
    (run,) = queries.read_stored_runs(store, [ID])[ID]
    assert run.verdict == "REGRESSION"
    (listed,) = queries.list_runs(store, "", None, 10)
    assert listed.verdict == "REGRESSION"
    assert [row.verdict for row in queries.list_verdicts(store, ID)] == [
        "PASS",
        "REGRESSION",
    ]
    assert [row.verdict for row in queries.list_days(store, START, NOW)] == [
        "REGRESSION"
    ]


def test_later_session_updates_run_of_future_session(store: StoreLocation) -> None:
    judge(store, LATER, outcome(7.4, 4, job="1"))
    again = outcome(7.4, 4, job="1")
    again["run"]["attempts"] = 3
    judge(store, NOW, again)
    (row,) = {row.attempts for row in queries.list_verdicts(store, ID)}
    assert row == 3


def test_future_run_is_never_the_last_run(store: StoreLocation) -> None:
    judge(store, NOW, outcome(7.4, 3), dated(outcome(7.4, 4, job="9"), LATER))
    assert [run.job_id for run in queries.read_stored_runs(store, [ID])[ID]] == ["1003"]
    assert queries.list_verdicts(store, ID)[-1].job_id == "1003"
    assert [row.job_id for row in queries.list_runs(store, "", None, 1)] == ["1003"]


def test_configuration_with_only_runs_dated_in_the_future_has_no_history(
    store: StoreLocation,
) -> None:
    judge(store, NOW, dated(outcome(7.4, 4), LATER))
    assert queries.read_stored_runs(store, [ID]) == {}


def test_run_dated_in_the_future_does_not_shift_the_year_of_measured_runs(
    store: StoreLocation,
) -> None:
    """The search covers the year before the newest run."""
    judge(
        store,
        NOW,
        add_job(outcome(7.4, 3), {"n1"}, 7.4),
        add_job(dated(outcome(7.4, 4), LATER), {"n2"}, 7.4),
    )
    assert [run.job_id for run in details.list_measured_runs(store)] == ["1003"]
    judge(store, LATER, add_job(outcome(7.4, 2), {"n3"}, 7.4))
    assert [run.job_id for run in details.list_measured_runs(store)] == ["1003"]


def test_noise_of_a_future_comparison_is_not_read(store: StoreLocation) -> None:
    noise = {"run_to_run": 0.01, "degrees_of_freedom": 3.0}
    judge(store, LATER, {**outcome(None), "trials": trials(noise)})
    assert read_noises(store, "eos", [ID]) == {}
    judge(
        store,
        NOW,
        {**outcome(None), "trials": trials({**noise, "run_to_run": 0.02})},
    )
    assert [sigma for sigma, _ in read_noises(store, "eos", [ID])[ID]] == [0.02]


# --- reports and removal --------------------------------------------------------------


def store_as_session(
    location: StoreLocation, now: datetime, folder: Path
) -> tuple[str, str]:
    history = SessionHistory(location.until(now), [builders.KEY])
    return history.store(session(outcome(7.4, 4), began=now), [folder])


def test_session_reports_a_clock_that_jumped(
    store: StoreLocation, tmp_path: Path
) -> None:
    assert store_as_session(store, NOW, tmp_path)[1] == ""
    stored, doubt = store_as_session(store, LATER, tmp_path)
    assert stored.endswith(f"stored in {store.shown}")
    assert (
        "begins 27083 days after the newest one before it (2025-11-06): check the clock"
        in doubt
    )
    assert (
        "begins later than now"
        in store_as_session(store, NOW + timedelta(days=1), tmp_path)[1]
    )


def test_session_dated_1970_warns_that_stored_sessions_are_later(
    store: StoreLocation, tmp_path: Path
) -> None:
    judge(store, NOW, outcome(7.4, 3))
    doubt = store_as_session(store, datetime(1970, 1, 1, tzinfo=UTC), tmp_path)[1]
    assert "1 session and 2 runs begin later than now" in doubt


def test_prune_removes_future_sessions_only_on_request(store: StoreLocation) -> None:
    judge(store, LATER, outcome(7.4, 3, job="5"))
    judge(store, NOW, red(4))
    old = NOW - timedelta(days=400)
    assert prune.prune(store, old, dry_run=False) == {
        "verdicts": 0,
        "sessions": 0,
        "runs": 0,
    }
    assert prune.measure_extent(store, None, future=True) == (
        1,
        LATER.replace(tzinfo=None),
        *prune_extent_end(),
    )
    assert prune.prune(store, None, dry_run=False, future=True) == {
        "verdicts": 1,
        "sessions": 1,
        "runs": 1,
    }
    assert [row["verdict"] for row in queries.list_everything(store)] == ["REGRESSION"]
    assert prune.describe_future(store) == ""


def prune_extent_end() -> tuple[datetime, int]:
    return LATER.replace(tzinfo=None), 1


@pytest.mark.slow
def test_commands_report_and_remove_a_future_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    location = StoreLocation("h.db", tmp_path / "h.db")
    judge(location, NOW, outcome(7.4, 3))

    def call(*words: str, code: int = 0) -> tuple[str, str]:
        assert cli.main([*words, "--history", "h.db"]) == code
        out, err = capsys.readouterr()
        return out, err

    path = write_unsaved(session(outcome(7.4, 4), began=LATER), [tmp_path])
    out, err = call("history", "add", str(path))
    assert "1 verdict stored" in out
    assert err.count("1 session begins later than now") == 1
    for words in (
        ("list",),
        ("show", ID),
        ("export", "--format", "json"),
        ("prune", "--keep=90000d", "--yes"),
    ):
        out, err = call("history", *words)
        assert err.count("llmbench history prune --future") == 1
    assert (
        out
        == f"nothing to remove: no session from before {datetime.now(UTC) - timedelta(days=90000):%Y-%m-%d}\n"
    )
    assert "give --keep AGE or --future" in call("history", "prune", code=2)[1]
    assert (
        "would remove 1 verdict, 1 session, 1 run"
        in call("history", "prune", "--future", "--dry-run")[0]
    )
    assert (
        "of 2099-12-31; 1 session stays"
        in call("history", "prune", "--future", "--yes")[0]
    )
    assert call("history", "prune", "--future", "--yes") == (
        "nothing to remove: no session that begins later than now\n",
        "",
    )


def test_prune_with_a_clock_set_to_1970_reports_that_no_session_would_stay(
    store: StoreLocation,
) -> None:
    """All sessions are after 1970, so none would remain."""
    judge(store, NOW, outcome(7.4, 3))
    behind = store.until(datetime(1970, 1, 1, tzinfo=UTC))
    assert prune.measure_extent(behind, None, future=True).stay == 0


def test_damaged_session_options_in_history_leave_the_verdicts_readable(
    store: StoreLocation,
) -> None:
    judge(store, NOW, red(4))
    with connect(store, writes=True) as connection:
        connection.exec_driver_sql("UPDATE llmb_session SET options = '{'")
    problems: dict[str, str] = {}
    (day,) = daily_verdicts.read_verdicts(store, None, problems)
    assert problems == {}
    assert daily_verdicts.read_session(store, day.session, problems).options == ()
    assert list(problems) == [day.session]
    fleet = collect_days(store, None, NOW)
    assert [line for line in fleet.damaged if "JSONDecodeError" in line] == list(
        fleet.damaged
    )
