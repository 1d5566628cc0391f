"""Several processes train together, on the CPU with gloo, and one that dies ends the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmbench.core.models import StatedField
from pytest_llmbench.ingest.parse.read import read_log

pytestmark = pytest.mark.slow

IDENTIFIER = "tiny_llama_1m-1.0-cpu-fp32-2"
PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR")


def find_children(parent: int) -> list[int]:
    """Return the processes that a process started."""
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.mark.usefixtures("train")  # it needs PyTorch
def test_a_process_that_dies_ends_the_others_and_the_job(recipe: Path) -> None:
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    size = {"MODEL_SIZE": "1m", "JOB_TOTAL_GPUS": "2", "MAX_STEPS": "1000000"}
    job = subprocess.Popen(
        [recipe / "launch.sh"],
        env={**kept, "PYTHON": sys.executable, **size},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert job.stdout
    with job, job.stdout:
        assert any("iteration 1/" in line for line in job.stdout)
        processes = find_children(job.pid)  # launch.sh became torchrun
        assert len(processes) == 2
        os.kill(processes[1], signal.SIGKILL)
        rest = job.stdout.read()
        assert job.wait(timeout=60) == 1
    assert "Trainer.fit" not in rest
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


@pytest.mark.usefixtures("train")
def test_a_launch_on_this_machine_starts_as_many_as_the_configuration_has(recipe: Path, tmp_path: Path) -> None:
    """And its reports say what it ran on, and no MFU, for a CPU has no documented peak."""
    command = [sys.executable, "-Im", "pytest", "-p", "no:cacheprovider", "-q", "-k", IDENTIFIER, "--llmb-launch"]
    here = ["--llmb-gpu=cpu", "--llmb-max-gpus=2", "--llmb-gpus-per-node=2", "--llmb-repeats=1"]
    written = [f"--llmb-record={tmp_path / 'recorded'}", "--llmb-json=out.json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, *here, *written, f"--llmb-baselines={recipe}"],
        cwd=tmp_path,
        env={**environment, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (outcome,) = json.loads((tmp_path / "out.json").read_text())["outcomes"]
    assert (outcome["id"], outcome["verdict"]) == (IDENTIFIER, "RECORDED")
    assert "step_time_seconds" in outcome["metrics"]
    assert "mfu" not in outcome["metrics"]
    assert outcome["environment"]["device"].endswith(", 1 thread")
    assert outcome["environment"]["pytorch"].startswith("2.")
    assert (tmp_path / "recorded" / "tiny_llama").is_dir()


def test_the_log_states_how_many_there_were(log: Path) -> None:
    (segment,) = read_log(log).segments
    assert [(each.field, each.value) for each in segment.stated] == [(StatedField.GPUS, "2")]
