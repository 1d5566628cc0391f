"""Jobs and job states for launch tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.job_records import Job, JobSpec, JobStatus, Phase, Purpose

KEY = Key("grok1", "314b", "25.05", "gb200", "bf16", 128)
START = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


def job_spec(folder: Path, **changes: Any) -> JobSpec:
    """Build a local job that does nothing in `folder`."""
    spec = JobSpec(
        case_id=KEY.id,
        key=KEY,
        purpose=Purpose.MEASURE,
        via="local",
        command=("true",),
        directory=folder,
        environment=(("PATH", "/usr/bin:/bin"),),
        secrets=(),
        nodes=1,
        gpus=1,
        gpu_hours=0.1,
    )
    return replace(spec, **changes)


def job(folder: Path, number: int = 1, **changes: Any) -> Job:
    """Build a job as the journal stores it."""
    template = Job(
        number=number,
        token=f"token{number}",
        spec=job_spec(folder),
        folder=folder,
        job_id=str(4710 + number),
    )
    return replace(template, **changes)


def waiting(reason: str = "Resources", **fields: Any) -> JobStatus:
    """Build the status of a pending job."""
    return JobStatus(Phase.WAITING, "PENDING", reason=reason, **fields)


def running(*nodes: str, **fields: Any) -> JobStatus:
    """Build the status of a running job."""
    return JobStatus(Phase.RUNNING, "RUNNING", nodes=nodes or ("n1",), **fields)


def ended(state: str = "COMPLETED", exit_code: str = "0:0", **fields: Any) -> JobStatus:
    """Build the status of an ended job."""
    return JobStatus(Phase.ENDED, state, nodes=("n1",), exit_code=exit_code, **fields)


class Clock:
    """A clock that advances only by sleeping."""

    def __init__(self, start: datetime = START) -> None:
        self.time = start
        self.slept: list[float] = []

    def now(self) -> datetime:
        """Return the current time."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        assert seconds >= 0
        self.slept.append(seconds)
        self.time += timedelta(seconds=seconds)
