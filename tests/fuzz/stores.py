"""Fuzz targets of stored files: the history, the journal, unsaved sessions and the
cache."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from fuzz.laws import (
    call,
    empty_folder,
    refusals,
    require,
    require_printable,
    require_types,
    written,
)
from fuzz.log_seeds import logs
from support import builders, job_specs
from support.log_laws import find_problems
from support.remembered import document, outcome, restore, session

from pytest_llmbench.core.errors import HistoryError, LaunchError, ReportError
from pytest_llmbench.core.job_records import JobStatus
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.run_records import StoredRun
from pytest_llmbench.core.stall_limits import StallLimits
from pytest_llmbench.history import queries, record
from pytest_llmbench.history.store import StoreLocation, locate_store, refuse_damaged
from pytest_llmbench.launch.jobs import journal as database
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.plan.suspect_nodes import SuspectNodes, restore_suspects
from pytest_llmbench.launch.schedulers.process import Process
from pytest_llmbench.logs.log_reader import parse_blocks, read_ending
from pytest_llmbench.logs.reading.codec import (
    FileReading,
    FileToRead,
    ReadResult,
    pack,
    unpack,
)
from pytest_llmbench.logs.reading.consistency import is_consistent
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.logs.sources.files import FileState
from pytest_llmbench.report.document import render_session
from pytest_llmbench.report.outcome_documents import SessionDocument, make_plain
from pytest_llmbench.session.session_history import SessionHistory
from pytest_llmbench.session.unsaved import make_record, read_unsaved

SUPPORT = Path(__file__).parents[1] / "support"
PAGE_BYTES = 512
NIGHTS = 3


def load_dump(name: str) -> bytes:
    """Build a database with small pages from a dump in `tests/support/stored`."""
    with closing(sqlite3.connect(":memory:")) as made:
        made.executescript((SUPPORT / "stored" / name).read_text("utf-8"))
        return _shrink(made)


def _shrink(file: sqlite3.Connection) -> bytes:
    file.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    file.commit()
    file.execute("VACUUM")
    data: bytes = file.serialize()
    return data


# --- the history ----------------------------------------------------------------------


@cache
def make_store() -> bytes:
    """Build a store of several days."""
    with empty_folder() as folder:
        place = StoreLocation("h.db", folder / "h.db")
        for day in range(NIGHTS):
            record.write(place, make_record(make_session(day)))
        with closing(sqlite3.connect(folder / "h.db")) as file:
            return _shrink(file)


def make_session(night: int) -> SessionDocument:
    """Build a session with a run, and a configuration without a run."""
    began = datetime(2025, 11, 20, 6, tzinfo=UTC) + timedelta(days=night)
    return session(
        outcome(7.4 + night / 100, night),
        outcome(None, key=job_specs.KEY),
        began=began,
        identifier=f"session-{night}",  # the same in each process
    )


def store_seeds() -> list[bytes]:
    """Return stores of this version and an earlier one, and an empty file."""
    return [make_store(), load_dump("history.sql"), b""]


def check_store(data: bytes) -> None:
    """A file is a store for commands and sessions alike, or each refuses it by name.

    Values have their declared types. A readable store can be exported and written to,
    and no verdict is lost.
    """
    with empty_folder() as folder:
        path = folder / "h.db"
        path.write_bytes(data)
        with refusals(HistoryError, naming="h.db"):
            place = locate_store("h.db", folder)
            refuse_damaged(place)
            before = _read_exports(path) if data else []
            history = SessionHistory(place, [builders.KEY])
            for runs in history.past.values():
                for run in runs:
                    _check_run(run)
            described = make_plain(
                history.add_daily_runs(restore(outcome(7.4, NIGHTS)))
            )
            json.dumps(described, allow_nan=False)
            require(
                record.write(place, document(described)) == 1,
                "a stored verdict that is not counted",
            )
            after = _read_exports(path)
            rows_before = list(
                map(_select_verdict, before)
            )  # of the run a later session may know more
            require(
                [row for row in map(_select_verdict, after) if row in rows_before]
                == rows_before,
                "a verdict is gone",
            )
            require(
                not before or len(after) == len(before) + 1,
                "a stored verdict that is not exported",
            )


def _select_verdict(row: dict[str, Any]) -> list[Any]:
    return [
        row[name]
        for name in (
            "session",
            "item",
            "verdict",
            "reason",
            "text",
            "run_seconds",
            "step_time_seconds",
        )
    ]


def _check_run(run: StoredRun) -> None:
    require_types(run, StoredRun)
    numbers = (
        run.statistic_seconds,
        run.step_time_seconds,
        run.expected_seconds,
        run.log_difference,
    )
    require(
        all(number is None or math.isfinite(number) for number in numbers),
        "a stored run with what is no number",
    )
    require(run.started.tzinfo is not None, "a stored run that began in no zone")


def _read_exports(path: Path) -> list[dict[str, Any]]:
    """Return the `export` output of a store, "" if it is refused."""
    text = call("history", "export", "--format=json", "--history", path, naming="h.db")
    rows: list[dict[str, Any]] = (
        json.loads(text, parse_constant=_refuse) if text else []
    )
    if rows:
        lines = call(
            "history", "export", "--format=csv", "--history", path, naming="h.db"
        )
        require(
            len(list(csv.DictReader(StringIO(lines)))) == len(rows),
            "a table with other rows than the document",
        )
        listed = call("history", "list", "--history", path, naming="h.db")
        require_printable(listed, "a list")
        for number in listed.split()[1:2]:
            require_printable(
                call("history", "show", number, "--history", path, naming="h.db"),
                "a page",
            )
        call(
            "history",
            "prune",
            "--keep=400d",
            "--dry-run",
            "--yes",
            "--history",
            path,
            naming="h.db",
        )
    return rows


def _refuse(constant: str) -> None:
    require(False, f"{constant} in a document that every reader of JSON is to accept")


def unsaved_seeds() -> list[bytes]:
    """Return unsaved sessions of this version and an earlier one."""
    earlier = sorted((SUPPORT.parent / "history" / "earlier").glob("unsaved_*.json"))
    unsaved = render_session(make_session(NIGHTS))
    return [unsaved, *(path.read_bytes() for path in earlier)]


def check_unsaved(data: bytes) -> None:
    """An invalid file is refused by name. A valid one is stored, listed, shown and
    exported."""
    sound = make_store()
    with empty_folder() as folder:
        file = folder / "left.json"
        file.write_bytes(data)
        with refusals(ReportError, HistoryError, naming="left.json"):
            unsaved = read_unsaved(file)
            (folder / "h.db").write_bytes(sound)
            place = locate_store("h.db", folder)
            before = queries.list_everything(place)
            try:
                added = record.write(place, unsaved)
                known = unsaved.session.id in {row["session"] for row in before}
                wanted = 0 if known else len(unsaved.verdicts)
                require(
                    added == wanted, "a document of which not every verdict was stored"
                )
                require(
                    record.write(place, unsaved) == 0,
                    "a document that is stored twice",
                )
                rows = _read_exports(folder / "h.db")
                require(
                    len(rows) == len(before) + added,
                    "a stored document that cannot be exported",
                )
                for verdict in unsaved.verdicts:
                    for runs in queries.read_stored_runs(
                        place, [verdict.configuration.id]
                    ).values():
                        list(map(_check_run, runs))
            except HistoryError as error:
                raise AssertionError(
                    f"a document that was taken is refused by the store: {error}"
                ) from error


# --- the journal ----------------------------------------------------------------------

NOW = datetime(2026, 11, 21, 5, 45, tzinfo=UTC)


@cache
def make_journal() -> bytes:
    """Build a journal with a job in each state."""
    with empty_folder() as folder:
        journal = Journal(folder / ".llmbench")
        journal.begin(
            "nightly", NOW, {"plan": json.dumps(LaunchSettings().to_journal())}
        )
        for number in range(1, 5):
            journal.intend(
                job_specs.job_spec(Path("/recipes"), via="sbatch"), NOW, attempt=number
            )
        journal.record_process(1, Process(4711, "host boot pid:[1] 99", "mark"))
        journal.record_submission(1, "4711", Path("/logs"), NOW)
        journal.record_status(
            1, job_specs.running("n1", started=NOW, elapsed_seconds=1.5)
        )
        journal.record_submission(2, "4712", None, NOW)
        journal.record_end(2, job_specs.ended(ended=NOW), "", NOW)
        journal.record_failure(3, "no", NOW)
        journal.close()
        with closing(sqlite3.connect(folder / ".llmbench" / database.NAME)) as file:
            for column in (
                "session.id",
                "job.session",
                "note.session",
            ):  # the same in each process
                table, _, name = column.partition(".")
                file.execute(f"UPDATE {table} SET {name} = '20261121-0545-3f9a'")  # noqa: S608 (names of our own)
            file.execute("UPDATE job SET token = 'token' || number")
            return _shrink(file)


def journal_seeds() -> list[bytes]:
    """Return journals of this version and an earlier one."""
    return [make_journal(), load_dump("launch.sql"), b""]


def check_journal(data: bytes) -> None:
    """A journal is resumed, or refused with a reason. Its jobs are well-typed and stay
    unchanged."""
    with empty_folder() as folder:
        home = folder / ".llmbench"
        home.mkdir()
        (home / database.NAME).write_bytes(data)
        index = folder / "index"
        index.write_text(json.dumps(["20261121-0545-3f9a", str(home)]))
        database.explain_elsewhere(index, "", folder / "another")
        journal = None
        with refusals(LaunchError, naming=""):
            journal = Journal(home)
            journal.list_unfinished()
            journal.resume()
            jobs = journal.list_jobs()
            for job in jobs:
                require_types(job, type(job))
                require(
                    database.decode_spec(database.encode_spec(job.spec)) is not None,
                    "a spec that is not kept",
                )
                require_types(journal.find_process(job.number), Process | None)
                require_types(journal.read_end(job.number), str)
                journal.record_status(
                    job.number, job_specs.running("n2", elapsed_seconds=2.0)
                )
            journal.list_live()
        if journal is not None:
            journal.close()


def check_index(data: bytes) -> None:
    """The index of sessions is optional: any content gives another folder, or none."""
    with written("index", data) as index:
        folder = index.parent
        for session in ("", "20261121-0545-3f9a"):
            database.explain_elsewhere(index, session, folder)
            with refusals(LaunchError, naming=str(folder)):
                database.require_journal(index, session, folder / "none")


def index_seeds() -> list[bytes]:
    """Return index entries of sessions."""
    lines = [
        json.dumps([f"20261121-054{number}-3f9a", f"/lustre/{number}/.llmbench"])
        for number in range(3)
    ]
    return ["\n\n".join(["", *lines, ""]).encode()]


def check_status(data: bytes) -> None:
    """A job's status in the journal is valid, or refused like a row of a journal."""
    try:
        status = database.decode_status(data.decode("utf-8", "replace"))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return
    require_types(status, JobStatus)
    require(
        database.decode_status(database.encode_status(status)) == status,
        "a status that is not kept",
    )


