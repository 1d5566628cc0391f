"""Unsaved sessions: saved completely in a file, and stored later only if unchanged."""

from __future__ import annotations

import copy
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.node_histories import add_job
from support.outcomes import list_schema_errors
from support.remembered import outcome, session

from pytest_llmbench.cli import main as cli
from pytest_llmbench.core.errors import ReportError
from pytest_llmbench.history import queries
from pytest_llmbench.history.record import prepare, write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.report.document import read
from pytest_llmbench.report.outcome_documents import SessionDocument
from pytest_llmbench.session.unsaved import make_record, read_unsaved, write_unsaved

EARLIER = Path(__file__).parent / "earlier"
"""Files as sessions of the program of a day left them: on 2026-11-22 without hashes, on
2026-11-27 and 28 with them, and what --llmb-json wrote on that last day."""

GONE = object()
"""For a key that is not there."""

DEEP: Any = "the end"
for _ in range(40):
    DEEP = [DEEP]

AS_TOLD = "give an unchanged file"

WRONG: list[tuple[str, Any, str]] = [
    ("session", [], "Expected `object`, got `array` - at `$.session`"),
    ("session.id", "", "$.session.id"),
    ("session.host", "a\0b", "session.host: found 'a\\x00b', which a database cannot"),
    (
        "session.host",
        "\ud800",
        "session.host: found '\\ud800', which a database cannot",
    ),
    ("session.options", "-q", "Expected `array`, got `str` - at `$.session.options`"),
    ("session.options", [1], "Expected `str`, got `int` - at `$.session.options[0]`"),
    ("started", "yesterday", "'yesterday'"),
    ("started", "2025-11-20T06:00:00", "$.session.started"),
    (
        "started",
        "0001-01-01T00:00:00+14:00",
        "expected a time that can be converted to UTC",
    ),
    ("outcomes", [], "it contains no verdict"),
    ("outcomes.1", None, "Expected `object`, got `null` - at `$.outcomes[1]`"),
    ("outcomes.1.configuration.gpus", 2**31, "$.verdicts[1].configuration.gpus"),
    ("outcomes.1.configuration.gpus", True, "$.outcomes[1].configuration.gpus"),
    ("outcomes.1.status", "fine", "$.verdicts[1].status"),
    ("outcomes.1.statistic_seconds", "7.5", "$.outcomes[1].statistic_seconds"),
    ("outcomes.1.expected_seconds", 10**400, "verdicts[1].expected_seconds: found hun"),
    ("outcomes.1.log_difference", float("inf"), "found inf, expected a smaller number"),
    ("outcomes.1.metrics.mfu", 0.25, "$.outcomes[1].metrics[...]"),
    ("outcomes.1.window_seconds", [7.4, "x"], "$.outcomes[1].window_seconds[1]"),
    ("outcomes.1.log_sha256", ["abc"], "$.verdicts[1].log_sha256[0]"),
    ("outcomes.1.run", GONE, "missing required field `run` - at `$.outcomes[1]`"),
    ("outcomes.1.run.started", 1762135200, "$.outcomes[1].run.started"),
    ("outcomes.1.environment", {"driver": 580}, "$.outcomes[1].environment[...]"),
    (
        "outcomes.1.environment",
        {"\ud800": ""},
        "a name in verdicts[1].run.environment: found '\\ud800'",
    ),
    ("outcomes.1.jobs.0.nodes", DEEP, "$.outcomes[1].jobs[0].nodes[0]"),
    (
        "outcomes.1.jobs.0.text",
        "\udcff",
        "verdicts[1].run.jobs[0].text: found '\\udcff",
    ),
]

