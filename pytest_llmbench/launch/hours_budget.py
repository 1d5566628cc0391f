"""The GPU-hours budget of a launch: hours used, hours reserved, and the limit."""

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

SECONDS_PER_HOUR = 3600.0

ROUNDING = 1e-9  # sums of GPU-hours that differ by less are equal


def measure_cost(job: Job) -> JobCost:
    """Compute the GPU-hours that an ended job used.

    A start of unknown length counts as 0 hours, and the cost is marked as not exact. A
    run inside an allocation costs nothing, because the allocation is counted. The
    `loss` of the cost is None; the caller determines it.
    """
    spec, status = job.spec, job.status
    if spec.allocation:
        return JobCost()
    if job.refused or status is None:
        never_ran = job.refused and job.submission is not SubmissionState.UNCERTAIN
        return JobCost(spec.gpu_hours, exact=never_ran)
    hours_per_second = spec.occupied_gpus / SECONDS_PER_HOUR
    requeued = sum(status.earlier_seconds) * hours_per_second
    has_all_starts = len(status.earlier_seconds) >= status.restarts
    if status.phase is not Phase.ENDED:  # purged or lost: it may have run for any time
        return JobCost(spec.gpu_hours, requeued, requeued, exact=False)
    seconds = status.elapsed_seconds
    if seconds is None and status.started and status.ended:
        seconds = (status.ended - status.started).total_seconds()
    phase = load_scheduler(spec.via).find_phase(status.state)
    # pytest gave the job up, but could not cancel it
    still_runs = status.ended_by is EndedBy.PYTEST and phase is not Phase.ENDED
    used = requeued + max(seconds or 0.0, 0.0) * hours_per_second
    return JobCost(
        spec.gpu_hours,
        used,
        requeued,
        exact=has_all_starts and seconds is not None and not still_runs,
    )


def describe_used(jobs: Iterable[Job]) -> str:
    """Format the GPU-hours used, as `12.3 GPU-hours used`.

    Starts with `at least` if the hours of a job are unknown.
    """
    costs = [measure_cost(job) for job in jobs]
    at_least = "" if all(cost.exact for cost in costs) else "at least "
    return f"{at_least}{formatting.format_hours(sum(cost.used for cost in costs))} GPU-hours used"


def measure_running(journal: Journal, now: datetime) -> dict[JobIdentity, float]:
    """Return the GPU-hours used so far by each running allocation."""
    return {
        job.identity: max((now - job.status.started).total_seconds(), 0.0)
        * job.spec.occupied_gpus
        / SECONDS_PER_HOUR
        for job in list_allocations(journal)
        if job.status and job.status.phase is Phase.RUNNING and job.status.started
    }


