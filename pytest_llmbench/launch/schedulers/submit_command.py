"""The command that submits a job: run to its end, or found again when the session that
started it is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Job
from pytest_llmbench.core.userfile import is_there
from pytest_llmbench.launch.job_secrets import redact
from pytest_llmbench.launch.jobs import process
from pytest_llmbench.launch.schedulers.submission import OUTPUT, SubmitError

EXIT = "submit.exit"
GRACE_SECONDS = 5.0
# a shell's exit code above this is a signal: what the command had done is unknown
KILLED = 128


class ProcessRecords(Protocol):
    """Keeps by number which process submits a job, or is it: the journal."""

    def record_process(self, number: int, process: process.Process) -> None: ...
    def find_process(self, number: int) -> process.Process | None: ...


def start_command(
    job: Job,
    command: Sequence[str],
    output: Path,
    exit_file: Path,
    records: ProcessRecords,
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


class SubmitCommand:
    """Runs the commands that submit jobs, each for at most `seconds`."""

    def __init__(
        self,
        records: ProcessRecords,
        sleep: Callable[[float], None],
        seconds: float,
    ) -> None:
        self._records = records
        self._sleep = sleep
        self._seconds = seconds

    def run(
        self, job: Job, command: Sequence[str], environment: Mapping[str, str]
    ) -> int | None:
        """Run the command of a job to its end and return its exit code, None if it ran
        out of time."""
        spec = replace(job.spec, environment=tuple(environment.items()))
        output, exit_file = job.folder / OUTPUT, job.folder / EXIT
        begun = start_command(
            replace(job, spec=spec), command, output, exit_file, self._records
        )
        return self._wait_for_end(job, begun, self._seconds)

    def resume(self, job: Job, seconds: float) -> int | None:
        """Return the exit code of a command that an earlier session began, and wait
        `seconds` for it.

        None if it ran out of time, NEVER_RAN if it certainly did not run.
        """
        begun = self._records.find_process(job.number)
        if begun is None or not is_there(job.folder / OUTPUT):
            return process.NEVER_RAN
        code = process.read_exit_code(job.folder / EXIT)
        return self._wait_for_end(job, begun, seconds) if code is None else code

    def _wait_for_end(
        self, job: Job, begun: process.Process, seconds: float
    ) -> int | None:
        code = process.wait(begun, job.folder / EXIT, seconds, self._sleep)
        if code is not None:
            return code
        try:
            process.stop(begun, GRACE_SECONDS, self._sleep)
        except LaunchError as error:
            text = f"{job.spec.case_id}: its submission: {error}"
            raise SubmitError(text, uncertain=True) from error
        return None
