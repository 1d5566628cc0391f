"""Build each commit once in its checkout, before a run of it is submitted.

A build continues if its session is killed, as a submission does; the next session waits
for it. The record of a build lies next to its checkout, and is written before the
command starts, so that two builds never work in one checkout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Job, SubmissionState
from pytest_llmbench.launch.file_lock import acquire_lock
from pytest_llmbench.launch.job_secrets import redact
from pytest_llmbench.launch.schedulers import process
from pytest_llmbench.launch.schedulers.submission import (
    GRACE_SECONDS,
    KILLED,
    SubmitError,
    hide_secrets,
    quote_end,
)

OUTPUT = "build.out"
EXIT = "build.exit"


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """A build that was started."""

    command: tuple[str, ...]
    # creation time of the checkout (ns): a recreated checkout must be built again
    checkout: int
    session: str  # the session that started it
    folder: str  # the folder of the job, with output and exit code
    process: process.Process


class Builder:
    """Runs the command that builds the checkout of a job."""

    def __init__(
        self, session: str, sleep: Callable[[float], None], tell: Callable[[str], None]
    ) -> None:
        self._session = session
        self._sleep = sleep
        self._tell = tell

    def build(self, job: Job) -> None:
        """Build the checkout of a job, if it has one that was not built before.

        Raises SubmitError if the build failed, which is not retried in this session.
        Also raises SubmitError if the build was killed, with the state `STOPPED`,
        because the commit is not at fault.
        """
        if job.spec.build and job.spec.checkout:
            with self._lock_checkout(job.spec.checkout):
                self._build(job, job.spec.checkout)

    @contextmanager
    def _lock_checkout(self, checkout: Path) -> Iterator[None]:
        """Lock a checkout, after waiting for a session that has it locked."""
        lock_file = checkout.with_name(f"{checkout.name}.build.lock")
        while (lock := acquire_lock(lock_file)) is None:
            self._sleep(1.0)
        try:
            yield
        finally:
            os.close(lock)

    def _build(self, job: Job, checkout: Path) -> None:
        """Run the build command of a checkout, or reuse its recorded result.

        Raises SubmitError if the build failed or was killed.
        """
        record_file = checkout.with_name(f"{checkout.name}.build.json")
        record = _read_record(record_file)
        exit_code = self._wait_for_end(record) if record else None
        is_reusable = (
            record is not None
            and exit_code is not None
            and self._is_valid(record, exit_code, job, checkout)
        )
        if record is None or not is_reusable:
            record = self._start(job, checkout, record_file)
            exit_code = self._wait_for_end(record)
        if exit_code == 0:
            return
        output = Path(record.folder) / OUTPUT
        if (
            exit_code is None  # killed with its wrapper, or the machine went down
            or exit_code > KILLED  # by a signal
            or exit_code == process.NEVER_RAN
        ):
            text = f"{job.spec.case_id}: its build was killed. Output: {output}"
            raise SubmitError(text, state=SubmissionState.STOPPED)
        last_lines = quote_end(job, hide_secrets(output, job))
        raise SubmitError(
            f"{job.spec.case_id}: its build ended with exit code {exit_code}: {last_lines} (full output: {output})"
        )

    def _is_valid(
        self, record: BuildRecord, exit_code: int, job: Job, checkout: Path
    ) -> bool:
        """True if the result of a build is still valid.

        It is valid for the same command in the same checkout. A failure is valid only in
        its own session, since its cause may be gone by now.
        """
        has_same_command = record.command == _mask_command(job)
        has_same_checkout = record.checkout == _read_creation_time(checkout)
        if not (has_same_command and has_same_checkout):
            return False
        has_failed = 0 < exit_code <= KILLED  # neither a success nor killed
        is_own_failure = has_failed and record.session == self._session
        return exit_code == 0 or is_own_failure

    def _start(self, job: Job, checkout: Path, record_file: Path) -> BuildRecord:
        """Start the build command, and record its process next to the checkout.

        Raises SubmitError if the command cannot be started.
        """
        records: list[BuildRecord] = []  # gets the record when the process is known

        def record(started: process.Process) -> None:
            """Write the record of the build, before its command runs."""
            build_record = BuildRecord(
                _mask_command(job),
                _read_creation_time(checkout),
                self._session,
                str(job.folder.absolute()),
                started,
            )
            records.append(build_record)
            # replaced as a whole: an interrupted write must not leave half a record
            partial_file = record_file.with_suffix(".part")
            partial_file.write_text(json.dumps(asdict(build_record)), encoding="utf-8")
            partial_file.replace(record_file)

        output, exit_file = job.folder / OUTPUT, job.folder / EXIT
        self._tell(f"llmbench: building {checkout.name[:12]}, output in {output}")
        environment = dict(job.spec.environment)
        try:
            process.start(
                job.spec.build, checkout, environment, output, exit_file, record=record
            )
        except (LaunchError, OSError) as error:
            raise SubmitError(
                f"{job.spec.case_id}: its build: {redact(str(error), job.spec)}"
            ) from error
        (build_record,) = records
        return build_record

    def _wait_for_end(self, record: BuildRecord) -> int | None:
        """Wait for the exit code of a build; None if the build left no exit code.

        An interrupt also stops a build that another session started: that session has
        ended, since it no longer locks the checkout.
        """
        exit_file = Path(record.folder) / EXIT
        code = process.read_exit_code(exit_file)
        if code is not None:
            return code
        try:
            return process.wait(record.process, exit_file, float("inf"), self._sleep)
        except KeyboardInterrupt:
            process.stop(record.process, GRACE_SECONDS, self._sleep)
            raise


def _mask_command(job: Job) -> tuple[str, ...]:
    """Return the build command with masked secrets."""
    return tuple(redact(word, job.spec) for word in job.spec.build)


def _read_creation_time(checkout: Path) -> int:
    """Return the creation time of a checkout in nanoseconds.

    This is the time of its file `.git`, which only git writes, when it creates the
    checkout.
    """
    return (checkout / ".git").stat().st_mtime_ns


def _read_record(file: Path) -> BuildRecord | None:
    """Read the record of the last build of a checkout; None if missing or damaged."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        decoded = {
            "command": tuple(fields["command"]),
            "process": process.Process(**fields["process"]),
        }
        return BuildRecord(**{**fields, **decoded})
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ):
        return None
