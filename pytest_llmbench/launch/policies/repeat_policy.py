"""Policy that repeats a run until its verdict is certain, and restarts broken jobs.

A failed verdict is never retried: the run is repeated, and every run counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, islice
from pathlib import Path

from msgspec import Struct, structs

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

PASSED = (Verdict.PASS, Verdict.IMPROVEMENT)

ONE_ANALYSIS = DecisionRule()  # both answers at the 5 % level
ONE_ANALYSIS_OF_SEVERAL = DecisionRule(fewest=2)

# Interim analyses after one, two and three runs. Each may PASS; the second and third
# may find a REGRESSION. Together they are wrong at the bound in 4 % of cases
# (docs/explanation/statistics.md). A single run never proves a REGRESSION: its nodes may be slow.
SEQUENTIAL = DecisionRule(0.0222, 0.03, fewest=2)

# Analyses after one and three runs; only the last may find a REGRESSION.
CONCURRENT = DecisionRule(0.0295, 0.05, fewest=2)


class RepeatPolicy(Struct, frozen=True):
    """Limits of a configuration: number of runs, and restarts of a broken run."""

    most: int = 3  # runs
    required: int = 1  # runs that are made in any case, and then judged once
    at_once: bool = False  # True if the repeats run at the same time
    always: bool = False  # True if all runs are made, whatever the first shows
    retries: int = 1  # restarts of a run that the infrastructure ended


def plan_repeats(
    settings: LaunchSettings, required: int = 1, *, always: bool = False
) -> RepeatPolicy:
    """Build the repeat policy of a configuration that requires `required` runs.

    With `always`, all runs are made, whatever the first shows.
    """
    return RepeatPolicy(
        most=settings.repeats,
        required=required,
        at_once=settings.repeats_at_once,
        always=always,
        retries=settings.retries,
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
    if retry := choose_retry(history, policy.retries):
        return retry
    if history.pending:  # wait for the runs that have not ended
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
    # a job that may have been submitted may still run: never submit it again
    if job.submission is SubmissionState.UNCERTAIN or history.has_next_attempt(job):
        return None
    # 1. If too few nodes were left for the job, exclude fewer: drop the nodes of failed
    # attempts; if the job excluded none of these, drop the slow nodes.
    fewer_excluded = history.run_spec.exclude
    if job.spec.exclude == fewer_excluded:
        fewer_excluded = history.spec.exclude
    if _was_refused(job) and job.spec.exclude != fewer_excluded:
        spec = structs.replace(job.spec, exclude=fewer_excluded)
        next_job = NextJob(spec, attempt=job.attempt + 1, repeat=job.repeat)
        return NextRuns((next_job,), on_excluded_nodes=True)
    # 2. After an infrastructure failure, start again on other nodes.
    if not _may_retry(history.ended, last, retries):
        return None
    spec = avoid_nodes(job.spec, last.failed_nodes or get_nodes(job))
    return NextRuns((NextJob(spec, attempt=job.attempt + 1, repeat=job.repeat),))


def _may_retry(ended: Sequence[EndedJob], last: EndedJob, retries: int) -> bool:
    """True if the `last` ended job may be started again.

    True if `last` is the first hung job of the configuration, or if the infrastructure
    ended it and retries of its run remain. A second hung job counts as a real failure:
    new software may deadlock.
    """
    # both lists include `last`
    same_blame = [job for job in ended if job.end.blame is last.end.blame]
    same_run = [job for job in same_blame if job.job.repeat == last.job.repeat]
    if last.end.blame is Blame.HUNG:
        return retries > 0 and len(same_blame) == 1
    return last.end.blame is Blame.INFRASTRUCTURE and len(same_run) <= retries


def _was_refused(job: Job) -> bool:
    """True if a job got no nodes: it was refused, or cancelled while it waited."""
    if job.refused:
        return True
    status = job.status
    if status is None:
        return False
    scheduler = load_scheduler(job.spec.via)
    return scheduler.is_refused(status) or _was_cancelled_waiting(status)


def _was_cancelled_waiting(status: JobStatus) -> bool:
    """True if this session cancelled the job before it started."""
    was_cancelled = status.ended_by is EndedBy.PYTEST and status.state == "CANCELLED"
    return was_cancelled and not status.nodes


# --- repeats --------------------------------------------------------------------------


def _choose_repeats(
    history: RunHistory, judgement: Judgement, policy: RepeatPolicy
) -> tuple[NextJob, ...]:
    """Choose the repeats that a verdict needs.

    After a failed verdict the repeats avoid the nodes used so far, if the cluster has
    others.
    """
    if history.failures or not history.may_start:
        return ()
    spec = history.run_spec
    may_reuse_nodes = policy.always or judgement.verdict in PASSED or history.any_nodes
    if not may_reuse_nodes:
        used_nodes = [
            node for ended in history.runs.values() for node in get_nodes(ended.job)
        ]
        spec = avoid_nodes(spec, used_nodes)
    counted = history.counted  # by repeat number, which may have gaps
    missing_count = count_next_runs(policy, judgement, done=len(counted))
    free_numbers = (number for number in count(1) if number not in counted)
    return tuple(
        NextJob(spec, repeat=number) for number in islice(free_numbers, missing_count)
    )


def count_next_runs(policy: RepeatPolicy, judgement: Judgement, done: int) -> int:
    """Count the runs to start after a judgement of `done` runs; 0 if it is final.

    A PASS is final at any analysis, a REGRESSION from the second run on. Further runs
    cannot help if a run could not be judged, or if a checkpoint exceeded its budget.
    """
    if policy.always:  # all other runs follow the first run together
        return policy.most - 1 if done == 1 else 0
    if judgement.verdict not in JUDGED or judgement.reason is Reason.OVER_BUDGET:
        return 0
    if policy.required > 1:
        return max(policy.required - done, 0)
    is_confirmed_slow = judgement.verdict is Verdict.REGRESSION and done > 1
    if judgement.verdict in PASSED or is_confirmed_slow or done >= policy.most:
        return 0
    return policy.most - done if policy.at_once else 1


def _conclude(
    history: RunHistory, result: ConfigurationResult, policy: RepeatPolicy
) -> Conclusion:
    """End the measured runs of a configuration with their verdict.

    Failed runs are lost GPU-hours; an INVALID result makes all runs lost. Suspect nodes
    get no further run after a failed run, or if the runs record a baseline
    (`policy.always`).
    """
    judgement = result.judgement
    # without a baseline, the runs themselves are usable
    are_all_lost = (
        judgement.verdict is Verdict.INVALID
        and judgement.reason is not Reason.NO_BASELINE
    )
    return Conclusion(
        add_failures(result, history.failures),
        lost=frozenset(history.counted if are_all_lost else history.failures),
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
    if not failures or judgement.verdict is Verdict.INVALID:
        return result
    hung = [problem for problem in failures.values() if problem.reason is Reason.HUNG]
    if judgement.verdict is Verdict.REGRESSION and not hung:
        return result
    first_repeat = min(failures)
    problem = hung[0] if hung else failures[first_repeat]
    invalid = structs.replace(
        judgement,
        verdict=Verdict.INVALID,
        reason=problem.reason,
        statements=(problem.text, f"{phrase(judgement)} without it"),
    )
    return structs.replace(result, judgement=invalid)


# --- jobs that are not judged ---------------------------------------------------------


def _conclude_unjudged(history: RunHistory) -> Conclusion:
    """Conclude a configuration that is not judged.

    The conclusion states the problem of the first failed run. Without a failed run, the
    jobs had another purpose, such as a profile: the conclusion states whether they
    served it.
    """
    for failed in history.counted.values():
        if failed.problem:
            return Conclusion(
                reason=failed.problem.reason,
                text=failed.problem.text,
                run=failed.dated_run,
                lost=frozenset(history.failures),
            )
    (first_ended, *_) = history.runs.values()
    return _conclude_purpose(history, first_ended)


def _conclude_purpose(history: RunHistory, ended: EndedJob) -> Conclusion:
    """End a run that profiles, traces, saves or loads instead of being judged."""
    purpose, run = history.spec.purpose, ended.dated_run
    if run is None:  # not expected: a job without a log has a problem
        raise ValueError(f"{history.spec.case_id}: a run that was judged has no log")
    proof = _find_proof(purpose, history.files, run)
    evidence = proof or "the job succeeded, but left no evidence of it"
    logs = tuple(attempt.files.log for attempt in run.attempts)
    if purpose is Purpose.SAVE_CHECKPOINT:
        # `saves` explains why a checkpoint was expected in the run
        saves = "it was launched to save one"
        run = structs.replace(run, found=structs.replace(run.found, saves=saves))
    return Conclusion(
        reason=Reason.PURPOSE_DONE if proof else Reason.PURPOSE_MISSED,
        text=f"{purpose}: {evidence}; not judged for speed",
        done=bool(proof),
        run=run,
        # without other files, the log may be the requested output
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
