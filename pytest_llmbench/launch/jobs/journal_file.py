"""The SQLite file of the journal: opened and checked, its errors in words, and its
rows, without values of secrets."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    EndedBy,
    Job,
    JobSpec,
    JobStatus,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.redaction import MASK
from pytest_llmbench.core.stall_limits import Stall, StallPlace
from pytest_llmbench.launch.job_secrets import find_secret_values, make_digest, redact
from pytest_llmbench.launch.jobs.process import Process
from pytest_llmbench.launch.schedulers import HERE
from pytest_llmbench.launch.schedulers.job_states import OWN
from pytest_llmbench.launch.schedulers.submission import find_state

FOLDER = ".llmbench"  # where nobody names another
NAME = "launch.db"
SCHEMA = 1
PATIENCE_SECONDS = 20.0  # how long another process may hold the file
# a shorter secret is hidden in its variable alone: in another text it means nothing, as
# `1` does
SHORTEST = 4

# the default rollback journal, not WAL: project folders lie on network file systems,
# where WAL does not work
TABLES = """
CREATE TABLE session (
    id TEXT PRIMARY KEY, label TEXT NOT NULL, started TEXT NOT NULL, finished TEXT
);
CREATE TABLE job (
    number INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL REFERENCES session (id), token TEXT NOT NULL UNIQUE,
    spec TEXT NOT NULL, attempt INTEGER NOT NULL, repeat INTEGER NOT NULL,
    pid INTEGER, process_started TEXT, mark TEXT,
    job_id TEXT NOT NULL DEFAULT '', log_folder TEXT, status TEXT,
    problem TEXT NOT NULL DEFAULT '', text TEXT,
    intended TEXT NOT NULL, submitted TEXT, over TEXT, submission TEXT
);
CREATE INDEX job_of_session ON job (session);
CREATE TABLE note (
    session TEXT NOT NULL REFERENCES session (id), name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (session, name)
);
"""

MOVE = "move it away; jobs that it followed may still run: look with squeue --me, and in the jobs folder beside it"
REMEDIES = {
    "READONLY": "make the file and its folder writable, and see that nothing removes them while pytest runs",
    "FULL": "the disk or the quota is full: make room",
    "IOERR": "the disk or the quota may be full, or the file system has a fault: make room, or name another "
    "folder with --llmb-journal=DIR",
    "CANTOPEN": "see that the folder exists, and that it and the file can be read and written",
    "PERM": "see that the file can be read and written",
    "BUSY": f"another process held it for {PATIENCE_SECONDS:g} s: try again",
    "PROTOCOL": "the file system does not lock files as it should: name a folder on another one: --llmb-journal=DIR",
    "NOLFS": "the file system does not hold files of this size: name a folder on another one: --llmb-journal=DIR",
    "CORRUPT": f"the file is damaged: {MOVE}",
    "NOTADB": f"the file is damaged, or not a journal: {MOVE}",
}


def open_database(folder: Path) -> sqlite3.Connection:
    """Return the journal in `folder`, made with its folder if there is none;
    LaunchError if it cannot be used."""
    try:
        own = (
            folder.name == FOLDER or not folder.exists()
        )  # a folder of somebody else may hold what git is to see
        (folder / "sessions").mkdir(parents=True, exist_ok=True)
        ignore = folder / ".gitignore"
        if own and not ignore.exists():
            ignore.write_text("*\n", encoding="ascii")
    except OSError as error:
        where = "name a folder that can be written and has room: --llmb-journal=DIR"
        raise LaunchError(
            f"{folder} cannot be made: {error.strerror}; {where}"
        ) from None
    file = folder / NAME
    with explain_errors(file):
        database = sqlite3.connect(file, timeout=PATIENCE_SECONDS, isolation_level=None)
    database.row_factory = sqlite3.Row
    try:
        _prepare(database, file)
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def open_transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Do all or nothing, while no other process begins, resumes or writes. One inside
    another is a part of it."""
    if database.in_transaction:
        yield
        return
    file = Path(database.execute("PRAGMA database_list").fetchone()[2])
    with explain_errors(file), database:
        database.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def explain_errors(file: Path) -> Iterator[None]:
    """Turn what SQLite finds wrong with a file into a LaunchError with what to do."""
    try:
        yield
    except UnicodeDecodeError:  # SQLite names a table of its schema, or quotes it
        raise LaunchError(
            f"{file}: the names in it are no text; {REMEDIES['CORRUPT']}"
        ) from None
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.ProgrammingError):
            raise
        name = getattr(error, "sqlite_errorname", "") or ""
        remedy = next(
            (
                text
                for code, text in REMEDIES.items()
                if name.startswith(f"SQLITE_{code}")
            ),
            MOVE,
        )
        raise LaunchError(
            f"{file}: {error}{f' ({name})' if name else ''}; {remedy}"
        ) from None


