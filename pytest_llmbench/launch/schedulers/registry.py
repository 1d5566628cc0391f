"""Look up the scheduler of a job, and query all schedulers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from importlib import import_module
from typing import TypeVar

from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.job_records import SCHEDULERS, Job, JobSpec
from pytest_llmbench.launch.plan.cluster_file import LearnedCluster
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.schedulers.scheduler import Scheduler
from pytest_llmbench.launch.schedulers.submission import SchedulerAway, Tools

HERE = "local"  # the launcher that runs a command on this machine

HasSpec = TypeVar("HasSpec", Job, PlannedJob)


@cache
def load_scheduler(via: str) -> type[Scheduler]:
    """Return the scheduler class of a launcher.

    Raises LaunchError if there is none.
    """
    if via not in SCHEDULERS:
        expected = f"expected one of {', '.join(SCHEDULERS)}"
        raise LaunchError(
            f"no launcher {via!r}{did_you_mean(via, SCHEDULERS)}; {expected}"
        )
    module, _, name = SCHEDULERS[via].partition(":")
    scheduler: type[Scheduler] = getattr(import_module(module), name)
    return scheduler


def list_schedulers() -> list[type[Scheduler]]:
    """List all scheduler classes, each once."""
    return list(dict.fromkeys(map(load_scheduler, SCHEDULERS)))


def name_clusters() -> str:
    """Return the names of the schedulers that run jobs on a cluster, such as `Slurm`."""
    return " or ".join(
        scheduler.name for scheduler in list_schedulers() if not scheduler.is_local
    )


def name_jobs_inquiries() -> str:
    """Return the commands that list the jobs of a user, such as `squeue --me`."""
    commands = (scheduler.jobs_inquiry for scheduler in list_schedulers())
    return " or ".join(filter(None, commands))


def find_via(program: str) -> str:
    """Return the launcher of a typed program, or `HERE` if it submits no job."""
    for scheduler in list_schedulers():
        if via := scheduler.find_via(program):
            return via
    return HERE


class Schedulers:
    """The schedulers of a session, each created on first use."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._instances: dict[type[Scheduler], Scheduler] = {}

    def find(self, spec: JobSpec) -> Scheduler:
        """Return the scheduler of a job.

        Raises LaunchError if its launcher is unknown.
        """
        try:
            return self.get(load_scheduler(spec.via))
        except LaunchError as error:
            raise LaunchError(f"{spec.case_id}: {error}") from None

    def get(self, scheduler: type[Scheduler]) -> Scheduler:
        """Return the scheduler of this class."""
        if scheduler not in self._instances:
            self._instances[scheduler] = scheduler(self._tools)
        return self._instances[scheduler]

    def list_clusters(self) -> list[Scheduler]:
        """Return the schedulers that run jobs on a cluster."""
        return [
            self.get(scheduler)
            for scheduler in list_schedulers()
            if not scheduler.is_local
        ]

    def learn_cluster(self, gpu: str = "") -> LearnedCluster | None:
        """Return the cluster of the first scheduler that has GPUs, or None.

        `gpu` restricts the GPU type. Raises SchedulerAway if no scheduler answers.
        """
        errors: list[SchedulerAway] = []
        schedulers = self.list_clusters()
        for scheduler in schedulers:
            try:
                if learned := scheduler.learn_cluster(gpu):
                    return learned
            except SchedulerAway as error:
                errors.append(error)
        if len(errors) == len(schedulers):
            raise errors[0]
        return None

    def list_node_remarks(self, nodes: Collection[str]) -> dict[str, str]:
        """Return the schedulers' remarks on nodes out of service, by node name.

        Raises SchedulerAway.
        """
        remarks: dict[str, str] = {}
        for scheduler in self.list_clusters():
            remarks |= scheduler.list_node_remarks(nodes)
        return remarks

    def find_cluster_name(self, jobs: Iterable[PlannedJob]) -> str:
        """Return the name of the cluster of jobs, or of this machine if all are local.

        Raises SchedulerAway.
        """
        for scheduler in self.group(jobs):
            if not scheduler.is_local:
                return scheduler.find_cluster_name()
        this_machine = self.get(load_scheduler(HERE))
        return this_machine.find_cluster_name()

    def group(self, jobs: Iterable[HasSpec]) -> dict[Scheduler, list[HasSpec]]:
        """Group jobs, planned or submitted, by their scheduler."""
        groups: dict[Scheduler, list[HasSpec]] = {}
        for job in jobs:
            groups.setdefault(self.find(job.spec), []).append(job)
        return groups
