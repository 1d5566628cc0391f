"""The journal of submitted jobs: what a session was about to do, did and saw, so that
another can go on with it.

A session is open until it is finished, and locked by the process that has it. Values of
secrets are not in its rows. An index in the caches of the user says in which folders
sessions lie: without it only a hint is missing.
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
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

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
    "CORRUPT": "the file is damaged: {move}",
    "NOTADB": "the file is damaged, or not a journal: {move}",
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
        remedy = _find_remedy("SQLITE_CORRUPT")
        raise LaunchError(f"{file}: the names in it are no text; {remedy}") from None
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        code = f" ({name})" if name else ""
        raise LaunchError(f"{file}: {error}{code}; {_find_remedy(name)}") from None


def _find_remedy(error_name: str) -> str:
    named = (name for name in REMEDIES if error_name.startswith(f"SQLITE_{name}"))
    remedy = REMEDIES.get(next(named, ""), "{move}")
    return remedy.format(move=_advise_moving())


def _advise_moving() -> str:
    return (
        "move it away; jobs that it followed may still run: look with "
        f"{name_jobs_inquiries()}, and in the jobs folder beside it"
    )


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
                f"can still follow its jobs, or another program; use that version, or {_advise_moving()}"
            )
        damage = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if damage != "ok":
        raise LaunchError(f"{file} is damaged ({damage}): {_advise_moving()}")


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
            "written by another version of pytest-llmbench, or is damaged; end its jobs by hand "
            f"({name_jobs_inquiries()}), and start anew"
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
    stall = stall and Stall(**{**stall, "place": StallPosition(stall["place"])})
    earlier = tuple(fields.get("earlier_seconds", ()))
    tuples = {"nodes": tuple(fields["nodes"]), "earlier_seconds": earlier}
    return JobStatus(**{**fields, **times, **codes, **tuples, "stall": stall})


def _write_value(value: object) -> str:
    """Return what JSON does not know as text: a time or a path."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


# --- the index of sessions ------------------------------------------------------------


MOST = 50  # the newest sessions that are looked at for one that is unfinished
READ_BYTES = 1 << 16  # of the file, from its end: hundreds of sessions


def record_session(index: Path | None, session: str, folder: Path) -> None:
    """Add a session to the file, if it can be written."""
    if index is None:
        return
    line = json.dumps([session, str(folder.absolute())])
    with suppress(OSError):
        index.parent.mkdir(parents=True, exist_ok=True)
        with index.open(
            "a", encoding="utf-8"
        ) as file:  # one short write at the end, which no other process parts
            file.write(f"\n{line}\n")  # behind one that was cut, too


def require_journal(index: Path | None, session: str, folder: Path) -> None:
    """Raise LaunchError for a folder without a journal, with what helps to find the
    right one."""
    if (folder / NAME).exists():
        return
    problem = (
        f"there is no journal in {folder}"
        if folder.is_dir()
        else f"{folder} does not exist"
    )
    wanted = f"session {session} is not here" if session else "no session here"
    raise LaunchError(
        f"{wanted}: {problem}\n{explain_elsewhere(index, session, folder)}"
    )


def explain_elsewhere(index: Path | None, session: str, folder: Path) -> str:
    """Return how another folder is named, and which one it probably is: one below this,
    or one of this user."""
    lines = ["--llmb-journal=DIR names another folder; --llmb-submit-only prints which"]
    if (folder / FOLDER / NAME).exists():
        lines.append(
            f"did you mean --llmb-journal={shlex.quote(str(folder / FOLDER))}?"
        )
    elsewhere = next(_list_elsewhere(index, session, folder), None)
    if elsewhere is not None:
        lines += [
            f"session {elsewhere[0]} lies in",
            f"  --llmb-journal={shlex.quote(str(elsewhere[1]))}",
        ]
    return "\n".join(f"  {line}" for line in lines)


def _list_elsewhere(
    index: Path | None, session: str, folder: Path
) -> Iterator[tuple[str, Path]]:
    """Yield the session that is looked for, else those that are unfinished, newest
    first, with their folders."""
    printed = {folder.absolute(), folder.absolute() / FOLDER}
    entries = [entry for entry in _read_index(index) if entry[1] not in printed]
    for name, place in reversed(entries if session else entries[-MOST:]):
        if name == session or (not session and _is_unfinished(place, name)):
            yield name, place


