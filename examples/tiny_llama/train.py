"""Pre-train a small Llama on synthetic tokens, and log each step the way NeMo 2 does.

Runs on the CPU, on one GPU, or on several GPUs with one process each, started by
torchrun. Training is data parallel: every process has the whole model and its share of
the batch.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

try:
    import torch
    from torch import Tensor, distributed, nn
    from torch.nn import functional
except ImportError as error:
    raise SystemExit(
        f"tiny_llama: {sys.executable} cannot import PyTorch ({error}): pip install 'torch>=2.5', or set PYTHON to "
        "an interpreter that has it"
    ) from error
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5):
    raise SystemExit(
        f"tiny_llama: found PyTorch {torch.__version__}, expected 2.5 or newer: pip install 'torch>=2.5'"
    )

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SEED = 20_251_120
LEARNING_RATE = 6e-4
WARM_UP_STEPS = 10
LARGEST_NORM = 1.0
SILENCE = timedelta(minutes=5)
"""Time after which a process stops waiting for the others.

torchrun and Slurm then end the job. The limit must be longer than the first step of a
compiled model, which takes a minute or two.
"""
MOST_THREADS = 4
"""Limit of CPU threads; the 15m model gains nothing from more.

One core is left to other programs, because a step is as slow as its slowest thread.
"""


class Size(NamedTuple):
    """The dimensions of a model, and the batch of one process.

    `groups` is the number of key and value heads; each serves several query heads.
    """

    layers: int
    hidden: int
    heads: int
    groups: int
    ffn: int
    vocabulary: int
    sequence: int
    batch: int
    micro_batch: int

    @property
    def flops(self) -> int:
        """FLOPs of one sequence, forward and backward.

        Source: the formula `llama` of docs/explanation/flops.md. Example for 1b (16 layers, hidden
        2048, 32 heads, 8 groups, FFN 8192, vocabulary 32768, 4096 tokens), per token:
        attention 12 x 16 x 2048^2 x (1 + 8/32) = 1.007E+9, scores 12 x 16 x 2048 x 4096
        = 1.611E+9, MLP 18 x 16 x 2048 x 8192 = 4.832E+9, head 6 x 32768 x 2048 =
        4.027E+8. The sum is 7.852E+9; times 4096 tokens it is 3.216E+13.

        MFU = 16 sequences x 3.216E+13 / seconds per step / peak of the GPU: 52.0 % at
        1 s per step on an H100 (989E+12). It does not depend on the number of GPUs.
        """
        attention = (
            12 * self.layers * self.hidden**2 * (self.heads + self.groups) // self.heads
        )
        scores = 12 * self.layers * self.hidden * self.sequence
        mlp = 18 * self.layers * self.hidden * self.ffn
        return self.sequence * (
            attention + scores + mlp + 6 * self.vocabulary * self.hidden
        )


SIZES = {
    "1m": Size(2, 128, 4, 2, 256, 1024, sequence=64, batch=2, micro_batch=1),
    "15m": Size(6, 384, 6, 2, 1024, 8192, sequence=128, batch=2, micro_batch=2),
    "250m": Size(12, 1024, 16, 4, 4096, 32768, sequence=2048, batch=16, micro_batch=4),
    "1b": Size(16, 2048, 32, 8, 8192, 32768, sequence=4096, batch=16, micro_batch=2),
}
"""1m and 15m are for a CPU, 250m for a GPU of 16 GB or more, 1b for one of 80 GB."""


class Attention(nn.Module):
    """Causal attention with grouped queries and rotary positions."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.groups, self.width = (
            size.heads,
            size.groups,
            size.hidden // size.heads,
        )
        self.query = nn.Linear(size.hidden, size.hidden, bias=False)
        self.key_value = nn.Linear(
            size.hidden, 2 * self.groups * self.width, bias=False
        )
        self.out = nn.Linear(size.hidden, size.hidden, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        query = rotate(self._split(self.query(x)), rotation)
        key, value = self._split(self.key_value(x)).chunk(2, dim=1)
        mixed = functional.scaled_dot_product_attention(
            query,
            rotate(key, rotation),
            value,
            is_causal=True,
            enable_gqa=self.groups < self.heads,
        )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """Reshape (batch, sequence, heads x width) to (batch, heads, sequence, width)."""
        return x.unflatten(-1, (-1, self.width)).transpose(1, 2)


class Mlp(nn.Module):
    """SwiGLU feed-forward layer with three matrices."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate, self.up = (
            nn.Linear(size.hidden, size.ffn, bias=False) for _ in range(2)
        )
        self.down = nn.Linear(size.ffn, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and MLP, each after a norm and with a residual connection."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(size), Mlp(size)
        self.norms = nn.ModuleList(nn.RMSNorm(size.hidden, eps=1e-5) for _ in range(2))

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norms[0](x), rotation)
        return x + self.mlp(self.norms[1](x))


class Llama(nn.Module):
    """The model; `forward` maps tokens to the loss of predicting the next token."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.hidden, eps=1e-5)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)
        self.apply(_initialise)
        for name, values in zip(
            ("cosine", "sine"), compute_rotations(size), strict=True
        ):
            self.register_buffer(name, values, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x, (self.cosine, self.sine))
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def compute_rotations(size: Size) -> tuple[Tensor, Tensor]:
    """Compute cosine and sine of the rotation of every position.

    Shape (sequence, head width / 2) each.
    """
    width = size.hidden // size.heads
    frequency = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angle = torch.outer(torch.arange(size.sequence), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs (i, i + width / 2) of every head according to the position."""
    left, right = x.chunk(2, dim=-1)
    cosine, sine = rotation
    return torch.cat(
        (left * cosine - right * sine, right * cosine + left * sine), dim=-1
    )


class Weights:
    """All weights of a model and their gradients in FP32, as one tensor each.

    The model computes with low-precision copies. One kernel per step makes the copies,
    the gradients of micro-batches are accumulated in FP32, and one call sums the
    gradients of all processes.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        parameters = list(model.parameters())
        self.master = nn.Parameter(nn.utils.parameters_to_vector(parameters).detach())
        self.master.grad = torch.zeros_like(self.master)
        self.copies = self.master.detach().to(dtype, copy=True)
        model.to(dtype)
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, copy, gradient in zip(
            parameters,
            self.copies.split(sizes),
            self.master.grad.split(sizes),
            strict=True,
        ):
            parameter.data = copy.view_as(parameter)
            parameter.register_post_accumulate_grad_hook(
                _make_hook(gradient.view_as(parameter))
            )

    def cast(self) -> None:
        """Update the model's copies of the weights and reset the gradients."""
        self.copies.copy_(self.master.detach())
        self.gradient.zero_()

    @property
    def gradient(self) -> Tensor:
        """The sum of the gradients since the last `cast`."""
        assert self.master.grad is not None  # noqa: S101 - set in __init__ and never removed
        return self.master.grad


def _make_hook(total: Tensor) -> Callable[[Tensor], None]:
    def add(parameter: Tensor) -> None:
        total.add_(parameter.grad)
        parameter.grad = None

    return add


class Trainer:
    """The model, optimizer and data of process `rank` of `ranks` on one device."""

    def __init__(
        self,
        size: Size,
        dtype: str,
        device: torch.device,
        *,
        rank: int = 0,
        ranks: int = 1,
        compiled: bool = False,
    ) -> None:
        torch.manual_seed(SEED)
        self.size, self.device, self.rank, self.ranks = size, device, rank, ranks
        self.model = Llama(size).to(device)
        self.weights = Weights(self.model, DTYPES[dtype])
        if compiled:
            self.model.compile()
        self.optimizer = torch.optim.AdamW(
            [self.weights.master],
            LEARNING_RATE,
            (0.9, 0.95),
            weight_decay=0.1,
            fused=True,
        )
        self.random = torch.Generator(device).manual_seed(SEED)

    def step(self, number: int) -> dict[str, float]:
        """Train one step (numbered from 0).

        Returns the values of its log line, in order. The time includes all work of the
        device.
        """
        self._wait()
        start = time.perf_counter()
        rate = LEARNING_RATE * min(1.0, (number + 1) / WARM_UP_STEPS)
        loss = self._update(rate)
        self._wait()
        seconds = time.perf_counter() - start
        sequences = self.size.batch * self.ranks
        return {
            "lr": rate,
            "global_batch_size": sequences,
            "global_step": number,
            **self._memory(),
            "reduced_train_loss": float(loss),
            "train_step_timing in s": seconds,
            "TFLOPS_per_GPU": self.size.batch * self.size.flops / seconds / 1e12,
            "consumed_samples": (number + 1) * sequences,
        }

    def _update(self, rate: float) -> Tensor:
        self.weights.cast()
        batches = self._tokens().split(self.size.micro_batch)
        total = torch.zeros((), device=self.device)
        for batch in batches:
            loss = self.model(batch) / (len(batches) * self.ranks)
            loss.backward()
            total += loss.detach()
        if self.ranks > 1:
            distributed.all_reduce(self.weights.gradient)
            distributed.all_reduce(total)
        nn.utils.clip_grad_norm_([self.weights.master], LARGEST_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return total

    def _tokens(self) -> Tensor:
        """Draw new sequences, one token longer for the prediction of the last.

        The frequencies of tokens follow Zipf's law, as in language. Each process draws
        the sequences of all processes and uses its share.
        """
        shape = (self.size.batch * self.ranks, self.size.sequence + 1)
        uniform = torch.rand(shape, generator=self.random, device=self.device)
        return ((self.size.vocabulary**uniform).long() - 1)[
            self.rank * self.size.batch :
        ][: self.size.batch]

    def _memory(self) -> dict[str, float]:
        """Return the used memory in bytes: of the device, or of the process on a CPU."""
        if self.device.type == "cpu":
            return {
                "peak_memory_usage": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                * 1024
            }
        allocated = torch.cuda.memory_allocated(self.device)
        return {
            "peak_memory_usage": torch.cuda.max_memory_allocated(self.device),
            "memory_allocated": allocated,
        }

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def format_line(step: int, steps: int, values: dict[str, float]) -> str:
    """Format the log line of a step like NeMo 2.

    Floats have four significant digits.
    """
    fields = "".join(
        f" | {name}: {value if isinstance(value, int) else format(value, '.4')}"
        for name, value in values.items()
    )
    return f"Training epoch 0, iteration {step}/{steps - 1}{fields}"


SLOWER_FORMS = ("h100pcie", "h100nvl", "h200nvl")
"""GPU types whose name is that of a faster GPU with a suffix."""


def parse_gpu_type(name: str) -> str:
    """Convert the name of a device to a GPU type of pytest-llmbench.

    `NVIDIA H100 80GB HBM3` becomes `h100`, `NVIDIA H100 PCIe` becomes `h100pcie`. Other
    names lose their separators: `geforcertx4090`.
    """
    lower = name.lower()
    known, form = (
        re.search(pattern, lower)
        for pattern in (r"\b(g?[abhlv]\d{2,3}s?)\b", r"\b(pcie|nvl)\b")
    )
    if known is None:
        return re.sub(r"[^a-z0-9]+", "", lower.removeprefix("nvidia"))
    joined = known[1] + (form[1] if form else "")
    return joined if joined in SLOWER_FORMS else known[1]


def find_device(gpu: str) -> torch.device:
    """Return the device of this process.

    Raises SystemExit if the GPU is missing or has another type than `gpu`, because the
    run would be judged against the wrong baseline.
    """
    if gpu == "cpu":
        torch.set_num_threads(max(1, min(MOST_THREADS, torch.get_num_threads() - 1)))
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit(
            f"tiny_llama: GPU_TYPE={gpu}: PyTorch {torch.__version__} finds no GPU; GPU_TYPE=cpu needs none"
        )
    number, visible = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= visible:
        raise SystemExit(
            f"tiny_llama: process {number + 1} of this node has no GPU: PyTorch finds {visible}"
        )
    name = torch.cuda.get_device_name(number)
    if parse_gpu_type(name) != gpu:
        raise SystemExit(
            f"tiny_llama: GPU_TYPE={gpu}: found {name}, which is of type {parse_gpu_type(name)}"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def join_processes(device: torch.device, gpus: int) -> tuple[int, int]:
    """Join the processes that torchrun started, one for each requested GPU.

    Returns the number of this process and the number of all processes.
    """
    rank, ranks = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))
    )
    if ranks != gpus:
        raise SystemExit(
            f"tiny_llama: JOB_TOTAL_GPUS={gpus}: started as {ranks} processes, expected one for each"
        )
    if ranks > 1:
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", timeout=SILENCE
        )
    return rank, ranks


