"""Job ends that a real Slurm reports, as far as one machine can cause them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from support.clusters import Cluster

from pytest_llmbench.core.commands import run
from pytest_llmbench.core.job_records import Blame, JobStatus, Phase
from pytest_llmbench.launch.schedulers.slurm.client import (
    Partition,
    Slurm,
    explain_end,
    explain_stuck,
)
from pytest_llmbench.launch.schedulers.submission import SchedulerAway


def asking(cluster: Cluster) -> Slurm:
    return Slurm(run, {**os.environ, **cluster.environment})


def until(
    cluster: Cluster,
    job_id: str,
    enough: Callable[[JobStatus], object],
    since: datetime | None = None,
) -> JobStatus:
    """Poll a job until its status meets a condition."""
    slurm, since, end = (
        asking(cluster),
        since or datetime.now(UTC),
        time.monotonic() + 180,
    )
    while not enough(status := slurm.poll({job_id: since})[job_id]):
        assert time.monotonic() < end, status
        time.sleep(0.05)
    return status


def ended(cluster: Cluster, job_id: str) -> JobStatus:
    return until(cluster, job_id, lambda status: status.phase is Phase.ENDED)


def running(cluster: Cluster, job_id: str) -> JobStatus:
    return until(cluster, job_id, lambda status: status.phase is Phase.RUNNING)


ENDS = {
    "true": ("COMPLETED", Blame.NONE, ""),
    "exit 1": ("FAILED", Blame.RUN, "exit code 1"),
    "kill -SEGV $$": ("FAILED", Blame.RUN, "SIGSEGV"),
    "srun -n1 sh -c 'exit 7'; exit 0": (
        "COMPLETED",
        Blame.RUN,
        "a step of it failed with exit code 7",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", ENDS)
@pytest.mark.parametrize("cluster_name", ["cluster", "cluster_without_database"])
def test_each_way_in_which_a_slurm_job_ends_is_explained(
    request: pytest.FixtureRequest, cluster_name: str, script: str
) -> None:
    cluster: Cluster = request.getfixturevalue(cluster_name)
    status = ended(cluster, cluster.submit(script, "-N2"))
    state, blame, words = ENDS[script]
    assert (status.state, explain_end(status).blame, status.nodes) == (
        state,
        blame,
        ("n1", "n2"),
    )
    assert words in explain_end(status).text
    assert status.submitted
    assert abs(datetime.now(UTC) - status.submitted) < timedelta(minutes=1)


@pytest.mark.slow
def test_time_limit_ends_a_job(cluster: Cluster) -> None:
    job = cluster.submit("sleep 600")
    cluster.wait(job, "RUNNING")
    cluster.end_in_time(job)
    status = ended(cluster, job)
    assert (status.state, explain_end(status).blame) == ("TIMEOUT", Blame.RUN)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_cancelled_slurm_job_ends_and_names_the_cancelling_user(
    cluster: Cluster, state: str
) -> None:
    job = cluster.submit("sleep 600", *(["--hold"] if state == "PENDING" else []))
    cluster.wait(job, state)
    assert asking(cluster).cancel([job, "999999"]) == ""
    status = until(cluster, job, lambda status: status.cancelled_by)
    assert (status.phase, status.state, status.cancelled_by) == (
        Phase.ENDED,
        "CANCELLED",
        str(os.getuid()),
    )
    assert asking(cluster).cancel([job]) == ""
    assert asking(cluster).cancel(["999999"]) == ""


@pytest.fixture
def failing_node(cluster: Cluster) -> Iterator[str]:
    yield "n3"
    end = time.monotonic() + 180
    while (
        cluster.run(
            "sinfo", "--noheader", "--nodes=n3", "--partition=batch", "--format=%T"
        )
        != "idle"
    ):
        assert time.monotonic() < end
        cluster.ask(
            "scontrol", "update", "NodeName=n3", "State=RESUME"
        )  # refused if it is back already
        time.sleep(0.1)


@pytest.mark.slow
def test_node_failure_blames_infrastructure(
    cluster: Cluster, failing_node: str
) -> None:
    job = cluster.submit("sleep 600", "--no-requeue", f"--nodelist={failing_node}")
    running(cluster, job)
    cluster.run(
        "scontrol", "update", f"NodeName={failing_node}", "State=DOWN", "Reason=test"
    )
    end = explain_end(ended(cluster, job))
    assert (end.blame, end.text) == (
        Blame.INFRASTRUCTURE,
        "NODE_FAIL: a node failed under it (n3)",
    )


@pytest.mark.slow
def test_job_returned_to_the_queue_has_not_ended(
    cluster: Cluster, failing_node: str
) -> None:
    """Accounting reports only NODE_FAIL at first, for a while."""
    since = datetime.now(UTC)
    job = cluster.submit("sleep 600", f"--nodelist={failing_node}")
    running(cluster, job)
    cluster.run(
        "scontrol", "update", f"NodeName={failing_node}", "State=DOWN", "Reason=test"
    )
    assert (
        until(
            cluster,
            job,
            lambda status: status.restarts or status.phase is Phase.ENDED,
            since,
        ).restarts
        == 1
    )
    assert asking(cluster).cancel([job]) == ""
    assert ended(cluster, job).state == "CANCELLED"


@pytest.mark.slow
def test_requeued_job_counts_its_restarts(cluster: Cluster) -> None:
    since = datetime.now(UTC)
    job = cluster.submit("sleep $((100 * (1 - ${SLURM_RESTART_COUNT:-0})))")
    first = running(cluster, job)
    cluster.run("scontrol", "requeue", job)
    waiting = until(cluster, job, lambda status: status.phase is Phase.WAITING)
    assert (waiting.restarts, waiting.seen_by, explain_stuck(waiting)) == (
        1,
        "squeue",
        "",
    )
    status = until(cluster, job, lambda status: status.phase is Phase.ENDED, since)
    assert (status.state, status.restarts, status.submitted) == (
        "COMPLETED",
        1,
        first.submitted,
    )
    assert len(status.earlier_seconds) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-N5"], "PartitionNodeLimit"),
        (["--partition=short", "--time=20"], "PartitionTimeLimit"),
    ],
)
def test_slurm_job_beyond_a_partition_limit_is_recognised_as_stuck(
    cluster: Cluster, options: list[str], reason: str
) -> None:
    job = cluster.submit("true", *options)
    status = until(cluster, job, explain_stuck)
    assert (status.phase, status.state, status.reason) == (
        Phase.WAITING,
        "PENDING",
        reason,
    )
    asking(cluster).cancel([job])


@pytest.mark.slow
def test_unsatisfiable_dependency_is_stuck(cluster: Cluster) -> None:
    failed = cluster.submit("exit 1")
    job = cluster.submit("true", f"--dependency=afterok:{failed}")
    status = until(cluster, job, explain_stuck)
    assert status.reason == "DependencyNeverSatisfied"
    asking(cluster).cancel([job])


@pytest.mark.slow
def test_job_waiting_for_resources_is_not_stuck(cluster: Cluster) -> None:
    jobs = [cluster.submit("sleep 600", "-N4", "--exclusive") for _ in range(2)]
    status = until(
        cluster, jobs[1], lambda status: status.reason in ("Resources", "Priority")
    )
    assert (status.phase, explain_stuck(status)) == (Phase.WAITING, "")
    assert asking(cluster).cancel(jobs) == ""
    assert [ended(cluster, job).state for job in jobs] == ["CANCELLED"] * 2


@pytest.mark.slow
def test_refused_submission_is_recorded_as_failed(
    cluster: Cluster,
) -> None:
    assert (
        cluster.ask(
            "sbatch", "--gres=gpu:9", "--comment=llmb:refused", "--wrap=true"
        ).returncode
        == 1
    )
    job = asking(cluster).find(["refused"], datetime.now(UTC))["refused"]
    assert "it never ran" in explain_end(ended(cluster, job)).text


@pytest.mark.slow
def test_controller_that_does_not_answer_is_reported_as_unreachable(
    cluster: Cluster,
) -> None:
    since = datetime.now(UTC)
    job = cluster.submit("sleep 2")
    running(cluster, job)
    impatient = Slurm(run, {**os.environ, **cluster.environment}, timeout=1.0)
    cluster.stop_controller()
    try:
        with pytest.raises(SchedulerAway, match="squeue does not answer"):
            impatient.poll({job: since})
        with pytest.raises(SchedulerAway):
            impatient.find(["x"], since)
        assert "did not end within 1 s" in impatient.cancel([job])
    finally:
        cluster.start_controller()
    assert (
        explain_end(
            until(cluster, job, lambda status: status.phase is Phase.ENDED, since)
        ).blame
        is Blame.NONE
    )


@pytest.mark.slow
def test_slurm_job_id_is_found_by_the_token_in_the_job_comment(
    cluster: Cluster,
) -> None:
    since = datetime.now(UTC)
    job = cluster.submit("true", "--comment=llmb:a1b2")
    other = cluster.submit("true", "--comment=llmb:a1b2c3")
    assert asking(cluster).find(["a1b2", "zzz"], since) == {"a1b2": job}
    ended(cluster, job)
    assert asking(cluster).find(["a1b2", "a1b2c3"], since) == {
        "a1b2": job,
        "a1b2c3": other,
    }
    ended(cluster, other)


@pytest.mark.slow
def test_accounting_finds_a_job_forgotten_by_the_controller(
    cluster: Cluster,
) -> None:
    since = datetime.now(UTC)
    job = cluster.submit("true", "--comment=llmb:forgotten")
    ended(cluster, job)

    def forgetful(arguments, *, timeout, environment=None):  # type: ignore[no-untyped-def]
        done = run(arguments, timeout=timeout, environment=environment)
        return type(done)(0, "", "") if arguments[0] == "squeue" else done

    slurm = Slurm(forgetful, {**os.environ, **cluster.environment})
    end = time.monotonic() + 180
    while (element := slurm.find(["forgotten"], since)) != {"forgotten": job}:
        assert time.monotonic() < end, element
        time.sleep(0.1)
    assert slurm.poll({job: since})[job].seen_by == "sacct"


@pytest.mark.slow
def test_job_id_that_slurm_does_not_know_has_unknown_state(cluster: Cluster) -> None:
    now = datetime.now(UTC)
    statuses = asking(cluster).poll({"888888": now, "888889": now})
    assert statuses == dict.fromkeys(statuses, JobStatus(Phase.UNKNOWN, ""))
    assert asking(cluster).poll({"888888": now})["888888"].phase is Phase.UNKNOWN


@pytest.mark.slow
def test_earlier_slurm_job_with_a_reused_job_id_is_ignored(cluster: Cluster) -> None:
    job = cluster.submit("true")
    ended(cluster, job)
    later = datetime.now(UTC) + timedelta(days=1)
    assert asking(cluster).poll({job: later})[job] == JobStatus(Phase.UNKNOWN, "")


@pytest.mark.slow
def test_submission_time_is_correct_in_any_time_zone_of_the_caller(
    cluster: Cluster,
) -> None:
    environment = {
        **os.environ,
        **cluster.environment,
        "TZ": "Asia/Tokyo",
        "SLURM_TIME_FORMAT": "%d",
    }
    since = datetime.now(UTC)
    job = cluster.submit("true")
    ended(cluster, job)
    status = Slurm(run, environment).poll({job: since})[job]
    assert status.submitted
    assert abs(status.submitted - since) < timedelta(minutes=1)


@pytest.mark.slow
def test_slurm_job_comment_of_200_characters_is_read_untruncated(
    cluster: Cluster,
) -> None:
    token = "f" * 200
    job = cluster.submit("true", f"--comment=llmb:{token}")
    assert asking(cluster).find([token], datetime.now(UTC)) == {token: job}
    ended(cluster, job)


@pytest.mark.slow
def test_slurm_partitions_and_accounts_are_listed(
    cluster: Cluster, cluster_without_database: Cluster
) -> None:
    partitions = (
        Partition("batch", 4, 8, None, True, is_default=True, gpu_nodes=(("", 8, 4),)),
        Partition("short", 1, 8, 600.0, True, gpu_nodes=(("", 8, 1),)),
    )
    assert asking(cluster).list_partitions() == partitions
    assert "research" in (asking(cluster).list_accounts() or ())
    assert asking(cluster).find_default_account() == "research"
    assert asking(cluster_without_database).list_partitions() == partitions
    assert asking(cluster_without_database).list_accounts() is None
    assert asking(cluster_without_database).find_default_account() == ""
