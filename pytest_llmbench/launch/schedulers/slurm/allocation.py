"""A shared Slurm allocation for the runs of an A/B or a search.

Checks whether variants can share an allocation. A batch script then keeps the nodes and
runs the scripts that are placed in its folder, one after another. Each run starts in
the environment that sbatch would give it, so a recipe's script notices no difference.
The status of a run is read from marker files in its job folder: its start, end and exit
code.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Job, JobSpec, JobStatus, Phase, Purpose
from pytest_llmbench.core.userfile import path_exists
from pytest_llmbench.launch.job_secrets import redact
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.schedulers.job_states import SUCCESS
from pytest_llmbench.launch.schedulers.shared_allocation import (
    RELEASE,
    AllocationPlan,
    LiveJobs,
    find_allocation,
    format_limit,
    round_up,
)
from pytest_llmbench.launch.schedulers.slurm.client import (
    CLOCK_MARGIN,
    Slurm,
    StepStatus,
    find_phase,
)
from pytest_llmbench.launch.schedulers.slurm.slurm_checks import (
    find_requested_time,
    find_setting,
    list_sbatch_words,
    read_directives,
    read_time_limit,
)
from pytest_llmbench.launch.schedulers.submission import OUTPUT, Submission, SubmitError

START_SECONDS = 600.0  # start-up and shutdown time of a run
SLOWER = 1.5  # allowed step time of a run, relative to its document

# sbatch options that cannot be shared: they set the environment, the folder or the
# number of jobs, or replace the script
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
    """Plan a shared allocation for at most `runs` runs of these variants.

    The first job is the reference. The plan contains a reason if there is no
    allocation.
    """
    first, *others = jobs
    if first.spec.via != "sbatch" or Path(first.spec.command[0]).name != "sbatch":
        return AllocationPlan(reason="its launcher submits jobs itself")
    seconds = _estimate_run(first)
    reasons = (
        *map(_explain_unshared, jobs),
        *(explain_unlike(first, other) for other in others),
    )
    reason = next(
        filter(None, reasons), "" if seconds else "the duration of a run is unknown"
    )
    try:
        reason = reason or _explain_limit(first, runs * seconds, slurm)
    except LaunchError as error:
        reason = str(error).splitlines()[0]
    if reason:
        return AllocationPlan(reason=reason)
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
    """Return the reason two variants cannot share an allocation, or ""."""
    name = other.spec.variant
    if list_sbatch_words(first) != list_sbatch_words(other) or read_directives(
        first
    ) != read_directives(other):
        return f"{name} passes other options to sbatch"
    first_environment = dict(first.spec.environment)
    other_environment = dict(other.spec.environment)
    different = sorted(
        variable
        for variable in first_environment | other_environment
        if first_environment.get(variable) != other_environment.get(variable)
    )
    if unshared := [
        variable for variable in different if variable.startswith(("SBATCH_", "SLURM_"))
    ]:
        return f"{name} has a different {unshared[0]}"
    secrets = {*first.spec.secrets, *other.spec.secrets}.intersection(different)
    hidden = secrets or any(
        _holds_secret(other_environment.get(variable, ""), other.spec)
        for variable in different
    )
    return f"{name} has a different secret" if hidden else ""


def _holds_secret(text: str, spec: JobSpec) -> bool:
    """True if a text contains a secret of the job, and must not be written to a file."""
    return redact(text, spec) != text


def _explain_unshared(job: PlannedJob) -> str:
    """Return the reason a job cannot share an allocation with others, or ""."""
    words = list_sbatch_words(job)
    if len(words) == len(job.spec.command):
        return "its command names no script"
    if any(_holds_secret(word, job.spec) for word in job.spec.command):
        return "its command contains a secret"
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
    """Estimate the time limit of a run in seconds, or 0 if unknown.

    Sums the start-up and SLOWER times the expected time of all steps; capped at the
    job's time limit.
    """
    limit = read_time_limit(find_requested_time(job))
    steps = 3600 * job.spec.gpu_hours / job.spec.occupied_gpus
    estimate = START_SECONDS + SLOWER * steps if steps else 0.0
    return min(filter(None, (limit, estimate)), default=0.0)


def _explain_limit(job: PlannedJob, seconds: float, slurm: Slurm) -> str:
    """Return the reason Slurm cannot host the allocation, or "".

    The allocation may exceed the partition's time limit, or accounting may be disabled.
    """
    if not slurm.keeps_accounts():
        return "Slurm has no accounting, which records the steps of each run"
    partitions = slurm.list_partitions()
    named = find_setting(
        job, ("-p", "--partition"), ("SBATCH_PARTITION", "SLURM_PARTITION")
    ).split(",")
    chosen = [
        partition
        for partition in partitions
        if partition.name in named or (named == [""] and partition.is_default)
    ]
    limits = [
        math.inf
        if partition.time_limit_seconds is None
        else partition.time_limit_seconds
        for partition in chosen
    ]
    if not limits or round_up(seconds) <= min(limits):
        return ""
    requested, allowed = format_limit(round_up(seconds)), format_limit(min(limits))
    return f"{requested} for all runs exceed the limit {allowed} of partition {chosen[0].name}"


# --- the runs in it -------------------------------------------------------------------


HOLDER, HELD = "allocation.sh", "allocation.out"  # the batch script and its output
SCRIPT = "slurm_script"  # the copy of a recipe's script, named as sbatch names its copy
BEGUN, ENDED = "run.begun", "run.ended"

# an idle allocation ends after this time: its session may have been killed
IDLE_SECONDS = 600

SIGNALLED = 128  # a shell's exit code above this is a signal

# `ls` makes a network file system look for new names. Each run is a process group, so
# that none of its processes outlives it; its remaining steps are ended, too. After
# SIGTERM, which ends the allocation, a run leaves no exit code. One second passes
# between two runs: Slurm reports the start of a step in whole seconds, and the start
# assigns a step to its run.
HOLDER_SCRIPT = """\
#!/bin/bash
{directives}
# Keeps its nodes, and runs the scripts that llmbench puts into a folder, one after another. Written by llmbench.
cd -- {folder} || exit 75
trap 'exit 143' TERM
set -m
idle=0
while [ ! -e {release} ] && [ "$idle" -lt {idle} ]; do
    sleep 1
    idle=$((idle + 1))
    ls >/dev/null
    for order in *.order; do
        [ -e "$order" ] && mv -- "$order" "${{order%.order}}.run" || continue
        bash "${{order%.order}}.run" &
        wait "$!"
        kill -KILL -- "-$!" 2>/dev/null
        scancel --quiet --signal=TERM "$SLURM_JOB_ID" 2>/dev/null
        idle=0
        break
    done