class HoursBudget:
    """The GPU-hours that a session may use.

    Counts the hours that ended jobs used, plus the estimates of all other jobs. An
    estimate is reserved when a job is planned, and replaced by the used hours when the
    job ends. If the used hours are not exact, at least the estimate is counted.

    The hours of a running allocation are updated whenever a run in it ends. The next
    run in it is assumed to need as long as the longest run so far.
    """

    def __init__(
        self,
        limit: float,
        measure_running: Callable[[], Mapping[JobIdentity, float]] = dict,
    ) -> None:
        """`limit` is in GPU-hours. `measure_running` returns the hours used by running
        allocations."""
        self.limit = limit
        self._measure_running = measure_running
        self._used: dict[JobIdentity, float] = {}
        self._reserved: dict[JobIdentity, float] = {}
        self._submitted: set[JobIdentity] = set()
        # GPU-hours of the longest run in an allocation, by configuration
        self._longest: dict[str, float] = {}

    @property
    def used(self) -> float:
        """The GPU-hours used by ended jobs, and in allocations by ended runs."""
        return sum(self._used.values())

    def add_resumed(self, jobs: Iterable[Job], live: Collection[int]) -> None:
        """Count the jobs of a resumed session.

        `live` are the numbers of its unfinished jobs.
        """
        for job in jobs:
            if job.number in live:
                self._reserved[job.identity] = self._estimate_hours(job.spec)
                self._submitted.add(job.identity)
            else:
                self.add_ended(job)

    def reserve_first(self, specs: Iterable[JobSpec]) -> None:
        """Reserve the estimates of first runs, without checking the limit again."""
        for spec in specs:
            identity = NextJob(spec).identity
            if identity not in self._used:
                self._reserved.setdefault(identity, self._estimate_hours(spec))

    def reserve(self, jobs: Sequence[NextJob]) -> str:
        """Reserve the estimates of the next jobs, and return "".

        If the estimates exceed the limit, reserves nothing and returns the reason. Jobs
        that a resumed session planned or ran before are not counted twice.
        """
        new = {
            job.identity: self._estimate_hours(job.spec)
            for job in jobs
            if not self._is_counted(job)
        }
        reserved = sum(self._reserved.values())
        if new and self._exceeds(reserved + sum(new.values())):
            purposes = [purpose for _case, purpose, _attempt, _repeat in new]
            runs = sum(purpose != Purpose.ALLOCATION for purpose in purposes)
            verb = "takes" if runs == 1 else "take"
            subject = f"{formatting.count_noun(runs, 'run')} {verb}"
            return self._explain(subject, sum(new.values()), reserved)
        self._reserved |= new
        return ""

    def admit(self, job: Job) -> str:
        """Reserve the estimate of a job about to be submitted, and return "".

        If the estimate exceeds the limit now, drops the reservation and returns the
        reason. Of the reservations, only those of submitted jobs count against the job.
        """
        identity = job.identity
        other_hours = sum(
            hours
            for other, hours in self._reserved.items()
            if other in self._submitted - {identity}
        )
        if self._exceeds(other_hours + self._estimate_hours(job.spec)):
            self._reserved.pop(identity, None)
            return self._explain(
                "the job takes", self._estimate_hours(job.spec), other_hours
            )
        self._reserved[identity] = self._estimate_hours(job.spec)
        self._submitted.add(identity)
        return ""

    def add_ended(self, job: Job) -> None:
        """Replace the estimate of an ended job by the hours it used."""
        self._reserved.pop(job.identity, None)
        self._submitted.discard(job.identity)
        if job.submission in NEVER_MADE:
            return  # the job may be planned again
        cost = measure_cost(job)
        self._used[job.identity] = (
            cost.used if cost.exact else max(cost.used, cost.estimated)
        )
        if job.spec.allocation:
            self._update_allocation(job)

    def _update_allocation(self, job: Job) -> None:
        """Update the used hours of the allocation when a run in it has ended.

        Also remember the longest completed run of each configuration.
        """
        case, status = job.spec.case_id, job.status
        for identity, hours in self._measure_running().items():
            allocation_case, *_ = identity
            if allocation_case == case:
                self._used[identity] = hours
        # only a completed run predicts the next run
        if status and status.state == "COMPLETED":
            hours = (
                (status.elapsed_seconds or 0.0)
                * job.spec.occupied_gpus
                / SECONDS_PER_HOUR
            )
            self._longest[case] = max(self._longest.get(case, 0.0), hours)

    def _is_counted(self, job: NextJob) -> bool:
        return job.identity in self._used or job.identity in self._reserved

    def _exceeds(self, hours: float) -> bool:
        return self.used + hours > self.limit + ROUNDING

    def _explain(self, subject: str, hours: float, reserved: float) -> str:
        """Explain an exceeded limit. `subject` includes the verb: `2 runs take`."""
        needed, used, reserved_hours = map(
            formatting.format_hours, (hours, self.used, reserved)
        )
        reserved_text = f" and {reserved_hours} reserved" if reserved else ""
        return f"{subject} {needed} GPU-hours, but {used} of the {self.limit:,.10g} allowed are used{reserved_text}"

    def _estimate_hours(self, spec: JobSpec) -> float:
        """Estimate the GPU-hours of a job.

        An allocation costs nothing in addition to the runs in it. A run in an
        allocation needs at least as long as the longest run so far.
        """
        if spec.purpose is Purpose.ALLOCATION:
            return 0.0
        return max(
            spec.gpu_hours,
            self._longest.get(spec.case_id, 0.0) if spec.allocation else 0.0,
        )