def _read_index(index: Path | None) -> list[tuple[str, Path]]:
    entries: list[tuple[str, Path]] = []
    lines: list[bytes] = []
    if index is not None:
        with suppress(OSError), index.open("rb") as file:
            file.seek(max(0, index.stat().st_size - READ_BYTES))
            lines = file.read().splitlines()
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):
            session, folder = json.loads(line)
            if Path(folder).is_absolute():  # as it was written
                entries.append((str(session), Path(folder)))
    return entries


def _is_unfinished(folder: Path, session: str) -> bool:
    # ValueError: no file system holds the name of that folder
    with (
        suppress(sqlite3.Error, ValueError),
        closing(
            sqlite3.connect(f"{(folder / NAME).as_uri()}?mode=ro", uri=True)
        ) as database,
    ):
        query = "SELECT 1 FROM session WHERE id = ? AND finished IS NULL"
        return database.execute(query, (session,)).fetchone() is not None
    return False


# --- the journal ----------------------------------------------------------------------


# bytes of a case id: most file systems allow 255 for a name, and a job's number stands
# before it
LONGEST_CASE = 200


@dataclass(frozen=True, slots=True)
class UnfinishedSession:
    """A session that is not finished."""

    session: str
    waiting: int  # how many of its jobs are not over
    alive: bool  # whether a process still has it


