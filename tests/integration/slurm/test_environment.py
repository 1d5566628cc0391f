"""The environment of a job, as a Slurm job sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.clusters import Cluster
from support.shipped_specs import baseline, facts

from pytest_llmbench.core.job_records import Cluster as Described
from pytest_llmbench.core.job_records import JobSpec
from pytest_llmbench.launch.plan.job_spec import build_job

PRINT = "import json, os; print(json.dumps(dict(os.environ)))"
HOSTILE = "a b; touch x $(touch x) `touch x` 'q\" {gpus} ${HOME}\n -N 9 é"


def spec(
    cluster: Cluster, stage: Path, script: str, described: Described, **caller: str
) -> JobSpec:
    """Return a one-node sbatch job with another script."""
    stage.mkdir(exist_ok=True)
    (stage / "launch.sh").write_text(f"#!/bin/bash\n{script}\n")
    known = {
        "PATH": os.environ["PATH"],
        "STAGE_PATH": str(stage),
        **cluster.environment,
        **caller,
    }
    return build_job(
        baseline("grok1/24.11", "fp8-8"), facts("grok1/24.11"), described, caller=known
    )


def run(cluster: Cluster, spec: JobSpec) -> str:
    """Submit a job, wait for its end, and return its output."""
    program, *options = spec.command
    output = spec.directory / "job.out"
    process = subprocess.run(
        [program, "--parsable", f"--output={output}", *options],
        cwd=spec.directory,
        env=dict(spec.environment),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert process.stdout.strip().isdecimal(), process.stderr
    cluster.wait(process.stdout.strip(), "COMPLETED", "FAILED")
    return output.read_text()


@pytest.mark.slow
def test_hostile_value_reaches_the_job_unchanged(
    cluster: Cluster, tmp_path: Path
) -> None:
    described = Described(
        gpu="h100", gres="gpu:8", environment=(("VALUE", "${HOSTILE}"),)
    )
    job = spec(
        cluster,
        tmp_path / "a b;$(touch x)",
        f"exec {sys.executable} -c '{PRINT}'",
        described,
        HOSTILE=HOSTILE,
    )
    environment = json.loads(run(cluster, job))
    assert environment["VALUE"] == HOSTILE
    assert environment["STAGE_PATH"] == str(job.directory)
    assert environment["DTYPE"] == "fp8"
    assert sorted(path.name for path in job.directory.iterdir()) == [
        "job.out",
        "launch.sh",
    ]


@pytest.mark.slow
def test_callers_environment_does_not_reach_the_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    described = Described(gpu="h100", gres="gpu:8")
    script = f"exec {sys.executable} -c '{PRINT}'"
    job = spec(
        cluster,
        tmp_path / "stage",
        script,
        described,
        LD_LIBRARY_PATH="/mine",
        MINE="1",
    )
    environment = json.loads(run(cluster, job))
    assert not {"LD_LIBRARY_PATH", "MINE"} & set(environment)


@pytest.mark.slow
@pytest.mark.parametrize("gres", ["gpu:8", ""])
def test_srun_steps_request_the_gpus_stated_in_the_cluster_file(
    cluster: Cluster, tmp_path: Path, gres: str
) -> None:
    """With SLURM_GPUS_PER_NODE=null, as old documents export it, srun would request
    GPUs named null."""
    described = Described(gpu="h100", gres=gres)
    job = spec(
        cluster,
        tmp_path / "stage",
        "srun hostname; echo code $?",
        described,
        SLURM_GPUS_PER_NODE="null",
    )
    assert run(cluster, job).splitlines()[-1] == "code 0"
    null = replace(job, environment=(*job.environment, ("SLURM_GPUS_PER_NODE", "null")))
    assert "Invalid generic resource (gres) specification" in run(cluster, null)


@pytest.mark.slow
def test_gpus_may_be_requested_by_option_and_variable(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Nemotron's document sets SBATCH_GPUS_PER_NODE, and its command has --gres as
    well."""
    job = spec(
        cluster,
        tmp_path / "stage",
        "srun hostname; echo code $?",
        Described(gpu="h100", gres="gpu:8"),
    )
    both = replace(job, environment=(*job.environment, ("SBATCH_GPUS_PER_NODE", "8")))
    assert run(cluster, both).splitlines()[-1] == "code 0"
