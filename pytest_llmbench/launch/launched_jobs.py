"""The jobs behind a result, for the reports."""

from __future__ import annotations

import dataclasses

from pytest_llmbench.core.job_records import Blame, EndedBy, LaunchedJob, Loss, Purpose
from pytest_llmbench.launch.hours_budget import measure_cost
from pytest_llmbench.launch.policies.run_history import (
    Conclusion,
    EndedJob,
    RunHistory,
    TrialFacts,
    get_nodes,
    join_texts,
)
from pytest_llmbench.session.outcomes import ConfigurationResult


def describe_jobs(
    history: RunHistory, conclusion: Conclusion, result: ConfigurationResult
) -> tuple[LaunchedJob, ...]:
    """Describe the jobs in the order in which they ended; allocations come last."""
    described = [
        _describe_job(history, ended, conclusion, result) for ended in history.ended
    ]
    if conclusion.trials is None:
        return tuple(described)
    jobs, allocations = [], []
    for ended, job in zip(history.ended, described, strict=True):
        if job.purpose is Purpose.ALLOCATION:
            allocations.append(_describe_allocation(job, conclusion.trials))
        else:
            jobs.append(_describe_trial(job, ended, conclusion.trials))
    return (*jobs, *allocations)


def _describe_job(
    history: RunHistory,
    ended: EndedJob,
    conclusion: Conclusion,
    result: ConfigurationResult,
) -> LaunchedJob:
    job, status = ended.job, ended.job.status
    files = (*history.files, *conclusion.files)
    loss = _find_loss(history, ended, conclusion)
    return LaunchedJob(
        job_id=job.job_id,
        purpose=job.spec.purpose,
        attempt=job.attempt,
        repeat=job.repeat,
        state=status.state if status else "",
        nodes=get_nodes(job),
        step_seconds=_find_step_seconds(ended, result),
        text=job.problem or ended.end.text,
        files=files if job.spec.purpose is not Purpose.MEASURE else (),
        submission=job.submission,
        ended_by=status.ended_by if status else EndedBy.OTHERS,
        started=status.started if status and status.nodes else None,
        cost=dataclasses.replace(measure_cost(job), loss=loss),
    )


def _find_step_seconds(ended: EndedJob, result: ConfigurationResult) -> float | None:
    job_id = ended.job.job_id
    for measurement in reversed(result.judgement.runs):
        if measurement.run.found.job_id == job_id:
            return measurement.statistic_seconds
    return ended.confirmation.step_seconds if ended.confirmation else None


def _find_loss(
    history: RunHistory, ended: EndedJob, conclusion: Conclusion
) -> Loss | None:
    """Find the reason a job brought nothing: replaced by another one, or not judged."""
    job, is_own = ended.job, history.is_own(ended.job.spec)
    failed = (
        job.repeat in conclusion.lost if is_own else ended.end.blame is not Blame.NONE
    )
    later = is_own and any(
        each.job.repeat == job.repeat and each.job.attempt > job.attempt
        for each in history.ended
    )
    if not (later or failed):
        return None
    return Loss.HUNG if ended.end.blame is Blame.HUNG else Loss.FAILED


def _describe_allocation(job: LaunchedJob, facts: TrialFacts) -> LaunchedJob:
    """Describe an allocation; one in which a run was measured is not lost."""
    if job.repeat not in facts.allocations:
        return job
    return dataclasses.replace(job, cost=dataclasses.replace(job.cost, loss=None))


def _describe_trial(
    job: LaunchedJob, ended: EndedJob, facts: TrialFacts
) -> LaunchedJob:
    """Describe a run of a variant: `new, to warm up; node n1 failed`."""
    trial, spec = facts.trials.get(job.repeat), ended.job.spec
    seconds = trial.step_time_ms / 1000 if trial and trial.step_time_ms else None
    name = f"{spec.variant}, to warm up" if spec.warm_up else spec.variant
    text = join_texts(name, facts.problems.get(job.repeat, "") or job.text)
    return dataclasses.replace(job, step_seconds=seconds, text=text)
