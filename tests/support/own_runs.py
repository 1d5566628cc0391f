"""Logs of undocumented runs in the formats of six frameworks.

The runs have time stamps, evaluations, checkpoint saves and restarts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

Text = Callable[["OwnRun"], str]

ARGUMENTS: Mapping[str, object] = {
    "world_size": 64,
    "global_batch_size": 256,
    "micro_batch_size": 1,
    "seq_length": 4096,
    "num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "num_experts": 8,
    "moe_router_topk": 2,
    "moe_router_force_load_balancing": False,
    "mtp_num_layers": None,
    "padded_vocab_size": 128256,
    "recompute_granularity": None,
    "tensor_model_parallel_size": 4,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "optimizer": "adam",
    "bf16": True,
    "mock_data": False,
    "seed": 1234,
    "log_interval": 1,
}


@dataclass(frozen=True)
class OwnRun:
    """A training run: its step times, the pauses between steps, and additional log
    lines.

    `slower(step)` multiplies the time of a step. `gaps` maps a step to the seconds of
    pause before it, and `lines` to the text printed there. `loss`, `norm`, `rate` and
    `skipped` are functions of the step.
    """

    seconds: float = 2.0
    steps: int = 60
    seed: int = 1
    start: datetime = datetime(2026, 3, 2, 2, 0, tzinfo=UTC)
    slower: Callable[[int], float] = lambda step: 1.0
    gaps: Mapping[int, float] = field(default_factory=dict)
    lines: Mapping[int, str] = field(default_factory=dict)
    loss: Callable[[int], float] = lambda step: 4 + 6 * math.exp(-step / 40)
    norm: Callable[[int], float] = lambda step: 1.2
    rate: Callable[[int], float] = lambda step: 3e-4 * min(1, step / 20)
    skipped: Callable[[int], int] = lambda step: 0
    arguments: Mapping[str, object] = field(default_factory=lambda: ARGUMENTS)
    dump: bool = True
    batch: int = 256
    every: int = 1
    first: int = 1
    head: str = ""
    tail: str = ""

    def times(self) -> list[tuple[int, float, datetime]]:
        """Return (step, seconds, wall-clock time at the end) for each step."""
        random, now, steps = Random(self.seed), self.start, []  # noqa: S311
        for step in range(self.first, self.steps + 1):
            warm_up = 1 + 2 * math.exp(-(step - self.first) / 1.2)
            seconds = (
                self.seconds
                * math.exp(random.gauss(0, 0.003))
                * warm_up
                * self.slower(step)
            )
            now += timedelta(seconds=seconds + self.gaps.get(step, 0.0))
            steps.append((step, seconds, now))
        return steps

    def printed(self) -> list[tuple[int, float, datetime]]:
        """Return the printed steps, with the mean time since the previous printed
        step."""
        shown, since = [], []
        for step, seconds, now in self.times():
            since.append(seconds)
            if step % self.every == 0 or step == self.steps:
                shown.append((step, sum(since) / len(since), now))
                since = []
        return shown


def changed(run: OwnRun, **arguments: object) -> OwnRun:
    """Replace arguments of a run."""
    return replace(run, arguments={**run.arguments, **arguments})


def megatron(run: OwnRun) -> str:
    """Format a Megatron-LM log."""
    text = [
        run.head,
        f"using world size: {run.arguments['world_size']}, data-parallel size: 16\n",
    ]
    if run.dump:
        text.append("------------------------ arguments ------------------------\n")
        text += [
            f"  {name} {'.' * max(3, 48 - len(name))} {value}\n"
            for name, value in run.arguments.items()
        ]
        text.append("-------------------- end of arguments ---------------------\n")
    text.append(
        f"[before the start of training step] datetime: {run.start:%Y-%m-%d %H:%M:%S} \n"
    )
    shown = {step: (seconds, now) for step, seconds, now in run.printed()}
    for step in range(run.first, run.steps + 1):
        text.append(run.lines.get(step, ""))
        if step not in shown:
            continue
        seconds, now = shown[step]
        text.append(
            f" [{now:%Y-%m-%d %H:%M:%S}] iteration {step:8d}/{run.steps:8d} |"
            f" consumed samples: {step * run.batch:12d} | elapsed time per iteration (ms): {seconds * 1000:.1f} |"
            f" learning rate: {run.rate(step):.6E} | global batch size: {run.batch:5d} |"
            f" lm loss: {run.loss(step):.6E} | loss scale: 1.0 | grad norm: {run.norm(step):.3f} |"
            f" number of skipped iterations: {run.skipped(step):3d} |"
            " number of nan iterations:   0 |\n"
        )
    end = max((now for _, now in shown.values()), default=run.start)
    return "".join(
        [
            *text,
            f"[after training is done] datetime: {end:%Y-%m-%d %H:%M:%S} \n",
            run.tail,
        ]
    )


def titan(run: OwnRun) -> str:
    """Format a torchtitan log, which prints tokens/s and line stamps but no step
    times."""

    def line(now: datetime, text: str) -> str:
        stamp = f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}"
        return f"[rank0]:[titan] {stamp} - root - INFO - {text}\n"

    tokens, gpus = 8192, 8
    text = [run.head, line(run.start, "Starting job: Llama 3 8B training")]
    if run.dump:
        text += [
            line(
                run.start, "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory"
            ),
            line(run.start, "Model llama3 8B size: 8,030,261,248 total parameters"),
            line(
                run.start,
                f"Trainer is initialized with local batch size 1, global batch size {gpus}, gradient accumulation "
                f"steps 1, sequence length {tokens}, total steps {run.steps} (warmup 20)",
            ),
        ]
    for step, seconds, now in run.printed():
        text.append(run.lines.get(step, ""))
        rate = round(tokens / seconds)
        text.append(
            line(
                now,
                f"step: {step:2d}  loss: {run.loss(step):8.5f}  grad_norm: {run.norm(step):7.4f}  "
                f"memory: 47.46GiB(59.95%)  tps: {rate:,}  tflops: {rate * 0.0548:.2f}  mfu: {rate * 0.00554:.2f}%",
            )
        )
    return "".join([*text, line(run.times()[-1][2], "Training completed"), run.tail])


def maxtext(run: OwnRun) -> str:
    """Format a MaxText log."""
    text = [run.head]
    for step, seconds, _ in run.times():
        text.append(run.lines.get(step, ""))
        text.append(
            f"completed step: {step - 1}, seconds: {seconds:.3f}, TFLOP/s/device: {200 / seconds:.3f}, "
            f"Tokens/s/device: {65536 / seconds:.3f}, total_weights: 524288, loss: {run.loss(step):.3f}\n"
        )
    return "".join([*text, run.tail])


def trainer(run: OwnRun) -> str:
    """Format the console output of Hugging Face's Trainer."""
    text, losses, times = [run.head], [], run.times()
    runtime = (times[-1][2] - run.start).total_seconds()
    for step, _, _ in times:
        text.append(run.lines.get(step, ""))
        if step % 10 == 0:
            losses.append(run.loss(step))
            record = {
                "loss": round(losses[-1], 4),
                "grad_norm": round(run.norm(step), 4),
                "learning_rate": round(run.rate(step), 8),
                "epoch": round(step / run.steps, 2),
            }
            text.append(f"{record}\n")
    minutes, rest = divmod(int(runtime), 60)
    pace = runtime / run.steps
    text.append(
        f"\r100%|{'█' * 10}| {run.steps}/{run.steps} [{minutes:02d}:{rest:02d}<00:00,  {pace:.2f}s/it]"
    )
    end = {
        "train_runtime": round(runtime, 4),
        "train_samples_per_second": round(run.steps * run.batch / runtime, 3),
        "train_steps_per_second": round(run.steps / runtime, 3),
        "train_loss": round(sum(losses) / len(losses), 6),
        "epoch": 1.0,
    }
    return "".join([*text, f"{end}\n", run.tail])


