"""Whether the runs of the variants of a configuration can share one allocation, and
which."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import JobSpec, Purpose
from pytest_llmbench.launch.job_secrets import redact
from pytest_llmbench.launch.jobs.shared_allocation import (
    AllocationPlan,
    format_limit,
    round_up,
)
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.schedulers.slurm.client import Slurm
from pytest_llmbench.launch.schedulers.slurm.slurm_checks import (
    find_requested_time,
    find_setting,
    list_sbatch_words,
    read_directives,
    read_time_limit,
)

START_SECONDS = 600.0  # of a run, before its first step and behind its last one
SLOWER = 1.5  # so much longer than its document says the steps of a run may take

# What gives the runs of one script something that those of another do not have, or
# another folder.
UNSHARED = (
    "--export",
    "--array",
    "-a",
    "--chdir",
    "-D",
    "--wrap",
    "--export-file",
    ":",
)


def plan_allocation(
    jobs: Sequence[PlannedJob], runs: int, slurm: Slurm
) -> AllocationPlan:
    """Return the allocation for at most so many runs of these variants, the reference
    first, or why there is none."""
    first, *others = jobs
    if first.spec.via != "sbatch" or Path(first.spec.command[0]).name != "sbatch":
        return AllocationPlan(because="its launcher submits by itself")
    seconds = _estimate_run(first)
    reasons = (
        *map(_explain_unshared, jobs),
        *(explain_unlike(first, other) for other in others),
    )
    because = next(
        filter(None, reasons), "" if seconds else "nothing says how long a run takes"
    )
    try:
        because = because or _explain_limit(first, runs * seconds, slurm)
    except LaunchError as error:
        because = str(error).splitlines()[0]
    if because:
        return AllocationPlan(because=because)
    words = list_sbatch_words(first)
    script = first.spec.command[len(words)]
    named = find_setting(first, ("-J", "--job-name"), ("SBATCH_JOB_NAME",))
    spec = replace(
        first.spec,
        purpose=Purpose.ALLOCATION,
        command=(
            *words,
            "--no-requeue",
            *([] if named else [f"--job-name={Path(script).name}"]),
            script,
        ),
        variant="",
        job_id="",
    )
    return AllocationPlan(spec, "", seconds, "--time=")


def explain_unlike(first: PlannedJob, other: PlannedJob) -> str:
    """Return why two variants cannot run in one allocation; empty where they can."""
    name = other.spec.variant
    if list_sbatch_words(first) != list_sbatch_words(other) or read_directives(
        first
    ) != read_directives(other):
        return f"{name} gives sbatch other options"
    before, now = dict(first.spec.environment), dict(other.spec.environment)
    differs = sorted(
        variable
        for variable in before | now
        if before.get(variable) != now.get(variable)
    )
    if unshared := [
        variable for variable in differs if variable.startswith(("SBATCH_", "SLURM_"))
    ]:
        return f"{name} has another {unshared[0]}"
    secrets = {*first.spec.secrets, *other.spec.secrets}.intersection(differs)
    hidden = secrets or any(
        _holds_secret(now.get(variable, ""), other.spec) for variable in differs
    )
    return f"{name} has a secret of its own" if hidden else ""


def _holds_secret(text: str, spec: JobSpec) -> bool:
    """Whether a text holds one, so that no file may have it."""
    return redact(text, spec) != text


def _explain_unshared(job: PlannedJob) -> str:
    words = list_sbatch_words(job)
    if len(words) == len(job.spec.command):
        return "its command names no script"
    if any(_holds_secret(word, job.spec) for word in job.spec.command):
        return "its command holds a secret"
    variables = ("SBATCH_EXPORT", "SBATCH_ARRAY_INX")
    every = (
        *words[1:],
        *read_directives(job),
        *(name for name, _ in job.spec.environment if name in variables),
    )
    names = (word.partition("=")[0] for word in every)
    return next(
        (f"its jobs have {name}" for name in names if name in (*UNSHARED, *variables)),
        "",
    )


def _estimate_run(job: PlannedJob) -> float:
    """Return for how many seconds a run may have the nodes, 0 where nothing says it:
    its steps, slower than its document has them, and starting up, but no longer than
    its own time limit."""
    limit = read_time_limit(find_requested_time(job))
    steps = 3600 * job.spec.gpu_hours / job.spec.occupied_gpus
    estimate = START_SECONDS + SLOWER * steps if steps else 0.0
    return min(filter(None, (limit, estimate)), default=0.0)


def _explain_limit(job: PlannedJob, seconds: float, slurm: Slurm) -> str:
    """Return why Slurm would not hold nodes for so long, or could not tell how a run in
    them ended."""
    if not slurm.keeps_accounts():
        return "Slurm keeps no accounts, which tell the steps of each run"
    partitions = slurm.list_partitions()
    named = find_setting(
        job, ("-p", "--partition"), ("SBATCH_PARTITION", "SLURM_PARTITION")
    ).split(",")
    chosen = [
        each
        for each in partitions
        if each.name in named or (named == [""] and each.is_default)
    ]
    limits = [
        math.inf if each.time_limit_seconds is None else each.time_limit_seconds
        for each in chosen
    ]
    if not limits or round_up(seconds) <= min(limits):
        return ""
    asked, allowed = format_limit(round_up(seconds)), format_limit(min(limits))
    return f"{asked} for all of them are more than the {allowed} of partition {chosen[0].name}"
