"""A submission: its command, which a later session finds again, the job id that it left,
or why there is none."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from pytest_llmbench.core.commands import Runner
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.job_records import Job, SubmissionState
from pytest_llmbench.core.userfile import is_there
from pytest_llmbench.launch.job_secrets import WITHHELD, has_unknown_secrets, redact
from pytest_llmbench.launch.schedulers import process

OUTPUT = "submit.out"  # in the folder of a job: what its submission printed

SUBMIT_SECONDS = 600.0  # a submission may take so long

SHOWN_LINES = 5  # how many of the last lines of a refused submission are shown

# how far the clocks of a scheduler and of the file system are trusted to differ
CLOCKS_DIFFER = timedelta(hours=1)

MAYBE = "it may have been submitted: "  # how the problem of an UNCERTAIN job begins

# the problem of a SUPERSEDED job
SUPERSEDED = "its submission came to nothing, and another job took its place"

_ESCAPE = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\r(?=\n)"
)
# the frames in which newer launchers print what is wrong
_BOX = re.compile("[\u2500-\u257f]+")


class SchedulerAway(LaunchError):  # noqa: N818 (a state of the cluster, which passes)
    """A scheduler does not answer, which may pass."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that was submitted, and the folder that its launcher printed for it."""

    job_id: str
    folder: Path | None = None


Reader = Callable[[str], Sequence[Submission]]
"""Finds the jobs in what a command printed."""


class SubmitError(LaunchError):
    """A job that was not submitted; `uncertain` if it may have been, so that it must
    not be submitted again."""

    def __init__(
        self,
        message: str,
        *,
        uncertain: bool = False,
        state: SubmissionState | None = None,
    ) -> None:
        super().__init__(message)
        self.uncertain = uncertain
        self.state = state or (
            SubmissionState.UNCERTAIN if uncertain else SubmissionState.NOT_SUBMITTED
        )


def describe_problem(state: SubmissionState, text: str) -> str:
    """Return why a job has no id, as people read it: its state, and what is known
    besides."""
    if state is SubmissionState.SUPERSEDED:
        return SUPERSEDED
    return f"{MAYBE}{text}" if state is SubmissionState.UNCERTAIN else text


def find_state(problem: str, job_id: str) -> SubmissionState:
    """Return the state of a job in a journal of an earlier version, which kept its
    problem in words alone."""
    if problem.startswith(MAYBE):
        return SubmissionState.UNCERTAIN
    if problem == SUPERSEDED:
        return SubmissionState.SUPERSEDED
    if problem:
        return SubmissionState.NOT_SUBMITTED
    return SubmissionState.SUBMITTED if job_id else SubmissionState.INTENDED


def estimate_submission(job: Job) -> datetime:
    """Return a time before a job was submitted (UTC), to bound what is searched for
    it."""
    reported = job.status.submitted if job.status else None
    try:
        file = datetime.fromtimestamp((job.folder / OUTPUT).stat().st_mtime, UTC)
    except OSError:
        file = datetime.now(UTC)
    return min(file, reported.astimezone(UTC) if reported else file) - CLOCKS_DIFFER


# --- what a command printed ---------------------------------------------------


def read_pattern(pattern: str, text: str) -> list[Submission]:
    """Read a user's own pattern, a regular expression with a group `job` and perhaps
    `folder`."""
    matches = re.finditer(pattern, remove_colours(text), re.MULTILINE)
    groups = [match.groupdict() for match in matches]
    return merge_submissions(
        Submission(group["job"], read_folder(group.get("folder") or ""))
        for group in groups
        if group.get("job")
    )


def read_folder(text: str) -> Path | None:
    """Return an absolute path; None for anything else that stands in its place."""
    is_path = text.strip().startswith("/") and "\0" not in text
    return Path(text.strip()) if is_path else None


def merge_submissions(submissions: Iterable[Submission]) -> list[Submission]:
    """Return each job id once, with the first folder that was printed for it."""
    folders: dict[str, Path | None] = {}
    for submission in submissions:
        folder = folders.get(submission.job_id) or submission.folder
        folders[submission.job_id] = folder
    return [Submission(job_id, folder) for job_id, folder in folders.items()]


def remove_colours(text: str) -> str:
    """Return a text without colours."""
    return _ESCAPE.sub("", text)


def hide_secrets(output: Path, job: Job) -> str:
    """Return what a submission printed, with its secrets hidden, in the file too."""
    text = output.read_text(encoding="utf-8", errors="replace")
    hidden = redact(text, job.spec)
    if hidden != text:
        output.write_text(hidden, encoding="utf-8")
    return hidden


