"""Write the inputs of `benchmarks.speed.ingest`, in a separate process.

python benchmarks/speed/ingest_logs.py KIND PATH SIZE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from generator import lines, write_run
from generator.__main__ import shipped

START = datetime(2025, 6, 1, 2, tzinfo=UTC)
SPAN = timedelta(days=480)
STEPS = 50
TRACED_STEPS = 5
MANY_SIZE = 20_000_000
BODY_LINES = 20_000
PREAMBLE_LINES = 25

MODULES = (
    "mlp.linear_fc1",
    "mlp.linear_fc2",
    "self_attention.linear_qkv",
    "self_attention.linear_proj",
    "input_layernorm",
)
TIMERS = (
    "forward-backward",
    "all-grads-sync",
    "optimizer-copy-to-main-grad",
    "batch-generator",
    "optimizer-inner-step",
)
COLLECTIVES = ("AllGather", "ReduceScatter", "AllReduce", "Send", "Recv", "Broadcast")

Line = Callable[[Random], str]

ORDINARY: tuple[Line, ...] = (
    lambda r: f"{r.randrange(64)}: [NeMo I 2025-05-23 10:{r.randrange(60):02}:{r.randrange(60):02} nemo_logging:393] "
    f"Rank {r.randrange(512)} has data parallel group : {[r.randrange(512) for _ in range(8)]}",
    lambda r: f"[NeMo W 2025-05-23 10:{r.randrange(60):02}:{r.randrange(60):02} nemo_logging:405] The model: "
    f"MegatronGPTModel() does not have field.name: tp_comm_split_{r.randrange(99)} in its cfg. Add this key to cfg or "
    "config_mapping to make to make it configurable.",
    lambda r: f"    \tmodule.decoder.layers.{r.randrange(96)}.{r.choice(MODULES)}.weight{r.randrange(12)}",
    lambda r: f"node-{r.randrange(999):04}:{r.randrange(99999)}:{r.randrange(99999)} [{r.randrange(8)}] NCCL INFO "
    f"Channel {r.randrange(32):02}/0 : {r.randrange(512)}[{r.randrange(8)}] -> {r.randrange(512)}[{r.randrange(8)}] "
    f"[receive] via NET/IBext_v9/{r.randrange(8)}/GDRDMA",
    lambda r: f"node-{r.randrange(999):04}:{r.randrange(99999)}:{r.randrange(99999)} [{r.randrange(8)}] NCCL INFO "
    f"proxyProgressAsync opId=0x{r.randrange(1 << 47):x} op.type=3 op.reqBuff=0x{r.randrange(1 << 47):x} "
    "op.respSize=88 done",
    lambda r: f"[rank{r.randrange(512)}]:[W523 10:{r.randrange(60):02}:{r.randrange(60):02}.{r.randrange(10**9):09} "
    f"ProcessGroupNCCL.cpp:4782] [PG ID {r.randrange(40)} PG GUID {r.randrange(200)} Rank {r.randrange(512)}]  using "
    "GPU 7 to perform barrier as devices used by this process are currently unknown.",
    lambda r: f"[rank{r.randrange(512)}]:W0523 10:{r.randrange(60):02}:{r.randrange(60):02}.{r.randrange(10**6):06} "
    f"{r.randrange(10**6)} site-packages/torch/_inductor/utils.py:1137] [0/{r.randrange(9)}] Not enough SMs to use "
    "max_autotune_gemm mode",
    lambda r: "/usr/local/lib/python3.12/dist-packages/megatron/core/tensor_parallel/layers.py:"
    f"{r.randrange(999)}: FutureWarning: `torch.cuda.amp.custom_fwd(args...)` is deprecated. Please use "
    "`torch.amp.custom_fwd(args..., device_type='cuda')` instead.",
    lambda r: f"55:     {r.choice(TIMERS)} ...............................: ({r.random():.2f}, {r.random() * 9:.2f})",
    lambda r: f" 0:   moe_router_topk_{r.randrange(99)} ................................. {r.randrange(9)}",
    lambda r: f" 0: INFO:megatron.core.datasets.gpt_dataset:\tLoad the sample index from {r.randrange(1 << 128):032x}"
    "-GPTDataset-train-sample_index.npy",
    lambda r: f"|   tensor_model_parallel_size_{r.randrange(99)}: {r.randrange(9)}",
)  # fmt: skip
"""Lines of other modules, as logs of NeMo, Megatron, torch and NCCL hold them by the
thousand."""


def small(folder: Path, count: int, dialect: str = "nemo2") -> None:
    """Write that many runs of 50 steps: all documented configurations of a dialect, day
    after day (more often if the last day would lie in the future)."""
    baselines = [one for one in shipped().values() if one.dialect == dialect]
    apart = min(timedelta(days=1), SPAN / -(-count // len(baselines)))
    for number in range(count):
        day, position = divmod(number, len(baselines))
        started = START + apart * day + timedelta(minutes=position)
        write_run(
            folder,
            baselines[position],
            started=started,
            job_id=str(1_000_000 + number),
            factor=_vary(number),
            steps=STEPS,
        )


def megatron(folder: Path, count: int) -> None:
    """Write that many logs of 50 steps of Megatron, with other lines before them.

    No documented configuration prints its throughput there.
    """
    for number in range(count):
        random, moment = Random(number), START + timedelta(minutes=number)
        texts = [random.choice(ORDINARY)(random) for _ in range(PREAMBLE_LINES)]
        for step in range(1, STEPS + 1):
            seconds = _vary(number) * random.uniform(7.2, 7.4)
            moment += timedelta(seconds=seconds)
            line = lines.megatron_line(
                moment,
                step,
                STEPS,
                seconds,
                batch=128,
                tflops=4450 / seconds,
                loss=12.0 - step / STEPS,
            )
            texts.append(line)
        name = f"log-account.pretrain_{1_000_000 + number}_0.out"
        path = folder / f"nightly_{number}" / name
        path.parent.mkdir(parents=True)
        path.write_text("\n".join([*texts, ""]), encoding="utf-8")


def _vary(number: int) -> float:
    """Return the factor of a run's step times: at most 0.3 % from 1."""
    return 1 + 0.003 * ((number * 7919) % 13 - 6) / 6


