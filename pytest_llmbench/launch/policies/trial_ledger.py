"""The runs of variants of a configuration on the same nodes, as trials; the next one.

A run is a trial by the number that its job has as a repeat. All functions are pure: a
session that resumes gets the same jobs, leaves out what the infrastructure lost in
earlier sessions, and takes the same next step. No run of a variant is judged against a
baseline, or stored as a sample of its recipe.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

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
    join_texts,
)
from pytest_llmbench.launch.schedulers.registry import load_scheduler
from pytest_llmbench.launch.schedulers.shared_allocation import place_run

if TYPE_CHECKING:
    from pytest_llmbench.launch.schedulers.shared_allocation import AllocationPlan


# One-sided, after 2, 3 and 4 pairs: together they are wrong in 5 % of cases
# (docs/statistics.md).
LEVELS = (0.012, 0.024, 0.036)
# The same where earlier A/Bs tell the noise, which then moves less from look to look.
LEVELS_WITH_NOISE = (0.010, 0.020, 0.030)

FIRST_LOOK = 2
MOST_PAIRS = FIRST_LOOK + len(LEVELS) - 1

MOST_FAILURES = 2  # an arm that fails so often by itself does not run
# so many runs of one variant lost in a row: the infrastructure does not come back by
# itself
MOST_LOST = 2


class CountedRun(NamedTuple):
    """A run that counts."""

    place: int  # among the measured ones, warm-ups too
    variant: int
    logarithm: float  # of its step time
    # how far that may be off by the printed digits, in all runs of a variant alike
    rounding: float = 0.0


def list_measured(trials: Sequence[Trial]) -> list[CountedRun]:
    """Return the runs that count, in order."""
    measured = [trial for trial in trials if trial.outcome is TrialOutcome.MEASURED]
    return [
        CountedRun(place, trial.variant, math.log(trial.step_time_ms), trial.rounding)
        for place, trial in enumerate(measured)
        if not trial.discarded and trial.step_time_ms
    ]


def is_measured(trial: Trial, variants: Collection[int]) -> bool:
    """Return True for a run of one of these variants that counts."""
    return (
        trial.outcome is TrialOutcome.MEASURED
        and not trial.discarded
        and trial.variant in variants
    )


def count_measured(trials: Sequence[Trial], variant: int) -> int:
    """Count the runs of a variant that count."""
    return sum(is_measured(trial, (variant,)) for trial in trials)


def find_failure(trials: Sequence[Trial], variant: int) -> TrialOutcome | None:
    """Find the reason a variant gets no further run: DOES_NOT_RUN or LOST, if any.

    It failed twice by itself, also as a warm-up, or the infrastructure failed it twice
    in a row.
    """
    outcomes = [trial.outcome for trial in trials if trial.variant == variant]
    if outcomes.count(TrialOutcome.DOES_NOT_RUN) >= MOST_FAILURES:
        return TrialOutcome.DOES_NOT_RUN
    last = outcomes[-MOST_LOST:]
    is_lost = len(last) == MOST_LOST and set(last) == {TrialOutcome.LOST}
    return TrialOutcome.LOST if is_lost else None


# --- the order of pairs ---------------------------------------------------------------


def find_round_end(
    trials: Sequence[Trial], variants: Sequence[int], rounds: int
) -> int | None:
    """Return how many trials there were when each variant had so many runs; None where
    one has fewer."""
    left = dict.fromkeys(variants, rounds)
    for place, trial in enumerate(trials):
        if is_measured(trial, variants):
            left[trial.variant] -= 1
            if max(left.values()) <= 0:
                return place + 1
    return None if rounds else 0


def choose_in_round(
    trials: Sequence[Trial], variants: Sequence[int], rounds: int
) -> int:
    """Return the variant that is run next in a round that has not ended (from 1 on).

    Rounds go forward, back, back, forward (AB BA BA AB), which keeps a drift out of the
    difference. What was lost or failed is made again at the end of its round.
    """
    start = find_round_end(trials, variants, rounds - 1) or 0
    tried = {trial.variant for trial in trials[start:] if not trial.discarded}
    order = list(variants) if rounds % 4 in (0, 1) else list(reversed(variants))
    missing = [variant for variant in order if count_measured(trials, variant) < rounds]
    return next((variant for variant in missing if variant not in tried), missing[0])


def choose_warm_up(
    trials: Sequence[Trial], variants: Sequence[int], allocation: int | None
) -> NextTrial | None:
    """Return the warm-up that is due in a shared allocation, where the first run of
    each variant is discarded."""
    if allocation is None:
        return None
    warm = {
        trial.variant
        for trial in trials
        if trial.discarded
        and trial.allocation == allocation
        and trial.outcome is TrialOutcome.MEASURED
    }
    # what does not come up is left to the runs that count, whose failures end it
    given_up = {variant for variant in variants if find_failure(trials, variant)}
    cold = (variant for variant in variants if variant not in warm | given_up)
    return next((NextTrial(variant, discarded=True) for variant in cold), None)


def get_level(pairs: int, earlier: Noise | None, arms: int = 1) -> float:
    """Return the one-sided level of the look after so many pairs; several arms share it
    (Bonferroni)."""
    return (LEVELS_WITH_NOISE if earlier else LEVELS)[pairs - FIRST_LOOK] / arms


# --- the trials of a history ----------------------------------------------------------


MOST_ALLOCATIONS = 3
"""So many may end before their runs did; each further run is a job of its own."""

OWN = (Blame.RUN, Blame.HUNG)
"""The failures of a variant itself: a run that ended with any other is made again."""

NAMES = {Purpose.COMPARE_VARIANTS: "A/B", Purpose.BISECT: "search"}


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The policy of an A/B or a search: the variants of a configuration, and how their
    runs get nodes."""

    variants: tuple[
        JobSpec, ...
    ]  # the reference of an A/B first, builds in their order
    allocation: AllocationPlan | None = None  # None: each run is a job of its own
    most: int = 1  # runs, warm-ups included
    cap: int | None = None  # the most runs of a search that count, if a file states it
    cluster: str = ""
    earlier: Noise | None = None  # of earlier A/Bs of the configuration

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variants."""
        return tuple(spec.variant for spec in self.variants)


@dataclass(slots=True)
class TrialLedger:
    """The trials of a configuration, by the numbers of their runs, and the allocations
    in which they were made."""

    plan: TrialPlan
    shared: AllocationPlan | None  # None: each (further) run is a job of its own
    because: str = ""  # the reason
    newest: int = 0  # the number of the newest allocation
    ended: set[int] = field(default_factory=set)  # the numbers of ended allocations
    trials: dict[int, Trial] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)  # "" if there is none
    nodes_of: dict[int, tuple[str, ...]] = field(default_factory=dict)
    next_number: int = 1

    @property
    def made(self) -> list[Trial]:
        """The trials in the order in which they were made."""
        return [self.trials[number] for number in sorted(self.trials)]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the first run that was measured; none before it."""
        return next((self.nodes_of[number] for number in self._list_measured()), ())

    @property
    def allocations(self) -> frozenset[int]:
        """The allocations in which a run was measured."""
        numbers = (self.trials[number].allocation for number in self._list_measured())
        return frozenset(numbers) - {0}

    @property
    def allocation(self) -> int | None:
        """The number of the next run's allocation, which may be a new one."""
        if self.shared is None or len(self.ended) >= MOST_ALLOCATIONS:
            return None
        return self.newest + 1 if self.newest in self.ended else self.newest

    def end_allocation(self, ended: EndedJob) -> None:
        """Record the end of an allocation."""
        job, end = ended.job, ended.end
        self.ended.add(job.repeat)
        state = job.status.state if job.status else ""
        if (end.blame is Blame.RUN and state == "FAILED") or not get_nodes(job):
            self.shared = None
            self.because = f"no nodes could be held: {job.problem or end.text}"
        elif len(self.ended) >= MOST_ALLOCATIONS:
            self.because = f"{len(self.ended)} allocations ended too early; {end.text}"

    def _list_measured(self) -> Iterator[int]:
        measured = TrialOutcome.MEASURED
        return (
            number
            for number in sorted(self.trials)
            if self.trials[number].outcome is measured
        )


