"""Builds of commits in their checkouts: each is made once, before a run of it is
submitted, and its result is kept.

A build outlives a session that is killed, as a submission does; the next one waits for
it. Its record lies beside the checkout and is written before its command runs, so that
no two builds ever work in one checkout.
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
    # the time of its checkout: one that was removed and made again is not built
    checkout: int
    session: str  # that started it
    folder: str  # of the job, with output and exit code
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
        """Build the checkout of a job if it has one and that was not done before.

        SubmitError: the build failed, which its session does not try again; or it was
        killed (`STOPPED`), which says nothing of it.
        """
        if job.spec.build and job.spec.checkout:
            with self._hold(job.spec.checkout):
                self._build(job, job.spec.checkout)

    @contextmanager
    def _hold(self, checkout: Path) -> Iterator[None]:
        """Keep other sessions out of a checkout, and wait for one that is in it."""
        while (
            lock := acquire_lock(checkout.with_name(f"{checkout.name}.build.lock"))
        ) is None:
            self._sleep(1.0)
        try:
            yield
        finally:
            os.close(lock)

    def _build(self, job: Job, checkout: Path) -> None:
        file = checkout.with_name(f"{checkout.name}.build.json")
        record = _read_record(file)
        code = self._wait_for_end(record) if record else None
        if (
            record is None
            or code is None
            or not self._counts(record, code, job, checkout)
        ):
            record = self._start(job, checkout, file)
            code = self._wait_for_end(record)
        if code == 0:
            return
        output = Path(record.folder) / OUTPUT
        if code is None or code > KILLED or code == process.NEVER_RAN:
            text = f"{job.spec.case_id}: its build was killed, which says nothing of it: {output}"
            raise SubmitError(text, state=SubmissionState.STOPPED)
        words = quote_end(job, hide_secrets(output, job))
        raise SubmitError(
            f"{job.spec.case_id}: its build ended with exit code {code}: {words} (all of it: {output})"
        )

    def _counts(self, record: BuildRecord, code: int, job: Job, checkout: Path) -> bool:
        """Whether a result still holds: a failure only in its session, since what it
        lacked may be there by now."""
        same = record.command == _hide(job) and record.checkout == _read_time(checkout)
        failed = 0 < code <= KILLED and record.session == self._session
        return same and (code == 0 or failed)

    def _start(self, job: Job, checkout: Path, file: Path) -> BuildRecord:
        def record(started: process.Process) -> None:
            made.append(
                BuildRecord(
                    _hide(job),
                    _read_time(checkout),
                    self._session,
                    str(job.folder.absolute()),
                    started,
                )
            )
            part = file.with_suffix(".part")
            part.write_text(json.dumps(asdict(made[0])), encoding="utf-8")
            part.replace(file)

        made: list[BuildRecord] = []
        output, exit_file = job.folder / OUTPUT, job.folder / EXIT
        self._tell(
            f"llmbench: builds {checkout.name[:12]}, whose output is in {output}"
        )
        environment = dict(job.spec.environment)
        try:
            process.start(
                job.spec.build, checkout, environment, output, exit_file, record=record
            )
        except (LaunchError, OSError) as error:
            raise SubmitError(
                f"{job.spec.case_id}: its build: {redact(str(error), job.spec)}"
            ) from error
        return made[0]

    def _wait_for_end(self, record: BuildRecord) -> int | None:
        """Return the exit code of a build, None where it left none. Who interrupts it
        ends the build, too: whose session was another one, that session is no more."""
        exit_file = Path(record.folder) / EXIT
        code = process.read_exit_code(exit_file)
        if code is not None:
            return code
        try:
            return process.wait(record.process, exit_file, float("inf"), self._sleep)
        except KeyboardInterrupt:
            process.stop(record.process, GRACE_SECONDS, self._sleep)
            raise


def _hide(job: Job) -> tuple[str, ...]:
    """Return the command of a build without secrets."""
    return tuple(redact(word, job.spec) for word in job.spec.build)


def _read_time(checkout: Path) -> int:
    """Return when a checkout was made: git writes this file then, and no build does."""
    return (checkout / ".git").stat().st_mtime_ns


def _read_record(file: Path) -> BuildRecord | None:
    """Return the record of the last build of a checkout; None where there is none, or
    nothing that one could be."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        begun = process.Process(**fields.pop("process"))
        return BuildRecord(
            **{**fields, "command": tuple(fields["command"])}, process=begun
        )
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ):
        return None
