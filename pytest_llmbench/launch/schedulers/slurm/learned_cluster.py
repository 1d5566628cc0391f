"""The cluster as Slurm describes it, for a launch without a cluster file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_llmbench.core.formatting import count_noun, join_first
from pytest_llmbench.core.gpus import read_gpu_type
from pytest_llmbench.core.job_records import Cluster
from pytest_llmbench.launch.plan.cluster_file import LearnedCluster
from pytest_llmbench.launch.schedulers.slurm.client import Partition


class ClusterFacts(Protocol):
    """What Slurm is asked; SchedulerAway where it does not answer."""

    def list_partitions(self) -> Sequence[Partition]: ...
    def find_default_account(self) -> str: ...


@dataclass(frozen=True, slots=True)
class GpuNodes:
    """The nodes of a partition that have GPUs of one type."""

    partition: Partition
    gres_type: str
    gpu: str  # the type as configurations name it; empty: nothing says it
    per_node: int
    nodes: int

    @property
    def gpus(self) -> int:
        """All of them together."""
        return self.per_node * self.nodes


def learn_cluster(slurm: ClusterFacts, gpu: str = "") -> LearnedCluster | None:
    """Return the cluster that Slurm has GPUs in; None where it has none that it knows
    of.

    Of several types the one with the most GPUs counts, or `gpu` where an option says
    it; of several partitions the default one, else the one with the most of them.
    SchedulerAway where Slurm does not answer.
    """
    groups = [
        GpuNodes(partition, kind, _read_type(kind) or gpu, count, nodes)
        for partition in slurm.list_partitions()
        if partition.up
        for kind, count, nodes in partition.gpu_nodes
    ]
    chosen = gpu if gpu else _find_most_common(groups)
    fitting = [group for group in groups if group.gpu == chosen]
    if not fitting:
        return None
    best = max(
        fitting,
        key=lambda group: (
            group.partition.is_default,
            group.gpus,
            group.partition.name,
        ),
    )
    return _describe(best, groups, slurm.find_default_account())


def _read_type(gres_type: str) -> str:
    """Return `h100` for `nvidia_h100_80gb_hbm3`; empty where gres names no type."""
    return read_gpu_type(re.sub("[_-]", " ", gres_type)) if gres_type else ""


def _find_most_common(groups: Sequence[GpuNodes]) -> str:
    """Return the type of most GPUs; a node may be in several partitions, and counts in
    the largest alone."""
    gpus: Counter[str] = Counter()
    for group in groups:
        gpus[group.gpu] = max(gpus[group.gpu], group.gpus)
    return max(gpus, key=lambda gpu: (gpus[gpu], gpu), default="")


def _describe(
    best: GpuNodes, groups: Sequence[GpuNodes], account: str
) -> LearnedCluster:
    partition = best.partition
    own = {group.gres_type for group in groups if group.partition == partition}
    named = (
        f"gpu:{best.gres_type}:{best.per_node}"
        if best.gres_type
        else f"gpu:{best.per_node}"
    )
    gres = f"gpu:{best.per_node}" if len(own) == 1 else named
    others = sorted({group.gpu for group in groups} - {best.gpu, ""})
    limit = partition.time_limit_seconds
    sources = {
        "gpu": f"sinfo: gres {named} on {count_noun(best.nodes, 'node')}"
        * bool(best.gpu)
        + (f"; there are {join_first(others)}, too" if others else ""),
        "gpus_per_node": f"sinfo: gres {named}",
        "largest": f"sinfo: {count_noun(best.nodes, 'node')} of the partition have them",
        "partition": (
            "the default one"
            if partition.is_default
            else "the one with the most of these GPUs"
        )
        + (
            f"; a job takes at most {limit / 3600:g} h"
            if limit is not None
            else "; a job may take any time"
        ),
        "gres": f"sinfo: {named}",
        "account": "sacctmgr: your default account" if account else "",
    }
    cluster = Cluster(
        gpu=best.gpu,
        gpus_per_node=best.per_node,
        largest=best.gpus,
        partition=partition.name,
        gres=gres,
        account=account,
    )
    return LearnedCluster(
        "Slurm", cluster, tuple((name, text) for name, text in sources.items() if text)
    )
