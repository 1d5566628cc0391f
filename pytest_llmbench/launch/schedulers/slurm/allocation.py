"""A shared Slurm allocation for the runs of an A/B or a search.

Checks whether variants can share an allocation. A batch script then keeps the nodes and
runs the scripts that are placed in its folder, one after another. Each run starts in
the environment that sbatch would give it, so a recipe's script notices no difference.
The status of a run is read from marker files in its job folder: its start, end and exit
code.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

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
ALLOWED_SLOWDOWN = 1.5  # allowed step time of a run, relative to its document

# sbatch options that cannot be shared: they set the environment, the folder or the
# number of jobs, or replace the script
UNSHARED_OPTIONS = (
    "--export",
    "--array",
    "-a",
    "--chdir",
    "-D",
    "--wrap",
    "--export-file",
    ":",
)


UNSHARED_VARIABLES = ("SBATCH_EXPORT", "SBATCH_ARRAY_INX")  # of the same options


def plan_allocation(
    jobs: Sequence[PlannedJob], runs: int, slurm: Slurm
) -> AllocationPlan:
    """Plan a shared allocation for at most `runs` runs of these variants.

    The first job is the reference. The plan contains a reason if there is no
    allocation.
    """
    reference = jobs[0]
    program = reference.spec.command[0]
    if reference.spec.via != "sbatch" or Path(program).name != "sbatch":
        return AllocationPlan(reason="its launcher submits jobs itself")
    run_seconds = _estimate_run(reference)
    reason = _explain_separate(jobs)
    if not reason and not run_seconds:
        reason = "the duration of a run is unknown"
    if not reason:
        try:
            reason = _explain_limit(reference, runs * run_seconds, slurm)
        except LaunchError as error:
            reason, *_ = str(error).splitlines()
    if reason:
        return AllocationPlan(reason=reason)
    words = list_sbatch_words(reference)
    script = reference.spec.command[len(words)]
    options = ["--no-requeue"]
    # else sbatch would name the job after our batch script, not the recipe's
    if not find_setting(reference, ("-J", "--job-name"), ("SBATCH_JOB_NAME",)):
        options.append(f"--job-name={Path(script).name}")
    spec = replace(
        reference.spec,
        purpose=Purpose.ALLOCATION,
        command=(*words, *options, script),
        variant="",
        job_id="",
    )
    return AllocationPlan(spec, run_seconds=run_seconds, limit_option="--time=")


def _explain_separate(jobs: Sequence[PlannedJob]) -> str:
    """Return the first reason the jobs of variants cannot share an allocation, or ""."""
    reference, *others = jobs
    for job in jobs:
        if reason := _explain_unshared(job):
            return reason
    for other in others:
        if reason := explain_unlike(reference, other):
            return reason
    return ""


def explain_unlike(first: PlannedJob, other: PlannedJob) -> str:
    """Return the reason two variants cannot share an allocation, or ""."""
    name = other.spec.variant
    has_other_words = list_sbatch_words(first) != list_sbatch_words(other)
    if has_other_words or read_directives(first) != read_directives(other):
        return f"{name} passes other options to sbatch"
    first_environment = dict(first.spec.environment)
    other_environment = dict(other.spec.environment)
    different = sorted(
        variable
        for variable in first_environment | other_environment
        if first_environment.get(variable) != other_environment.get(variable)
    )
    for variable in different:
        if variable.startswith(("SBATCH_", "SLURM_")):
            return f"{name} has a different {variable}"
    # the script of a run exports its variables, and must not contain a secret
    secrets = {*first.spec.secrets, *other.spec.secrets}
    for variable in different:
        value = other_environment.get(variable, "")
        if variable in secrets or _contains_secret(value, other.spec):
            return f"{name} has a different secret"
    return ""


def _contains_secret(text: str, spec: JobSpec) -> bool:
    """True if a text contains a secret of the job, and must not be written to a file."""
    return redact(text, spec) != text


def _explain_unshared(job: PlannedJob) -> str:
    """Return the reason a job cannot share an allocation with others, or ""."""
    words = list_sbatch_words(job)
    if len(words) == len(job.spec.command):
        return "its command names no script"
    if any(_contains_secret(word, job.spec) for word in job.spec.command):
        return "its command contains a secret"
    for word in (*words[1:], *read_directives(job)):
        option, _, _ = word.partition("=")  # `--array=1-4`, or `--array 1-4`
        if option in (*UNSHARED_OPTIONS, *UNSHARED_VARIABLES):
            return f"its jobs have {option}"
    for name, _ in job.spec.environment:
        if name in UNSHARED_VARIABLES:
            return f"its jobs have {name}"
    return ""


def _estimate_run(job: PlannedJob) -> float:
    """Estimate the time limit of a run in seconds, or 0 if unknown.

    Sums the start-up and ALLOWED_SLOWDOWN times the expected time of all steps; capped
    at the job's time limit.
    """
    limit = read_time_limit(find_requested_time(job))  # 0 if unknown
    step_seconds = 3600 * job.spec.gpu_hours / job.spec.occupied_gpus
    if not step_seconds:
        return limit
    estimate = START_SECONDS + ALLOWED_SLOWDOWN * step_seconds
    return min(limit, estimate) if limit else estimate


def _explain_limit(job: PlannedJob, seconds: float, slurm: Slurm) -> str:
    """Return the reason Slurm cannot host the allocation, or "".

    The allocation may exceed the partition's time limit, or accounting may be disabled.
    """
    if not slurm.keeps_accounts():
        return "Slurm has no accounting, which records the steps of each run"
    partitions = slurm.list_partitions()
    setting = find_setting(
        job, ("-p", "--partition"), ("SBATCH_PARTITION", "SLURM_PARTITION")
    )
    if setting:
        names = setting.split(",")
        candidates = [partition for partition in partitions if partition.name in names]
    else:
        candidates = [partition for partition in partitions if partition.is_default]
    limits = [
        partition.time_limit_seconds
        for partition in candidates
        if partition.time_limit_seconds is not None
    ]
    requested = round_up(seconds)
    if not limits or requested <= min(limits):
        return ""
    allowed = format_limit(min(limits))
    return f"{format_limit(requested)} for all runs exceed the limit {allowed} of partition {candidates[0].name}"


# --- the runs in it -------------------------------------------------------------------


HOLDER, HELD = "allocation.sh", "allocation.out"  # the batch script and its output
SCRIPT = "slurm_script"  # the copy of a recipe's script, named as sbatch names its copy
BEGUN_FILE, ENDED_FILE = "run.begun", "run.ended"

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
    # the allocation renames an order when it starts the run
    order = allocation.folder / f"{job.number}.order"
    started_run = allocation.folder / f"{job.number}.run"
    if path_exists(order) or path_exists(started_run):
        return _describe_submission(job, allocation)
    return None


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
    """Write the files of a run: a copy of its script, and its order.

    The order is a shell script in the allocation's folder. The allocation's batch
    script runs it; the order sets the environment and runs the copy. It sets only
    variables that differ from the allocation's environment. Secrets never differ, so
    the order contains no secret.
    """
    folder, spec = job.folder.absolute(), job.spec
    script, *arguments = spec.command
    shutil.copyfile(spec.directory / script, folder / SCRIPT)
    (folder / SCRIPT).chmod(0o755)
    # a run has no submission output of its own: estimate_submission reads the time of
    # this copy, which keeps the modification time
    shutil.copy2(allocation.folder / OUTPUT, folder / OUTPUT)
    text = RUN_SCRIPT.format(
        folder=shlex.quote(str(folder)),
        changes="\n".join(_list_environment_changes(spec, allocation.spec)) or ":",
        directory=shlex.quote(str(spec.directory.absolute())),
        command=shlex.join([str(folder / SCRIPT), *arguments]),
        job_id=allocation.job_id,
        begun=BEGUN_FILE,
        ended=ENDED_FILE,
    )
    order = allocation.folder / f"{job.number}.order"
    # the order appears complete, or not at all
    part = order.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, order)


def _list_environment_changes(spec: JobSpec, allocation_spec: JobSpec) -> Iterator[str]:
    """Yield shell commands that turn the allocation's environment into that of a run."""
    allocation_environment = dict(allocation_spec.environment)
    environment = dict(spec.environment)
    secrets = {*allocation_spec.secrets, *spec.secrets}
    for name in allocation_environment:
        if name not in environment:
            yield f"unset {name}"
    for name, value in environment.items():
        is_different = allocation_environment.get(name) != value
        is_secret = name in secrets or _contains_secret(value, spec)
        if is_different and not is_secret:
            yield f"export {name}={shlex.quote(value)}"