SMALL: dict[str, Callable[[Path, int], None]] = {
    "nemo2": small,
    "nemo1": partial(small, dialect="nemo1"),
    "maxtext": partial(small, dialect="maxtext"),
    "megatron": megatron,
}
"""How small runs of a dialect are written."""


def large(path: Path, size: int) -> None:
    """Write one log of about that many bytes: 50 steps, evenly distributed among other
    lines."""
    with path.open("wb") as file:
        file.writelines(_log(size, Random(1), _body(Random(0))))


def many(folder: Path, count: int) -> None:
    """Write that many logs of 20 MB, each of another job with other steps and other
    first lines."""
    body = _body(Random(0))
    for number in range(count):
        random = Random(number)
        begin = body.index(b"\n", random.randrange(len(body) // 2)) + 1
        path = (
            folder
            / f"nightly_{number}"
            / f"log-account.pretrain_{2_000_000 + number}_0.out"
        )
        path.parent.mkdir(parents=True)
        path.write_bytes(b"".join(_log(MANY_SIZE, random, body[begin:] + body[:begin])))


def trace(path: Path, size: int) -> None:
    """Write one trace of about that many bytes: the operations of eight ranks,
    repeated."""
    random = Random(2)
    ranks = [_communicator(rank, random) for rank in [*range(8)] * 6]
    with path.open("w", encoding="ascii") as file:
        for step in range(TRACED_STEPS):
            file.write(_step(step, TRACED_STEPS, random))
            number = step << 20
            while file.tell() < size * (step + 1) // TRACED_STEPS:
                number += 1
                file.writelines(
                    operations[number % len(operations)].format(number=number)
                    for operations in ranks
                )


def _communicator(rank: int, random: Random) -> list[str]:
    """Return the lines of a rank's operations in one communicator, without their
    number."""
    tail = f"comm 0x{random.randrange(1 << 47):x} [nranks={2 << random.randrange(9)}] stream 0x55d4{rank:08x}"
    return [
        f"node-0001:{40_000 + rank}:{40_000 + rank} [{rank}] NCCL INFO {random.choice(COLLECTIVES)}: "
        "opCount {number:x} sendbuff 0x7f{number:010x} recvbuff 0x7e{number:010x} "
        f"count {1 << random.randrange(10, 28)} datatype 9 op 0 root 0 {tail}\n"
        for _ in range(random.randrange(1, 5))
    ]


def _log(size: int, random: Random, body: bytes) -> Iterator[bytes]:
    """Yield a log in pieces: its lines repeated, with the steps between them."""
    for step in range(STEPS):
        yield _step(step, STEPS, random).encode()
        left = size * (step + 1) // STEPS - size * step // STEPS
        while left >= len(body):
            yield body
            left -= len(body)
        yield body[: body.find(b"\n", left) + 1]


def _step(step: int, steps: int, random: Random) -> str:
    values = {
        "lr": 1.5e-7,
        "global_batch_size": 128,
        "global_step": step,
        "reduced_train_loss": 12.0 - step / 50,
        "train_step_timing in s": random.uniform(7.2, 7.4),
        "TFLOPS_per_GPU": 811.2,
        "consumed_samples": (step + 1) * 128,
    }
    return lines.nemo2_line(step, steps, values) + "\n"


def _body(random: Random) -> bytes:
    return "".join(
        f"{random.choice(ORDINARY)(random)}\n" for _ in range(BODY_LINES)
    ).encode()


KINDS: dict[str, Callable[[Path, int], None]] = {
    "small": small,
    **{f"small-{dialect}": write for dialect, write in SMALL.items()},
    "large": large,
    "many": many,
    "trace": trace,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