def nanotron(run: OwnRun) -> str:
    """Format a nanotron log, whose numbers have three digits without trailing zeros."""

    def shorten(value: float) -> str:
        for unit, size in (("M", 1e6), ("K", 1e3)):
            if value >= size:
                return f"{value / size:.3g}{unit}"
        return f"{value:.3g}"

    text = [run.head]
    for step, seconds, now in run.times():
        text.append(run.lines.get(step, ""))
        text.append(
            f"{now:%m/%d/%Y %H:%M:%S} [INFO|DP=0|PP=0|TP=0]: iteration: {step} / {run.steps} | "
            f"consumed_tokens: {shorten(step * 1048576)} | elapsed_time_per_iteration_ms: {shorten(seconds * 1000)} | "
            f"tokens_per_sec: {shorten(1048576 / seconds)} | tokens_per_sec_per_gpu: {shorten(131072 / seconds)} | "
            f"global_batch_size: 512 | lm_loss: {run.loss(step):.3g} | lr: {run.rate(step):.3g} | "
            f"model_tflops_per_gpu: {300 / seconds:.3g} | hardware_tflops_per_gpu: {300 / seconds:.3g} | "
            f"grad_norm: {run.norm(step):.3g}\n"
        )
    return "".join([*text, run.tail])


def deepspeed(run: OwnRun) -> str:
    """Format a DeepSpeed log that prints every tenth step."""
    text, total = [run.head], 0.0
    skipped = 0
    for step, seconds, now in run.times():
        text.append(run.lines.get(step, ""))
        total, skipped = total + seconds, skipped + run.skipped(step)
        if step % 10 == 0:
            stamp = f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}"
            text.append(
                f"[{stamp}] [INFO] [logging.py:107:log_dist] [Rank 0] step={step}, skipped={skipped}, lr=[2e-05], "
                "mom=[(0.9, 0.95)]\n"
                f"[{stamp}] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, "
                f"RunningAvgSamplesPerSec={run.batch * step / total:.4f}, CurrSamplesPerSec={run.batch / seconds:.4f}, "
                "MemAllocated=12.3GB, MaxMemAllocated=40.1GB\n"
            )
    return "".join([*text, run.tail])


FILES: Mapping[Text, str] = {
    megatron: "slurm-{job}.out",
    titan: "slurm-{job}.out",
    maxtext: "slurm-{job}.out",
    trainer: "slurm-{job}.out",
    nanotron: "slurm-{job}.out",
    deepspeed: "slurm-{job}.out",
}
"""The log file name of each framework's launcher."""


def write(folder: Path, name: str, framework: Text, run: OwnRun, job: int) -> Path:
    """Write the log of a run to a configuration's folder in `folder`, and return the
    log."""
    path = folder / f"{name}_8b_64gpu" / FILES[framework].format(job=job)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(framework(run), encoding="utf-8")
    return path