def collect_environment(device: torch.device) -> dict[str, object]:
    """Collect the environment of this process, by the names of docs/reference/inputs.md.

    Unknown values are empty.
    """
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return {
            "device": f"{read_cpu_name()}, {threads} thread{'s' * (threads > 1)}",
            "pytorch": torch.__version__,
        }
    properties = torch.cuda.get_device_properties(device)
    fields = ("driver_version", "power.limit", "clocks.max.sm", "clocks.max.memory")
    driver, power, clock, memory = query_gpu(
        f"GPU-{getattr(properties, 'uuid', '')}", fields
    )
    return {
        "device": properties.name,
        "power_limit": power,
        "clocks": f"{clock} SM, {memory} memory, at most" if clock and memory else "",
        "driver": driver,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "pytorch": torch.__version__,
    }


def query_gpu(gpu: str, fields: tuple[str, ...]) -> list[str]:
    """Query fields of a GPU with nvidia-smi; unknown values are ""."""
    command = [
        "nvidia-smi",
        f"--id={gpu}",
        f"--query-gpu={','.join(fields)}",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return [""] * len(fields)
    values = [value.strip() for value in done.stdout.split(",")]
    return (
        [value if value[:1].isdigit() else "" for value in values]
        if len(values) == len(fields)
        else [""] * 4
    )


def read_cpu_name() -> str:
    """Return the model name of the CPU, or its architecture if unknown."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [
                line.partition(":")[2].strip()
                for line in lines
                if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def main() -> None:
    """Train a model; the arguments correspond to the variables of launch.sh."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="15m")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument(
        "--gpu", default="cpu", help="cpu, or the type of the GPU such as h100"
    )
    parser.add_argument(
        "--gpus", type=int, default=1, help="number of processes, one for each GPU"
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the model with torch.compile before the first step",
    )
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    device = find_device(arguments.gpu)
    rank, ranks = join_processes(device, arguments.gpus)
    trainer = Trainer(
        SIZES[arguments.size],
        arguments.dtype,
        device,
        rank=rank,
        ranks=ranks,
        compiled=arguments.compile,
    )
    log = print if rank == 0 else lambda *_, **__: None
    log(
        f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] tiny_llama {vars(arguments)} on {device}"
    )
    log(
        f"Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/{ranks}"
    )  # NeMo 2's line with the number of GPUs
    for name, value in collect_environment(device).items():
        if value:
            log(f"llmb environment: {name}: {value}")
    for step in range(arguments.steps):
        log(format_line(step, arguments.steps, trainer.step(step)), flush=True)
    log(f"`Trainer.fit` stopped: `max_steps={arguments.steps}` reached.", flush=True)
    if ranks > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
