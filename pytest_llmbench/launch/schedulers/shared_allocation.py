"""Runs that share an allocation: its plan, the current allocations, and the runs' logs."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.formatting import count_noun
from pytest_llmbench.core.job_records import Job, JobIdentity, JobSpec, Purpose
from pytest_llmbench.core.userfile import path_exists

MINUTE = 60.0

RELEASE = "release"  # a file in an allocation's folder: no more runs follow
KEPT = "run.kept"  # a file in a run's folder: its logs were moved there


class SpecOwner(Protocol):
    """A planned or submitted job."""

    @property
    def spec(self) -> JobSpec: ...
    @property
    def identity(self) -> JobIdentity: ...


class LiveJobs(Protocol):
    """The part of the journal that lists running jobs."""

    def list_live(self) -> tuple[Job, ...]: ...


class AllocationPlan(Struct, frozen=True):
    """A configuration's shared allocation, or the reason for separate jobs."""

    spec: JobSpec | None = None  # of the allocation; None: each run is a separate job
    reason: str = ""  # why runs are separate jobs
    run_seconds: float = 0.0  # the time limit of a run
    limit_option: str = ""  # the time limit option of the command, up to its value

    def describe(self, runs: int, warm_ups: int) -> str:
        """Describe the allocation of `runs` runs, which include `warm_ups` warm-ups."""
        if self.spec is None:
            if not self.reason:
                return ""
            return (
                f"each run is a separate job, on the nodes of the first: {self.reason}"
            )
        seconds = round_up(runs * self.run_seconds)
        hours = seconds / 3600 * self.spec.occupied_gpus
        nodes = count_noun(self.spec.nodes, "node")
        limit = format_limit(seconds)
        return (
            f"all runs share one allocation: {nodes} for at most {limit}, {hours:,.1f} GPU-hours; {runs} runs, "
            f"{warm_ups} of them to warm up"
        )

    def size(self, runs: int) -> JobSpec | None:
        """Return the specification of an allocation for `runs` runs.

        The command gets the time limit. None if each run is a separate job.
        """
        if self.spec is None:
            return None
        limit = format_limit(round_up(runs * self.run_seconds))
        *words, script = self.spec.command
        return replace(
            self.spec,
            command=(*words, f"{self.limit_option}{limit}", script),
            gpu_hours=runs * self.spec.gpu_hours,
        )


def round_up(seconds: float) -> float:
    """Round seconds up to whole minutes."""
    return math.ceil(seconds / MINUTE) * MINUTE


def format_limit(seconds: float) -> str:
    """Format a time limit as `2:05:00`."""
    minutes = int(seconds // MINUTE)
    return f"{minutes // 60}:{minutes % 60:02}:00"


def place_run(spec: JobSpec, allocation: int, *, warm_up: bool = False) -> JobSpec:
    """Return the run of a variant in an allocation.

    Its command is the script that the original command submits, with its arguments:
    `sbatch -N 4 launch.sh 8b` becomes `launch.sh 8b`.
    """
    is_script = [word.endswith(".sh") for word in spec.command]
    script_index = is_script.index(True)
    return replace(
        spec,
        via="allocation",
        command=spec.command[script_index:],
        allocation=allocation,
        warm_up=warm_up,
    )


def is_allocation(job: SpecOwner) -> bool:
    """True if a job is a shared allocation."""
    return job.spec.purpose is Purpose.ALLOCATION


def waits_for_nodes(spec: JobSpec, before: Iterable[SpecOwner]) -> bool:
    """True if a run must wait for its allocation, one of the jobs `before` the run."""
    return any(
        is_allocation(job) and job.spec.case_id == spec.case_id for job in before
    )


def list_allocations(journal: LiveJobs) -> Iterator[Job]:
    """Yield the submitted allocations of a session that have not ended."""
    return (job for job in journal.list_live() if is_allocation(job) and job.job_id)


def find_allocation(journal: LiveJobs, spec: JobSpec) -> Job | None:
    """Return the allocation of a run, or None if it has ended."""
    for allocation in list_allocations(journal):
        # the repeat of an allocation job is the number of the allocation
        identity = (allocation.spec.case_id, allocation.repeat)
        if identity == (spec.case_id, spec.allocation):
            return allocation
    return None


def release(journal: LiveJobs, case_id: str) -> None:
    """End the allocations of a configuration as soon as they are idle."""
    for allocation in list_allocations(journal):
        if allocation.spec.case_id == case_id:
            with suppress(OSError):  # an idle allocation ends by itself
                (allocation.folder / RELEASE).touch()


def has_logs_in_folder(job: Job) -> bool:
    """True if the logs of a run were moved to its folder."""
    return path_exists(job.folder / KEPT)


def keep_logs(job: Job, logs: Iterable[Path], depth: int) -> None:
    """Move the logs of a run to its folder, keeping `depth` components of their paths.

    The next run in the allocation has the same job id, and may write files with the
    same names.
    """
    for log in logs:
        target = job.folder.joinpath(*log.parts[-depth:])
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(log, target)
    (job.folder / KEPT).touch()
