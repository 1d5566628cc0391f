"""The meaning of Slurm's states, reasons and exit codes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pytest_llmbench.core.job_records import Blame, JobStatus, Phase
from pytest_llmbench.core.log_records import EndingCode
from pytest_llmbench.launch.schedulers.job_states import find_blame, format_exit
from pytest_llmbench.launch.schedulers.slurm.client import (
    explain_end,
    explain_stuck,
    find_phase,
)

STARTED = datetime(2026, 1, 2, tzinfo=UTC)


def ended(
    state: str, exit_code: str = "0:0", derived: str = "0:0", cancelled_by: str = ""
) -> JobStatus:
    return JobStatus(
        Phase.ENDED,
        state,
        exit_code=exit_code,
        derived_exit_code=derived,
        started=STARTED,
        cancelled_by=cancelled_by,
    )


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        *(
            (state, Phase.WAITING)
            for state in [
                "PENDING",
                "REQUEUED",
                "REQUEUE_HOLD",
                "REQUEUE_FED",
                "SPECIAL_EXIT",
                "PREEMPTED",
            ]
        ),
        *(
            (state, Phase.RUNNING)
            for state in [
                "RUNNING",
                "CONFIGURING",
                "COMPLETING",
                "SUSPENDED",
                "STOPPED",
                "STAGE_OUT",
            ]
        ),
        *(
            (state, Phase.ENDED)
            for state in ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"]
        ),
        *((state, Phase.ENDED) for state in ["NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"]),
        *(
            (state, Phase.UNKNOWN)
            for state in ("", "EXPEDITING", "completed", "COMPLETED ", "CANCELLED by 0")
        ),
    ],
)
def test_each_slurm_state_has_a_phase(state: str, phase: Phase) -> None:
    assert find_phase(state) is phase


@pytest.mark.parametrize(
    ("status", "blame", "words"),
    [
        (ended("COMPLETED"), Blame.NONE, ""),
        (
            ended("COMPLETED", derived="7:0"),
            Blame.RUN,
            "a step of it failed with exit code 7",
        ),
        (ended("COMPLETED", "1:0"), Blame.RUN, "yet with exit code 1"),
        (ended("FAILED", "1:0"), Blame.RUN, "FAILED: exit code 1"),
        (ended("FAILED", "0:11"), Blame.RUN, "signal 11 (SIGSEGV)"),
        (ended("FAILED", "0:0"), Blame.RUN, "no exit code"),
        (ended("TIMEOUT"), Blame.RUN, "time limit"),
        (ended("OUT_OF_MEMORY", "0:125"), Blame.RUN, "host memory"),
        (ended("DEADLINE"), Blame.RUN, "deadline"),
        (ended("NODE_FAIL"), Blame.INFRASTRUCTURE, "a node failed"),
        (ended("BOOT_FAIL"), Blame.INFRASTRUCTURE, "did not start"),
        (ended("PREEMPTED"), Blame.INFRASTRUCTURE, "took the nodes"),
        (
            ended("CANCELLED", cancelled_by="1000"),
            Blame.CANCELLED,
            "by the user with uid 1000",
        ),
        (ended("CANCELLED"), Blame.CANCELLED, "by an unknown user"),
        (ended("SOMETHING_NEW"), Blame.RUN, "not a success"),
        (JobStatus(Phase.UNKNOWN, ""), Blame.RUN, "no record"),
        (JobStatus(Phase.UNKNOWN, "COMPLETED"), Blame.RUN, "no record"),
        (JobStatus(Phase.RUNNING, "COMPLETED"), Blame.RUN, "has not ended"),
    ],
    ids=lambda value: (
        f"{value.phase}-{value.state}-{value.derived_exit_code}"
        if isinstance(value, JobStatus)
        else ""
    ),
)
def test_final_slurm_state_decides_if_the_run_or_the_infrastructure_is_blamed(
    status: JobStatus, blame: Blame, words: str
) -> None:
    end = explain_end(status)
    assert end.blame is blame
    assert words in end.text
    assert bool(end.text) is (blame is not Blame.NONE)


def test_failed_nodes_are_named() -> None:
    assert (
        "(n1, n2)"
        in explain_end(JobStatus(Phase.ENDED, "NODE_FAIL", nodes=("n1", "n2"))).text
    )


@pytest.mark.parametrize(
    "status",
    [
        JobStatus(Phase.ENDED, "FAILED", exit_code="1:0", seen_by="sacct"),
        JobStatus(
            Phase.ENDED, "FAILED", "BadConstraints", exit_code="0:1", seen_by="squeue"
        ),
    ],
)
def test_job_with_refused_resources_is_explained_as_never_run(
    status: JobStatus,
) -> None:
    assert (
        explain_end(status).text
        == "FAILED: it never ran: Slurm refused the requested resources"
    )


@pytest.mark.parametrize(
    "reason",
    [
        *(
            "DependencyNeverSatisfied",
            "PartitionNodeLimit",
            "PartitionTimeLimit",
            "BadConstraints",
            "InvalidAccount",
        ),
        *("AccountNotAllowed", "InvalidQOS", "QOSNotAllowed", "JobHoldMaxRequeue"),
        *(
            "AssocMaxNodePerJobLimit",
            "AssocMaxWallDurationPerJobLimit",
            "AssocMaxGRESPerJob",
            "QOSMaxGRESPerNode",
        ),
        *(
            "QOSMaxGRESMinutesPerJob",
            "QOSMaxWallDurationPerJobLimit",
            "QOSMinGRES",
            "QOSMinCpuNotSatisfied",
        ),
        *(
            "AssocGrpGRESMinutes",
            "AssocGrpCPUMinutesLimit",
            "QOSGrpBillingMinutes",
            "QOSTimeLimit",
        ),
        *(
            "ReservationDeleted",
            "RequiresReservation",
            "RequeueExitHold",
            "launch_failed_requeued_held",
        ),
    ],
)
def test_permanent_pending_reasons_are_stuck(reason: str) -> None:
    actual = explain_stuck(JobStatus(Phase.WAITING, "PENDING", reason))
    assert actual.startswith(f"{reason}: ")
    assert not explain_stuck(JobStatus(Phase.RUNNING, "RUNNING", reason))


@pytest.mark.parametrize(
    "reason",
    [
        *(
            "",
            "Resources",
            "Priority",
            "JobHeldUser",
            "JobHeldAdmin",
            "Dependency",
            "BeginTime",
            "Reservation",
            "Licenses",
            "Cleaning",
            "Prolog",
        ),
        *(
            "ReqNodeNotAvail, UnavailableNodes:n1",
            "NodeDown",
            "PartitionDown",
            "PartitionInactive",
            "None",
        ),
        *(
            "AssocGrpGRES",
            "AssocGrpNodeLimit",
            "AssocGrpGRESRunMinutes",
            "AssocGrpCPURunMinutesLimit",
            "QOSGrpGRES",
        ),
        *(
            "AssocMaxJobsLimit",
            "QOSMaxJobsPerUserLimit",
            "QOSMaxGRESPerUser",
            "MaxGRESPerAccount",
            "QOSGrpWallLimit",
        ),
    ],
)
def test_temporary_pending_reasons_are_not_stuck(reason: str) -> None:
    assert not explain_stuck(JobStatus(Phase.WAITING, "PENDING", reason))


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"])
def test_job_in_a_held_state_is_reported_as_stuck(state: str) -> None:
    assert explain_stuck(JobStatus(Phase.WAITING, state)).startswith(f"{state}: ")


def test_each_log_ending_is_blamed_on_the_run_or_the_infrastructure() -> None:
    blames = {code: find_blame(code) for code in EndingCode}
    infrastructure = {
        code for code, blame in blames.items() if blame is Blame.INFRASTRUCTURE
    }
    assert infrastructure == {
        "node-failure",
        "preempted",
        "gpu-failure",
        "nccl-timeout",
    }
    assert {code for code, blame in blames.items() if blame is Blame.CANCELLED} == {
        "cancelled",
        "step-cancelled",
    }
    assert Blame.NONE not in blames.values()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("7:0", "exit code 7"),
        ("0:9", "signal 9 (SIGKILL)"),
        ("0:125", "out of memory"),
        ("0:99", "signal 99"),
        ("x", "'x'"),
    ],
)
def test_exit_codes_are_formatted(code: str, words: str) -> None:
    assert format_exit(code).endswith(words)
