"""Parsing Slurm's output, recorded from 22.05 (out of memory and preemption edited
manually)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from pytest_llmbench.core.commands import CommandOutput
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Blame, JobStatus, Phase
from pytest_llmbench.launch.schedulers.slurm.client import (
    Partition,
    Slurm,
    count_gpus,
    expand_hosts,
    explain_end,
    parse_duration,
)
from pytest_llmbench.launch.schedulers.submission import SchedulerAway

SUBMITTED = datetime(2026, 11, 21, 5, 54, 27, tzinfo=UTC)

SACCT = """\
1|COMPLETED|0:0|0:0|0|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:54:28|n[1-2]
2|FAILED|3:0|0:0|0|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:54:28|n1
3|FAILED|0:11|0:0|0|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:54:28|n1
4|COMPLETED|0:0|7:0|0|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:54:28|n1
5|REQUEUED|0:0|0:0|204|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:57:52|n1
5|RUNNING|0:0|0:0|7|2026-11-21T05:57:52|2026-11-21T05:57:58|Unknown|n1
7|PENDING|0:0|0:0|0|2026-11-21T05:54:27|Unknown|Unknown|None assigned
8|CANCELLED by 1000|0:0|0:0|0|2026-11-21T05:54:27|Unknown|2026-11-21T05:57:51|None assigned
9|FAILED|1:0|0:0|0|2026-11-21T05:54:27|2026-11-21T05:54:27|2026-11-21T05:54:27|None assigned
12|OUT_OF_MEMORY|0:125|0:125|61|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:55:29|n[1-2]
13|NODE_FAIL|0:0|0:0|2|2026-11-21T05:57:58|2026-11-21T05:57:59|2026-11-21T05:58:01|n3
14|PREEMPTED|0:0|0:0|2|2026-11-21T05:57:58|2026-11-21T05:57:59|2026-11-21T05:58:01|n3
15|TIMEOUT|0:0|0:0|60|2026-11-21T05:57:58|2026-11-21T05:57:59|2026-11-21T05:58:59|n3
16|REQUEUED|0:0|0:0|60|2026-11-21T05:57:58|2026-11-21T05:57:59|2026-11-21T05:58:59|n3
17|RUNNING|0:0|0:0|60|2026-11-21T05:57:58|2026-11-21T05:57:59|Unknown|n3
18|COMPLETED|0:0|0:0|60|2025-03-01T00:00:00|2025-03-01T00:00:00|2025-03-01T00:01:00|n3
19|COMPLETED||0:0|60|2026-11-21T05:57:58|2026-11-21T05:57:59|2026-11-21T05:58:59|n3
20|COMPLETED|0:0|0:0
"""

QUEUE = {
    "pending": "7|PENDING|0|0|0:00|2026-11-21T05:54:27|N/A|N/A||0|DependencyNeverSatisfied|",
    "running": "5|RUNNING|0|0|0:07|2026-11-21T05:57:52|2026-11-21T05:57:58|2026-11-21T06:57:58|n1|1|None|",
    "again": "13|PENDING|0|0|0:00|2026-11-21T05:58:01|2026-11-21T05:58:07|2026-11-21T06:58:07||1|BeginTime|",
    "failed step": "4|COMPLETED|0|1792|0:00|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:54:28|n1|0|None|",
    "signal": "3|FAILED|11|0|0:00|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:54:28|n1|0|JobLaunchFailure|",
    "preempted": "14|PREEMPTED|0|0|0:02|2026-11-21T05:57:58|2026-11-21T05:57:59|2026-11-21T05:58:01|n3|0|None|",
    "cancelled": "8|CANCELLED|0|0|0:00|2026-11-21T05:54:27|2026-11-21T05:54:27|2026-11-21T05:57:51||0|None|",
    "unreadable": "13|PENDING|what",
    "completing": "1|COMPLETING|0|0|0:00|2026-11-21T05:54:27|2026-11-21T05:54:28|2026-11-21T05:54:28|n[1-2]|0|None|",
}

UNREACHABLE = CommandOutput(
    1,
    "",
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
)
NO_DATABASE = CommandOutput(
    1, "", "sacct: error: Problem talking to the database: Connection refused\n"
)
NO_ACCOUNTING = CommandOutput(1, "", "Slurm accounting storage is disabled\n")
UNKNOWN_JOB = CommandOutput(1, "", "slurm_load_jobs error: Invalid job id specified\n")


class Fake:
    """A Slurm with a given output by program, which records its commands."""

    def __init__(self, **answers: str | CommandOutput) -> None:
        self.answers = {
            name: answer
            if isinstance(answer, CommandOutput)
            else CommandOutput(0, answer, "")
            for name, answer in answers.items()
        }
        self.queries: list[tuple[str, ...]] = []
        self.environment: Mapping[str, str] = {}

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        assert timeout == 30
        self.queries.append(tuple(arguments))
        self.environment = environment or {}
        return self.answers.get(arguments[0], CommandOutput(0, "", ""))

    def status(self, job_id: str) -> JobStatus:
        return Slurm(self, {}).poll({job_id: SUBMITTED})[job_id]


@pytest.mark.parametrize(
    ("job_id", "queue", "phase", "state", "seen_by"),
    [
        ("1", "", Phase.ENDED, "COMPLETED", "sacct"),
        ("1", "completing", Phase.RUNNING, "COMPLETING", "squeue"),
        ("5", "", Phase.UNKNOWN, "RUNNING", "sacct"),
        ("5", "running", Phase.RUNNING, "RUNNING", "squeue"),
        ("7", "pending", Phase.WAITING, "PENDING", "squeue"),
        ("8", "", Phase.ENDED, "CANCELLED", "sacct"),
        ("12", "", Phase.ENDED, "OUT_OF_MEMORY", "sacct"),
        ("13", "again", Phase.WAITING, "PENDING", "squeue"),
        ("13", "unreadable", Phase.UNKNOWN, "", ""),
        ("14", "preempted", Phase.ENDED, "PREEMPTED", "squeue"),
        ("16", "", Phase.UNKNOWN, "REQUEUED", "sacct"),
        ("17", "", Phase.UNKNOWN, "RUNNING", "sacct"),
        ("18", "", Phase.UNKNOWN, "", ""),
        ("19", "", Phase.UNKNOWN, "", ""),
        ("21", "", Phase.UNKNOWN, "", ""),
    ],
)
def test_slurm_job_state_is_mapped_to_its_phase(
    job_id: str, queue: str, phase: Phase, state: str, seen_by: str
) -> None:
    """slurmctld decides; records of an earlier job with that id and unreadable records
    are ignored."""
    status = Fake(sacct=SACCT, squeue=QUEUE.get(queue, "")).status(job_id)
    assert (status.phase, status.state, status.seen_by) == (phase, state, seen_by)


@pytest.mark.parametrize(("job_id", "queue"), [("4", "failed step"), ("3", "signal")])
def test_sacct_and_squeue_give_the_same_exit_codes(job_id: str, queue: str) -> None:
    by_sacct = Fake(sacct=SACCT).status(job_id)
    alone = Fake(sacct=NO_ACCOUNTING, squeue=QUEUE[queue]).status(job_id)
    assert (alone.exit_code, alone.derived_exit_code) == (
        by_sacct.exit_code,
        by_sacct.derived_exit_code,
    )
    assert explain_end(alone).blame is Blame.RUN


def test_failed_step_exit_code_comes_from_sacct_if_squeue_shows_none() -> None:
    queue = QUEUE["failed step"].replace("1792", "0")
    assert Fake(sacct=SACCT, squeue=queue).status("4").derived_exit_code == "7:0"


def test_requeued_job_keeps_its_submission_time() -> None:
    status = Fake(sacct=SACCT, squeue=QUEUE["running"]).status("5")
    assert (status.submitted, status.restarts) == (SUBMITTED, 1)
    assert status.started == datetime(2026, 11, 21, 5, 57, 58, tzinfo=UTC)
    assert status.ended is None


def test_requeued_job_status_is_its_latest_start_whatever_the_sacct_row_order() -> None:
    for rows in (SACCT.splitlines(), SACCT.splitlines()[::-1]):
        status = Fake(sacct="\n".join(rows)).status("5")
        assert (status.state, status.restarts, status.submitted) == (
            "RUNNING",
            1,
            SUBMITTED,
        )


@pytest.mark.parametrize(
    ("job_id", "answers", "restarts", "earlier"),
    [
        ("5", {"sacct": SACCT}, 1, (204.0,)),
        ("5", {"sacct": SACCT, "squeue": QUEUE["running"]}, 1, (204.0,)),
        ("5", {"sacct": NO_ACCOUNTING, "squeue": QUEUE["running"]}, 1, ()),
        ("13", {"sacct": SACCT, "squeue": QUEUE["again"]}, 1, (2.0,)),
        ("1", {"sacct": SACCT}, 0, ()),
    ],
    ids=[
        "ended",
        "in-the-queue",
        "without-accounting",
        "waits-again",
        "never-requeued",
    ],
)
def test_requeued_job_keeps_earlier_durations(
    job_id: str,
    answers: Mapping[str, str | CommandOutput],
    restarts: int,
    earlier: tuple[float, ...],
) -> None:
    status = Fake(**answers).status(job_id)
    assert (status.restarts, status.earlier_seconds) == (restarts, earlier)


def test_status_details_are_parsed() -> None:
    status = Fake(sacct=SACCT, squeue=QUEUE["cancelled"]).status("8")
    assert (status.cancelled_by, status.nodes) == ("1000", ())
    assert (
        Fake(sacct=SACCT, squeue=QUEUE["pending"]).status("7").reason
        == "DependencyNeverSatisfied"
    )
    memory = Fake(sacct=SACCT).status("12")
    assert (memory.nodes, memory.elapsed_seconds) == (("n1", "n2"), 61.0)


def test_all_jobs_are_polled_with_two_commands() -> None:
    fake = Fake(sacct=SACCT)
    assert (
        len(Slurm(fake, {}).poll({str(number): SUBMITTED for number in range(500)}))
        == 500
    )
    assert [command[0] for command in fake.queries] == ["sacct", "squeue"]
    assert "--starttime=2026-11-21T04:54:27" in fake.queries[0]


def test_invalid_job_id_is_unknown_without_a_query() -> None:
    fake = Fake(sacct=SACCT)
    assert Slurm(fake, {}).poll({}) == {}
    assert Slurm(fake, {}).poll({"--help": SUBMITTED})["--help"].phase is Phase.UNKNOWN
    assert not fake.queries


def test_squeue_error_about_an_unknown_job_id_is_tolerated() -> None:
    assert Fake(sacct=SACCT, squeue=UNKNOWN_JOB).status("1").state == "COMPLETED"
    assert (
        Fake(sacct=NO_ACCOUNTING, squeue=UNKNOWN_JOB).status("1").phase is Phase.UNKNOWN
    )


@pytest.mark.parametrize(
    "answer",
    [
        UNREACHABLE,
        CommandOutput(124, "", "squeue did not end within 30 s"),
        CommandOutput(1, "", ""),
    ],
)
def test_silent_slurm_controller_is_reported_as_unreachable(
    answer: CommandOutput,
) -> None:
    with pytest.raises(SchedulerAway, match="squeue does not answer"):
        Fake(sacct=SACCT, squeue=answer).status("1")


def test_missing_slurm_program_has_a_remedy() -> None:
    with pytest.raises(SchedulerAway, match="login node"):
        Fake(
            sacct=SACCT,
            squeue=CommandOutput(127, "", "squeue: No such file or directory"),
        ).status("1")


@pytest.mark.parametrize(
    "answer", [NO_DATABASE, CommandOutput(124, "", "sacct did not end within 30 s")]
)
def test_job_status_requires_squeue_if_sacct_does_not_answer(
    answer: CommandOutput,
) -> None:
    assert Fake(sacct=answer, squeue=QUEUE["running"]).status("5").state == "RUNNING"
    with pytest.raises(SchedulerAway, match="sacct does not answer"):
        Fake(sacct=answer, squeue="").status("5")


def test_callers_environment_cannot_change_slurms_output() -> None:
    fake = Fake(sacct=SACCT)
    caller = {
        "SLURM_CONF": "/etc/x",
        "SQUEUE_STATES": "PD",
        "SACCT_FORMAT": "x",
        "SLURM_TIME_FORMAT": "%s",
        "TZ": "Asia/Tokyo",
    }
    Slurm(fake, caller).poll({"1": SUBMITTED})
    assert fake.environment == {"SLURM_CONF": "/etc/x", "TZ": "UTC", "LC_ALL": "C"}


def test_all_jobs_are_cancelled_with_one_command() -> None:
    fake = Fake()
    assert Slurm(fake, {}).cancel(["1", "2"]) == ""
    assert Slurm(fake, {}).cancel([]) == ""
    assert fake.queries == [("scancel", "1", "2")]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            CommandOutput(
                1,
                "",
                "scancel: error: Kill job error on job id 1: Invalid job id specified\n",
            ),
            "",
        ),
        (
            CommandOutput(
                1,
                "",
                "scancel: error: Kill job error on job id 1: Access/permission denied\n",
            ),
            "permission denied",
        ),
        (
            CommandOutput(
                1,
                "",
                "scancel: error: Kill job error on job id 1: Unable to contact slurm controller",
            ),
            "Unable to",
        ),
        (CommandOutput(1, "", ""), "ended with 1"),
        (CommandOutput(124, "", "scancel did not end within 30 s"), "did not end"),
    ],
)
def test_cancellation_problem_is_reported(answer: CommandOutput, problem: str) -> None:
    message = Slurm(Fake(scancel=answer), {}).cancel(["1"])
    assert problem in message
    assert bool(message) is bool(problem)


def test_only_numbers_reach_scancel() -> None:
    fake = Fake()
    assert "'--user=root' is not" in Slurm(fake, {}).cancel(["--user=root", "7"])
    assert fake.queries == [("scancel", "7")]


def find(tokens: Sequence[str], **answers: str | CommandOutput) -> dict[str, str]:
    return Slurm(Fake(**answers), {}).find(tokens, SUBMITTED)


def test_jobs_are_found_by_their_tokens() -> None:
    queue = "1|llmb:aaa|\n2|(null)|\n3|llmb:aaab|\n4|x llmb:bbb|\n"
    assert find(["aaa", "bbb"], squeue=queue, sacct="5|llmb:ccc\n") == {"aaa": "1"}
    assert find(["aaa", "ccc"], squeue=queue, sacct="5|llmb:ccc\n1|llmb:aaa\n") == {
        "aaa": "1",
        "ccc": "5",
    }
    assert find(["ccc"], squeue=queue, sacct=NO_ACCOUNTING) == {}


def test_job_is_not_reported_missing_if_slurm_gives_no_certain_answer() -> None:
    with pytest.raises(SchedulerAway):
        find(["aaa"], squeue=UNREACHABLE, sacct="1|llmb:aaa\n")
    with pytest.raises(SchedulerAway):
        find(["aaa"], squeue="", sacct=NO_DATABASE)
    with pytest.raises(LaunchError, match="jobs 1 2 have the same comment llmb:aaa"):
        find(["aaa"], squeue="1|llmb:aaa|\n2|llmb:aaa|\n")


def test_partitions_are_parsed() -> None:
    output = (
        "batch*|up|infinite|4|gpu:8\nlong|down|7-00:00:00|2|gpu:h100:4(S:0-1)\nlong|down|7-00:00:00|3|(null)\n"
        "short|up|10:00|1|(null)\ngarbage\n"
    )
    assert Slurm(Fake(sinfo=output), {}).list_partitions() == (
        Partition("batch", 4, 8, None, True, is_default=True, gpu_nodes=(("", 8, 4),)),
        Partition("long", 5, 4, 604800.0, False, gpu_nodes=(("h100", 4, 2),)),
        Partition("short", 1, 0, 600.0, True),
    )
    with pytest.raises(SchedulerAway):
        Slurm(Fake(sinfo=UNREACHABLE), {}).list_partitions()


def test_reasons_of_unavailable_nodes_are_parsed() -> None:
    output = "n[1-2]|root|2026-11-21T05:54:27|bad nvlink | again\nn7|alice|Unknown|not asked for\ngarbage\n"
    slurm = Fake(sinfo=output)
    expected = "bad nvlink | again (root, 2026-11-21T05:54:27)"
    assert Slurm(slurm, {}).list_node_reasons(["n1", "n2", "n3"]) == {
        "n1": expected,
        "n2": expected,
    }
    with pytest.raises(SchedulerAway):
        Slurm(Fake(sinfo=UNREACHABLE), {}).list_node_reasons(["n1"])


def test_cluster_name_is_parsed() -> None:
    config = "Configuration data\nCliFilterPlugins        = (null)\nClusterName             = eos\n"
    assert Slurm(Fake(scontrol=config), {}).find_cluster_name() == "eos"
    assert Slurm(Fake(scontrol="Configuration data\n"), {}).find_cluster_name() == ""
    with pytest.raises(SchedulerAway):
        Slurm(Fake(scontrol=UNREACHABLE), {}).find_cluster_name()


@pytest.mark.parametrize(
    ("enforced", "listed", "accounts"),
    [
        ("associations", "research\nroot\nresearch\n", ("research", "root")),
        ("associations,limits,qos", "research\n", ("research",)),
        ("none", "research\n", None),
        ("associations", "", None),
        (
            "associations",
            CommandOutput(
                1, "", "sacctmgr: error: Sending PersistInit msg: Connection refused"
            ),
            None,
        ),
    ],
)
def test_accounts_are_parsed(
    enforced: str, listed: str | CommandOutput, accounts: tuple[str, ...] | None
) -> None:
    config = f"Configuration data\nAccountingStorageEnforce = {enforced}\nAccountingStorageHost = all\n"
    assert (
        Slurm(Fake(scontrol=config, id="root\n", sacctmgr=listed), {}).list_accounts()
        == accounts
    )


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11,20],m7", ["n08", "n09", "n10", "n11", "n20", "m7"]),
        ("gpu[1-2]-ib[0-1]", ["gpu1-ib0", "gpu1-ib1", "gpu2-ib0", "gpu2-ib1"]),
        ("pool0-0001", ["pool0-0001"]),
        ("", []),
        ("None assigned", []),
        ("(null)", []),
        *(
            (text, [text])
            for text in (
                "n[1-",
                "n]1[",
                "n[3-1]",
                "n[a-b]",
                "n[]",
                "n[1-999999999]",
                ",n1",
                "n1,,n2",
                "n[1-[2]",
                "n[1-" * 9999,
            )
        ),
        ("n[1-999],m[1-999][1-99]", ["n[1-999],m[1-999][1-99]"]),
    ],
)
def test_node_lists_are_expanded(expression: str, names: list[str]) -> None:
    assert list(expand_hosts(expression)) == names


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        *(
            ("gpu:8", 8),
            ("gpu:h100:8(S:0-1),nvme:1", 8),
            ("(null)", 0),
            ("gpu", 1),
            ("nvme:2,gpu:a100:4", 4),
        ),
        *(("gpu:a:2,gpu:b:2", 4), ("gpu_mem:80", 0), ("mygpu:8", 0), ("", 0)),
    ],
)
def test_gpus_of_a_node_are_counted(gres: str, gpus: int) -> None:
    assert count_gpus(gres) == gpus


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:07", 7),
        ("10:00", 600),
        ("1:00:00", 3600),
        ("7-00:00:00", 604800),
        ("infinite", None),
        ("N/A", None),
    ],
)
def test_durations_are_parsed(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


def test_clock_margin_is_subtracted_from_the_submission_time() -> None:
    """A job recorded a few minutes before our submission time is still ours."""
    fake = Fake(sacct=SACCT)
    later = SUBMITTED + timedelta(minutes=20)
    assert Slurm(fake, {}).poll({"1": later})["1"].state == "COMPLETED"


@pytest.mark.parametrize(
    ("printed", "seconds"),
    [("30:00|", 1800.0), ("1-00:00:00|", 86400.0), ("UNLIMITED|", None), ("", None)],
)
def test_time_limit_of_a_job_is_read_from_squeue(
    printed: str, seconds: float | None
) -> None:
    status = Fake(sacct=SACCT, squeue=QUEUE["running"] + printed).status("5")
    assert (status.state, status.limit_seconds) == ("RUNNING", seconds)
