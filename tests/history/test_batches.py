"""Reading a history in batches, from both kinds of stores."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.remembered import START, document, outcome

from pytest_llmbench.history import batches, queries
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation


def test_export_batches_contain_each_session_once_in_order(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "VERDICTS", 2)
    for day in (3, 0, 1, 2):
        write(location, document(outcome(7.4, day), began=START + timedelta(days=day)))
    listed = batches.list_batches(location.until(START + timedelta(days=9)))
    assert [batch.verdicts for batch in listed] == [2, 2]
    rows = [
        row
        for batch in listed
        for row in queries.list_everything(location, batch.sessions)
    ]
    assert [row["judged"] for row in rows] == [
        START + timedelta(days=day) for day in range(4)
    ]
    assert batches.find_further_columns(location, listed, {})
