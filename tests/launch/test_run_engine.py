"""The run engine: GPU-hours, notes, nodes and results of ended jobs.

tests/launch/policies contains the tests of the policies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import BASELINE, KEY, NOW, measurement, run
from support.job_specs import job_spec

from pytest_llmbench.core.baseline_records import Key, Tolerance
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.job_records import (
    Blame,
    Job,
    JobEnd,
    JobSpec,
    JobStatus,
    Loss,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.outcome_records import Case, ConfigurationResult
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.core.stall_limits import Stall, StallPosition
from pytest_llmbench.core.statements import NodeCause, NodeFinding, RunOnNodes
from pytest_llmbench.core.trial_records import TrialTime
from pytest_llmbench.launch.hours_budget import HoursBudget
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.launched_runs import LaunchedRuns
from pytest_llmbench.launch.plan.suspect_nodes import SuspectNodes
from pytest_llmbench.launch.policies import repeat_policy
from pytest_llmbench.launch.policies.run_history import Confirmation
from pytest_llmbench.launch.run_engine import RunEngine
from pytest_llmbench.report.wording import phrase

SPEC = job_spec(
    Path("/recipe"),
    case_id=KEY.id,
    key=KEY,
    via="sbatch",
    nodes=2,
    gpus=8,
    gpu_hours=10.0,
)
WELL = JobEnd(Blame.NONE)
BROKEN = JobEnd(Blame.INFRASTRUCTURE, "node n1 failed")
CRASHED = JobEnd(Blame.RUN, "exit code 1")
CANCELLED = JobEnd(Blame.CANCELLED, "cancelled by 0")
HUNG = JobEnd(Blame.HUNG, "it hung for 20 min after step 5/50 (x.out)")

NOT_RUN: dict[str, Any] = {"job_id": "", "status": None}
REFUSED = {
    **NOT_RUN,
    "problem": "no nodes",
    "submission": SubmissionState.NOT_SUBMITTED,
}
UNAFFORDABLE = {
    **NOT_RUN,
    "problem": "not submitted: why",
    "submission": SubmissionState.UNAFFORDABLE,
}
PURGED = JobStatus(Phase.UNKNOWN, "")


def judgement(
    verdict: Verdict, reason: Reason = Reason.CANNOT_TELL, **fields: Any
) -> Judgement:
    return Judgement(
        verdict, reason, ("as told",), BASELINE, 7.7, Tolerance(0.05), **fields
    )


def ended(state: str = "COMPLETED", **fields: Any) -> JobStatus:
    return JobStatus(Phase.ENDED, state, **fields)


def plan_check(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    return replace(spec, purpose=Purpose.CHECK_NODES, nodes=len(nodes), gpu_hours=1.0)


def describe(job: NextJob) -> str:
    """Format a job as "run 2, attempt 1, without n1"."""
    name = "run" if job.spec.purpose is Purpose.MEASURE else str(job.spec.purpose)
    without = f", without {' '.join(job.spec.exclude)}" if job.spec.exclude else ""
    return f"{name} {job.repeat}, attempt {job.attempt}{without}"


class Course(LaunchedRuns):
    """An engine with one configuration and given verdicts; the Nth job ends on node nN."""

    def __init__(
        self,
        *verdicts: Verdict,
        hours_left: float = 1e9,
        always: bool = False,
        requested: int = 1,
        checks: bool = False,
        named: Sequence[SuspectNodes] = (),
        **settings: Any,
    ) -> None:
        self.verdicts = list(verdicts)
        self.analyses: list[int] = []  # the number of runs in each interim analysis
        self.invalid: list[Run | None] = []
        self.reason = Reason.CANNOT_TELL
        self.ending = Blame.NONE, ""
        self.finding = NodeFinding()
        self.slow_again = True
        self.failed_nodes: tuple[str, ...] = ()
        self.found: Callable[[Job], Run | None] = lambda job: run(
            id=f"run-{job.job_id}", job_id=job.job_id
        )
        self.budget = HoursBudget(SPEC.gpu_hours + hours_left)
        self.budget.reserve_first([SPEC])
        launch = LaunchSettings(**settings)
        policy = repeat_policy.plan_repeats(launch, requested, always=always)
        self.engine = RunEngine(
            {KEY.id: partial(repeat_policy.next_runs, policy=policy)},
            [SPEC],
            self,
            launch,
            budget=self.budget,
            build_profile=lambda spec: replace(spec, purpose=Purpose.PROFILE),
            build_check=plan_check if checks else None,
            suspects=named,
        )
        self.due = self.engine.begin()
        self.ended = 0

    def end(self, end: JobEnd = WELL, *, index: int = 0, **fields: Any) -> list[str]:
        """End the due job at `index`, and return the jobs that follow."""
        return self.end_job(self.due.pop(index), end, **fields)

    def end_job(self, job: NextJob, end: JobEnd = WELL, **fields: Any) -> list[str]:
        self.ended += 1
        status = ended(nodes=(f"n{self.ended}",), started=NOW)
        created = Job(
            self.ended,
            "token",
            job.spec,
            Path("/jobs"),
            job.attempt,
            job.repeat,
            str(self.ended),
            status=status,
        )
        following = self.engine.add_ended(replace(created, **fields), end)
        self.due += following
        return [describe(job) for job in following]

    @property
    def result(self) -> ConfigurationResult:
        return self.engine.list_results()[KEY]

    @property
    def is_due(self) -> bool:
        """True if a resumed session would start a run."""
        return bool(self.engine.histories[KEY.id].due)

    @property
    def verdict(self) -> tuple[Verdict, Reason]:
        return self.result.judgement.verdict, self.result.judgement.reason

    # --- the interface of LaunchedRuns ---

    def find_run(self, job: Job) -> Run | None:
        return self.found(job)

    def judge(self, key: Key, runs: Sequence[Run]) -> ConfigurationResult:
        self.analyses.append(len(runs))
        verdict = self.verdicts[min(len(self.analyses), len(self.verdicts)) - 1]
        newest, *repeats = (measurement(run=judged) for judged in runs)
        fields = {"measurement": newest, "repeats": tuple(repeats)}
        return ConfigurationResult(
            Case(key.id, key), judgement(verdict, self.reason, **fields)
        )

    def judge_invalid(
        self, _key: Key, reason: Reason, text: str, run: Run | None
    ) -> Judgement:
        self.invalid.append(run)
        return replace(judgement(Verdict.INVALID, reason), statements=(text,))

    def judge_nodes(
        self,
        result: ConfigurationResult,
        nodes: Mapping[str, tuple[str, ...]],
        confirmations: Sequence[Run] = (),
        confirmed_nodes: Collection[str] = (),
    ) -> NodeFinding:
        self.confirmed_on = [nodes[confirmation.id] for confirmation in confirmations]
        self.confirmed_named = tuple(confirmed_nodes)
        return SLOW_TWICE if confirmations else self.finding

    def judge_suspect(self, job: Job, run: Run, nodes: Sequence[str]) -> Confirmation:
        return Confirmation(self.slow_again, f"+9.0 % in job {job.job_id} there", 1.09)

    def measure_trial(self, _key: Key, _run: Run) -> TrialTime:
        raise NotImplementedError

    def list_files(self, _job: Job) -> tuple[Path, ...]:
        return ()

    def list_failed_nodes(self, _job: Job, _run: Run) -> tuple[str, ...]:
        return self.failed_nodes

    def find_driver_errors(self, job: Job, _run: Run) -> str:
        return f"log-{job.job_id}.out:7: NVRM: Xid" if job.job_id == "1" else ""

    def read_check(self, _job: Job) -> str:
        return "bandwidth 3 GB/s | FAIL"

    def read_ending(self, _job: Job, _run: Run) -> tuple[Blame, str]:
        return self.ending


# --- repeats --------------------------------------------------------------------------

SECOND = "run 2, attempt 1, without n1"
THIRD = "run 3, attempt 1, without n1 n2"


@pytest.mark.parametrize(
    ("verdicts", "settings", "following", "looks"),
    [
        (
            [Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE, Verdict.REGRESSION],
            {},
            [SECOND, THIRD],
            [1, 2, 3],
        ),
        (
            [Verdict.INCONCLUSIVE, Verdict.REGRESSION],
            {"repeats_at_once": True},
            [SECOND, "run 3, attempt 1, without n1"],
            [1, 3],
        ),
    ],
    ids=["one after the other", "at once"],
)
def test_launched_runs_are_judged_together_until_the_verdict_is_certain(
    verdicts: list[Verdict],
    settings: dict[str, Any],
    following: list[str],
    looks: list[int],
) -> None:
    course = Course(*verdicts, **settings)
    followed: list[str] = []
    while course.due:
        assert not course.engine.list_results(), "a verdict waits for all of its runs"
        followed += course.end()
    assert followed == following
    assert course.analyses == looks
    assert course.result.judgement.verdict is verdicts[-1]
    assert [job.repeat for job in course.result.jobs] == list(range(1, looks[-1] + 1))


@pytest.mark.parametrize(
    ("verdict", "end", "note"),
    [
        (Verdict.REGRESSION, WELL, "not repeated"),
        (Verdict.INVALID, BROKEN, "not retried"),
        (Verdict.INVALID, HUNG, "not retried"),
    ],
)
def test_no_repeat_or_retry_starts_if_gpu_hours_do_not_suffice(
    verdict: Verdict, end: JobEnd, note: str
) -> None:
    course = Course(Verdict.REGRESSION, hours_left=9.0)
    assert course.end(end) == []
    assert course.result.judgement.verdict is verdict
    assert (
        course.result.nodes
        == f"{note}: 1 run takes 10.0 GPU-hours, but 10.0 of the 19 allowed are used"
    )


@pytest.mark.parametrize(("hours", "repeated"), [(0.1, True), (2.0, False)])
def test_repeat_depends_on_gpu_hours_used_instead_of_estimated_hours(
    hours: float, repeated: bool
) -> None:
    course = Course(Verdict.REGRESSION, hours_left=15.0)
    assert (
        bool(course.end(status=ended(nodes=("n1",), elapsed_seconds=hours * 3600)))
        is repeated
    )


def test_verdict_stays_if_its_repeat_exceeds_the_gpu_hours() -> None:
    course = Course(Verdict.REGRESSION, hours_left=30.0)
    assert course.end() == [SECOND]
    other = ended(elapsed_seconds=10 * 3600)
    course.budget.add_ended(
        Job(
            9,
            "token",
            replace(SPEC, case_id="other"),
            Path("/jobs"),
            job_id="9",
            status=other,
        )
    )
    assert course.end(**UNAFFORDABLE) == []
    assert course.result.judgement.verdict is Verdict.REGRESSION
    assert (
        course.result.nodes
        == "not repeated: 1 run takes 10.0 GPU-hours, but 90.0 of the 40 allowed are used"
    )
    assert len(course.result.jobs) == 1


def test_refused_repeat_is_planned_again_once_gpu_hours_suffice() -> None:
    course = Course(Verdict.REGRESSION, hours_left=30.0)
    course.end()
    assert course.end(**UNAFFORDABLE) == [SECOND]


def test_failure_stays_reported_if_its_retry_exceeds_the_gpu_hours() -> None:
    course = Course(Verdict.PASS)
    course.end(BROKEN)
    assert course.end(**UNAFFORDABLE) == []
    assert (phrase(course.result.judgement), course.result.nodes) == (
        "node n1 failed",
        "not submitted: why",
    )


def test_crashed_run_stays_invalid_despite_an_unplanned_successful_retry() -> None:
    """The journal contains an attempt that this session would not have made."""
    course = Course(Verdict.PASS)
    assert course.end_job(NextJob(SPEC, 1, 1), CRASHED) == []
    assert course.end_job(NextJob(SPEC, 2, 1), WELL) == []
    assert course.result.judgement.verdict is Verdict.INVALID


@pytest.mark.parametrize("first", [2, 3], ids=["in order", "as they ended"])
def test_second_hung_run_stays_invalid_after_resuming(first: int) -> None:
    """A resumed session gets jobs by number, not in the order of their ends."""
    course = Course(Verdict.INCONCLUSIVE, Verdict.PASS, repeats_at_once=True)
    course.end_job(NextJob(SPEC, 1, 1), WELL)
    course.end_job(NextJob(SPEC, 1, first), HUNG)
    course.end_job(NextJob(SPEC, 1, 5 - first), HUNG)
    course.end_job(NextJob(SPEC, 2, 3), WELL)
    if first == 2:
        course.end_job(NextJob(SPEC, 2, 2), WELL)
    judgement = course.result.judgement
    assert (judgement.verdict, judgement.reason) == (Verdict.INVALID, Reason.HUNG)


def test_verdict_waits_for_the_retry_of_a_repeat() -> None:
    course = Course(Verdict.REGRESSION, repeats_at_once=True)
    course.end()
    assert course.end(BROKEN) == ["run 2, attempt 2, without n1 n2"]
    assert course.end() == []
    assert course.analyses == [1]
    assert course.end() == []
    assert course.analyses == [1, 3]


@pytest.mark.parametrize(
    ("end", "loss"), [(WELL, None), (CRASHED, Loss.FAILED)], ids=["well", "crashed"]
)
def test_regression_is_profiled_once_if_requested(
    end: JobEnd, loss: Loss | None
) -> None:
    course = Course(Verdict.REGRESSION, repeats=1, profile_on_regression=True)
    assert course.end() == ["profile 1, attempt 1"]
    assert course.end(end) == []
    assert course.result.judgement.verdict is Verdict.REGRESSION
    jobs = [(job.purpose, job.cost.loss) for job in course.result.jobs]
    assert jobs == [(Purpose.MEASURE, None), (Purpose.PROFILE, loss)]


def test_profile_is_made_only_after_a_regression_with_sufficient_gpu_hours() -> None:
    assert Course(Verdict.PASS, profile_on_regression=True).end() == []
    poor = Course(
        Verdict.REGRESSION, hours_left=0.0, repeats=1, profile_on_regression=True
    )
    assert poor.end() == []
    assert (
        poor.result.nodes
        == "not profiled: 1 run takes 10.0 GPU-hours, but 10.0 of the 10 allowed are used"
    )


def test_run_over_its_checkpoint_budget_is_not_profiled() -> None:
    course = Course(Verdict.REGRESSION, profile_on_regression=True)
    course.reason = Reason.OVER_BUDGET
    assert course.end() == []
    assert course.result.judgement.verdict is Verdict.REGRESSION


def test_requested_repeats_do_not_start_if_gpu_hours_suffice_for_some_only() -> None:
    assert Course(Verdict.PASS, requested=3, hours_left=15.0).end() == []


# --- failures -------------------------------------------------------------------------


@pytest.mark.parametrize("end", [BROKEN, HUNG], ids=["infrastructure", "hung"])
def test_failed_job_is_retried_on_other_nodes_and_counted(end: JobEnd) -> None:
    course = Course(Verdict.PASS, retries=1)
    assert course.end(end) == ["run 1, attempt 2, without n1"]
    assert course.end() == []
    assert course.result.judgement.verdict is Verdict.PASS
    assert [(job.attempt, job.text) for job in course.result.jobs] == [
        (1, end.text),
        (2, ""),
    ]


def test_infrastructure_failure_in_the_log_alone_is_retried() -> None:
    course = Course(Verdict.PASS)
    course.ending = Blame.INFRASTRUCTURE, "NCCL timed out (x.out:7)"
    assert course.end(CRASHED) == ["run 1, attempt 2, without n1"]
    course.ending = Blame.NONE, ""
    course.end()
    assert course.result.jobs[0].text == "exit code 1; NCCL timed out (x.out:7)"


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.REGRESSION])
def test_second_hung_job_of_any_repeat_is_invalid(verdict: Verdict) -> None:
    course = Course(Verdict.INCONCLUSIVE, verdict, retries=3)
    course.end(HUNG)
    assert course.end() == ["run 2, attempt 1, without n2"]
    assert course.end(replace(HUNG, text="it hung before its first step")) == []
    assert course.verdict == (Verdict.INVALID, Reason.HUNG)
    both = f"job 1 on n1: {HUNG.text}; job 3 on n3: it hung before its first step"
    assert phrase(course.result.judgement).startswith(both)


@pytest.mark.parametrize(
    ("ending", "position", "is_quoted"),
    [
        ((Blame.CANCELLED, "slurmstepd: error"), StallPosition.STEPS, False),
        ((Blame.RUN, "ValueError: x (x.out:3)"), StallPosition.STEPS, True),
        ((Blame.NONE, "the last line: waiting for rank 3"), StallPosition.STEPS, False),
        ((Blame.NONE, "the last line: waiting for rank 3"), StallPosition.START, True),
    ],
    ids=[
        "our own scancel",
        "exception",
        "last line is a step",
        "last line before the first step",
    ],
)
def test_hung_job_quotes_its_log_unless_a_step_or_cancellation_comes_last(
    ending: tuple[Blame, str], position: StallPosition, is_quoted: bool
) -> None:
    course = Course(Verdict.PASS, retries=0)
    course.ending = ending
    course.end(
        HUNG,
        status=ended(
            "CANCELLED", nodes=("n1",), stall=Stall(position, 1200.0, 5, 50, "x.out")
        ),
    )
    quote = f"; {ending[1]}" if is_quoted else ""
    assert phrase(course.result.judgement) == f"job 1 on n1: {HUNG.text}{quote}"


@pytest.mark.parametrize(
    ("end", "fields", "reason", "text"),
    [
        (CRASHED, REFUSED, Reason.NOT_SUBMITTED, "no nodes"),
        (CRASHED, UNAFFORDABLE, Reason.NOT_SUBMITTED, "not submitted: why"),
        (CRASHED, {}, Reason.FAILED_STEP, "exit code 1"),
        (CRASHED, {"status": ended("FAILED")}, Reason.JOB_FAILED, "exit code 1"),
        (CRASHED, {"status": ended("TIMEOUT")}, Reason.INCOMPLETE, "exit code 1"),
        (
            CANCELLED,
            {"status": ended("CANCELLED", started=NOW)},
            Reason.NEVER_STARTED,
            "cancelled by 0",
        ),
        (
            CANCELLED,
            {"status": ended("CANCELLED", nodes=("n1",))},
            Reason.CANCELLED,
            "cancelled by 0",
        ),
        (WELL, {}, Reason.LOG_MISSING, "job 1 left no log under /recipe"),
        (
            JobEnd(Blame.RUN, "purged"),
            {"status": PURGED},
            Reason.JOB_LOST,
            "job 1 left no log",
        ),
    ],
)
def test_job_without_a_log_is_invalid_with_the_reason_for_its_end(
    end: JobEnd, fields: dict[str, Any], reason: Reason, text: str
) -> None:
    course = Course(Verdict.PASS)
    course.found = lambda _job: None
    assert course.end(end, **fields) == []
    assert course.verdict == (Verdict.INVALID, reason)
    assert phrase(course.result.judgement).startswith(text)


def test_run_stays_valid_if_slurm_purged_its_job_record() -> None:
    course = Course(Verdict.PASS)
    assert course.end(JobEnd(Blame.RUN, "its record was purged"), status=PURGED) == []
    assert course.result.judgement.verdict is Verdict.PASS


def test_run_of_another_configuration_is_invalid() -> None:
    course = Course(Verdict.PASS)
    course.found = lambda _job: run(key=replace(KEY, gpus=256))
    course.end()
    assert course.verdict == (Verdict.INVALID, Reason.WRONG_CONFIGURATION)
    assert "gb200-bf16-256" in phrase(course.result.judgement)


def test_invalid_run_is_dated_by_its_job() -> None:
    course = Course(Verdict.PASS)
    course.found = lambda _job: run(id="run-1", job_id="1", started=None)
    course.end(CRASHED)
    [dated] = course.invalid
    assert dated
    assert (dated.started, dated.started_from) == (NOW, "job 1")
    assert [job.started for job in course.result.jobs] == [NOW]


def test_job_of_an_unselected_configuration_adds_no_result() -> None:
    course = Course(Verdict.PASS)
    assert course.end_job(NextJob(replace(SPEC, case_id="other"))) == []
    assert not course.engine.list_results()


def test_repeat_may_use_the_same_nodes_if_slurm_refuses_to_exclude_them() -> None:
    course = Course(Verdict.INCONCLUSIVE)
    course.end()
    assert course.end(CRASHED, **REFUSED) == ["run 2, attempt 2"]
    assert course.end() == ["run 3, attempt 1"]


# --- sessions that collect, and sessions that continue --------------------------------


@pytest.mark.parametrize(
    ("verdict", "end", "settings", "held_back"),
    [
        (Verdict.REGRESSION, WELL, {}, True),
        (Verdict.PASS, BROKEN, {}, True),
        (Verdict.PASS, HUNG, {}, True),
        (Verdict.PASS, WELL, {}, False),
        (Verdict.PASS, WELL, {"requested": 3}, True),
        (Verdict.INVALID, WELL, {}, False),
        (Verdict.REGRESSION, WELL, {"repeats": 1}, False),
    ],
)
def test_collect_session_stores_missing_repeats_and_retries_for_resume(
    verdict: Verdict, end: JobEnd, settings: dict[str, Any], held_back: bool
) -> None:
    course = Course(verdict, collect=True, **settings)
    assert course.end(end) == []
    assert course.is_due is held_back


@pytest.mark.parametrize(
    "settings",
    [{}, {"collect": True}, {"resume": True}],
    ids=["launch", "collect", "resume"],
)
def test_same_jobs_give_the_same_verdict_in_any_session(
    settings: dict[str, Any],
) -> None:
    """A resumed session gets the earlier jobs one by one, and counts all of them."""
    course = Course(
        Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE, Verdict.REGRESSION, **settings
    )
    for repeat in (1, 2, 3):
        assert course.is_due is ("collect" in settings and repeat > 1)
        course.end_job(NextJob(SPEC, 1, repeat))
    assert not course.is_due
    assert course.analyses == [1, 2, 3]
    assert (course.result.judgement.verdict, len(course.result.judgement.repeats)) == (
        Verdict.REGRESSION,
        2,
    )


@pytest.mark.parametrize("settings", [{}, {"collect": True}], ids=["launch", "collect"])
@pytest.mark.parametrize(
    ("again", "verdict"), [(WELL, Verdict.PASS), (CRASHED, Verdict.INVALID)]
)
def test_retry_replaces_the_failure_in_any_session(
    settings: dict[str, Any], again: JobEnd, verdict: Verdict
) -> None:
    course = Course(Verdict.PASS, **settings)
    course.end(BROKEN)
    course.end_job(NextJob(SPEC, 2), again)
    assert course.result.judgement.verdict is verdict
    assert not course.is_due


def test_collect_session_does_not_repeat_a_run_refused_for_lack_of_nodes() -> None:
    course = Course(Verdict.INCONCLUSIVE, collect=True)
    course.end()
    assert (
        course.end_job(
            NextJob(replace(SPEC, exclude=("n1",)), 1, 2), CRASHED, **REFUSED
        )
        == []
    )
    verdicts = [course.result.judgement.verdict]
    assert course.is_due
    course.end_job(NextJob(SPEC, 2, 2))
    verdicts.append(course.result.judgement.verdict)
    assert verdicts == [Verdict.INVALID, Verdict.INCONCLUSIVE]


# --- suspect nodes --------------------------------------------------------------------

SUSPECT = NodeFinding(
    NodeCause.SLOW_NODES,
    slow=(RunOnNodes("1", 11.0, ("n1", "n9")),),
    fast=(RunOnNodes("2", 10.0, ("n9",)),),
    suspects=("n1",),
    again=("n1", "n9"),
)
SLOW_TWICE = NodeFinding(
    NodeCause.SLOW_NODES, SUSPECT.slow * 2, SUSPECT.fast, exclude=("n1",)
)
MAY_BE_SLOW, SLOW = phrase(SUSPECT), phrase(SLOW_TWICE)


def suspect_nodes(**settings: Any) -> Course:
    """Return a course whose three runs make a node suspect."""
    course = Course(Verdict.INCONCLUSIVE, **settings)
    course.finding = SUSPECT
    for _ in range(3):
        course.end()
    return course


def test_confirmation_run_on_suspect_nodes_does_not_change_the_verdict() -> None:
    course = suspect_nodes()
    [confirmation] = course.due
    assert confirmation.spec.purpose is Purpose.CONFIRM_NODES
    assert confirmation.spec.scheduler_options == ("--nodelist=n1,n9",)
    assert course.result.nodes.startswith("the node n1 may be slow")
    assert course.end() == []
    assert course.analyses == [1, 2, 3]
    assert course.confirmed_on == [("n4",)]
    assert course.result.nodes == SLOW
    assert course.result.judgement.verdict is Verdict.INCONCLUSIVE
    assert [job.purpose for job in course.result.jobs][-2:] == [
        Purpose.MEASURE,
        Purpose.CONFIRM_NODES,
    ]


@pytest.mark.parametrize("end", [CRASHED, BROKEN])
def test_failed_confirmation_run_is_not_retried_and_confirms_no_node(
    end: JobEnd,
) -> None:
    course = suspect_nodes()
    assert course.end(end) == []
    assert course.result.nodes == f"{MAY_BE_SLOW}; not confirmed: {end.text}"
    assert course.result.judgement.verdict is Verdict.INCONCLUSIVE


def test_confirmation_run_beyond_the_gpu_hours_is_reported() -> None:
    course = suspect_nodes(hours_left=25.0)
    assert course.due == []
    assert course.result.nodes == (
        f"{MAY_BE_SLOW}; not confirmed: 1 run takes 10.0 GPU-hours, but 30.0 of the 35 allowed are used"
    )


def test_collect_session_starts_no_confirmation_run_on_suspect_nodes() -> None:
    course = Course(Verdict.INCONCLUSIVE, collect=True)
    course.finding = SUSPECT
    assert course.end() == []


def test_nodes_are_not_judged_if_the_measured_run_left_no_log() -> None:
    [confirmation] = suspect_nodes().due
    course = Course(Verdict.INCONCLUSIVE)
    course.found = lambda job: (
        None if job.spec.purpose is Purpose.MEASURE else run(id="x", job_id=job.job_id)
    )
    course.judge_nodes = lambda *_: pytest.fail("nothing was judged")  # type: ignore[method-assign]
    course.end()
    course.end_job(confirmation)
    assert course.result.judgement.verdict is Verdict.INVALID


@pytest.mark.parametrize(
    ("end", "fields", "note"),
    [
        (
            WELL,
            {},
            "node check on n5 (job 5): exit code 0; it printed: bandwidth 3 GB/s | FAIL",
        ),
        (
            CRASHED,
            {},
            "node check on n5 (job 5): exit code 1; it printed: bandwidth 3 GB/s | FAIL",
        ),
        (
            CRASHED,
            {"status": ended("TIMEOUT", nodes=("n1",))},
            "node check on n1 (job 5): it did not end within 15 minutes; it printed: bandwidth 3 GB/s | FAIL",
        ),
        (CRASHED, REFUSED, "node check: not submitted: no nodes"),
    ],
    ids=["done", "failed", "hung", "refused"],
)
def test_node_check_is_reported_and_changes_no_verdict(
    end: JobEnd, fields: dict[str, Any], note: str
) -> None:
    course = suspect_nodes(checks=True)
    assert [job.spec.purpose for job in course.due] == [
        Purpose.CONFIRM_NODES,
        Purpose.CHECK_NODES,
    ]
    course.end()
    assert course.end(end, **fields) == []
    assert course.result.nodes == f"{SLOW}; {note}"
    assert (course.analyses, course.result.judgement.verdict) == (
        [1, 2, 3],
        Verdict.INCONCLUSIVE,
    )


def test_node_check_beyond_the_gpu_hours_is_reported() -> None:
    course = suspect_nodes(checks=True, hours_left=30.5)
    assert [job.spec.purpose for job in course.due] == [Purpose.CONFIRM_NODES]
    assert course.result.nodes.startswith(
        f"{MAY_BE_SLOW}; not checked: 1 run takes 1.0 GPU-hours"
    )


def test_suspect_node_remarks_quote_slurm_and_gpu_driver_messages() -> None:
    queried: list[list[str]] = []

    def list_remarks(nodes: Collection[str]) -> dict[str, str]:
        queried.append(list(nodes))
        remark = "sinfo -R: n1: bad nvlink (root, 2025-11-20)"
        return {"n1": remark, "n3": "not asked for"}

    course = suspect_nodes()
    course.engine.add_node_remarks(list_remarks)
    assert course.result.nodes == (
        f"{MAY_BE_SLOW}; sinfo -R: n1: bad nvlink (root, 2025-11-20); log-1.out:7: NVRM: Xid"
    )
    fast = Course(Verdict.PASS)
    fast.end()
    fast.engine.add_node_remarks(list_remarks)
    assert fast.result.nodes == ""
    assert queried == [["n1"]]


# --- suspect nodes of the history -----------------------------------------------------

NAMED = SuspectNodes(KEY.id, ("n7",), ("n8",), "by the history n7 is slow")


def test_node_suspected_by_history_is_excluded_after_a_slow_confirmation_run() -> None:
    course = Course(Verdict.INCONCLUSIVE, Verdict.PASS, named=[NAMED])
    [first] = course.due
    assert (first.spec.purpose, first.spec.scheduler_options) == (
        Purpose.CONFIRM_NODES,
        ("--nodelist=n7,n8",),
    )
    assert course.end() == ["run 1, attempt 1, without n7"]
    assert course.end() == ["run 2, attempt 1, without n7 n2"]
    assert course.end() == []
    assert course.confirmed_named == ("n7",)
    assert (
        "n7 is slow; +9.0 % in job 1 there: excluded from all following jobs"
        in course.result.nodes
    )
    assert (course.result.jobs[0].purpose, course.result.jobs[0].step_seconds) == (
        Purpose.CONFIRM_NODES,
        1.09,
    )


@pytest.mark.parametrize(
    ("slow_again", "end", "note"),
    [
        (False, WELL, "there: not confirmed, not excluded"),
        (True, CRASHED, "n7 is slow; not confirmed: exit code 1"),
        (True, BROKEN, "n7 is slow; not confirmed: node n1 failed"),
    ],
    ids=["fast", "crashed", "broken"],
)
def test_unconfirmed_node_is_not_excluded(
    slow_again: bool, end: JobEnd, note: str
) -> None:
    course = Course(Verdict.PASS, named=[NAMED])
    course.slow_again = slow_again
    assert course.end(end) == ["run 1, attempt 1"]
    course.end()
    assert course.confirmed_named == ()
    assert note in course.result.nodes


def test_suspect_node_is_reported_unconfirmed_if_gpu_hours_do_not_suffice() -> None:
    course = Course(Verdict.PASS, hours_left=5.0, named=[NAMED])
    assert [describe(job) for job in course.due] == ["run 1, attempt 1"]
    course.end()
    assert (
        "n7 is slow; not confirmed: 1 run takes 10.0 GPU-hours" in course.result.nodes
    )


def test_runs_start_only_after_all_suspect_nodes_are_confirmed() -> None:
    course = Course(Verdict.PASS, named=[NAMED, replace(NAMED, nodes=("n9",))])
    assert course.end(index=1) == []
    assert course.end() == ["run 1, attempt 1, without n9 n7"]
    assert course.engine.begin() == []


def test_resumed_session_awaits_the_confirmation_it_began() -> None:
    """The session plans the same confirmation again; runs start once, after its end."""
    first, again = (Course(Verdict.PASS, named=[NAMED]) for _ in range(2))
    assert [job.identity for job in again.engine.begin()] == [
        job.identity for job in first.due
    ]
    assert again.end() == ["run 1, attempt 1, without n7"]
    assert again.engine.begin() == []


def test_run_that_confirms_slow_nodes_never_counts_as_a_repeat() -> None:
    """Also if the repeat with the same number exceeds the GPU-hours."""
    second = replace(NAMED, nodes=("n9",))
    course = Course(Verdict.INCONCLUSIVE, named=[NAMED, second])
    course.end()
    course.end()
    assert course.end() == ["run 2, attempt 1, without n7 n9 n3"]
    course.budget.limit = 0.0
    assert course.end(**UNAFFORDABLE) == []
    assert course.analyses == [1]
    assert course.result.judgement.verdict is Verdict.INCONCLUSIVE


def test_confirmed_slow_node_is_used_if_too_few_other_nodes_exist() -> None:
    course = Course(Verdict.PASS, named=[NAMED])
    course.end()
    assert course.end(CRASHED, **REFUSED) == ["run 1, attempt 2"]
    course.end()
    assert "n7 not excluded here: too few other nodes" in course.result.nodes


# --- GPU-hours ------------------------------------------------------------------------


def test_gpu_hours_of_replaced_and_failed_jobs_count_as_lost() -> None:
    course = Course(Verdict.REGRESSION, repeats_at_once=True)
    for end in (BROKEN, WELL, WELL, CRASHED):
        course.end(end)
    assert [job.cost.loss for job in course.result.jobs] == [
        Loss.FAILED,
        None,
        None,
        Loss.FAILED,
    ]


@pytest.mark.parametrize(
    ("verdict", "reason", "loss"),
    [
        (Verdict.REGRESSION, Reason.CANNOT_TELL, None),
        (Verdict.NOT_COMPARABLE, Reason.CANNOT_TELL, None),
        (Verdict.INVALID, Reason.NO_STEPS, Loss.FAILED),
        (Verdict.INVALID, Reason.NO_BASELINE, None),
    ],
)
def test_invalid_run_counts_as_lost_gpu_hours_unless_its_baseline_is_missing(
    verdict: Verdict, reason: Reason, loss: Loss | None
) -> None:
    course = Course(verdict, repeats=1)
    course.reason = reason
    course.end()
    assert [job.cost.loss for job in course.result.jobs] == [loss]