class Journal:
    """The journal in `folder` (`.llmbench`), and one session in it, that of `begin` or
    `resume`, locked while open.

    Every change is on disk when its method (or `write_together`) returns. LaunchError
    from any method: the file or disk is at fault, or the change contradicts what is
    known. What cannot be written is kept in memory all the same: a submitted job whose
    number did not reach the disk must still be found by whoever cancels.
    """

    def __init__(self, folder: Path, index: Path | None = None) -> None:
        """Open the journal in `folder`, made if there is none; `index` is the file that
        says where sessions lie."""
        self.folder = folder
        self._index = index
        self.session = ""
        self.was_finished = False
        """Whether the session was finished when it was resumed."""
        self._entries: dict[int, JournalEntry] = {}
        self._hidden: set[str] = set()
        self._lock: int | None = None
        self._database: sqlite3.Connection = open_database(folder)

    # --- sessions ---------------------------------------------------------------------

    def begin(
        self, label: str, now: datetime, notes: Mapping[str, str] | None = None
    ) -> str:
        """Start a session, which has these notes from its first moment on; return its
        id, as 20261121-0545-3f9a."""
        self._check_free()
        with open_transaction(
            self._database
        ):  # one process at a time takes locks or looks at them
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
            self.session = session  # not later: whoever is interrupted has to know it
        record_session(self._index, session, self.folder)
        return session

    def resume(self, session: str = "") -> str:
        """Go on with a session, the newest unfinished one without a name, and return
        its id. One that is finished stays so until another job of it is intended.

        LaunchError: there is no such session, or a process still has it.
        """
        self._check_free()
        with open_transaction(self._database):
            rows = self._database.execute(
                "SELECT id, finished IS NULL FROM session ORDER BY rowid DESC"
            ).fetchall()
            unfinished = [identifier for identifier, is_open in rows if is_open]
            chosen = session or next(iter(unfinished), "")
            if chosen not in [identifier for identifier, _ in rows]:
                raise LaunchError(self._explain_absent(session, unfinished))
            self._lock = self._lock_session(chosen)
            self._entries = read_jobs(self._database, self.folder, chosen)
        self.session, self.was_finished = chosen, chosen not in unfinished
        return chosen

    def list_unfinished(self) -> tuple[UnfinishedSession, ...]:
        """Return the sessions that are not finished, newest first."""
        query = """SELECT id, (SELECT count(*) FROM job WHERE job.session = session.id AND over IS NULL)
                   FROM session WHERE finished IS NULL ORDER BY rowid DESC"""
        with open_transaction(
            self._database
        ):  # so that nobody takes a lock while it is looked at
            rows = self._database.execute(query).fetchall()
            return tuple(
                UnfinishedSession(
                    session, waiting, is_locked(self._find_lock_file(session))
                )
                for session, waiting in rows
            )

    def finish(self, now: datetime) -> bool:
        """Close the session for good; False, and it stays to be resumed, where jobs of
        it are live."""
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
        """Let the session go; one that is not finished can be resumed."""
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    # --- jobs -------------------------------------------------------------------------

    def intend(
        self, spec: JobSpec, now: datetime, attempt: int = 1, repeat: int = 1
    ) -> Job:
        """Write down a job that is about to be submitted, and make its folder. Its spec
        keeps its secrets in memory."""
        self._check_session()
        _check_case(spec.case_id)
        spec = replace(spec, digests=())  # those of a job that it takes the place of
        self.hide(find_secret_values(spec))
        token, text = secrets.token_hex(8), encode_spec(spec, self._hidden)
        with open_transaction(self._database):
            self._database.execute(
                "UPDATE session SET finished = NULL WHERE id = ?", (self.session,)
            )
            number = insert_job(
                self._database,
                (self.session, token, text, attempt, repeat, now.isoformat()),
            )
            folder = find_job_folder(self.folder, self.session, number, spec.case_id)
            _make(folder)
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
        """Write down the process that submits a job (or is it); LaunchError where there
        is one already."""
        entry = self._find_open_entry(number)
        if entry.process is not None or entry.job.job_id:
            raise LaunchError(
                f"job number {number} was started before; it is not started again"
            )
        self._store(replace(entry, process=process))

    def find_process(self, number: int) -> Process | None:
        """Return the process that submits a job (or is it), None before it was
        started."""
        return self._find_entry(number).process

    def record_submission(
        self, number: int, job_id: str, log_folder: Path | None, now: datetime
    ) -> Job:
        """Write down the job id; LaunchError for a second one, or one that another job
        of the session has."""
        entry = self._find_open_entry(number)
        if not job_id or entry.job.job_id not in ("", job_id):
            raise LaunchError(
                f"job number {number} has id {entry.job.job_id!r} and cannot get {job_id!r}"
            )
        for other in self.list_jobs():
            if other.number != number and _identify(other, other.job_id) == _identify(
                entry.job, job_id
            ):
                raise LaunchError(
                    f"job id {job_id} of job number {number} is that of number {other.number} already"
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
        """Write down why a job has no id, and whether it may run all the same;
        LaunchError for one that has an id."""
        entry = self._find_open_entry(number)
        if entry.job.job_id:
            raise LaunchError(
                f"job number {number} was submitted as {entry.job.job_id}: it cannot have failed to be"
            )
        problem = redact(problem, self._hidden) or "it was not submitted"
        return self._store(
            replace(entry, job=replace(entry.job, problem=problem, submission=state)),
            over=now,
        )

    def record_status(self, number: int, status: JobStatus) -> Job:
        """Write down what is known of a job; of one that is over, what was known at its
        end stays."""
        entry = self._find_entry(number)
        if entry.over or entry.job.status == status:
            return entry.job
        changed = entry.job.status is None or drop_passing(
            entry.job.status
        ) != drop_passing(status)
        entry = replace(entry, job=replace(entry.job, status=status))
        if changed:
            return self._store(entry)
        self._entries[number] = (
            entry  # a clock that goes on is not worth a write for each job and poll
        )
        return entry.job

    def record_end(
        self, number: int, status: JobStatus, text: str, now: datetime
    ) -> Job:
        """Write down how a job ended; the first end counts."""
        entry = self._find_entry(number)
        if entry.text is not None:
            return entry.job
        ended = replace(
            self._find_open_entry(number),
            job=replace(entry.job, status=status),
            text=redact(text, self._hidden),
        )
        return self._store(ended, over=now)

    def read_end(self, number: int) -> str:
        """Return the text that `record_end` was given, empty before."""
        return self._find_entry(number).text or ""

    def list_jobs(self) -> tuple[Job, ...]:
        """Return the jobs of this session by number; those of a resumed one hold MASK
        for the values of secrets."""
        return tuple(entry.job for _, entry in sorted(self._entries.items()))

    def list_live(self) -> tuple[Job, ...]:
        """Return the jobs that have neither ended nor failed to be submitted."""
        return tuple(
            job for job in self.list_jobs() if not self._entries[job.number].over
        )

    @contextmanager
    def write_together(self) -> Iterator[None]:
        """Write what changes in it at its end, all or nothing: a write for many jobs
        takes no longer than for one."""
        with open_transaction(self._database):
            yield

    # --- notes ------------------------------------------------------------------------

    def read_journal_value(self, name: str) -> str:
        """Return the value of a note, empty for none."""
        with explain_errors(self.folder / NAME):
            query = "SELECT value FROM note WHERE session = ? AND name = ?"
            row = self._database.execute(query, (self.session, name)).fetchone()
        return str(row[0]) if row else ""

    def hide(self, values: Iterable[str]) -> None:
        """Keep these values out of everything that is written from now on."""
        self._hidden.update(values)

    # --- inside -----------------------------------------------------------------------

    def _store(
        self,
        entry: JournalEntry,
        submitted: datetime | None = None,
        over: datetime | None = None,
    ) -> Job:
        self._entries[entry.job.number] = entry
        times = [time.isoformat() if time else None for time in (submitted, over)]
        with open_transaction(self._database):
            if not update_job(self._database, entry, *times):
                file = self.folder / NAME
                raise LaunchError(
                    f"{file} lost job number {entry.job.number}: another program changed it"
                )
        return entry.job

    def _find_entry(self, number: int) -> JournalEntry:
        if number not in self._entries:
            raise LaunchError(
                f"session {self.session or '(none)'} has no job number {number}"
            )
        return self._entries[number]

    def _find_open_entry(self, number: int) -> JournalEntry:
        entry = self._find_entry(number)
        if entry.over:
            raise LaunchError(
                f"job number {number} is over ({entry.job.problem or 'it ended'}) and cannot go on"
            )
        return entry

    def _make_id(self, now: datetime) -> str:
        while True:
            session = f"{now:%Y%m%d-%H%M}-{secrets.token_hex(2)}"
            if not self._database.execute(
                "SELECT 1 FROM session WHERE id = ?", (session,)
            ).fetchone():
                return session

    def _find_lock_file(self, session: str) -> Path:
        if not re.fullmatch(
            r"[A-Za-z0-9-]{1,100}", str(session)
        ):  # a lock elsewhere would empty a file of somebody
            file = self.folder / NAME
            raise LaunchError(
                f"{file} holds a session that none began ({str(session)[:40]!r}): {_advise_moving()}"
            )
        return self.folder / "sessions" / f"{session}.lock"

    def _lock_session(self, session: str) -> int:
        file = self._find_lock_file(session)
        handle = acquire_lock(file)
        if handle is None:
            holder = (
                file.read_text(encoding="utf-8", errors="replace").strip() or "unknown"
            )
            raise LaunchError(
                f"session {session} is in use by process {holder}: wait until it has ended, or end it; "
                "no two share a session"
            )
        return handle

    def _explain_absent(self, session: str, unfinished: Sequence[str]) -> str:
        rest = "none is unfinished"
        if unfinished:
            rest = f"unfinished are {join_first(unfinished)}{did_you_mean(session, unfinished)}"
        what = (
            f"session {session} is not in"
            if session
            else "there is no session to resume in"
        )
        return f"{what} {self.folder}: {rest}\n{explain_elsewhere(self._index, session, self.folder)}"

    def _check_session(self) -> None:
        if not self.session:
            raise LaunchError("no session was begun or resumed in this journal")

    def _check_free(self) -> None:
        if self.session:
            raise LaunchError(f"this journal holds session {self.session} already")


def _identify(job: Job, job_id: str) -> tuple[bool, str]:
    """Return what no two jobs share: the numbers of jobs on this machine are not those
    of a cluster."""
    return load_scheduler(job.spec.via).here, job_id


def _check_case(case_id: str) -> None:
    """Refuse an id that is no name of a folder."""
    if not case_id or "/" in case_id or ".." in case_id or not case_id.isprintable():
        raise LaunchError(
            f"configuration {case_id!r} cannot name a folder: no /, no .., nothing that does not print"
        )
    if len(os.fsencode(case_id)) > LONGEST_CASE:
        text = f"the id of configuration {case_id[:40]}... has {len(os.fsencode(case_id))} bytes, at most {LONGEST_CASE}"
        raise LaunchError(
            f"{text} can name a folder: shorten its variant in the baseline file"
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(
            parents=True, exist_ok=True
        )  # one that is there was left by a process killed just here
    except OSError as error:
        raise LaunchError(
            f"{folder} cannot be made: {error.strerror}; nothing was submitted from it"
        ) from None