def read_ledger(history: RunHistory, plan: TrialPlan) -> TrialLedger:
    """Read the trials, in the order in which their jobs ended."""
    held = plan.allocation
    ledger = TrialLedger(plan, held, held.because if held else "", newest=1)
    if held is None or held.spec is None:
        ledger.shared, ledger.newest = None, 0
    for ended in history.ended:
        job = ended.job
        if job.spec.purpose is Purpose.ALLOCATION:
            ledger.end_allocation(ended)
            continue
        ledger.next_number = max(ledger.next_number, job.repeat + 1)
        if job.spec.variant not in plan.names:  # a build that was taken out of the list
            continue
        if job.refused and job.spec.allocation in ledger.ended:
            continue  # it came too late, and is no run at all
        _add_trial(ledger, ended)
    for asked in history.asked:
        if asked.spec.purpose is Purpose.ALLOCATION:
            ledger.newest = max(ledger.newest, asked.repeat)
    return ledger


def _add_trial(ledger: TrialLedger, ended: EndedJob) -> None:
    job, spec = ended.job, ended.job.spec
    ledger.newest = max(ledger.newest, spec.allocation)
    if not spec.allocation:
        ledger.shared = None
    outcome, problem = _find_outcome(ended, ledger)
    seconds, rounding = None, 0.0
    if ended.time:
        rounding = ended.time.rounding
    if ended.time and outcome is TrialOutcome.MEASURED:
        seconds = ended.time.seconds
    if _is_log_missing(ended):
        # the next run in it has the same job id, and may write into that log, which
        # may only not be seen yet
        ledger.ended.add(spec.allocation)
    milliseconds = seconds * 1000 if seconds else None
    variant = ledger.plan.names.index(spec.variant)
    ledger.trials[job.repeat] = Trial(
        variant, outcome, milliseconds, spec.warm_up, spec.allocation, rounding
    )
    ledger.problems[job.repeat] = problem
    ledger.nodes_of[job.repeat] = get_nodes(job)


