"""The job that runs a site's node check."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from support.job_specs import job_spec

from pytest_llmbench.core.job_records import Cluster, Purpose
from pytest_llmbench.launch.plan.job_spec import build_node_check


def test_node_check_runs_on_exactly_the_suspect_nodes(tmp_path: Path) -> None:
    measured = replace(
        job_spec(tmp_path, via="script"),
        nodes=4,
        gpus=32,
        exclude=("n9",),
        scheduler_options=("--qos=high", "--segment=4", "--nodelist=n[1-9]"),
    )
    cluster = Cluster(account="research", partition="batch", gres="gpu:8")
    check = build_node_check(
        "srun dcgmi diag -r 1; echo $?", measured, cluster, ["n1", "n2"]
    )
    assert (check.purpose, check.via, check.nodes, check.gpus) == (
        Purpose.CHECK_NODES,
        "sbatch",
        2,
        16,
    )
    assert check.gpu_hours == 4.0  # a quarter of an hour
    partial_node = replace(measured, nodes=1, gpus=4, gpus_per_node=8)
    assert (
        build_node_check("true", partial_node, cluster, ["n1", "n2"]).gpu_hours == 4.0
    ), "of whole nodes"
    assert check.command == (
        "sbatch",
        "--account=research",
        "--partition=batch",
        "--gres=gpu:8",
        "--time=00:15:00",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--nodelist=n1,n2",
        f"--output={measured.directory}/llmbench-node-check-%j.out",
        "--wrap=srun dcgmi diag -r 1; echo $?",
    )
    assert (check.exclude, check.scheduler_options) == ((), ("--qos=high",))
    assert "--account=" not in " ".join(
        build_node_check("true", measured, Cluster(), ["n1"]).command
    )
