"""What has become of one launched configuration, and of each of its jobs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.job_records import Blame, EndedBy, Job, JobEnd, JobSpec, LaunchedJob, Loss, Purpose
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.core.stall_limits import StallPlace
from pytest_llmbench.launch.hours_budget import measure_cost
from pytest_llmbench.session.outcomes import ConfigurationResult

if TYPE_CHECKING:
    from pytest_llmbench.judge.cluster import NodeFinding


@dataclass(slots=True)
class ConfigurationProgress:
    """What has become of one configuration so far."""

    spec: JobSpec
    waiting: set[int]  # the repeats that have not ended
    jobs: list[tuple[Job, JobEnd]] = field(default_factory=list)  # in the order in which they ended
    runs: dict[int, Run] = field(default_factory=dict)  # by repeat, as are the failures
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by run id
    failures: dict[int, Judgement] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    notes: str = ""
    profiled: bool = False
    planned_exclude: tuple[str, ...] = ()  # the nodes that the session leaves out from its beginning
    nowhere_else: bool = False  # the cluster had no other nodes for a repeat
    held_back: set[tuple[int, int]] = field(default_factory=set)  # (repeat, attempt) that only collecting left out
    confirmations: list[Run] = field(default_factory=list)  # runs on suspect nodes, beside the verdict
    confirmed_seconds: dict[str, float | None] = field(default_factory=dict)  # of those that the history asked for
    nodes_checked: bool = False  # such a run was asked for, and the site's check
    finding: NodeFinding | None = None  # what all runs tell of their nodes
    unjudged: bool = False  # its jobs ended well, and yet there is no verdict on them
    result: ConfigurationResult | None = None


def describe_hung(progress: ConfigurationProgress) -> str:
    """Return which jobs of a configuration stood still, on which nodes, and where in their runs."""
    texts = [f"job {job.job_id}{_name_nodes(job)}: {end.text}" for job, end in progress.jobs if end.blame is Blame.HUNG]
    return join_texts(*texts)


def _name_nodes(job: Job) -> str:
    nodes = formatting.fold_nodes(get_nodes(job))
    return f" on {nodes}" if nodes else ""


def join_texts(*texts: str) -> str:
    """Return what several have to say as one text."""
    return "; ".join(filter(None, texts))


def has_stepped(job: Job) -> bool:
    """Whether a job that stood still had come to a step, which its end names."""
    stall = job.status.stall if job.status else None
    return stall is not None and stall.place is not StallPlace.START


def get_nodes(job: Job) -> tuple[str, ...]:
    """Return the nodes of a job, none before it started."""
    return job.status.nodes if job.status else ()


def describe_job(progress: ConfigurationProgress, job: Job, end: JobEnd, result: ConfigurationResult) -> LaunchedJob:
    """Return a job behind a verdict, for the reports."""
    judged = {measurement.run.found.job_id: measurement.statistic_seconds for measurement in result.judgement.runs}
    seconds = {**progress.confirmed_seconds, **judged}
    status = job.status
    return LaunchedJob(
        job_id=job.job_id,
        purpose=job.spec.purpose,
        attempt=job.attempt,
        repeat=job.repeat,
        state=status.state if status else "",
        nodes=get_nodes(job),
        step_seconds=seconds.get(job.job_id),
        text=job.problem or end.text,
        files=tuple(progress.files) if job.spec.purpose is not Purpose.MEASURE else (),
        submission=job.submission,
        ended_by=status.ended_by if status else EndedBy.OTHERS,
        started=status.started if status and status.nodes else None,
        cost=dataclasses.replace(measure_cost(job), loss=_find_loss(progress, job, end)),
    )


def _find_loss(progress: ConfigurationProgress, job: Job, end: JobEnd) -> Loss | None:
    """Return why a job brought nothing: another one took its place, or its run could not be judged."""
    mine = job.spec.purpose is progress.spec.purpose
    later = mine and any(other.repeat == job.repeat and other.attempt > job.attempt for other, _ in progress.jobs)
    failed = job.repeat in progress.failures or progress.unjudged if mine else end.blame is not Blame.NONE
    if not (later or failed):
        return None
    return Loss.HUNG if end.blame is Blame.HUNG else Loss.FAILED
