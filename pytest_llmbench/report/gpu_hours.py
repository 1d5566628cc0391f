"""GPU-hours of launched jobs in reports: used, and lost by cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import asdict

from pytest_llmbench.core import formatting
from pytest_llmbench.core.job_records import JobCost, Loss, PlannedHours
from pytest_llmbench.report.outcome_documents import (
    ConfigurationCost,
    ConfigurationOutcome,
    JobHours,
    JobsCost,
    LostHours,
    OutcomeDocument,
    ReportedJob,
    SessionCost,
)


def describe_job_cost(cost: JobCost) -> JobHours:
    """Convert the cost of a job into its record."""
    return JobHours(
        estimated=cost.estimated,
        used=cost.used,
        requeued=cost.requeued,
        exact=cost.exact,
        lost=str(cost.loss) if cost.loss else "",
    )


def sum_costs(jobs: Sequence[ReportedJob]) -> JobsCost:
    """Sum the GPU-hours of jobs, in total and lost by cause."""
    costs = [job.gpu_hours for job in jobs]
    lost_by_cause = dict.fromkeys(map(str, Loss), 0.0)
    for cost in costs:
        lost_by_cause[Loss.REQUEUED] += cost.requeued
        if cost.lost in lost_by_cause:  # "" if the last start was not wasted
            lost_by_cause[cost.lost] += cost.used - cost.requeued
    return JobsCost(
        used=sum(cost.used for cost in costs),
        lost=LostHours(**lost_by_cause),
        unknown_jobs=tuple(job.job_id for job in jobs if not job.gpu_hours.exact),
    )


def sum_configuration(jobs: Sequence[ReportedJob]) -> ConfigurationCost | None:
    """Sum the GPU-hours of a configuration; None if nothing was launched."""
    if not jobs:
        return None
    estimated = jobs[0].gpu_hours.estimated  # of one run
    return ConfigurationCost(estimated=estimated, **asdict(sum_costs(jobs)))


def sum_session(
    outcomes: Sequence[OutcomeDocument], planned: PlannedHours | None
) -> SessionCost | None:
    """Sum the GPU-hours of a session; None if nothing was launched.

    `outcomes` must contain each id once.
    """
    configurations = (
        outcome for outcome in outcomes if isinstance(outcome, ConfigurationOutcome)
    )
    jobs = [job for outcome in configurations for job in outcome.jobs]
    if not jobs:
        return None
    return SessionCost(
        estimated=planned.estimated if planned else None,
        most=planned.most if planned else None,
        limit=planned.limit if planned else None,
        **asdict(sum_costs(jobs)),
    )


def format_cost(cost: ConfigurationCost | SessionCost) -> str:
    """Format a cost as `12.3 used, 1.2 of them lost: 0.9 failed, 0.3 requeued`.

    Estimated and allowed hours are added if known, and the jobs with unknown hours.
    """
    used = f"{formatting.format_hours(cost.used)} used"
    if cost.unknown_jobs:
        used = f"at least {used}"
    limits = []
    if cost.estimated:
        limits.append(f"{formatting.format_hours(cost.estimated)} estimated")
    if isinstance(cost, SessionCost) and cost.limit:
        limits.append(f"{cost.limit:,.10g} allowed")
    texts = [f"{used} ({', '.join(limits)})" if limits else used]
    lost_by_cause = dict(_list_causes(cost))
    if lost_by_cause:
        total = formatting.format_hours(sum(lost_by_cause.values()))
        causes = ", ".join(
            f"{formatting.format_hours(hours)} {cause}"
            for cause, hours in lost_by_cause.items()
        )
        if len(lost_by_cause) == 1:
            (causes,) = lost_by_cause  # without hours, which are the total
        texts.append(f"{total} of them lost: {causes}")
    if cost.unknown_jobs:
        names = [
            f"job {job_id}" if job_id else "a possibly submitted job"
            for job_id in cost.unknown_jobs
        ]
        texts.append(f"unknown: {formatting.join_first(names)}")
    return "; ".join(texts)


def list_cost_properties(jobs: Sequence[ReportedJob]) -> dict[str, str]:
    """Return the JUnit properties for GPU-hours, without zero and unknown values."""
    cost = sum_configuration(jobs)
    if cost is None:
        return {}
    numbers = {"used": cost.used, "estimated": cost.estimated}
    numbers |= {f"lost_{cause}": hours for cause, hours in _list_causes(cost)}
    properties = {
        f"gpu_hours_{name}": f"{hours:.6g}" for name, hours in numbers.items() if hours
    }
    if cost.unknown_jobs:
        job_ids = ", ".join(job_id or "?" for job_id in cost.unknown_jobs)
        properties["gpu_hours_unknown_jobs"] = job_ids
    return properties


def format_job_cost(job: ReportedJob) -> str:
    """Format the GPU-hours of a job: `1.2`, `at least 0.4`, `0.7, lost: failed`."""
    hours = job.gpu_hours
    if not hours.used and not hours.exact:
        return "unknown"
    text = formatting.format_hours(hours.used)
    if not hours.exact:
        text = f"at least {text}"
    if hours.lost:
        text += f", lost: {hours.lost}"
    if hours.requeued:
        text += f", {formatting.format_hours(hours.requeued)} lost: requeued"
    return text


def _list_causes(cost: JobsCost) -> Iterator[tuple[str, float]]:
    """Yield the causes of lost hours and their hours, without zeros."""
    return ((cause, hours) for cause, hours in asdict(cost.lost).items() if hours)
