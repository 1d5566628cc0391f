"""Pre-train a small Llama on synthetic tokens, on the CPU or one GPU, and log each step the way NeMo 2 does."""

from __future__ import annotations

import argparse
import re
import resource
import sys
import time
from typing import NamedTuple

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as error:
    raise SystemExit(
        f"tiny_llama: {sys.executable} cannot import PyTorch ({error}): pip install 'torch>=2.4', or set PYTHON to "
        "an interpreter that has it"
    ) from error
if not hasattr(functional, "rms_norm"):
    raise SystemExit(f"tiny_llama: found PyTorch {torch.__version__}, expected 2.4 or newer: pip install 'torch>=2.4'")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SEED = 20_251_120
LEARNING_RATE = 6e-4
WARM_UP_STEPS = 10
LARGEST_NORM = 1.0
MOST_THREADS = 4
"""The 15m model gains nothing from more. One core is left to whatever else runs: who waits for all of them is as slow
as the one that was taken away."""


class Size(NamedTuple):
    """A model and the batch of one step; heads of 64 numbers, each key and value head shared by several queries."""

    layers: int
    hidden: int
    heads: int
    groups: int
    ffn: int
    vocabulary: int
    sequence: int
    global_batch: int
    micro_batch: int

    @property
    def flops(self) -> int:
        """FLOPs of one sequence, forward and backward, by the formula `llama` of docs/flops.md."""
        attention = 12 * self.layers * self.hidden**2 * (self.heads + self.groups) // self.heads
        scores = 12 * self.layers * self.hidden * self.sequence
        mlp = 18 * self.layers * self.hidden * self.ffn
        return self.sequence * (attention + scores + mlp + 6 * self.vocabulary * self.hidden)


SIZES = {
    "15m": Size(6, 384, 6, 2, 1024, 8192, sequence=128, global_batch=2, micro_batch=2),
    "1b": Size(16, 2048, 32, 8, 8192, 32768, sequence=4096, global_batch=16, micro_batch=2),
}
"""15m is for a CPU, 1b for a GPU of 80 GB: about 15 s and a minute for 50 steps."""


class Linear(nn.Linear):
    """A matrix that computes in the precision of what it is given, like autocast; weights and gradients stay fp32."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """Root mean square norm; not left to autocast, which would compute it in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), eps=1e-5)


class Attention(nn.Module):
    """Causal attention with grouped queries and rotary positions."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.groups, self.width = size.heads, size.groups, size.hidden // size.heads
        self.query = Linear(size.hidden, size.hidden)
        self.key_value = Linear(size.hidden, 2 * self.groups * self.width)
        self.out = Linear(size.hidden, size.hidden)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        query = rotated(self._split(self.query(x)), turn)
        key, value = self._split(self.key_value(x)).chunk(2, dim=1)
        shared = self.heads // self.groups
        key, value = (each.repeat_interleave(shared, dim=1) for each in (rotated(key, turn), value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """From (batch, sequence, heads x width) to (batch, heads, sequence, width)."""
        return x.unflatten(-1, (-1, self.width)).transpose(1, 2)


class Mlp(nn.Module):
    """SwiGLU: three matrices."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate, self.up = (Linear(size.hidden, size.ffn) for _ in range(2))
        self.down = Linear(size.ffn, size.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual connection."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(size), Mlp(size)
        self.norms = nn.ModuleList(Norm(size.hidden) for _ in range(2))

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norms[0](x), turn)
        return x + self.mlp(self.norms[1](x))


