"""Looking up the scheduler of a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.fake_schedulers import TOOLS
from support.job_specs import job, job_spec

from pytest_llmbench.core.commands import CommandOutput
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import LAUNCHERS, SCHEDULERS
from pytest_llmbench.launch.schedulers.registry import (
    HERE,
    Schedulers,
    find_via,
    list_schedulers,
    load_scheduler,
    name_clusters,
    name_jobs_inquiries,
)
from pytest_llmbench.launch.schedulers.submission import Tools

FOLDER = Path("/scratch")


def test_every_launcher_has_a_scheduler() -> None:
    """Including runs in an allocation, which no command names."""
    assert {*LAUNCHERS, "allocation"} == SCHEDULERS.keys()
    names = {via: load_scheduler(via).name for via in SCHEDULERS}
    assert names == dict.fromkeys(SCHEDULERS, "Slurm") | {"local": "this machine"}
    assert load_scheduler("local").at_once == 1


def test_jobs_are_grouped_by_scheduler() -> None:
    jobs = [
        job(FOLDER, number, spec=job_spec(FOLDER, via=via))
        for number, via in enumerate(SCHEDULERS)
    ]
    groups = Schedulers(TOOLS).group(jobs)
    assert sorted(len(group) for group in groups.values()) == [1, 4]


def test_unknown_launcher_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        LaunchError,
        match=r"grok1.*no launcher 'locl' \(did you mean 'local'\?\); expected one of sbatch,",
    ):
        Schedulers(TOOLS).find(job_spec(FOLDER, via="locl"))


@pytest.mark.parametrize(
    ("program", "via"), [("sbatch", "sbatch"), ("bash", HERE), ("./sbatch.sh", HERE)]
)
def test_launcher_of_a_custom_command_follows_from_its_program(
    program: str, via: str
) -> None:
    assert find_via(program) == via


def test_node_remark_states_the_slurm_command_as_its_source() -> None:
    def run(arguments: Sequence[str], **_: Any) -> CommandOutput:
        listed = "n1|root|Unknown|bad nvlink\n" if arguments[0] == "sinfo" else ""
        return CommandOutput(0, listed, "")

    remarks = Schedulers(Tools(run, {})).list_node_remarks(["n1"])
    assert remarks == {"n1": "sinfo -R: n1: bad nvlink (root, Unknown)"}
    assert (name_clusters(), name_jobs_inquiries()) == ("Slurm", "squeue --me")


def test_only_the_local_scheduler_runs_jobs_on_this_machine() -> None:
    assert [scheduler.is_local for scheduler in list_schedulers()] == [False, True]
