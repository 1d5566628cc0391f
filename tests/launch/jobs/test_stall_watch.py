"""When a job is reported as stalled, and when it is cancelled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.job_specs import START, ended, job, job_spec, running, waiting

from pytest_llmbench.core.job_records import (
    Blame,
    EndedBy,
    Job,
    JobEnd,
    JobStatus,
    Phase,
    Purpose,
)
from pytest_llmbench.core.stall_limits import (
    LogProgress,
    Stall,
    StallLimits,
    StallPosition,
)
from pytest_llmbench.launch.jobs.watch import (
    Limits,
    PollDecision,
    Watch,
    describe_stall,
    explain_job_end,
    find_running_limit,
)

HERE = Path("/scratch")
LOG = HERE / "log-x_1_0.out"
TOTAL = 50


@dataclass
class RunningJob:
    """A job whose log gets lines at these seconds, observed every 30 s."""

    steps: Sequence[float] = ()
    other: Sequence[float] = ()  # times of saves and evaluations
    starts: Sequence[float] = ()  # times of process starts
    log_from: float = 0.0  # the log exists from this second on
    late: bool = False  # True if the log prints steps only at the end
    limits: StallLimits = field(default_factory=StallLimits)
    purpose: Purpose = Purpose.MEASURE
    every: float = 30.0
    unreadable: tuple[float, float] = (0.0, 0.0)
    state: Callable[[float], JobStatus] = lambda age: running("n1", "n2")
    reported: list[float] = field(default_factory=list)
    continued: list[float] = field(default_factory=list)
    cancelled: float | None = None

    def __post_init__(self) -> None:
        self.job = job(
            HERE, spec=job_spec(HERE, via="sbatch", purpose=self.purpose, gpu_hours=1e3)
        )
        self.watch = self.make_watch()

    def make_watch(self) -> Watch:
        return Watch(Limits(stalls=self.limits), self.last_step)

    def last_step(self, _job: Job) -> tuple[int, int | None, float] | None:
        done = sum(second <= self.age for second in self.steps)
        return (done, TOTAL, 7.0) if done else None

    def read_log(self, age: float) -> LogProgress:
        if age < self.log_from:
            return LogProgress(place="/logs", prints_late=self.late)
        if self.unreadable[0] <= age < self.unreadable[1]:
            return LogProgress(place="/logs", problem="Stale file handle")
        steps, other_lines, starts = (
            [second for second in seconds if second <= age]
            for seconds in (self.steps, self.other, self.starts)
        )
        gaps = [7.0] * max(0, len(steps) - 1)
        last = max((*steps, *other_lines, *starts), default=0.0)
        return LogProgress(
            LOG,
            "/logs",
            steps=len(steps),
            marks=(len(steps), len(other_lines), len(starts)),
            starting=bool(starts and steps and starts[-1] > steps[-1]),
            slowest_seconds=max(gaps, default=0.0),
            taken_seconds=sum(gaps),
            modified=START + timedelta(seconds=last),
            prints_late=self.late,
        )

    def poll(self, age: float, clock: datetime | None = None) -> PollDecision:
        """Poll the job once, as an engine does."""
        self.age = age
        status = self.state(age)
        now = clock or START + timedelta(seconds=age)
        log = (
            self.read_log(age)
            if status.phase is Phase.RUNNING or status.state == "TIMEOUT"
            else None
        )
        decision = self.watch.decide(self.job, status, now, log)
        stall_before = self.job.status.stall if self.job.status else None
        stall_after = decision.status.stall if decision.status else None
        if stall_after and not stall_before:
            self.reported.append(age)
        if stall_before and not stall_after:
            self.continued.append(age)
        if decision.cancel and self.cancelled is None:
            self.cancelled = age
        self.job = replace(self.job, status=decision.status)
        return decision

    @property
    def stall(self) -> Stall:
        """The stall of the job, which must have one."""
        assert self.job.status
        assert self.job.status.stall
        return self.job.status.stall

    def run(self, until: float, start: float = 0.0) -> RunningJob:
        """Poll until the job is cancelled, or until this many seconds have passed."""
        age = start
        while age <= until and self.cancelled is None:
            self.poll(age)
            age += self.every
        return self


def every(seconds: float, first: float, last: float) -> list[float]:
    return [
        first + seconds * number for number in range(int((last - first) / seconds) + 1)
    ]


MINUTE = 60.0
FAST = every(7.0, 120.0, 190.0)
"""Eleven steps of 7 s after two minutes; then nothing."""


def test_hang_is_reported_after_10_minutes_cancelled_after_20() -> None:
    hung = RunningJob(FAST).run(3 * 3600)
    [reported] = hung.reported
    assert 10 * MINUTE <= reported - FAST[-1] <= 11 * MINUTE
    assert hung.cancelled is not None
    assert 20 * MINUTE <= hung.cancelled - FAST[-1] <= 21 * MINUTE
    stall = hung.stall
    assert (stall.place, stall.done, stall.total, stall.cancelled) == (
        StallPosition.STEPS,
        11,
        50,
        True,
    )
    assert (
        describe_stall(stall) == "stalled for 20 min after step 11/50 (log-x_1_0.out)"
    )
    assert (
        describe_stall(replace(stall, total=None))
        == "stalled for 20 min after step 11 (log-x_1_0.out)"
    )


@pytest.mark.parametrize(
    ("fields", "until"),
    [
        ({"steps": every(7.0, 25 * MINUTE, 3 * 3600)}, 3 * 3600),
        (
            {
                "steps": [
                    *every(7.0, 60.0, 300.0),
                    *every(7.0, 840.0, 1100.0),
                    *every(7.0, 2600.0, 3000.0),
                ]
            },
            3000.0,
        ),
        ({"steps": [*FAST, 3000.0], "other": every(500.0, 600.0, 2600.0)}, 3000.0),
        ({"steps": every(7.0, 120.0, 5000.0), "log_from": 28 * MINUTE}, 5000.0),
        ({"steps": every(25 * MINUTE, 30 * MINUTE, 180 * MINUTE)}, 180 * MINUTE),
        ({"steps": FAST, "unreadable": (200.0, 9000.0)}, 9000.0),
        ({"late": True}, 5 * 3600),
        ({"purpose": Purpose.CHECK_NODES}, 5 * 3600),
        *(
            (
                {"steps": [*FAST, 190.0 + 28 * MINUTE], "purpose": purpose},
                190.0 + 28 * MINUTE,
            )
            for purpose in (
                Purpose.PROFILE,
                Purpose.SAVE_CHECKPOINT,
                Purpose.LOAD_CHECKPOINT,
            )
        ),
    ],
    ids=[
        *(
            "logs steps",
            "silent save of 9 min makes 25 min ordinary",
            "lines of saves",
            "log appears late",
        ),
        *(
            "a line for 100 steps",
            "log unreadable",
            "logs its steps at the end",
            "checks nodes",
        ),
        *("profiles", "saves checkpoint", "loads checkpoint"),
    ],
)
def test_running_job_is_not_stalled(fields: dict[str, Any], until: float) -> None:
    job = RunningJob(**fields).run(until)
    assert (job.reported, job.cancelled) == ([], None)


def test_stall_limit_is_20_times_the_longest_gap() -> None:
    slow = RunningJob(every(5 * MINUTE, 10 * MINUTE, 60 * MINUTE)).run(9 * 3600)
    [reported] = slow.reported
    assert 100 * MINUTE <= reported - 60 * MINUTE <= 115 * MINUTE
    assert slow.cancelled is not None
    assert slow.cancelled - 60 * MINUTE >= 200 * MINUTE


def test_stall_is_reported_after_half_an_hour_without_a_first_step() -> None:
    hung = RunningJob().run(3 * 3600)
    assert hung.reported == [30 * MINUTE]
    assert hung.cancelled == 60 * MINUTE
    assert (
        describe_stall(hung.stall)
        == "stalled for 60 min before its first step (log-x_1_0.out)"
    )
    slow = RunningJob(every(7.0, 58 * MINUTE, 80 * MINUTE)).run(80 * MINUTE)
    assert (len(slow.reported), len(slow.continued), slow.cancelled) == (1, 1, None)
    assert explain_job_end(end(slow, ended(), 81 * MINUTE)).blame is Blame.NONE


def test_missing_log_is_reported_with_its_folder() -> None:
    lost = RunningJob(FAST, log_from=1e9).run(3 * 3600)
    assert lost.reported == [30 * MINUTE]
    assert lost.cancelled == 60 * MINUTE
    assert describe_stall(lost.stall) == "stalled for 60 min: no log was found in /logs"


def test_log_written_in_bursts_is_not_stalled() -> None:
    """300 steps of 7 s reach the log at once, every 35 minutes."""
    bursts = [second for burst in (40, 75, 110) for second in [burst * MINUTE] * 300]
    lives = RunningJob(bursts).run(120 * MINUTE)
    assert lives.cancelled is None
    assert lives.reported == [30 * MINUTE]


@pytest.mark.parametrize(
    ("steps", "until"),
    [([*FAST, 3000.0], 3000.0), ([200.0], 9000.0)],
    ids=["silent", "after one step"],
)
def test_job_without_log_output_is_cancelled(steps: list[float], until: float) -> None:
    assert RunningJob(steps).run(until).cancelled is not None


def test_restarted_process_may_take_half_an_hour_to_its_first_step() -> None:
    second_job = RunningJob([*FAST, *every(7.0, 1900.0, 2300.0)], starts=(300.0,)).run(
        2300.0
    )
    assert second_job.reported == []
    hung = RunningJob([*FAST, *every(7.0, 1900.0, 2300.0)], starts=(300.0,)).run(9000.0)
    assert hung.cancelled is not None
    assert hung.cancelled - 2300.0 <= 25 * MINUTE, (
        "the time in which it started is no gap between steps"
    )


def test_hang_after_the_last_step_is_reported_as_a_hang_in_the_final_save() -> None:
    hung = RunningJob(every(7.0, 120.0, 120.0 + 49 * 7.0)).run(9000.0)
    assert (
        "after its last step, 50/50, in its final save or teardown"
        in describe_stall(hung.stall)
    )


def test_stall_limit_option_sets_times_of_stall_report_and_cancellation() -> None:
    custom = RunningJob(FAST, limits=StallLimits(180.0)).run(9000.0)
    assert 180.0 <= custom.reported[0] - 190.0 <= 240.0
    assert custom.cancelled is not None
    assert 360.0 <= custom.cancelled - 190.0 <= 420.0
    none = RunningJob(FAST, limits=StallLimits(cancels=False)).run(9000.0)
    assert len(none.reported) == 1
    assert none.cancelled is None


# --- time that does not count ---------------------------------------------------------


def test_time_in_which_no_job_was_polled_does_not_count_as_a_stall() -> None:
    job = RunningJob(FAST)
    job.run(300.0)
    job.run(
        4 * 3600 + 5 * MINUTE, start=4 * 3600
    )  # Slurm did not answer, or the session was stopped
    assert job.reported == []


@pytest.mark.parametrize("jump", [-2 * 3600, 2 * 3600])
def test_change_of_the_system_clock_cancels_no_job(jump: float) -> None:
    job = RunningJob(FAST)
    job.run(300.0)
    for age in every(30.0, 330.0, 330.0 + 5 * MINUTE):
        assert not job.poll(age, START + timedelta(seconds=age + jump)).cancel
    assert job.reported == []


def test_suspended_and_completing_jobs_do_not_stall() -> None:
    def state(age: float) -> JobStatus:
        return (
            running()
            if age < 600
            else replace(running(), state="SUSPENDED" if age < 9000 else "COMPLETING")
        )

    assert RunningJob(FAST, state=state).run(18000.0).reported == []


def test_suspended_time_does_not_count_as_running() -> None:
    def state(age: float) -> JobStatus:
        return (
            replace(running(), state="SUSPENDED") if 600 < age < 4 * 3600 else running()
        )

    lives = RunningJob([*FAST, *every(7.0, 4 * 3600, 5 * 3600)], state=state)
    lives.job = replace(lives.job, spec=job_spec(HERE, via="sbatch", gpu_hours=0.1))
    assert lives.run(5 * 3600).cancelled is None


def test_stall_limits_restart_when_a_job_is_requeued() -> None:
    def state(age: float) -> JobStatus:
        if age < 300:
            return running()
        if age < 5000:
            return waiting("BeginTime", restarts=1)
        return running(restarts=1, elapsed_seconds=age - 5000)

    second_job = RunningJob(
        [*FAST, *every(7.0, 5000.0 + 28 * MINUTE, 9000.0)], state=state
    ).run(9000.0)
    assert second_job.reported == [], (
        "the steps in its log are those of its first start"
    )


# --- resumed sessions -----------------------------------------------------------------


def state_since(start: float) -> Callable[[float], JobStatus]:
    return lambda age: running(elapsed_seconds=age - start)


def test_resumed_session_measures_a_stall_from_the_last_change_of_the_log() -> None:
    """A job with a recent log is alive. A job with an old log is reported as stalled at
    once, and cancelled when the session itself has observed the stall for long enough.
    """
    lives = RunningJob(every(7.0, 120.0, 3 * 3600), state=state_since(0.0)).run(
        3 * 3600, start=2 * 3600
    )
    assert lives.reported == []
    hung = RunningJob(FAST, state=state_since(0.0)).run(4 * 3600, start=2 * 3600)
    assert hung.reported == [2 * 3600]
    assert hung.cancelled == 2 * 3600 + 10 * MINUTE


def test_resumed_session_knows_the_gaps_in_the_log() -> None:
    job = RunningJob(FAST, state=state_since(0.0))
    original = job.read_log
    job.read_log = lambda age: replace(original(age), slowest_seconds=600.0)  # type: ignore[method-assign]
    job.run(190.0 + 190 * MINUTE, start=190.0 + 60 * MINUTE)
    assert job.reported == []


def test_stall_reported_by_an_earlier_session_is_not_reported_again() -> None:
    first = RunningJob(FAST).run(190.0 + 12 * MINUTE)
    assert len(first.reported) == 1
    second = dataclasses.replace(
        first, reported=[], continued=[], state=state_since(0.0)
    )
    second.job = first.job
    second.run(9000.0, start=4000.0)
    assert (second.reported, second.continued) == ([], [])
    assert second.cancelled is not None
    assert second.cancelled <= 4000.0 + 21 * MINUTE


# --- ended jobs -----------------------------------------------------------------------


def end(job: RunningJob, status: JobStatus, age: float) -> Job:
    job.state = lambda _: status
    decision = job.poll(age)
    assert decision.ended
    return job.job


@pytest.mark.parametrize("resumed", [False, True])
def test_job_cancelled_for_its_stall_ends_as_hung(resumed: bool) -> None:
    hung = RunningJob(FAST).run(9000.0)
    if resumed:
        hung.watch = hung.make_watch()
    done = end(hung, ended("CANCELLED", cancelled_by="0"), 2000.0)
    assert done.status is not None
    assert done.status.ended_by is EndedBy.PYTEST
    assert explain_job_end(done) == JobEnd(
        Blame.HUNG, "it stalled for 20 min after step 11/50 (log-x_1_0.out)"
    )


def test_hang_is_reported_although_slurm_purged_the_job_record() -> None:
    """The job hung after its last step, so its log looks complete."""
    steps = every(7.0, 120.0, 120.0 + 49 * 7.0)
    hung = RunningJob(steps).run(9000.0)
    assert hung.cancelled is not None
    hung.state = lambda _: JobStatus(Phase.UNKNOWN, "")
    decision = hung.poll(hung.cancelled + 700.0)
    assert decision.ended
    assert explain_job_end(hung.job).blame is Blame.HUNG


def test_stalled_job_cancelled_by_others_did_not_hang() -> None:
    hung = RunningJob(FAST).run(190.0 + 12 * MINUTE)
    assert hung.reported
    assert (
        explain_job_end(
            end(hung, ended("CANCELLED", cancelled_by="1000"), 2000.0)
        ).blame
        is Blame.CANCELLED
    )


@pytest.mark.parametrize(
    ("steps", "blame"), [(FAST, Blame.HUNG), (every(7.0, 120.0, 3000.0), Blame.RUN)]
)
@pytest.mark.parametrize("resumed", [False, True])
def test_job_ended_by_its_time_limit_after_a_stall_has_hung(
    steps: list[float], blame: Blame, resumed: bool
) -> None:
    job = RunningJob(steps).run(190.0 + 15 * MINUTE)
    if resumed:
        job.watch = job.make_watch()
    job_end = explain_job_end(
        end(job, ended("TIMEOUT", elapsed_seconds=1100.0), 1100.0)
    )
    assert job_end.blame is blame
    assert ("more time" in job_end.text) is (blame is Blame.RUN)
    assert job_end.text.endswith("until its time limit") is (blame is Blame.HUNG)


@pytest.mark.parametrize(
    ("steps", "elapsed", "position"),
    [
        (FAST, 4 * 3600.0, StallPosition.STEPS),
        ((), 4 * 3600.0, StallPosition.START),
        (every(7.0, 1800.0, 4 * 3600), 4 * 3600.0, None),
        (FAST, 30 * MINUTE, None),
    ],
)
def test_hang_of_an_unwatched_job_is_recognised_from_its_log(
    steps: list[float], elapsed: float, position: StallPosition | None
) -> None:
    """Submitted in the evening and collected in the morning: most of its time was not
    spent in steps."""
    done = end(RunningJob(steps), ended("TIMEOUT", elapsed_seconds=elapsed), elapsed)
    assert done.status is not None
    assert (done.status.stall.place if done.status.stall else None) is position
    late = end(
        RunningJob(late=True), ended("TIMEOUT", elapsed_seconds=elapsed), elapsed
    )
    assert late.status is not None
    assert late.status.stall is None, "its log contains no step before it ends"


def test_job_time_limit_comes_from_slurm_or_the_gpu_hours_estimate() -> None:
    spec = job_spec(HERE, via="sbatch", gpu_hours=8.0, gpus=8)
    assert find_running_limit(spec, running()) == 5 * 3600
    assert (
        find_running_limit(
            replace(spec, gpus=4, nodes=1, gpus_per_node=8, via="sbatch"), running()
        )
        == 5 * 3600
    )
    assert find_running_limit(replace(spec, gpu_hours=0.1), running()) == 2 * 3600
    assert find_running_limit(spec, running(limit_seconds=86400.0)) == 86400.0


@pytest.mark.parametrize("cancels", [True, False])
def test_job_beyond_its_estimate_is_cancelled(cancels: bool) -> None:
    lives = RunningJob(every(60.0, 60.0, 3 * 3600), limits=StallLimits(cancels=cancels))
    lives.job = replace(lives.job, spec=job_spec(HERE, via="sbatch", gpu_hours=0.1))
    lives.run(3 * 3600)
    assert lives.cancelled == (2 * 3600 + 30 if cancels else None)
    assert lives.reported == []
