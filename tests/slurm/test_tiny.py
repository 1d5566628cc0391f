"""The tiny recipe as a job of a real Slurm: where its log lies, and how a failed training ends."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from clusters import Cluster

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).resolve().parents[2] / "examples" / "tiny_llama"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python that prints its arguments and ends as EXIT says."""
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\necho "$@"\nexit "${EXIT:-0}"\n')
    path.chmod(0o755)
    return path


def launched(cluster: Cluster, python: Path, **variables: str) -> tuple[str, Path]:
    """Give launch.sh to sbatch as its document says; return the job's id and its log."""
    said = {"PYTHON": str(python), "STAGE_PATH": str(python.parent), "DTYPE": "bf16", "GPU_TYPE": "h100", **variables}
    done = subprocess.run(
        ["sbatch", "-A", "research", "-p", "batch", "-N", "1", "--gres=gpu:1", "./launch.sh"],
        cwd=RECIPE,
        env={**os.environ, **cluster.environment, "SBATCH_OUTPUT": str(python.parent / "sbatch_%j.out"), **said},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    job = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    assert job, done.stdout
    folder = python.parent / "results" / "1.0" / "bf16" / "15m" / "1"
    return job[1], folder / f"log-tiny_llama_15m_1_{job[1]}_0.out"


def test_a_job_leaves_the_log_that_the_baseline_file_names(cluster: Cluster, python: Path) -> None:
    job, log = launched(cluster, python)
    cluster.wait(job, "COMPLETED")
    said = f"-u {RECIPE / 'train.py'} --size 15m --dtype bf16 --gpu h100 --steps 50\n"
    assert log.read_text() == said


def test_a_failed_training_is_a_failed_job(cluster: Cluster, python: Path) -> None:
    job, log = launched(cluster, python, EXIT="3")
    cluster.wait(job, "FAILED")
    assert "--size 15m" in log.read_text()
    assert "ExitCode=3:0" in cluster.run("scontrol", "show", "job", job)
