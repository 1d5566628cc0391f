"""Preflight problems agree with the behaviour of a real Slurm."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.clusters import Cluster as RealCluster
from support.fake_schedulers import make_slurm, make_slurm_schedulers
from support.planned_jobs import machine, plan_job, program

from pytest_llmbench.core.commands import run
from pytest_llmbench.core.job_records import Cluster
from pytest_llmbench.launch.jobs.setup_step import (
    SetupHost,
    build_setup_step,
    run_setup,
)
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.preflight.launch_checks import check_launch
from pytest_llmbench.launch.preflight.problems import LaunchProblem
from pytest_llmbench.launch.schedulers.slurm.client import Slurm


def slurm_of(cluster: RealCluster) -> Slurm:
    return Slurm(run, {**os.environ, **cluster.environment})


def job(
    folder: Path,
    *options: str,
    gpus: int = 16,
    account: str = "research",
    partition: str = "batch",
) -> PlannedJob:
    """Return an sbatch job with `options` that prints the GPUs of a step."""
    planned_job = plan_job(folder, gpus, via="sbatch")
    script = "#!/bin/bash\nsrun --ntasks=1 --nodes=1 bash -c 'echo GPUs:$CUDA_VISIBLE_DEVICES'\n"
    program(folder / "recipe/launch.sh", script)
    words = (
        "sbatch",
        "-A",
        account,
        "-p",
        partition,
        "-N",
        str(gpus // 8),
        *options,
        "./launch.sh",
    )
    path = os.pathsep.join((f"{folder}/venv/bin", os.environ["PATH"]))
    others = tuple(
        pair
        for pair in planned_job.spec.environment
        if pair[0] not in ("PATH", "SBATCH_GPUS_PER_NODE")
    )
    spec = replace(
        planned_job.spec, command=words, environment=(("PATH", path), *others)
    )
    return replace(planned_job, spec=spec)


def problems(cluster: RealCluster, *jobs: PlannedJob) -> tuple[LaunchProblem, ...]:
    return check_launch(
        jobs, Cluster(), make_slurm_schedulers(slurm_of(cluster)), machine()
    )


def seen_gpus(cluster: RealCluster, launched: PlannedJob) -> str:
    """Submit a job unchanged and return the GPUs that a step sees."""
    directory = launched.spec.directory
    command = launched.spec.command
    number = cluster.run(
        *command[:1],
        "--parsable",
        f"--output={directory}/out-%j",
        *command[1:-1],
        f"{directory}/launch.sh",
    )
    assert cluster.wait(number, "COMPLETED", "FAILED") == "COMPLETED"
    return (directory / f"out-{number}").read_text().rpartition("GPUs:")[2].strip()


@pytest.mark.slow
def test_job_that_passes_preflight_gets_its_gpus_from_slurm(
    cluster: RealCluster, tmp_path: Path
) -> None:
    good = job(tmp_path, "--gres=gpu:8")
    assert problems(cluster, good) == ()
    assert seen_gpus(cluster, good) == "0,1,2,3,4,5,6,7"


@pytest.mark.slow
def test_step_without_gres_sees_no_gpus(cluster: RealCluster, tmp_path: Path) -> None:
    bad = job(tmp_path, "--exclusive")
    (problem,) = problems(cluster, bad)
    assert problem.remedy.startswith("set `gres: gpu:8` in the cluster file")
    assert seen_gpus(cluster, bad) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"account": "reserch"},
            "Slurm has no account 'reserch' (did you mean 'research'?)",
        ),
        (
            {"partition": "bach"},
            "Slurm has no partition 'bach' (did you mean 'batch'?)",
        ),
        ({"gpus": 40}, "partition 'batch' has 4 nodes: a larger job never starts"),
        (
            {"gpus": 16, "partition": "short"},
            "partition 'short' has 1 nodes: a larger job never starts",
        ),
    ],
)
def test_preflight_reports_unknown_account_or_partition_and_too_many_nodes(
    change: dict[str, str | int], what: str, cluster: RealCluster, tmp_path: Path
) -> None:
    (problem,) = problems(cluster, job(tmp_path, "--gres=gpu:8", **change))  # type: ignore[arg-type]
    assert problem.text == what


@pytest.mark.slow
def test_too_many_gpus_per_node_are_reported(
    cluster: RealCluster, tmp_path: Path
) -> None:
    (problem,) = problems(cluster, job(tmp_path, "--gres=gpu:9"))
    assert (
        problem.text
        == "partition 'batch' has 8 GPUs a node: Slurm refuses a job with more"
    )


@pytest.mark.slow
def test_missing_controller_is_reported_once(
    cluster: RealCluster, tmp_path: Path
) -> None:
    cluster.stop_controller()
    try:
        (problem,) = problems(
            cluster,
            job(tmp_path, "--gres=gpu:8"),
            job(tmp_path, "--gres=gpu:8", gpus=8),
        )
    finally:
        cluster.start_controller()
    assert problem.text.startswith("Slurm does not answer: ")
    assert len(problem.cases) == 2


# --- llmbench setup -------------------------------------------------------------------


def set_up(
    cluster: RealCluster,
    folder: Path,
    script: str,
    partition: str = "batch",
    stop: str = "",
) -> tuple[str, list[str]]:
    """Run a setup step until it prints `stop`; return its problem and its printed
    lines."""
    facts = replace(
        plan_job(folder).facts,
        setup="sbatch -A {account} -p {partition} -N 1 ./setup.sh",
    )
    (folder / "stage/nemo.sqsh").unlink()
    program(folder / "recipe/setup.sh", f"#!/bin/bash\n{script}\n")
    caller = {**os.environ, **cluster.environment, "STAGE_PATH": str(folder / "stage")}
    step = build_setup_step(
        facts,
        Cluster(account="research", partition=partition),
        caller,
        folder / "recipe",
    )
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if line == stop:
            raise KeyboardInterrupt

    world = SetupHost(
        tell,
        lambda: datetime.now(UTC),
        lambda _: time.sleep(0.05),
        folder / "setup.log",
        60.0,
        make_slurm(slurm_of(cluster)),
    )
    return run_setup(step, world), lines


def goes(cluster: RealCluster) -> bool:
    """True if no job remains after the time that its end takes."""
    end = time.monotonic() + 180
    while jobs := cluster.jobs():
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return not jobs


@pytest.mark.slow
def test_setup_job_is_awaited(cluster: RealCluster, tmp_path: Path) -> None:
    problem, lines = set_up(
        cluster,
        tmp_path,
        "echo importing; sleep 1; echo image > $STAGE_PATH/nemo.sqsh; echo ready",
    )
    assert problem == ""
    assert lines[-2:] == ["importing", "ready"]


@pytest.mark.slow
def test_output_of_a_failed_setup_job_is_quoted_in_the_problem(
    cluster: RealCluster, tmp_path: Path
) -> None:
    problem, _ = set_up(cluster, tmp_path, "echo no space left; exit 3")
    assert "FAILED: exit code 3" in problem
    assert "\n  no space left\n" in problem


@pytest.mark.slow
def test_setup_job_that_never_starts_is_cancelled(
    cluster: RealCluster, tmp_path: Path
) -> None:
    problem, _ = set_up(cluster, tmp_path, "#SBATCH --time=20\ntrue", partition="short")
    assert "it could never start and was cancelled (PartitionTimeLimit: " in problem
    assert goes(cluster)


@pytest.mark.slow
def test_manually_cancelled_setup_job_is_reported(
    cluster: RealCluster, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        set_up(cluster, tmp_path, "echo importing; sleep 600", stop="importing")
    assert goes(cluster)
