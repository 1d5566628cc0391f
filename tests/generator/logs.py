"""Whole logs: preamble, steps, end marker."""

from __future__ import annotations

from datetime import timedelta
from math import fsum
from typing import TYPE_CHECKING

from generator import lines
from generator.plan import Plan, release_number
from generator.preambles import node_name, preamble
from generator.series import step_seconds
from pytest_llmbench.core.flops import count_model_flops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PEAK_LEARNING_RATE = 3e-4
LEARNING_RATE_WARM_UP = 2001
PROFILED_MAXTEXT_FACTOR = 1.15
"""MaxText's first run is profiled for the compiler, and slower.

The factor is large enough to reveal if the two runs are mixed up.
"""


def log_text(plan: Plan, attempt: int) -> str:
    """Return the log of one attempt."""
    pieces = [*body(plan, attempt), *ending(plan, attempt)]
    text = (
        "\n".join(preamble(plan, plan.began(attempt) + timedelta(seconds=41)))
        + "\n"
        + "".join(pieces)
    )
    killed = plan.ending == "killed" and attempt == plan.restarts
    return text[: -(len(pieces[-1]) // 2)] if killed and pieces else text


def body(plan: Plan, attempt: int) -> Iterator[str]:
    """Yield the text of an attempt from its first step on, with line ends."""
    steps = plan.printed_steps(attempt)
    if plan.checkpoint == "load":
        time = plan.began(attempt) + timedelta(seconds=70)
        yield lines.checkpoint_load(time, time.timestamp() - 9.712, 9.712) + "\n"
    if plan.dialect == "maxtext":
        yield from maxtext_runs(plan, steps)
    else:
        yield from (nemo1_steps if plan.dialect == "nemo1" else nemo2_steps)(
            plan, attempt, steps
        )


def nemo1_steps(plan: Plan, attempt: int, steps: int) -> Iterator[str]:
    """Yield each step as two progress bars, the first one stale.

    The second bar is followed by a DLLogger record if the plan has them.
    """
    total = len(plan.step_seconds)
    start, end = ("\r", "") if plan.carriage_returns else ("", "\n")
    previous: dict[str, float] = {}
    elapsed = 0.0
    for step in range(steps):
        values = nemo1_values(plan, step)
        elapsed += plan.step_seconds[step]
        times = elapsed, elapsed / (step + 1) * (total - step - 1)
        stale = lines.nemo1_bar(step + 1, total, *times, previous)
        bar = lines.nemo1_bar(step + 1, total, *times, values)
        record = dllogger_record(plan, attempt, step) + "\n" if plan.dllogger else end
        yield from collectives(plan, step)
        for rank in plan.ranks:
            yield f"{start}{rank}{stale}{end}"
            yield f"{start}{rank}{bar}{record}"
        previous = values


def nemo1_values(plan: Plan, step: int) -> dict[str, float]:
    """Return the values that the bar of a step shows, in order."""
    return {
        "reduced_train_loss": plan.loss(step, 12.9),
        "global_step": float(step),
        "consumed_samples": float(
            (step + 1) * plan.baseline.configuration.global_batch_size
        ),
        "train_step_timing in s": plan.step_seconds[step],
    }


def dllogger_record(plan: Plan, attempt: int, step: int) -> str:
    """Return the DLLogger record of a step."""
    values = nemo1_values(plan, step)
    fields = {
        "reduced_train_loss": values["reduced_train_loss"],
        "lr": step * 7.5e-8,
        "global_step": values["global_step"],
        "consumed_samples": values["consumed_samples"],
        "grad_norm": plan.loss(step, 14.9),
        "train_step_timing in s": values["train_step_timing in s"],
        "epoch": 0,
    }
    return lines.dllogger_record(plan.after_step(attempt, step + 1), step, fields)


def nemo2_steps(plan: Plan, _attempt: int, steps: int) -> Iterator[str]:
    """Yield the line of each step; the first line lacks consumed_samples."""
    for step in range(steps):
        values = nemo2_values(plan, step)
        if step == 0:
            del values["consumed_samples"]
        line = lines.nemo2_line(step, len(plan.step_seconds), values)
        yield from collectives(plan, step)
        yield from (f"{rank}{line}\n" for rank in plan.ranks)


def nemo2_values(plan: Plan, step: int) -> dict[str, float]:
    """Return the values in the line of a step, in the order of its release.

    25.05 renamed the memory and added TFLOP/s.
    """
    batch = plan.baseline.configuration.global_batch_size
    seconds = plan.step_seconds[step]
    newer = release_number(plan.gsw_version) >= (25, 5)
    memory = {"max_memory_reserved": 127785762816, "max_memory_allocated": 115792977920}
    older_memory = {"peak_memory_usage": 70833405952, "memory_allocated": 44271689728}
    return {
        "lr": PEAK_LEARNING_RATE * (step + 1) / LEARNING_RATE_WARM_UP,
        "global_batch_size": batch,
        "global_step": step,
        **(memory if newer else older_memory),
        "reduced_train_loss": plan.loss(step, 12.4),
        "train_step_timing in s": seconds,
        **({"TFLOPS_per_GPU": logged_tflops(plan, seconds)} if newer else {}),
        "consumed_samples": (step + 1) * batch,
    }


def logged_tflops(plan: Plan, seconds: float) -> float:
    """Return the TFLOP/s per GPU that the framework logs.

    The formula of the documents times its known factor.
    """
    configuration = plan.baseline.configuration
    flops = configuration.global_batch_size * count_model_flops(
        configuration.architecture
    )
    return (
        flops
        / seconds
        / configuration.key.gpus
        / 1e12
        * (plan.baseline.logged_tflops_factor or 1.0)
    )


def maxtext_runs(plan: Plan, steps: int) -> Iterator[str]:
    """Yield the two runs that the GPU recipe writes into one log.

    First a short profiled run, then the measured run.
    """
    if plan.profiling_steps:
        slow = plan.baseline.step_seconds * PROFILED_MAXTEXT_FACTOR
        seconds = step_seconds(plan.profiling_steps, plan.baseline.window, slow, 3)
        yield f"Config param steps: {plan.profiling_steps}\n"
        yield from maxtext_steps(plan, seconds, [0.0] * plan.profiling_steps)
        yield "Profile of the compiled step written, starting again with it\n"
    seconds = plan.step_seconds
    if plan.dispatch_artefact:
        seconds = (seconds[0], seconds[1] * 0.05, seconds[2] * 0.05, *seconds[3:])
    yield f"Config param steps: {len(seconds)}\n"
    yield from maxtext_steps(
        plan, seconds[:steps], [plan.loss(step, 0.0) for step in range(steps)]
    )


def maxtext_steps(
    plan: Plan, seconds: Sequence[float], loss: Sequence[float]
) -> Iterator[str]:
    """Yield the line of each step; synthetic data has loss 0.000."""
    configuration = plan.baseline.configuration
    tokens = (
        configuration.architecture.sequence_length * configuration.global_batch_size
    )
    for step, duration in enumerate(seconds):
        per_device = tokens / duration / configuration.key.gpus
        line = lines.maxtext_line(
            step,
            duration,
            tflops=logged_tflops(plan, duration),
            tokens_per_second=per_device,
            total_weights=tokens,
            loss=loss[step],
        )
        yield from collectives(plan, step)
        yield from (f"{rank}{line}\n" for rank in plan.ranks)


def collectives(plan: Plan, step: int) -> Iterator[str]:
    """Yield a shortened NCCL trace of a step: four collectives of four processes."""
    if not plan.traced:
        return
    names = ("AllReduce", "Broadcast", "AllGather", "ReduceScatter")
    for index, name in enumerate(names):
        for rank in range(4):
            count = 2097152 * (index + 1)
            operation = len(names) * step + index
            yield (
                lines.nccl_collective(
                    rank, name, operation, count, plan.baseline.key.gpus, datatype=9
                )
                + "\n"
            )


def ending(plan: Plan, attempt: int) -> Iterator[str]:
    """Yield the last lines of an attempt.

    The end marker of the framework, or Slurm's line if the log contains errors.
    """
    time = plan.ended(attempt)
    reason = plan.cancelled_because(attempt)
    if reason and plan.layout_name != "results":
        step = f"{plan.job_id}.0"
        yield (
            lines.slurm_cancelled(step, node_name(1), time, reason, kind="STEP") + "\n"
        )
    elif not reason and plan.ending != "killed":
        yield from finished(plan, attempt)


def finished(plan: Plan, attempt: int) -> Iterator[str]:
    """Yield the lines that the framework prints after the last step."""
    time = plan.ended(attempt)
    if plan.dialect == "maxtext":
        yield f"{time:%Y-%m-%d %H:%M:%S.%f}: I external/xla/xla/pjrt/distributed/client.cc:135] shutdown initiated\n"
        return
    steps = len(plan.step_seconds)
    yield f"{lines.fit_stopped(steps)}\n"
    if plan.dialect == "nemo1":
        bar = lines.nemo1_bar(
            steps, steps, fsum(plan.step_seconds), 0.0, nemo1_values(plan, steps - 1)
        )
        rounded = [round(seconds, 2) for seconds in plan.step_seconds]
        yield (
            f"\n{bar}\n"
            + lines.nemo_info(time, f"train_step_timing in s: {rounded}")
            + "\n"
        )
    if plan.checkpoint == "save":
        yield (
            lines.checkpoint_save(time, steps, time.timestamp() - 4.389, 4.389) + "\n"
        )
    if plan.profiled:
        yield "Generated:\n    /nemo_run/nsys_profile/report.nsys-rep\n"