EARLIER_WRONG: list[tuple[str, Any, str]] = [
    ("session.started", "yesterday", "$.session.started"),
    (
        "session.started",
        "0001-01-01T00:00:00+14:00",
        "expected a time that can be converted to UTC",
    ),
    ("verdicts", [], "it contains no verdict"),
    ("verdicts.1", None, "Expected `object`, got `null` - at `$.verdicts[1]`"),
    ("verdicts.0.counts", 1, "Expected `bool`, got `int` - at `$.verdicts[0].counts`"),
    (
        "verdicts.0.run_seconds",
        -7.5,
        "found -7.5, expected a positive time because `counts` is true",
    ),
    ("verdicts.0.metrics.mfu", [1, 2, 3], "$.verdicts[0].metrics[...]"),
    ("verdicts.0.run", GONE, "missing required field `run` - at `$.verdicts[0]`"),
    ("verdicts.0.run.jobs", [DEEP], "found more than 16 levels of values"),
    ("verdicts.0.run.jobs", [{"a": "\udcff"}], "run.jobs[0].a: found '\\udcff'"),
]


def change(kept: dict[str, Any], key_path: str, value: Any) -> dict[str, Any]:
    """Return a document with another value at a path."""
    changed = copy.deepcopy(kept)
    *above, last = key_path.split(".")
    piece: Any = changed
    for name in above:
        piece = piece[int(name) if isinstance(piece, list) else name]
    key: Any = int(last) if isinstance(piece, list) else last
    if value is GONE:
        del piece[key]
    else:
        piece[key] = value
    return changed


@pytest.fixture
def kept() -> SessionDocument:
    """An unsaved session: two verdicts, one with a job and a log."""
    launched = {
        **add_job(outcome(7.5, 1), {"n1"}, 7.4),
        "log_sha256": ["ab" * 32, None],
        "environment": {"driver": None},
    }
    return session(outcome(7.4), launched)