# --- reading markers ------------------------------------------------------------------


def read_markers(job: Job) -> RunMarkers:
    """Read the marker files of a run.

    BEGUN_FILE contains `<time>`, ENDED_FILE contains `<exit code> <time>`.
    """
    begun = _read_numbers(job.folder / BEGUN_FILE)
    ended = _read_numbers(job.folder / ENDED_FILE)
    return RunMarkers(
        begun=_convert_time(begun[-1]) if begun else None,
        ended=_convert_time(ended[1]) if len(ended) > 1 else None,
        code=ended[0] if len(ended) == 2 else None,
    )


def _read_numbers(path: Path) -> list[int]:
    """Read the numbers of a marker file; empty if the file is missing or invalid."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
        return [int(word) for word in text.split()]
    except (OSError, ValueError):
        return []


def _convert_time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def describe_run(
    job: Job,
    markers: RunMarkers,
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
    begun, ended, code = markers
    run_status = replace(
        allocation,
        limit_seconds=None,
        derived_exit_code="",
        exit_code="",
        started=begun,
        submitted=begun,
    )
    # a run that failed in an allocation that still runs failed by itself
    ended_before_allocation = code == 0 or allocation.state == "RUNNING"
    if begun and ended and code is not None and ended_before_allocation:
        step_code: str | None = ""
        if code == 0:  # the script may ignore the failure of a step
            step_code = _find_failed_step(
                job, begun, allocation, slurm, settled=settled
            )
        if step_code is None:  # unknown until accounting has all steps
            return replace(run_status, phase=Phase.RUNNING, elapsed_seconds=None)
        ended_status = replace(
            run_status,
            ended=ended,
            elapsed_seconds=(ended - begun).total_seconds(),
            derived_exit_code=step_code,
        )
        return _describe_exit(job, code, ended_status)
    if allocation.phase is Phase.ENDED:
        return _describe_run_without_exit_code(run_status, allocation, begun)
    # the run runs, or its allocation waits or is in an unknown state
    if begun or allocation.phase is not Phase.RUNNING:
        return replace(run_status, elapsed_seconds=None)
    # the allocation runs, and still has to start the run
    return replace(
        run_status, phase=Phase.WAITING, state="PENDING", nodes=(), elapsed_seconds=None
    )


def _describe_exit(job: Job, code: int, ended: JobStatus) -> JobStatus:
    """Return the status of a run that ended with a shell's exit code."""
    earlier_nodes = job.status.nodes if job.status else ()
    exit_code = f"{code}:0"
    if code > SIGNALLED:
        exit_code = f"0:{code - SIGNALLED}"
    return replace(
        ended,
        phase=Phase.ENDED,
        state="FAILED" if code else "COMPLETED",
        reason="",
        nodes=ended.nodes or earlier_nodes,
        exit_code=exit_code,
        cancelled_by="",
    )


