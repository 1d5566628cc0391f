"""Where the files of a run stand: the layouts of the releases, from batch scripts to
the newest launcher."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from generator.plan import Plan

ACCOUNT = "benchmark"


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one run, relative to the root. `logs` holds one for each attempt, or
    one for all where they are appended; the others are None where the layout has none.
    `copies` are further files with the text of the log."""

    logs: tuple[PurePosixPath, ...]
    err: PurePosixPath | None = None
    metadata: PurePosixPath | None = None
    sbatch: PurePosixPath | None = None
    profile: PurePosixPath | None = None
    copies: tuple[PurePosixPath, ...] = ()


def layout(plan: Plan) -> Layout:
    """Return where the files of a run stand."""
    return LAYOUTS[plan.layout_name](plan)


def model_size_dtype(plan: Plan) -> str:
    """Return `grok1_314b_bf16`."""
    key = plan.baseline.key
    return f"{plan.model}_{key.size}_{key.dtype}"


def experiment_name(plan: Plan) -> str:
    """Return the NeMo-Run experiment's name: `pretrain_llama3.1_70b_fp8_256`."""
    return (
        plan.experiment or f"pretrain_{model_size_dtype(plan)}_{plan.baseline.key.gpus}"
    )


def profile_name(plan: Plan) -> str:
    """Return the name of the first Nsight report, as the documents give its format."""
    key = plan.baseline.key
    return f"{plan.model}-{key.size}-{key.dtype}_{key.gpus}g_{plan.job_id}_0_0.nsys-rep"


def results(plan: Plan) -> Layout:
    """24.11 to 25.03, batch scripts: the folder does not name the model; a requeue
    appends to the same file."""
    key = plan.baseline.key
    version = plan.gsw_version + ("-nccl-trace" if plan.traced else "")
    folder = PurePosixPath("results", version, key.dtype, key.size, str(key.gpus))
    stem = f"log-{plan.framework}_{plan.model}_{key.size}_{key.gpus}_{plan.job_id}"
    if plan.document_name:
        stem = f"log-{plan.framework}-{key.gpus}_{key.size}_{plan.job_id}"
    profile = folder / profile_name(plan) if plan.profiled else None
    return Layout(
        (folder / f"{stem}.out",), err=folder / f"{stem}.err", profile=profile
    )


def experiments(plan: Plan) -> Layout:
    """25.04, NeMo-Run: a profiled or traced run has a task folder of its own name."""
    name = experiment_name(plan)
    task = (
        name
        + ("_nsys" if plan.profiled else "")
        + ("_nccltrace" if plan.traced else "")
    )
    folder = PurePosixPath(
        "experiments", name, f"{name}_{int(plan.started.timestamp())}", task
    )
    profile = folder / f"profile_{plan.job_id}.nsys-rep" if plan.profiled else None
    return Layout(
        task_logs(plan, folder, task),
        sbatch=sbatch_output(plan, folder, task),
        profile=profile,
    )


def workloads(plan: Plan) -> Layout:
    """25.05 on: NeMo-Run's folders under the workload's, with the launcher's metadata
    beside the log."""
    name = experiment_name(plan)
    top = PurePosixPath("workloads", f"pretrain_{plan.model}", "experiments", name)
    folder = top / f"{name}_{int(plan.started.timestamp())}" / name
    profile = folder / "nsys_profile" / profile_name(plan) if plan.profiled else None
    return Layout(
        task_logs(plan, folder, name),
        metadata=folder / f"llmb-config_{plan.job_id}.yaml",
        sbatch=sbatch_output(plan, folder, name),
        profile=profile,
    )


def task_logs(
    plan: Plan, folder: PurePosixPath, task: str
) -> tuple[PurePosixPath, ...]:
    """Return NeMo-Run's log of each attempt: a requeue keeps the job id and raises the
    last number."""
    if plan.document_name:
        return (folder / f"log-{task}.out",)
    stem = f"log-{ACCOUNT}-{ACCOUNT}.{task}_{plan.job_id}"
    return tuple(
        folder / f"{stem}_{attempt}.out" for attempt in range(plan.restarts + 1)
    )


def sbatch_output(plan: Plan, folder: PurePosixPath, task: str) -> PurePosixPath | None:
    """Return the batch script's output, where the plan asks for one."""
    if not plan.sbatch:
        return None
    return folder / (
        f"sbatch_{task}.out"
        if plan.document_name
        else f"sbatch_{ACCOUNT}-{ACCOUNT}.{task}_{plan.job_id}.out"
    )


def launcher(plan: Plan) -> Layout:
    """The newer launcher: one folder of epoch seconds a run, with what Slurm and the
    job write."""
    name = (
        plan.experiment
        or f"pretrain_{model_size_dtype(plan)}_gpus{plan.baseline.key.gpus}"
    )
    top = PurePosixPath("workloads", f"pretrain_{plan.model}", "experiments", name)
    folder = top / str(int(plan.started.timestamp()))
    return Layout(
        tuple(
            folder / f"log-{plan.model}_{plan.job_id}_{attempt}.out"
            for attempt in range(plan.restarts + 1)
        ),
        metadata=folder / f"llmb-config_{plan.job_id}.yaml",
        sbatch=folder / f"slurm-{plan.job_id}.out",
    )


def sbatch(plan: Plan) -> Layout:
    """The launcher's oldest kind: metadata and Slurm's own output at the workload's
    root; that output is the log."""
    folder = PurePosixPath("workloads", f"pretrain_{plan.model}")
    metadata = folder / f"llmb-config_{plan.job_id}.yaml"
    return Layout((folder / f"slurm-{plan.job_id}.out",), metadata=metadata)


def local(plan: Plan) -> Layout:
    """NeMo-Run's local executor: the log three times, whole and by stream."""
    name = experiment_name(plan)
    folder = PurePosixPath(
        "experiments", name, f"{name}_{int(plan.started.timestamp())}", name
    )
    task = folder / "nemo_run" / f"{name}-b7k2xw4q" / name / "0"
    return Layout(
        (task / "combined.log",), err=task / "stderr.log", copies=(task / "stdout.log",)
    )


LAYOUTS = {
    "results": results,
    "experiments": experiments,
    "workloads": workloads,
    "launcher": launcher,
    "sbatch": sbatch,
    "local": local,
}
