"""Check jobs for requests that Slurm would refuse or never start.

Covers account, partition, nodes, time limit and GPUs.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.job_records import Cluster, PreflightCheck
from pytest_llmbench.launch.plan.planned_job import PlannedJob, find_script
from pytest_llmbench.launch.preflight.problems import JobProblem, LocalMachine
from pytest_llmbench.launch.schedulers.slurm.client import (
    Partition,
    Slurm,
    parse_duration,
)
from pytest_llmbench.launch.schedulers.slurm.sbatch import SBATCH

SCRIPT_HEAD_BYTES = 64 * 1024  # bytes of a script that are searched for #SBATCH lines

# values that request no GPUs; old documents use `null`
NO_GPUS = ("", "0", "null", "none")


NO_SLURM = JobProblem(
    "this machine has no Slurm: no sbatch on the job's PATH",
    "start pytest on a login node of the cluster, or pass --llmb-launcher=local for a recipe that can run on this "
    "machine",
    check=PreflightCheck.SCHEDULER,
)


def check_slurm(
    jobs: Sequence[PlannedJob], cluster: Cluster, slurm: Slurm
) -> Iterator[tuple[PlannedJob, JobProblem]]:
    """Yield the jobs that Slurm would refuse or never start, with the problem.

    Slurm is queried once for all jobs.
    """
    without_sbatch = [job for job in jobs if not _has_sbatch(job)]
    for job in without_sbatch:
        yield job, NO_SLURM
    if len(without_sbatch) == len(jobs):
        return
    try:
        partitions = slurm.list_partitions()
        accounts = slurm.list_accounts()
    except LaunchError as error:
        answer = "; ".join(str(error).splitlines())
        no_answer = JobProblem(
            f"Slurm does not answer: {answer}",
            "check `sinfo`, or wait",
            check=PreflightCheck.SCHEDULER,
        )
        for job in jobs:
            yield job, no_answer
        return
    for job in jobs:
        for problem in check_account(job, cluster, accounts):
            yield job, problem
        for problem in check_partition(job, cluster, partitions):
            yield job, problem


def check_script(planned: PlannedJob, machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield a problem if a job's folder is not writable, or not a folder of llmb-run."""
    via, directory = planned.spec.via, planned.spec.directory
    if not directory.is_dir():
        return
    if via == SBATCH and not machine.may(directory, os.W_OK):
        problem = f"the folder {directory} is not writable, but Slurm writes the job's output there"
        yield JobProblem(
            problem,
            "ask its owner for write permission, or copy the recipe and set its `folder`",
        )
    if via == "llmb-run" and not (directory / "cluster_config.yaml").is_file():
        problem = f"llmb-run needs its cluster_config.yaml, but {directory} has none"
        yield JobProblem(
            problem,
            "run the installer of the recipes, or set LLMB_INSTALL to its folder",
        )


def _has_sbatch(planned: PlannedJob) -> bool:
    """True if sbatch is on the PATH of a job."""
    path = dict(planned.spec.environment).get("PATH", "")
    return shutil.which("sbatch", path=path) is not None


def check_account(
    planned: PlannedJob, cluster: Cluster, accounts: Sequence[str] | None
) -> Iterator[JobProblem]:
    """Yield a problem if Slurm does not have the account of a job.

    Nothing is checked if `accounts` is None or the job names no account.
    """
    account = find_setting(
        planned, ("-A", "--account"), ("SBATCH_ACCOUNT", "SLURM_ACCOUNT")
    )
    if not account and planned.spec.via != SBATCH:  # the launcher passes it
        account = cluster.account
    if not account or accounts is None:
        return
    if account.lower() not in {name.lower() for name in accounts}:
        hint = did_you_mean(account, accounts)
        available = join_first(sorted(accounts)) or "none"
        yield JobProblem(
            f"Slurm has no account {account!r}{hint}",
            f"correct `account` in the cluster file; Slurm has {available}",
            check=PreflightCheck.ACCOUNT,
        )


