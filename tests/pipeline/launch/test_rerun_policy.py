"""What follows when a launched job has ended, as a table: nothing is retried until green, and every run counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import BASELINE, KEY, NOW, measurement, run

from pytest_llmbench.core.models import JUDGED, Case, Judgement, Key, Reason, Run, Tolerance, TrialTime, Verdict
from pytest_llmbench.core.models.jobs import (
    Blame,
    EndedBy,
    Job,
    JobEnd,
    JobSpec,
    JobStatus,
    Loss,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.models.stalls import Stall, StallPlace
from pytest_llmbench.judge.cluster import NodeFinding
from pytest_llmbench.pipeline.launch.costs import HoursBudget
from pytest_llmbench.pipeline.launch.named_nodes import NamedNodes
from pytest_llmbench.pipeline.launch.node_checks import Confirmation, plan_confirmation
from pytest_llmbench.pipeline.launch.rerun_policy import LaunchProgress
from pytest_llmbench.pipeline.launch_settings import LaunchSettings
from pytest_llmbench.pipeline.outcomes import ConfigurationResult

SPEC = JobSpec(
    case_id=KEY.id,
    key=KEY,
    purpose=Purpose.MEASURE,
    via="sbatch",
    command=("sbatch", "-N", "2", "./launch.sh"),
    directory=Path("/recipe"),
    environment=(),
    secrets=(),
    nodes=2,
    gpus=8,
    gpu_hours=10.0,
)
WELL = JobEnd(Blame.NONE)
BROKEN = JobEnd(Blame.INFRASTRUCTURE, "node n1 failed")
CRASHED = JobEnd(Blame.RUN, "exit code 1")


def judgement(verdict: Verdict, reason: Reason = Reason.CANNOT_TELL, **fields: Any) -> Judgement:
    return Judgement(verdict, reason, ("as told",), BASELINE, 7.7, Tolerance(0.05), **fields)


def plan_check(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    return replace(spec, purpose=Purpose.CHECK_NODES, nodes=len(nodes), gpu_hours=1.0)


class Course:
    """A configuration whose verdicts, look by look, are given; remembers how many runs each look judged."""

    def __init__(
        self,
        *verdicts: Verdict,
        budget: float = 1e9,
        always: bool = False,
        asked: int = 1,
        checks: bool = False,
        named: Sequence[NamedNodes] = (),
        slow_again: bool = True,
        **settings: Any,
    ) -> None:
        self.verdicts = list(verdicts)
        self.looks: list[int] = []
        self.invalid: list[Run | None] = []
        self.reason = Reason.CANNOT_TELL
        self.ending = Blame.NONE, ""
        self.finding = NodeFinding()
        self.slow_again = slow_again
        self.budget = HoursBudget(SPEC.gpu_hours + budget)
        self.budget.plan([SPEC])
        self.failed_nodes: tuple[str, ...] = ()
        self.xid = ""
        self.found: Callable[[Job], Run | None] = lambda job: run(id=f"run-{job.job_id}", job_id=job.job_id)
        self.sequences = LaunchProgress(
            [SPEC],
            self,
            LaunchSettings(**settings),
            budget=self.budget,
            profile=lambda spec: replace(spec, purpose=Purpose.PROFILE),
            always=always,
            asked={KEY.id: asked},
            build_check=plan_check if checks else None,
            named=named,
        )
        self.count = 0

    def find_run(self, job: Job) -> Run | None:
        return self.found(job)

    def judge(self, key: Key, runs: Sequence[Run]) -> ConfigurationResult:
        self.looks.append(len(runs))
        verdict = self.verdicts[min(len(self.looks), len(self.verdicts)) - 1]
        newest = measurement(run=runs[0])
        repeats = tuple(measurement(run=one) for one in runs[1:])
        return ConfigurationResult(
            Case(key.id, key), judgement(verdict, self.reason, measurement=newest, repeats=repeats)
        )

    def judge_invalid(self, _key: Key, reason: Reason, text: str, run: Run | None) -> Judgement:
        self.invalid.append(run)
        return replace(judgement(Verdict.INVALID, reason), sentences=(text,))

    def judge_nodes(
        self,
        result: ConfigurationResult,
        nodes: Mapping[str, tuple[str, ...]],
        confirmations: Sequence[Run] = (),
        named: Collection[str] = (),
    ) -> NodeFinding:
        self.asked_nodes, self.asked_named = [nodes[one.id] for one in confirmations], tuple(named)
        return NodeFinding("slow twice", exclude=self.finding.suspects) if confirmations else self.finding

    def judge_named(self, job: Job, run: Run, nodes: Sequence[str]) -> Confirmation:
        return Confirmation(self.slow_again, f"+9.0 % in job {job.job_id} there", 1.09)

    def measure_trial(self, _key: Key, _run: Run) -> TrialTime:
        raise NotImplementedError

    def list_files(self, _job: Job) -> tuple[Path, ...]:
        return ()

    def name_failed_nodes(self, _job: Job, _run: Run) -> tuple[str, ...]:
        return self.failed_nodes

    def find_driver_errors(self, job: Job, _run: Run) -> str:
        return f"log-{job.job_id}.out:7: NVRM: Xid" if job.job_id == self.xid else ""

    def read_check(self, _job: Job) -> str:
        return "bandwidth 3 GB/s | FAIL"

    def read_ending(self, _job: Job, _run: Run) -> tuple[Blame, str]:
        return self.ending

    def end(self, end: JobEnd = WELL, *, spec: JobSpec = SPEC, **fields: Any) -> list[Any]:
        """Let a job end on nodes of its own, and return what follows."""
        self.count += 1
        status = JobStatus(Phase.ENDED, "COMPLETED", nodes=(f"n{self.count}",), started=NOW)
        made: dict[str, Any] = {"job_id": str(self.count), "status": status, **fields}
        return self.sequences.take_ended(Job(self.count, "token", spec, Path("/jobs"), **made), end)

    @property
    def result(self) -> ConfigurationResult:
        return self.sequences.list_results()[KEY]


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.IMPROVEMENT])
def test_a_run_that_passes_is_enough(verdict: Verdict) -> None:
    course = Course(verdict)
    assert course.end() == []
    assert course.result.judgement.verdict is verdict


@pytest.mark.parametrize("verdict", [Verdict.REGRESSION, Verdict.INCONCLUSIVE])
def test_a_run_that_does_not_pass_is_repeated_on_other_nodes_until_two_tell(verdict: Verdict) -> None:
    course = Course(verdict, Verdict.REGRESSION)
    more = course.end()
    assert [(one.attempt, one.repeat, one.spec.exclude) for one in more] == [(1, 2, ("n1",))]
    assert not course.sequences.list_results()
    assert course.end(repeat=2) == []
    assert course.looks == [1, 2]
    assert course.result.judgement.verdict is Verdict.REGRESSION
    assert [job.repeat for job in course.result.jobs] == [1, 2]


@pytest.mark.parametrize("last", sorted(JUDGED))
def test_where_two_runs_cannot_tell_the_third_is_on_nodes_of_neither_and_the_last(last: Verdict) -> None:
    course = Course(Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE, last)
    course.end()
    more = course.end(repeat=2)
    assert [(one.attempt, one.repeat, one.spec.exclude) for one in more] == [(1, 3, ("n1", "n2"))]
    assert course.end(repeat=3) == []
    assert course.looks == [1, 2, 3]
    assert course.result.judgement.verdict is last


def test_a_pass_of_two_runs_is_enough() -> None:
    course = Course(Verdict.INCONCLUSIVE, Verdict.PASS)
    course.end()
    assert course.end(repeat=2) == []
    assert (course.result.judgement.verdict, course.looks) == (Verdict.PASS, [1, 2])


def test_the_runs_after_the_first_can_be_submitted_together_and_are_looked_at_together() -> None:
    course = Course(Verdict.INCONCLUSIVE, Verdict.REGRESSION, repeats_at_once=True)
    more = course.end()
    assert [(one.attempt, one.repeat, one.spec.exclude) for one in more] == [(1, 2, ("n1",)), (1, 3, ("n1",))]
    assert course.end(repeat=3) == []
    assert course.end(repeat=2) == []
    assert course.looks == [1, 3]
    assert [job.repeat for job in course.result.jobs] == [1, 3, 2]
    assert Course(Verdict.PASS, repeats_at_once=True).end() == []


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.IMPROVEMENT])
def test_a_run_that_passes_is_repeated_anywhere_where_several_are_asked_for_and_all_are_judged(
    verdict: Verdict,
) -> None:
    course = Course(verdict, Verdict.REGRESSION, asked=3)
    more = course.end()
    assert [(one.attempt, one.repeat, one.spec.exclude) for one in more] == [(1, 2, ()), (1, 3, ())]
    assert course.end(repeat=2) == course.end(repeat=3) == []
    assert course.looks == [1, 3]
    assert course.result.judgement.verdict is Verdict.REGRESSION


@pytest.mark.parametrize(
    ("verdict", "settings", "repeats"),
    [
        (Verdict.PASS, {"asked": 2}, [2]),
        (Verdict.REGRESSION, {"asked": 2}, [2]),
        (Verdict.INCONCLUSIVE, {"asked": 3}, [2, 3]),
        (Verdict.INVALID, {"asked": 3}, []),
        (Verdict.PASS, {"asked": 3, "budget": 15.0}, []),
        (Verdict.PASS, {"asked": 3, "collect": True}, []),
    ],
    ids=["two", "slow", "cannot tell", "invalid", "no-hours", "collected"],
)
def test_as_many_runs_as_are_asked_for_follow_unless_nothing_can_come_of_them(
    verdict: Verdict, settings: dict[str, Any], repeats: list[int]
) -> None:
    course = Course(verdict, **settings)
    assert [one.repeat for one in course.end()] == repeats


@pytest.mark.parametrize("verdict", sorted(JUDGED))
def test_the_runs_that_are_asked_for_are_judged_once_at_the_end(verdict: Verdict) -> None:
    """Another run after a look at them would make more than one look of it."""
    course = Course(Verdict.INCONCLUSIVE, verdict, asked=2)
    course.end()
    assert course.end(repeat=2) == []
    assert course.result.judgement.verdict is verdict


def test_a_run_over_the_budget_of_its_checkpoints_is_neither_repeated_nor_profiled() -> None:
    course = Course(Verdict.REGRESSION, profile_on_regression=True)
    course.reason = Reason.OVER_BUDGET
    assert course.end() == []
    assert course.result.judgement.verdict is Verdict.REGRESSION


def test_repeats_are_limited_by_the_option_and_by_gpu_hours() -> None:
    assert Course(Verdict.REGRESSION, repeats=1).end() == []
    assert len(Course(Verdict.REGRESSION, repeats=2).end()) == 1
    poor = Course(Verdict.REGRESSION, budget=9.0)
    assert poor.end() == []
    assert poor.result.judgement.verdict is Verdict.REGRESSION
    assert poor.result.nodes == ("not repeated: 1 run takes 10.0 GPU-hours, and of the 19 allowed 10.0 are used")
    for two in (Course(Verdict.INCONCLUSIVE, repeats=2), Course(Verdict.INCONCLUSIVE, budget=15.0)):
        two.end()
        assert two.end(repeat=2) == []
        assert two.result.judgement.verdict is Verdict.INCONCLUSIVE


def test_what_only_collects_starts_nothing() -> None:
    for verdict, end, held_back in (
        (Verdict.REGRESSION, WELL, True),
        (Verdict.PASS, BROKEN, True),
        (Verdict.PASS, WELL, False),
        (Verdict.INVALID, WELL, False),
    ):
        course = Course(verdict, collect=True)
        assert course.end(end) == []
        assert bool(course.sequences.list_held_back()) is held_back, (verdict, end)
    settled = Course(Verdict.REGRESSION, collect=True, repeats=1)
    assert settled.end() == []
    assert settled.sequences.list_held_back() == frozenset()


def test_what_was_repeated_before_it_was_collected_holds_nothing_back() -> None:
    course = Course(Verdict.INCONCLUSIVE, collect=True)
    for repeat in (1, 2, 3):
        assert course.sequences.list_held_back() == (frozenset({KEY.id}) if repeat > 1 else frozenset())
        course.end(repeat=repeat)
    assert course.sequences.list_held_back() == frozenset()
    assert course.looks[-1] == 3


def test_a_failure_of_the_infrastructure_is_retried_on_other_nodes_and_counted() -> None:
    course = Course(Verdict.PASS, retries=1)
    [again] = course.end(BROKEN)
    assert (again.attempt, again.repeat, again.spec.exclude) == (2, 1, ("n1",))
    assert course.end(WELL, spec=again.spec, attempt=2) == []
    assert course.result.judgement.verdict is Verdict.PASS
    assert [(job.attempt, job.text) for job in course.result.jobs] == [(1, "node n1 failed"), (2, "")]


def test_only_the_node_that_a_log_names_is_left_out() -> None:
    course = Course(Verdict.PASS, retries=1)
    course.failed_nodes = ("n7",)
    [again] = course.end(BROKEN, status=JobStatus(Phase.ENDED, "NODE_FAIL", nodes=("n6", "n7"), started=NOW))
    assert again.spec.exclude == ("n7",)


def test_retries_end() -> None:
    course = Course(Verdict.PASS, retries=1)
    course.end(BROKEN)
    assert course.end(BROKEN, attempt=2) == []
    assert course.result.judgement.verdict is Verdict.INVALID
    assert course.result.judgement.text == "node n1 failed"
    assert Course(Verdict.PASS, retries=0).end(BROKEN) == []
    assert Course(Verdict.PASS, budget=9.0).end(BROKEN) == []


def test_a_failure_of_the_run_is_not_retried() -> None:
    course = Course(Verdict.PASS)
    assert course.end(CRASHED) == []
    assert (course.result.judgement.verdict, course.looks) == (Verdict.INVALID, [])


def test_a_cause_of_the_infrastructure_that_only_the_log_tells_is_retried() -> None:
    course = Course(Verdict.PASS)
    course.ending = Blame.INFRASTRUCTURE, "NCCL timed out (x.out:7)"
    [again] = course.end(CRASHED)
    assert again.attempt == 2
    assert course.sequences.configurations[KEY.id].jobs[0][1].text == "exit code 1; NCCL timed out (x.out:7)"


# --- jobs that stood still ----------------------------------------------------------------------------------

HUNG = JobEnd(Blame.HUNG, "it stood still for 20 min after step 5/50 (x.out)")


def test_the_first_job_that_stood_still_is_started_again_on_other_nodes() -> None:
    course = Course(Verdict.PASS)
    [again] = course.end(HUNG)
    assert (again.attempt, again.repeat, again.spec.exclude) == (2, 1, ("n1",))
    assert course.end(spec=again.spec, attempt=2) == []
    assert course.result.judgement.verdict is Verdict.PASS
    assert [(job.attempt, job.text) for job in course.result.jobs] == [(1, HUNG.text), (2, "")]


def test_a_second_one_is_hung_with_both() -> None:
    course = Course(Verdict.PASS)
    [again] = course.end(HUNG)
    assert course.end(replace(HUNG, text="it stood still until"), spec=again.spec, attempt=2) == []
    judgement = course.result.judgement
    assert (judgement.verdict, judgement.reason) == (Verdict.INVALID, Reason.HUNG)
    assert judgement.text == f"job 1 on n1: {HUNG.text}; job 2 on n2: it stood still until"


@pytest.mark.parametrize("verdict", [Verdict.REGRESSION, Verdict.INCONCLUSIVE])
def test_a_second_one_in_any_repeat_is_hung_whatever_the_others_say(verdict: Verdict) -> None:
    course = Course(verdict)
    [again] = course.end(HUNG)
    course.end(spec=again.spec, attempt=2)
    assert course.end(HUNG, repeat=2) == []
    judgement = course.result.judgement
    assert (judgement.verdict, judgement.reason) == (Verdict.INVALID, Reason.HUNG)
    assert judgement.text.startswith(f"job 1 on n1: {HUNG.text}; job 3 on n3: {HUNG.text}; ")


def test_a_job_that_stood_still_is_no_failure_of_the_infrastructure() -> None:
    """Neither of them uses up the tries of the other."""
    course = Course(Verdict.PASS, retries=1)
    course.end(HUNG)
    [again] = course.end(BROKEN, attempt=2)
    assert (again.attempt, again.spec.exclude) == (3, ("n2",))
    course = Course(Verdict.PASS, retries=1)
    course.end(BROKEN)
    assert len(course.end(HUNG, attempt=2)) == 1


@pytest.mark.parametrize("settings", [{"retries": 0}, {"collect": True}, {"budget": 9.0}])
def test_where_nothing_is_started_again_one_is_enough(settings: dict[str, Any]) -> None:
    course = Course(Verdict.PASS, **settings)
    assert course.end(HUNG) == []
    assert course.result.judgement.reason is Reason.HUNG


def test_without_other_nodes_it_is_started_where_it_can_be() -> None:
    course = Course(Verdict.PASS)
    [again] = course.end(HUNG)
    refused = JobStatus(Phase.ENDED, "FAILED", exit_code="0:0", seen_by="sacct")
    [anywhere] = course.end(CRASHED, spec=again.spec, attempt=2, status=refused)
    assert anywhere.spec.exclude == ()


def test_that_it_was_cancelled_for_it_is_not_told_twice() -> None:
    course = Course(Verdict.PASS, retries=0)
    course.ending = Blame.CANCELLED, "it was cancelled: slurmstepd: error"
    course.end(HUNG)
    assert course.result.judgement.text == f"job 1 on n1: {HUNG.text}"
    course = Course(Verdict.PASS, retries=0)
    course.ending = Blame.RUN, "a process died of an exception: ValueError: x (x.out:3)"
    course.end(HUNG)
    assert "ValueError" in course.result.judgement.text, "the others waited for it"


@pytest.mark.parametrize(("place", "told"), [(StallPlace.STEPS, False), (StallPlace.START, True)])
def test_its_last_line_is_told_where_that_is_no_step(place: StallPlace, told: bool) -> None:
    course = Course(Verdict.PASS, retries=0)
    course.ending = Blame.NONE, "the last line of x.out: waiting for rank 3"
    stall = Stall(place, 1200.0, 5, 50, "x.out")
    course.end(HUNG, status=JobStatus(Phase.ENDED, "CANCELLED", nodes=("n1",), stall=stall))
    assert ("rank 3" in course.result.judgement.text) is told


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.IMPROVEMENT])
def test_a_repeat_that_failed_is_not_left_out_of_a_green_verdict(verdict: Verdict) -> None:
    """One slow run, one that crashed and one fast run are no PASS."""
    course = Course(Verdict.REGRESSION, verdict, repeats_at_once=True)
    course.end()
    course.end(CRASHED, repeat=2)
    course.end(repeat=3)
    assert course.result.judgement.verdict is Verdict.INVALID
    assert course.result.judgement.text.startswith("exit code 1; ")


def test_after_a_repeat_that_failed_nothing_more_is_started() -> None:
    course = Course(Verdict.INCONCLUSIVE)
    course.end()
    assert course.end(CRASHED, repeat=2) == []
    assert course.result.judgement.verdict is Verdict.INVALID


def test_a_verdict_waits_for_the_retry_of_a_repeat() -> None:
    course = Course(Verdict.REGRESSION, Verdict.REGRESSION, repeats_at_once=True)
    course.end()
    [again] = course.end(BROKEN, repeat=2)
    assert course.end(repeat=3) == []
    assert course.looks == [1]
    assert course.end(spec=again.spec, repeat=2, attempt=2) == []
    assert course.looks == [1, 3]


REFUSED: dict[str, Any] = {"problem": "no nodes", "submission": SubmissionState.NOT_SUBMITTED}


@pytest.mark.parametrize(
    "refusal",
    [
        {"job_id": "", "status": None, "problem": "no nodes", "submission": SubmissionState.NOT_SUBMITTED},
        {"status": JobStatus(Phase.ENDED, "FAILED", exit_code="0:0", seen_by="sacct")},
        {"status": JobStatus(Phase.ENDED, "FAILED", reason="BadConstraints", seen_by="squeue")},
        {"status": JobStatus(Phase.ENDED, "CANCELLED", reason="never started", ended_by=EndedBy.PYTEST)},
    ],
    ids=["refused", "refused and recorded", "refused and still in the queue", "waited in vain"],
)
def test_without_other_nodes_a_repeat_runs_where_it_can_and_so_does_the_next(refusal: dict[str, Any]) -> None:
    course = Course(Verdict.INCONCLUSIVE)
    [second] = course.end()
    [again] = course.end(CRASHED, spec=second.spec, repeat=2, **refusal)
    assert (again.spec.exclude, again.repeat, again.attempt) == ((), 2, 2)
    [third] = course.end(spec=again.spec, repeat=2, attempt=2)
    assert (third.spec.exclude, third.repeat) == ((), 3)


@pytest.mark.parametrize(
    "status",
    [
        JobStatus(Phase.ENDED, "CANCELLED", nodes=("n2",), reason="it hung", ended_by=EndedBy.PYTEST),
        JobStatus(Phase.ENDED, "PENDING", reason="it could not be cancelled", ended_by=EndedBy.PYTEST),
        JobStatus(Phase.ENDED, "CANCELLED"),
    ],
    ids=["it ran", "it may run yet", "by others"],
)
def test_what_was_given_up_for_another_reason_than_its_nodes_is_not_started_again(status: JobStatus) -> None:
    course = Course(Verdict.INCONCLUSIVE)
    [second] = course.end()
    assert course.end(JobEnd(Blame.CANCELLED), spec=second.spec, repeat=2, status=status) == []
    assert course.result.judgement.verdict is Verdict.INVALID


def test_a_job_that_may_run_is_never_submitted_again() -> None:
    course = Course(Verdict.REGRESSION)
    [second] = course.end()
    doubt = {"problem": "nothing tells", "submission": SubmissionState.UNCERTAIN}
    assert course.end(CRASHED, spec=second.spec, repeat=2, job_id="", status=None, **doubt) == []


def test_a_job_that_was_not_submitted_is_invalid_and_says_why() -> None:
    course = Course(Verdict.PASS)
    refusal: dict[str, Any] = {"problem": "invalid account", "submission": SubmissionState.NOT_SUBMITTED}
    assert course.end(CRASHED, job_id="", status=None, **refusal) == []
    assert course.result.judgement.reason is Reason.NOT_SUBMITTED
    assert course.result.judgement.text == "invalid account"


def test_a_job_without_a_log_of_its_own_is_invalid() -> None:
    course = Course(Verdict.PASS)
    course.found = lambda _job: None
    assert course.end() == []
    assert course.result.judgement.reason is Reason.LOG_MISSING


def test_a_run_of_another_configuration_is_invalid() -> None:
    course = Course(Verdict.PASS)
    course.found = lambda _job: run(key=replace(KEY, gpus=256))
    course.end()
    assert course.result.judgement.reason is Reason.WRONG_CONFIGURATION
    assert "gb200-bf16-256" in course.result.judgement.text


def test_a_record_that_was_purged_does_not_mean_that_the_job_failed() -> None:
    course = Course(Verdict.PASS)
    gone = JobStatus(Phase.UNKNOWN, "")
    assert course.end(JobEnd(Blame.RUN, "its record was purged"), status=gone) == []
    assert course.result.judgement.verdict is Verdict.PASS
    lost = Course(Verdict.PASS)
    lost.found = lambda _job: None
    lost.end(JobEnd(Blame.RUN, "its record was purged"), status=gone)
    assert lost.result.judgement.reason is Reason.JOB_LOST


def test_cancelled_before_it_started_is_told_from_cancelled_while_it_ran() -> None:
    for nodes, reason in (((), Reason.NEVER_STARTED), (("n1",), Reason.CANCELLED)):
        course = Course(Verdict.PASS)
        status = JobStatus(Phase.ENDED, "CANCELLED", nodes=nodes, started=NOW)
        course.end(JobEnd(Blame.CANCELLED, "cancelled by 0"), status=status)
        assert course.result.judgement.reason is reason


def test_a_regression_is_profiled_once_where_that_was_asked_for() -> None:
    course = Course(Verdict.REGRESSION, repeats=1, profile_on_regression=True)
    [profile] = course.end()
    assert profile.spec.purpose is Purpose.PROFILE
    assert course.end(CRASHED, spec=profile.spec) == []
    assert course.result.judgement.verdict is Verdict.REGRESSION
    assert [job.purpose for job in course.result.jobs] == [Purpose.MEASURE, Purpose.PROFILE]
    assert Course(Verdict.PASS, profile_on_regression=True).end() == []
    poor = Course(Verdict.REGRESSION, budget=0.0, repeats=1, profile_on_regression=True)
    assert poor.end() == []
    assert poor.result.nodes == ("not profiled: 1 run takes 10.0 GPU-hours, and of the 10 allowed 10.0 are used")


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.INVALID])
def test_recording_repeats_every_run_whatever_it_says_and_where_it_likes(verdict: Verdict) -> None:
    """Without a baseline the verdict on a good run is INVALID."""
    course = Course(verdict, always=True)
    assert [(one.repeat, one.spec.exclude) for one in course.end()] == [(2, ()), (3, ())]
    assert course.end(repeat=2) == []
    assert not course.sequences.list_results()
    course.end(repeat=3)
    assert course.looks == [1, 3]


def test_a_job_of_another_session_or_configuration_changes_nothing() -> None:
    course = Course(Verdict.PASS)
    assert course.end(spec=replace(SPEC, case_id="other")) == []
    assert not course.sequences.list_results()


@pytest.mark.parametrize("settings", [{}, {"collect": True}, {"resume": True}], ids=["launch", "collect", "resume"])
def test_the_same_jobs_give_the_same_verdict_whoever_judges_them(settings: dict[str, Any]) -> None:
    """A session that goes on gets the jobs of before one after the other, and counts all of them."""
    course = Course(Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE, Verdict.REGRESSION, **settings)
    for repeat in (1, 2, 3):
        course.end(repeat=repeat)
    assert course.looks == [1, 2, 3]
    assert (course.result.judgement.verdict, len(course.result.judgement.repeats)) == (Verdict.REGRESSION, 2)


@pytest.mark.parametrize("settings", [{}, {"collect": True}], ids=["launch", "collect"])
@pytest.mark.parametrize("again", [WELL, CRASHED], ids=["well", "crashed"])
def test_a_new_start_that_was_made_takes_the_place_of_the_failure_before_it_whoever_judges_them(
    settings: dict[str, Any], again: JobEnd
) -> None:
    course = Course(Verdict.PASS, **settings)
    course.end(BROKEN)
    course.end(again, attempt=2)
    assert course.result.judgement.verdict is (Verdict.PASS if again is WELL else Verdict.INVALID)
    assert course.sequences.list_held_back() == frozenset()


def test_a_repeat_without_other_nodes_is_left_to_the_session_that_goes_on() -> None:
    course = Course(Verdict.INCONCLUSIVE, collect=True)
    course.end()
    elsewhere = replace(SPEC, exclude=("n1",))
    assert course.end(CRASHED, spec=elsewhere, repeat=2, job_id="", status=None, **REFUSED) == []
    verdicts = [course.result.judgement.verdict]
    assert course.sequences.list_held_back() == frozenset({KEY.id})
    course.end(repeat=2, attempt=2)
    verdicts.append(course.result.judgement.verdict)
    assert verdicts == [Verdict.INVALID, Verdict.INCONCLUSIVE]


def test_a_confirmation_whose_runs_have_lost_their_logs_changes_nothing() -> None:
    _, [again] = look_apart()
    gone = Course(Verdict.INCONCLUSIVE)
    gone.found = lambda job: None if job.spec.purpose is Purpose.MEASURE else run(id="x", job_id=job.job_id)
    gone.judge_nodes = lambda *_: pytest.fail("nothing was judged")  # type: ignore[method-assign]
    gone.end()
    gone.end(spec=again.spec)
    assert gone.result.judgement.verdict is Verdict.INVALID


# --- nodes that may be slow -------------------------------------------------------------------------------

SUSPECT = NodeFinding("n1 may be slow", suspects=("n1",), again=("n1", "n9"))


def look_apart(**settings: Any) -> tuple[Course, list[Any]]:
    """Return a launch whose runs make nodes suspect, and what follows from its last one."""
    course = Course(Verdict.INCONCLUSIVE, **settings)
    course.finding = SUSPECT
    course.end()
    course.end(repeat=2)
    return course, course.end(repeat=3)


def test_nodes_that_were_slow_once_get_one_run_more_that_counts_for_no_verdict() -> None:
    course, [again] = look_apart()
    assert (again.spec.purpose, again.spec.sbatch_options) == (Purpose.CONFIRM_NODES, ("--nodelist=n1,n9",))
    assert course.result.nodes == "n1 may be slow"
    assert course.end(spec=again.spec) == []
    assert course.looks == [1, 2, 3]
    assert course.asked_nodes == [("n4",)]
    assert course.result.nodes == "slow twice"
    assert course.result.judgement.verdict is Verdict.INCONCLUSIVE
    assert [job.purpose for job in course.result.jobs][-2:] == [Purpose.MEASURE, Purpose.CONFIRM_NODES]


def test_a_run_that_was_to_confirm_and_failed_confirms_nothing_and_is_not_started_again() -> None:
    for end in (CRASHED, BROKEN):
        course, [again] = look_apart()
        assert course.end(end, spec=again.spec) == []
        assert course.result.nodes == f"n1 may be slow; not confirmed: {end.text}"
        assert course.result.judgement.verdict is Verdict.INCONCLUSIVE


def test_nodes_are_not_confirmed_without_gpu_hours_or_by_a_session_that_only_collects() -> None:
    poor, more = look_apart(budget=25.0)
    assert more == []
    assert poor.result.nodes == (
        "n1 may be slow; not confirmed: 1 run takes 10.0 GPU-hours, and of the 35 allowed 30.0 are used"
    )
    for settings in ({"collect": True}, {"repeats": 1}):
        course = Course(Verdict.INCONCLUSIVE, **settings)
        course.finding = SUSPECT if "collect" in settings else NodeFinding()
        assert course.end() == []


def test_other_options_of_the_job_stay_and_its_own_list_of_nodes_gives_way() -> None:
    spec = replace(SPEC, sbatch_options=("--qos=high", "--nodelist=n[1-9]"))
    pinned = plan_confirmation(spec, SUSPECT)
    assert pinned is not None
    assert pinned.sbatch_options == ("--qos=high", "--nodelist=n1,n9")
    assert plan_confirmation(spec, NodeFinding()) is None
    assert plan_confirmation(replace(SPEC, nodes=3), SUSPECT) is None


# --- GPU-hours --------------------------------------------------------------------------------------------


def test_what_a_job_used_is_lost_where_another_took_its_place_or_its_run_could_not_be_judged() -> None:
    course = Course(Verdict.REGRESSION, Verdict.REGRESSION)
    course.end(BROKEN)
    course.end(attempt=2)
    course.end(repeat=2)
    course.end(CRASHED, repeat=3)
    assert [job.cost.loss for job in course.result.jobs] == [Loss.FAILED, None, None, Loss.FAILED]
    for verdict in (Verdict.PASS, Verdict.REGRESSION, Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE):
        judged = Course(verdict, repeats=1)
        judged.end()
        assert [job.cost.loss for job in judged.result.jobs] == [None]


def test_runs_without_a_verdict_are_lost_and_one_that_only_lacks_a_baseline_is_not() -> None:
    for reason, loss in ((Reason.NO_STEPS, Loss.FAILED), (Reason.NO_BASELINE, None)):
        course = Course(Verdict.INVALID)
        course.reason = reason
        course.end()
        assert [job.cost.loss for job in course.result.jobs] == [loss]


def test_a_profile_is_lost_where_it_failed() -> None:
    for end, loss in ((WELL, None), (CRASHED, Loss.FAILED)):
        course = Course(Verdict.REGRESSION, repeats=1, profile_on_regression=True)
        [profile] = course.end()
        course.end(end, spec=profile.spec)
        assert [job.cost.loss for job in course.result.jobs] == [None, loss]


def test_what_was_used_and_not_the_estimate_decides_about_repeats() -> None:
    for hours, repeats in ((0.1, 1), (2.0, 0)):
        course = Course(Verdict.REGRESSION, budget=15.0)
        status = JobStatus(Phase.ENDED, "COMPLETED", nodes=("n1",), elapsed_seconds=hours * 3600, started=NOW)
        assert len(course.end(status=status)) == repeats


def test_a_retry_without_gpu_hours_says_so_with_the_numbers() -> None:
    course = Course(Verdict.PASS, budget=5.0)
    assert course.end(BROKEN) == []
    assert course.result.nodes == ("not started again: 1 run takes 10.0 GPU-hours, and of the 15 allowed 10.0 are used")


UNAFFORDABLE: dict[str, Any] = {
    "submission": SubmissionState.UNAFFORDABLE,
    "problem": "not submitted: why",
    "job_id": "",
    "status": None,
}


def test_a_repeat_that_was_planned_and_found_no_gpu_hours_left_does_not_spoil_the_verdict() -> None:
    course = Course(Verdict.REGRESSION, budget=30.0)
    assert [each.repeat for each in course.end()] == [2]
    other = JobStatus(Phase.ENDED, "COMPLETED", elapsed_seconds=10 * 3600)
    course.budget.settle(Job(9, "token", replace(SPEC, case_id="other"), Path("/jobs"), job_id="9", status=other))
    assert course.end(repeat=2, **UNAFFORDABLE) == []
    assert course.result.judgement.verdict is Verdict.REGRESSION
    assert course.result.nodes == "not repeated: 1 run takes 10.0 GPU-hours, and of the 40 allowed 90.0 are used"
    assert len(course.result.jobs) == 1


def test_a_repeat_for_which_there_is_room_again_is_made_after_all() -> None:
    course = Course(Verdict.REGRESSION, budget=30.0)
    course.end()
    assert [each.repeat for each in course.end(repeat=2, **UNAFFORDABLE)] == [2]


def test_a_new_start_that_found_no_gpu_hours_left_leaves_the_failure_before_it() -> None:
    course = Course(Verdict.PASS)
    course.end(BROKEN)
    assert course.end(attempt=2, **UNAFFORDABLE) == []
    assert (course.result.judgement.text, course.result.nodes) == ("node n1 failed", "not submitted: why")


def test_a_first_run_without_gpu_hours_is_red_with_the_numbers() -> None:
    course = Course(Verdict.PASS)
    assert course.end(CRASHED, **UNAFFORDABLE) == []
    judged = course.result.judgement
    assert (judged.reason, judged.text) == (Reason.NOT_SUBMITTED, "not submitted: why")


def test_an_invalid_run_is_as_old_as_its_job() -> None:
    course = Course(Verdict.PASS)
    course.found = lambda job: run(id="run-1", job_id="1", started=None)
    course.end(CRASHED)
    [dated] = course.invalid
    assert dated
    assert (dated.started, dated.started_from) == (NOW, "job 1")
    assert [job.started for job in course.result.jobs] == [NOW]


@pytest.mark.parametrize(
    ("end", "fields", "note"),
    [
        (WELL, {}, "node check on n5 (job 5): exit code 0; it printed: bandwidth 3 GB/s | FAIL"),
        (
            JobEnd(Blame.RUN, "FAILED: exit code 127"),
            {},
            "node check on n5 (job 5): FAILED: exit code 127; it printed: bandwidth 3 GB/s | FAIL",
        ),
        (
            JobEnd(Blame.RUN, "TIMEOUT: give it more time"),
            {"status": JobStatus(Phase.ENDED, "TIMEOUT", nodes=("n1",))},
            "node check on n1 (job 5): it did not end within 15 minutes; it printed: bandwidth 3 GB/s | FAIL",
        ),
        (
            CRASHED,
            {"job_id": "", "status": None, "problem": "no nodes", "submission": SubmissionState.NOT_SUBMITTED},
            "node check: not submitted: no nodes",
        ),
    ],
    ids=["done", "failed", "hung", "refused"],
)
def test_the_check_of_the_site_runs_on_the_nodes_and_changes_no_verdict(
    end: JobEnd, fields: dict[str, Any], note: str
) -> None:
    course, more = look_apart(checks=True)
    assert [one.spec.purpose for one in more] == [Purpose.CONFIRM_NODES, Purpose.CHECK_NODES]
    course.end(spec=more[0].spec)
    assert course.end(end, spec=more[1].spec, **fields) == []
    assert course.result.nodes == f"slow twice; {note}"
    assert (course.looks, course.result.judgement.verdict) == ([1, 2, 3], Verdict.INCONCLUSIVE)


def test_a_check_that_no_gpu_hours_are_left_for_is_told() -> None:
    course, more = look_apart(checks=True, budget=30.5)
    assert [one.spec.purpose for one in more] == [Purpose.CONFIRM_NODES]
    assert course.result.nodes.startswith("n1 may be slow; not checked: 1 run takes 1.0 GPU-hours")


def test_what_slurm_and_the_drivers_say_of_named_nodes_is_quoted() -> None:
    asked: list[list[str]] = []

    def list_reasons(nodes: Collection[str]) -> dict[str, str]:
        asked.append(list(nodes))
        return {"n1": "bad nvlink (root, 2025-11-20)", "n3": "not asked for"}

    course, _ = look_apart()
    course.xid = "1"
    course.sequences.add_node_remarks(list_reasons)
    assert asked == [["n1"]]
    told = "n1 may be slow; sinfo -R: n1: bad nvlink (root, 2025-11-20); log-1.out:7: NVRM: Xid"
    assert course.result.nodes == told
    fast = Course(Verdict.PASS)
    fast.end()
    fast.sequences.add_node_remarks(list_reasons)
    assert (fast.result.nodes, len(asked)) == ("", 1)


# --- nodes that the history names ---------------------------------------------------------------------------

NAMED = NamedNodes(KEY.id, ("n7",), ("n8",), "by the history n7 is slow")


def end_confirmation(course: Course, first: Any, **fields: Any) -> list[Any]:
    return course.end(spec=first.spec, attempt=first.attempt, repeat=first.repeat, **fields)


def test_without_a_named_node_all_configurations_begin() -> None:
    assert [(one.spec, one.repeat) for one in Course(Verdict.PASS).sequences.begin()] == [(SPEC, 1)]


def test_a_named_node_has_a_run_first_and_is_left_out_once_that_was_slow() -> None:
    course = Course(Verdict.INCONCLUSIVE, Verdict.PASS, named=[NAMED])
    (first,) = course.sequences.begin()
    assert (first.spec.purpose, first.spec.sbatch_options) == (Purpose.CONFIRM_NODES, ("--nodelist=n7,n8",))
    (measured,) = end_confirmation(course, first)
    assert (measured.spec, measured.repeat) == (replace(SPEC, exclude=("n7",)), 1)
    (repeat,) = course.end(spec=measured.spec)
    assert repeat.spec.exclude == ("n7", "n2")
    assert course.end(spec=repeat.spec, repeat=2) == []
    assert course.asked_named == ("n7",)
    assert "n7 is slow; +9.0 % in job 1 there: left out of what follows" in course.result.nodes
    assert next((str(job.purpose), job.step_seconds) for job in course.result.jobs) == ("node-confirmation", 1.09)


def test_a_named_node_whose_run_was_fast_is_not_left_out() -> None:
    course = Course(Verdict.PASS, named=[NAMED], slow_again=False)
    (measured,) = end_confirmation(course, course.sequences.begin()[0])
    assert measured.spec == SPEC
    course.end(spec=measured.spec)
    assert course.asked_named == ()
    assert "there: not confirmed, and not left out" in course.result.nodes


@pytest.mark.parametrize("end", [CRASHED, BROKEN])
def test_a_run_on_a_named_node_that_fails_confirms_nothing_and_holds_nothing_up(end: JobEnd) -> None:
    course = Course(Verdict.PASS, named=[NAMED])
    (measured,) = end_confirmation(course, course.sequences.begin()[0], end=end)
    assert measured.spec == SPEC
    course.end(spec=measured.spec)
    assert f"n7 is slow; not confirmed: {end.text}" in course.result.nodes


def test_without_gpu_hours_for_it_a_named_node_is_only_told() -> None:
    course = Course(Verdict.PASS, budget=5.0, named=[NAMED])
    assert [one.spec for one in course.sequences.begin()] == [SPEC]
    course.end()
    assert "n7 is slow; not confirmed: 1 run takes 10.0 GPU-hours" in course.result.nodes


def test_all_begins_once_however_many_nodes_are_named_and_whichever_run_ends_last() -> None:
    course = Course(Verdict.PASS, named=[NAMED, replace(NAMED, nodes=("n9",))])
    first, second = course.sequences.begin()
    assert end_confirmation(course, second) == []
    (measured,) = end_confirmation(course, first)
    assert measured.spec.exclude == ("n9", "n7")
    assert course.sequences.begin() == []


def test_a_session_that_goes_on_awaits_the_run_that_it_had_begun_and_begins_the_rest_once() -> None:
    course = Course(Verdict.PASS, named=[NAMED])
    (first,) = course.sequences.begin()
    again = Course(Verdict.PASS, named=[NAMED])
    assert [one.identity for one in again.sequences.begin()] == [first.identity]
    ended = Course(Verdict.PASS, named=[NAMED])
    assert [one.spec.exclude for one in end_confirmation(ended, first)] == [("n7",)]
    assert ended.sequences.begin() == []


def test_a_cluster_with_too_few_nodes_without_a_confirmed_one_gets_it_and_says_so() -> None:
    course = Course(Verdict.PASS, named=[NAMED])
    (measured,) = end_confirmation(course, course.sequences.begin()[0])
    refused: dict[str, Any] = {"submission": SubmissionState.NOT_SUBMITTED, "job_id": "", "problem": "too few nodes"}
    (again,) = course.end(JobEnd(Blame.RUN, "too few nodes"), spec=measured.spec, status=None, **refused)
    assert (again.spec, again.attempt) == (SPEC, 2)
    course.end(spec=again.spec, attempt=2)
    assert "n7 not left out here: there are too few others" in course.result.nodes
