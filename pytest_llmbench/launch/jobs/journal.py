"""The journal of submitted jobs: what a session was about to do, did and saw, so that
another can go on with it.

A session is open until it is finished, and locked by the process that has it.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.job_records import Job, JobSpec, JobStatus, SubmissionState
from pytest_llmbench.launch.file_lock import is_locked, take_lock
from pytest_llmbench.launch.job_secrets import find_secret_values, redact
from pytest_llmbench.launch.jobs import journal_file as database
from pytest_llmbench.launch.jobs import session_index as places
from pytest_llmbench.launch.jobs.journal_file import JournalEntry
from pytest_llmbench.launch.jobs.process import Process
from pytest_llmbench.launch.schedulers import load_scheduler
from pytest_llmbench.launch.schedulers.job_states import drop_passing

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
        self._database: sqlite3.Connection = database.open_database(folder)

    # --- sessions ---------------------------------------------------------------------

    def begin(
        self, label: str, now: datetime, notes: Mapping[str, str] | None = None
    ) -> str:
        """Start a session, which has these notes from its first moment on; return its
        id, as 20261121-0545-3f9a."""
        self._check_free()
        with database.open_transaction(
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
        places.note_session(self._index, session, self.folder)
        return session

    def resume(self, session: str = "") -> str:
        """Go on with a session, the newest unfinished one without a name, and return
        its id. One that is finished stays so until another job of it is intended.

        LaunchError: there is no such session, or a process still has it.
        """
        self._check_free()
        with database.open_transaction(self._database):
            rows = self._database.execute(
                "SELECT id, finished IS NULL FROM session ORDER BY rowid DESC"
            ).fetchall()
            unfinished = [identifier for identifier, is_open in rows if is_open]
            chosen = session or next(iter(unfinished), "")
            if chosen not in [identifier for identifier, _ in rows]:
                raise LaunchError(self._explain_absent(session, unfinished))
            self._lock = self._lock_session(chosen)
            self._entries = database.read_jobs(self._database, self.folder, chosen)
        self.session, self.was_finished = chosen, chosen not in unfinished
        return chosen

    def list_unfinished(self) -> tuple[UnfinishedSession, ...]:
        """Return the sessions that are not finished, newest first."""
        query = """SELECT id, (SELECT count(*) FROM job WHERE job.session = session.id AND over IS NULL)
                   FROM session WHERE finished IS NULL ORDER BY rowid DESC"""
        with database.open_transaction(
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
        with database.open_transaction(self._database):
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
        token, text = secrets.token_hex(8), database.encode_spec(spec, self._hidden)
        with database.open_transaction(self._database):
            self._database.execute(
                "UPDATE session SET finished = NULL WHERE id = ?", (self.session,)
            )
            number = database.insert_job(
                self._database,
                (self.session, token, text, attempt, repeat, now.isoformat()),
            )
            folder = database.find_job_folder(
                self.folder, self.session, number, spec.case_id
            )
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
        with database.open_transaction(self._database):
            yield

    # --- notes ------------------------------------------------------------------------

    def read_note(self, name: str) -> str:
        """Return the value of a note, empty for none."""
        with database.explain_errors(self.folder / database.NAME):
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
        with database.open_transaction(self._database):
            if not database.update_job(self._database, entry, *times):
                file = self.folder / database.NAME
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
            file = self.folder / database.NAME
            raise LaunchError(
                f"{file} holds a session that none began ({str(session)[:40]!r}): {database.MOVE}"
            )
        return self.folder / "sessions" / f"{session}.lock"

    def _lock_session(self, session: str) -> int:
        file = self._find_lock_file(session)
        handle = take_lock(file)
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
        return f"{what} {self.folder}: {rest}\n{places.explain_elsewhere(self._index, session, self.folder)}"

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
