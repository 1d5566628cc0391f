"""Plan the runs of an A/B or a search: allocations, run limits, and checks on resuming."""

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
from pytest_llmbench.launch.plan.job_spec import list_inherited_variables
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
"""Maps the id of a configuration to one job per variant, in the variants' order."""

MAX_WARM_UPS = {Purpose.COMPARE_VARIANTS: 8, Purpose.BISECT: 2}
"""Maximum number of variants that run a discarded warm-up in an allocation.

Each variant of an A/B runs a warm-up; in a search only the two end builds do.
"""

BUILT_BETWEEN = "each commit is built before its run, and the nodes would idle"


def plan_allocations(
    variants: Variants,
    launch: LaunchSettings,
    builds: Builds,
    schedulers: Schedulers,
    earlier_jobs: Collection[JobSpec] = (),
) -> dict[str, AllocationPlan]:
    """Plan the allocation of each configuration's runs, by configuration id.

    If the runs cannot share an allocation, the plan contains the reason for separate
    jobs. `earlier_jobs` are the jobs made before the session was resumed. If a run of a
    configuration in `earlier_jobs` was a separate job, all further runs are separate
    jobs, and the configuration gets no plan.
    """
    reason_for_separate_jobs = "the file requires it" if builds.separate else ""
    if builds.build:
        reason_for_separate_jobs = BUILT_BETWEEN
    if reason_for_separate_jobs:
        plan = AllocationPlan(reason=reason_for_separate_jobs)
        return dict.fromkeys(variants, plan)
    earlier_runs = (spec for spec in earlier_jobs if spec.purpose in TRIALS)
    separate_cases = {spec.case_id for spec in earlier_runs if not spec.allocation}
    plans = {}
    for case, jobs in variants.items():
        if case not in separate_cases:
            (reference, *_) = jobs
            scheduler = schedulers.find(reference.spec)
            runs = _count_most_runs(launch, builds, len(jobs), is_shared=True)
            plans[case] = scheduler.plan_allocation(jobs, runs)
    return plans


def count_trials(
    variants: Variants,
    launch: LaunchSettings,
    builds: Builds,
    allocations: Mapping[str, AllocationPlan],
) -> dict[str, int]:
    """Count the maximum number of runs of each configuration, by id.

    Includes warm-ups.
    """
    shared_cases = {case for case, plan in allocations.items() if plan.spec}
    return {
        case: _count_most_runs(
            launch, builds, len(jobs), is_shared=case in shared_cases
        )
        for case, jobs in variants.items()
    }


def refuse_more_trials(
    variants: Variants,
    runs: Mapping[str, int],
    recorded: Mapping[str, int],
    limit: float | None,
) -> None:
    """Refuse a resumed session that plans more runs and exceeds the GPU-hour limit.

    `runs` is the maximum number of runs by configuration id, `recorded` the maximum
    that the session recorded when it began. If no configuration has more runs than
    recorded, nothing is refused. Raises LaunchError.
    """
    if all(most <= recorded.get(case, 0) for case, most in runs.items()):
        return
    hours_by_case = {}
    for case, most in runs.items():
        (reference, *_) = variants[case]
        description, hours = estimate_hours(reference.spec, most)
        hours_by_case[description] = hours
    refuse_hours(hours_by_case, limit)


def _count_most_runs(
    launch: LaunchSettings, builds: Builds, variant_count: int, *, is_shared: bool
) -> int:
    """Count the maximum number of runs of one configuration.

    Includes the warm-ups, which only runs in a shared allocation have.
    """
    if launch.ab:
        return ab_policy.count_most_runs(variant_count, shared=is_shared)
    warm_ups = MAX_WARM_UPS[launch.purpose] if is_shared else 0
    return search_policy.count_most_runs(variant_count, builds.most_runs) + warm_ups


