"""What Slurm would refuse, or keep in its queue for ever: account, partition, nodes and
GPUs of a job."""

from __future__ import annotations

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

HEAD = (
    64 * 1024
)  # the #SBATCH lines stand at the beginning of a script; so many bytes of it are read

NOTHING = (
    "",
    "0",
    "null",
    "none",
)  # a number of GPUs that asks for none; `null` is what the old documents write


NO_SLURM = JobProblem(
    "there is no Slurm on this machine: no sbatch on the job's PATH",
    "start pytest on a login node of the cluster, or give --llmb-launcher=local for a recipe that can run on this "
    "machine",
    check=PreflightCheck.SCHEDULER,
)


def check_slurm(
    jobs: Sequence[PlannedJob], cluster: Cluster, slurm: Slurm
) -> Iterator[tuple[PlannedJob, JobProblem]]:
    """Yield what Slurm has against jobs; it is asked once for all of them."""
    absent = [job for job in jobs if not _has_sbatch(job)]
    yield from ((job, NO_SLURM) for job in absent)
    if len(absent) == len(jobs):
        return
    try:
        partitions, accounts = slurm.list_partitions(), slurm.list_accounts()
    except LaunchError as error:
        answer = "; ".join(str(error).splitlines())
        silent = JobProblem(
            f"Slurm does not answer: {answer}",
            "look at `sinfo`, or wait",
            check=PreflightCheck.SCHEDULER,
        )
        yield from ((job, silent) for job in jobs)
        return
    for job in jobs:
        yield from ((job, finding) for finding in check_account(job, cluster, accounts))
        yield from (
            (job, finding) for finding in check_partition(job, cluster, partitions)
        )


