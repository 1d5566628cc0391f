"""Fuzz targets of other programs' output: Slurm, submission scripts and this machine's
GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from fuzz.laws import (
    empty_folder,
    refusals,
    require,
    require_printable,
    require_types,
    written,
)
from support import job_specs
from support.planned_jobs import plan_job

from pytest_llmbench.core.commands import CommandOutput
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Cluster, JobStatus
from pytest_llmbench.launch.jobs import journal as database
from pytest_llmbench.launch.plan.cluster_file import (
    describe_machine,
    format_cluster_file,
)
from pytest_llmbench.launch.schedulers import process, submission
from pytest_llmbench.launch.schedulers.slurm import sbatch, slurm_checks
from pytest_llmbench.launch.schedulers.slurm.client import (
    Partition,
    Slurm,
    expand_hosts,
    explain_end,
    explain_stuck,
    explain_unavailable,
    learn_cluster,
    list_gpus,
    parse_duration,
)

PROGRAMS = (
    "sacct",
    "squeue",
    "sinfo",
    "scontrol",
    "sacctmgr",
    "scancel",
    "id",
    "nvidia-smi",
)
SUBMITTED = datetime(2026, 11, 21, 5, 54, 27, tzinfo=UTC)
JOBS = dict.fromkeys(map(str, range(1, 20)), SUBMITTED)
PARTED = b"\n--- "
"""Stands before the name of a program, its exit code, and what it says."""

SACCT = """\
1|COMPLETED|0:0|0:0|0|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:54:28|n[1-2]
5|REQUEUED|0:0|0:0|204|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:57:52|n1
5|RUNNING|0:0|0:0|7|2026-11-21T05:57:52|2026-11-21T05:57:58|Unknown|n1
8|CANCELLED by 1000|0:0|0:0|0|2026-11-21T05:54:27|Unknown|2026-11-21T05:57:51|None assigned
12|OUT_OF_MEMORY|0:125|0:125|61|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:55:29|n[1-2,007]
"""
SQUEUE = """\
7|PENDING|0|0|0:00|2026-11-21T05:54:27|N/A|N/A||0|DependencyNeverSatisfied|1:00:00
5|RUNNING|0|0|0:07|2026-11-21T05:57:52|2026-11-21T05:57:58|2026-11-21T06:57:58|n1|1|None|7-00:00:00
9|PENDING|0|0|0:00|2026-11-21T05:54:27|N/A|N/A||0|ReqNodeNotAvail, UnavailableNodes:n[1-3]|UNLIMITED
4|COMPLETED|0|1792|0:00|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:54:28|n1|0|None|1:00:00
5|llmb:token1|
"""
SINFO = """\
batch*|up|1-00:00:00|32|gpu:h100:8(S:0-1)
batch*|up|1-00:00:00|2|gpu:nvidia_h100_80gb_hbm3:8,nvme:1
debug|down|infinite|4|(null)
n[1-2]|root|2026-11-20T01:02:03|Not responding
"""
SCONTROL = "Configuration data as of 2026\nAccountingStorageEnforce = associations,limits\nClusterName = eos\n"


def _join(outputs: Mapping[str, tuple[int, str]]) -> bytes:
    pieces = (
        f"{name} {code}\n{text}".encode() for name, (code, text) in outputs.items()
    )
    return PARTED + PARTED.join(pieces)


def _part(data: bytes) -> dict[str, CommandOutput]:
    """Split an input into each program's output. Ignores unknown programs."""
    outputs = {}
    for piece in data.split(PARTED):
        match = re.match(rb"([a-z-]+) (\d{1,3})\n", piece)
        if match and match[1].decode() in PROGRAMS:
            text = piece[match.end() :].decode("utf-8", "replace")
            outputs[match[1].decode()] = CommandOutput(
                int(match[2]), text, "" if match[2] == b"0" else text
            )
    return outputs


def slurm_seeds() -> list[bytes]:
    """Return outputs of a cluster, of an unreachable one, and of one without
    accounting."""
    good = {
        "sacct": (0, SACCT),
        "squeue": (0, SQUEUE),
        "sinfo": (0, SINFO),
        "scontrol": (0, SCONTROL),
    }
    good |= {
        "sacctmgr": (0, "coreai\n"),
        "id": (0, "me\n"),
        "scancel": (0, ""),
        "nvidia-smi": (0, "NVIDIA H100\n" * 8),
    }
    away = dict.fromkeys(
        good,
        (
            1,
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
        ),
    )
    alone = {**good, "sacct": (1, "Slurm accounting storage is disabled\n")}
    return [_join(outputs) for outputs in (good, away, alone)]