done
exit 0
"""

RUN_SCRIPT = """\
cd -- {folder} || exit 75
trap 'exit 143' TERM
date +%s >{begun}.part && mv -f {begun}.part {begun}
(
{changes}
cd -- {directory} && exec {command}
) >slurm-{job_id}.out 2>&1 </dev/null
code=$?
echo "$code $(date +%s)" >{ended}.part && mv -f {ended}.part {ended}
"""


class RunMarkers(NamedTuple):
    """The marker files of a run in an allocation."""

    begun: datetime | None
    ended: datetime | None
    code: int | None


def submit_run(job: Job, journal: LiveJobs) -> Submission:
    """Queue a run in its allocation. Raises SubmitError if the allocation has ended."""
    allocation = find_allocation(journal, job.spec)
    if allocation is None:
        raise SubmitError(f"{job.spec.case_id}: its allocation has ended")
    try:
        _write_run(job, allocation)
    except OSError as error:
        raise SubmitError(
            f"{job.spec.case_id}: {error.filename}: {error.strerror}"
        ) from error
    return _describe_submission(job, allocation)


def recover_run(job: Job, journal: LiveJobs) -> Submission | None:
    """Return a run that was queued just before pytest was killed, or None."""
    allocation = find_allocation(journal, job.spec)
    if allocation is None:
        return None
    files = (allocation.folder / f"{job.number}.{end}" for end in ("order", "run"))
    return (
        _describe_submission(job, allocation) if any(map(path_exists, files)) else None
    )


def _describe_submission(job: Job, allocation: Job) -> Submission:
    return Submission(f"{allocation.job_id}-{job.number}", job.folder)


# --- writing scripts ------------------------------------------------------------------


def find_holder(job: Job) -> Path:
    """Return the path of an allocation's batch script."""
    return job.folder.absolute() / HOLDER


