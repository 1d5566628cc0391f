"""Fake schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pytest_llmbench.core.commands import run
from pytest_llmbench.core.job_records import SCHEDULERS, JobSpec
from pytest_llmbench.launch.schedulers.registry import Schedulers, load_scheduler
from pytest_llmbench.launch.schedulers.scheduler import Scheduler
from pytest_llmbench.launch.schedulers.slurm.client import Slurm
from pytest_llmbench.launch.schedulers.slurm.slurm_scheduler import SlurmScheduler
from pytest_llmbench.launch.schedulers.submission import JobRecords, Tools

TOOLS = Tools(run, {})


class FakeSchedulers(Schedulers):
    """Schedulers, some of which are replaced by fakes.

    `stand_ins` maps a submission method (`JobSpec.via`) to its fake scheduler.
    """

    def __init__(self, stand_ins: Mapping[str, Scheduler]) -> None:
        super().__init__(TOOLS)
        self.stand_ins = dict(stand_ins)

    def find(self, spec: JobSpec) -> Scheduler:
        """Return the fake scheduler of a job, or else the real one. Raises LaunchError
        if there is no such scheduler."""
        return self.stand_ins.get(spec.via) or super().find(spec)


def make_slurm(
    client: object, journal: JobRecords | None = None, **tools: Any
) -> SlurmScheduler:
    """Build a Slurm scheduler with a fake client."""
    scheduler_tools = Tools(run, {}, journal, **tools)
    return SlurmScheduler(scheduler_tools, cast("Slurm", client))


def make_slurm_schedulers(client: object) -> Schedulers:
    """Build schedulers whose Slurm scheduler has a fake client."""
    slurm = make_slurm(client)
    return FakeSchedulers(
        {via: slurm for via in SCHEDULERS if not load_scheduler(via).is_local}
    )
