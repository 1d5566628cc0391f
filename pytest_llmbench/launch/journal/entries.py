"""The jobs of a journal as rows of its database: as text and back, without the values of secrets."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.models import Key
from pytest_llmbench.core.models.jobs import EndedBy, Job, JobSpec, JobStatus, Pairs, Phase, Purpose, SubmissionState
from pytest_llmbench.launch.journal.database import NAME
from pytest_llmbench.launch.recipe.redaction import MASK, find_secret_values, redact
from pytest_llmbench.launch.slurm.statuses import OWN
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


# --- jobs as text and back --------------------------------------------------------------------------------

SHORTEST = 4
"""A shorter secret value is only hidden where its variable is: in another text it means nothing, as `1` does."""


def encode_spec(spec: JobSpec, values: Iterable[str] = ()) -> str:
    """Return a spec as JSON: MASK stands for its secrets, and for these secret `values` in its command and variables.

    Other fields are kept as they are: with another case id or folder a job would not be found again.
    """
    long = {value for value in (*values, *find_secret_values(spec)) if len(value) >= SHORTEST}
    environment = [
        (name, MASK if name in spec.secrets and value else redact(value, long)) for name, value in spec.environment
    ]
    command = [redact(argument, long) for argument in spec.command]
    return json.dumps(_make_plain({**asdict(spec), "environment": environment, "command": command}))


def decode_spec(text: str) -> JobSpec:
    """Return the spec; ValueError, TypeError, KeyError or AttributeError for a text that is none."""
    fields = json.loads(text)
    decoded = {
        "key": Key(**fields["key"]),
        "purpose": Purpose(fields["purpose"]),
        "directory": Path(fields["directory"]),
        "environment": _read_pairs(fields["environment"]),
        "log_folders": tuple(map(Path, fields["log_folders"])),
        **{name: tuple(fields[name]) for name in ("command", "secrets", "exclude")},
    }
    return JobSpec(**{**fields, **decoded})


def encode_status(status: JobStatus) -> str:
    """Return a status as JSON."""
    return json.dumps(_make_plain(asdict(status)))


def decode_status(text: str) -> JobStatus:
    """Return the status; errors as of `decode_spec`."""
    fields = json.loads(text)
    times = {name: _read_time(fields[name]) for name in ("submitted", "started", "ended")}
    # a journal of an earlier version says in words alone who ended a job
    by_words = EndedBy.PYTEST if fields["reason"].startswith(OWN) else EndedBy.OTHERS
    ended_by = EndedBy(fields.get("ended_by", by_words))
    codes = {"phase": Phase(fields["phase"]), "ended_by": ended_by}
    return JobStatus(**{**fields, **times, **codes, "nodes": tuple(fields["nodes"])})


def _make_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _make_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_make_plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else value


def _read_pairs(items: Sequence[Sequence[str]]) -> Pairs:
    return tuple((name, value) for name, value in items)


def _read_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