def write_holder(job: Job) -> None:
    """Write the batch script of an allocation.

    It contains the #SBATCH lines of the recipe's script, which it replaces.
    """
    script = job.spec.directory / job.spec.command[-1]
    lines = script.read_text(encoding="utf-8", errors="replace").splitlines()
    text = HOLDER_SCRIPT.format(
        directives="\n".join(list_directives(lines)),
        folder=shlex.quote(str(job.folder.absolute())),
        release=RELEASE,
        idle=IDLE_SECONDS,
    )
    find_holder(job).write_text(text, encoding="utf-8")


def list_directives(lines: Iterable[str]) -> Iterator[str]:
    """Yield the #SBATCH lines that sbatch reads: those before the first command."""
    for line in lines:
        if line.strip() and not line.startswith("#"):
            return
        if line.startswith("#SBATCH"):
            yield line


def _write_run(job: Job, allocation: Job) -> None:
    """Write a copy of the run's script, then the order: a script for the allocation.

    The order sets only variables that differ from the allocation's environment. Secrets
    never differ, so the order contains no secret.
    """
    folder, spec = job.folder.absolute(), job.spec
    script, *arguments = spec.command
    shutil.copyfile(spec.directory / script, folder / SCRIPT)
    (folder / SCRIPT).chmod(0o755)
    # copied with its modification time, a lower bound for the files of the run
    shutil.copy2(allocation.folder / OUTPUT, folder / OUTPUT)
    text = RUN_SCRIPT.format(
        folder=shlex.quote(str(folder)),
        changes="\n".join(_list_changes(spec, allocation.spec)) or ":",
        directory=shlex.quote(str(spec.directory.absolute())),
        command=shlex.join([str(folder / SCRIPT), *arguments]),
        job_id=allocation.job_id,
        begun=BEGUN,
        ended=ENDED,
    )
    order = allocation.folder / f"{job.number}.order"
    part = order.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, order)


def _list_changes(spec: JobSpec, held: JobSpec) -> Iterator[str]:
    """Yield shell commands that turn the allocation's environment into that of a run."""
    allocation_environment, environment = dict(held.environment), dict(spec.environment)
    secrets = {*held.secrets, *spec.secrets}
    yield from (
        f"unset {name}" for name in allocation_environment if name not in environment
    )
    for name, value in environment.items():
        if (
            allocation_environment.get(name) != value
            and name not in secrets
            and redact(value, spec) == value
        ):
            yield f"export {name}={shlex.quote(value)}"


# --- reading markers ------------------------------------------------------------------


def read_markers(job: Job) -> RunMarkers:
    """Read the marker files of a run.

    BEGUN contains `<time>`, ENDED contains `<exit code> <time>`.
    """
    begun, ended = _read_numbers(job.folder / BEGUN), _read_numbers(job.folder / ENDED)
    code = ended[0] if len(ended) == 2 else None
    return RunMarkers(_read_time(begun[-1:]), _read_time(ended[1:]), code)


def _read_numbers(path: Path) -> list[int]:
    try:
        return [
            int(word)
            for word in path.read_text(encoding="ascii", errors="replace").split()
        ]
    except (OSError, ValueError):
        return []


def _read_time(seconds: list[int]) -> datetime | None:
    return datetime.fromtimestamp(seconds[0], UTC) if seconds else None


