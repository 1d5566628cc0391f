"""Reading a history in batches, from both kinds of stores."""

from __future__ import annotations

from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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


NUMBERS = st.none() | st.integers(-3, 3) | st.floats(-1, 1)
METRICS = st.lists(
    st.dictionaries(
        st.sampled_from(["mfu", "mfu_sd", "tflops", "x"]), st.tuples(NUMBERS, NUMBERS)
    ),
    max_size=6,
)
NOISES = st.dictionaries(st.sampled_from(["ab_cluster", "ab_run_to_run"]), NUMBERS)


@given(METRICS, st.data())
def test_further_columns_equal_those_of_the_rows(
    metrics: list[dict[str, Any]], data: st.DataObject
) -> None:
    noises = [data.draw(NOISES) for _ in metrics]
    rows = [
        {**noise, **batches.flatten_metrics(values)}
        for noise, values in zip(noises, metrics, strict=True)
    ]
    expected = {
        name: [row.get(name) for row in rows]
        for name in dict.fromkeys(chain.from_iterable(rows))
    }
    columns = batches.list_further_columns(noises, metrics)
    assert list(columns) == list(expected)
    assert columns == expected
