"""All schedulers: how the one of a job is found, and what is asked of each."""

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

HERE = "local"  # submits nothing: a command runs on this machine

HasSpec = TypeVar("HasSpec", Job, PlannedJob)


@cache
def load_scheduler(via: str) -> type[Scheduler]:
    """Return the scheduler of a job by the way in which it is submitted; LaunchError if
    there is none."""
    if via not in SCHEDULERS:
        expected = f"expected one of {', '.join(SCHEDULERS)}"
        raise LaunchError(
            f"no launcher {via!r}{did_you_mean(via, SCHEDULERS)}; {expected}"
        )
    module, _, name = SCHEDULERS[via].partition(":")
    scheduler: type[Scheduler] = getattr(import_module(module), name)
    return scheduler


def list_schedulers() -> list[type[Scheduler]]:
    """Return every scheduler once."""
    return list(dict.fromkeys(map(load_scheduler, SCHEDULERS)))


def name_clusters() -> str:
    """Name what runs jobs on a cluster: `Slurm`."""
    return " or ".join(each.name for each in list_schedulers() if not each.here)


def name_jobs_inquiries() -> str:
    """Name the commands that list the jobs of a user: `squeue --me`."""
    commands = (scheduler.jobs_inquiry for scheduler in list_schedulers())
    return " or ".join(filter(None, commands))


def find_via(program: str) -> str:
    """Return the way in which a program that somebody typed submits a job, `HERE` if it
    submits none."""
    ways = (scheduler.find_via(program) for scheduler in list_schedulers())
    return next(filter(None, ways), HERE)


class Schedulers:
    """The schedulers of a session, each made when it is needed first."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._made: dict[type[Scheduler], Scheduler] = {}

    def find(self, spec: JobSpec) -> Scheduler:
        """Return what runs a job; LaunchError if it is submitted in an unknown way."""
        try:
            return self.get(load_scheduler(spec.via))
        except LaunchError as error:
            raise LaunchError(f"{spec.case_id}: {error}") from None

    def get(self, scheduler: type[Scheduler]) -> Scheduler:
        """Return a scheduler of this class."""
        if scheduler not in self._made:
            self._made[scheduler] = scheduler(self._tools)
        return self._made[scheduler]

    def list_clusters(self) -> list[Scheduler]:
        """Return those that run jobs on a cluster."""
        return [
            self.get(scheduler) for scheduler in list_schedulers() if not scheduler.here
        ]

    def learn_cluster(self, gpu: str = "") -> LearnedCluster | None:
        """Return the cluster of the first scheduler that has GPUs; SchedulerAway if
        none answers."""
        away: list[SchedulerAway] = []
        for scheduler in self.list_clusters():
            try:
                if learned := scheduler.learn_cluster(gpu):
                    return learned
            except SchedulerAway as error:
                away.append(error)
        if len(away) == len(self.list_clusters()):
            raise away[0]
        return None

    def list_node_remarks(self, nodes: Collection[str]) -> dict[str, str]:
        """Return what is known of nodes that are out of service, by name. Raises
        SchedulerAway."""
        remarks: dict[str, str] = {}
        for scheduler in self.list_clusters():
            remarks |= scheduler.list_node_remarks(nodes)
        return remarks

    def find_cluster_name(self, jobs: Iterable[PlannedJob]) -> str:
        """Return the name of the cluster of jobs, or of this machine if all run here.
        Raises SchedulerAway."""
        used = [*self.group(jobs), self.get(load_scheduler(HERE))]
        chosen = next((scheduler for scheduler in used if not scheduler.here), used[-1])
        return chosen.find_cluster_name()

    def group(self, jobs: Iterable[HasSpec]) -> dict[Scheduler, list[HasSpec]]:
        """Return jobs, planned or submitted, by what runs them."""
        groups: dict[Scheduler, list[HasSpec]] = {}
        for job in jobs:
            groups.setdefault(self.find(job.spec), []).append(job)
        return groups