def check_slurm(data: bytes) -> None:
    """For any output, a job's status is printable and can be stored, or Slurm counts as
    unreachable."""
    outputs = _part(data)

    def run(
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        require(timeout > 0, "a command without a limit")
        return outputs.get(
            arguments[0], CommandOutput(127, "", f"{arguments[0]}: No such file")
        )

    slurm = Slurm(run, {})
    with refusals(LaunchError, naming=""):
        for status in slurm.poll(JOBS).values():
            _check_status(status)
    with refusals(LaunchError, naming=""):
        require_types(slurm.list_partitions(), tuple[Partition, ...])
        learned = learn_cluster(slurm)
        if learned is not None:
            require_types(learned.cluster, Cluster)
            format_cluster_file(learned)
    with refusals(LaunchError, naming=""):
        require_types(slurm.list_accounts(), tuple[str, ...] | None)
        require_types(slurm.list_node_reasons(["n1", "n2"]), dict[str, str])
        require_types(slurm.find(["token1"], SUBMITTED), dict[str, str])
        require_types(slurm.cancel(list(JOBS)), str)
    require_types(describe_machine(run), Cluster)


def _check_status(status: JobStatus) -> None:
    require_types(status, JobStatus)
    require(
        database.decode_status(database.encode_status(status)) == status,
        "a status that is not kept",
    )
    for text in (
        explain_end(status).text,
        explain_stuck(status),
        explain_unavailable(status),
    ):
        require_types(text, str)


HOSTS = (
    "n[1-2,007-012],m3",
    "gpu:h100:8(S:0-1),nvme:1,gpu:2",
    "7-00:00:00",
    "rack[1-3]node[01-16]",
    "(null)",
)


def check_hosts(data: bytes) -> None:
    """Slurm's host lists are expanded or unchanged, and no list exceeds the size of a
    cluster."""
    text = data.decode("utf-8", "replace")
    require_types(expand_hosts(text), tuple[str, ...])
    require_types(list_gpus(text), list[tuple[str, int]])
    require_types(parse_duration(text), float | None)


BATCH_SCRIPT = """\
#!/bin/bash
#SBATCH --partition=batch -A coreai
#SBATCH --time=1:00:00 # a limit
#SBATCH -N2 'a
srun --nodes=2 python train.py
"""


def check_script(data: bytes) -> None:
    """Any script is checked for problems of its job without an exception."""
    with empty_folder() as folder:
        job = plan_job(folder, via="sbatch", command=("sbatch", "./launch.sh"))
        (folder / "recipe" / "launch.sh").write_bytes(data)
        require_types(slurm_checks.read_directives(job), list[str])
        partitions = (Partition("batch", 32, 8, 86400.0, up=True, is_default=True),)
        for problem in (
            *slurm_checks.check_account(job, Cluster(gpu="h100"), ("coreai",)),
            *slurm_checks.check_partition(job, Cluster(gpu="h100"), partitions),
        ):
            require_types(problem, type(problem))


SCRIPT = """\
Experiment Status for x_1795213664566197936

Task 0: train
- Status: SUBMITTED
- Executor: SlurmExecutor on @localhost
- Job id: 3530909
- Local Directory: /lustre/x
"""
SUBMISSIONS = (
    SCRIPT,
    "sbatch: warning: x\nSubmitted batch job 4711 on cluster a\n",
    "4711;eos\n4712\n",
    "LAUNCHED: pretrain_grok1_314b dtype=bf16 scale=16 jobid=2\nJobID: 2, Workdir: /lustre/llmb/task\n",
    "SUBMITTED: pretrain_x_8b dtype=fp8 scale=8 jobid=3 workdir=/lustre/llmb/1795213837\n",
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n",
)


def check_submission(data: bytes) -> None:
    """The output of a submission gives one job id, or a printable reason why not."""
    text = data.decode("utf-8", "replace")
    readers = (*sbatch.READERS.values(), sbatch.parse_answers)
    with written("submit.out", data) as output:
        job = job_specs.job(output.parent)
        for read in readers:
            with refusals(LaunchError, naming=""):
                chosen = sbatch.require_single(read(text), job, output)
                require(
                    chosen is None or chosen.job_id.encode().isdigit(),
                    "an id that is none",
                )
                require_types(chosen, submission.Submission | None)
        require_printable(
            submission.describe_refusal(job, 1, text, output, sbatch.find_remedy(text)),
            "a refusal",
        )
        require_printable(
            submission.describe_doubt(job, output, "squeue", text=text), "a doubt"
        )
        code = process.read_exit_code(output)
        require(
            code in (None, process.NEVER_RAN) or 0 <= code <= 999,
            "an exit code that is none",
        )
        require(
            not re.search(r"\x1b\[[0-9;]*m", submission.remove_colours(text)),
            "a colour that stays",
        )
