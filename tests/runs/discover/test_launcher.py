"""The launcher of a run: from its metadata, else from its folders and names."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.shared_data import shared
from support.written_trees import Tree

from pytest_llmbench.core.run_records import RunFiles
from pytest_llmbench.runs.discover.discovery import find_runs

NAME = "pretrain_grok1_314b_bf16_256"
TASK = f"experiments/{NAME}/{NAME}_1744407969/{NAME}"


def get_only_run(root: Path) -> RunFiles:
    (run,) = find_runs([root]).runs
    return run


@pytest.mark.parametrize(
    ("log", "launcher"),
    [
        ("results/25.01/bf16/340b/128/log-nemo_nemotron4_340b_128_7.out", "sbatch"),
        (f"{TASK}/log-a-b.{NAME}_7_0.out", "nemo-run"),
        (f"workloads/pretrain_grok1/{TASK}/log-a-b.{NAME}_7_0.out", "nemo-run"),
        (f"{TASK}/nemo_run/x-j1/{NAME}/0/combined.log", "nemo-run-local"),
        (
            f"workloads/pretrain_grok1/experiments/{NAME}/1744407969/log-grok1_7_0.out",
            "configured-sbatch",
        ),
        (
            f"workloads/pretrain_grok1/experiments/{NAME}/1744407969/slurm-7.out",
            "configured-sbatch",
        ),
        ("workloads/pretrain_grok1/slurm-7.out", "sbatch"),
        ("somewhere/log-x_7_0.out", ""),
        (f"experiments/{NAME}/train.log", ""),
        (f"experiments/{NAME}/log-x_7_0.out", ""),
    ],
)
def test_launcher_is_read_from_folders_and_names(
    tree: Tree, log: str, launcher: str
) -> None:
    assert get_only_run(tree([log])).launcher == launcher


@pytest.mark.parametrize(
    ("stated", "launcher"),
    [
        ("nemo", "nemo-run"),
        ("configured_sbatch", "configured-sbatch"),
        ("Ray Job", "ray-job"),
        ("null", "nemo-run"),
        ("[a, b]", "nemo-run"),
    ],
)
def test_launcher_in_metadata_takes_precedence_over_folder_names(
    tree: Tree, stated: str, launcher: str
) -> None:
    config = f"job_info: {{job_id: '7', launcher_type: {stated}}}\n"
    root = tree(
        {f"{TASK}/log-a-b.{NAME}_7_0.out": "", f"{TASK}/llmb-config_7.yaml": config}
    )
    discovery = find_runs([root])
    assert [run.launcher for run in discovery.runs] == [launcher]
    assert discovery.unreadable == ()


@pytest.mark.parametrize(
    ("stated", "saves"),
    [("true", True), ("false", False), ("maybe", False), ("[1]", False)],
)
def test_metadata_contains_checkpoint_setting(
    tree: Tree, stated: str, saves: bool
) -> None:
    config = f"job_info: {{job_id: '7'}}\njob_config: {{env_overrides: {{ENABLE_CHECKPOINT: {stated}}}}}\n"
    root = tree(
        {f"{TASK}/log-a-b.{NAME}_7_0.out": "", f"{TASK}/llmb-config_7.yaml": config}
    )
    discovery = find_runs([root])
    assert discovery.runs[0].saves == (
        "llmb-config_7.yaml: ENABLE_CHECKPOINT=true" if saves else ""
    )
    assert discovery.runs[0].excluded is None
    assert discovery.unreadable == ()


REAL = {
    # grep -E "job_id|launcher_type|launch_time|model_name|dtype|scale:" $(find . -name
    # 'llmb-config_*')
    "2": ("nemo-run", "22:30:36.872750", "faketrain", "bf16", "16"),
    "3": ("configured-sbatch", "22:30:37.127945", "fakecfg", "fp8", "8"),
    "4": ("sbatch", "22:30:37.400368", "fakesbatch", "fp8", "8"),
    "5": ("configured-sbatch", "22:31:14.868267", "fakecfg", "fp8", "16"),
    "6": ("configured-sbatch", "22:31:14.884758", "fakecfg", "bf16", "16"),
    "7": ("configured-sbatch", "22:31:14.901777", "fakecfg", "fp8", "8"),
    "8": ("configured-sbatch", "22:31:14.918681", "fakecfg", "bf16", "8"),
    "11": ("configured-sbatch", "22:32:22.860825", "fakecfg", "bf16", "8"),
    "15": ("nemo-run", "22:32:39.110646", "faketrain", "bf16", "8"),
    "19": ("configured-sbatch", "22:36:05.996634", "realtitan", "bf16", "1"),
}


def test_each_job_of_real_tree_is_one_run() -> None:
    """find -name 'llmb-config_*' | wc -l gives 10, and find -name '*.out' 20: most jobs
    left two files."""
    discovery = find_runs([shared("logs/llmb_install")])
    assert discovery.unreadable == ()
    assert {why for _, why in discovery.ignored} == {
        "the launcher's duplicate of a job's output"
    }
    image = "container.images=nvcr.io#nvidia/nemo:25.04.01"
    jobs = {}
    for run in discovery.runs:
        values = {hint.field: hint.value for hint in run.hints}
        assert (values["size"], values["gpu"], values["release"]) == (
            "8b",
            "h100",
            "26.06.00",
        )
        assert (len(run.attempts), run.layout, run.excluded) == (1, "workloads", None)
        assert run.build == (image, "fw_version=25.04.01", "release=26.06.00")
        assert run.started is not None
        local = run.started.astimezone(datetime.now(UTC).astimezone().tzinfo)
        clock = local.replace(tzinfo=None).time().isoformat()
        jobs[run.job_id] = (
            run.launcher,
            clock,
            values["recipe"],
            values["dtype"],
            values["gpus"],
        )
    assert len(discovery.runs) == len(jobs)
    assert jobs == REAL