def estimate_hours(spec: JobSpec, runs: int) -> tuple[str, float]:
    """Return a description of a configuration's runs, and their GPU-hours."""
    description = f"{spec.case_id}, {runs} runs" if runs > 1 else spec.case_id
    return description, spec.gpu_hours * runs


# --- records of a session, for resuming it --------------------------------------------


def digest_variants(variants: Variants) -> dict[str, dict[str, str]]:
    """Hash the jobs of variants, by configuration id and variant name.

    A hash covers the directory, the command and the environment of a job, except
    variables of the caller's shell and secrets.
    """
    return {
        case: {job.spec.variant: _digest_spec(job.spec) for job in jobs}
        for case, jobs in variants.items()
    }


def _digest_spec(spec: JobSpec) -> str:
    """Hash what a job does, without the caller's variables and secrets."""
    omitted = (*list_inherited_variables(spec.via), *spec.secrets)
    environment = [
        (name, value) for name, value in spec.environment if name not in omitted
    ]
    # sessions record the hash: a job without a build command must keep its hash
    build = [spec.build] if spec.build else []
    text = repr((spec.directory, spec.command, environment, *build))
    return hashlib.sha256(text.encode()).hexdigest()


def digest_scripts(variants: Variants) -> dict[str, str]:
    """Hash the scripts that the jobs of variants run, by path.

    The hash is "" if a script is unreadable. Scripts in a checkout that a build may
    change are omitted.
    """
    scripts = set()
    for jobs in variants.values():
        for job in jobs:
            script = find_script(job)
            if script and not job.spec.build:
                scripts.add(script)
    return {str(script): digest_script(script) for script in sorted(scripts)}


def refuse_changed(
    variants: Variants,
    recorded: Mapping[str, Any],
    launch: LaunchSettings,
    session: str,
) -> None:
    """Refuse variants that changed since the session recorded them.

    Their runs would be mixed with those of the old variants. A search may gain or lose
    builds, but no build may change. Sessions of earlier versions recorded no scripts.
    Raises LaunchError.
    """
    recorded_variants = recorded.get("variants", {})
    for case, digests in digest_variants(variants).items():
        recorded_digests = recorded_variants.get(case, {})
        changed = [
            name
            for name, digest in digests.items()
            if name in recorded_digests and recorded_digests[name] != digest
        ]
        # only a search may gain or lose variants
        has_other_names = recorded_digests.keys() != digests.keys()
        if changed or (launch.ab and has_other_names):
            which = f": {changed[0]}" if changed else ""
            raise LaunchError(
                f"{launch.ab or launch.bisect}: the variants differ from those with which session {session} began{which}"
            )
    recorded_scripts = recorded.get("scripts", {})
    for path, digest in digest_scripts(variants).items():
        recorded_digest = recorded_scripts.get(path)
        if recorded_digest and recorded_digest != digest:
            raise LaunchError(
                f"{path}: the script changed since session {session} began, and runs of "
                "both would be mixed: restore the script, or start a new session"
            )


def record_noise(noise: Mapping[str, Noise]) -> dict[str, list[float | str]]:
    """Convert the noise that a session uses to a JSON record.

    A resumed session must use the recorded noise. The history may contain further A/Bs
    by then, whose noise would change the session's next step.
    """
    return {
        case: [value.sigma, value.degrees_of_freedom, value.source]
        for case, value in noise.items()
    }


def restore_noise(recorded: Mapping[str, tuple[float, float, str]]) -> dict[str, Noise]:
    """Restore the noise that a session recorded.

    Raises ValueError, TypeError or AttributeError for invalid records.
    """
    noise = {
        case: Noise(float(sigma), float(freedom), str(source), measured=True)
        for case, (sigma, freedom, source) in recorded.items()
    }
    for value in noise.values():
        numbers = (value.sigma, value.degrees_of_freedom)
        if not all(0 < number < math.inf for number in numbers):
            raise ValueError(f"the noise is {recorded!r:.40}")
    return noise
