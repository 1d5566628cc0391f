"""Policy that repeats a run until its verdict is certain, and restarts broken jobs.

A failed verdict is never retried: the run is repeated, and every run counts.
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

ONE_ANALYSIS = DecisionRule()  # both answers at the 5 % level
ONE_ANALYSIS_OF_SEVERAL = DecisionRule(fewest=2)

# Interim analyses after one, two and three runs. Each may PASS; the second and third
# may find a REGRESSION. Together they are wrong at the bound in 4 % of cases
# (docs/explanation/statistics.md). A single run never proves a REGRESSION: its nodes may be slow.
SEQUENTIAL = DecisionRule(0.0222, 0.03, fewest=2)

# Analyses after one and three runs; only the last may find a REGRESSION.
CONCURRENT = DecisionRule(0.0295, 0.05, fewest=2)


@dataclass(frozen=True, slots=True)
class RepeatPolicy:
    """Limits of a configuration: number of runs, and restarts of a broken run."""

    most: int = 3  # runs
    required: int = 1  # runs that are made in any case, and then judged once
    at_once: bool = False  # True if the repeats run at the same time
    always: bool = False  # True if all runs are made, whatever the first shows
    retries: int = 1  # restarts of a run that the infrastructure ended


def plan_repeats(
    settings: LaunchSettings, required: int = 1, *, always: bool = False
) -> RepeatPolicy:
    """Build the repeat policy of a configuration that requires `required` runs."""
    return RepeatPolicy(
        settings.repeats, required, settings.repeats_at_once, always, settings.retries
    )


def choose_decision_rule(policy: RepeatPolicy) -> DecisionRule:
    """Choose the significance levels of each interim analysis of a launch."""
    if policy.most == 1:
        return ONE_ANALYSIS
    if policy.required > 1:
        return ONE_ANALYSIS_OF_SEVERAL
    return CONCURRENT if policy.at_once else SEQUENTIAL


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


# --- restarts -------------------------------------------------------------------------


def choose_retry(history: RunHistory, retries: int) -> NextRuns | None:
    """Choose the next attempt of the job that ended last, or None.

    After an infrastructure failure the attempt avoids the node that the log names, else
    all nodes of the job. A job that was refused because of its excluded nodes is
    retried without that exclusion.
    """
    if not (history.policy_jobs and history.may_retry and history.may_start):
        return None
    last = history.policy_jobs[-1]
    job = last.job
    if job.submission is SubmissionState.UNCERTAIN or history.has_next_attempt(job):
        return None
    # the exclusions of the policy; if the job had just these, only the requested ones
    exclude = history.run_spec.exclude
    if job.spec.exclude == exclude:
        exclude = history.spec.exclude
    if _was_refused(job) and job.spec.exclude != exclude:
        spec = dataclasses.replace(job.spec, exclude=exclude)
        return NextRuns(
            (NextJob(spec, job.attempt + 1, job.repeat),), on_excluded_nodes=True
        )
    if not _may_retry(history.ended, last, retries):
        return None
    spec = avoid_nodes(job.spec, last.failed_nodes or get_nodes(job))
    return NextRuns((NextJob(spec, job.attempt + 1, job.repeat),))


def _may_retry(ended: Sequence[EndedJob], last: EndedJob, retries: int) -> bool:
    """True if the `last` ended job may be started again.

    This is the first hung job of the configuration, or a job that the infrastructure
    ended while retries of its run remain. A second hung job counts as a real failure:
    new software may deadlock.
    """
    same_blame = [earlier for earlier in ended if earlier.end.blame is last.end.blame]
    if last.end.blame is Blame.HUNG:
        return retries > 0 and len(same_blame) == 1
    of_run = [
        earlier for earlier in same_blame if earlier.job.repeat == last.job.repeat
    ]
    return last.end.blame is Blame.INFRASTRUCTURE and len(of_run) <= retries


def _was_refused(job: Job) -> bool:
    """True if a job got no nodes: it was refused, or cancelled while it waited."""
    status = job.status
    if job.refused or status is None:
        return job.refused
    return load_scheduler(job.spec.via).is_refused(status) or _is_given_up(status)


def _is_given_up(status: JobStatus) -> bool:
    """True if this session cancelled the job before it started."""
    cancelled = status.ended_by is EndedBy.PYTEST and status.state == "CANCELLED"
    return cancelled and not status.nodes


# --- repeats --------------------------------------------------------------------------


def _choose_repeats(
    history: RunHistory, judgement: Judgement, policy: RepeatPolicy
) -> tuple[NextJob, ...]:
    """Choose the repeats that a verdict needs.

    After a failed verdict they avoid the nodes used so far, if the cluster has others.
    """
    counted = history.counted
    if history.failures or not history.may_start:
        return ()
    missing = count_next_runs(policy, judgement, len(counted))
    used = [node for ended in history.runs.values() for node in get_nodes(ended.job)]
    reuses_nodes = policy.always or judgement.verdict in GREEN
    spec = history.run_spec
    if not (reuses_nodes or history.any_nodes):
        spec = avoid_nodes(spec, used)
    free_numbers = (
        number for number in count(1) if number not in counted
    )  # may fill gaps
    return tuple(NextJob(spec, 1, number) for number in islice(free_numbers, missing))


def count_next_runs(policy: RepeatPolicy, judgement: Judgement, done: int) -> int:
    """Count the runs to start after a judgement of `done` runs; 0 if it is final.

    A PASS is final at any analysis, a REGRESSION from the second run on. Further runs
    cannot help if a run could not be judged, or if a checkpoint exceeded its budget.
    """
    if policy.always:
        return policy.most - 1 if done == 1 else 0
    if judgement.verdict not in JUDGED or judgement.reason is Reason.OVER_BUDGET:
        return 0
    if policy.required > 1:
        return max(policy.required - done, 0)
    is_slow_twice = judgement.verdict is Verdict.REGRESSION and done > 1
    if judgement.verdict in GREEN or is_slow_twice or done >= policy.most:
        return 0
    return policy.most - done if policy.at_once else 1


def _conclude(
    history: RunHistory, result: ConfigurationResult, policy: RepeatPolicy
) -> Conclusion:
    """End the measured runs of a configuration with their verdict.

    Failed runs are lost GPU-hours; an INVALID result makes all runs lost.
    """
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
    """Make a result INVALID if a repeat failed.

    An INCONCLUSIVE result could otherwise pass without the failed repeat. A REGRESSION
    stays, unless a repeat hung.
    """
    judgement = result.judgement
    hung = [problem for problem in failures.values() if problem.reason is Reason.HUNG]
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
    """Conclude a configuration that is not judged.

    The conclusion states the problem of the first failed run. Without a failed run the
    purpose of the jobs is not to measure, and the conclusion states if it was served.
    """
    for failed in history.counted.values():
        if failed.problem:
            return Conclusion(
                reason=failed.problem.reason,
                text=failed.problem.text,
                run=failed.dated_run,
                lost=frozenset(history.failures),
            )
    (ended, *_) = history.runs.values()
    return _conclude_purpose(history, ended)


def _conclude_purpose(history: RunHistory, ended: EndedJob) -> Conclusion:
    """End a run that profiles, traces, saves or loads instead of being judged."""
    purpose, run = history.spec.purpose, ended.dated_run
    if run is None:
        raise ValueError(f"{history.spec.case_id}: a run that was judged has no log")
    proof = _find_proof(purpose, history.files, run)
    evidence = proof or "the job succeeded, but left no evidence of it"
    logs = tuple(attempt.files.log for attempt in run.attempts)
    if purpose is Purpose.SAVE_CHECKPOINT:
        saves = "it was launched to save one"
        run = dataclasses.replace(
            run, found=dataclasses.replace(run.found, saves=saves)
        )
    return Conclusion(
        reason=Reason.PURPOSE_DONE if proof else Reason.PURPOSE_MISSED,
        text=f"{purpose}: {evidence}; not judged for speed",
        done=bool(proof),
        run=run,
        # the log may be the requested output
        files=logs if proof and not history.files else (),
        lost=frozenset() if proof else frozenset(history.counted),
    )


def _find_proof(purpose: Purpose, files: Sequence[Path], run: Run) -> str:
    """Return the evidence that a job served its purpose (files or a log line), or ""."""
    logs = [attempt.log for attempt in run.attempts]
    if purpose is Purpose.LOAD_CHECKPOINT:
        line = max(log.checkpoints.load_line for log in logs)
        return f"line {line} of the log reports it" if line else ""
    if purpose is Purpose.NCCL_TRACE:
        line = max(log.nccl_line for log in logs)
        return f"the trace begins in line {line} of the log" if line else ""
    noun = "checkpoint" if purpose is Purpose.SAVE_CHECKPOINT else "file"
    return f"left {formatting.count_noun(len(files), noun)}" if files else ""
