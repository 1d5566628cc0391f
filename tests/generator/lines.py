"""Lines of training logs, one function per kind, as the frameworks print them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

BLOCKS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 10


def bar_number(value: float) -> str:
    """Format a float as the postfix of a progress bar does.

    Three significant digits, padded to five characters.

    24.03 becomes `24.00`, 3.59 `3.590`, 51200.0 `51200.0` and 204800.0 `2.05e+5`: the
    shorter of `%.3g` and the float itself, padded with zeros. NaN becomes `nan.0`.
    """
    short = f"{value:.3g}".replace("e+0", "e+").replace("e-0", "e-")
    text = min(str(value), short, key=len)
    if "e" in text:
        return text
    if "." not in text and len(text) < 5:
        text += "."
    return text.ljust(5, "0")


def bar_interval(seconds: float) -> str:
    """Format a duration as a progress bar does: `23:22`, or `1:03:17`."""
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours}:{minutes:02d}:{remainder:02d}"
        if hours
        else f"{minutes:02d}:{remainder:02d}"
    )


def bar_blocks(count: int, total: int) -> str:
    """Draw the bar: ten columns of eight steps each."""
    full, eighths = divmod(int(count / total * BAR_WIDTH * 8), 8)
    return (BLOCKS[-1] * full + (BLOCKS[eighths] if full < BAR_WIDTH else "")).ljust(
        BAR_WIDTH
    )


def nemo1_bar(
    count: int,
    total: int,
    elapsed: float,
    remaining: float,
    postfix: Mapping[str, float] | None = None,
) -> str:
    """Return one NeMo 1 progress bar: `count` of `total` steps done.

    `elapsed` and `remaining` in seconds; `postfix` contains the logged values.
    """
    values = "".join(
        f", {name}={bar_number(value)}" for name, value in (postfix or {}).items()
    )
    times = f"{bar_interval(elapsed)}<{bar_interval(remaining)}"
    return f"Epoch 0: : {count / total * 100:3.0f}%|{bar_blocks(count, total)}| {count}/{total} [{times}{values}]"


def dllogger_record(
    time: datetime, step: int, values: Mapping[str, float | int]
) -> str:
    """Return one DLLogger record with full precision.

    Ends in a space, as real records do.
    """
    fields = "".join(f" {name} : {value} " for name, value in values.items())
    return f"DLL {time:%Y-%m-%d %H:%M:%S.%f} - {step}{fields}"


def nemo2_number(value: float) -> str:
    """Format a value as NeMo 2 does.

    Integers without decimals, other numbers with four significant digits.
    """
    return str(int(value)) if value.is_integer() else f"{value:.4}"


def nemo2_line(step: int, total: int, values: Mapping[str, float]) -> str:
    """Return the NeMo 2 line of a step (from 0), with `values` in their order."""
    fields = "".join(
        f" | {name}: {nemo2_number(float(value))}" for name, value in values.items()
    )
    return f"Training epoch 0, iteration {step}/{total - 1}{fields}"


def maxtext_line(
    step: int,
    seconds: float,
    *,
    tflops: float,
    tokens_per_second: float,
    total_weights: int,
    loss: float,
) -> str:
    """Return one MaxText line; TFLOP/s and tokens/s are per device."""
    return (
        f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {tflops:.3f}, "
        f"Tokens/s/device: {tokens_per_second:.3f}, total_weights: {total_weights}, loss: {loss:.3f}"
    )


def megatron_line(
    time: datetime,
    step: int,
    total: int,
    seconds: float,
    *,
    batch: int,
    tflops: float | None,
    loss: float | None,
) -> str:
    """Return the Megatron-LM line of a step (from 1).

    A release that prints no throughput has `tflops` None.
    """
    fields = [
        f" [{time:%Y-%m-%d %H:%M:%S.%f}] iteration {step:8d}/{total:8d}",
        f"consumed samples: {step * batch:12d}",
        f"elapsed time per iteration (ms): {seconds * 1000:.1f}",
        *(
            []
            if tflops is None
            else [f"throughput per GPU (TFLOP/s/GPU): {tflops:.1f}"]
        ),
        "learning rate: 3.000000E-05",
        f"global batch size: {batch:5d}",
        *([] if loss is None else [f"lm loss: {loss:.6E}"]),
        "loss scale: 1.0",
        "grad norm: 10.275",
        f"number of skipped iterations: {0:3d}",
        f"number of nan iterations: {0:3d} |",
    ]
    return " | ".join(fields)


def step_time_line(seconds: float, tflops: float) -> str:
    """Return Megatron-Bridge's second line of a step, without the step number."""
    return f"Step Time : {seconds:.2f}s GPU utilization: {tflops:.1f}MODEL_TFLOP/s/GPU"