def _find_outcome(ended: EndedJob, ledger: TrialLedger) -> tuple[TrialOutcome, str]:
    """Find what became of a run, and the problem if it was not measured."""
    if ended.time is None:
        return _find_failure(ended)
    if not ended.time.seconds:
        return TrialOutcome.DOES_NOT_RUN, ended.time.problem
    elsewhere = _describe_other_nodes(get_nodes(ended.job), ledger.nodes)
    outcome = TrialOutcome.LOST if elsewhere else TrialOutcome.MEASURED
    return outcome, elsewhere


def _find_failure(ended: EndedJob) -> tuple[TrialOutcome, str]:
    """Distinguish a variant that does not run from a run that was lost."""
    text = ended.problem.text if ended.problem else ""
    reason = ended.problem.reason if ended.problem else None
    if _ended_with_allocation(ended):
        return TrialOutcome.LOST, f"its allocation ended: {text}"
    if _is_log_missing(ended):
        return TrialOutcome.LOST, text
    if ended.end.blame in OWN or reason is Reason.WRONG_CONFIGURATION:
        return TrialOutcome.DOES_NOT_RUN, text
    return TrialOutcome.LOST, text


def _ended_with_allocation(ended: EndedJob) -> bool:
    """True for a run that has no exit code of its own, and did not hang either."""
    if not ended.job.spec.allocation or ended.job.status is None:
        return False
    return not ended.job.status.exit_code and ended.end.blame is not Blame.HUNG


