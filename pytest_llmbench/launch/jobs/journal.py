"""The journal of submitted jobs, from which a later session can continue.

Records what a session planned, did and observed. A session stays open until it is
finished, and is locked by its process. The rows contain no secret values. An index in
the user's cache lists the folders of sessions; without the index only hints in messages
are missing.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.formatting import join_first
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
from pytest_llmbench.core.stall_limits import Stall, StallPosition
from pytest_llmbench.launch.file_lock import acquire_lock, is_locked
from pytest_llmbench.launch.job_secrets import find_secret_values, make_digest, redact
from pytest_llmbench.launch.schedulers.job_states import OWN, drop_passing
from pytest_llmbench.launch.schedulers.process import Process
from pytest_llmbench.launch.schedulers.registry import (
    HERE,
    load_scheduler,
    name_jobs_inquiries,
)
from pytest_llmbench.launch.schedulers.submission import find_state

FOLDER = ".llmbench"  # the default folder
NAME = "launch.db"
SCHEMA = 1
PATIENCE_SECONDS = 20.0  # how long to wait for another process to release the file
# a shorter secret, such as `1`, is masked only in its variable: in other text it would
# match by chance
SHORTEST_MASKED = 4

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

REMEDIES = {
    "READONLY": "make the file and its folder writable, and check that nothing removes them while pytest runs",
    "FULL": "the disk or the quota is full: free some space",
    "IOERR": "the disk or the quota may be full, or the file system is faulty: free some space, or choose another "
    "folder with --llmb-journal=DIR",
    "CANTOPEN": "check that the folder exists, and that it and the file are readable and writable",
    "PERM": "make the file readable and writable",
    "BUSY": f"another process locked it for {PATIENCE_SECONDS:g} s: try again",
    "PROTOCOL": "the file system does not support file locks: choose a folder on another file system: --llmb-journal=DIR",
    "NOLFS": "the file system does not support files of this size: choose a folder on another file system: --llmb-journal=DIR",
    "CORRUPT": "the file is damaged: {move}",
    "NOTADB": "the file is damaged, or not a journal: {move}",
}


def open_database(folder: Path) -> sqlite3.Connection:
    """Open the journal in `folder`, or create both.

    A folder of the journal's own also gets a .gitignore. Raises LaunchError if the
    journal cannot be used.
    """
    try:
        # an existing folder of the user may contain files that git tracks
        is_ours = folder.name == FOLDER or not folder.exists()
        (folder / "sessions").mkdir(parents=True, exist_ok=True)
        ignore = folder / ".gitignore"
        if is_ours and not ignore.exists():
            ignore.write_text("*\n", encoding="ascii")
    except OSError as error:
        remedy = "Choose a writable folder with free space: --llmb-journal=DIR"
        raise LaunchError(
            f"cannot create {folder}: {error.strerror}. {remedy}"
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
    """Run a transaction that locks out other processes.

    A nested transaction is part of the outer one.
    """
    if database.in_transaction:
        yield
        return
    _, _, path = database.execute("PRAGMA database_list").fetchone()
    file = Path(path)
    with explain_errors(file), database:
        database.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def explain_errors(file: Path) -> Iterator[None]:
    """Convert SQLite errors of a file into a LaunchError with a remedy."""
    try:
        yield
    except UnicodeDecodeError:  # raised for damaged names in the schema
        remedy = _find_remedy("SQLITE_CORRUPT")
        raise LaunchError(
            f"{file}: its names of tables or columns are not text; {remedy}"
        ) from None
    except sqlite3.ProgrammingError:  # an error of this program
        raise
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        code = f" ({name})" if name else ""
        raise LaunchError(f"{file}: {error}{code}; {_find_remedy(name)}") from None


def _find_remedy(error_name: str) -> str:
    """Return the remedy for an SQLite error, such as `SQLITE_IOERR_WRITE`."""
    matching = (
        remedy
        for name, remedy in REMEDIES.items()
        if error_name.startswith(f"SQLITE_{name}")
    )
    remedy = next(matching, "{move}")
    return remedy.format(move=_advise_moving())


def _advise_moving() -> str:
    """Return the advice to move a damaged journal away, and to check its jobs."""
    return (
        "move it away. Its jobs may still run: check "
        f"{name_jobs_inquiries()}, and the jobs folder next to it"
    )


def _prepare(database: sqlite3.Connection, file: Path) -> None:
    """Create or check the tables of a journal.

    Raises LaunchError for another version or a damaged file.
    """

    def read_value(statement: str) -> Any:
        """Return the first value of the first row."""
        value, *_ = database.execute(statement).fetchone()
        return value

    with open_transaction(database):
        version = int(read_value("PRAGMA user_version"))
        is_empty = read_value("SELECT count(*) FROM sqlite_master") == 0
        if version == 0 and is_empty:
            for statement in filter(str.strip, TABLES.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {SCHEMA}")
        elif version == SCHEMA:
            columns = {
                name for _, name, *_ in database.execute("PRAGMA table_info(job)")
            }
            # an earlier version, which may still write, created the file
            if "submission" not in columns:
                database.execute("ALTER TABLE job ADD COLUMN submission TEXT")
        else:
            raise LaunchError(
                f"{file} has version {version}, expected {SCHEMA}: another version of pytest-llmbench wrote it, "
                f"or another program. Use that version to follow its jobs, or {_advise_moving()}"
            )
        damage = read_value("PRAGMA integrity_check(1)")
    if damage != "ok":
        raise LaunchError(f"{file} is damaged ({damage}): {_advise_moving()}")


# --- rows -----------------------------------------------------------------------------


class JournalEntry(Struct, frozen=True):
    """A job with the fields that only the journal needs."""

    job: Job
    process: Process | None = None
    text: str | None = None  # how it ended; None until then

    @property
    def is_over(self) -> bool:
        """True if the job has ended, or was not submitted."""
        return self.text is not None or self.job.refused


def find_job_folder(folder: Path, session: str, number: int, case_id: str) -> Path:
    """Return the folder of a job in the folder of the journal."""
    return folder / "jobs" / session / f"{number}-{case_id}"


def insert_job(
    database: sqlite3.Connection, row: tuple[str, str, str, int, int, str]
) -> int:
    """Insert a job that is about to be submitted, and return its number.

    `row` consists of session, token, spec, attempt, repeat and time.
    """
    statement = "INSERT INTO job (session, token, spec, attempt, repeat, intended) VALUES (?, ?, ?, ?, ?, ?)"
    return database.execute(statement, row).lastrowid or 0


def update_job(
    database: sqlite3.Connection,
    entry: JournalEntry,
    submitted: str | None,
    over: str | None,
) -> bool:
    """Update the row of an entry, and set the times that are not set yet.

    `submitted` and `over` are the times of its submission and end, or None. Returns
    False if the row is missing.
    """
    job, process = entry.job, entry.process
    process_values: tuple[Any, ...] = (None, None, None)
    if process:
        process_values = (process.pid, process.started, process.mark)
    statement = """UPDATE job SET pid = ?, process_started = ?, mark = ?, job_id = ?, log_folder = ?, status = ?,
                   problem = ?, text = ?, submission = ?, submitted = coalesce(submitted, ?), over = coalesce(over, ?)
                   WHERE number = ?"""
    row = (
        *process_values,
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
    """Read the jobs of a session, by number.

    Raises LaunchError if a row cannot be read.
    """
    rows = database.execute(
        "SELECT * FROM job WHERE session = ? ORDER BY number", (session,)
    ).fetchall()
    return {row["number"]: _read_entry(row, folder) for row in rows}


def _read_entry(row: sqlite3.Row, folder: Path) -> JournalEntry:
    """Read a job from its row. Raises LaunchError if the row is invalid."""
    try:
        log_folder, status = row["log_folder"], row["status"]
        spec = decode_spec(row["spec"])
        job = Job(
            number=row["number"],
            token=row["token"],
            spec=spec,
            folder=find_job_folder(folder, row["session"], row["number"], spec.case_id),
            attempt=row["attempt"],
            repeat=row["repeat"],
            job_id=row["job_id"],
            log_folder=None if log_folder is None else Path(log_folder),
            status=None if status is None else decode_status(status),
            problem=row["problem"],
            submission=_read_submission(
                row["submission"], row["problem"], row["job_id"]
            ),
        )
        process = None
        if row["pid"] is not None:
            process = Process(row["pid"], row["process_started"], row["mark"])
        entry = JournalEntry(job, process, row["text"])
        _check_types(entry)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise LaunchError(
            f"{folder / NAME}: job number {row['number']} of session {row['session']} cannot be read ({error}): it was "
            "written by another version of pytest-llmbench, or is damaged. Cancel its jobs manually "
            f"({name_jobs_inquiries()}), and start a new session"
        ) from None
    return entry


def _check_types(entry: JournalEntry) -> None:
    """Raise TypeError if a value has the wrong type. SQLite columns are untyped."""
    job, process = entry.job, entry.process
    integers = [job.number, job.attempt, job.repeat]
    texts = [job.token, job.job_id, job.problem, entry.text or ""]
    if process:
        integers.append(process.pid)
        texts += [process.started, process.mark]
    expected_types: list[tuple[object, type]] = [(number, int) for number in integers]
    expected_types += [(text, str) for text in texts]
    for value, expected_type in expected_types:
        if type(value) is not expected_type:
            raise TypeError(f"found {value!r:.40}")


def _read_submission(state: str | None, problem: str, job_id: str) -> SubmissionState:
    """Read the submission state of a job from three columns of its row."""
    # an earlier version, which may still write the file, records the state only in
    # `problem`. The column `submission` (`state`) is then empty or out of date: if an
    # UNCERTAIN job were read as INTENDED, it would be submitted twice
    if state in (None, SubmissionState.INTENDED, SubmissionState.SUBMITTED):
        return find_state(problem, job_id)
    return SubmissionState(state)


def encode_spec(spec: JobSpec, values: Iterable[str] = ()) -> str:
    """Encode a spec as JSON, with MASK in place of secrets.

    The secrets of `spec` and further secret `values` are masked in the variables, the
    command and the build command. Digests of the secrets of `spec` are added, to detect
    a changed secret later. All other fields are unchanged: with another case id or
    folder the job would not be found again.
    """
    secret_values = (*values, *find_secret_values(spec))
    masked_values = {value for value in secret_values if len(value) >= SHORTEST_MASKED}
    environment = [
        (name, MASK if name in spec.secrets and value else redact(value, masked_values))
        for name, value in spec.environment
    ]
    command = [redact(argument, masked_values) for argument in spec.command]
    digests = [
        (name, make_digest(value))
        for name, value in spec.environment
        if name in spec.secrets and value
    ]
    build = [redact(argument, masked_values) for argument in spec.build]
    masked_fields = {
        "environment": environment,
        "command": command,
        "build": build,
        "digests": digests,
    }
    return json.dumps({**asdict(spec), **masked_fields}, default=_write_value)


def decode_spec(text: str) -> JobSpec:
    """Decode a spec.

    Raises ValueError, TypeError, KeyError or AttributeError if `text` is not a spec.
    """
    fields = json.loads(text)
    if "scheduler_options" not in fields:  # written by an earlier version
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
        "scheduler_options": tuple(fields["scheduler_options"]),
        # missing in specs of earlier versions:
        "digests": tuple((name, digest) for name, digest in fields.get("digests", ())),
        "build": tuple(fields.get("build", ())),
        "checkout": Path(fields["checkout"]) if fields.get("checkout") else None,
    }
    return JobSpec(**{**fields, **decoded})


def encode_status(status: JobStatus) -> str:
    """Encode a status as JSON."""
    return json.dumps(asdict(status), default=_write_value)


def decode_status(text: str) -> JobStatus:
    """Decode a status. Raises the errors of `decode_spec`."""
    fields = json.loads(text)
    times = {}
    for name in ("submitted", "started", "ended"):
        value = fields[name]  # None if unknown
        times[name] = datetime.fromisoformat(value) if value else value
    # earlier versions record who ended a job only in the text
    ended_by_in_text = (
        EndedBy.PYTEST if fields["reason"].startswith(OWN) else EndedBy.OTHERS
    )
    stall = fields.get("stall")  # missing in earlier versions
    if stall:
        stall = Stall(**{**stall, "place": StallPosition(stall["place"])})
    decoded = {
        **times,
        "phase": Phase(fields["phase"]),
        "ended_by": EndedBy(fields.get("ended_by", ended_by_in_text)),
        "nodes": tuple(fields["nodes"]),
        "earlier_seconds": tuple(fields.get("earlier_seconds", ())),
        "stall": stall,
    }
    return JobStatus(**{**fields, **decoded})


def _write_value(value: object) -> str | dict[str, Any]:
    """Encode a record as its fields, and a time or a path as text for JSON."""
    if isinstance(value, Struct):
        return asdict(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


# --- the index of sessions ------------------------------------------------------------


MOST_SESSIONS = 50  # the newest sessions, among which unfinished ones are searched
READ_BYTES = 1 << 16  # read from the end of the index: hundreds of sessions


def record_session(index: Path | None, session: str, folder: Path) -> None:
    """Add a session to the index, if the index can be written."""
    if index is None:
        return
    line = json.dumps([session, str(folder.absolute())])
    with suppress(OSError):
        index.parent.mkdir(parents=True, exist_ok=True)
        # one short append, which no other process splits
        with index.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")  # separate it from a truncated line


def require_journal(index: Path | None, session: str, folder: Path) -> None:
    """Raise LaunchError if a folder has no journal.

    The message suggests other folders.
    """
    if (folder / NAME).exists():
        return
    problem = (
        f"there is no journal in {folder}"
        if folder.is_dir()
        else f"{folder} does not exist"
    )
    session_text = f"session {session} not found" if session else "no session found"
    raise LaunchError(
        f"{session_text}: {problem}\n{explain_elsewhere(index, session, folder)}"
    )


def explain_elsewhere(index: Path | None, session: str, folder: Path) -> str:
    """Explain how to choose another journal folder, and suggest a likely one.

    Suggests the folder `.llmbench` in `folder`, and a recent session of this user.
    """
    lines = [
        "choose the folder of the session with --llmb-journal=DIR; --llmb-submit-only prints it"
    ]
    if (folder / FOLDER / NAME).exists():
        lines.append(
            f"did you mean --llmb-journal={shlex.quote(str(folder / FOLDER))}?"
        )
    suggestion = next(_list_elsewhere(index, session, folder), None)
    if suggestion is not None:
        suggested_session, session_folder = suggestion
        lines += [
            f"session {suggested_session} is in",
            f"  --llmb-journal={shlex.quote(str(session_folder))}",
        ]
    return "\n".join(f"  {line}" for line in lines)


def _list_elsewhere(
    index: Path | None, session: str, folder: Path
) -> Iterator[tuple[str, Path]]:
    """Yield sessions of the index in other folders, newest first, with their folders.

    Yields only the requested `session`, or if it is "", the unfinished sessions.
    """
    # the message names these folders already
    named_folders = {folder.absolute(), folder.absolute() / FOLDER}
    entries = [
        (indexed_session, session_folder)
        for indexed_session, session_folder in _read_index(index)
        if session_folder not in named_folders
    ]
    if not session:  # each of these journals must be opened: limit their number
        entries = entries[-MOST_SESSIONS:]
    for indexed_session, session_folder in reversed(entries):
        if session:
            is_wanted = indexed_session == session
        else:
            is_wanted = _is_unfinished(session_folder, indexed_session)
        if is_wanted:
            yield indexed_session, session_folder


def _read_index(index: Path | None) -> list[tuple[str, Path]]:
    """Read the newest (session, folder) entries of the index, skipping damaged lines."""
    entries: list[tuple[str, Path]] = []
    lines: list[bytes] = []
    if index is not None:
        with suppress(OSError), index.open("rb") as file:
            file.seek(max(0, index.stat().st_size - READ_BYTES))
            lines = file.read().splitlines()
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):
            session, folder = json.loads(line)
            if Path(folder).is_absolute():  # else the line is damaged
                entries.append((str(session), Path(folder)))
    return entries


def _is_unfinished(folder: Path, session: str) -> bool:
    """True if a session in the journal of `folder` is unfinished.

    False if the journal cannot be read.
    """
    query = "SELECT 1 FROM session WHERE id = ? AND finished IS NULL"
    with suppress(
        sqlite3.Error, ValueError
    ):  # ValueError: the folder's name is invalid
        uri = f"{(folder / NAME).as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            return database.execute(query, (session,)).fetchone() is not None
    return False


# --- the journal ----------------------------------------------------------------------


# bytes of a configuration id: most file systems allow 255 for a name, which also
# contains the job's number
LONGEST_CASE_ID = 200


class UnfinishedSession(Struct, frozen=True):
    """A session that is not finished."""

    session: str
    unfinished_jobs: int  # the number of its unfinished jobs
    is_locked: bool  # True if a process has it locked


class Journal:
    """The journal in `folder` (`.llmbench`), and one session in it.

    `begin` or `resume` selects the session, which is locked while the journal is open.
    Every change is on disk when its method (or `write_together`) returns. All methods
    raise LaunchError if the file or the disk fails, or if a change contradicts the
    journal.

    A change that cannot be written is still kept in memory, so that a submitted job can
    be cancelled even if its id did not reach the disk.
    """

    def __init__(self, folder: Path, index: Path | None = None) -> None:
        """Open or create the journal in `folder`. `index` lists the session folders."""
        self.folder = folder
        self._index = index
        self.session = ""
        self.was_finished = False
        """True if the session was finished when it was resumed."""
        self._entries: dict[int, JournalEntry] = {}  # by job number
        self._hidden: set[str] = set()  # secret values to mask
        self._lock: int | None = None  # the file descriptor of the session's lock
        self._database: sqlite3.Connection = open_database(folder)

    # --- sessions ---------------------------------------------------------------------

    def begin(
        self, label: str, now: datetime, notes: Mapping[str, str] | None = None
    ) -> str:
        """Start a session with these notes, and return its id: `20261121-0545-3f9a`.

        `label` names the program. The session is locked, and added to the index.
        """
        self._check_free()
        # in a transaction: one process at a time may acquire or test locks
        with open_transaction(self._database):
            session = self._make_id(now)
            row = (session, redact(label, self._hidden), now.isoformat())
            self._database.execute(
                "INSERT INTO session (id, label, started) VALUES (?, ?, ?)", row
            )
            for name, value in (notes or {}).items():
                note = (session, name, redact(value, self._hidden))
                self._database.execute(
                    "INSERT INTO note (session, name, value) VALUES (?, ?, ?)", note
                )
            self._lock = self._lock_session(session)
            self.session = session  # already here, for an interrupt handler
        record_session(self._index, session, self.folder)
        return session

    def resume(self, session: str = "") -> str:
        """Resume a session, and return its id.

        The default is the newest unfinished session. A finished session stays finished
        until another job of it is planned. Raises LaunchError if the session does not
        exist, or another process has it locked.
        """
        self._check_free()
        with open_transaction(self._database):
            rows = self._database.execute(
                "SELECT id, finished IS NULL FROM session ORDER BY rowid DESC"
            ).fetchall()
            all_sessions = [identifier for identifier, _ in rows]
            unfinished = [identifier for identifier, is_open in rows if is_open]
            newest_unfinished = next(iter(unfinished), "")
            session_to_resume = session or newest_unfinished
            if session_to_resume not in all_sessions:
                raise LaunchError(self._explain_absent(session, unfinished))
            self._lock = self._lock_session(session_to_resume)
            self._entries = read_jobs(self._database, self.folder, session_to_resume)
        self.session = session_to_resume
        self.was_finished = session_to_resume not in unfinished
        return session_to_resume

    def list_unfinished(self) -> tuple[UnfinishedSession, ...]:
        """List the sessions that are not finished, newest first."""
        query = """SELECT id, (SELECT count(*) FROM job WHERE job.session = session.id AND over IS NULL)
                   FROM session WHERE finished IS NULL ORDER BY rowid DESC"""
        sessions = []
        # in a transaction: no process may acquire a lock while it is tested
        with open_transaction(self._database):
            for session, unfinished_jobs in self._database.execute(query).fetchall():
                has_lock = is_locked(self._find_lock_file(session))
                sessions.append(UnfinishedSession(session, unfinished_jobs, has_lock))
        return tuple(sessions)

    def finish(self, now: datetime) -> bool:
        """Finish the session, and return True.

        If it has live jobs, leaves the session open and returns False.
        """
        self._check_session()
        if self.list_live():
            return False
        with open_transaction(self._database):
            self._database.execute(
                "UPDATE session SET finished = ? WHERE id = ?",
                (now.isoformat(), self.session),
            )
        return True

    def close(self) -> None:
        """Release the session. An unfinished session can be resumed."""
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    # --- jobs -------------------------------------------------------------------------

    def intend(
        self, spec: JobSpec, now: datetime, attempt: int = 1, repeat: int = 1
    ) -> Job:
        """Record a job that is about to be submitted, and create its folder.

        The returned job keeps the secrets of `spec`; the file contains none. A finished
        session becomes unfinished again.
        """
        self._check_session()
        _check_case(spec.case_id)
        # `spec` may come from a recorded job, with digests of its earlier secrets
        spec = replace(spec, digests=())
        self.hide(find_secret_values(spec))
        token, encoded_spec = secrets.token_hex(8), encode_spec(spec, self._hidden)
        row = (self.session, token, encoded_spec, attempt, repeat, now.isoformat())
        with open_transaction(self._database):
            self._database.execute(
                "UPDATE session SET finished = NULL WHERE id = ?", (self.session,)
            )
            number = insert_job(self._database, row)
            folder = find_job_folder(self.folder, self.session, number, spec.case_id)
            _create_folder(folder)
        job = Job(
            number=number,
            token=token,
            spec=spec,
            folder=folder,
            attempt=attempt,
            repeat=repeat,
        )
        self._entries[number] = JournalEntry(job)
        return job

    def record_process(self, number: int, process: Process) -> None:
        """Record the process that submits a job (or is the job).

        Raises LaunchError if the job already has a process.
        """
        entry = self._find_open_entry(number)
        if entry.process is not None or entry.job.job_id:
            raise LaunchError(
                f"job number {number} was already started and is not started again"
            )
        self._store(replace(entry, process=process))

    def find_process(self, number: int) -> Process | None:
        """Return the process that submits a job (or is the job), or None."""
        return self._find_entry(number).process

    def record_submission(
        self, number: int, job_id: str, log_folder: Path | None, now: datetime
    ) -> Job:
        """Record the job id of a submission.

        Raises LaunchError if the job has another id, or another job of the session has
        this id.
        """
        entry = self._find_open_entry(number)
        if not job_id or entry.job.job_id not in ("", job_id):
            raise LaunchError(
                f"job number {number} has id {entry.job.job_id!r} and cannot change it to {job_id!r}"
            )
        unique_id = _make_unique_id(entry.job, job_id)
        for other_job in self.list_jobs():
            other_id = _make_unique_id(other_job, other_job.job_id)
            if other_job.number != number and other_id == unique_id:
                raise LaunchError(
                    f"job id {job_id} of job number {number} already belongs to job number {other_job.number}"
                )
        job = replace(
            entry.job,
            job_id=job_id,
            log_folder=log_folder,
            submission=SubmissionState.SUBMITTED,
        )
        return self._store(replace(entry, job=job), submitted=now)

    def record_failure(
        self,
        number: int,
        problem: str,
        now: datetime,
        state: SubmissionState = SubmissionState.NOT_SUBMITTED,
    ) -> Job:
        """Record that a job was not submitted, with the reason `problem`.

        `state` states whether the job may still run. Raises LaunchError if the job has
        an id.
        """
        entry = self._find_open_entry(number)
        if entry.job.job_id:
            raise LaunchError(
                f"job number {number} was submitted as {entry.job.job_id}, and cannot be recorded as not submitted"
            )
        problem = redact(problem, self._hidden) or "it was not submitted"
        job = replace(entry.job, problem=problem, submission=state)
        return self._store(replace(entry, job=job), over=now)

    def record_status(self, number: int, status: JobStatus) -> Job:
        """Record the status of a job, unless the job has ended."""
        entry = self._find_entry(number)
        if entry.is_over or entry.job.status == status:
            return entry.job
        previous = entry.job.status
        has_changed = previous is None or drop_passing(previous) != drop_passing(status)
        entry = replace(entry, job=replace(entry.job, status=status))
        if has_changed:
            return self._store(entry)
        # elapsed time alone is not worth a write per job and poll: keep it in memory
        self._entries[number] = entry
        return entry.job

    def record_end(
        self, number: int, status: JobStatus, text: str, now: datetime
    ) -> Job:
        """Record the last status of a job. Later calls for the job are ignored.

        `text` can be read with `read_end`. Raises LaunchError if the job was recorded
        as not submitted.
        """
        entry = self._find_entry(number)
        if entry.text is not None:  # its end is recorded
            return entry.job
        entry = self._find_open_entry(number)
        ended = replace(
            entry,
            job=replace(entry.job, status=status),
            text=redact(text, self._hidden),
        )
        return self._store(ended, over=now)

    def read_end(self, number: int) -> str:
        """Return the text that was passed to `record_end`, or ""."""
        return self._find_entry(number).text or ""

    def list_jobs(self) -> tuple[Job, ...]:
        """List the jobs of this session by number.

        Jobs of a resumed session contain MASK in place of secret values.
        """
        return tuple(entry.job for _, entry in sorted(self._entries.items()))

    def list_live(self) -> tuple[Job, ...]:
        """List the jobs that have neither ended nor failed to be submitted."""
        return tuple(
            job for job in self.list_jobs() if not self._entries[job.number].is_over
        )

    @contextmanager
    def write_together(self) -> Iterator[None]:
        """Write all changes in the block at its end, in one transaction.

        A write for many jobs takes no longer than for one job.
        """
        with open_transaction(self._database):
            yield

    # --- notes ------------------------------------------------------------------------

    def read_journal_value(self, name: str) -> str:
        """Return the note `name` that the session began with, or ""."""
        with explain_errors(self.folder / NAME):
            query = "SELECT value FROM note WHERE session = ? AND name = ?"
            row = self._database.execute(query, (self.session, name)).fetchone()
        return str(row[0]) if row else ""

    def hide(self, values: Iterable[str]) -> None:
        """Mask these values in everything that is written from now on."""
        self._hidden.update(values)

    # --- internals --------------------------------------------------------------------

    def _store(
        self,
        entry: JournalEntry,
        submitted: datetime | None = None,
        over: datetime | None = None,
    ) -> Job:
        """Keep a changed entry in memory and in the file. Returns its job.

        Raises LaunchError if another program removed the job from the file.
        """
        self._entries[entry.job.number] = entry
        submitted_text = submitted.isoformat() if submitted else None
        over_text = over.isoformat() if over else None
        with open_transaction(self._database):
            if not update_job(self._database, entry, submitted_text, over_text):
                file = self.folder / NAME
                raise LaunchError(
                    f"{file} lost job number {entry.job.number}: another program changed it"
                )
        return entry.job

    def _find_entry(self, number: int) -> JournalEntry:
        """Return the entry of a job. Raises LaunchError if there is no such job."""
        if number not in self._entries:
            raise LaunchError(
                f"session {self.session or '(none)'} has no job number {number}"
            )
        return self._entries[number]

    def _find_open_entry(self, number: int) -> JournalEntry:
        """Return the entry of a job that is not over, else raise LaunchError."""
        entry = self._find_entry(number)
        if entry.is_over:
            raise LaunchError(
                f"job number {number} has ended ({entry.job.problem or 'after its submission'}) and cannot change"
            )
        return entry

    def _make_id(self, now: datetime) -> str:
        """Return a new session id, such as `20261121-0545-3f9a`."""
        while True:
            session = f"{now:%Y%m%d-%H%M}-{secrets.token_hex(2)}"
            if not self._database.execute(
                "SELECT 1 FROM session WHERE id = ?", (session,)
            ).fetchone():
                return session

    def _find_lock_file(self, session: str) -> Path:
        """Return the path of a session's lock. Raises LaunchError for an invalid id.

        An invalid id, such as `../notes`, could name another file, and locking that file
        would overwrite it.
        """
        if not re.fullmatch(r"[A-Za-z0-9-]{1,100}", str(session)):
            file = self.folder / NAME
            raise LaunchError(
                f"{file} contains an invalid session id ({str(session)[:40]!r}): {_advise_moving()}"
            )
        return self.folder / "sessions" / f"{session}.lock"

    def _lock_session(self, session: str) -> int:
        """Lock a session. Raises LaunchError if another process has locked it."""
        file = self._find_lock_file(session)
        handle = acquire_lock(file)
        if handle is None:
            # for example `4711 on login1`
            content = file.read_text(encoding="utf-8", errors="replace")
            holder = content.strip() or "unknown"
            raise LaunchError(
                f"session {session} is in use by process {holder}. Wait until the process has ended, "
                "or end it"
            )
        return handle

    def _explain_absent(self, session: str, unfinished: Sequence[str]) -> str:
        """Explain that there is no such session, and list the unfinished sessions.

        `session` is "" if the newest unfinished session was requested.
        """
        hint = "it contains no unfinished session"
        if unfinished:
            hint = f"unfinished sessions: {join_first(unfinished)}{did_you_mean(session, unfinished)}"
        problem = (
            f"session {session} is not in"
            if session
            else "there is no session to resume in"
        )
        return f"{problem} {self.folder}: {hint}\n{explain_elsewhere(self._index, session, self.folder)}"

    def _check_session(self) -> None:
        """Raise LaunchError if no session has begun or was resumed."""
        if not self.session:
            raise LaunchError(
                "this journal has no current session: begin or resume one first"
            )

    def _check_free(self) -> None:
        """Raise LaunchError if a session has begun or was resumed already."""
        if self.session:
            raise LaunchError(
                f"this journal already has the current session {self.session}"
            )


def _make_unique_id(job: Job, job_id: str) -> tuple[bool, str]:
    """Return a key that is unique among all jobs.

    Local job ids may equal cluster job ids.
    """
    return load_scheduler(job.spec.via).is_local, job_id


def _check_case(case_id: str) -> None:
    """Raise LaunchError for a configuration id that cannot be a folder's name."""
    if not case_id or "/" in case_id or ".." in case_id or not case_id.isprintable():
        raise LaunchError(
            f"configuration {case_id!r} cannot be the name of a folder: it must not contain /, .., or unprintable characters"
        )
    length = len(os.fsencode(case_id))
    if length > LONGEST_CASE_ID:
        problem = f"the id of configuration {case_id[:40]}... has {length} bytes (limit {LONGEST_CASE_ID})"
        raise LaunchError(f"{problem}: shorten its variant in the baseline file")


def _create_folder(folder: Path) -> None:
    """Create the folder of a job. Raises LaunchError if that fails."""
    try:
        # it exists already if an earlier process was killed right here
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"cannot create {folder}: {error.strerror}. The job was not submitted"
        ) from None
