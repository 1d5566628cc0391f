"""Reading the verdicts of a site by columns, compared with reading them by rows."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from sqlalchemy import update
from support.remembered import START, document, outcome

from pytest_llmbench.history import daily_verdicts
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation, connect
from pytest_llmbench.history.stored_verdicts import StoredVerdict
from pytest_llmbench.history.tables import RUN

TOKEN = "hf_" + "aB3dE6gH9j" * 4


def write_days(location: StoreLocation) -> None:
    """Store runs with all kinds of MFU, a secret, and a verdict without a run."""
    metrics: tuple[dict[str, float | None], ...] = (
        {"mfu": 0.4},
        {"mfu": None, "mfu_logged": 0.3},
        {"mfu_logged": 0.2},
        {},
    )
    for day, values in enumerate(metrics):
        described: dict[str, Any] = {
            **outcome(7.4, day),
            "metrics": {
                name: {"value": value, "standard_deviation": None, "unit": ""}
                for name, value in values.items()
            },
            "environment": {"driver": "570", "note": TOKEN},
        }
        write(location, document(described, began=START + timedelta(days=day)))
    write(location, document(outcome(None), began=START + timedelta(days=9)))
    with connect(location, writes=True) as connection:
        columns = {
            "environment": json.dumps({"driver": "570", "hf_token": TOKEN}),
            "nodes": '["n1", "n2"]',
        }
        connection.execute(update(RUN).where(RUN.c.id == 1).values(columns))


def read_by_rows(
    location: StoreLocation, damaged: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> list[StoredVerdict]:
    def refuse(*_: object) -> NoReturn:
        raise TypeError

    with monkeypatch.context() as patched:
        patched.setattr(daily_verdicts, "iterate_columns", refuse)
        return daily_verdicts.read_verdicts(location, None, damaged)


@pytest.mark.parametrize("latest_day", [9, 0])
def test_verdicts_by_columns_equal_those_by_rows(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch, latest_day: int
) -> None:
    monkeypatch.setattr(daily_verdicts, "ROWS", 2)
    write_days(location)
    in_time = location.until(START + timedelta(days=latest_day))
    damaged: dict[str, str] = {}
    by_columns = daily_verdicts.read_verdicts(in_time, None, damaged)
    assert repr(by_columns) == repr(read_by_rows(in_time, damaged, monkeypatch))
    assert len(by_columns) == (5 if latest_day == 9 else 2)
    assert TOKEN not in repr([verdict.environment for verdict in by_columns])
    assert not damaged


def test_only_invalid_verdicts_are_omitted(location: StoreLocation) -> None:
    write_days(location)
    with connect(location, writes=True) as connection:
        connection.exec_driver_sql(
            "UPDATE llmb_verdict SET metrics = '{\"mfu\": 1}' WHERE id = 2"
        )
    damaged: dict[str, str] = {}
    verdicts = daily_verdicts.read_verdicts(location, None, damaged)
    assert [verdict.mfu for verdict in verdicts] == [0.4, 0.2, None, None]
    (problem,) = damaged.values()
    assert "TypeError" in problem
