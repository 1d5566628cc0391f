"""The trials of an A/B or a search on the same nodes, and the next trial.

A trial is a run of a variant. Its number is the repeat of its job. All functions are
pure: a resumed session gets the same jobs, omits the trials that the infrastructure
lost in earlier sessions, and takes the same next step. Trials are never judged against
a baseline, nor stored as samples of their recipe.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field, structs

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.job_records import Blame, JobSpec, Purpose
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    NextTrial,
    Trial,
    TrialOutcome,
    TrialReport,
)
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.policies.node_policy import pin_nodes
from pytest_llmbench.launch.policies.run_history import (
    Conclusion,
    EndedJob,
    NextRuns,
    RunHistory,
    TrialFacts,
    get_nodes,
)
from pytest_llmbench.launch.schedulers.registry import load_scheduler
from pytest_llmbench.launch.schedulers.shared_allocation import place_run

if TYPE_CHECKING:
    from pytest_llmbench.launch.schedulers.shared_allocation import AllocationPlan


# One-sided levels after 2, 3 and 4 pairs: together they are wrong in 5 % of cases
# (docs/explanation/statistics.md).
LEVELS = (0.012, 0.024, 0.036)
# The levels if earlier A/Bs provide the noise, which then varies less between analyses.
LEVELS_WITH_NOISE = (0.010, 0.020, 0.030)

FIRST_ANALYSIS = 2  # pairs
MOST_PAIRS = FIRST_ANALYSIS + len(LEVELS) - 1

MOST_FAILURES = 2  # failures of a variant by itself after which it does not run
# consecutive lost runs of a variant after which the infrastructure counts as broken
MOST_LOST = 2


class CountedRun(NamedTuple):
    """A measured run that is not a warm-up."""

    position: int  # among the measured runs, warm-ups included
    variant: int
    logarithm: float  # of the step time
    # the largest rounding error of `logarithm`; equal in all runs of a variant
    rounding: float = 0.0


def list_measured(trials: Sequence[Trial]) -> list[CountedRun]:
    """List the measured runs in order, without warm-ups.

    Warm-ups count in the positions of the runs.
    """
    measured = [trial for trial in trials if trial.outcome is TrialOutcome.MEASURED]
    return [
        CountedRun(
            position, trial.variant, math.log(trial.step_time_ms), trial.rounding
        )
        for position, trial in enumerate(measured)
        if not trial.is_warm_up and trial.step_time_ms
    ]


def is_measured(trial: Trial, variants: Collection[int]) -> bool:
    """True for a measured run of one of these variants that is not a warm-up."""
    return (
        trial.outcome is TrialOutcome.MEASURED
        and not trial.is_warm_up
        and trial.variant in variants
    )


def count_measured(trials: Sequence[Trial], variant: int) -> int:
    """Count the measured runs of a variant, without warm-ups."""
    return sum(is_measured(trial, (variant,)) for trial in trials)


def find_failure(trials: Sequence[Trial], variant: int) -> TrialOutcome | None:
    """Return the reason a variant gets no further run (DOES_NOT_RUN or LOST), or None.

    DOES_NOT_RUN: the variant itself caused two failures, warm-ups included. LOST: the
    infrastructure failed twice in a row.
    """
    outcomes = [trial.outcome for trial in trials if trial.variant == variant]
    if outcomes.count(TrialOutcome.DOES_NOT_RUN) >= MOST_FAILURES:
        return TrialOutcome.DOES_NOT_RUN
    is_lost = outcomes[-MOST_LOST:] == [TrialOutcome.LOST] * MOST_LOST
    return TrialOutcome.LOST if is_lost else None


# --- the order of runs ----------------------------------------------------------------


def find_round_end(
    trials: Sequence[Trial], variants: Sequence[int], rounds: int
) -> int | None:
    """Return the number of trials after which each variant had `rounds` runs, or None."""
    missing_runs = dict.fromkeys(variants, rounds)
    for trial_count, trial in enumerate(trials, start=1):
        if is_measured(trial, variants):
            missing_runs[trial.variant] -= 1
            if max(missing_runs.values()) <= 0:
                return trial_count
    return None if rounds else 0  # 0 rounds need no trials


def choose_in_round(
    trials: Sequence[Trial], variants: Sequence[int], rounds: int
) -> int:
    """Choose the variant to run next in an unfinished round.

    `rounds` is the number of the round, from 1. The order alternates (AB BA BA AB),
    which cancels a linear drift. Lost and failed runs are repeated at the end of their
    round.
    """
    round_start = find_round_end(trials, variants, rounds - 1) or 0
    tried = {trial.variant for trial in trials[round_start:] if not trial.is_warm_up}
    is_forward = rounds % 4 in (0, 1)  # rounds 1, 4, 5, 8, 9, ...
    order = variants if is_forward else list(reversed(variants))
    unmeasured = [
        variant for variant in order if count_measured(trials, variant) < rounds
    ]
    for variant in unmeasured:
        if variant not in tried:
            return variant
    return unmeasured[0]  # all had a run in this round, which failed or was lost


def choose_warm_up(
    trials: Sequence[Trial], variants: Sequence[int], allocation: int | None
) -> NextTrial | None:
    """Choose the next warm-up in a shared allocation, or None.

    The first run of each variant in an allocation is a warm-up, except for variants
    that get no further run.
    """
    if allocation is None:
        return None
    warmed_up = {
        trial.variant
        for trial in trials
        if trial.is_warm_up
        and trial.allocation == allocation
        and trial.outcome is TrialOutcome.MEASURED
    }
    for variant in variants:
        if variant not in warmed_up and not find_failure(trials, variant):
            return NextTrial(variant, is_warm_up=True)
    return None


def get_level(pairs: int, earlier: Noise | None, comparisons: int = 1) -> float:
    """Return the one-sided significance level of the analysis after `pairs` pairs.

    `earlier` is the noise of earlier A/Bs. All `comparisons` share the significance
    level (Bonferroni).
    """
    levels = LEVELS_WITH_NOISE if earlier else LEVELS
    return levels[pairs - FIRST_ANALYSIS] / comparisons


# --- the trials of a history ----------------------------------------------------------


MOST_ALLOCATIONS = 3
"""Number of allocations that ended too early before further runs are separate jobs."""

VARIANT_FAILURES = (Blame.RUN, Blame.HUNG)
"""Failures caused by the variant; a run with any other failure is repeated."""

NAMES = {Purpose.COMPARE_VARIANTS: "A/B", Purpose.BISECT: "search"}


class TrialPlan(Struct, frozen=True):
    """The policy of an A/B or a search: its variants and limits."""

    # the reference of an A/B first, or the builds of a search in order
    variants: tuple[JobSpec, ...]
    allocation: AllocationPlan | None = None  # None: each run is a separate job
    most: int = 1  # runs, warm-ups included
    cap: int | None = None  # measured runs of a search, if its file limits them
    cluster: str = ""
    earlier: Noise | None = None  # of earlier A/Bs of the configuration

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variants."""
        return tuple(spec.variant for spec in self.variants)


