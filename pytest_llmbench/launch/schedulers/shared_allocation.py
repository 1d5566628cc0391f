"""Runs that share an allocation: its plan, the allocations that a session holds, and
the logs of their runs."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pytest_llmbench.core.formatting import count_noun
from pytest_llmbench.core.job_records import Job, JobIdentity, JobSpec, Purpose
from pytest_llmbench.core.userfile import is_there

MINUTE = 60.0

RELEASE = "release"  # a file in the folder of an allocation: no run follows
KEPT = "run.kept"  # a file in the folder of a run: its logs are there


class SpecOwner(Protocol):
    """A job, or one that is to be submitted."""

    @property
    def spec(self) -> JobSpec: ...
    @property
    def identity(self) -> JobIdentity: ...


class LiveJobs(Protocol):
    """The journal, which knows the allocations."""

    def list_live(self) -> tuple[Job, ...]: ...


@dataclass(frozen=True, slots=True)
class AllocationPlan:
    """How the runs of a configuration's variants get their nodes."""

    spec: JobSpec | None = None  # of the allocation; None: each run is a job of its own
    because: str = ""  # why so, where they could share one
    run_seconds: float = 0.0  # what a run may take
    limit_option: str = ""  # how its command is given a time limit, up to the value

    def describe(self, runs: int, warm_ups: int) -> str:
        """Return in a line how `runs` get their nodes; the first `warm_ups` are
        discarded."""
        if self.spec is None:
            return (
                f"each run is a job of its own, on the nodes of the first: {self.because}"
                if self.because
                else ""
            )
        seconds = round_up(runs * self.run_seconds)
        hours = seconds / 3600 * self.spec.occupied_gpus
        nodes, limit = count_noun(self.spec.nodes, "node"), format_limit(seconds)
        return (
            f"one allocation holds all runs: {nodes} for at most {limit}, {hours:,.1f} GPU-hours; {runs} runs, "
            f"{warm_ups} of them to warm up"
        )

    def size(self, runs: int) -> JobSpec | None:
        """Return the allocation for so many runs."""
        if self.spec is None:
            return None
        *words, script = self.spec.command
        limit = f"{self.limit_option}{format_limit(round_up(runs * self.run_seconds))}"
        return replace(
            self.spec,
            command=(*words, limit, script),
            gpu_hours=runs * self.spec.gpu_hours,
        )


def round_up(seconds: float) -> float:
    """Return seconds rounded up to whole minutes."""
    return math.ceil(seconds / MINUTE) * MINUTE


def format_limit(seconds: float) -> str:
    """Return a time limit as `2:05:00`."""
    minutes = int(seconds // MINUTE)
    return f"{minutes // 60}:{minutes % 60:02}:00"


def place_run(spec: JobSpec, allocation: int, *, warm_up: bool = False) -> JobSpec:
    """Return the run of a variant in an allocation: the script that its command
    submits, with its arguments."""
    index = next(
        index for index, word in enumerate(spec.command) if word.endswith(".sh")
    )
    return replace(
        spec,
        via="allocation",
        command=spec.command[index:],
        allocation=allocation,
        warm_up=warm_up,
    )


def is_allocation(job: SpecOwner) -> bool:
    """Return True if a job is an allocation for runs."""
    return job.spec.purpose is Purpose.ALLOCATION


def waits_for_nodes(spec: JobSpec, before: Iterable[SpecOwner]) -> bool:
    """Return True if the allocation of a run is among what is submitted before it."""
    return any(job.spec.case_id == spec.case_id for job in before if is_allocation(job))


def list_allocations(journal: LiveJobs) -> Iterator[Job]:
    """Yield the allocations of a session that have not ended."""
    return (job for job in journal.list_live() if is_allocation(job) and job.job_id)


def find_allocation(journal: LiveJobs, spec: JobSpec) -> Job | None:
    """Return the allocation of a run; None if it has ended."""
    wanted = (spec.case_id, spec.allocation)
    return next(
        (
            job
            for job in list_allocations(journal)
            if (job.spec.case_id, job.repeat) == wanted
        ),
        None,
    )


def release(journal: LiveJobs, case_id: str) -> None:
    """End the allocations of a configuration, in which no run is under way."""
    for allocation in list_allocations(journal):
        if allocation.spec.case_id == case_id:
            with suppress(OSError):  # it ends by itself soon
                (allocation.folder / RELEASE).touch()


def has_logs_in_folder(job: Job) -> bool:
    """Return True if the logs of a run were put into its own folder."""
    return is_there(job.folder / KEPT)


def keep_logs(job: Job, logs: Iterable[Path], depth: int) -> None:
    """Move the logs of a run into its own folder, under the last `depth` parts of their
    paths.

    The next run in the allocation has the same job id, and may write files of the same
    names.
    """
    for log in logs:
        target = job.folder.joinpath(*log.parts[-depth:])
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(log, target)
    (job.folder / KEPT).touch()
