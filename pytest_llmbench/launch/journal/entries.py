"""The jobs of a journal as rows of its database."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.models.jobs import Job, SubmissionState
from pytest_llmbench.launch.journal.database import NAME
from pytest_llmbench.launch.journal.encoding import decode_spec, decode_status, encode_status
from pytest_llmbench.launch.submit.process import Process
from pytest_llmbench.launch.submit.submissions import find_state


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A job with what only the journal knows of it; `text` is None until it has ended."""

    job: Job
    process: Process | None = None
    text: str | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, or was certainly not submitted."""
        return self.text is not None or bool(self.job.problem)


def find_job_folder(folder: Path, session: str, number: int, case_id: str) -> Path:
    """Return the folder of one job in that of the journal."""
    return folder / "jobs" / session / f"{number}-{case_id}"


def insert(database: sqlite3.Connection, row: tuple[str, str, str, int, int, str]) -> int:
    """Add a job that is about to be submitted: session, token, spec, attempt, repeat, time; return its number."""
    statement = "INSERT INTO job (session, token, spec, attempt, repeat, intended) VALUES (?, ?, ?, ?, ?, ?)"
    return database.execute(statement, row).lastrowid or 0


def update(
    database: sqlite3.Connection, entry: JournalEntry, submitted: str | None = None, over: str | None = None
) -> bool:
    """Write an entry over its row, with the times that are given; False where there is no such row."""
    job, process = entry.job, entry.process
    statement = """UPDATE job SET pid = ?, process_started = ?, mark = ?, job_id = ?, log_folder = ?, status = ?,
                   problem = ?, text = ?, submission = ?, submitted = coalesce(submitted, ?), over = coalesce(over, ?)
                   WHERE number = ?"""
    row = (
        *((process.pid, process.started, process.mark) if process else (None, None, None)),
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


def read(database: sqlite3.Connection, folder: Path, session: str) -> dict[int, JournalEntry]:
    """Return the jobs of a session by number; LaunchError for a row that cannot be read."""
    query = """SELECT number, token, spec, attempt, repeat, pid, process_started, mark, job_id, log_folder, status,
               problem, text, submission FROM job WHERE session = ? ORDER BY number"""
    rows = database.execute(query, (session,)).fetchall()
    return {row[0]: _read_entry(row, folder, session) for row in rows}


def _read_entry(row: tuple[Any, ...], folder: Path, session: str) -> JournalEntry:
    (
        number,
        token,
        spec_text,
        attempt,
        repeat,
        pid,
        started,
        mark,
        job_id,
        log_folder,
        status,
        problem,
        text,
        submission,
    ) = row
    try:
        spec = decode_spec(spec_text)
        job_status = None if status is None else decode_status(status)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LaunchError(
            f"{folder / NAME}: job number {number} of session {session} cannot be read ({error}): it was written "
            "by another version of pytest-llmbench, or is damaged; end its jobs by hand (squeue --me), and start anew"
        ) from None
    job = Job(
        number=number,
        token=token,
        spec=spec,
        folder=find_job_folder(folder, session, number, spec.case_id),
        attempt=attempt,
        repeat=repeat,
        job_id=job_id,
        log_folder=None if log_folder is None else Path(log_folder),
        status=job_status,
        problem=problem,
        submission=SubmissionState(submission) if submission else find_state(problem, job_id),
    )
    return JournalEntry(job, None if pid is None else Process(pid, started, mark), text)
