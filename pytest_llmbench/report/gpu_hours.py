"""GPU-hours of a launch in reports: what its jobs used, and what of that was lost by cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.job_records import JobCost, Loss, PlannedHours

CAUSES = tuple(str(loss) for loss in Loss)
"""Why GPU-hours were lost, in the order in which they are told."""


def describe_job_cost(cost: JobCost) -> dict[str, Any]:
    """Return what a job used as plain values."""
    numbers = {name: getattr(cost, name) for name in ("estimated", "used", "requeued")}
    return {**numbers, "exact": cost.exact, "lost": str(cost.loss) if cost.loss else ""}


def sum_costs(jobs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what jobs used together, what of it was lost by cause, and of which it is not known, by their ids."""
    jobs = list(jobs)
    lost = dict.fromkeys(CAUSES, 0.0)
    for job in jobs:
        hours = job["gpu_hours"]
        lost[Loss.REQUEUED] += hours["requeued"]
        if hours["lost"] in lost:
            lost[hours["lost"]] += hours["used"] - hours["requeued"]
    unknown = [job["job_id"] for job in jobs if not job["gpu_hours"]["exact"]]
    return {"used": sum(job["gpu_hours"]["used"] for job in jobs), "lost": lost, "unknown_jobs": unknown}


def sum_configuration(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the costs of one configuration with the estimate of one run; empty where nothing was launched."""
    jobs = outcome.get("jobs", ())
    return {"estimated": jobs[0]["gpu_hours"]["estimated"], **sum_costs(jobs)} if jobs else {}


def sum_session(outcomes: Sequence[Mapping[str, Any]], planned: PlannedHours | None) -> dict[str, Any]:
    """Return the costs of outcomes, each id once, with what was planned; empty where nothing was launched."""
    jobs = [job for outcome in outcomes for job in outcome.get("jobs", ())]
    if not jobs:
        return {}
    before = {name: getattr(planned, name) if planned else None for name in ("estimated", "most", "limit")}
    return {**before, **sum_costs(jobs)}


def format_cost(cost: Mapping[str, Any]) -> str:
    """Return `12.3 used, 1.2 of them lost: 0.9 failed, 0.3 requeued`, with what was estimated and allowed where that is
    known, and `at least` with the jobs of which it is not known."""
    unknown = cost["unknown_jobs"]
    head = f"{'at least ' if unknown else ''}{formatting.format_hours(cost['used'])} used"
    beside = [f"{formatting.format_hours(cost['estimated'])} estimated"] if cost.get("estimated") else []
    beside += [f"{cost['limit']:,.10g} allowed"] if cost.get("limit") else []
    parts = [f"{head} ({', '.join(beside)})" if beside else head]
    if lost := sum(cost["lost"].values()):
        causes = [f"{formatting.format_hours(cost['lost'][cause])} {cause}" for cause in _list_causes(cost)]
        why = ", ".join(causes) if len(causes) > 1 else next(_list_causes(cost))
        parts.append(f"{formatting.format_hours(lost)} of them lost: {why}")
    if unknown:
        names = [f"job {job_id}" if job_id else "one that was perhaps submitted" for job_id in unknown]
        parts.append(f"not known: {formatting.join_first(names)}")
    return "; ".join(parts)


def list_cost_properties(outcome: Mapping[str, Any]) -> dict[str, str]:
    """Return the GPU-hours of a configuration for JUnit reports: what is 0, or not known, has no property."""
    cost = sum_configuration(outcome)
    if not cost:
        return {}
    numbers = {"used": cost["used"], "estimated": cost["estimated"]}
    numbers |= {f"lost_{cause}": cost["lost"][cause] for cause in _list_causes(cost)}
    properties = {f"gpu_hours_{name}": f"{hours:.6g}" for name, hours in numbers.items() if hours}
    unknown = ", ".join(job_id or "?" for job_id in cost["unknown_jobs"])
    return {**properties, **({"gpu_hours_unknown_jobs": unknown} if unknown else {})}


def format_job_cost(job: Mapping[str, Any]) -> str:
    """Return the GPU-hours of one job: `1.2`, `at least 0.4`, `unknown`, and `lost` behind what brought nothing."""
    hours = job["gpu_hours"]
    if not hours["used"] and not hours["exact"]:
        return "unknown"
    lost = hours["lost"] and f", lost: {hours['lost']}"
    requeued = f", {formatting.format_hours(hours['requeued'])} lost: requeued" if hours["requeued"] else ""
    return f"{'' if hours['exact'] else 'at least '}{formatting.format_hours(hours['used'])}{lost}{requeued}"


def _list_causes(cost: Mapping[str, Any]) -> Iterator[str]:
    return (cause for cause in CAUSES if cost["lost"][cause])