class Llama(nn.Module):
    """The model: tokens in, loss of the next token out. Activations have `dtype`, weights stay in 32 bits."""

    def __init__(self, size: Size, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = Norm(size.hidden)
        self.head = Linear(size.hidden, size.vocabulary)
        self.apply(_initialised)
        for name, values in zip(("cosine", "sine"), turns(size, dtype), strict=True):
            self.register_buffer(name, values, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens[:, :-1]).to(self.dtype)
        for block in self.blocks:
            x = block(x, (self.cosine, self.sine))
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _initialised(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def turns(size: Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of every position's rotation, each (sequence, head width / 2)."""
    width = size.hidden // size.heads
    frequency = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angle = torch.outer(torch.arange(size.sequence), frequency)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs (i, i + width / 2) of every head by its position."""
    left, right = x.chunk(2, dim=-1)
    cosine, sine = turn
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


class Trainer:
    """One model, its optimizer and its data on one device."""

    def __init__(self, size: Size, dtype: str, device: torch.device) -> None:
        torch.manual_seed(SEED)
        self.size, self.device = size, device
        self.model = Llama(size, DTYPES[dtype]).to(device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), LEARNING_RATE, (0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.random = torch.Generator(device).manual_seed(SEED)

    def step(self, number: int) -> dict[str, float]:
        """Do one step (from 0) and return what its line shows, in order; the time ends when the device is done."""
        self._wait()
        start = time.perf_counter()
        rate = LEARNING_RATE * min(1.0, (number + 1) / WARM_UP_STEPS)
        loss = self._update(rate)
        self._wait()
        seconds = time.perf_counter() - start
        return {
            "lr": rate,
            "global_batch_size": self.size.global_batch,
            "global_step": number,
            **self._memory(),
            "reduced_train_loss": float(loss),
            "train_step_timing in s": seconds,
            "TFLOPS_per_GPU": self.size.global_batch * self.size.flops / seconds / 1e12,
            "consumed_samples": (number + 1) * self.size.global_batch,
        }

    def _update(self, rate: float) -> Tensor:
        parts = self._tokens().split(self.size.micro_batch)
        total = torch.zeros((), device=self.device)
        for part in parts:
            loss = self.model(part) / len(parts)
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), LARGEST_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def _tokens(self) -> Tensor:
        """Return new sequences with the token to predict after each; frequent tokens are frequent as in language."""
        shape = (self.size.global_batch, self.size.sequence + 1)
        uniform = torch.rand(shape, generator=self.random, device=self.device)
        return (self.size.vocabulary**uniform).long() - 1

    def _memory(self) -> dict[str, float]:
        """Return bytes: the process's on a CPU (ru_maxrss counts KiB)."""
        if self.device.type == "cpu":
            return {"peak_memory_usage": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        allocated = torch.cuda.memory_allocated(self.device)
        return {"peak_memory_usage": torch.cuda.max_memory_allocated(self.device), "memory_allocated": allocated}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def line(step: int, steps: int, values: dict[str, float]) -> str:
    """Return NeMo 2's line of a step: whole numbers as they are, others with four significant digits."""
    fields = "".join(
        f" | {name}: {value if isinstance(value, int) else format(value, '.4')}" for name, value in values.items()
    )
    return f"Training epoch 0, iteration {step}/{steps - 1}{fields}"


def device_of(gpu: str) -> torch.device:
    """Return the device for a GPU type; one of another type would be judged against the wrong baseline."""
    if gpu == "cpu":
        torch.set_num_threads(max(1, min(MOST_THREADS, torch.get_num_threads() - 1)))
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit(
            f"tiny_llama: GPU_TYPE={gpu}: PyTorch {torch.__version__} finds no GPU; GPU_TYPE=cpu needs none"
        )
    found = torch.cuda.get_device_name()
    if not re.search(rf"\b{re.escape(gpu)}\b", found, re.IGNORECASE):
        raise SystemExit(f"tiny_llama: GPU_TYPE={gpu}: found {found}")
    return torch.device("cuda", torch.cuda.current_device())


def main() -> None:
    """Train; the arguments are the variables of launch.sh."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="15m")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--gpu", default="cpu", help="cpu, or a part of the GPU's name such as h100")
    parser.add_argument("--steps", type=int, default=50)
    asked = parser.parse_args()
    device = device_of(asked.gpu)
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] tiny_llama {vars(asked)}, torch {torch.__version__} on {device}")
    trainer = Trainer(SIZES[asked.size], asked.dtype, device)
    for step in range(asked.steps):
        print(line(step, asked.steps, trainer.step(step)), flush=True)
    print(f"`Trainer.fit` stopped: `max_steps={asked.steps}` reached.", flush=True)


if __name__ == "__main__":
    main()
