"""Write the files of one run."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from zlib import crc32

from generator.layouts import Layout, layout
from generator.lines import slurm_cancelled
from generator.logs import log_text
from generator.metadata import metadata_text
from generator.plan import STARTED, Plan
from generator.preambles import node_count, node_name

if TYPE_CHECKING:
    from pathlib import Path, PurePosixPath

    from pytest_llmbench.core.baseline_records import Baseline

PREFIX_LENGTH = 10
SCRIPT = """\
export PYTHONUNBUFFERED=1
+ export PYTHONUNBUFFERED=1
+ PYTHONUNBUFFERED=1
set +e
+ set +e
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
++ scontrol show hostnames 'node-[0001-{nodes:04d}]'
head_node=${{nodes_array[0]}}
+ head_node=node-0001
export MAX_STEPS={steps}
+ export MAX_STEPS={steps}
+ MAX_STEPS={steps}
srun --output {log} ./train
+ srun --output {log} ./train
exitcode=$?
+ exitcode=0
echo "job exited with code $exitcode"
+ echo 'job exited with code 0'
job exited with code 0
"""


def write_run(root: Path, baseline: Baseline, **options: Any) -> Path:
    """Write one run of a baseline's configuration under `root` and return the path of
    its (last) log.

    Options are those of `Plan`. Without any, the run is a clean one in its own recipe's
    layout: the mean over the baseline's window of the step times *as printed* is the
    baseline's step time to within a thirtieth of a printed unit. NeMo 1 bars print
    three significant digits, so a mean of 24.03 s is a mix of `24.00` and `24.10`; with
    `dllogger=True` each bar is followed by a record of full precision. Slurm's, the
    profiler's and the launcher's files stand beside the log where the layout has them.
    Files bear the time at which the run ended. Job id and start follow from the
    configuration, so give both for a second run of one: FileExistsError where its files
    are there.
    """
    return write_plan(root, Plan(baseline, **own_job(baseline) | options))


def own_job(baseline: Baseline) -> dict[str, Any]:
    """Return a job id and a start that differ between configurations: two GPU types may
    share an experiment name."""
    number = crc32(baseline.key.id.encode()) % 100_000
    return {
        "job_id": str(1_400_000 + number),
        "started": STARTED + timedelta(minutes=number),
    }


def write_plan(root: Path, plan: Plan, *, replace: bool = False) -> Path:
    """Write the files of a plan under `root` and return the path of its (last) log; see
    `write_run`."""
    places = layout(plan)
    for place, text in files(plan, places).items():
        write(
            root / place, text, plan.ended(plan.restarts).timestamp(), replace=replace
        )
    return root / places.logs[-1]


def write(path: Path, text: str, modified: float, *, replace: bool) -> None:
    """Write a file as it is, carriage returns and all, with its time of
    modification."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w" if replace else "x", encoding="utf-8", newline="") as stream:
        stream.write(text)
    os.utime(path, (modified, modified))


def files(plan: Plan, places: Layout) -> dict[PurePosixPath, str]:
    """Return the files of a run, relative to its root, with their text."""
    attempts = [log_text(plan, attempt) for attempt in range(plan.restarts + 1)]
    texts = attempts if len(places.logs) == len(attempts) else ["".join(attempts)]
    found = dict(zip(places.logs, texts, strict=True))
    if places.err:
        found[places.err] = err_text(plan)
    if places.metadata:
        found[places.metadata] = metadata_text(plan)
    if places.sbatch:
        found[places.sbatch] = sbatch_text(plan, places, texts[-1])
    if places.profile:
        found[places.profile] = ""
    return found | dict.fromkeys(places.copies, texts[-1])


def err_text(plan: Plan) -> str:
    """Return standard error where it stands apart: harmless noise, and Slurm's line for
    each cancelled attempt."""
    if plan.layout_name == "local":
        return ""
    noise = [
        f"pyxis: imported docker image on {node_name(1)}",
        "slurmstepd: error: NVML: Failed to get usage(999)",
    ]
    cancelled = [
        slurm_cancelled(
            plan.job_id,
            node_name(1),
            plan.ended(attempt),
            plan.cancelled_because(attempt),
        )
        for attempt in range(plan.restarts + 1)
        if plan.cancelled_because(attempt)
    ]
    return "\n".join([*noise, *cancelled]) + "\n"


def sbatch_text(plan: Plan, places: Layout, log: str) -> str:
    """Return what stands beside the log: the launcher's one line, the batch script's
    echo, or every line once more."""
    if plan.layout_name == "launcher":
        key = plan.baseline.key
        return f"size={key.size} dtype={key.dtype} gpus={key.gpus} type={key.gpu} nodes={node_count(plan)}\n"
    if plan.sbatch == "copy":
        prefix = f"{places.logs[-1].parent.name[-PREFIX_LENGTH:]}/0 "
        return "".join(f"{prefix}{line}" for line in log.splitlines(keepends=True))
    return SCRIPT.format(
        nodes=node_count(plan),
        steps=plan.total_steps,
        log=f"/lustre/llmb/{places.logs[-1].name}",
    )
