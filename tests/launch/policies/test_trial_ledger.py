"""The ledger of trials: nodes, allocations, failures and the next run.

The cases are those of an A/B; a search only chooses other variants.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.run_histories import (
    BROKEN,
    CANCELLED,
    CRASHED,
    HUNG,
    REFUSED,
    TRIAL,
    WELL,
    describe_step,
    ended,
    ended_trial,
    list_variants,
    make_history,
)

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.job_records import JobEnd, JobStatus, Phase, Purpose
from pytest_llmbench.core.trial_records import (
    NextTrial,
    Trial,
    TrialOutcome,
    TrialReport,
    TrialTime,
)
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.policies.run_history import (
    Conclusion,
    EndedJob,
    NextRuns,
    RunProblem,
)
from pytest_llmbench.launch.policies.trial_ledger import (
    TrialLedger,
    TrialPlan,
    conclude_trials,
    conclude_without_hours,
    plan_trial,
    read_ledger,
)
from pytest_llmbench.launch.schedulers.shared_allocation import AllocationPlan

GOOD, NEW = list_variants(("good", "new"))
MEASURED, LOST = TrialOutcome.MEASURED, TrialOutcome.LOST
DOES_NOT_RUN = TrialOutcome.DOES_NOT_RUN
HOLDER = replace(
    TRIAL,
    purpose=Purpose.ALLOCATION,
    command=("sbatch", "--no-requeue", "./launch.sh"),
)
HELD = AllocationPlan(HOLDER, run_seconds=600.0, limit_option="--time=")
ALONE = TrialPlan((GOOD, NEW), most=10)
SHARED = replace(ALONE, allocation=HELD)
FIRST = ended_trial(1, GOOD, Trial(0, MEASURED, 1000.0))


def read(*jobs: EndedJob, plan: TrialPlan = ALONE) -> TrialLedger:
    return read_ledger(make_history(*jobs, spec=GOOD), plan)


def plan(ledger: TrialLedger, *, warm_up: bool = False) -> NextRuns:
    return plan_trial(ledger, NextTrial(1, is_warm_up=warm_up))


def failed(end: JobEnd, reason: Reason = Reason.JOB_FAILED) -> EndedJob:
    job = ended(2, end, spec=NEW, nodes=("n1", "n2"))
    return replace(job, problem=RunProblem(reason, end.text), run=None)


@pytest.mark.parametrize(
    ("job", "outcome", "problem"),
    [
        (ended_trial(2, NEW, Trial(1, MEASURED, 1050.0)), MEASURED, ""),
        (failed(BROKEN), LOST, BROKEN.text),
        (failed(CANCELLED), LOST, CANCELLED.text),
        (failed(CRASHED), DOES_NOT_RUN, CRASHED.text),
        (failed(HUNG), DOES_NOT_RUN, HUNG.text),
        (failed(WELL, Reason.LOG_MISSING), LOST, ""),
        (failed(WELL, Reason.WRONG_CONFIGURATION), DOES_NOT_RUN, ""),
        (ended(2, BROKEN, spec=NEW, **REFUSED), LOST, "no nodes"),
        (
            replace(FIRST, job=failed(WELL).job, time=TrialTime(None, "it diverged")),
            DOES_NOT_RUN,
            "it diverged",
        ),
        (
            ended_trial(2, NEW, Trial(1, MEASURED, 9.0), nodes=("n1", "n3")),
            LOST,
            "the run used n[1,3], not the nodes of the first run",
        ),
        (
            ended_trial(2, NEW, Trial(1, MEASURED, 9.0), nodes=()),
            LOST,
            "its nodes are unknown",
        ),
    ],
    ids=[
        *("measured", "broken", "cancelled", "crashed", "hung", "no log"),
        *("other configuration", "refused", "diverged", "other nodes", "unknown nodes"),
    ],
)
def test_each_run_of_a_variant_counts_as_measured_lost_or_not_running(
    job: EndedJob, outcome: TrialOutcome, problem: str
) -> None:
    """A launcher may ignore the nodes of a job; the difference would be that of the
    nodes."""
    ledger = read(FIRST, job)
    trial = ledger.trials[2]
    assert (trial.variant, trial.outcome) == (1, outcome)
    assert (trial.step_time_ms is not None) is (outcome is MEASURED)
    assert ledger.problems[2] == problem
    assert (ledger.nodes, ledger.next_number) == (("n1", "n2"), 3)


def test_runs_on_the_same_nodes_in_another_order_are_compared() -> None:
    swapped = ended_trial(2, NEW, Trial(1, MEASURED, 9.0), nodes=("n2", "n1"))
    assert read(FIRST, swapped).trials[2].outcome is MEASURED


def test_run_of_a_build_removed_from_the_file_is_no_trial() -> None:
    removed = ended(2, CRASHED, spec=replace(NEW, variant="gone"))
    ledger = read(FIRST, removed)
    assert (list(ledger.trials), ledger.next_number) == ([1], 3)


def test_later_runs_of_a_comparison_use_the_nodes_of_the_first_run() -> None:
    spec = replace(NEW, scheduler_options=("--qos=high", "--nodelist=n[1-9]"))
    (run,) = plan(read(FIRST, plan=replace(ALONE, variants=(GOOD, spec)))).runs
    assert (run.repeat, run.attempt, run.spec.variant) == (2, 1, "new")
    assert run.spec.scheduler_options == ("--qos=high", "--nodelist=n1,n2")
    assert run.spec.exclude == ()


@pytest.mark.parametrize("via", ["local", "sbatch"])
def test_first_run_gets_any_nodes(via: str) -> None:
    spec = replace(NEW, via=via)
    jobs = [FIRST] if via == "local" else []
    (run,) = plan(read(*jobs, plan=replace(ALONE, variants=(GOOD, spec)))).runs
    assert run.spec == spec


# --- allocations ----------------------------------------------------------------------

GONE = JobStatus(Phase.ENDED, "CANCELLED", nodes=("n1", "n2"))
"""Of a run that its allocation took with it: it has no exit code."""
DONE = replace(GONE, state="COMPLETED", exit_code="0:0")


def placed(number: int, seconds: float, allocation: int = 1) -> EndedJob:
    trial = Trial(0, MEASURED, 1000 * seconds, allocation=allocation)
    return ended_trial(number, GOOD, trial, status=DONE)


def end_holder(
    number: int = 1, end: JobEnd = CANCELLED, status: JobStatus = GONE
) -> EndedJob:
    return ended(number, end, spec=HOLDER, status=status)


def end_placed(number: int, end: JobEnd, status: JobStatus | None) -> EndedJob:
    return ended(number, end, spec=replace(NEW, allocation=1), status=status)


def test_run_continues_in_its_allocation() -> None:
    step = plan(read(placed(1, 1.0), plan=SHARED), warm_up=True)
    (run,) = step.runs
    assert (run.spec.allocation, run.spec.warm_up, run.spec.via) == (
        1,
        True,
        "allocation",
    )
    assert not step.releases


def test_ended_allocation_is_followed_by_a_smaller_one() -> None:
    """Nine of ten runs remain, and get the same nodes."""
    lost = end_placed(2, CANCELLED, GONE)
    ledger = read(placed(1, 1.0), end_holder(), lost, plan=SHARED)
    assert ledger.problems[2] == f"the allocation of the run ended: {CANCELLED.text}"
    step = plan(ledger)
    allocation, run = step.runs
    assert allocation.identity == (TRIAL.case_id, "allocation", 1, 2)
    assert allocation.spec.scheduler_options == ("--nodelist=n1,n2",)
    command = ("sbatch", "--no-requeue", "--time=1:30:00", "./launch.sh")
    assert allocation.spec.command == command
    assert (run.spec.allocation, run.repeat) == (2, 3)
    assert step.releases


def test_planned_allocation_is_not_planned_again() -> None:
    """Its run may be refused for lack of hours, or be lost in a resumed session."""
    jobs = (placed(1, 1.0), end_holder(), end_placed(2, CANCELLED, GONE))
    history = make_history(*jobs, spec=GOOD, waiting=[NextJob(HOLDER, 1, 2)])
    (run,) = plan(read_ledger(history, SHARED)).runs
    assert run.spec.allocation == 2


@pytest.mark.parametrize(
    ("end", "state", "outcome", "problem"),
    [
        (CRASHED, replace(GONE, state="FAILED", exit_code="1:0"), DOES_NOT_RUN, ""),
        (HUNG, GONE, DOES_NOT_RUN, ""),
        (CRASHED, None, DOES_NOT_RUN, ""),
        (CRASHED, GONE, LOST, "the allocation of the run ended: "),
    ],
    ids=["failed", "hung", "script not copied", "ended with its allocation"],
)
def test_crash_blames_the_variant_unless_the_run_ended_with_its_allocation(
    end: JobEnd, state: JobStatus | None, outcome: TrialOutcome, problem: str
) -> None:
    ledger = read(placed(1, 1.0), end_placed(2, end, state), plan=SHARED)
    assert ledger.trials[2].outcome is outcome
    assert ledger.problems[2] == f"{problem}{end.text}"


def test_run_without_a_log_ends_its_allocation() -> None:
    """The log may only be delayed, and the next run would write into it."""
    job = replace(end_placed(2, WELL, DONE), run=None)
    missing = replace(job, problem=RunProblem(Reason.LOG_MISSING, "no log"))
    held, run = plan(read(placed(1, 1.0), missing, plan=SHARED)).runs
    assert (held.repeat, run.spec.allocation) == (2, 2)


@pytest.mark.parametrize(
    "holder",
    [
        end_holder(end=CRASHED, status=replace(GONE, state="FAILED")),
        end_holder(status=replace(GONE, nodes=())),
        ended(1, CRASHED, spec=HOLDER, **REFUSED),
    ],
    ids=["failed", "never started", "refused"],
)
def test_runs_are_separate_jobs_without_an_allocation(holder: EndedJob) -> None:
    late = {**REFUSED, "problem": "its allocation has ended"}
    run = ended(1, CRASHED, spec=replace(GOOD, allocation=1, warm_up=True), **late)
    ledger = read(holder, run, plan=SHARED)
    assert ledger.trials == {}, "it came too late, and is no run at all"
    step = plan(ledger)
    assert (step.runs, step.releases) == ((NextJob(NEW, 1, 2),), True)
    assert ledger.separate_reason.startswith("no nodes could be reserved: ")
    assert conclude(ledger).note == (
        f"the last runs were separate jobs: {ledger.separate_reason}"
    )


def test_comparison_uses_separate_jobs_after_three_allocations_ended_early() -> None:
    jobs: list[EndedJob] = []
    for number, allocation in enumerate((1, 2, 3), 1):
        jobs += [placed(number, 1.0, allocation), end_holder(allocation)]
    ledger = read(*jobs, plan=SHARED)
    (run,) = plan(ledger).runs
    assert (run.spec.via, run.spec.allocation) == ("sbatch", 0)
    assert ledger.separate_reason == f"3 allocations ended too early; {CANCELLED.text}"


def test_later_runs_are_separate_jobs_after_a_run_outside_the_allocation() -> None:
    """A resumed session may have begun with separate jobs."""
    (run,) = plan(read(FIRST, plan=SHARED)).runs
    assert run.spec.allocation == 0


# --- conclusions ----------------------------------------------------------------------


def conclude(ledger: TrialLedger, *, failed: bool = False) -> Conclusion:
    report = TrialReport(("good", "new"))
    reason = Reason.PURPOSE_MISSED if failed else Reason.VARIANT_SLOWER
    ledger.plan = replace(ledger.plan, cluster="eos")
    return conclude_trials(ledger, "slower", reason, report, failed=failed)


def test_comparison_conclusion_states_nodes_and_number_of_allocations() -> None:
    conclusion = conclude(read(placed(1, 1.0), plan=SHARED))
    assert conclusion.text == "slower (on n[1-2], in 1 allocation)"
    assert (conclusion.done, conclusion.note) == (True, "")
    report = conclusion.report
    assert report is not None
    assert (report.nodes, report.allocations) == (("n1", "n2"), 1)
    assert (report.cluster, report.separate_because) == ("eos", "")


def test_incomplete_comparison_quotes_its_last_problem() -> None:
    conclusion = conclude(read(FIRST, failed(CRASHED)), failed=True)
    assert conclusion.text == "slower (on n[1-2]); exit code 1"
    assert not conclusion.done


@pytest.mark.parametrize(
    ("purpose", "name"), [(Purpose.COMPARE_VARIANTS, "A/B"), (Purpose.BISECT, "search")]
)
def test_comparison_or_search_without_remaining_gpu_hours_is_incomplete(
    purpose: Purpose, name: str
) -> None:
    conclusion = conclude_without_hours(read(FIRST), purpose)
    text = f"the {name} is incomplete: a further run was not started (on n[1-2])"
    assert describe_step(conclusion) == [Reason.PURPOSE_MISSED.value, text]
    assert (conclusion.done, conclusion.report) == (False, None)
