"""The plan of an A/B or a search: how its runs get nodes, how many there are at most,
and what a resumed session must find unchanged."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import TRIALS, JobSpec, Purpose
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.plan.fit import refuse_hours
from pytest_llmbench.launch.plan.job_spec import list_passed
from pytest_llmbench.launch.plan.planned_job import (
    PlannedJob,
    digest_script,
    find_script,
)
from pytest_llmbench.launch.plan.variants import Builds
from pytest_llmbench.launch.policies import ab_policy, search_policy
from pytest_llmbench.launch.schedulers.registry import Schedulers
from pytest_llmbench.launch.schedulers.shared_allocation import AllocationPlan

Variants = Mapping[str, "Sequence[PlannedJob]"]
"""By configuration id a job for each variant, in their order."""

WARMED = {Purpose.COMPARE_VARIANTS: 8, Purpose.BISECT: 2}
"""The most variants whose first run is discarded in an allocation: each arm, the
ends."""

BUILT_BETWEEN = "each commit is built before its run, and the nodes would wait"


def plan_allocations(
    variants: Variants,
    launch: LaunchSettings,
    builds: Builds,
    schedulers: Schedulers,
    before: Collection[JobSpec] = (),
) -> dict[str, AllocationPlan]:
    """Plan by id how the runs of the variants get nodes.

    If a run `before` resuming was a job of its own, the others are, too.
    """
    because = "so the file wants it" if builds.separate else ""
    if builds.build:
        because = BUILT_BETWEEN
    if because:
        return {case: AllocationPlan(because=because) for case in variants}
    made = (spec for spec in before if spec.purpose in TRIALS)
    alone = {spec.case_id for spec in made if not spec.allocation}
    plans = {}
    for case, jobs in variants.items():
        if case not in alone:
            scheduler = schedulers.find(jobs[0].spec)
            most = _count_most(launch, builds, len(jobs), True)
            plans[case] = scheduler.plan_allocation(jobs, most)
    return plans


def count_trials(
    variants: Variants,
    launch: LaunchSettings,
    builds: Builds,
    allocations: Mapping[str, AllocationPlan],
) -> dict[str, int]:
    """Count by id the most runs, warm-ups included."""
    shared = {case for case, plan in allocations.items() if plan.spec}
    return {
        case: _count_most(launch, builds, len(jobs), case in shared)
        for case, jobs in variants.items()
    }


def refuse_more_trials(
    variants: Variants,
    runs: Mapping[str, int],
    noted: Mapping[str, int],
    limit: float | None,
) -> None:
    """Refuse more runs than a session noted if they need too many GPU-hours.

    Raises LaunchError.
    """
    if any(most > noted.get(case, 0) for case, most in runs.items()):
        jobs = ((variants[case][0].spec, most) for case, most in runs.items())
        refuse_hours(dict(estimate_hours(spec, most) for spec, most in jobs), limit)


def _count_most(
    launch: LaunchSettings, builds: Builds, variants: int, shared: bool
) -> int:
    if launch.ab:
        return ab_policy.count_most_runs(variants, shared=shared)
    warm_ups = WARMED[launch.purpose] if shared else 0
    return search_policy.count_most_runs(variants, builds.most_runs) + warm_ups


def estimate_hours(spec: JobSpec, runs: int) -> tuple[str, float]:
    """Return a configuration's runs in words, and their GPU-hours."""
    text = f"{spec.case_id}, {runs} runs" if runs > 1 else spec.case_id
    return text, spec.gpu_hours * runs


# --- what a session notes, for one that resumes ---------------------------------------


def digest_variants(variants: Variants) -> dict[str, dict[str, str]]:
    """Digest the jobs of variants, by configuration and name.

    A digest covers directory, command and the variables of a job, without those of the
    caller's shell.
    """
    return {
        case: {job.spec.variant: _digest_spec(job.spec) for job in jobs}
        for case, jobs in variants.items()
    }


def _digest_spec(spec: JobSpec) -> str:
    left_out = (*list_passed(spec.via), *spec.secrets)
    environment = [pair for pair in spec.environment if pair[0] not in left_out]
    build = filter(None, [spec.build])
    text = repr((spec.directory, spec.command, environment, *build))
    return hashlib.sha256(text.encode()).hexdigest()


def digest_scripts(variants: Variants) -> dict[str, str]:
    """Digest by path the scripts that the jobs of variants run; "": unreadable.

    Scripts in a folder where a build may write them are left out.
    """
    every = (job for jobs in variants.values() for job in jobs)
    scripts = {find_script(job) for job in every if not job.spec.build}
    return {
        str(script): digest_script(script) for script in sorted(filter(None, scripts))
    }


def refuse_changed(
    variants: Variants, noted: Mapping[str, Any], launch: LaunchSettings, session: str
) -> None:
    """Refuse variants that a session did not note: their runs would count for others.

    Raises LaunchError. The builds of a search may come and go, but one of them may not
    change. A session of an earlier version noted no scripts.
    """
    for case, now in digest_variants(variants).items():
        before = noted.get("variants", {}).get(case, {})
        changed = [name for name in now if before.get(name, now[name]) != now[name]]
        if changed or (launch.ab and before.keys() != now.keys()):
            which = f": {changed[0]}" if changed else ""
            raise LaunchError(
                f"{launch.ab or launch.bisect}: found other variants than when session {session} began{which}"
            )
    scripts = noted.get("scripts", {})
    for path, digest in digest_scripts(variants).items():
        if scripts.get(path) and scripts[path] != digest:
            raise LaunchError(
                f"{path}: another script than when session {session} began, and its "
                "runs would be taken for those of that one: put that back, or start anew"
            )


def record_noise(noise: Mapping[str, Noise]) -> dict[str, list[float | str]]:
    """Return the noise that a session uses, for its note.

    A resumed session uses the same, or its next run would be another one if an A/B has
    ended since.
    """
    return {
        case: [known.sigma, known.degrees_of_freedom, known.source]
        for case, known in noise.items()
    }


def restore_noise(noted: Mapping[str, tuple[float, float, str]]) -> dict[str, Noise]:
    """Restore the noise that a session noted.

    Raises ValueError, TypeError or AttributeError for what no session noted.
    """
    noise = {
        case: Noise(float(sigma), float(freedom), str(source), measured=True)
        for case, (sigma, freedom, source) in noted.items()
    }
    for known in noise.values():
        if not (0 < known.sigma < math.inf and 0 < known.degrees_of_freedom < math.inf):
            raise ValueError(f"the noise is {noted!r:.40}")
    return noise
