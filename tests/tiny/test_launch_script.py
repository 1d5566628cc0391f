"""launch.sh: checking its variables and starting the training."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

DEFAULTS = [
    "--size",
    "15m",
    "--dtype",
    "fp32",
    "--gpu",
    "cpu",
    "--gpus",
    "1",
    "--steps",
    "50",
]
TORCHRUN = ["-m", "torch.distributed.run"]

Done = subprocess.CompletedProcess[str]


def write_program(path: Path) -> Path:
    """Write a program that prints its arguments and pretends to have PyTorch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\n[ "$1" = -c ] || printf "%s\\n" "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A fake Python that prints its arguments.

    Its path contains a space and a command substitution, which no shell may execute.
    """
    return write_program(tmp_path / "a $(touch ran) folder" / "python")


def launch(script: Path, python: Path, **variables: str) -> Done:
    """Run launch.sh with only these variables, in the folder of the fake Python."""
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(python), **variables}
    return subprocess.run(
        [script],
        env=environment,
        cwd=python.parent,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def arguments(done: Done, recipe: Path) -> list[str]:
    """Return the arguments of train.py."""
    assert done.returncode == 0, done.stderr
    flag, script, *arguments_of_script = done.stdout.splitlines()
    assert (flag, script) == ("-u", str(recipe / "train.py"))
    return arguments_of_script


def test_launch_script_uses_default_arguments_without_environment_variables(
    recipe: Path, python: Path
) -> None:
    assert arguments(launch(recipe / "launch.sh", python), recipe) == DEFAULTS


def test_every_environment_variable_becomes_an_argument_of_train_py(
    recipe: Path, python: Path
) -> None:
    variables = {
        "MODEL_SIZE": "1b",
        "DTYPE": "bf16",
        "GPU_TYPE": "h100",
        "COMPILE": "1",
        "MAX_STEPS": "7",
    }
    arguments_of_script = arguments(
        launch(recipe / "launch.sh", python, **variables), recipe
    )
    assert arguments_of_script == [
        "--size",
        "1b",
        "--dtype",
        "bf16",
        "--gpu",
        "h100",
        "--gpus",
        "1",
        "--steps",
        "7",
        "--compile",
    ]


def test_torchrun_starts_several_processes(recipe: Path, python: Path) -> None:
    done = launch(recipe / "launch.sh", python, JOB_TOTAL_GPUS="8")
    assert done.returncode == 0, done.stderr
    expected = [
        *TORCHRUN,
        "--nproc-per-node=8",
        "--standalone",
        str(recipe / "train.py"),
        *DEFAULTS,
    ]
    expected[expected.index("--gpus") + 1] = "8"
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("MODEL_SIZE", "7b", "expected one of: 1m 15m 250m 1b"),
        ("MODEL_SIZE", "$(touch ran)", "expected one of: 1m 15m 250m 1b"),
        ("MODEL_SIZE", "1?", "expected one of: 1m 15m 250m 1b"),
        ("DTYPE", "fp8", "expected one of: fp32 bf16"),
        ("DTYPE", "../bf16", "expected one of: fp32 bf16"),
        ("GPU_TYPE", "h100; touch ran", "expected cpu or a GPU's name such as h100"),
        ("GPU_TYPE", "-x", "expected cpu or a GPU's name such as h100"),
        ("JOB_TOTAL_GPUS", "0", "expected a whole number from 1"),
        ("JOB_TOTAL_GPUS", "8; touch ran", "expected a whole number from 1"),
        ("COMPILE", "yes", "expected one of: 0 1"),
        ("MAX_STEPS", "0", "expected a whole number from 1"),
        ("MAX_STEPS", "x[$(touch ran)]", "expected a whole number from 1"),
        (
            "PYTHON",
            "no-such-python",
            "no such program, expected a Python that has PyTorch",
        ),
    ],
)
def test_invalid_variables_are_refused(
    recipe: Path, python: Path, name: str, value: str, expected: str
) -> None:
    done = launch(recipe / "launch.sh", python, **{name: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"launch.sh: {name}={value}: {expected}\n"
    assert not list(python.parent.glob("ran"))


def test_missing_pytorch_is_reported_before_the_start(
    recipe: Path, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    done = launch(recipe / "launch.sh", python, JOB_TOTAL_GPUS="8")
    expected = f"launch.sh: PYTHON={python} has no PyTorch: pip install 'torch>=2.5' there, or set PYTHON to one that has it\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


@pytest.mark.slow
def test_broken_pytorch_is_reported_with_the_error(
    recipe: Path, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no libcudart')")
    interpreter = shutil.which("python3") or ""
    done = launch(recipe / "launch.sh", Path(interpreter), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert (
        "cannot import PyTorch (no libcudart): pip install 'torch>=2.5', or set PYTHON"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.fixture
def spooled_script(recipe: Path, tmp_path: Path) -> Path:
    """A duplicate of launch.sh in another folder, as Slurm makes for a job."""
    script = tmp_path / "spool" / "slurm_script"
    script.parent.mkdir()
    return Path(shutil.copy(recipe / "launch.sh", script))


def test_slurm_log_is_written_under_stage_path(
    recipe: Path, python: Path, spooled_script: Path, tmp_path: Path
) -> None:
    write_program(tmp_path / "bin" / "srun")
    stage = tmp_path / "stage $(touch ran)"
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    job = {
        "SLURM_JOB_ID": "12",
        "SLURM_SUBMIT_DIR": str(recipe),
        "SLURM_RESTART_COUNT": "1",
    }
    done = launch(spooled_script, python, PATH=path, STAGE_PATH=str(stage), **job)
    log = (
        stage
        / "results"
        / "1.0"
        / "fp32"
        / "15m"
        / "1"
        / "log-tiny_llama_15m_1_12_1.out"
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == f"log: {log}"
    assert f"--output={log}" in printed
    assert printed[-len(DEFAULTS) - 3 :] == [
        str(python),
        "-u",
        str(recipe / "train.py"),
        *DEFAULTS,
    ]
    assert log.parent.is_dir()
    assert not list(tmp_path.rglob("ran"))


def test_job_submitted_from_another_folder_is_refused(
    python: Path, spooled_script: Path
) -> None:
    done = launch(
        spooled_script, python, SLURM_JOB_ID="12", SLURM_SUBMIT_DIR=str(python.parent)
    )
    assert (done.returncode, done.stdout) == (2, "")
    expected = f"launch.sh: no train.py in {python.parent}: run sbatch in the folder of launch.sh\n"
    assert done.stderr == expected


def test_torchrun_processes_on_two_nodes_rendezvous_at_the_first_node(
    recipe: Path, python: Path, spooled_script: Path, tmp_path: Path
) -> None:
    write_program(tmp_path / "bin" / "srun")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    job = {
        "SLURM_JOB_ID": "12",
        "SLURM_SUBMIT_DIR": str(recipe),
        "SLURM_JOB_NUM_NODES": "2",
        "JOB_TOTAL_GPUS": "8",
    }
    done = launch(
        spooled_script, python, PATH=path, STAGE_PATH=str(tmp_path), COMPILE="1", **job
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    for option in (
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
    ):
        assert option in printed
    start = printed[printed.index(str(python)) + 1 :]
    assert start[:5] == [
        *TORCHRUN,
        "--nproc-per-node=4",
        "--nnodes=2",
        "--rdzv-backend=c10d",
    ]
    assert "--rdzv-id=12" in start
    assert f"--rdzv-endpoint={socket.gethostname()}:20012" in start
    assert printed[0].endswith(
        "/results/1.0/fp32/15m/8/log-tiny_llama_compiled_15m_8_12_0.out"
    )
    uneven = launch(spooled_script, python, PATH=path, **{**job, "JOB_TOTAL_GPUS": "3"})
    assert (
        uneven.stderr
        == "launch.sh: JOB_TOTAL_GPUS=3: expected as many on each of 2 nodes\n"
    )