def describe_run(
    job: Job,
    marks: RunMarkers,
    allocation: JobStatus,
    slurm: Slurm,
    *,
    settled: bool = True,
) -> JobStatus:
    """Return the status of a run in an allocation, in Slurm's terms.

    `settled` is True if the run ended so long ago that accounting has all its steps. A
    run without an exit code ended with its allocation. A run that failed while the
    allocation was ending is treated like this, too: the allocation's end may be the
    cause.
    """
    begun = marks.begun
    run_status = replace(
        allocation,
        limit_seconds=None,
        derived_exit_code="",
        exit_code="",
        started=begun,
        submitted=begun,
    )
    if (
        begun
        and marks.ended
        and marks.code is not None
        and (marks.code == 0 or allocation.state == "RUNNING")
    ):
        failed_step: str | None = ""
        if marks.code == 0:
            failed_step = _find_failed_step(
                job, begun, allocation, slurm, settled=settled
            )
        if failed_step is None:
            return replace(run_status, phase=Phase.RUNNING, elapsed_seconds=None)
        seconds = (marks.ended - begun).total_seconds()
        ended = replace(
            run_status,
            ended=marks.ended,
            elapsed_seconds=seconds,
            derived_exit_code=failed_step,
        )
        return _describe_exit(job, marks.code, ended)
    if allocation.phase is Phase.ENDED:
        return _describe_lost(run_status, allocation, begun)
    if begun or allocation.phase is not Phase.RUNNING:
        return replace(run_status, elapsed_seconds=None)
    return replace(
        run_status, phase=Phase.WAITING, state="PENDING", nodes=(), elapsed_seconds=None
    )


def _describe_exit(job: Job, code: int, ended: JobStatus) -> JobStatus:
    """Return the status of a run that ended with a shell's exit code."""
    earlier = job.status.nodes if job.status else ()
    return replace(
        ended,
        phase=Phase.ENDED,
        state="FAILED" if code else "COMPLETED",
        reason="",
        nodes=ended.nodes or earlier,
        exit_code=f"0:{code - SIGNALLED}" if code > SIGNALLED else f"{code}:0",
        cancelled_by="",
    )


def _describe_lost(
    run_status: JobStatus, allocation: JobStatus, begun: datetime | None
) -> JobStatus:
    """Return the status of a run whose allocation ended first."""
    state = "CANCELLED" if allocation.state == "COMPLETED" else allocation.state
    seconds = None
    if allocation.ended and begun:
        seconds = (allocation.ended - begun).total_seconds()
    return replace(
        run_status,
        state=state,
        nodes=allocation.nodes if begun else (),
        elapsed_seconds=seconds,
    )


def _find_failed_step(
    job: Job, begun: datetime, allocation: JobStatus, slurm: Slurm, *, settled: bool
) -> str | None:
    """Return the exit code of a run's failed step.

    Returns "" if no step failed, and None if the answer is still unknown, because
    accounting may not contain all steps yet. The allocation's derived exit code is the
    worst exit code of all its steps so far, including the steps of earlier runs. If no
    step in accounting has this exit code, it is that of a missing step of this run. If
    a step of an earlier run has it, the answer is unknown until accounting is
    `settled`.
    """
    worst = allocation.derived_exit_code
    if worst in ("", SUCCESS):
        return ""
    steps = slurm.list_steps(
        job.scheduler_id, (allocation.started or begun) - CLOCK_MARGIN
    )
    run_steps = [step for step in steps if step.started >= begun]
    if any(find_phase(step.state) is not Phase.ENDED for step in run_steps):
        return None
    failed = [
        step.exit_code
        for step in run_steps
        if step.state != "COMPLETED" and not _was_left_behind(step)
    ]
    if failed:
        return next((code for code in failed if code != SUCCESS), worst)
    if worst not in (step.exit_code for step in steps):
        return worst
    return "" if settled else None


def _was_left_behind(step: StepStatus) -> bool:
    """True if a step outlived its run and was ended by SIGTERM.

    A step that was killed is CANCELLED, too, but has the exit code 0:9.
    """
    return step.state == "CANCELLED" and step.exit_code in (SUCCESS, "0:15")
