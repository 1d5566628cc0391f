"""Submissions: run the submission command, recover it later, and read its job id."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.commands import Runner
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.job_records import Job, SubmissionState
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.userfile import path_exists
from pytest_llmbench.launch.job_secrets import WITHHELD, has_unknown_secrets, redact
from pytest_llmbench.launch.schedulers import process

OUTPUT = "submit.out"  # a file in a job's folder: the output of its submission

SUBMIT_SECONDS = 600.0  # time limit of a submission

SHOWN_LINES = 5  # lines of a refused submission that a message quotes

# the largest expected difference between the clocks of scheduler and file system
CLOCKS_DIFFER = timedelta(hours=1)

MAYBE = "it may have been submitted: "  # prefix of an UNCERTAIN job's problem

# the problem of a SUPERSEDED job
SUPERSEDED = "its submission came to nothing, and another job took its place"

# colours (`ESC[31m`), titles (`ESC]0;...BEL`), and the carriage return of a CRLF
_ESCAPE = compile_on_use(
    r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\r(?=\n)"
)
# the frames that newer launchers draw around errors
_BOX = compile_on_use("[\u2500-\u257f]+")


class SchedulerAway(LaunchError):  # noqa: N818 (a temporary state of the cluster)
    """A scheduler does not answer at the moment."""


class Submission(Struct, frozen=True):
    """A submitted job, with the folder that its launcher printed."""

    job_id: str
    folder: Path | None = None


Reader = Callable[[str], Sequence[Submission]]
"""Finds the submitted jobs in the output of a command."""


class SubmitError(LaunchError):
    """A job was not submitted; `uncertain` if it may have been.

    A job in an uncertain state must not be submitted again.
    """

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
    """Describe why a job has no id."""
    if state is SubmissionState.SUPERSEDED:
        return SUPERSEDED
    return f"{MAYBE}{text}" if state is SubmissionState.UNCERTAIN else text


def find_state(problem: str, job_id: str) -> SubmissionState:
    """Return the submission state of a job in a journal of an earlier version.

    Such a journal contains the problem only as text.
    """
    if problem.startswith(MAYBE):
        return SubmissionState.UNCERTAIN
    if problem == SUPERSEDED:
        return SubmissionState.SUPERSEDED
    if problem:
        return SubmissionState.NOT_SUBMITTED
    return SubmissionState.SUBMITTED if job_id else SubmissionState.INTENDED


def estimate_submission(job: Job) -> datetime:
    """Return a lower bound of a job's submission time (UTC).

    Searches for the job and its logs omit everything older. The bound is the time of
    its submission output or, if earlier, the time that the scheduler reports; minus
    CLOCKS_DIFFER.
    """
    try:
        modified = (job.folder / OUTPUT).stat().st_mtime
        submitted = datetime.fromtimestamp(modified, UTC)
    except OSError:
        submitted = datetime.now(UTC)
    if job.status and job.status.submitted:  # as the scheduler reports it
        submitted = min(submitted, job.status.submitted.astimezone(UTC))
    return submitted - CLOCKS_DIFFER


# --- output of a submission ---------------------------------------------------


def read_pattern(pattern: str, text: str) -> list[Submission]:
    """Find submitted jobs with a user's regular expression.

    Its group `job` is the job id, its optional group `folder` the folder.
    """
    matches = re.finditer(pattern, remove_colours(text), re.MULTILINE)
    groups = [match.groupdict() for match in matches]
    return merge_submissions(
        Submission(group["job"], read_folder(group.get("folder") or ""))
        for group in groups
        if group.get("job")
    )


def read_folder(text: str) -> Path | None:
    """Return an absolute path, or None for any other text."""
    stripped = text.strip()
    is_path = stripped.startswith("/") and "\0" not in text
    return Path(stripped) if is_path else None


def merge_submissions(submissions: Iterable[Submission]) -> list[Submission]:
    """Merge submissions by job id, keeping the first folder of each."""
    folders: dict[str, Path | None] = {}
    for submission in submissions:
        folder = folders.get(submission.job_id) or submission.folder
        folders[submission.job_id] = folder
    return [Submission(job_id, folder) for job_id, folder in folders.items()]


def remove_colours(text: str) -> str:
    """Remove terminal escape sequences."""
    return _ESCAPE.sub("", text)


def hide_secrets(output: Path, job: Job) -> str:
    """Redact secrets in the output of a submission, also in its file; return the text."""
    text = output.read_text(encoding="utf-8", errors="replace")
    redacted = redact(text, job.spec)
    if redacted != text:
        output.write_text(redacted, encoding="utf-8")
    return redacted


def quote_end(job: Job, text: str) -> str:
    """Quote the last lines of a command's output, without secrets.

    The whole output is withheld if the values of the job's secrets are unknown.
    """
    if has_unknown_secrets(job.spec):
        return WITHHELD
    plain_text = _BOX.sub(" ", remove_colours(text))
    lines = [escape(line.strip()) for line in plain_text.splitlines() if line.strip()]
    return " | ".join(lines[-SHOWN_LINES:]) or "(nothing)"


def describe_refusal(
    job: Job, code: int | None, text: str, output: Path, remedy: str
) -> str:
    """Describe why a submission failed, with a remedy and the last lines of its output.

    `text` is the redacted output, `output` the file with all of it.
    """
    if code is None:
        ended = "did not end in time"
    else:
        ended = f"ended with exit code {code} and no job id"
    return (
        f"{job.spec.case_id}: the submission {ended}: {remedy}. It printed: "
        f"{quote_end(job, text)} (all of its output: {output}; command: "
        f"{job.spec.command[0]} in {job.spec.directory})"
    )


def describe_doubt(
    job: Job, output: Path, inquiry: str, *, mark: str = "", text: str = ""
) -> str:
    """Describe a job whose submission is uncertain.

    `output` is the file with the output of the submission, `text` its redacted content.
    `inquiry` is the command that shows the job, and `mark` describes how to recognise
    the job in what the command prints.
    """
    answer = ""
    if text.strip():
        answer = f"The submission printed: {quote_end(job, text)}. "
    return (
        f"{job.spec.case_id}: it is unknown whether it was submitted, so it is not "
        f"submitted again. {answer}See {shlex.quote(str(output))} and `{inquiry}`{mark}; "
        "cancel it if it runs, and start a new session for it"
    )


# --- submission commands --------------------------------------------------------------


EXIT = "submit.exit"
GRACE_SECONDS = 5.0
# a shell's exit code above this is a signal: the progress of the command is unknown
KILLED = 128


class JobRecords(Protocol):
    """The part of the journal that schedulers use.

    It contains the live jobs, and the processes that submit or run jobs, by job number.
    """

    def list_live(self) -> tuple[Job, ...]: ...
    def record_process(self, number: int, process: process.Process) -> None: ...
    def find_process(self, number: int) -> process.Process | None: ...


class Tools(Struct, frozen=True):
    """The facilities of a scheduler: commands, environment, journal and waiting."""

    run: Runner  # runs short commands
    environment: Mapping[str, str]  # of these commands: the caller's
    # None if no job is submitted, cancelled or followed
    journal: JobRecords | None = None
    sleep: Callable[[float], None] = time.sleep
    submit_seconds: float = SUBMIT_SECONDS

    @property
    def records(self) -> JobRecords:
        """The journal of the submitting session."""
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
    """Start a command in a new session, with output and exit code in files.

    A later session can read its result even if pytest is killed. Raises SubmitError if
    the command cannot be started.
    """
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
    """Run a job's submission command and return its exit code, or None after a timeout."""
    spec = replace(job.spec, environment=tuple(environment.items()))
    started = start_command(
        replace(job, spec=spec),
        command,
        output=job.folder / OUTPUT,
        exit_file=job.folder / EXIT,
        records=tools.records,
    )
    return _wait_for_end(job, started, tools, tools.submit_seconds)


def resume_command(job: Job, tools: Tools, seconds: float) -> int | None:
    """Wait up to `seconds` for a submission command of an earlier session.

    Returns its exit code, None after a timeout, or NEVER_RAN if it certainly did not
    run.
    """
    # the process is recorded, and its output file created, before the command runs
    started = tools.records.find_process(job.number)
    if started is None or not path_exists(job.folder / OUTPUT):
        return process.NEVER_RAN
    code = process.read_exit_code(job.folder / EXIT)
    return _wait_for_end(job, started, tools, seconds) if code is None else code


def _wait_for_end(
    job: Job, started: process.Process, tools: Tools, seconds: float
) -> int | None:
    """Wait for a submission. Returns its exit code, or None if it was stopped.

    Raises SubmitError if the submission cannot be stopped, so that its result is
    uncertain.
    """
    code = process.wait(started, job.folder / EXIT, seconds, tools.sleep)
    if code is not None:
        return code
    try:
        process.stop(started, GRACE_SECONDS, tools.sleep)
    except LaunchError as error:
        text = f"{job.spec.case_id}: its submission: {error}"
        raise SubmitError(text, uncertain=True) from error
    return None