def refuse_file(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Add an invalid file with a valid one. Returns the error; neither file is stored."""
    good = write_unsaved(session(outcome(7.4, 9)), [folder])
    bad, store = folder / "bad.json", folder / "h.db"
    bad.write_text(text)
    words = ["history", "add", str(good), str(bad), "--history", str(store)]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"llmbench: {bad}: ")
    assert error.count("\n") == 1
    location = StoreLocation("h.db", store)
    assert not store.exists() or not queries.list_everything(location)
    return error


def name_cases(cases: list[tuple[str, Any, str]]) -> list[str]:
    return [f"{key_path}-{number}" for number, (key_path, _, _) in enumerate(cases)]


@pytest.mark.parametrize("wrong", WRONG, ids=name_cases(WRONG))
def test_file_with_wrong_value_is_refused_completely(
    tmp_path: Path,
    kept: SessionDocument,
    wrong: tuple[str, Any, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    key_path, value, error = wrong
    plain = json.loads(write_unsaved(kept, [tmp_path]).read_text())
    if value == float("inf"):  # as JSON can write it
        text = json.dumps(change(plain, key_path, 4711)).replace("4711", "1e999")
    else:
        text = json.dumps(change(plain, key_path, value))
    assert error in refuse_file(tmp_path, text, capsys)


@pytest.mark.parametrize("wrong", EARLIER_WRONG, ids=name_cases(EARLIER_WRONG))
def test_invalid_value_in_a_session_file_of_an_earlier_version_is_reported(
    tmp_path: Path, wrong: tuple[str, Any, str], capsys: pytest.CaptureFixture[str]
) -> None:
    key_path, value, error = wrong
    plain = json.loads((EARLIER / "unsaved_20261128.json").read_text())
    text = json.dumps(change(plain, key_path, value))
    assert error in refuse_file(tmp_path, text, capsys)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"schema": 1', b"\xff\xfe", b"7", b'{"session": 1}'],
)
def test_file_that_is_no_unsaved_session_is_reported(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "any.json").write_bytes(content)
    with pytest.raises(
        ReportError,
        match=r"any\.json: .*use the file named llmb-history-unsaved-\*\.json",
    ):
        read_unsaved(tmp_path / "any.json")
    with pytest.raises(ReportError, match="not a regular file"):
        read_unsaved(tmp_path)


def test_history_add_refuses_a_file_of_llmb_json(tmp_path: Path) -> None:
    """The file does not name a history, so the session would be stored twice."""
    with pytest.raises(
        ReportError, match="it has no 'session', unlike a document of --llmb-json"
    ):
        read_unsaved(EARLIER / "session_20261128.json")


@pytest.mark.slow
def test_session_read_from_an_unsaved_file_is_stored_and_exported(
    location: StoreLocation,
    tmp_path: Path,
    kept: SessionDocument,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With keys of a later version, and numbers that are not finite."""
    first, second = kept.outcomes
    assert second.kind == "configuration"
    numbers = replace(second, log_difference=float("nan"))
    path = write_unsaved(replace(kept, outcomes=(first, numbers)), [tmp_path])
    plain = json.loads(path.read_text())
    plain["outcomes"][0] |= {"run": None, "verdict": "MISSING", "new": [1]}
    plain["session"]["new"] = plain["outcomes"][1]["window"]["new"] = "later"
    path.write_text(json.dumps(plain))
    prepare(location)
    assert write(location, read_unsaved(path)) == 2
    rows = queries.list_everything(location)
    assert [row["verdict"] for row in rows] == ["MISSING", "PASS"]
    (job,) = rows[1]["jobs"]
    assert (job["nodes"], rows[1]["log_sha256"], rows[1]["log_difference"]) == (
        ["n1"],
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
            location.url or str(location.file),
        ]
        assert cli.main(arguments) == 0, capsys.readouterr().err


def test_unsaved_session_file_matches_the_schema_of_the_json_report(
    tmp_path: Path, kept: SessionDocument
) -> None:
    """`llmbench chat` reads it like any other document."""
    path = write_unsaved(kept, [tmp_path])
    assert list_schema_errors(json.loads(path.read_text())) == []
    assert read(path).session == kept.session
    assert read_unsaved(path) == make_record(kept)


@pytest.mark.parametrize("day", ["20261122", "20261127", "20261128"])
def test_unsaved_session_file_of_an_earlier_version_is_stored(
    location: StoreLocation, day: str
) -> None:
    path = EARLIER / f"unsaved_{day}.json"
    verdicts = json.loads(path.read_text())["verdicts"]
    assert write(location, read_unsaved(path)) == len(verdicts)
    rows = queries.list_everything(location)
    fields = ("verdict", "reason", "status", "text", "counts", "run_seconds")
    numbers = ("expected_seconds", "log_difference", "metrics", "step_seconds")
    for name in (*fields, *numbers, "baseline", "tolerance", "item"):
        assert [row[name] for row in rows] == [verdict[name] for verdict in verdicts]
    for row, verdict in zip(rows, verdicts, strict=True):
        assert row["log_sha256"] == verdict.get("log_sha256", [])
        run = verdict["run"] or dict.fromkeys(("log", "environment", "job_id"))
        assert [row[name] for name in ("log", "environment", "job_id")] == [
            run[name] for name in ("log", "environment", "job_id")
        ]


def test_json_report_of_an_earlier_version_is_read() -> None:
    path = EARLIER / "session_20261128.json"
    plain = json.loads(path.read_text())
    document_read = read(path)
    assert document_read.count == plain["count"]
    assert [one.id for one in document_read.outcomes] == [
        one["id"] for one in plain["outcomes"]
    ]


def test_unsaved_session_is_written_to_the_next_folder_after_a_disk_error(
    tmp_path: Path, kept: SessionDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, here = tmp_path / "gone", tmp_path / "here"
    here.mkdir()
    remove = os.unlink

    def unlink(path: Any, *arguments: Any, **options: Any) -> None:
        if str(gone) in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        remove(path, *arguments, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    assert read_unsaved(write_unsaved(kept, [gone, here])) == make_record(kept)