def _prepare(database: sqlite3.Connection, file: Path) -> None:
    with open_transaction(database):
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        empty = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version == 0 and empty:
            for statement in filter(str.strip, TABLES.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {SCHEMA}")
        elif version == SCHEMA:
            columns = {row[1] for row in database.execute("PRAGMA table_info(job)")}
            if (
                "submission" not in columns
            ):  # an earlier version made the file, and may still write it: names suffice
                database.execute("ALTER TABLE job ADD COLUMN submission TEXT")
        else:
            raise LaunchError(
                f"{file} has version {version}, expected {SCHEMA}: another version of pytest-llmbench wrote it, which "
                f"can still follow its jobs, or another program; use that version, or {MOVE}"
            )
        damage = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if damage != "ok":
        raise LaunchError(f"{file} is damaged ({damage}): {MOVE}")


# --- jobs as rows ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A job with what only the journal knows of it."""

    job: Job
    process: Process | None = None
    text: str | None = None  # None until it has ended

    @property
    def over(self) -> bool:
        """Whether it has ended, or is not followed, since its submission gave no id."""
        return self.text is not None or self.job.refused


def find_job_folder(folder: Path, session: str, number: int, case_id: str) -> Path:
    """Return the folder of one job in that of the journal."""
    return folder / "jobs" / session / f"{number}-{case_id}"


def insert_job(
    database: sqlite3.Connection, row: tuple[str, str, str, int, int, str]
) -> int:
    """Add a job that is about to be submitted: session, token, spec, attempt, repeat,
    time; return its number."""
    statement = "INSERT INTO job (session, token, spec, attempt, repeat, intended) VALUES (?, ?, ?, ?, ?, ?)"
    return database.execute(statement, row).lastrowid or 0


def update_job(
    database: sqlite3.Connection,
    entry: JournalEntry,
    submitted: str | None,
    over: str | None,
) -> bool:
    """Write an entry over its row, with the times that are given; False where there is
    no such row."""
    job, process = entry.job, entry.process
    statement = """UPDATE job SET pid = ?, process_started = ?, mark = ?, job_id = ?, log_folder = ?, status = ?,
                   problem = ?, text = ?, submission = ?, submitted = coalesce(submitted, ?), over = coalesce(over, ?)
                   WHERE number = ?"""
    row = (
        *(
            (process.pid, process.started, process.mark)
            if process
            else (None, None, None)
        ),
        job.job_id,
        None if job.log_folder is None else str(job.log_folder),
        None if job.status is None else encode_status(job.status),
        job.problem,
        entry.text,
        job.submission.value,
        submitted,
        over,
        job.number,
    )
    return database.execute(statement, row).rowcount == 1


def read_jobs(
    database: sqlite3.Connection, folder: Path, session: str
) -> dict[int, JournalEntry]:
    """Return the jobs of a session by number; LaunchError for a row that cannot be
    read."""
    rows = database.execute(
        "SELECT * FROM job WHERE session = ? ORDER BY number", (session,)
    ).fetchall()
    return {row["number"]: _read_entry(row, folder) for row in rows}


def _read_entry(row: sqlite3.Row, folder: Path) -> JournalEntry:
    try:
        spec = decode_spec(row["spec"])
        job = Job(
            number=row["number"],
            token=row["token"],
            spec=spec,
            folder=find_job_folder(folder, row["session"], row["number"], spec.case_id),
            attempt=row["attempt"],
            repeat=row["repeat"],
            job_id=row["job_id"],
            log_folder=None if row["log_folder"] is None else Path(row["log_folder"]),
            status=None if row["status"] is None else decode_status(row["status"]),
            problem=row["problem"],
            submission=_read_submission(
                row["submission"], row["problem"], row["job_id"]
            ),
        )
        process = (
            None
            if row["pid"] is None
            else Process(row["pid"], row["process_started"], row["mark"])
        )
        entry = JournalEntry(job, process, row["text"])
        _refuse_other_types(entry)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise LaunchError(
            f"{folder / NAME}: job number {row['number']} of session {row['session']} cannot be read ({error}): it was "
            "written by another version of pytest-llmbench, or is damaged; end its jobs by hand (squeue --me), and "
            "start anew"
        ) from None
    return entry


def _refuse_other_types(entry: JournalEntry) -> None:
    """Raise TypeError for a value that no session wrote: a column of SQLite holds
    anything."""
    job, process = entry.job, entry.process
    numbers = [job.number, job.attempt, job.repeat, *([process.pid] if process else [])]
    texts = [
        job.token,
        job.job_id,
        job.problem,
        entry.text or "",
        *([process.started, process.mark] if process else []),
    ]
    for value, kind in [
        *((number, int) for number in numbers),
        *((text, str) for text in texts),
    ]:
        if type(value) is not kind:
            raise TypeError(f"found {value!r:.40}")


def _read_submission(state: str | None, problem: str, job_id: str) -> SubmissionState:
    # an earlier version, which may still write the file, says it in `problem` alone and
    # leaves the state as it was: taken for INTENDED, a job that it found UNCERTAIN
    # would be submitted twice
    if state in (None, SubmissionState.INTENDED, SubmissionState.SUBMITTED):
        return find_state(problem, job_id)
    return SubmissionState(state)


def encode_spec(spec: JobSpec, values: Iterable[str] = ()) -> str:
    """Return a spec as JSON: MASK stands for its secrets, and for these secret `values`
    in its command and variables.

    Other fields are kept as they are: with another case id or folder a job would not be
    found again.
    """
    long = {
        value
        for value in (*values, *find_secret_values(spec))
        if len(value) >= SHORTEST
    }
    environment = [
        (name, MASK if name in spec.secrets and value else redact(value, long))
        for name, value in spec.environment
    ]
    command = [redact(argument, long) for argument in spec.command]
    digests = [
        (name, make_digest(value))
        for name, value in spec.environment
        if name in spec.secrets and value
    ]
    build = [redact(argument, long) for argument in spec.build]
    changed = {
        "environment": environment,
        "command": command,
        "build": build,
        "digests": digests,
    }
    return json.dumps({**asdict(spec), **changed}, default=_write_value)


def decode_spec(text: str) -> JobSpec:
    """Return the spec; ValueError, TypeError, KeyError or AttributeError for a text
    that is none."""
    fields = json.loads(text)
    if "scheduler_options" not in fields:  # an earlier version wrote it
        fields["scheduler_options"] = fields.pop("sbatch_options", ())
        if fields["via"] == HERE:
            fields["gpus_per_node"] = 0
    decoded = {
        "key": Key(**fields["key"]),
        "purpose": Purpose(fields["purpose"]),
        "directory": Path(fields["directory"]),
        "environment": tuple((name, value) for name, value in fields["environment"]),
        "log_folders": tuple(map(Path, fields["log_folders"])),
        **{name: tuple(fields[name]) for name in ("command", "secrets", "exclude")},
        "digests": tuple(
            (name, text) for name, text in fields.get("digests", ())
        ),  # nor has it these
        "scheduler_options": tuple(fields["scheduler_options"]),
        "build": tuple(fields.get("build", ())),
        "checkout": Path(fields["checkout"]) if fields.get("checkout") else None,
    }
    return JobSpec(**{**fields, **decoded})


def encode_status(status: JobStatus) -> str:
    """Return a status as JSON."""
    return json.dumps(asdict(status), default=_write_value)


def decode_status(text: str) -> JobStatus:
    """Return the status; errors as of `decode_spec`."""
    fields = json.loads(text)
    written = {name: fields[name] for name in ("submitted", "started", "ended")}
    times = {
        name: time and datetime.fromisoformat(time) for name, time in written.items()
    }
    # a journal of an earlier version says in words alone who ended a job
    by_words = EndedBy.PYTEST if fields["reason"].startswith(OWN) else EndedBy.OTHERS
    codes = {
        "phase": Phase(fields["phase"]),
        "ended_by": EndedBy(fields.get("ended_by", by_words)),
    }
    stall = fields.get("stall")  # a journal of an earlier version says nothing of it
    stall = stall and Stall(**{**stall, "place": StallPlace(stall["place"])})
    earlier = tuple(fields.get("earlier_seconds", ()))
    tuples = {"nodes": tuple(fields["nodes"]), "earlier_seconds": earlier}
    return JobStatus(**{**fields, **times, **codes, **tuples, "stall": stall})


def _write_value(value: object) -> str:
    """Return what JSON does not know as text: a time or a path."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