def check_script(planned: PlannedJob, machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield that a folder cannot be written by Slurm, or is not one of llmb-run."""
    via, directory = planned.spec.via, planned.spec.directory
    if not directory.is_dir():
        return
    if via == SBATCH and not machine.may(directory, os.W_OK):
        what = f"the folder {directory} cannot be written, and Slurm writes the job's output there"
        yield JobProblem(
            what,
            "ask its owner for the permission, or copy the recipe and set its `folder`",
        )
    if via == "llmb-run" and not (directory / "cluster_config.yaml").is_file():
        what = (
            f"llmb-run needs its cluster_config.yaml, and there is none in {directory}"
        )
        yield JobProblem(
            what,
            "run the installer of the recipes, or set LLMB_INSTALL to where it put them",
        )


def _has_sbatch(planned: PlannedJob) -> bool:
    return (
        shutil.which("sbatch", path=dict(planned.spec.environment).get("PATH", ""))
        is not None
    )


def check_account(
    planned: PlannedJob, cluster: Cluster, accounts: Sequence[str] | None
) -> Iterator[JobProblem]:
    """Yield an account that Slurm does not have; nothing where there is no accounting
    or no account is named."""
    account = find_setting(
        planned, ("-A", "--account"), ("SBATCH_ACCOUNT", "SLURM_ACCOUNT")
    )
    account = account or (cluster.account if planned.spec.via != SBATCH else "")
    if (
        account
        and accounts is not None
        and account.lower() not in {name.lower() for name in accounts}
    ):
        hint = did_you_mean(account, accounts)
        has = f"`account` in the cluster file; Slurm has {join_first(sorted(accounts)) or 'none'}"
        yield JobProblem(
            f"Slurm has no account {account!r}{hint}",
            f"correct {has}",
            check=PreflightCheck.ACCOUNT,
        )


def check_partition(
    planned: PlannedJob, cluster: Cluster, partitions: Sequence[Partition]
) -> Iterator[JobProblem]:
    """Yield a partition that does not exist, and what the best of the named ones (else
    of all) has against a job."""
    named = find_setting(
        planned, ("-p", "--partition"), ("SBATCH_PARTITION", "SLURM_PARTITION")
    )
    named = named or (cluster.partition if planned.spec.via != SBATCH else "")
    names = [name for name in named.split(",") if name]
    by_name = {partition.name: partition for partition in partitions}
    for name in names:
        if name not in by_name:
            has = f"`partition` in the cluster file; there are {join_first(sorted(by_name)) or 'none'}"
            what = f"Slurm has no partition {name!r}{did_you_mean(name, by_name)}"
            yield JobProblem(what, f"correct {has}", check=PreflightCheck.PARTITION)
    candidates = (
        [by_name[name] for name in names if name in by_name]
        if names
        else list(partitions)
    )
    against = [list(_check_fit(planned, partition)) for partition in candidates]
    yield from min(against, key=len, default=[])


def _check_fit(planned: PlannedJob, partition: Partition) -> Iterator[JobProblem]:
    """Yield what a partition has against a job: nodes, time, GPUs."""
    spec, name = planned.spec, f"partition {partition.name!r}"
    if (
        spec.nodes > partition.nodes
    ):  # sbatch accepts it, and it pends as PartitionNodeLimit
        what = f"{name} has {partition.nodes} nodes: a larger job waits for ever"
        remedy = "select smaller ones with -k, or set `largest` in the cluster file"
        yield JobProblem(what, remedy, f"{spec.nodes} nodes", PreflightCheck.NODES)
    if not partition.up:
        what, remedy = (
            f"{name} takes no jobs: it is down",
            "name another partition in the cluster file, or wait",
        )
        yield JobProblem(what, remedy, check=PreflightCheck.PARTITION)
    limit, time = partition.time_limit_seconds, find_requested_time(planned)
    if limit is not None and read_time_limit(time) > limit:
        what = f"{name} gives a job at most {limit / 60:.0f} minutes: one that asks for more never starts"
        remedy = "lower `time_limit` in the cluster file, or name another partition"
        yield JobProblem(what, remedy, time, PreflightCheck.TIME_LIMIT)
    yield from _check_gpus(planned, partition, name)


def _check_gpus(
    planned: PlannedJob, partition: Partition, name: str
) -> Iterator[JobProblem]:
    """Yield what is wrong with the GPUs that a job asks for on each node."""
    asked, count = _find_requested_gpus(planned)
    per_node = -(-planned.spec.gpus // max(planned.spec.nodes, 1))
    if not partition.gpus and asked:
        what = f"{name} has no GPUs configured (gres), and the job asks for {asked}"
        remedy = "leave `gres` and SBATCH_GPUS_PER_NODE out of the cluster file, or name another partition"
        yield JobProblem(what, remedy, check=PreflightCheck.GPUS)
    if not partition.gpus:
        return
    if max(per_node, count) > partition.gpus:
        what = f"{name} has {partition.gpus} GPUs a node: such a job is refused"
        remedy = "correct `gpus_per_node` and `gres` in the cluster file"
        yield JobProblem(
            what, remedy, f"{max(per_node, count)} GPUs a node", PreflightCheck.GPUS
        )
    elif not asked and _has_to_ask(planned):
        what = f"{name} has its GPUs configured as gres, and the job asks for none: its steps would see no GPUs"
        remedy = f"set `gres: gpu:{per_node}` in the cluster file"
        alike = "'GPUs not found' and 'without GPU resources' in a log mean the same"
        yield JobProblem(what, f"{remedy}; {alike}", check=PreflightCheck.GPUS)


def _has_to_ask(planned: PlannedJob) -> bool:
    """sbatch is told; a script that submits by itself takes SBATCH_GPUS_PER_NODE where
    its document says so.

    What runs on a CPU needs none."""
    if planned.spec.key.gpu == "cpu":
        return False
    documented = {
        name for name, _ in (*planned.facts.required, *planned.facts.optional)
    }
    return planned.spec.via == SBATCH or (
        planned.spec.via == "script" and "SBATCH_GPUS_PER_NODE" in documented
    )


def _find_requested_gpus(planned: PlannedJob) -> tuple[str, int]:
    """Return how a job asks for GPUs as it is written (`gpu:8`), and how many of a node
    (0: it does not say)."""
    gres = find_setting(planned, ("--gres",), ("SBATCH_GRES",))
    on_node = next(
        (part for part in gres.split(",") if part.split(":")[0] == "gpu"), ""
    )
    on_node = on_node or find_setting(
        planned, ("--gpus-per-node",), ("SBATCH_GPUS_PER_NODE",)
    )
    if on_node and on_node not in NOTHING:
        return on_node, _count_gpus(on_node)
    in_all = find_setting(
        planned,
        ("--gpus", "-G", "--gpus-per-task"),
        ("SBATCH_GPUS", "SBATCH_GPUS_PER_TASK"),
    )
    return ("", 0) if in_all in NOTHING else (in_all, 0)


def find_requested_time(planned: PlannedJob) -> str:
    """Return the time limit that a job asks for, as it is written; empty where it asks
    for none."""
    variable = "SBATCH_TIMELIMIT" if planned.spec.via == SBATCH else "TIME_LIMIT"
    return find_setting(planned, ("-t", "--time"), (variable,))


def read_time_limit(time: str) -> float:
    """Return a time limit as sbatch reads it, where a number alone is minutes; 0 for
    one that it does not read."""
    is_minutes = time.isdecimal() and len(time) < 10
    return 60.0 * int(time) if is_minutes else parse_duration(time) or 0.0


def _count_gpus(gres: str) -> int:
    """Return the number in a request such as `gpu:8`, `gpu:h100:8(S:0)` or `8`; 1 where
    there is none."""
    number = re.search(r"(?:^|:)(\d+)(?:\(|$)", gres)
    return int(number[1]) if number else 1


# --- what is asked for: on the command line, by variables, by the script's own lines --


def find_setting(
    planned: PlannedJob, options: Sequence[str], variables: Sequence[str]
) -> str:
    """Return what holds for sbatch: its option, else the variable, else the script's
    own line."""
    environment = dict(planned.spec.environment)
    values = (environment[name] for name in variables if environment.get(name))
    return (
        _find_option(list_sbatch_words(planned), options)
        or next(values, "")
        or _find_option(read_directives(planned), options)
    )


def list_sbatch_words(planned: PlannedJob) -> Sequence[str]:
    """Return the words of a command that are sbatch's own: what follows a script
    belongs to the script."""
    if planned.spec.via != SBATCH:
        return ()
    return tuple(takewhile(lambda word: not word.endswith(".sh"), planned.spec.command))


def _find_option(words: Sequence[str], options: Sequence[str]) -> str:
    for word, following in pairwise([*words, ""]):
        if word in options:
            return following
        name, equals, value = word.partition("=")
        if equals and name in options:
            return value
        if word[:2] in options and not word.startswith("--"):
            return word[2:]
    return ""


def read_directives(planned: PlannedJob) -> list[str]:
    """Return the words of the #SBATCH lines of a job's script; nothing where it is not
    given to sbatch."""
    script = find_script(planned)
    if planned.spec.via != SBATCH or script is None:
        return []
    try:
        with script.open("rb") as file:
            lines = file.read(HEAD).decode(errors="replace").splitlines()
    except (
        OSError
    ):  # what sbatch cannot read it refuses itself, when the job is submitted
        return []
    return [
        word
        for line in lines
        if line.startswith("#SBATCH")
        for word in _split_line(line.removeprefix("#SBATCH"))
    ]


def _split_line(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()
