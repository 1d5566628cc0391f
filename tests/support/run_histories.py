"""Histories of runs for tests of the launch policies, without jobs, journal or
clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Tolerance
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.job_records import (
    Blame,
    Job,
    JobEnd,
    JobSpec,
    JobStatus,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.outcome_records import Case, ConfigurationResult
from pytest_llmbench.core.trial_records import Trial, TrialOutcome, TrialTime
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.policies.run_history import (
    Conclusion,
    EndedJob,
    NeedsVerdict,
    NextRuns,
    RunHistory,
    RunProblem,
)
from pytest_llmbench.report.wording import phrase
from support.builders import BASELINE, KEY, NOW, run
from support.job_specs import job_spec

SPEC = job_spec(
    Path("/recipe"),
    case_id=KEY.id,
    key=KEY,
    via="sbatch",
    command=("sbatch", "./launch.sh"),
    nodes=2,
    gpus=8,
    gpu_hours=10.0,
)

WELL = JobEnd(Blame.NONE)
BROKEN = JobEnd(Blame.INFRASTRUCTURE, "node n1 failed")
CRASHED = JobEnd(Blame.RUN, "exit code 1")
CANCELLED = JobEnd(Blame.CANCELLED, "cancelled by 0")
HUNG = JobEnd(Blame.HUNG, "it hung for 20 min after step 5/50 (x.out)")

REFUSED: dict[str, Any] = {
    "job_id": "",
    "status": None,
    "problem": "no nodes",
    "submission": SubmissionState.NOT_SUBMITTED,
}

REASONS = {Blame.HUNG: Reason.HUNG}


def ended(
    repeat: int = 1,
    end: JobEnd = WELL,
    *,
    attempt: int = 1,
    spec: JobSpec = SPEC,
    nodes: Sequence[str] | None = None,
    failed_nodes: tuple[str, ...] = (),
    **fields: Any,
) -> EndedJob:
    """Build an ended job on node nREPEAT.

    The job has a run if it ended well, and otherwise a problem.
    """
    node_names = (f"n{repeat}",) if nodes is None else tuple(nodes)
    status = JobStatus(Phase.ENDED, "COMPLETED", nodes=node_names, started=NOW)
    job_id = f"{repeat}.{attempt}"
    template = Job(
        repeat, "t", spec, Path("/jobs"), attempt, repeat, job_id, status=status
    )
    job = replace(template, **fields)
    if end.blame is Blame.NONE and not job.refused:
        return EndedJob(job, end, run(id=f"run-{job_id}", job_id=job_id))
    reason = REASONS.get(end.blame, Reason.JOB_FAILED)
    problem = RunProblem(reason, job.problem or end.text)
    return EndedJob(job, end, problem=problem, failed_nodes=failed_nodes)


def make_history(
    *jobs: EndedJob,
    spec: JobSpec = SPEC,
    waiting: Iterable[NextJob] = (),
    **fields: Any,
) -> RunHistory:
    """Build a history from ended jobs and `waiting` jobs. All of them were
    requested."""
    requested = [NextJob(job.job.spec, job.job.attempt, job.job.repeat) for job in jobs]
    return RunHistory(spec, (*requested, *waiting), jobs, **fields)


def judged(
    verdict: Verdict, reason: Reason = Reason.CANNOT_TELL
) -> ConfigurationResult:
    """Build a verdict on the runs of a history."""
    tolerance = Tolerance(0.05)
    judgement = Judgement(verdict, reason, ("as told",), BASELINE, 7.7, tolerance)
    return ConfigurationResult(Case(KEY.id, KEY), judgement)


def describe_run(job: NextJob) -> str:
    """Describe a job as "run 2, attempt 1, without n1"."""
    purpose = job.spec.purpose
    name = "run" if purpose is Purpose.MEASURE else str(purpose)
    without = f", without {' '.join(job.spec.exclude)}" if job.spec.exclude else ""
    return f"{name} {job.repeat}, attempt {job.attempt}{without}"


def describe_step(step: NextRuns | NeedsVerdict | Conclusion) -> list[str]:
    """Describe a policy step: its runs, or its verdict, or its reason and text."""
    if isinstance(step, NeedsVerdict):
        return ["judge"]
    if isinstance(step, NextRuns):
        return [describe_run(job) for job in step.runs] or ["wait"]
    if step.verdict:
        judgement = step.verdict.judgement
        return [judgement.verdict.value, phrase(judgement)]
    return [step.reason.value, step.text]


# --- runs of variants -----------------------------------------------------------------

TRIAL = replace(SPEC, purpose=Purpose.COMPARE_VARIANTS, exclude=("n9",))


def list_variants(names: Iterable[str], spec: JobSpec = TRIAL) -> tuple[JobSpec, ...]:
    """Build a job for each variant."""
    return tuple(replace(spec, variant=name) for name in names)


def ended_trial(number: int, spec: JobSpec, trial: Trial, **fields: Any) -> EndedJob:
    """Build the ended job of a trial."""
    placed = replace(spec, allocation=trial.allocation, warm_up=trial.is_warm_up)
    nodes = {"nodes": ("n1", "n2"), **fields}
    if trial.outcome is TrialOutcome.LOST:
        return ended(number, BROKEN, spec=placed, **nodes)
    if trial.outcome is TrialOutcome.DOES_NOT_RUN:
        return ended(number, CRASHED, spec=placed, **nodes)
    seconds = (trial.step_time_ms or 0.0) / 1000
    time = TrialTime(seconds, rounding=trial.rounding)
    return replace(ended(number, spec=placed, **nodes), time=time)


def trial_history(
    variants: Sequence[JobSpec], trials: Sequence[Trial], **fields: Any
) -> RunHistory:
    """Build a history of trials in the order of their runs."""
    jobs = [
        ended_trial(number, variants[trial.variant], trial)
        for number, trial in enumerate(trials, 1)
    ]
    return make_history(*jobs, spec=variants[0], **fields)
