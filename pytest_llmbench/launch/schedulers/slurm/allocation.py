"""One allocation for several runs: whether variants can share one, and a batch script
that holds the nodes and runs on them what it is left.

The runs of an A/B or a search start in the environment of that script, which is the one
that sbatch would give each of them, so that a recipe's script notices no difference.
Whoever follows them reads files in the folders of their jobs: when each began, and with
which exit code it ended.
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
from pytest_llmbench.core.userfile import is_there
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


# --- the runs in it -------------------------------------------------------------------


HOLDER, HELD = "allocation.sh", "allocation.out"  # the batch script, and what it prints
SCRIPT = "slurm_script"  # the copy of a recipe's script: sbatch makes one, too
BEGUN, ENDED = "run.begun", "run.ended"

# without a run an allocation ends: the session that holds it may have been killed
IDLE_SECONDS = 600

SIGNALLED = 128  # a shell's exit code above this is a signal

# `ls` makes a network file system look for new names. Each run is a process group, so
# that nothing of it goes on beside the next one; steps that it left are ended, too.
# After SIGTERM, which ends the allocation, a run leaves no exit code. There is a second
# between two runs: Slurm gives the start of a step in whole seconds, which tells whose
# step it is.
HOLDER_SCRIPT = """\
#!/bin/bash
{directives}
# Holds its nodes, and runs on them what llmbench leaves in a folder, one after another. Written by llmbench.
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
    """What a run in an allocation has left of itself."""

    begun: datetime | None
    ended: datetime | None
    code: int | None


def submit_run(job: Job, journal: LiveJobs) -> Submission:
    """Leave a run to its allocation, which starts it as soon as it runs; SubmitError if
    it has ended."""
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
    """Return a run that was left to its allocation although pytest was killed just
    then; None if it was not."""
    allocation = find_allocation(journal, job.spec)
    if allocation is None:
        return None
    files = (allocation.folder / f"{job.number}.{end}" for end in ("order", "run"))
    return _describe_submission(job, allocation) if any(map(is_there, files)) else None


def _describe_submission(job: Job, allocation: Job) -> Submission:
    return Submission(f"{allocation.job_id}-{job.number}", job.folder)


# --- what is written ------------------------------------------------------------------


def find_holder(job: Job) -> Path:
    """Return where the batch script of an allocation lies."""
    return job.folder.absolute() / HOLDER


def write_holder(job: Job) -> None:
    """Write the batch script of an allocation, with the #SBATCH lines of the script in
    whose place it stands."""
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
    """Yield the #SBATCH lines that sbatch reads of a script: those before its first
    command."""
    for line in lines:
        if line.strip() and not line.startswith("#"):
            return
        if line.startswith("#SBATCH"):
            yield line


def _write_run(job: Job, allocation: Job) -> None:
    """Write what is to be run: the copy of a recipe's script, and at last the order
    that the allocation looks for.

    The environment is that of the allocation, but for what differs; a secret never
    does, so that none is written.
    """
    folder, spec = job.folder.absolute(), job.spec
    script, *arguments = spec.command
    shutil.copyfile(spec.directory / script, folder / SCRIPT)
    (folder / SCRIPT).chmod(0o755)
    shutil.copy2(
        allocation.folder / OUTPUT, folder / OUTPUT
    )  # with its time: nothing of the run is older
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
    """Yield the shell's commands that make the environment of a run from that of its
    allocation."""
    before, now = dict(held.environment), dict(spec.environment)
    secrets = {*held.secrets, *spec.secrets}
    yield from (f"unset {name}" for name in before if name not in now)
    for name, value in now.items():
        if (
            before.get(name) != value
            and name not in secrets
            and redact(value, spec) == value
        ):
            yield f"export {name}={shlex.quote(value)}"


# --- what is read ---------------------------------------------------------------------


def read_markers(job: Job) -> RunMarkers:
    """Return what a run has left of itself so far."""
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
    """Return what is known of a run in an allocation, in Slurm's words.

    `settled`: it ended so long ago that accounting has all its steps. Without an exit
    code it ended with its allocation: so does one that failed while that was ending,
    which may be why.
    """
    begun = marks.begun
    own = replace(
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
            return replace(own, phase=Phase.RUNNING, elapsed_seconds=None)
        seconds = (marks.ended - begun).total_seconds()
        ended = replace(
            own,
            ended=marks.ended,
            elapsed_seconds=seconds,
            derived_exit_code=failed_step,
        )
        return _describe_exit(job, marks.code, ended)
    if allocation.phase is Phase.ENDED:
        return _describe_lost(own, allocation, begun)
    if begun or allocation.phase is not Phase.RUNNING:
        return replace(own, elapsed_seconds=None)
    return replace(
        own, phase=Phase.WAITING, state="PENDING", nodes=(), elapsed_seconds=None
    )


def _describe_exit(job: Job, code: int, ended: JobStatus) -> JobStatus:
    """Return the status of a run that ended by itself with an exit code, as a shell has
    it."""
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
    own: JobStatus, allocation: JobStatus, begun: datetime | None
) -> JobStatus:
    """Return the status of a run whose allocation ended before it did."""
    state = "CANCELLED" if allocation.state == "COMPLETED" else allocation.state
    seconds = None
    if allocation.ended and begun:
        seconds = (allocation.ended - begun).total_seconds()
    return replace(
        own,
        state=state,
        nodes=allocation.nodes if begun else (),
        elapsed_seconds=seconds,
    )


def _find_failed_step(
    job: Job, begun: datetime, allocation: JobStatus, slurm: Slurm, *, settled: bool
) -> str | None:
    """Return the exit code of a step of a run that failed, empty if no step did; None
    as long as that is unknown.

    That of the allocation is the worst of all its steps so far, also of earlier runs.
    If accounting has no step with this code, it is one of this run that accounting does
    not have yet. A step of an earlier run with this code hides such a step, until the
    accounting of this run is settled.
    """
    worst = allocation.derived_exit_code
    if worst in ("", SUCCESS):
        return ""
    steps = slurm.list_steps(
        job.scheduler_id, (allocation.started or begun) - CLOCK_MARGIN
    )
    own = [step for step in steps if step.started >= begun]
    if any(find_phase(step.state) is not Phase.ENDED for step in own):
        return None
    failed = [
        step.exit_code
        for step in own
        if step.state != "COMPLETED" and not _was_left_behind(step)
    ]
    if failed:
        return next((code for code in failed if code != SUCCESS), worst)
    if worst not in (step.exit_code for step in steps):
        return worst
    return "" if settled else None


def _was_left_behind(step: StepStatus) -> bool:
    """Whether a step was ended with its run, by SIGTERM. Slurm also calls a killed step
    CANCELLED, with code 0:9."""
    return step.state == "CANCELLED" and step.exit_code in (SUCCESS, "0:15")
