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
    """Write one run of a baseline's configuration, and return the path of its last log.

    `options` are options of `Plan`. By default the run is clean and uses the layout of
    its recipe. The mean of its *printed* step times over the baseline's window is the
    baseline's step time, within a thirtieth of a printed unit. NeMo 1 bars print three
    significant digits, so a mean of 24.03 s is a mix of `24.00` and `24.10`; with
    `dllogger=True` a record of full precision follows each bar.

    Files of Slurm, the profiler and the launcher are written next to the log if the
    layout has them. The modification time of the files is the end of the run.

    Job id and start follow from the configuration. Pass both to write a second run of
    the same configuration. Raises FileExistsError if the files exist.
    """
    return write_plan(root, Plan(baseline, **default_job(baseline) | options))


def default_job(baseline: Baseline) -> dict[str, Any]:
    """Return a job id and start time that differ between configurations.

    Two GPU types may share an experiment name.
    """
    number = crc32(baseline.key.id.encode()) % 100_000
    return {
        "job_id": str(1_400_000 + number),
        "started": STARTED + timedelta(minutes=number),
    }


def write_plan(root: Path, plan: Plan, *, replace: bool = False) -> Path:
    """Write the files of a plan, and return the path of its last log.

    See `write_run`.
    """
    paths = layout(plan)
    for path, text in files(plan, paths).items():
        write(root / path, text, plan.ended(plan.restarts).timestamp(), replace=replace)
    return root / paths.logs[-1]


def write(path: Path, text: str, modified: float, *, replace: bool) -> None:
    """Write a file unchanged, including carriage returns, with this modification time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w" if replace else "x", encoding="utf-8", newline="") as stream:
        stream.write(text)
    os.utime(path, (modified, modified))


def files(plan: Plan, paths: Layout) -> dict[PurePosixPath, str]:
    """Return the texts of a run's files, by path relative to its root."""
    attempts = [log_text(plan, attempt) for attempt in range(plan.restarts + 1)]
    texts = attempts if len(paths.logs) == len(attempts) else ["".join(attempts)]
    texts_by_path = dict(zip(paths.logs, texts, strict=True))
    if paths.err:
        texts_by_path[paths.err] = err_text(plan)
    if paths.metadata:
        texts_by_path[paths.metadata] = metadata_text(plan)
    if paths.sbatch:
        texts_by_path[paths.sbatch] = sbatch_text(plan, paths, texts[-1])
    if paths.profile:
        texts_by_path[paths.profile] = ""
    return texts_by_path | dict.fromkeys(paths.copies, texts[-1])


def err_text(plan: Plan) -> str:
    """Return the standard error: harmless lines, and Slurm's cancellations."""
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


def sbatch_text(plan: Plan, paths: Layout, log: str) -> str:
    """Return the output of the batch script.

    One line of the launcher, the echo of the script, or a copy of every line.
    """
    if plan.layout_name == "launcher":
        key = plan.baseline.key
        return f"size={key.size} dtype={key.dtype} gpus={key.gpus} type={key.gpu} nodes={node_count(plan)}\n"
    if plan.sbatch == "copy":
        prefix = f"{paths.logs[-1].parent.name[-PREFIX_LENGTH:]}/0 "
        return "".join(f"{prefix}{line}" for line in log.splitlines(keepends=True))
    return SCRIPT.format(
        nodes=node_count(plan),
        steps=plan.total_steps,
        log=f"/lustre/llmb/{paths.logs[-1].name}",
    )