def status_seeds() -> list[bytes]:
    """Return statuses as stored in a journal."""
    statuses = (
        job_specs.running("n1", started=NOW),
        job_specs.ended(ended=NOW),
        job_specs.waiting(submitted=NOW),
    )
    return [database.encode_status(status).encode() for status in statuses]


def plan_seeds() -> list[bytes]:
    """Return the stored plans of launches."""
    changed = LaunchSettings(
        repeats=3,
        gpu_hours=9.0,
        stall_limit=StallLimits(2700.0),
        recipes=(("a", Path("/a")),),
    )
    named = [
        {
            "case": "a",
            "nodes": ["n7"],
            "others": ["n1", "n2"],
            "text": "by the history n7 is slow",
        }
    ]
    notes = [
        {**settings.to_journal(), "named": named[:number]}
        for number, settings in enumerate((LaunchSettings(), changed))
    ]
    return [json.dumps(note).encode() for note in notes]


def check_plan(data: bytes) -> None:
    """A stored plan is taken over by the resuming session, or refused with a reason."""
    try:
        noted = json.loads(data)
        settings = LaunchSettings(collect=True).restore_recorded(noted)
        named = restore_suspects(noted.get("named", ()))
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):
        return
    require_types(settings, LaunchSettings)
    require_types(named, tuple[SuspectNodes, ...])
    again = LaunchSettings(collect=True).restore_recorded(
        json.loads(json.dumps(settings.to_journal()))
    )
    require(again.to_journal() == settings.to_journal(), "a plan that is not kept")


# --- the cache ------------------------------------------------------------------------


def cache_seeds() -> list[bytes]:
    """Return cache contents for logs, a standard error and an unreadable file."""
    results: list[ReadResult] = [parse_blocks([log]) for log in logs()[:3]]
    results += [
        read_ending(
            Stream(
                [b"srun: error: node-1: task 3: Exited with exit code 1\n"],
                Path("any.err"),
            )
        ),
        None,
    ]
    readings = [
        FileReading(
            FileToRead(f"/runs/log-x_{number}.out", True),
            result,
            FileState(1, "ab", (2, 3)),
        )
        for number, result in enumerate(results)
    ]
    return [pack(readings), pack(readings[:1]), pack([])]


def check_cache(data: bytes) -> None:
    """Other bytes are refused or can be packed again. Used entries are consistent."""
    try:
        readings = unpack(data)
    except ValueError:
        return
    require(
        repr(unpack(pack(readings))) == repr(readings), "readings that are not kept"
    )
    for reading in filter(is_consistent, readings):
        require_types(reading.file, FileToRead)
        require_types(reading.result, ReadResult)
        problems = (
            find_problems(reading.result)
            if isinstance(reading.result, ParsedLog)
            else []
        )
        require(not problems, "; ".join(problems))