def _is_log_missing(ended: EndedJob) -> bool:
    """True for a run in an allocation whose log is not seen (yet)."""
    reason = ended.problem.reason if ended.problem else None
    missing = reason is Reason.LOG_MISSING and not _ended_with_allocation(ended)
    return missing and ended.job.spec.allocation > 0


def _describe_other_nodes(nodes: Sequence[str], first: Sequence[str]) -> str:
    """Describe why a run cannot be compared with those on the nodes of the first."""
    if not nodes:
        return "nothing says on which nodes it ran"
    if first and set(nodes) != set(first):
        where = formatting.fold_nodes(nodes)
        return f"it ran on {where}, not on the nodes of the first run"
    return ""


# --- the next run ---------------------------------------------------------------------


def plan_trial(ledger: TrialLedger, step: NextTrial) -> NextRuns:
    """Build the jobs of the next trial: a run, after its allocation if that is new."""
    spec, nodes = ledger.plan.variants[step.variant], ledger.nodes
    allocation, shared = ledger.allocation, ledger.shared
    if allocation is None or shared is None:
        run = NextJob(_pin(spec, nodes), 1, ledger.next_number)
        return NextRuns((run,), releases=True)
    placed = place_run(spec, allocation, warm_up=step.discarded)
    run = NextJob(placed, 1, ledger.next_number)
    counted = sum(is_measured(trial, (trial.variant,)) for trial in ledger.made)
    held = shared.size(max(ledger.plan.most - counted, 1))
    if allocation == ledger.newest or held is None:
        return NextRuns((run,))
    return NextRuns((NextJob(_pin(held, nodes), 1, allocation), run), releases=True)


def _pin(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    """Give a job exactly these nodes, if there are any and it needs some."""
    if not nodes or load_scheduler(spec.via).here:
        return spec
    return dataclasses.replace(pin_nodes(spec, nodes), exclude=())


# --- the end --------------------------------------------------------------------------


def conclude_trials(
    ledger: TrialLedger,
    text: str,
    reason: Reason,
    report: TrialReport,
    *,
    failed: bool = False,
) -> Conclusion:
    """Conclude with the answers of a report; `failed`: the last failed run is
    quoted."""
    report = dataclasses.replace(
        report,
        nodes=ledger.nodes,
        allocations=len(ledger.allocations),
        separate_because=ledger.because,
        cluster=ledger.plan.cluster,
        earlier=ledger.plan.earlier,
    )
    problems = [problem for problem in ledger.problems.values() if problem]
    quoted = problems[-1:] if failed else []
    text = join_texts(_add_place(text, ledger), *quoted)
    return _end_trials(ledger, text, reason, report)


def conclude_without_hours(ledger: TrialLedger, purpose: Purpose) -> Conclusion:
    """Conclude without an answer: no GPU-hours are left for the next run."""
    text = f"the {NAMES[purpose]} has no end: a further run was not started"
    return _end_trials(ledger, _add_place(text, ledger), Reason.PURPOSE_MISSED, None)


def _end_trials(
    ledger: TrialLedger, text: str, reason: Reason, report: TrialReport | None
) -> Conclusion:
    because = ledger.because if ledger.newest else ""
    return Conclusion(
        reason=reason,
        text=text,
        done=reason is not Reason.PURPOSE_MISSED,
        trials=TrialFacts(ledger.trials, ledger.problems, ledger.allocations),
        report=report,
        note=f"the last runs were jobs of their own: {because}" if because else "",
    )


def _add_place(text: str, ledger: TrialLedger) -> str:
    nodes, allocations = ledger.nodes, len(ledger.allocations)
    where = [f"on {formatting.fold_nodes(nodes)}"] if nodes else []
    if allocations:
        where.append(f"in {formatting.count_noun(allocations, 'allocation')}")
    return f"{text} ({', '.join(where)})" if where else text
