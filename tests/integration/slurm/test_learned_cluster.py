"""Launching on a login node without a cluster file, from Slurm's description."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clusters import Cluster, missing, running
from support.fake_recipe import WELL, write_recipe


@pytest.fixture(scope="module")
def typed_cluster() -> Iterator[Cluster]:
    """A cluster whose gres contains the type of its GPUs."""
    if absent := missing():
        pytest.skip(absent)  # conftest.py fails first if it is required
    with running(gpu_type="h100") as cluster:
        yield cluster


def run(folder: Path, cluster: Cluster, *command: str) -> tuple[int, str]:
    """Run a Python module in a folder, with the document's required variables."""
    return cluster.run_python(folder, "-Im", *command, STAGE_PATH=str(folder / "stage"))


@pytest.mark.slow
def test_launch_works_without_a_cluster_file(
    tmp_path: Path, typed_cluster: Cluster
) -> None:
    write_recipe(tmp_path, {"8b": WELL})
    (tmp_path / "cluster.yaml").unlink()
    (tmp_path / "baselines" / "fake.yaml").rename(
        tmp_path / "recipe" / "fake.yaml"
    )  # next to its launch.sh
    (tmp_path / "pytest.ini").write_text("[pytest]\nllmb_baselines = recipe\n")
    launch = ("pytest", "-p", "no:cacheprovider", "-k", "fake", "--llmb-launch")
    code, output = run(tmp_path, typed_cluster, *launch, "--llmb-dry-run")
    assert code == 0, output
    assert (
        "Slurm has partition batch: 8 h100 a node, 32 GPUs, account research"
        in " ".join(output.split())
    )
    assert "sbatch --gres=gpu:8 -A research -p batch -N 1 ./launch.sh" in output
    code, output = run(tmp_path, typed_cluster, *launch)
    assert code == 0, output
    assert "1 green: 1 PASS" in output


@pytest.mark.slow
def test_cluster_file_written_by_the_cluster_command_is_used_by_a_launch(
    tmp_path: Path, typed_cluster: Cluster
) -> None:
    write_recipe(tmp_path, {"8b": WELL})
    (tmp_path / "cluster.yaml").unlink()
    written = run(
        tmp_path,
        typed_cluster,
        "pytest_llmbench.cli.main",
        "cluster",
        "-o",
        "cluster.yaml",
    )
    assert written == (
        0,
        "cluster.yaml: partition batch: 8 h100 a node, 32 GPUs, account research\n",
    )
    with (tmp_path / "cluster.yaml").open("a") as file:
        file.write("installed: {fake: {folder: recipe}}\n")
    launch = ("pytest", "-p", "no:cacheprovider", "-k", "fake", "--llmb-launch")
    code, output = run(tmp_path, typed_cluster, *launch)
    assert code == 0, output
    assert "launch on: cluster.yaml" in output


@pytest.mark.slow
def test_missing_gpu_type_is_reported(tmp_path: Path, typed_cluster: Cluster) -> None:
    code, output = run(
        tmp_path, typed_cluster, "pytest_llmbench.cli.main", "cluster", "--gpu=b200"
    )
    assert code == 2
    assert "Slurm reports no GPUs of type b200" in output
