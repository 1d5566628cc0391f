"""Of the runs of an A/B or a search: how they get their nodes, and how many there are at most."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytest_llmbench.core.job_records import TRIALS, JobSpec, Purpose
from pytest_llmbench.launch.bisect_runs import BisectProgress
from pytest_llmbench.launch.paired_runs import PairedProgress
from pytest_llmbench.launch.run_engine import LaunchProgress

if TYPE_CHECKING:
    from pytest_llmbench.launch.jobs.journal import Journal
    from pytest_llmbench.launch.jobs.shared_allocation import AllocationPlan
    from pytest_llmbench.launch.plan.planned_job import PlannedJob
    from pytest_llmbench.launch.planner import Plan
    from pytest_llmbench.launch.planner import Planner

WARMED = {Purpose.COMPARE_VARIANTS: 8, Purpose.BISECT: 2}
"""Of how many variants a run is discarded at most, where all runs share an allocation: each arm, the ends."""

BUILT_BETWEEN = "each commit is built before its run, and the nodes would wait"


def plan_allocations(
    planner: Planner, variants: Mapping[str, Sequence[PlannedJob]], before: Collection[JobSpec] = ()
) -> dict[str, AllocationPlan]:
    """Return by id how the runs of the variants get their nodes. Where a run `before`, in a session that goes on, was a
    job of its own, the others are."""
    from pytest_llmbench.launch.jobs.shared_allocation import AllocationPlan

    if not variants:
        return {}
    builds = planner.builds
    if because := BUILT_BETWEEN if builds.build else "so the file wants it" if builds.separate else "":
        return {case: AllocationPlan(because=because) for case in variants}
    alone = {spec.case_id for spec in before if spec.purpose in TRIALS and not spec.allocation}
    return {
        case: planner.schedulers.find(jobs[0].spec).plan_allocation(jobs, _count_most(planner, len(jobs), shared=True))
        for case, jobs in variants.items()
        if case not in alone
    }


def count_trials(
    planner: Planner, variants: Mapping[str, Sequence[PlannedJob]], allocations: Mapping[str, AllocationPlan]
) -> dict[str, int]:
    """Return by id how many runs there are at most, those that warm an allocation up too."""
    shared = {case for case, plan in allocations.items() if plan.spec}
    return {case: _count_most(planner, len(jobs), shared=case in shared) for case, jobs in variants.items()}


def recount_trials(
    planner: Planner,
    variants: Mapping[str, Sequence[PlannedJob]],
    allocations: Mapping[str, AllocationPlan],
    noted: Mapping[str, int],
) -> Mapping[str, int]:
    """Return by id how many runs there are at most in a session that goes on, which noted how many when it began.
    LaunchError where these are more by now, and take more than the GPU-hours that are allowed."""
    from pytest_llmbench.launch.plan.fit import refuse_hours

    runs = count_trials(planner, variants, allocations) if variants else noted
    if any(most > noted.get(case, 0) for case, most in runs.items()):
        hours = (estimate_hours(variants[case][0].spec, most) for case, most in runs.items())
        refuse_hours(dict(hours), planner.cluster.gpu_hours)
    return runs


def _count_most(planner: Planner, variants: int, *, shared: bool) -> int:
    from pytest_llmbench.launch.policies import ab_policy as paired
    from pytest_llmbench.launch.policies import search_policy as bisect

    if planner.launch.ab:
        return paired.count_runs(paired.PairedSettings(variants, 1 if shared else None)).most
    warm_ups = WARMED[planner.launch.purpose] if shared else 0
    return bisect.get_cap(bisect.BisectSettings(variants, planner.builds.most_runs)) + warm_ups


def estimate_hours(spec: JobSpec, runs: int) -> tuple[str, float]:
    """Return what is run, in words, and its GPU-hours."""
    return f"{spec.case_id}, {runs} runs" if runs > 1 else spec.case_id, spec.gpu_hours * runs


def choose_progress(planner: Planner, plan: Plan, journal: Journal) -> Callable[..., LaunchProgress]:
    """Return what follows the runs of a plan, once it is given what every launch takes."""
    from pytest_llmbench.launch.jobs.shared_allocation import release

    if not plan.variants:
        return partial(LaunchProgress, plan.first_specs)
    return partial(
        PairedProgress if planner.launch.ab else partial(BisectProgress, cap=planner.builds.most_runs),
        {case: [job.spec for job in jobs] for case, jobs in plan.variants.items()},
        allocations=plan.allocations,
        most=plan.runs,
        release=partial(release, journal),
        cluster=planner.find_cluster_name(plan.jobs),
        earlier=plan.noise,
    )
