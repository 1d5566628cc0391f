"""GPU-hours of a session that launches: what its jobs used, what they may still use,
and whether another may start."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from pytest_llmbench.core import formatting
from pytest_llmbench.core.job_records import (
    NEVER_MADE,
    EndedBy,
    Job,
    JobCost,
    JobIdentity,
    JobSpec,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.schedulers.registry import load_scheduler
from pytest_llmbench.launch.schedulers.shared_allocation import list_allocations

SECONDS = 3600.0

ROUNDING = 1e-9  # sums of GPU-hours that differ by less are equal


def measure_cost(job: Job) -> JobCost:
    """Return what a job that is over has used, without a word on what was lost of it.

    Nothing is made up: a start of which nobody knows how long it took counts nothing,
    and the cost is not exact. A run in an allocation costs nothing besides that.
    """
    spec, status = job.spec, job.status
    if spec.allocation:
        return JobCost()
    if job.refused or status is None:
        certain = job.refused and job.submission is not SubmissionState.UNCERTAIN
        return JobCost(spec.gpu_hours, exact=certain)
    hours_each = spec.occupied_gpus / SECONDS
    requeued = sum(status.earlier_seconds) * hours_each
    exact = len(status.earlier_seconds) >= status.restarts
    if status.phase is not Phase.ENDED:  # purged or lost: it may have run for any time
        return JobCost(spec.gpu_hours, requeued, requeued, exact=False)
    seconds = status.elapsed_seconds
    if seconds is None and status.started and status.ended:
        seconds = (status.ended - status.started).total_seconds()
    phase = load_scheduler(spec.via).find_phase(status.state)
    given_up = (
        status.ended_by is EndedBy.PYTEST and phase is not Phase.ENDED
    )  # it runs on
    used = requeued + max(seconds or 0.0, 0.0) * hours_each
    return JobCost(
        spec.gpu_hours,
        used,
        requeued,
        exact=exact and seconds is not None and not given_up,
    )


def describe_used(jobs: Iterable[Job]) -> str:
    """Return what jobs have used, as `12.3 GPU-hours used`; at least so many where it
    is not known of all."""
    costs = [measure_cost(job) for job in jobs]
    at_least = "" if all(cost.exact for cost in costs) else "at least "
    return f"{at_least}{formatting.format_hours(sum(cost.used for cost in costs))} GPU-hours used"


def measure_running(journal: Journal, now: datetime) -> dict[JobIdentity, float]:
    """Return the GPU-hours that each allocation of a session has used so far, of those
    that have not ended."""
    return {
        job.identity: max((now - job.status.started).total_seconds(), 0.0)
        * job.spec.occupied_gpus
        / SECONDS
        for job in list_allocations(journal)
        if job.status and job.status.phase is Phase.RUNNING and job.status.started
    }


class HoursBudget:
    """The GPU-hours that a session may use: those that its ended jobs used, and the
    estimates of the others.

    An estimate is reserved for a job when it is planned, and replaced by what it used
    when it has ended; of a job of which that is not known at least the estimate is
    counted. What an allocation has used so far is counted anew with each run in it that
    has ended; the next one is taken to need as long as the longest.
    """

    def __init__(
        self, limit: float, held: Callable[[], Mapping[JobIdentity, float]] = dict
    ) -> None:
        """Take what is allowed, and what tells how much the allocations that have not
        ended have used."""
        self.limit = limit
        self._held = held
        self._used: dict[JobIdentity, float] = {}
        self._reserved: dict[JobIdentity, float] = {}
        self._submitted: set[JobIdentity] = set()
        self._longest: dict[
            str, float
        ] = {}  # GPU-hours of a run in an allocation, by configuration

    @property
    def used(self) -> float:
        """What the jobs that are over have used, and the allocations until their last
        run ended."""
        return sum(self._used.values())

    def take_up(self, jobs: Iterable[Job], live: Collection[int]) -> None:
        """Count the jobs of a session that goes on; `live` are the numbers of those
        that are not over."""
        for job in jobs:
            if job.number in live:
                self._reserved[job.identity] = self._count_hours(job.spec)
                self._submitted.add(job.identity)
            else:
                self.settle(job)

    def plan(self, specs: Iterable[JobSpec]) -> None:
        """Reserve the estimates of first runs, which were held against the limit
        together before."""
        for spec in specs:
            identity = (spec.case_id, spec.purpose.value, 1, 1)
            if identity not in self._used:
                self._reserved.setdefault(identity, self._count_hours(spec))

    def reserve(self, jobs: Sequence[NextJob]) -> str:
        """Reserve the estimates of jobs that are to follow; or return why they do not
        fit, with the numbers. What was planned or made before, in a session that goes
        on, is not counted twice."""
        new = {
            job.identity: self._count_hours(job.spec)
            for job in jobs
            if not self._has(job)
        }
        reserved = sum(self._reserved.values())
        if new and self._exceeds(reserved + sum(new.values())):
            runs = sum(purpose != Purpose.ALLOCATION for _, purpose, _, _ in new)
            return self._explain(
                formatting.count_noun(runs, "run"), sum(new.values()), reserved
            )
        self._reserved |= new
        return ""

    def admit(self, job: Job) -> str:
        """Return why a job that is about to be submitted may not start (any more);
        empty where it may."""
        identity = job.identity
        others = sum(
            hours
            for other, hours in self._reserved.items()
            if other in self._submitted - {identity}
        )
        if self._exceeds(others + self._count_hours(job.spec)):
            self._reserved.pop(identity, None)
            return self._explain("it", self._count_hours(job.spec), others)
        self._reserved[identity] = self._count_hours(job.spec)
        self._submitted.add(identity)
        return ""

    def settle(self, job: Job) -> None:
        """Count what a job that is over has used, in place of its estimate."""
        self._reserved.pop(job.identity, None)
        self._submitted.discard(job.identity)
        if job.submission in NEVER_MADE:
            return  # it may be planned once more
        cost = measure_cost(job)
        self._used[job.identity] = (
            cost.used if cost.exact else max(cost.used, cost.estimated)
        )
        if job.spec.allocation:
            self._settle_run(job)

    def _settle_run(self, job: Job) -> None:
        """Count what the allocation of a run that is over has used so far."""
        case, status = job.spec.case_id, job.status
        self._used |= {
            identity: hours
            for identity, hours in self._held().items()
            if identity[0] == case
        }
        if (
            status and status.state == "COMPLETED"
        ):  # one that stood still tells nothing of the next one
            hours = (status.elapsed_seconds or 0.0) * job.spec.occupied_gpus / SECONDS
            self._longest[case] = max(self._longest.get(case, 0.0), hours)

    def _has(self, job: NextJob) -> bool:
        return job.identity in self._used or job.identity in self._reserved

    def _exceeds(self, more: float) -> bool:
        return self.used + more > self.limit + ROUNDING

    def _explain(self, what: str, hours: float, reserved: float) -> str:
        takes = "takes" if what == "it" or what.startswith("1 ") else "take"
        needed, used, under_way = map(
            formatting.format_hours, (hours, self.used, reserved)
        )
        rest = f" and {under_way} reserved" if reserved else ""
        return f"{what} {takes} {needed} GPU-hours, and of the {self.limit:,.10g} allowed {used} are used{rest}"

    def _count_hours(self, spec: JobSpec) -> float:
        """Return the estimate of a job; an allocation costs what the next run in it
        does, and nothing besides."""
        if spec.purpose is Purpose.ALLOCATION:
            return 0.0
        return max(
            spec.gpu_hours,
            self._longest.get(spec.case_id, 0.0) if spec.allocation else 0.0,
        )
