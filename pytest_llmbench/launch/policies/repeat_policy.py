"""Repeat a run until its verdict is certain, and start it again after a broken node.

A failed verdict is never retried: it is repeated, and every run counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import JUDGED, Reason, Verdict
from pytest_llmbench.core.job_records import (
    Blame,
    EndedBy,
    Job,
    JobStatus,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.judgement_records import DecisionRule, Judgement
from pytest_llmbench.core.outcome_records import ConfigurationResult
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.policies.run_history import (
    Conclusion,
    EndedJob,
    NeedsVerdict,
    NextRuns,
    RunHistory,
    RunProblem,
    avoid_nodes,
    get_nodes,
)
from pytest_llmbench.launch.schedulers.registry import load_scheduler
from pytest_llmbench.report.wording import phrase

GREEN = (Verdict.PASS, Verdict.IMPROVEMENT)

ONE_LOOK = DecisionRule()  # both answers at 5 %
ONE_LOOK_AT_SEVERAL = DecisionRule(fewest=2)

# Looks after one, two and three runs. A PASS may come at each of them, a REGRESSION
# at the second and third: together they are wrong at the bound in 4 % of cases
# (docs/statistics.md). One run never says REGRESSION, as its nodes may be slow.
IN_TURN = DecisionRule(0.0222, 0.03, fewest=2)

# Looks after one and three runs; a REGRESSION may come at the last one alone.
AT_ONCE = DecisionRule(0.0295, 0.05, fewest=2)


@dataclass(frozen=True, slots=True)
class RepeatPolicy:
    """How many runs a configuration may have, and how often one is started again."""

    most: int = 3
    asked: int = 1  # so many are made whatever they show, and judged once
    at_once: bool = False  # those after the first are made together
    always: bool = False  # all are made, whatever the first shows
    retries: int = 1  # of a run that the infrastructure ended


def plan_repeats(
    settings: LaunchSettings, asked: int = 1, *, always: bool = False
) -> RepeatPolicy:
    """Build the policy of a configuration for which a file asks for `asked` runs."""
    return RepeatPolicy(
        settings.repeats, asked, settings.repeats_at_once, always, settings.retries
    )


def choose_decision_rule(policy: RepeatPolicy) -> DecisionRule:
    """Choose the levels at which the runs of a launch are judged each time."""
    if policy.most == 1:
        return ONE_LOOK
    if policy.asked > 1:
        return ONE_LOOK_AT_SEVERAL
    return AT_ONCE if policy.at_once else IN_TURN


def next_runs(
    history: RunHistory, policy: RepeatPolicy
) -> NextRuns | NeedsVerdict | Conclusion:
    """Choose the next attempt or the repeats, or conclude."""
    if again := choose_retry(history, policy.retries):
        return again
    if history.pending:
        return NextRuns()
    if not history.runs or history.spec.purpose is not Purpose.MEASURE:
        return _conclude_unjudged(history)
    if history.verdict is None:
        return NeedsVerdict()
    repeats = _choose_repeats(history, history.verdict.judgement, policy)
    return NextRuns(repeats) if repeats else _conclude(history, history.verdict, policy)


# --- the same run again ---------------------------------------------------------------


def choose_retry(history: RunHistory, retries: int) -> NextRuns | None:
    """Choose the next attempt of the job that ended last.

    It gets other nodes if the infrastructure failed: not the node that its log names,
    else none of its own. A job that was refused for the nodes that it avoids gets them.
    """
    if not (history.own and history.may_retry and history.may_start):
        return None
    last = history.own[-1]
    job = last.job
    if job.submission is SubmissionState.UNCERTAIN or history.is_made_again(job):
        return None
    exclude = history.run_spec.exclude
    if job.spec.exclude == exclude:
        exclude = history.spec.exclude
    if _was_refused(job) and job.spec.exclude != exclude:
        spec = dataclasses.replace(job.spec, exclude=exclude)
        return NextRuns((NextJob(spec, job.attempt + 1, job.repeat),), elsewhere=True)
    if not _may_retry(history.ended, last, retries):
        return None
    spec = avoid_nodes(job.spec, last.failed_nodes or get_nodes(job))
    return NextRuns((NextJob(spec, job.attempt + 1, job.repeat),))


def _may_retry(ended: Sequence[EndedJob], last: EndedJob, retries: int) -> bool:
    """True for the first hung job, and for as many broken ones of a run as allowed.

    A second hung job is no accident: new software deadlocks, too.
    """
    alike = [each for each in ended if each.end.blame is last.end.blame]
    if last.end.blame is Blame.HUNG:
        return retries > 0 and len(alike) == 1
    of_run = [each for each in alike if each.job.repeat == last.job.repeat]
    return last.end.blame is Blame.INFRASTRUCTURE and len(of_run) <= retries


def _was_refused(job: Job) -> bool:
    """True if a job got no nodes: refused, or given up while it waited."""
    status = job.status
    if job.refused or status is None:
        return job.refused
    return load_scheduler(job.spec.via).is_refused(status) or _is_given_up(status)


def _is_given_up(status: JobStatus) -> bool:
    """True if this session cancelled a job before it started."""
    cancelled = status.ended_by is EndedBy.PYTEST and status.state == "CANCELLED"
    return cancelled and not status.nodes


# --- repeats --------------------------------------------------------------------------


def _choose_repeats(
    history: RunHistory, judgement: Judgement, policy: RepeatPolicy
) -> tuple[NextJob, ...]:
    """Choose the repeats that a verdict needs, on other nodes than the runs so far."""
    made = history.counted
    if history.failures or not history.may_start:
        return ()
    wanted = count_next_runs(policy, judgement, len(made))
    used = [node for each in history.runs.values() for node in get_nodes(each.job)]
    nothing_to_learn = policy.always or judgement.verdict in GREEN  # of its nodes
    spec = history.run_spec
    if not (nothing_to_learn or history.anywhere):
        spec = avoid_nodes(spec, used)
    free = (number for number in count(1) if number not in made)  # there may be gaps
    return tuple(NextJob(spec, 1, number) for number in islice(free, wanted))


def count_next_runs(policy: RepeatPolicy, judgement: Judgement, done: int) -> int:
    """Count the runs that follow the `done` ones behind a judgement; 0: it persists.

    A PASS persists at any look, a REGRESSION from the second run on. No run changes
    that one could not be judged, or that a checkpoint took too long.
    """
    if policy.always:
        return policy.most - 1 if done == 1 else 0
    if judgement.verdict not in JUDGED or judgement.reason is Reason.OVER_BUDGET:
        return 0
    if policy.asked > 1:
        return max(policy.asked - done, 0)
    is_slow_twice = judgement.verdict is Verdict.REGRESSION and done > 1
    if judgement.verdict in GREEN or is_slow_twice or done >= policy.most:
        return 0
    return policy.most - done if policy.at_once else 1


def _conclude(
    history: RunHistory, result: ConfigurationResult, policy: RepeatPolicy
) -> Conclusion:
    judgement = result.judgement
    unjudged = judgement.verdict is Verdict.INVALID
    if judgement.reason is Reason.NO_BASELINE:
        unjudged = False
    return Conclusion(
        add_failures(result, history.failures),
        lost=frozenset(history.counted if unjudged else history.failures),
        names_nodes=not history.failures and not policy.always,
    )


def add_failures(
    result: ConfigurationResult, failures: Mapping[int, RunProblem]
) -> ConfigurationResult:
    """Make a result INVALID if a repeat failed: an inconclusive one could be green."""
    judgement = result.judgement
    hung = [each for each in failures.values() if each.reason is Reason.HUNG]
    if not failures or judgement.verdict is Verdict.INVALID:
        return result
    if judgement.verdict is Verdict.REGRESSION and not hung:
        return result
    first = hung[0] if hung else failures[min(failures)]
    invalid = dataclasses.replace(
        judgement,
        verdict=Verdict.INVALID,
        reason=first.reason,
        statements=(first.text, f"{phrase(judgement)} without it"),
    )
    return dataclasses.replace(result, judgement=invalid)


# --- jobs that are not judged ---------------------------------------------------------


def _conclude_unjudged(history: RunHistory) -> Conclusion:
    """Conclude from the failure of a run; without one, from what the job left."""
    for each in history.counted.values():
        if each.problem:
            return Conclusion(
                reason=each.problem.reason,
                text=each.problem.text,
                run=each.dated_run,
                lost=frozenset(history.failures),
            )
    (ended, *_) = history.runs.values()
    return _conclude_purpose(history, ended)


def _conclude_purpose(history: RunHistory, ended: EndedJob) -> Conclusion:
    purpose, run = history.spec.purpose, ended.dated_run
    if run is None:
        raise ValueError(f"{history.spec.case_id}: a run that was judged has no log")
    proof = _find_proof(purpose, history.files, run)
    found = proof or "the job ended well, but left no sign of it"
    logs = tuple(attempt.files.log for attempt in run.attempts)
    if purpose is Purpose.SAVE_CHECKPOINT:
        saves = "it was launched to save one"
        run = dataclasses.replace(
            run, found=dataclasses.replace(run.found, saves=saves)
        )
    return Conclusion(
        reason=Reason.PURPOSE_DONE if proof else Reason.PURPOSE_MISSED,
        text=f"{purpose}: {found}; not judged for speed",
        done=bool(proof),
        run=run,
        # the log may be what was asked for
        files=logs if proof and not history.files else (),
        lost=frozenset() if proof else frozenset(history.counted),
    )


def _find_proof(purpose: Purpose, files: Sequence[Path], run: Run) -> str:
    """Find what shows that a job did what it was for: its files, or a line of its
    log."""
    logs = [attempt.log for attempt in run.attempts]
    if purpose is Purpose.LOAD_CHECKPOINT:
        line = max(log.checkpoints.load_line for log in logs)
        return f"the log says so in line {line}" if line else ""
    if purpose is Purpose.NCCL_TRACE:
        line = max(log.nccl_line for log in logs)
        return f"the trace begins in line {line} of the log" if line else ""
    noun = "checkpoint" if purpose is Purpose.SAVE_CHECKPOINT else "file"
    return f"left {formatting.count_noun(len(files), noun)}" if files else ""
