"""What a session could not store: kept whole in a file, and stored later only as a
session left it."""

from __future__ import annotations

import copy
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.remembered import document, outcome

from pytest_llmbench.cli import main as cli
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history import queries
from pytest_llmbench.history.record import prepare, write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.history.unsaved import read_unsaved, write_unsaved

GONE = object()
"""For a key that is not there."""

JOB = {
    "job_id": "7",
    "purpose": "measure",
    "nodes": ["n1"],
    "step_seconds": 7.4,
    "attempt": 1,
}

DEEP: Any = "the end"
for _ in range(40):
    DEEP = [DEEP]

WRONG: list[tuple[str, Any, str]] = [
    ("session", [], "session: found [], expected an object"),
    ("session.id", "", "session.id: found '', expected a text that is not empty"),
    (
        "session.started",
        "yesterday",
        "session.started: found 'yesterday', expected a time with its zone",
    ),
    ("session.started", "0001-01-01T00:00:00+14:00", "expected a time with its zone"),
    ("session.host", "a\0b", "session.host: found 'a\\x00b', expected a text"),
    ("session.host", "\ud800", "session.host: found '\\ud800', expected a text"),
    ("session.options", "-q", "session.options: found '-q', expected a list"),
    ("session.options", [1], "session.options[0]: found 1, expected a text"),
    ("verdicts", [], "verdicts: found [], expected at least one"),
    ("verdicts.1", None, "verdicts[1]: found None, expected an object"),
    (
        "verdicts.1.configuration.gpus",
        2**31,
        "found 2147483648, expected a whole number",
    ),
    ("verdicts.1.configuration.gpus", True, "found True, expected a whole number"),
    (
        "verdicts.1.status",
        "fine",
        "verdicts[1].status: found 'fine', expected passed, failed or skipped",
    ),
    ("verdicts.1.counts", 1, "verdicts[1].counts: found 1, expected true or false"),
    (
        "verdicts.1.run_seconds",
        "7.5",
        "verdicts[1].run_seconds: found '7.5', expected a number or null",
    ),
    (
        "verdicts.1.run_seconds",
        -7.5,
        "verdicts[1].run_seconds: found -7.5, expected a time, since it counts",
    ),
    (
        "verdicts.1.expected_seconds",
        10**400,
        "verdicts[1].expected_seconds: found 1000",
    ),
    ("verdicts.1.log_difference", float("inf"), "counts"),
    (
        "verdicts.1.metrics.mfu",
        0.25,
        "verdicts[1].metrics.mfu: found 0.25, expected a list of a number and its dev",
    ),
    ("verdicts.1.metrics.mfu", [1, 2, 3], "verdicts[1].metrics.mfu: found [1, 2, 3]"),
    ("verdicts.1.step_seconds", [7.4, "x"], "verdicts[1].step_seconds[1]: found 'x'"),
    (
        "verdicts.1.log_sha256",
        ["abc"],
        "verdicts[1].log_sha256[0]: found 'abc', expected a sha256 or null",
    ),
    ("verdicts.1.run", GONE, "verdicts[1].run: not there"),
    ("verdicts.1.run.started", 1762135200, "verdicts[1].run.started: found 1762135200"),
    (
        "verdicts.1.run.environment",
        {"driver": 580},
        "verdicts[1].run.environment.driver: found 580",
    ),
    (
        "verdicts.1.run.environment",
        {"\ud800": ""},
        "a name in verdicts[1].run.environment: found '\\ud800'",
    ),
    ("verdicts.1.run.jobs", [JOB, DEEP], "verdicts[1].run.jobs[1]: found [[[["),
    (
        "verdicts.1.run.jobs",
        [{"text": "\udcff"}],
        "verdicts[1].run.jobs[0]: found {'text': '\\udcff'}",
    ),
]


def change(kept: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """Return a document with another value at a place."""
    changed = copy.deepcopy(kept)
    *above, last = place.split(".")
    part: Any = changed
    for name in above:
        part = part[int(name) if isinstance(part, list) else name]
    key: Any = int(last) if isinstance(part, list) else last
    if value is GONE:
        del part[key]
    else:
        part[key] = value
    return changed


@pytest.fixture
def kept() -> dict[str, Any]:
    """What a session left: two verdicts, one of them with a job and a log."""
    launched = {
        **outcome(7.5, 1),
        "jobs": [JOB],
        "log_sha256": ["ab" * 32, None],
        "environment": {"driver": None},
    }
    return document(outcome(7.4), launched)


@pytest.mark.parametrize(
    "wrong",
    WRONG,
    ids=[f"{place}-{number}" for number, (place, _, _) in enumerate(WRONG)],
)
def test_wrong_value_is_named_and_nothing_is_stored(
    tmp_path: Path,
    kept: dict[str, Any],
    wrong: tuple[str, Any, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not even the good document that was given with it."""
    place, value, told = wrong
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(document(outcome(7.4, 9))))
    if value == float("inf"):  # as JSON can say it
        text = json.dumps(change(kept, place, 4711)).replace("4711", "1e999")
        told = f"{place.replace('.1.', '[1].')}: found inf, expected a number or null"
    else:
        text = json.dumps(change(kept, place, value))
    bad.write_text(text)
    store = tmp_path / "h.db"
    assert (
        cli.main(["history", "add", str(good), str(bad), "--history", str(store)]) == 2
    )
    error = capsys.readouterr().err
    assert error.startswith(f"llmbench: {bad}: ")
    assert told in error
    assert error.count("\n") == 1
    assert not store.exists() or not queries.list_everything(
        StoreLocation("h.db", store)
    )


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"schema": 1', b"\xff\xfe", b"", b"7", b'{"session": 1}'],
)
def test_file_without_a_document_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "any.json").write_bytes(content)
    with pytest.raises(
        HistoryError,
        match=r"any\.json: no .* give a file that llmb-history-unsaved-\*\.json names",
    ):
        read_unsaved(tmp_path / "any.json")
    with pytest.raises(HistoryError, match="no regular file"):
        read_unsaved(tmp_path)


@pytest.mark.slow
def test_unsaved_session_is_stored_and_exported(
    place: StoreLocation,
    tmp_path: Path,
    kept: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With what a later version may have added, and numbers that were none."""
    kept["verdicts"][0] |= {
        "run": None,
        "verdict": "MISSING",
        "counts": False,
        "run_seconds": None,
        "new": [1],
    }
    kept["session"]["new"] = kept["verdicts"][1]["window"]["new"] = "later"
    kept["verdicts"][1]["log_difference"] = float("nan")
    path = write_unsaved(kept, [tmp_path])
    prepare(place)
    assert write(place, read_unsaved(path)) == 2
    rows = queries.list_everything(place)
    assert [row["verdict"] for row in rows] == ["MISSING", "PASS"]
    assert (rows[1]["jobs"], rows[1]["log_sha256"], rows[1]["log_difference"]) == (
        [JOB],
        ["ab" * 32, None],
        None,
    )
    for kind in ("csv", "json", "parquet"):
        output = str(tmp_path / f"h.{kind}")
        arguments = [
            "history",
            "export",
            "-o",
            output,
            "--history",
            place.url or str(place.file),
        ]
        assert cli.main(arguments) == 0, capsys.readouterr().err


def test_lost_disk_does_not_prevent_the_next_folder(
    tmp_path: Path, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, here = tmp_path / "gone", tmp_path / "here"
    here.mkdir()
    remove = os.unlink

    def unlink(path: Any, *arguments: Any, **options: Any) -> None:
        if str(gone) in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        remove(path, *arguments, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    assert read_unsaved(write_unsaved(kept, [gone, here])) == kept
