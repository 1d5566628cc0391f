"""Lines of training logs, one function for each kind, as the frameworks print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

BLOCKS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 10


def bar_number(value: float) -> str:
    """Format a float as a progress bar's postfix does: three significant digits, padded to five characters.

    24.03 reads `24.00`, 3.59 `3.590`, 51200.0 `51200.0` and 204800.0 `2.05e+5`: the shorter of `%.3g` and the float
    itself is taken, then zeros are added. A NaN reads `nan.0`.
    """
    short = f"{value:.3g}".replace("e+0", "e+").replace("e-0", "e-")
    text = min(str(value), short, key=len)
    if "e" in text:
        return text
    if "." not in text and len(text) < 5:
        text += "."
    return text.ljust(5, "0")


def bar_interval(seconds: float) -> str:
    """Format a duration as a progress bar does: `23:22`, or `1:03:17` from one hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def bar_blocks(count: int, total: int) -> str:
    """Draw the bar itself: ten columns of eight steps each."""
    full, part = divmod(int(count / total * BAR_WIDTH * 8), 8)
    return (BLOCKS[-1] * full + (BLOCKS[part] if full < BAR_WIDTH else "")).ljust(BAR_WIDTH)


def nemo1_bar(
    count: int, total: int, elapsed: float, remaining: float, postfix: Mapping[str, float] | None = None
) -> str:
    """Return one NeMo 1 progress bar: `count` of `total` steps done, elapsed and remaining seconds, logged values."""
    values = "".join(f", {name}={bar_number(value)}" for name, value in (postfix or {}).items())
    times = f"{bar_interval(elapsed)}<{bar_interval(remaining)}"
    return f"Epoch 0: : {count / total * 100:3.0f}%|{bar_blocks(count, total)}| {count}/{total} [{times}{values}]"


def dllogger_record(moment: datetime, step: int, values: Mapping[str, float | int]) -> str:
    """Return one DLLogger record with full precision; it ends in a space, as the real ones do."""
    fields = "".join(f" {name} : {value} " for name, value in values.items())
    return f"DLL {moment:%Y-%m-%d %H:%M:%S.%f} - {step}{fields}"


def nemo2_number(value: float) -> str:
    """Format a value as the NeMo 2 printer does: whole numbers as integers, four significant digits otherwise."""
    return str(int(value)) if value.is_integer() else f"{value:.4}"


def nemo2_line(step: int, total: int, values: Mapping[str, float]) -> str:
    """Return one NeMo 2 line of step `step` (from 0) of `total`, with the values in the order given."""
    fields = "".join(f" | {name}: {nemo2_number(float(value))}" for name, value in values.items())
    return f"Training epoch 0, iteration {step}/{total - 1}{fields}"


def maxtext_line(
    step: int, seconds: float, *, tflops: float, tokens_per_second: float, total_weights: int, loss: float
) -> str:
    """Return one MaxText line; TFLOP/s and tokens/s are for one device."""
    return (
        f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {tflops:.3f}, "
        f"Tokens/s/device: {tokens_per_second:.3f}, total_weights: {total_weights}, loss: {loss:.3f}"
    )


def nemo_info(moment: datetime, text: str, where: str = "nemo_logging:393") -> str:
    """Return a line of NeMo's own logger."""
    return f"[NeMo I {moment:%Y-%m-%d %H:%M:%S} {where}] {text}"


def checkpoint_save(moment: datetime, iteration: int, start: float, duration: float) -> str:
    """Return the line of a saved checkpoint; `start` in seconds since 1970, `duration` in seconds."""
    times = f"Start time: {start:.3f}s : Save duration: {duration:.3f}s"
    return nemo_info(moment, f"Global Checkpoint Save : Rank: 0 : Iteration: {iteration} : {times}")


def checkpoint_load(moment: datetime, start: float, duration: float) -> str:
    """Return the line of a loaded checkpoint; `start` in seconds since 1970, `duration` in seconds."""
    times = f"Start time : {start:.3f}s : Time spent in load_checkpoint: {duration:.3f}s"
    return nemo_info(moment, f"Global Checkpoint Load : Rank : 0 : {times}")


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
    """Return one line of an NCCL trace; `opCount` is hexadecimal, `count` is elements."""
    return (
        f"[{local_rank}] NCCL INFO {collective}: opCount {operation_count:x} sendbuff {send:#x} recvbuff {receive:#x} "
        f"count {count} datatype {datatype} op 0 root 0 comm {communicator:#x} [nranks={ranks}] stream {stream:#x}"
    )


def slurm_cancelled(job: str, node: str, moment: datetime, reason: str, *, kind: str = "JOB") -> str:
    """Return Slurm's line for a job or step that it ended, in upper case as Slurm writes the reason."""
    return f"slurmstepd: error: *** {kind} {job} ON {node} CANCELLED AT {moment:%Y-%m-%dT%H:%M:%S} DUE TO {reason} ***"
