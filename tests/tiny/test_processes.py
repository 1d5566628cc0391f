"""Training with several processes on the CPU (gloo)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmbench.core.log_records import StatedField
from pytest_llmbench.logs.log_reader import read_log

IDENTIFIER = "tiny_llama_1m-1.0-cpu-fp32-2"
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")


def find_children(parent: int) -> list[int]:
    """Return the ids of the child processes of a process."""
    return [
        int(child)
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("train")  # skips without PyTorch
def test_dying_process_ends_the_job(recipe: Path) -> None:
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    size = {"MODEL_SIZE": "1m", "JOB_TOTAL_GPUS": "2", "MAX_STEPS": "1000000"}
    job = subprocess.Popen(
        [recipe / "launch.sh"],
        env={**environment, "PYTHON": sys.executable, **size},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert job.stdout
    with job, job.stdout:
        assert any("iteration 1/" in line for line in job.stdout)
        processes = find_children(job.pid)  # launch.sh executes torchrun in its place
        assert len(processes) == 2
        os.kill(processes[1], signal.SIGKILL)
        remaining_output = job.stdout.read()
        assert job.wait(timeout=60) == 1
    assert "Trainer.fit" not in remaining_output
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


@pytest.mark.slow
def test_local_launch_starts_one_process_per_gpu(launched: Path, log: Path) -> None:
    """The report contains the environment of the run, but no MFU on a CPU."""
    (outcome,) = json.loads((launched / "out.json").read_text())["outcomes"]
    assert (outcome["id"], outcome["verdict"]) == (IDENTIFIER, "RECORDED")
    assert outcome["metrics"]["step_time_seconds"]["value"] == pytest.approx(
        0.1
    )  # because of the clock of `steady_python`
    assert "mfu" not in outcome["metrics"]
    assert outcome["environment"]["device"].endswith(", 1 thread")
    assert outcome["environment"]["pytorch"].startswith("2.")
    assert (launched / "recorded" / "tiny_llama").is_dir()
    (segment,) = read_log(log).segments
    assert [(field.field, field.value) for field in segment.stated] == [
        (StatedField.GPUS, "2")
    ]
