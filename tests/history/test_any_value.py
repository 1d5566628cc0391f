"""Any value in any column of a store is read, or reported as an error by each command."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support import builders
from support.node_histories import add_job
from support.remembered import ID, document, outcome, restore, session, trials

from pytest_llmbench.cli import main as cli
from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history import record, tables
from pytest_llmbench.history.paired_noise import OPTIONAL
from pytest_llmbench.history.store import StoreLocation, locate_store
from pytest_llmbench.session.node_history import search_history
from pytest_llmbench.session.session_history import SessionHistory

NOW = datetime.now(UTC)
"""The commands read the clock: a night has to be one of the last days."""

COLUMNS = [
    (table.name, column.name)
    for metadata in (tables.METADATA, OPTIONAL)
    for table in metadata.tables.values()
    for column in table.columns
]

VALUES = (
    *(
        "NULL",
        "''",
        "x'ff00'",
        "CAST(x'ff' AS TEXT)",
        "char(1)",
        "9e999",
        "-9e999",
        "-1",
        "0",
        "9223372036854775807",
    ),
    *(
        "'word'",
        "'{'",
        "'[]'",
        "'{}'",
        "'{\"a\": 1}'",
        "'[1]'",
        "'[null]'",
        "'[[]]'",
        "'[{}]'",
        "'\"x\"'",
        "'null'",
    ),
    *(
        "'NaN'",
        "'[NaN]'",
        "'[1e999]'",
        f"'{'[' * 3000}'",
        f"'{'9' * 400}'",
        "'{\"mfu\": [1, 2]}'",
    ),
    *("'2025-13-99'", "'9999-12-31 23:59:59.999999'", "'0001-01-01 00:00:00.000000'"),
    '\'[{"job_id": "1009", "purpose": "measure"}]\'',
    '\'[{"job_id": 1, "purpose": "measure", "nodes": 7, "step_seconds": "x", "started": 5}]\'',
)

PER_COLUMN = 2

CASES = [
    (*column, VALUES[(number * PER_COLUMN + further) % len(VALUES)])
    for number, column in enumerate(COLUMNS)
    for further in range(PER_COLUMN)
]
CASES += [
    ("llmb_run", "environment", value) for value in ("'{\"a\": 1}'", "'{\"a\": null}'")
]
"""Each column with some values, and each value in some columns."""

COMMANDS = (
    ("history", "list"),
    ("history", "show", ID),
    ("history", "export", "-o", "all.parquet"),
    ("history", "prune", "--keep=5d", "--dry-run"),
    ("site", "-o", "site"),
    ("nodes",),
    (
        "compare",
        f"{(NOW - timedelta(days=2)).date()}",
        f"{(NOW - timedelta(days=1)).date()}",
    ),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store of launched days, the last of which failed, a configuration without a
    run, and an A/B."""
    location = StoreLocation("h.db", tmp_path_factory.mktemp("sound") / "h.db")
    noise = {"run_to_run": 0.01, "degrees_of_freedom": 3.0}
    other = {
        **outcome(None, key=Key("grok1", "314b", "25.05", "gb200", "fp8", 128)),
        "trials": trials(noise),
    }
    for day in range(10):
        start = NOW - timedelta(days=10 - day)
        run = add_job(
            _date(outcome(7.4 + day / 1000 + (day == 9), day), start),
            {f"n{day % 3}"},
            7.4,
        )
        red = (
            {"status": "failed", "verdict": "REGRESSION", "reason": "slower-than-bound"}
            if day == 9
            else {}
        )
        record.write(
            location, document({**run, **red}, other, began=start + timedelta(hours=2))
        )
    assert location.file is not None
    return location.file.read_bytes()


def _date(described: dict[str, Any], started: datetime) -> dict[str, Any]:
    return {**described, "run": {**described["run"], "started": started.isoformat()}}


def open_as_session(folder: Path) -> None:
    """Open a store as a session does, and store a session as it does at its end."""
    location = locate_store("h.db", folder).until(NOW)
    tonight = _date(outcome(7.4, 12), NOW)
    with suppress(HistoryError):
        history = SessionHistory(location, [builders.KEY])
        history.add_daily_runs(restore(tonight))
        history.read_noise("eos", [ID])
        search_history(location, None)
        history.store(session(tonight, began=NOW), [folder])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case[:2]))
def test_any_value_in_the_store_is_read_or_reported(
    sound: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, str, str],
) -> None:
    table, column, value = case
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h.db").write_bytes(sound)
    with closing(sqlite3.connect("h.db")) as file, suppress(sqlite3.IntegrityError):
        file.execute(
            f"UPDATE {table} SET {column} = {value} WHERE rowid = (SELECT max(rowid) FROM {table})"  # noqa: S608
        )
        file.commit()
    for command in COMMANDS:
        code = cli.main([*command, "--history", "h.db"])
        printed, error = capsys.readouterr()
        assert "Traceback" not in error, command
        assert code in (0, 1, 2, 3)
        assert code != 2 or error.startswith("llmbench: ")
        assert printed or error
    open_as_session(tmp_path)
