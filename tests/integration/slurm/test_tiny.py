"""The tiny recipe as a real Slurm job: the location of its log, and failed trainings."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.clusters import Cluster

RECIPE = Path(__file__).resolve().parents[3] / "examples" / "tiny_llama"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python that prints its arguments and exits with EXIT, later on the first node
    if WAITS is 1."""
    path = tmp_path / "python"
    path.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "$@"\n'
        '[ "$WAITS$SLURM_NODEID" = 10 ] && exec sleep 600\nexit "${EXIT:-0}"\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def pytorch() -> None:
    """Skip the test without PyTorch, or fail it under LLMB_REQUIRE_TORCH."""
    if importlib.util.find_spec("torch") is None:
        (pytest.fail if os.environ.get("LLMB_REQUIRE_TORCH") else pytest.skip)(
            "needs PyTorch: pip install 'torch>=2.5'"
        )


def launched(
    cluster: Cluster,
    folder: Path,
    python: Path,
    *,
    nodes: int = 1,
    size: str = "15m",
    **variables: str,
) -> tuple[str, Path]:
    """Submit launch.sh as documented, with a GPU per node; return the job id and its
    log."""
    said = {
        "DTYPE": "bf16",
        "GPU_TYPE": "h100",
        "MODEL_SIZE": size,
        "JOB_TOTAL_GPUS": str(nodes),
        **variables,
    }
    said |= {
        "PYTHON": str(python),
        "STAGE_PATH": str(folder),
        "SBATCH_OUTPUT": str(folder / "sbatch_%j.out"),
    }
    process = subprocess.run(
        [
            "sbatch",
            "-A",
            "research",
            "-p",
            "batch",
            "-N",
            str(nodes),
            "--gres=gpu:1",
            "./launch.sh",
        ],
        cwd=RECIPE,
        env={**os.environ, **cluster.environment, **said},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    job = re.fullmatch(r"Submitted batch job (\d+)\n", process.stdout)
    assert job, process.stdout
    results = folder / "results" / "1.0" / said["DTYPE"] / size / str(nodes)
    return job[1], results / f"log-tiny_llama_{size}_{nodes}_{job[1]}_0.out"


@pytest.mark.slow
def test_tiny_llama_job_writes_its_log_where_the_results_layout_expects_it(
    cluster: Cluster, python: Path
) -> None:
    job, log = launched(cluster, python.parent, python)
    cluster.wait(job, "COMPLETED")
    said = f"-u {RECIPE / 'train.py'} --size 15m --dtype bf16 --gpu h100 --gpus 1 --steps 50\n"
    assert log.read_text() == said


@pytest.mark.slow
def test_exit_code_of_a_failed_training_becomes_that_of_the_slurm_job(
    cluster: Cluster, python: Path
) -> None:
    job, log = launched(cluster, python.parent, python, EXIT="3")
    cluster.wait(job, "FAILED")
    assert "--size 15m" in log.read_text()
    assert "ExitCode=3:0" in cluster.run("scontrol", "show", "job", job)


@pytest.mark.slow
def test_failure_on_one_node_ends_the_job_on_both_nodes(
    cluster: Cluster, python: Path
) -> None:
    job, log = launched(cluster, python.parent, python, nodes=2, EXIT="3", WAITS="1")
    cluster.wait(job, "FAILED")
    assert log.read_text().count("--nproc-per-node=1 --nnodes=2") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("pytorch")
def test_two_nodes_train_together(cluster: Cluster, tmp_path: Path) -> None:
    """With the real torchrun and PyTorch, over gloo."""
    settings = {"DTYPE": "fp32", "GPU_TYPE": "cpu", "MAX_STEPS": "2"}
    job, log = launched(
        cluster, tmp_path, Path(sys.executable), nodes=2, size="1m", **settings
    )
    cluster.wait(job, "COMPLETED", "FAILED", seconds=240)
    text = log.read_text()
    assert "MEMBER: 1/2" in text
    assert text.count("global_batch_size: 4 |") == 2
    # the last torchrun may still complain that the other has ended
    before, end, after = text.partition(
        "\n`Trainer.fit` stopped: `max_steps=2` reached.\n"
    )
    assert end, text
    assert before.count("Training epoch") == 2
    assert not re.search(r"Training epoch|Trainer\.fit", after)
