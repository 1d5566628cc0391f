"""`llmbench history export`, compared with a table made of all rows at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.remembered import START, document, outcome, trials

from pytest_llmbench.cli import main as cli
from pytest_llmbench.history import batches, queries, verdict_columns
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation, connect
from pytest_llmbench.tools.stored_runs import export_command as export

NOISE = {"run_to_run": 0.01, "degrees_of_freedom": 3.0}


def with_metrics(day: int, **values: float | None) -> dict[str, Any]:
    document_run = outcome(7.4, day)
    return {
        **document_run,
        "metrics": {
            name: {"value": value, "standard_deviation": None, "unit": ""}
            for name, value in values.items()
        },
    }


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreLocation:
    """A history whose sessions have different columns.

    There are verdicts without a run or value, integers, an A/B test and extra metrics.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batches, "VERDICTS", 1)
    monkeypatch.setattr(export, "ROW_GROUP", 2)
    location = StoreLocation("h.db", tmp_path / "h.db")
    sessions: Sequence[dict[str, Any]] = (
        {**outcome(None), "metrics": {}},
        with_metrics(1, whole=3, both=1, late=None),
        {
            **with_metrics(2, whole=4, both=1.5, late=None),
            "text": 'a "text", with\nlines',
        },
        {
            **with_metrics(3, whole=2**70, late=0.25),
            "environment": {"driver": "580"},
            "trials": trials(NOISE),
        },
        {**with_metrics(4, own=1.0), "window_seconds": [7.4, None, 7.5]},
    )
    for day, entry in enumerate(sessions):
        write(location, document(entry, began=START + timedelta(days=day)))
    write(
        location, document(with_metrics(5, late=2.0), began=START)
    )  # same start as another session, but stored last
    return location


def make_frame(location: StoreLocation) -> pd.DataFrame:
    """Build the table of all rows at once, with the types that pandas infers."""
    rows = []
    for row in queries.list_everything(location):
        cells = {name: value for name, value in row.items() if name != "metrics"}
        for name in queries.NESTED:
            cells[name] = json.dumps(cells[name])
        for name in export.TIMES:
            cells[name] = cells[name] and cells[name].isoformat()
        steps = [
            float("nan") if value is None else value for value in cells["step_seconds"]
        ]
        rows.append(
            {**cells, "step_seconds": steps, **batches.flatten_metrics(row["metrics"])}
        )
    frame = pd.DataFrame(rows).astype(dict.fromkeys(export.WHOLE, "Int64"))
    whole = frame["metric_whole"]
    return frame.assign(metric_whole=whole.astype(float))


def call(*words: str, code: int = 0) -> None:
    assert cli.main(["history", "export", "--history", "h.db", *words]) == code


@pytest.mark.slow
def test_csv_equals_the_table_of_all_rows(store: StoreLocation, tmp_path: Path) -> None:
    call("-o", "h.csv")
    assert (tmp_path / "h.csv").read_text() == make_frame(store).to_csv(index=False)


@pytest.mark.slow
def test_parquet_parts_share_one_schema(store: StoreLocation, tmp_path: Path) -> None:
    """The first part has no run, no metric and no text of an A/B test."""
    call("-o", "h.parquet")
    read, frame = pd.read_parquet(tmp_path / "h.parquet"), make_frame(store)
    for name in export.TIMES:
        frame[name] = pd.to_datetime(frame[name], utc=True).astype(
            "datetime64[us, UTC]"
        )
    assert list(read.columns) == list(frame.columns)
    steps = [[*map(str, cells)] for cells in read["step_seconds"]]
    assert steps == [[*map(str, cells)] for cells in frame["step_seconds"]]
    other_columns = [name for name in frame if name != "step_seconds"]
    filled = [name for name in other_columns if frame[name].notna().any()]
    pd.testing.assert_frame_equal(read[filled], frame[filled], check_dtype=False)
    assert {name: str(kind) for name, kind in read[filled].dtypes.items()} == {
        name: str(kind) for name, kind in frame[filled].dtypes.items()
    }
    assert (
        read[[name for name in other_columns if name not in filled]]
        .isna()
        .all(axis=None)
    )


@pytest.mark.slow
def test_integer_metrics_stay_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batches, "VERDICTS", 1)
    for day in range(3):
        write(
            StoreLocation("h.db", tmp_path / "h.db"),
            document(with_metrics(day, peak=day, part=day / 2)),
        )
    call("-o", "h.parquet")
    assert [
        str(kind)
        for kind in pd.read_parquet("h.parquet")[["metric_peak", "metric_part"]].dtypes
    ] == [
        "int64",
        "float64",
    ]


@pytest.mark.slow
def test_json_equals_the_list_of_all_rows(
    store: StoreLocation, capsys: pytest.CaptureFixture[str]
) -> None:
    call("--format", "json")
    text = capsys.readouterr().out
    rows = json.loads(text)
    assert text == f"{json.dumps(rows, indent=1)}\n"
    assert [row["verdict"] for row in rows] == [
        row["verdict"] for row in queries.list_everything(store)
    ]
    call("--format", "jsonl")
    assert capsys.readouterr().out == "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.mark.slow
def test_export_reads_the_history_in_parts(
    store: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    read = verdict_columns.read_columns

    def count(*arguments: Any) -> verdict_columns.VerdictColumns:
        verdicts = read(*arguments)
        sizes.append(len(verdicts.metrics))
        return verdicts

    monkeypatch.setattr(verdict_columns, "read_columns", count)
    call("-o", "h.csv")
    assert sizes == [2, 1, 1, 1, 1]  # two sessions started together


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h.csv", "h.json", "h.jsonl", "h.parquet"])
def test_failed_export_keeps_the_older_file(
    store: StoreLocation, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last part contains an invalid value."""
    call("-o", name)
    before = (tmp_path / name).read_bytes()
    with connect(store, writes=True) as connection:
        connection.exec_driver_sql(
            "UPDATE llmb_verdict SET verdict = x'ff' WHERE id = 5"
        )
    call("-o", name, code=2)
    assert "contains an invalid value" in capsys.readouterr().err
    assert (tmp_path / name).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [*sorted(("h.db", name))]


@pytest.mark.slow
def test_parquet_is_written_to_a_pipe(store: StoreLocation, tmp_path: Path) -> None:
    import os
    import threading

    received: list[bytes] = []
    os.mkfifo(tmp_path / "pipe")
    reader = threading.Thread(
        target=lambda: received.append((tmp_path / "pipe").read_bytes())
    )
    reader.start()
    call("--format", "parquet", "-o", "pipe")
    reader.join(10)
    assert len(pd.read_parquet(BytesIO(received[0]))) == len(
        queries.list_everything(store)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h.csv", "h.json", "h.jsonl", "h.parquet"])
def test_empty_store_exports_a_table_without_rows(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    location = StoreLocation("h.db", tmp_path / "h.db")
    from pytest_llmbench.history.record import prepare

    prepare(location)
    for _ in range(2):  # the second export replaces the first
        call("-o", name)
    write(location, document(outcome(7.4)))
    call("-o", name)
    assert (tmp_path / name).stat().st_size > 100