def torchtitan_line(
    time: datetime,
    step: int,
    *,
    loss: float,
    tokens_per_second: float,
    tflops: float,
    colours: bool = True,
) -> str:
    """Return the torchtitan line of a step (from 1): a time stamp, no seconds.

    Tokens/s and TFLOP/s are per GPU.
    """
    fields = {
        "\x1b[31m": f"step: {step:2}  ",
        "\x1b[32m": f"loss: {loss:8.5f}  ",
        "\x1b[38;2;180;60;0m": "grad_norm:  2.4949  ",
        "\x1b[38;2;54;234;195m": "memory: 28.18GiB(89.87%)  ",
        "\x1b[34m": f"tps: {round(tokens_per_second):,}  ",
        "\x1b[36m": f"tflops: {tflops:,.2f}  ",
        "\x1b[35m": "mfu: 4.11%",
        "\x1b[39m": "",
    }
    text = "".join(
        f"{colour if colours else ''}{field}" for colour, field in fields.items()
    )
    return f"[titan] {time:%Y-%m-%d %H:%M:%S},{time.microsecond // 1000:03d} - root - INFO - {text}"


def paxml_line(seconds: float) -> str:
    """Return PaxML's line of a step, without the step number."""
    return f"[PAX STATUS]: train_step() took {seconds:.2f} seconds."


def huggingface_summary(
    runtime: float, samples_per_second: float, steps_per_second: float, loss: float
) -> str:
    """Return the final record of a Hugging Face Trainer, about the whole run."""
    values = {
        "train_runtime": round(runtime, 4),
        "train_samples_per_second": round(samples_per_second, 3),
        "train_steps_per_second": round(steps_per_second, 3),
        "train_loss": loss,
        "epoch": 1.0,
    }
    return str(values)


def metric_line(time: datetime, step: int, total: int, value: float, name: str) -> str:
    """Return the line of one value of an event file, written at `time`."""
    return f"llmb scalar: {step}/{total} {time.timestamp():.6f} {value!r} {name}"


def trainer_record(step: int, total: int, seconds: float, loss: float) -> str:
    """Return LLaMA-Factory's record of a step in `trainer_log.jsonl`.

    `seconds` is the time since training began.
    """
    values = {
        "current_steps": step,
        "total_steps": total,
        "loss": loss,
        "lr": 1e-05,
        "epoch": round(step / total, 4),
        "percentage": round(100 * step / total, 2),
        "elapsed_time": str(timedelta(seconds=int(seconds))),
        "remaining_time": "0:00:00",
    }
    return json.dumps(values)


def mlperf_record(key: str, value: object, **metadata: object) -> str:
    """Return a record of MLPerf logging.

    The value of `tracked_stats` is a dictionary.
    """
    record = {
        "namespace": "",
        "time_ms": 1759985895027,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
    }
    location = {"file": "/workspace/llm/pretrain.py", "lineno": 480}
    return f":::MLLOG {json.dumps(record | {'metadata': location | metadata})}"


def mlperf_step(step: int, seconds: float, loss: float, batch: int) -> str:
    """Return MLPerf's record of a step (from 0), with the samples so far."""
    times = {"train_step_time": seconds, "reduced_train_loss": loss}
    return mlperf_record(
        "tracked_stats",
        times,
        step=float(step),
        samples_count=float((step + 1) * batch),
    )


def nemo_info(time: datetime, text: str, where: str = "nemo_logging:393") -> str:
    """Return a line of NeMo's logger."""
    return f"[NeMo I {time:%Y-%m-%d %H:%M:%S} {where}] {text}"


def checkpoint_save(
    time: datetime, iteration: int, start: float, duration: float
) -> str:
    """Return the line of a saved checkpoint.

    `start` in seconds since 1970, `duration` in seconds.
    """
    times = f"Start time: {start:.3f}s : Save duration: {duration:.3f}s"
    return nemo_info(
        time, f"Global Checkpoint Save : Rank: 0 : Iteration: {iteration} : {times}"
    )


def checkpoint_load(time: datetime, start: float, duration: float) -> str:
    """Return the line of a loaded checkpoint.

    `start` in seconds since 1970, `duration` in seconds.
    """
    times = (
        f"Start time : {start:.3f}s : Time spent in load_checkpoint: {duration:.3f}s"
    )
    return nemo_info(time, f"Global Checkpoint Load : Rank : 0 : {times}")


def fit_stopped(steps: int) -> str:
    """Return the line that NeMo prints after the last step."""
    return f"`Trainer.fit` stopped: `max_steps={steps}` reached."


def nccl_collective(
    local_rank: int,
    collective: str,
    operation_count: int,
    count: int,
    ranks: int,
    *,
    datatype: int = 1,
    send: int = 0x7FFB4713C200,
    receive: int = 0x7FFB4713C200,
    communicator: int = 0x55556B100660,
    stream: int = 0x5555630C58B0,
) -> str:
    """Return one line of an NCCL trace.

    `opCount` is hexadecimal; `count` is the number of elements.
    """
    return (
        f"[{local_rank}] NCCL INFO {collective}: opCount {operation_count:x} sendbuff {send:#x} recvbuff {receive:#x} "
        f"count {count} datatype {datatype} op 0 root 0 comm {communicator:#x} [nranks={ranks}] stream {stream:#x}"
    )


def slurm_cancelled(
    job: str, node: str, time: datetime, reason: str, *, kind: str = "JOB"
) -> str:
    """Return Slurm's line for a cancelled job or step.

    `reason` is in upper case, as Slurm prints it.
    """
    return f"slurmstepd: error: *** {kind} {job} ON {node} CANCELLED AT {time:%Y-%m-%dT%H:%M:%S} DUE TO {reason} ***"