def quote_end(job: Job, text: str) -> str:
    """Return the last lines of what a command printed, without secrets."""
    plain = _BOX.sub(" ", remove_colours(text)).splitlines()
    lines = [escape(line.strip()) for line in plain if line.strip()]
    if has_unknown_secrets(job.spec):
        return WITHHELD
    return " | ".join(lines[-SHOWN_LINES:]) or "(nothing)"


def describe_refusal(
    job: Job, code: int | None, text: str, output: Path, remedy: str
) -> str:
    """Return why a submission failed: its last words, the file with all of them, and
    `remedy`. `text` has no secret."""
    ended = f"ended with exit code {code} and no job id"
    if code is None:
        ended = "did not end in time"
    return (
        f"{job.spec.case_id}: the submission {ended}: {remedy}. It said: "
        f"{quote_end(job, text)} (all of its output: {output}; command: "
        f"{job.spec.command[0]} in {job.spec.directory})"
    )


def describe_doubt(
    job: Job, output: Path, look: str, *, mark: str = "", text: str = ""
) -> str:
    """Return that it is unknown whether a job was submitted, what `text` says, and the
    command `look` that shows it; `mark` is how the job can be recognised there."""
    answer = ""
    if text.strip():
        answer = f"The submission said: {quote_end(job, text)}. "
    return (
        f"{job.spec.case_id}: nothing tells whether it was submitted, so it is not "
        f"submitted again. {answer}See {shlex.quote(str(output))} and `{look}`{mark}; "
        "cancel it there if it runs, and start a new session for it"
    )


# --- the command that submits ---------------------------------------------------------


EXIT = "submit.exit"
GRACE_SECONDS = 5.0
# a shell's exit code above this is a signal: what the command had done is unknown
KILLED = 128


class JobRecords(Protocol):
    """The part of the journal that schedulers use: the live jobs, and for the number of
    a job the process that submits or runs it."""

    def list_live(self) -> tuple[Job, ...]: ...
    def record_process(self, number: int, process: process.Process) -> None: ...
    def find_process(self, number: int) -> process.Process | None: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What a scheduler works with."""

    run: Runner  # short commands
    environment: Mapping[str, str]  # in which they run: the caller's
    journal: JobRecords | None = (
        None  # None: no job is submitted, cancelled or followed
    )
    sleep: Callable[[float], None] = time.sleep
    submit_seconds: float = SUBMIT_SECONDS

    @property
    def records(self) -> JobRecords:
        """The journal of the session that submits."""
        if self.journal is None:
            raise RuntimeError("no job is submitted without a journal")
        return self.journal


def start_command(
    job: Job,
    command: Sequence[str],
    output: Path,
    exit_file: Path,
    records: JobRecords,
) -> process.Process:
    """Start a command in a session of its own, with output and exit code in files: it
    is still understood when pytest is killed. SubmitError if it cannot be started."""
    spec = job.spec
    try:
        return process.start(
            command,
            spec.directory,
            dict(spec.environment),
            output,
            exit_file,
            record=lambda started: records.record_process(job.number, started),
        )
    except LaunchError as error:
        text = f"{spec.case_id}: {redact(str(error), spec)}"
        raise SubmitError(text) from error


def run_command(
    job: Job, command: Sequence[str], environment: Mapping[str, str], tools: Tools
) -> int | None:
    """Run the command that submits a job to its end; return its exit code, None if it
    ran out of time."""
    spec = replace(job.spec, environment=tuple(environment.items()))
    output, exit_file = job.folder / OUTPUT, job.folder / EXIT
    begun = start_command(
        replace(job, spec=spec), command, output, exit_file, tools.records
    )
    return _wait_for_end(job, begun, tools, tools.submit_seconds)


def resume_command(job: Job, tools: Tools, seconds: float) -> int | None:
    """Return the exit code of a command that an earlier session began, and wait
    `seconds` for it.

    None if it ran out of time, NEVER_RAN if it certainly did not run.
    """
    begun = tools.records.find_process(job.number)
    if begun is None or not is_there(job.folder / OUTPUT):
        return process.NEVER_RAN
    code = process.read_exit_code(job.folder / EXIT)
    return _wait_for_end(job, begun, tools, seconds) if code is None else code


def _wait_for_end(
    job: Job, begun: process.Process, tools: Tools, seconds: float
) -> int | None:
    code = process.wait(begun, job.folder / EXIT, seconds, tools.sleep)
    if code is not None:
        return code
    try:
        process.stop(begun, GRACE_SECONDS, tools.sleep)
    except LaunchError as error:
        text = f"{job.spec.case_id}: its submission: {error}"
        raise SubmitError(text, uncertain=True) from error
    return None
