"""A complete job before its submission. Each test removes one requirement."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.commands import CommandOutput
from pytest_llmbench.core.job_records import (
    Checkpointing,
    Command,
    JobSpec,
    LaunchFacts,
    Profiling,
    Purpose,
)
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.preflight.problems import LocalMachine

FACTS = LaunchFacts(
    recipe="llama3.1",
    release="25.04",
    kind="script",
    commands=(Command("script", "script", "./launch.sh"),),
    gpus_per_node=(("h100", 8),),
    required=(
        ("STAGE_PATH", "folder of the image and the results"),
        ("HF_TOKEN", "access token"),
    ),
    optional=(("SBATCH_GPUS_PER_NODE", "all GPUs of a node"),),
    forbidden=(("LLMB_INSTALL", "of later releases"),),
    image="nemo.sqsh",
    needs_token=True,
    python="3.10.12 or newer",
    virtual_environment=True,
    profiling=Profiling(
        enable=(("ENABLE_PROFILE", "true"),),
        start="PROFILE_START_STEP",
        stop="PROFILE_STOP_STEP",
        default_start=20,
        default_stop=25,
    ),
    nccl_trace=(("ENABLE_NCCLTRACE", "true"),),
    checkpoint=Checkpointing(
        save=(("ENABLE_CHECKPOINT", "true"),),
        load=(("LOAD_CHECKPOINT_PATH", "{checkpoint}"),),
        size_bytes=(("8b", 105 * 10**9),),
        save_gpus=(("8b", (16, 128)),),
        load_gpus=(("8b", (16, None)),),
    ),
)


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def plan_job(
    folder: Path, gpus: int = 16, facts: LaunchFacts = FACTS, **fields: Any
) -> PlannedJob:
    """Plan a job whose requirements are all met.

    `environment` is added to the job's default environment.
    """
    recipe, stage, virtual = folder / "recipe", folder / "stage", folder / "venv"
    for path in (recipe, stage):
        path.mkdir(exist_ok=True)
    program(recipe / "launch.sh")
    for name in ("sbatch", "llmb-run", "bash", "python3"):
        program(folder / "bin" / name)
    program(virtual / "bin" / "python")
    (stage / "nemo.sqsh").write_text("image")
    key = Key("llama3.1", "8b", "25.04", "h100", "bf16", gpus)
    environment = {
        "PATH": f"{virtual}/bin{os.pathsep}{folder}/bin",
        "STAGE_PATH": str(stage),
        "HF_TOKEN": "hf_secretvalue",
        "VIRTUAL_ENV": str(virtual),
        "SBATCH_GPUS_PER_NODE": "8",
        **fields.pop("environment", {}),
    }
    spec = JobSpec(
        case_id=key.id,
        key=key,
        purpose=Purpose.MEASURE,
        via="script",
        command=("./launch.sh",),
        directory=recipe,
        environment=tuple(
            (name, value) for name, value in environment.items() if value is not None
        ),
        secrets=("HF_TOKEN",),
        nodes=gpus // 8,
        gpus=gpus,
        gpu_hours=gpus * 2 / 10,
    )
    return PlannedJob(replace(spec, **fields), facts)


class FakePython:
    """A runner that reports a Python version and records its calls."""

    def __init__(self, version: str = "Python 3.12.3\n") -> None:
        self.version = version
        self.calls: list[tuple[str, ...]] = []

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        """Return the version, whatever the arguments are."""
        self.calls.append(tuple(arguments))
        return CommandOutput(0, self.version, "")


def machine(version: str = "Python 3.12.3\n", free: int = 10**15) -> LocalMachine:
    """Build a machine with this Python version and this number of free bytes."""
    return LocalMachine(run=FakePython(version), free_bytes=lambda folder: free)
