"""Planning a shared allocation: its time limit, and the reasons against it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace
from support.fake_schedulers import TOOLS
from support.job_specs import job_spec
from support.planned_jobs import FACTS

from pytest_llmbench.core.job_records import Purpose
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.schedulers.registry import Schedulers
from pytest_llmbench.launch.schedulers.shared_allocation import (
    AllocationPlan,
    place_run,
)
from pytest_llmbench.launch.schedulers.slurm.allocation import plan_allocation
from pytest_llmbench.launch.schedulers.slurm.client import Partition
from pytest_llmbench.launch.schedulers.submission import SchedulerAway

if TYPE_CHECKING:
    from pytest_llmbench.launch.schedulers.slurm.client import Slurm

SBATCH = ("sbatch", "-p", "batch", "-N", "2", "./launch.sh", "--fast")


@dataclass
class FakeSlurm:
    accounts: bool = True
    limit: float | None = None
    away: bool = False

    def keeps_accounts(self) -> bool:
        return self.accounts

    def list_partitions(self) -> tuple[Partition, ...]:
        if self.away:
            raise SchedulerAway("sinfo does not answer")
        return (
            Partition("other", 9, 8, 60.0, True, is_default=True),
            Partition("batch", 9, 8, self.limit, True),
        )


@pytest.fixture
def job(tmp_path: Path) -> PlannedJob:
    (tmp_path / "launch.sh").write_text("#!/bin/bash\n#SBATCH --exclusive\nsrun true\n")
    spec = job_spec(
        tmp_path,
        via="sbatch",
        command=SBATCH,
        purpose=Purpose.COMPARE_VARIANTS,
        variant="a",
        nodes=2,
        gpus=16,
        gpus_per_node=8,
        gpu_hours=16 * 1200 / 3600,  # 20 minutes
    )
    return PlannedJob(spec, FACTS)


def change(job: PlannedJob, **changes: Any) -> PlannedJob:
    return replace(job, spec=replace(job.spec, **{"variant": "b", **changes}))


def plan(*jobs: PlannedJob, slurm: FakeSlurm | None = None) -> AllocationPlan:
    return plan_allocation(jobs, 10, cast("Slurm", slurm or FakeSlurm()))


def test_allocation_time_limit_covers_the_largest_number_of_runs(
    job: PlannedJob,
) -> None:
    """Each run gets 1.5 times its step time, and ten minutes."""
    planned = plan(job, change(job, environment=(*job.spec.environment, ("A", "1"))))
    allocation = planned.size(10)
    assert allocation is not None
    options = ("--no-requeue", "--job-name=launch.sh", "--time=6:40:00")
    assert allocation.command == (
        "sbatch",
        "-p",
        "batch",
        "-N",
        "2",
        *options,
        "./launch.sh",
    )
    assert (allocation.purpose, allocation.variant) == (Purpose.ALLOCATION, "")
    assert allocation.gpu_hours == pytest.approx(10 * job.spec.gpu_hours)
    assert planned.describe(10, 2) == (
        "all runs share one allocation: 2 nodes for at most 6:40:00, 106.7 GPU-hours; 10 runs, 2 of them to warm up"
    )


def test_run_in_an_allocation_executes_the_recipes_script(job: PlannedJob) -> None:
    run = place_run(job.spec, 2, warm_up=True)
    assert (run.via, run.command, run.allocation, run.warm_up) == (
        "allocation",
        ("./launch.sh", "--fast"),
        2,
        True,
    )


def test_allocation_time_limit_is_the_sum_of_its_runs_time_limits(
    job: PlannedJob,
) -> None:
    limited = change(job, command=("sbatch", "--time=30", *SBATCH[1:]))
    allocation = plan(limited).size(4)
    assert allocation is not None
    assert "--time=2:00:00" in allocation.command
    unknown = plan(change(limited, gpu_hours=0.0)).size(4)
    assert unknown is not None
    assert "--time=2:00:00" in unknown.command


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"environment": (("SBATCH_QOS", "high"),)}, "b has a different SBATCH_QOS"),
        (
            {"environment": (("TOKEN", "hf_12345"),), "secrets": ("TOKEN",)},
            "b has a different secret",
        ),
        (
            {
                "environment": (
                    ("TOKEN", "x"),
                    ("URL", "http://x:hf_1@h"),
                    ("T", "hf_1"),
                ),
                "secrets": ("T",),
            },
            "b has a different secret",
        ),
        (
            {"command": ("sbatch", "-p", "batch", "-N", "4", "./launch.sh")},
            "b passes other options to sbatch",
        ),
        (
            {
                "command": (*SBATCH, "hf_12345"),
                "environment": (("T", "hf_12345"),),
                "secrets": ("T",),
            },
            "contains a secret",
        ),
        ({"command": ("sbatch", "--wrap=srun true")}, "its command names no script"),
    ],
)
def test_variants_that_cannot_share_give_the_reason(
    job: PlannedJob, changes: dict[str, Any], reason: str
) -> None:
    planned = plan(job, change(job, **changes))
    assert planned.spec is None
    assert reason in planned.reason
    assert planned.describe(8, 2).startswith(
        "each run is a separate job, on the nodes of the first: "
    )


@pytest.mark.parametrize("option", ["--export=NONE", "-D"])
def test_options_that_runs_cannot_share_are_found(job: PlannedJob, option: str) -> None:
    name = option.partition("=")[0]
    assert (
        plan(change(job, command=("sbatch", option, *SBATCH[1:]))).reason
        == f"its jobs have {name}"
    )
    (job.spec.directory / "launch.sh").write_text(f"#!/bin/bash\n#SBATCH {option}\n")
    assert plan(job).reason == f"its jobs have {name}"


def test_other_directives_in_the_script_prevent_sharing(
    job: PlannedJob, tmp_path: Path
) -> None:
    other_path = tmp_path / "other"
    other_path.mkdir()
    (other_path / "launch.sh").write_text("#!/bin/bash\n#SBATCH --ntasks-per-node=8\n")
    assert (
        plan(job, change(job, directory=other_path)).reason
        == "b passes other options to sbatch"
    )


@pytest.mark.parametrize(
    ("slurm", "reason"),
    [
        (
            FakeSlurm(limit=6 * 3600.0),
            "6:40:00 for all runs exceed the limit 6:00:00 of partition batch",
        ),
        (
            FakeSlurm(accounts=False),
            "Slurm has no accounting, which records the steps of each run",
        ),
        (FakeSlurm(away=True), "sinfo does not answer"),
        (FakeSlurm(limit=7 * 3600.0), ""),
    ],
)
def test_allocation_beyond_slurm_limits_is_not_planned(
    job: PlannedJob, slurm: FakeSlurm, reason: str
) -> None:
    assert plan(job, slurm=slurm).reason == reason


def test_only_jobs_that_sbatch_starts_directly_share_an_allocation(
    job: PlannedJob,
) -> None:
    """Local jobs have no allocation and no reason."""
    local = change(job, via="local", command=("./launch.sh",))
    assert (
        plan(change(job, via="llmb-run", command=("llmb-run",))).reason
        == "its launcher submits jobs itself"
    )
    assert (
        Schedulers(TOOLS).find(local.spec).plan_allocation([local, local], 8)
        == AllocationPlan()
    )
    assert not AllocationPlan().describe(8, 2)


def test_runs_of_unknown_length_get_no_allocation(job: PlannedJob) -> None:
    assert plan(change(job, gpu_hours=0.0)).reason == "the duration of a run is unknown"
