"""Submit jobs: build the checkout first, and mark runs of variants.

The marker is written where the log of a variant's run will be, before its job is
submitted, so that no later session judges the run as a daily run of its recipe. For a
job on this machine the path of the log is known, and the marker lies next to it. For a
cluster job only the folder is known: a file in it lists the jobs about to be submitted,
and the job ids that they got.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from pytest_llmbench.core.job_records import TRIALS, Job
from pytest_llmbench.core.log_records import NO_JOB, TRIALS_FILE, VARIANT_MARK
from pytest_llmbench.launch.jobs.builds import Builder
from pytest_llmbench.launch.schedulers.registry import Schedulers, load_scheduler
from pytest_llmbench.launch.schedulers.scheduler import Scheduler
from pytest_llmbench.launch.schedulers.submission import (
    SUBMIT_SECONDS,
    Submission,
    SubmitError,
)


def submit_with_marker(job: Job, scheduler: Scheduler) -> Submission:
    """Submit a job, after writing a marker if it is a run of an A/B or a bisection.

    The marker keeps later sessions from judging the run as a daily run. It is a file
    next to the log of the run, or if that path is unknown, a line in the file
    TRIALS_FILE of each folder that may contain the log. Raises SubmitError, also if the
    marker cannot be written.
    """
    if job.spec.purpose not in TRIALS:
        return scheduler.submit(job)
    log = load_scheduler(job.spec.via).find_log(job)
    if log is not None:
        _append_text(log.with_name(log.name + VARIANT_MARK), "", job)
        return scheduler.submit(job)
    _append_line(job)
    try:
        submission = scheduler.submit(job)
    except SubmitError as error:
        if not error.uncertain:
            _record_job_id(job, NO_JOB)
        raise
    return _record_submission(job, submission)


def recover_from_marker(
    job: Job, scheduler: Scheduler, seconds: float = SUBMIT_SECONDS
) -> Submission | None:
    """Find the submission of a job whose id was not recorded, or return None.

    For a run of an A/B or bisection, this also completes the marker in TRIALS_FILE: with
    the job id, or with NO_JOB if the job was not submitted.
    """
    submission = scheduler.recover(job, seconds)
    if job.spec.purpose not in TRIALS:
        return submission
    # a log whose path is known before submission has a marker file of its own
    if load_scheduler(job.spec.via).find_log(job) is not None:
        return submission
    if submission:
        return _record_submission(job, submission)
    _record_job_id(job, NO_JOB)
    return None


def _record_submission(job: Job, submission: Submission) -> Submission:
    """Record the job id of a submission in all folders that may contain its log.

    A run in an allocation is recorded under the allocation's id, which its log is named
    after. Returns the submission.
    """
    submitted_job = replace(job, job_id=submission.job_id)
    _record_job_id(job, submitted_job.scheduler_id, submission.folder)
    return submission


def _record_job_id(job: Job, job_id: str, log_folder: Path | None = None) -> None:
    """Record the job id of a job if possible.

    `log_folder` is the folder that the submission printed, if any. If the id cannot be
    written, the marker stays without a job id.
    """
    with suppress(SubmitError):
        _append_line(job, job_id, log_folder)


def _append_line(job: Job, job_id: str = "", log_folder: Path | None = None) -> None:
    """Append a line for a job in every folder that may contain its log.

    The line consists of token, time and job id. An empty line before it separates it
    from a truncated line.
    """
    folders = list(job.spec.log_folders or (job.spec.directory,))
    if job.spec.allocation:  # its log is moved to the folder of the job at its end
        folders.append(job.folder)
    if log_folder:
        folders.append(log_folder)
    for folder in dict.fromkeys(folders):
        # `5f2c9a7d1e3b4c60 1790000000 4711`, or without a job id before the submission
        line = f"{job.token} {time.time():.0f} {job_id}".rstrip()
        _append_text(folder / TRIALS_FILE, f"\n{line}\n", job)


def _append_text(file: Path, text: str, job: Job) -> None:
    """Append text to a marker file and force it to disk. Raises SubmitError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as marker:
            marker.write(text)
            marker.flush()
            os.fsync(marker.fileno())
    except OSError as error:
        problem = (
            f"cannot write {file} ({error.strerror}), which marks the logs of variants"
        )
        raise SubmitError(f"{job.spec.case_id}: {problem}") from error


# --- submitter -----------------------------------------------------------------------


class Submitter:
    """Submits the jobs of a session, each through its scheduler."""

    def __init__(self, schedulers: Schedulers, builder: Builder) -> None:
        self.schedulers = schedulers
        self._builder = builder

    def submit(self, job: Job) -> Submission:
        """Submit a job, after building its checkout and marking a variant's run.

        Raises the errors of `Scheduler.submit`.
        """
        self._builder.build(job)
        return submit_with_marker(job, self.schedulers.find(job.spec))

    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        """Find the submission of a job.

        Returns None if it was not submitted, or was still being built.
        """
        return recover_from_marker(job, self.schedulers.find(job.spec), seconds)
