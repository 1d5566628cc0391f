"""Reads all that a job left when it ended, for the history of its configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.job_records import STEPLESS, TRIALS, Blame, Job, JobEnd, Phase
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.log_records import VARIANT_MARK
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.core.stall_limits import StallPlace
from pytest_llmbench.core.trial_records import TrialTime
from pytest_llmbench.launch.policies.run_history import (
    Confirmation,
    EndedJob,
    RunProblem,
    describe_hung,
    get_nodes,
    join_texts,
)
from pytest_llmbench.session.outcomes import ConfigurationResult

if TYPE_CHECKING:
    from pytest_llmbench.core.statements import NodeFinding

# why a run is invalid by the state in which its job ended; job-failed for every other
REASONS = {
    "TIMEOUT": Reason.INCOMPLETE,
    "COMPLETED": Reason.FAILED_STEP,
    "CANCELLED": Reason.CANCELLED,
}


class RunJudge(Protocol):
    """Reads and judges the runs of ended jobs."""

    def find_run(self, job: Job) -> Run | None:
        """Return the run of a job, None without a log of its own."""

    def read_ending(self, job: Job, run: Run) -> tuple[Blame, str]:
        """Return whose failure the end of a run is, and what its log says of it."""

    def list_files(self, job: Job) -> tuple[Path, ...]:
        """Return the files that a job left besides its log."""

    def name_failed_nodes(self, job: Job, run: Run) -> tuple[str, ...]:
        """Return the nodes of a job that its log itself says failed."""

    def measure_trial(self, key: Key, run: Run) -> TrialTime:
        """Measure the step time of the run of a variant."""

    def judge(self, key: Key, runs: Sequence[Run]) -> ConfigurationResult:
        """Return the verdict on the runs of a configuration, newest first."""

    def judge_invalid(
        self, key: Key, reason: Reason, text: str, run: Run | None
    ) -> Judgement:
        """Return the judgement on a job whose speed is not judged."""

    def judge_nodes(
        self,
        result: ConfigurationResult,
        nodes: Mapping[str, tuple[str, ...]],
        confirmations: Sequence[Run] = (),
        named: Collection[str] = (),
    ) -> NodeFinding:
        """Compare the runs of a verdict by their nodes (run id -> nodes)."""

    def judge_named(self, job: Job, run: Run, nodes: Sequence[str]) -> Confirmation:
        """Compare a run with the history, which names these nodes."""

    def find_driver_errors(self, job: Job, run: Run) -> str:
        """Return the last complaints of a GPU's driver in the log of a run."""

    def read_check(self, job: Job) -> str:
        """Return the last lines that a check of nodes printed."""


def examine_job(
    judge: RunJudge,
    job: Job,
    end: JobEnd,
    before: Sequence[EndedJob],
    named: Sequence[str] = (),
) -> EndedJob:
    """Read the run of a job that ended, after the jobs `before` of its configuration.

    `named`: the nodes whose slowness the job was to confirm.
    """
    has_run = job.job_id and job.spec.purpose not in STEPLESS
    run = judge.find_run(job) if has_run else None
    end = _explain_end(judge, job, end, run)
    ended = EndedJob(job, end, run, files=judge.list_files(job))
    ended = dataclasses.replace(ended, problem=_find_problem([*before, ended]))
    if run and end.blame is Blame.INFRASTRUCTURE:
        failed = judge.name_failed_nodes(job, run)
        ended = dataclasses.replace(ended, failed_nodes=failed)
    if run is None or ended.problem:
        return ended
    if job.spec.purpose in TRIALS:
        _mark(run)
        time = judge.measure_trial(job.spec.key, run)
        return dataclasses.replace(ended, time=time)
    if named:
        confirmation = judge.judge_named(job, run, named)
        return dataclasses.replace(ended, confirmation=confirmation)
    return ended


def _explain_end(judge: RunJudge, job: Job, end: JobEnd, run: Run | None) -> JobEnd:
    """Add what the log says of an end; a cause of the infrastructure there is one."""
    if run is None or end.blame is Blame.NONE:
        return end
    blame, text = judge.read_ending(job, run)
    if end.blame is Blame.HUNG and _is_known_end(job, blame):
        return end
    if end.blame is not Blame.RUN or blame is not Blame.INFRASTRUCTURE:
        blame = end.blame
    return JobEnd(blame, join_texts(end.text, text))


def _is_known_end(job: Job, blame: Blame) -> bool:
    """True if the log of a hung job ends with our cancelling, or its last step."""
    stall = job.status.stall if job.status else None
    has_stepped = stall is not None and stall.place is not StallPlace.START
    return blame is Blame.CANCELLED or (blame is Blame.NONE and has_stepped)


def _find_problem(ended: Sequence[EndedJob]) -> RunProblem | None:
    """Find the reason the last of these jobs has no run that can be judged."""
    job, end, run = ended[-1].job, ended[-1].end, ended[-1].run
    if job.refused:
        text = job.problem.replace(f"{job.spec.case_id}: ", "", 1)
        return RunProblem(Reason.NOT_SUBMITTED, text)
    if end.blame is Blame.HUNG:
        return RunProblem(Reason.HUNG, describe_hung(ended))
    purged = job.status is not None and job.status.phase is Phase.UNKNOWN
    if end.blame is not Blame.NONE and not purged:
        return RunProblem(_find_reason(job), end.text)
    if run is None:
        reason = Reason.JOB_LOST if purged else Reason.LOG_MISSING
        return RunProblem(reason, _describe_missing_log(job))
    key = run.identity.key
    if key != job.spec.key:
        actual = key.id if key else run.identity.because
        text = f"launched as {job.spec.case_id}, but its log says: {actual}"
        return RunProblem(Reason.WRONG_CONFIGURATION, text)
    return None


def _find_reason(job: Job) -> Reason:
    reason = REASONS.get(job.status.state if job.status else "", Reason.JOB_FAILED)
    if reason is Reason.CANCELLED and not get_nodes(job):
        return Reason.NEVER_STARTED  # sacct gives it a start all the same
    return reason


def _describe_missing_log(job: Job) -> str:
    folders = filter(None, (job.log_folder, *job.spec.log_folders))
    places = formatting.join_first([str(folder) for folder in folders])
    where = places or job.spec.directory
    return f"job {job.job_id} left no log of its own under {where}"


def _mark(run: Run) -> None:
    """Mark the logs of a run of a variant: later readers must not judge it."""
    for attempt in run.attempts:
        log = attempt.files.log
        mark = log.with_name(log.name + VARIANT_MARK)
        try:
            mark.touch()
        except OSError as error:
            raise OSError(error.errno, f"{mark}: {error.strerror}") from error