class TrialLedger(Struct):
    """The trials of a configuration by run number, and the allocations of their runs."""

    plan: TrialPlan
    shared: AllocationPlan | None  # None: each further run is a separate job
    separate_reason: str = ""  # why runs are separate jobs
    newest: int = 0  # the number of the newest allocation
    ended: set[int] = field(default_factory=set)  # the numbers of ended allocations
    trials: dict[int, Trial] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)  # "" if there is none
    nodes_by_number: dict[int, tuple[str, ...]] = field(default_factory=dict)
    next_number: int = 1

    @property
    def ordered_trials(self) -> list[Trial]:
        """The trials in chronological order."""
        return [self.trials[number] for number in sorted(self.trials)]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the first measured run; empty before it."""
        first_number = next(self._list_measured_numbers(), None)
        return () if first_number is None else self.nodes_by_number[first_number]

    @property
    def allocations(self) -> frozenset[int]:
        """The numbers of the allocations with a measured run."""
        numbers = {
            self.trials[number].allocation for number in self._list_measured_numbers()
        }
        return frozenset(numbers - {0})  # 0: the run was a separate job

    @property
    def allocation(self) -> int | None:
        """The number of the next run's allocation, which may be new.

        None if the run is a separate job.
        """
        if self.shared is None or len(self.ended) >= MOST_ALLOCATIONS:
            return None
        return self.newest + 1 if self.newest in self.ended else self.newest

    def end_allocation(self, ended: EndedJob) -> None:
        """Record the end of an allocation.

        Further runs are separate jobs if no nodes could be reserved, or if too many
        allocations ended too early.
        """
        job, end = ended.job, ended.end
        self.ended.add(job.repeat)
        has_failed = job.status is not None and job.status.state == "FAILED"
        # the scheduler refused it, or its script cannot run; else a failure of the
        # infrastructure ended it, and another allocation may succeed
        is_unusable = end.blame is Blame.RUN and has_failed
        if is_unusable or not get_nodes(job):
            self.shared = None
            self.separate_reason = (
                f"no nodes could be reserved: {job.problem or end.text}"
            )
        elif len(self.ended) >= MOST_ALLOCATIONS:
            self.separate_reason = (
                f"{len(self.ended)} allocations ended too early; {end.text}"
            )

    def _list_measured_numbers(self) -> Iterator[int]:
        """Yield the numbers of the measured runs, warm-ups included, in order."""
        for number in sorted(self.trials):
            if self.trials[number].outcome is TrialOutcome.MEASURED:
                yield number


def read_ledger(history: RunHistory, plan: TrialPlan) -> TrialLedger:
    """Build the ledger from the ended jobs of a history."""
    allocation_plan = plan.allocation
    reason = allocation_plan.reason if allocation_plan else ""
    if allocation_plan and allocation_plan.spec:
        ledger = TrialLedger(plan, allocation_plan, reason, newest=1)
    else:
        ledger = TrialLedger(plan, None, reason, newest=0)
    for ended in history.ended:
        job = ended.job
        if job.spec.purpose is Purpose.ALLOCATION:  # not a trial
            ledger.end_allocation(ended)
            continue
        ledger.next_number = max(ledger.next_number, job.repeat + 1)
        if job.spec.variant not in plan.names:  # a build removed from the list
            continue
        if job.refused and job.spec.allocation in ledger.ended:
            continue  # submitted after the allocation of the run ended: not a run
        _add_trial(ledger, ended)
    # the newest allocation may not have ended, or may have no ended run
    for planned in history.planned:
        if planned.spec.purpose is Purpose.ALLOCATION:
            ledger.newest = max(ledger.newest, planned.repeat)
    return ledger


def _add_trial(ledger: TrialLedger, ended: EndedJob) -> None:
    """Add an ended run to the trials of the ledger."""
    job, spec = ended.job, ended.job.spec
    ledger.newest = max(ledger.newest, spec.allocation)
    if not spec.allocation:  # after a separate job, all further runs are separate jobs
        ledger.shared = None
    outcome, problem = _find_outcome(ended, ledger)
    milliseconds, rounding = None, 0.0
    if ended.time:
        rounding = ended.time.rounding
        if ended.time.seconds and outcome is TrialOutcome.MEASURED:
            milliseconds = ended.time.seconds * 1000
    if _is_log_missing(ended):
        # the log may only be delayed, and the next run of the allocation has the same
        # job id and could write into it: end the allocation
        ledger.ended.add(spec.allocation)
    ledger.trials[job.repeat] = Trial(
        variant=ledger.plan.names.index(spec.variant),
        outcome=outcome,
        step_time_ms=milliseconds,
        is_warm_up=spec.warm_up,
        allocation=spec.allocation,
        rounding=rounding,
    )
    ledger.problems[job.repeat] = problem
    ledger.nodes_by_number[job.repeat] = get_nodes(job)


def _find_outcome(ended: EndedJob, ledger: TrialLedger) -> tuple[TrialOutcome, str]:
    """Return the outcome of a run, and its problem if it was not measured."""
    if ended.time is None:
        return _classify_failure(ended)
    if not ended.time.seconds:  # the log has no usable step time
        return TrialOutcome.DOES_NOT_RUN, ended.time.problem
    problem = _describe_other_nodes(get_nodes(ended.job), ledger.nodes)
    outcome = TrialOutcome.LOST if problem else TrialOutcome.MEASURED
    return outcome, problem


def _classify_failure(ended: EndedJob) -> tuple[TrialOutcome, str]:
    """Distinguish a variant that does not run from a lost run; return the problem, too."""
    text = ended.problem.text if ended.problem else ""
    reason = ended.problem.reason if ended.problem else None
    if _ended_with_allocation(ended):
        return TrialOutcome.LOST, f"the allocation of the run ended: {text}"
    if _is_log_missing(ended):
        return TrialOutcome.LOST, text
    if ended.end.blame in VARIANT_FAILURES or reason is Reason.WRONG_CONFIGURATION:
        return TrialOutcome.DOES_NOT_RUN, text
    return TrialOutcome.LOST, text


def _ended_with_allocation(ended: EndedJob) -> bool:
    """True if a run ended with its allocation: it has no exit code and did not hang."""
    if not ended.job.spec.allocation or ended.job.status is None:
        return False
    return not ended.job.status.exit_code and ended.end.blame is not Blame.HUNG


def _is_log_missing(ended: EndedJob) -> bool:
    """True for a run in an allocation whose log is missing, perhaps only delayed."""
    reason = ended.problem.reason if ended.problem else None
    is_in_allocation = ended.job.spec.allocation > 0
    is_missing = reason is Reason.LOG_MISSING and not _ended_with_allocation(ended)
    return is_in_allocation and is_missing


def _describe_other_nodes(nodes: Sequence[str], first: Sequence[str]) -> str:
    """Explain why the nodes of a run differ from those of the first run, or return ""."""
    if not nodes:
        return "its nodes are unknown"
    if first and set(nodes) != set(first):
        location = formatting.fold_nodes(nodes)
        return f"the run used {location}, not the nodes of the first run"
    return ""


# --- the next run ---------------------------------------------------------------------


def plan_trial(ledger: TrialLedger, step: NextTrial) -> NextRuns:
    """Build the jobs of the next trial: its run, and a new allocation if needed.

    The run uses the nodes of the first measured run.
    """
    spec, nodes = ledger.plan.variants[step.variant], ledger.nodes
    allocation, allocation_plan = ledger.allocation, ledger.shared
    if allocation is None or allocation_plan is None:
        separate_job = NextJob(_pin(spec, nodes), repeat=ledger.next_number)
        return NextRuns((separate_job,), releases=True)
    placed = place_run(spec, allocation, warm_up=step.is_warm_up)
    run = NextJob(placed, repeat=ledger.next_number)
    measured_count = sum(
        is_measured(trial, (trial.variant,)) for trial in ledger.ordered_trials
    )
    remaining_count = max(ledger.plan.most - measured_count, 1)
    allocation_spec = allocation_plan.size(remaining_count)
    is_already_planned = allocation == ledger.newest
    if is_already_planned or allocation_spec is None:
        return NextRuns((run,))
    new_allocation = NextJob(_pin(allocation_spec, nodes), repeat=allocation)
    return NextRuns((new_allocation, run), releases=True)


def _pin(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    """Pin a job to nodes, unless there are none or it runs on this machine.

    A pinned job excludes no nodes: one of its nodes may have been excluded since.
    """
    if not nodes or load_scheduler(spec.via).is_local:
        return spec
    return structs.replace(pin_nodes(spec, nodes), exclude=())


# --- conclusions ----------------------------------------------------------------------


def conclude_trials(
    ledger: TrialLedger,
    text: str,
    reason: Reason,
    report: TrialReport,
    *,
    failed: bool = False,
) -> Conclusion:
    """Conclude with the answers of a report, and complete the report from the ledger.

    `text` describes the answers. If `failed`, the conclusion quotes the problem of the
    last failed run.
    """
    report = structs.replace(
        report,
        nodes=ledger.nodes,
        allocations=len(ledger.allocations),
        separate_because=ledger.separate_reason,
        cluster=ledger.plan.cluster,
        earlier=ledger.plan.earlier,
    )
    last_problem = ""
    if failed:
        problems = [problem for problem in ledger.problems.values() if problem]
        last_problem = problems[-1] if problems else ""
    text = formatting.join_clauses(_add_location(text, ledger), last_problem)
    return _end_trials(ledger, text, reason, report)


def conclude_without_hours(ledger: TrialLedger, purpose: Purpose) -> Conclusion:
    """Conclude without an answer because no GPU-hours remain for the next run."""
    text = f"the {NAMES[purpose]} is incomplete: a further run was not started"
    return _end_trials(ledger, _add_location(text, ledger), Reason.PURPOSE_MISSED, None)


def _end_trials(
    ledger: TrialLedger, text: str, reason: Reason, report: TrialReport | None
) -> Conclusion:
    """Build the conclusion of a comparison or search."""
    note = ""
    # without an allocation, all runs were separate jobs from the start
    if ledger.newest and ledger.separate_reason:
        note = f"the last runs were separate jobs: {ledger.separate_reason}"
    return Conclusion(
        reason=reason,
        text=text,
        done=reason is not Reason.PURPOSE_MISSED,
        trials=TrialFacts(ledger.trials, ledger.problems, ledger.allocations),
        report=report,
        note=note,
    )


def _add_location(text: str, ledger: TrialLedger) -> str:
    """Append the nodes and the number of allocations of the runs, if known."""
    locations = []
    if ledger.nodes:
        locations.append(f"on {formatting.fold_nodes(ledger.nodes)}")
    if ledger.allocations:
        count = formatting.count_noun(len(ledger.allocations), "allocation")
        locations.append(f"in {count}")
    return f"{text} ({', '.join(locations)})" if locations else text
