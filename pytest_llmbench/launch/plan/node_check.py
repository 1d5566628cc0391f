"""The job that runs a site's own check on nodes: nccl-tests, dcgmi, whatever the option
says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_llmbench.core.job_records import Cluster, JobSpec, Purpose
from pytest_llmbench.launch.schedulers import load_scheduler

# a check that takes longer is ended; it is also what its GPU-hours are counted by
MINUTES = 15

OUTPUT = (
    "llmbench-node-check-{job}.out"  # in the folder of the recipe, which its nodes see
)


def build_node_check(
    command: str, spec: JobSpec, cluster: Cluster, nodes: Sequence[str]
) -> JobSpec:
    """Return the job that runs a command once on exactly these nodes, with the account
    and GPUs of a configuration."""
    own = replace(
        spec,
        purpose=Purpose.CHECK_NODES,
        nodes=len(nodes),
        gpus=spec.gpus // spec.nodes * len(nodes),
        log_folders=(),
        exclude=(),
        job_id="",
    )
    scheduler, output = load_scheduler(spec.via), spec.directory / OUTPUT
    check = scheduler.build_node_check(
        command, own, cluster, nodes, minutes=MINUTES, output=output
    )
    return replace(check, gpu_hours=check.occupied_gpus * MINUTES / 60)
