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
    run in an allocation costs nothing, because the whole allocation is counted. The
    `loss` of the cost is None; the caller determines it.
    """
    spec, status = job.spec, job.status
    if spec.allocation:
        return JobCost()
    if job.refused or status is None:
        # a job whose submission is uncertain may run, so its 0 hours are not exact
        never_ran = job.refused and job.submission is not SubmissionState.UNCERTAIN
        return JobCost(spec.gpu_hours, exact=never_ran)
    hours_per_second = spec.occupied_gpus / SECONDS_PER_HOUR
    requeued = sum(status.earlier_seconds) * hours_per_second
    # the length of each start before the last is known
    has_all_starts = len(status.earlier_seconds) >= status.restarts
    if status.phase is not Phase.ENDED:  # purged or lost: it may have run for any time
        return JobCost(spec.gpu_hours, requeued, requeued, exact=False)
    seconds = status.elapsed_seconds
    if seconds is None and status.started and status.ended:
        seconds = (status.ended - status.started).total_seconds()
    phase = load_scheduler(spec.via).find_phase(status.state)
    # True if pytest gave the job up, but could not cancel it
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
    used_hours = formatting.format_hours(sum(cost.used for cost in costs))
    return f"{at_least}{used_hours} GPU-hours used"


def measure_running(journal: Journal, now: datetime) -> dict[JobIdentity, float]:
    """Return the GPU-hours used so far by each running allocation."""
    used_hours = {}
    for job in list_allocations(journal):
        status = job.status
        if status and status.phase is Phase.RUNNING and status.started:
            seconds = max((now - status.started).total_seconds(), 0.0)
            used_hours[job.identity] = (
                seconds * job.spec.occupied_gpus / SECONDS_PER_HOUR
            )
    return used_hours


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
        # GPU-hours of ended jobs and of running allocations
        self._used: dict[JobIdentity, float] = {}
        # estimates of planned and of unfinished jobs
        self._reserved: dict[JobIdentity, float] = {}
        self._submitted: set[JobIdentity] = set()  # unfinished jobs
        # GPU-hours of the longest run in an allocation, by configuration
        self._longest: dict[str, float] = {}

    @property
    def used(self) -> float:
        """The GPU-hours used by ended jobs, and in allocations by ended runs."""
        return sum(self._used.values())

    def add_resumed(self, jobs: Iterable[Job], live_numbers: Collection[int]) -> None:
        """Count the jobs of a resumed session.

        `live_numbers` are the numbers of its unfinished jobs.
        """
        for job in jobs:
            if job.number in live_numbers:
                self._reserved[job.identity] = self._estimate_hours(job.spec)
                self._submitted.add(job.identity)
            else:
                self.add_ended(job)

    def reserve_first(self, specs: Iterable[JobSpec]) -> None:
        """Reserve the estimates of first runs that have not ended.

        Does not check the limit: `admit` checks it when a run is submitted.
        """
        for spec in specs:
            identity = NextJob(spec).identity
            if identity not in self._used:
                self._reserved.setdefault(identity, self._estimate_hours(spec))

    def reserve(self, jobs: Sequence[NextJob]) -> str:
        """Reserve the estimates of the next jobs, and return "".

        If the estimates exceed the limit, reserves nothing and returns the reason. Jobs
        that a resumed session planned or ran before are not counted twice.
        """
        new_estimates = {
            job.identity: self._estimate_hours(job.spec)
            for job in jobs
            if not self._is_counted(job)
        }
        new_hours = sum(new_estimates.values())
        reserved_hours = sum(self._reserved.values())
        if new_estimates and self._exceeds(reserved_hours + new_hours):
            # the message counts runs: an allocation is not a run
            purposes = [purpose for _case, purpose, _attempt, _repeat in new_estimates]
            runs = sum(purpose != Purpose.ALLOCATION for purpose in purposes)
            verb = "takes" if runs == 1 else "take"
            subject = f"{formatting.count_noun(runs, 'run')} {verb}"
            return self._explain_excess(subject, new_hours, reserved_hours)
        self._reserved |= new_estimates
        return ""

    def admit(self, job: Job) -> str:
        """Reserve the estimate of a job about to be submitted, and return "".

        If the estimate exceeds the limit now, drops the reservation and returns the
        reason. Reservations of jobs that are not submitted yet do not count against the
        job: these jobs are checked when they are submitted.
        """
        estimated_hours = self._estimate_hours(job.spec)
        other_submitted = self._submitted - {job.identity}
        submitted_hours = sum(
            hours
            for identity, hours in self._reserved.items()
            if identity in other_submitted
        )
        if self._exceeds(submitted_hours + estimated_hours):
            self._reserved.pop(job.identity, None)
            return self._explain_excess(
                "the job takes", estimated_hours, submitted_hours
            )
        self._reserved[job.identity] = estimated_hours
        self._submitted.add(job.identity)
        return ""

    def add_ended(self, job: Job) -> None:
        """Replace the estimate of an ended job by the hours it used."""
        self._reserved.pop(job.identity, None)
        self._submitted.discard(job.identity)
        if job.submission in NEVER_MADE:
            return  # the job may be planned again
        cost = measure_cost(job)
        used_hours = cost.used
        if not cost.exact:  # at least the estimate
            used_hours = max(cost.used, cost.estimated)
        self._used[job.identity] = used_hours
        if job.spec.allocation:
            self._update_allocation(job)

    def _update_allocation(self, job: Job) -> None:
        """Update the used hours of an allocation, in which the run `job` has ended.

        Also remember the longest completed run of each configuration.
        """
        case, status = job.spec.case_id, job.status
        for identity, hours in self._measure_running().items():
            allocation_case, *_ = identity
            if allocation_case == case:
                self._used[identity] = hours
        # only a completed run predicts the next run
        if status and status.state == "COMPLETED":
            seconds = status.elapsed_seconds or 0.0
            hours = seconds * job.spec.occupied_gpus / SECONDS_PER_HOUR
            self._longest[case] = max(self._longest.get(case, 0.0), hours)

    def _is_counted(self, job: NextJob) -> bool:
        """True if the budget contains the used hours or the estimate of a job."""
        return job.identity in self._used or job.identity in self._reserved

    def _exceeds(self, hours: float) -> bool:
        """True if the used hours plus `hours` exceed the limit."""
        return self.used + hours > self.limit + ROUNDING

    def _explain_excess(
        self, subject: str, needed_hours: float, reserved_hours: float
    ) -> str:
        """Explain an exceeded limit. `subject` includes the verb: `2 runs take`."""
        needed = formatting.format_hours(needed_hours)
        used = formatting.format_hours(self.used)
        reserved_text = ""
        if reserved_hours:
            reserved = formatting.format_hours(reserved_hours)
            reserved_text = f" and {reserved} reserved"
        return f"{subject} {needed} GPU-hours, but {used} of the {self.limit:,.10g} allowed are used{reserved_text}"

    def _estimate_hours(self, spec: JobSpec) -> float:
        """Estimate the GPU-hours of a job.

        The estimate of an allocation is 0: the runs in it are estimated one by one.
        (`measure_cost` does the reverse for used hours.) A run in an allocation needs at
        least as long as the longest run so far.
        """
        if spec.purpose is Purpose.ALLOCATION:
            return 0.0
        if spec.allocation:
            longest_run = self._longest.get(spec.case_id, 0.0)
            return max(spec.gpu_hours, longest_run)
        return spec.gpu_hours
