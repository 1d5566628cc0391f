"""torchtitan logs that print their full configuration."""

from __future__ import annotations

from pathlib import Path

START = (
    "[titan] 2026-05-0{night} 10:00:00,000 - root - INFO - Building oak 14B\n"
    "[titan] 2026-05-0{night} 10:00:01,000 - root - INFO - Building device mesh with parallelism: {mesh}\n"
    "[titan] 2026-05-0{night} 10:00:02,000 - root - INFO - CUDA capacity: NVIDIA H100 with 79.11GiB memory\n"
    "[titan] 2026-05-0{night} 10:00:03,000 - root - INFO - Trainer is initialized with local batch size {mbs}, "
    "global batch size {gbs}, gradient accumulation steps 1, sequence length 2048, total steps 50 (warmup 2)\n"
)
MESH = "pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1"


def write_run(
    folder: Path,
    day: int,
    *,
    name: str = "oak/run_{night}/train.log",
    seconds: float = 2.0,
    mesh: str = MESH,
    mbs: int = 4,
    gbs: int = 32,
    more: str = "",
    learning: float = 0.02,
) -> Path:
    """Write a torchtitan log.

    Steps take about `seconds`, and the loss falls by `learning` in each step.
    """
    path = folder / name.format(night=day)
    path.parent.mkdir(parents=True, exist_ok=True)
    clock, lines = 4.0, [START.format(night=day, mesh=mesh, mbs=mbs, gbs=gbs), more]
    for step in range(1, 51):
        time = seconds * (1 + (step * 7 + day) % 5 / 1000)
        clock += time
        stamp = f"10:{int(clock // 60):02}:{clock % 60:06.3f}".replace(".", ",")
        lines.append(
            f"[titan] 2026-05-0{day} {stamp} - root - INFO - step: {step:2}  loss: {9 - step * learning:8.5f}  "
            f"grad_norm:  2.2500  memory: 28.18GiB(35.62%)  tps: {round(mbs * 2048 / time):,}  "
            f"tflops: {800 / time:.2f}  mfu: {800 / time / 9.89:.2f}%\n"
        )
    path.write_text(
        "".join(
            (
                *lines,
                f"[titan] 2026-05-0{day} 10:59:00,000 - root - INFO - Training completed\n",
            )
        )
    )
    return path