def check_partition(
    planned: PlannedJob, cluster: Cluster, partitions: Sequence[Partition]
) -> Iterator[JobProblem]:
    """Yield the problems of a job's partition.

    A named partition that Slurm does not have is always a problem. If several other
    partitions are possible (named ones, or all if the job names none), yields the
    problems of only one: the partition with the fewest problems.
    """
    setting = find_setting(
        planned, ("-p", "--partition"), ("SBATCH_PARTITION", "SLURM_PARTITION")
    )
    if not setting and planned.spec.via != SBATCH:  # the launcher passes it
        setting = cluster.partition
    names = [name for name in setting.split(",") if name]
    by_name = {partition.name: partition for partition in partitions}
    for name in names:
        if name not in by_name:
            hint = did_you_mean(name, by_name)
            available = join_first(sorted(by_name)) or "none"
            yield JobProblem(
                f"Slurm has no partition {name!r}{hint}",
                f"correct `partition` in the cluster file; there are {available}",
                check=PreflightCheck.PARTITION,
            )
    candidates = list(partitions)
    if names:
        candidates = [by_name[name] for name in names if name in by_name]
    problems_of_each = [
        list(_check_fit(planned, partition)) for partition in candidates
    ]
    yield from min(problems_of_each, key=len, default=[])


def _check_fit(planned: PlannedJob, partition: Partition) -> Iterator[JobProblem]:
    """Yield the problems of a job in a partition: nodes, state, time limit, GPUs."""
    spec, name = planned.spec, f"partition {partition.name!r}"
    # sbatch would accept the job, which then pends as PartitionNodeLimit
    if spec.nodes > partition.nodes:
        problem = f"{name} has {partition.nodes} nodes: a larger job never starts"
        remedy = "select smaller jobs with -k, or set `largest` in the cluster file"
        yield JobProblem(problem, remedy, f"{spec.nodes} nodes", PreflightCheck.NODES)
    if not partition.up:
        problem = f"{name} accepts no jobs: it is down"
        remedy = "name another partition in the cluster file, or wait"
        yield JobProblem(problem, remedy, check=PreflightCheck.PARTITION)
    limit = partition.time_limit_seconds
    time = find_requested_time(planned)
    if limit is not None and read_time_limit(time) > limit:
        problem = f"{name} allows at most {limit / 60:.0f} minutes per job: a longer job never starts"
        remedy = "lower `time_limit` in the cluster file, or name another partition"
        yield JobProblem(problem, remedy, time, PreflightCheck.TIME_LIMIT)
    yield from _check_gpus(planned, partition, name)


def _check_gpus(
    planned: PlannedJob, partition: Partition, name: str
) -> Iterator[JobProblem]:
    """Yield the problems of the GPUs that a job requests per node.

    The partition has no GPUs or too few, or the job requests none although it must.
    """
    request, requested_per_node = _find_requested_gpus(planned)
    per_node = math.ceil(planned.spec.gpus / max(planned.spec.nodes, 1))
    if not partition.gpus and request:
        problem = (
            f"{name} has no GPUs configured (gres), but the job requests {request}"
        )
        remedy = "remove `gres` and SBATCH_GPUS_PER_NODE from the cluster file, or name another partition"
        yield JobProblem(problem, remedy, check=PreflightCheck.GPUS)
    if not partition.gpus:
        return
    needed_per_node = max(per_node, requested_per_node)
    if needed_per_node > partition.gpus:
        problem = (
            f"{name} has {partition.gpus} GPUs a node: Slurm refuses a job with more"
        )
        remedy = "correct `gpus_per_node` and `gres` in the cluster file"
        yield JobProblem(
            problem, remedy, f"{needed_per_node} GPUs a node", PreflightCheck.GPUS
        )
    elif not request and _must_request_gpus(planned):
        problem = f"{name} has its GPUs configured as gres, but the job requests none: its steps would see no GPUs"
        remedy = f"set `gres: gpu:{per_node}` in the cluster file"
        hint = "'GPUs not found' and 'without GPU resources' in a log mean the same"
        yield JobProblem(problem, f"{remedy}; {hint}", check=PreflightCheck.GPUS)


def _must_request_gpus(planned: PlannedJob) -> bool:
    """True if a job must request its GPUs.

    An sbatch command must. A script that submits by itself uses SBATCH_GPUS_PER_NODE if
    its document lists that variable. Jobs on a CPU need no GPUs.
    """
    if planned.spec.key.gpu == "cpu":
        return False
    if planned.spec.via == SBATCH:
        return True
    pairs = (*planned.facts.required, *planned.facts.optional)
    documented_variables = {name for name, _ in pairs}
    is_script = planned.spec.via == "script"
    return is_script and "SBATCH_GPUS_PER_NODE" in documented_variables


