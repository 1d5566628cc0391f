"""File layouts of the releases, from batch scripts to the newest launcher."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from generator.plan import Plan

ACCOUNT = "benchmark"


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one run, relative to the root.

    `logs` contains one log per attempt, or a single log to which all attempts append.
    Other files are None if the layout has none. `copies` are further files with the
    text of the log.
    """

    logs: tuple[PurePosixPath, ...]
    err: PurePosixPath | None = None
    metadata: PurePosixPath | None = None
    sbatch: PurePosixPath | None = None
    profile: PurePosixPath | None = None
    copies: tuple[PurePosixPath, ...] = ()


def layout(plan: Plan) -> Layout:
    """Return the file layout of a plan."""
    return LAYOUTS[plan.layout_name](plan)


def model_size_dtype(plan: Plan) -> str:
    """Return `grok1_314b_bf16`."""
    key = plan.baseline.key
    return f"{plan.model}_{key.size}_{key.dtype}"


def experiment_name(plan: Plan) -> str:
    """Return the name of the NeMo-Run experiment: `pretrain_llama3.1_70b_fp8_256`."""
    return (
        plan.experiment or f"pretrain_{model_size_dtype(plan)}_{plan.baseline.key.gpus}"
    )


def profile_name(plan: Plan) -> str:
    """Return the name of the first Nsight report, in the documented format."""
    key = plan.baseline.key
    return f"{plan.model}-{key.size}-{key.dtype}_{key.gpus}g_{plan.job_id}_0_0.nsys-rep"


def results(plan: Plan) -> Layout:
    """24.11 to 25.03, batch scripts.

    The folder does not contain the model; a requeued job appends to the same file.
    """
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
    """25.04, NeMo-Run.

    A profiled or traced run has a separate task folder.
    """
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
    """From 25.05 on: NeMo-Run's folders inside the workload's folder.

    The launcher writes metadata next to the log.
    """
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
    """Return NeMo-Run's log of each attempt.

    A requeued job keeps its id and increments the last number.
    """
    if plan.document_name:
        return (folder / f"log-{task}.out",)
    stem = f"log-{ACCOUNT}-{ACCOUNT}.{task}_{plan.job_id}"
    return tuple(
        folder / f"{stem}_{attempt}.out" for attempt in range(plan.restarts + 1)
    )


def sbatch_output(plan: Plan, folder: PurePosixPath, task: str) -> PurePosixPath | None:
    """Return the output file of the batch script if the plan has one."""
    if not plan.sbatch:
        return None
    return folder / (
        f"sbatch_{task}.out"
        if plan.document_name
        else f"sbatch_{ACCOUNT}-{ACCOUNT}.{task}_{plan.job_id}.out"
    )


def launcher(plan: Plan) -> Layout:
    """The newer launcher: one folder per run, named by epoch seconds.

    Slurm and the job write into it.
    """
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
    """The oldest launcher: metadata and Slurm's output in the workload's folder.

    Slurm's output is the log.
    """
    folder = PurePosixPath("workloads", f"pretrain_{plan.model}")
    metadata = folder / f"llmb-config_{plan.job_id}.yaml"
    return Layout((folder / f"slurm-{plan.job_id}.out",), metadata=metadata)


def local(plan: Plan) -> Layout:
    """NeMo-Run's local executor: the whole log, and a copy per stream."""
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
