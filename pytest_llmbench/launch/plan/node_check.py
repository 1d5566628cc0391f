"""The job that runs a site's own check on nodes: nccl-tests, dcgmi, whatever the option says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_llmbench.core.job_records import Cluster, JobSpec, Purpose

MINUTES = 15  # a check that takes longer is ended; it is also what its GPU-hours are counted by

OUTPUT = "llmbench-node-check-{job}.out"  # in the folder of the recipe, which its nodes see


def build_node_check(command: str, spec: JobSpec, cluster: Cluster, nodes: Sequence[str]) -> JobSpec:
    """Return the job that runs a command once on exactly these nodes, with the account and GPUs of a configuration's
    job."""
    options = {
        "--account": cluster.account,
        "--partition": cluster.partition,
        "--gres": cluster.gres,
        "--time": f"00:{MINUTES}:00",
        "--nodes": str(len(nodes)),
        "--ntasks-per-node": "1",
        "--nodelist": ",".join(nodes),
        "--output": str(spec.directory / OUTPUT.format(job="%j")),
    }
    own = ("--time=", "--nodelist=", "--segment=")  # blocks of nodes are those of the configuration
    check = replace(
        spec,
        purpose=Purpose.CHECK_NODES,
        via="sbatch",
        command=("sbatch", *(f"{name}={value}" for name, value in options.items() if value), f"--wrap={command}"),
        nodes=len(nodes),
        gpus=spec.gpus // spec.nodes * len(nodes),
        log_folders=(),
        exclude=(),
        sbatch_options=tuple(option for option in spec.sbatch_options if not option.startswith(own)),
        job_id="",
    )
    return replace(check, gpu_hours=check.occupied_gpus * MINUTES / 60)
