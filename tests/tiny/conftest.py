"""The tiny recipe; its training needs PyTorch."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

RECIPE = Path(__file__).resolve().parents[2] / "examples" / "tiny_llama"
PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR")


@pytest.fixture(scope="session")
def recipe() -> Path:
    """The folder of the recipe."""
    return RECIPE


@pytest.fixture(scope="session")
def train() -> ModuleType:
    """The training script as a module; without PyTorch skip the test, or fail it under LLMB_REQUIRE_TORCH."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        absent = f"needs PyTorch: pip install 'torch>=2.5' ({error})"
        if os.environ.get("LLMB_REQUIRE_TORCH"):
            pytest.fail(absent)
        pytest.skip(absent)
    torch.set_num_threads(1)  # more threads than free cores wait for each other in every small product
    return importlib.import_module("tiny_llama.train")


@pytest.fixture(scope="session")
def log(train: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of one real run of 50 steps in two processes on the CPU, where a Slurm job leaves it."""
    folder = tmp_path_factory.mktemp("run") / "results" / "1.0" / "fp32" / "1m" / "2"
    folder.mkdir(parents=True)
    path = folder / "log-tiny_llama_1m_2_7_0.out"
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    with path.open("wb") as output:
        subprocess.run(
            [RECIPE / "launch.sh"],
            env={**kept, "PYTHON": sys.executable, "DTYPE": "fp32", "MODEL_SIZE": "1m", "JOB_TOTAL_GPUS": "2"},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=110,
            check=True,
        )
    return path