def _describe_run_without_exit_code(
    run_status: JobStatus, allocation: JobStatus, begun: datetime | None
) -> JobStatus:
    """Return the status of a run whose allocation ended first.

    The state is that of the allocation, but a run cannot be COMPLETED without its exit
    code.
    """
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

    Returns "" if no step failed, and None if the answer is still unknown. Accounting
    lists the steps, but late: `settled` is True if it has all steps of the run. The
    allocation's derived exit code is up to date, but is the worst exit code of the
    steps of all runs so far.
    """
    worst_code = allocation.derived_exit_code
    if worst_code in ("", SUCCESS):  # no step of any run failed
        return ""
    allocation_start = allocation.started or begun
    steps = slurm.list_steps(job.scheduler_id, allocation_start - CLOCK_MARGIN)
    run_steps = [step for step in steps if step.started >= begun]
    if any(find_phase(step.state) is not Phase.ENDED for step in run_steps):
        return None  # accounting does not have the end of a step yet
    failed_steps = [
        step
        for step in run_steps
        if step.state != "COMPLETED" and not _was_left_behind(step)
    ]
    for step in failed_steps:
        if step.exit_code != SUCCESS:
            return step.exit_code
    if failed_steps:  # without an exit code of their own
        return worst_code
    # the worst exit code is that of a step that accounting does not have yet
    is_missing_step = worst_code not in [step.exit_code for step in steps]
    if is_missing_step:
        return worst_code
    # it is that of a step of an earlier run, and perhaps of a missing step of this run
    return "" if settled else None


def _was_left_behind(step: StepStatus) -> bool:
    """True if a step outlived its run and was ended by SIGTERM.

    A step that was killed is CANCELLED, too, but has the exit code 0:9.
    """
    return step.state == "CANCELLED" and step.exit_code in (SUCCESS, "0:15")
