"""The noise of A/Bs in a store, also in older stores and for older programs."""

from __future__ import annotations

import math
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect
from support import builders
from support.remembered import ID, document, outcome, session, trials

from pytest_llmbench.core.errors import HistoryError, ReportError
from pytest_llmbench.history import prune, queries
from pytest_llmbench.history.paired_noise import NEWEST, read_noises
from pytest_llmbench.history.record import prepare, write
from pytest_llmbench.history.store import StoreLocation, connect, locate_store
from pytest_llmbench.report.outcome_documents import SessionDocument
from pytest_llmbench.session.session_history import SessionHistory
from pytest_llmbench.session.unsaved import make_record, read_unsaved, write_unsaved


def compared(
    sigma: float | None,
    degrees: float = 3.0,
    *,
    cluster: str = "eos",
    days: int = 0,
    **of_outcome: Any,
) -> SessionDocument:
    """Return a session with an A/B that measured this noise."""
    noise = (
        None if sigma is None else {"run_to_run": sigma, "degrees_of_freedom": degrees}
    )
    described = {**outcome(None, **of_outcome), "trials": trials(noise, cluster)}
    return session(described, began=builders.NOW + timedelta(days=days))


@pytest.mark.slow
def test_noise_is_read_per_configuration_and_cluster(location: StoreLocation) -> None:
    write(location, make_record(compared(0.002 * (1 + 2**-50), 5.0)))
    write(location, make_record(compared(0.003, days=1)))
    write(location, make_record(compared(0.01, cluster="other")))
    assert (
        queries.read_stored_runs(location, [ID]) == {}
    )  # no run of a comparison is a daily run
    assert read_noises(location, "eos", [ID]) == {
        ID: ((0.003, 3.0), (0.002 * (1 + 2**-50), 5.0))
    }
    assert (
        read_noises(location, "eos", ["another"])
        == read_noises(location, "", [ID])
        == {}
    )


@pytest.mark.slow
def test_noise_is_read_from_the_last_ten_ab_tests(location: StoreLocation) -> None:
    for number in range(NEWEST + 2):
        write(location, make_record(compared(0.001 * (1 + number), days=number)))
    write(location, make_record(compared(0.001 * (NEWEST + 2), days=NEWEST + 2)))
    noises = read_noises(location, "eos", [ID])[ID]
    assert [noise.sigma for noise in noises] == [
        0.001 * number for number in range(NEWEST + 2, 2, -1)
    ]


@pytest.mark.parametrize(
    "told", [compared(None), compared(0.0), compared(0.002, cluster="")]
)
def test_unknown_noise_is_not_stored(tmp_path: Path, told: SessionDocument) -> None:
    """Printed step times that are too quantised to differ are not free of noise."""
    location = locate_store(str(tmp_path / "h.db"), tmp_path)
    assert write(location, make_record(told)) == 1
    assert read_noises(location, "eos", [ID]) == {}
    with connect(location, writes=False) as connection:
        assert "llmb_noise" not in inspect(connection).get_table_names()


def test_store_gets_the_noise_table_with_first_comparison(
    location: StoreLocation,
) -> None:
    """A store of an earlier version gets the table with its first A/B."""
    assert read_noises(location, "eos", [ID]) == {}
    prepare(location)
    write(location, document(outcome(7.4)))
    assert read_noises(location, "eos", [ID]) == {}
    prune.prune(location, builders.NOW + timedelta(hours=1), dry_run=True)
    write(location, make_record(compared(0.003, 5.0, days=1)))
    assert read_noises(location, "eos", [ID])[ID] == ((0.003, 5.0),)
    daily, comparison = queries.list_everything(location)
    assert "ab_cluster" not in daily
    exported = [
        comparison[name]
        for name in ("ab_cluster", "ab_run_to_run", "ab_degrees_of_freedom")
    ]
    assert exported == ["eos", 0.003, 5.0]


def test_noise_is_pruned_with_its_session(location: StoreLocation) -> None:
    write(location, make_record(compared(0.003)))
    write(location, make_record(compared(0.004, days=2)))
    prune.prune(location, builders.NOW + timedelta(days=1), dry_run=True)
    assert len(read_noises(location, "eos", [ID])[ID]) == 2
    prune.prune(location, builders.NOW + timedelta(days=1), dry_run=False)
    assert read_noises(location, "eos", [ID])[ID] == ((0.004, 3.0),)


def test_older_program_can_remove_a_session_with_noise(location: StoreLocation) -> None:
    """The older program does not know the table."""
    write(location, make_record(compared(0.003)))
    with connect(location, writes=True) as connection:
        connection.exec_driver_sql("DELETE FROM llmb_verdict")
        connection.exec_driver_sql("DELETE FROM llmb_session")
    assert read_noises(location, "eos", [ID]) == {}


@pytest.mark.parametrize(
    "damage",
    ["sigma = -1.0", "sigma = 9e999", "sigma = 'x'", "degrees_of_freedom = 0.0"],
)
def test_impossible_noise_is_reported(tmp_path: Path, damage: str) -> None:
    location = locate_store(str(tmp_path / "h.db"), tmp_path)
    write(location, make_record(compared(0.003)))
    with connect(location, writes=True) as connection:
        connection.exec_driver_sql(f"UPDATE llmb_noise SET {damage}")  # noqa: S608 (four texts)
    for read in (
        partial(read_noises, location, "eos", [ID]),
        partial(queries.list_everything, location),
    ):
        with pytest.raises(HistoryError, match="contains an invalid value"):
            read()


def test_unsaved_session_keeps_its_noise(
    location: StoreLocation, tmp_path: Path
) -> None:
    path = write_unsaved(compared(0.003), [tmp_path])
    write(location, read_unsaved(path))
    assert read_noises(location, "eos", [ID])[ID] == ((0.003, 3.0),)
    text = path.read_text().replace('"run_to_run": 0.003', '"run_to_run": -1')
    path.write_text(text)
    with pytest.raises(ReportError, match=r"verdicts\[0\].noise.sigma"):
        read_unsaved(path)


def test_noises_are_pooled_by_degrees_of_freedom(tmp_path: Path) -> None:
    location = locate_store(str(tmp_path / "h.db"), tmp_path)
    for sigma, degrees in ((0.002, 5.0), (0.004, 3.0)):
        write(location, make_record(compared(sigma, degrees)))
    noise = SessionHistory(location, [builders.KEY]).read_noise("eos", [ID])[ID]
    assert noise.sigma == pytest.approx(math.sqrt((5 * 0.002**2 + 3 * 0.004**2) / 8))
    assert (noise.degrees_of_freedom, noise.source, noise.measured) == (
        8.0,
        "2 earlier A/Bs",
        True,
    )
