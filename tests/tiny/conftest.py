"""Fixtures for the tests of examples/tiny_llama; training needs PyTorch."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

RECIPE = Path(__file__).resolve().parents[2] / "examples" / "tiny_llama"
IDENTIFIER = "tiny_llama_1m-1.0-cpu-fp32-2"
CLOCK = """import itertools
import time

time.perf_counter = itertools.count(0.0, 0.1).__next__
"""
"""A `sitecustomize` module that makes every training step take exactly 0.1 s."""


@pytest.fixture(scope="session")
def recipe() -> Path:
    """The folder of the recipe."""
    return RECIPE


@pytest.fixture(scope="session")
def train() -> ModuleType:
    """The training script as a module.

    Without PyTorch the test is skipped, or fails if LLMB_REQUIRE_TORCH is set.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        absent = f"needs PyTorch: pip install 'torch>=2.5' ({error})"
        if os.environ.get("LLMB_REQUIRE_TORCH"):
            pytest.fail(absent)
        pytest.skip(absent)
    torch.set_num_threads(
        1
    )  # with more threads than free cores, small products are slow
    return importlib.import_module("tiny_llama.train")


@pytest.fixture(scope="session")
def steady_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python interpreter in which all training steps take equally long."""
    folder = tmp_path_factory.mktemp("steady")
    (folder / "sitecustomize.py").write_text(CLOCK)
    program = folder / "python"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(folder))} exec {shlex.quote(sys.executable)} "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def launched(
    train: ModuleType, steady_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a session that launched and recorded 50 steps on two processes."""
    folder = tmp_path_factory.mktemp("launched")
    command = [
        sys.executable,
        "-Im",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-k",
        IDENTIFIER,
        "--llmb-launch",
    ]
    (folder / "cluster.yaml").write_text(
        "{schema: 1, gpu: cpu, gpus_per_node: 2, largest: 2}\n"
    )
    options = [f"--llmb-record={folder / 'recorded'}", "--llmb-json=out.json"]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        [*command, "--llmb-repeats=1", *options, f"--llmb-baselines={RECIPE}"],
        cwd=folder,
        env={**environment, "PYTHON": str(steady_python)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def log(launched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the launched run, at the path that a Slurm job uses."""
    folder = tmp_path_factory.mktemp("run") / "results" / "1.0" / "fp32" / "1m" / "2"
    folder.mkdir(parents=True)
    (source,) = launched.rglob("log-*.out")
    return Path(shutil.copy(source, folder / "log-tiny_llama_1m_2_7_0.out"))
