"""Describing the cluster from Slurm, and the cluster file with the source of each
value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_llmbench.core.commands import CommandOutput
from pytest_llmbench.core.job_records import Cluster
from pytest_llmbench.launch.plan.cluster_file import (
    LearnedCluster,
    format_cluster_file,
    read_cluster,
)
from pytest_llmbench.launch.schedulers.slurm.client import (
    Partition,
    Slurm,
    learn_cluster,
)
from pytest_llmbench.launch.schedulers.submission import SchedulerAway


class Answers(Slurm):
    """Slurm's answers to these queries."""

    def __init__(self, *partitions: Partition, account: str = "research") -> None:
        self.partitions, self.account = partitions, account

    def list_partitions(self) -> tuple[Partition, ...]:
        return self.partitions

    def find_default_account(self) -> str:
        return self.account


def part(
    name: str, *gpu_nodes: tuple[str, int, int], up: bool = True, **fields: bool
) -> Partition:
    return Partition(name, 99, 8, 3600.0, up, gpu_nodes=gpu_nodes, **fields)


def learn(*partitions: Partition, gpu: str = "") -> Cluster:
    learned = learn_cluster(Answers(*partitions), gpu)
    assert learned is not None
    return learned.cluster


def test_cluster_with_one_gpu_type_is_learned() -> None:
    learned = learn(
        part("batch", ("h100", 8, 64), is_default=True), part("short", ("h100", 8, 1))
    )
    assert learned == Cluster(
        gpu="h100",
        gpus_per_node=8,
        largest=512,
        partition="batch",
        gres="gpu:8",
        account="research",
    )


@pytest.mark.parametrize(
    ("gres_type", "gpu"),
    [
        ("nvidia_h100_80gb_hbm3", "h100"),
        ("NVIDIA-A100-SXM4-80GB", "a100"),
        ("gb200", "gb200"),
        ("nvidia_h100_pcie", "h100pcie"),
    ],
)
def test_gpu_type_is_read_from_gres(gres_type: str, gpu: str) -> None:
    assert learn(part("batch", (gres_type, 4, 2))).gpu == gpu


def test_learned_gpu_type_is_the_most_common_or_the_requested_one() -> None:
    several = (
        part("mixed", ("a100", 8, 10), ("h100", 8, 20), is_default=True),
        part("old", ("v100", 4, 30)),
    )
    assert (learn(*several).gpu, learn(*several).gres) == ("h100", "gpu:h100:8"), (
        "a job has to say which it means"
    )
    requested = learn(*several, gpu="v100")
    assert (requested.gpu, requested.partition, requested.largest, requested.gres) == (
        "v100",
        "old",
        120,
        "gpu:4",
    )
    assert learn_cluster(Answers(*several), "b200") is None


def test_nodes_of_several_partitions_are_counted_once() -> None:
    """One A100 node in three partitions is fewer than two H100 nodes in one."""
    many = [part(name, ("a100", 8, 1)) for name in ("x", "y", "z")]
    assert learn(*many, part("batch", ("h100", 8, 2))).gpu == "h100"


def test_default_partition_without_gpus_is_ignored() -> None:
    learned = learn(
        part("cpu", is_default=True),
        part("small", ("h100", 8, 2)),
        part("large", ("h100", 8, 4)),
    )
    assert learned.partition == "large"


def test_partition_that_is_down_is_ignored() -> None:
    assert learn_cluster(Answers(part("batch", ("h100", 8, 64), up=False))) is None
    assert learn_cluster(Answers(part("cpu", is_default=True))) is None


def test_option_names_type_missing_in_gres() -> None:
    assert learn(part("batch", ("", 8, 4))).gpu == ""
    assert learn(part("batch", ("", 8, 4)), gpu="h200").gpu == "h200"


def test_cluster_file_is_written_from_slurms_output() -> None:
    printed = {
        "sinfo": "batch*|up|1-00:00:00|60|gpu:h100:8(S:0-1),nvme:1\nbatch*|up|1-00:00:00|4|gpu:a100:4\n"
        "cpu|up|infinite|9|(null)\n",
        "sacctmgr": "research\n",
        "id": "eva\n",
    }

    def run(
        arguments: Sequence[str], *, timeout: float, environment: object = None
    ) -> CommandOutput:
        assert timeout
        assert environment
        return CommandOutput(0, printed[arguments[0]], "")

    learned = learn_cluster(Slurm(run, {}))
    assert learned is not None
    assert (
        learned.describe()
        == "partition batch: 8 h100 a node, 480 GPUs, account research"
    )
    text = format_cluster_file(learned)
    assert (
        "gpu: h100                    # sinfo: gres gpu:h100:8 on 60 nodes; also available: a100\n"
        in text
    )
    assert (
        "partition: batch             # the default partition; at most 24 h per job\n"
        in text
    )


def test_missing_slurm_is_reported_as_unreachable() -> None:
    def run(
        arguments: Sequence[str], *, timeout: float, environment: object = None
    ) -> CommandOutput:
        return CommandOutput(
            127,
            "",
            f"{arguments[0]}: No such file or directory {timeout} {environment}",
        )

    with pytest.raises(SchedulerAway):
        learn_cluster(Slurm(run, {}))
    assert Slurm(run, {}).find_default_account() == ""


@pytest.mark.parametrize("gres_type", ["h100", ""])
def test_written_cluster_file_is_read_back(tmp_path: Path, gres_type: str) -> None:
    learned = learn_cluster(Answers(part("batch", (gres_type, 8, 64), is_default=True)))
    assert isinstance(learned, LearnedCluster)
    file = tmp_path / "cluster.yaml"
    text = format_cluster_file(learned)
    file.write_text(text)
    read = read_cluster(file)
    assert read.source == file
    assert learned.cluster == Cluster(
        **{
            name: getattr(read, name)
            for name in (
                "gpu",
                "gpus_per_node",
                "largest",
                "partition",
                "gres",
                "account",
            )
        }
    )
    assert all(f"{name}: " in text for name, _ in learned.sources)
    assert ("set it here" in text) == (not gres_type)
