"""Planning a launch: the cluster without a cluster file, variants and GPU-hours."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from support.job_specs import job_spec
from support.planned_jobs import FACTS

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.commands import CommandOutput
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Purpose
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.plan.planner import Host, Planner
from pytest_llmbench.launch.plan.trial_plans import (
    count_trials,
    estimate_hours,
    plan_allocations,
)
from pytest_llmbench.session import catalog
from pytest_llmbench.session.settings import resolve

GPUS, CPU = (
    Key("grok1", "314b", "25.05", "h100", "bf16", 512),
    Key("tiny_llama", "15m", "1.0", "cpu", "fp32", 1),
)
SINFO = "batch*|up|infinite|64|gpu:h100:8\n"
H200 = "NVIDIA H200\n"


def plan(
    selected: Sequence[Key], answers: Mapping[str, str], gpu: str = "", **settings: Any
) -> tuple[Planner, list[str]]:
    """Return a planner with these command outputs, and the lines that it prints.

    Other commands do not exist.
    """
    printed: list[str] = []

    def run(
        arguments: Sequence[str], *, timeout: float, environment: object = None
    ) -> CommandOutput:
        code = 0 if arguments[0] in answers else 127
        return CommandOutput(
            code, answers.get(arguments[0], ""), f"{timeout} {environment}" * code
        )

    host = Host(
        lambda: datetime.now(UTC), lambda _: None, run, {}, printed.append, Path()
    )
    return Planner(
        LaunchSettings(**settings), gpu, cast("Any", None), host, selected
    ), printed


def test_login_node_plans_for_the_slurm_cluster() -> None:
    planner, printed = plan([GPUS, CPU], {"sinfo": SINFO})
    assert (
        planner.cluster.gpu,
        planner.cluster.largest,
        planner.cluster.partition,
    ) == ("h100", 512, "batch")
    assert [
        "Slurm has partition batch: 8 h100 a node, 512 GPUs" in line for line in printed
    ] == [True], "once"


@pytest.mark.parametrize(
    ("selected", "answers", "settings", "expected"),
    [
        ([CPU], {"sinfo": SINFO}, {}, "cpu"),
        ([GPUS], {"sinfo": SINFO}, {"launcher": "local"}, "cpu"),
        ([GPUS], {"sinfo": SINFO, "nvidia-smi": H200}, {}, "h200"),
        ([GPUS], {"sinfo": "batch*|up|infinite|64|(null)\n"}, {}, "cpu"),
        ([GPUS], {}, {}, "cpu"),
    ],
    ids=[
        "what runs on a CPU",
        "what runs here",
        "GPUs of its own",
        "a Slurm without GPUs",
        "no Slurm",
    ],
)
def test_launch_uses_the_local_machine_if_slurm_gpus_are_absent_or_unneeded(
    selected: list[Key],
    answers: dict[str, str],
    settings: dict[str, Any],
    expected: str,
) -> None:
    planner, printed = plan(selected, answers, **settings)
    assert (planner.cluster.gpu, printed) == (expected, [])


def test_gpu_type_option_is_used_if_gres_states_no_type() -> None:
    planner, _ = plan(
        [GPUS], {"sinfo": "batch*|up|infinite|4|gpu:8\n"}, gpu="h100", largest=16
    )
    assert (planner.cluster.gpu, planner.cluster.largest, planner.cluster.gres) == (
        "h100",
        16,
        "gpu:8",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "expected"), [(0, "submit"), (2, "single"), (127, "single")]
)
def test_llmb_run_subcommand_submit_or_single_depends_on_the_installed_version(
    code: int, expected: str, tmp_path: Path
) -> None:
    """25.05 has only `single`, 25.12 both, 26.06.01 only `submit`; one query serves all
    jobs."""
    queries: list[Sequence[str]] = []

    def run(
        arguments: Sequence[str], *, timeout: float, environment: object = None
    ) -> CommandOutput:
        assert timeout
        assert environment
        queries.append(arguments)
        return CommandOutput(code, "", "")

    baselines = catalog.load(resolve({}, tmp_path))
    host = Host(
        lambda: datetime.now(UTC),
        lambda _: None,
        run,
        {"PATH": "/opt/llmb/bin"},
        print,
        tmp_path,
    )
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("schema: 1\ngpu: h100\n")
    keys = [
        key
        for key in baselines.baselines
        if key.recipe == "grok1" and (key.release, key.gpu) == ("25.05", "h100")
    ]
    planner = Planner(LaunchSettings(cluster=cluster), "", baselines, host, keys)
    commands = {planner.plan_job(key, Purpose.MEASURE).spec.command[:4] for key in keys}
    assert (len(keys), commands) == (
        2,
        {("llmb-run", expected, "-w", "pretrain_grok1")},
    )
    assert queries == [("llmb-run", "submit", "--help")]


@pytest.mark.parametrize(("allocation", "cases"), [(0, []), (1, [GPUS.id])])
def test_resumed_session_plans_no_allocation_if_its_jobs_were_separate(
    tmp_path: Path, allocation: int, cases: list[str]
) -> None:
    """They would wait for the nodes that an allocation reserves."""
    file = tmp_path / "variants.yaml"
    file.write_text("schema: 1\nvariants: [{name: a}, {name: b, image: x}]\n")
    planner, _ = plan([GPUS], {}, ab=str(file), purpose=Purpose.COMPARE_VARIANTS)
    changes = {
        "case_id": GPUS.id,
        "purpose": Purpose.COMPARE_VARIANTS,
        "via": "sbatch",
        "allocation": allocation,
    }
    job = PlannedJob(job_spec(tmp_path, **changes), FACTS)
    variants = {GPUS.id: [job, job]}
    allocations = plan_allocations(
        variants, planner.launch, planner.builds, planner.schedulers, [job.spec]
    )
    assert list(allocations) == cases


def test_range_without_commits_is_refused(tmp_path: Path) -> None:
    planner, _ = plan([GPUS], {}, bisect="git:")
    with pytest.raises(LaunchError, match="expected two commits such as git:v1"):
        planner.list_variants(PlannedJob(job_spec(tmp_path), FACTS))


def test_search_that_builds_each_commit_uses_no_allocation(tmp_path: Path) -> None:
    file = tmp_path / "builds.yaml"
    file.write_text("schema: 1\ncommits: a..b\nbuild: [make]\n")
    planner, _ = plan([GPUS], {}, bisect=str(file), purpose=Purpose.BISECT)
    job = PlannedJob(
        job_spec(tmp_path, case_id=GPUS.id, purpose=Purpose.BISECT, via="sbatch"), FACTS
    )
    variants = {GPUS.id: [job, job]}
    (allocation,) = plan_allocations(
        variants, planner.launch, planner.builds, planner.schedulers
    ).values()
    assert allocation.spec is None
    assert "each commit is built before its run" in allocation.describe(9, 2)
    assert count_trials(
        variants, planner.launch, planner.builds, {GPUS.id: allocation}
    ) == {GPUS.id: 20}


CONFIGURATION = "Configuration data as of 2026-03-02\nClusterName             = eos\n"


@pytest.mark.parametrize(
    ("via", "answers", "name"),
    [
        ("local", {"scontrol": CONFIGURATION}, socket.gethostname()),
        ("sbatch", {"scontrol": CONFIGURATION}, "eos"),
        ("sbatch", {}, ""),
    ],
    ids=["this host", "Slurm's", "a Slurm that does not answer"],
)
def test_cluster_name_is_the_local_host_or_that_of_slurm(
    via: str, answers: dict[str, str], name: str
) -> None:
    planner, _ = plan([GPUS], answers)
    jobs = [
        PlannedJob(job_spec(Path("/recipe"), via=launcher), FACTS)
        for launcher in (via, "local")
    ]
    assert planner.find_cluster_name(jobs) == name


@pytest.mark.parametrize(("runs", "words"), [(1, "x"), (3, "x, 3 runs")])
def test_gpu_hours_estimate_shows_the_number_of_runs(runs: int, words: str) -> None:
    spec = job_spec(Path("/recipe"), case_id="x", gpu_hours=2.5)
    assert estimate_hours(spec, runs) == (words, 2.5 * runs)


def test_launch_without_any_fitting_configuration_reports_the_reasons() -> None:
    planner, _ = plan([GPUS], {"sinfo": SINFO})
    planner.catalog = catalog.load(resolve({}, Path()))
    selected = [key for key in planner.catalog.baselines if key.gpu == "gb200"][:2]
    with pytest.raises(LaunchError) as raised:
        planner.plan(selected)
    assert "none of the 2 selected configurations fits" in str(raised.value)
    assert "\n  2 configurations: " in str(raised.value)