def _find_requested_gpus(planned: PlannedJob) -> tuple[str, int]:
    """Return a job's GPU request as written (`gpu:8`), and the GPUs per node.

    The number is 0 if the request does not state GPUs per node.
    """
    gres = find_setting(planned, ("--gres",), ("SBATCH_GRES",))  # `gpu:8,nvme:1`
    gpu_items = [item for item in gres.split(",") if item.partition(":")[0] == "gpu"]
    if gpu_items:
        per_node = gpu_items[0]
    else:
        per_node = find_setting(
            planned, ("--gpus-per-node",), ("SBATCH_GPUS_PER_NODE",)
        )
    if per_node not in NO_GPUS:
        return per_node, _count_gpus(per_node)
    of_job = find_setting(
        planned,
        ("--gpus", "-G", "--gpus-per-task"),
        ("SBATCH_GPUS", "SBATCH_GPUS_PER_TASK"),
    )
    return ("", 0) if of_job in NO_GPUS else (of_job, 0)


def find_requested_time(planned: PlannedJob) -> str:
    """Return the time limit that a job requests, as written, or ""."""
    variable = "SBATCH_TIMELIMIT" if planned.spec.via == SBATCH else "TIME_LIMIT"
    return find_setting(planned, ("-t", "--time"), (variable,))


def read_time_limit(time: str) -> float:
    """Parse a time limit as sbatch does, into seconds; a bare number is in minutes.

    0 for an invalid text.
    """
    if time.isdecimal() and len(time) < 10:
        return 60.0 * int(time)
    return parse_duration(time) or 0.0


def _count_gpus(gres: str) -> int:
    """Return the number in a GPU request, or 1 without a number.

    Examples: `gpu:8`, `gpu:h100:8(S:0)`, `8`.
    """
    number = re.search(r"(?:^|:)(\d+)(?:\(|$)", gres)
    return int(number[1]) if number else 1


# --- requests: options of the command, variables, #SBATCH lines of the script ---------


def find_setting(
    planned: PlannedJob, options: Sequence[str], variables: Sequence[str]
) -> str:
    """Return the effective value of an sbatch setting.

    The option of the command, else the variable, else the #SBATCH line of the script.
    """
    if option := _find_option(list_sbatch_words(planned), options):
        return option
    environment = dict(planned.spec.environment)
    for name in variables:
        if environment.get(name):
            return environment[name]
    return _find_option(read_directives(planned), options)


def list_sbatch_words(planned: PlannedJob) -> Sequence[str]:
    """Return the words of a command that sbatch reads: those before the script."""
    if planned.spec.via != SBATCH:
        return ()
    return tuple(takewhile(lambda word: not word.endswith(".sh"), planned.spec.command))


def _find_option(words: Sequence[str], options: Sequence[str]) -> str:
    """Return the value of the first of these options in a command, or "".

    `options` are the spellings of one option, such as -p and --partition.
    """
    for word, next_word in pairwise([*words, ""]):
        if word in options:  # `-p batch`, `--partition batch`
            return next_word
        name, equals, value = word.partition("=")
        if equals and name in options:  # `--partition=batch`
            return value
        if word[:2] in options and not word.startswith("--"):  # `-pbatch`
            return word[2:]
    return ""


def read_directives(planned: PlannedJob) -> list[str]:
    """Return the words of the #SBATCH lines of a job's script.

    Empty unless the job is submitted with sbatch.
    """
    script = find_script(planned)
    if planned.spec.via != SBATCH or script is None:
        return []
    try:
        with script.open("rb") as file:
            lines = file.read(SCRIPT_HEAD_BYTES).decode(errors="replace").splitlines()
    except OSError:  # sbatch will refuse an unreadable script
        return []
    words: list[str] = []
    for line in lines:
        if line.startswith("#SBATCH"):
            words += _split_directive(line.removeprefix("#SBATCH"))
    return words


def _split_directive(line: str) -> list[str]:
    """Split the options of an #SBATCH line into words, without comments."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # such as an unclosed quotation mark
        return line.split()
