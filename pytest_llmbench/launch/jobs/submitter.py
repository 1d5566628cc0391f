"""A submission with what comes before it: the build of a checkout, and the mark of a
variant's run.

The marks lie where a log will lie before its job is submitted, so nobody takes such a
run for a night of its recipe, whatever becomes of the session. On this machine the log
is known, and has its mark next to it. In a cluster only its folder is: a file there
records of each job that it is about to be submitted, and then which one it became.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

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
    """Mark the run of a variant, and submit its job; SubmitError if the mark cannot be
    written, too."""
    if job.spec.purpose not in TRIALS:
        return scheduler.submit(job)
    log = load_scheduler(job.spec.via).find_log(job)
    if log is not None:
        _write(log.with_name(log.name + VARIANT_MARK), "", job)
        return scheduler.submit(job)
    _note(job)
    try:
        submission = scheduler.submit(job)
    except SubmitError as error:
        if not error.uncertain:
            _note_after(job, NO_JOB)
        raise
    return _note_submission(job, submission)


def recover_from_marker(
    job: Job, scheduler: Scheduler, seconds: float = SUBMIT_SECONDS
) -> Submission | None:
    """Return what became of a submission, as the mark says from then on."""
    submission = scheduler.recover(job, seconds)
    if (
        job.spec.purpose not in TRIALS
        or load_scheduler(job.spec.via).find_log(job) is not None
    ):
        return submission
    if submission:
        return _note_submission(job, submission)
    _note_after(job, NO_JOB)
    return None


def _note_submission(job: Job, submission: Submission) -> Submission:
    """Note which job it became, in the folder that its launcher printed, too; a run in
    an allocation is noted as that one, by whose id its log is called."""
    _note_after(
        job, replace(job, job_id=submission.job_id).scheduler_id, submission.folder
    )
    return submission


def _note_after(job: Job, became: str, printed: Path | None = None) -> None:
    """Note what became of a job. Where that cannot be written it stays open, and the
    job is what it is."""
    with suppress(SubmitError):
        _note(job, became, printed)


def _note(job: Job, became: str = "", printed: Path | None = None) -> None:
    """Write a line for a job wherever its log may lie: its token, the time, and what
    became of it. It stands apart from a line before it that was cut."""
    folders = job.spec.log_folders or (job.spec.directory,)
    if job.spec.allocation:  # to which its log is moved when it has ended
        folders = (*folders, job.folder)
    for folder in dict.fromkeys([*folders, *filter(None, [printed])]):
        _write(
            folder / TRIALS_FILE,
            "\n" + f"{job.token} {time.time():.0f} {became}".rstrip() + "\n",
            job,
        )


def _write(file: Path, text: str, job: Job) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(text)
            lines.flush()
            os.fsync(lines.fileno())
    except OSError as error:
        problem = f"{file} cannot be written ({error.strerror}), which says that a log is none of a night"
        raise SubmitError(f"{job.spec.case_id}: {problem}") from error


# --- submitter -----------------------------------------------------------------------


class Submitter:
    """Submits the jobs of a session, each through its scheduler."""

    def __init__(self, schedulers: Schedulers, builder: Builder) -> None:
        self.schedulers = schedulers
        self._builder = builder

    def submit(self, job: Job) -> Submission:
        """Build the checkout of a job if it has one, mark the run of a variant, and
        submit; raises as a scheduler."""
        self._builder.build(job)
        return submit_with_marker(job, self.schedulers.find(job.spec))

    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        """Return what became of a submission; None if nothing was submitted, or its job
        was still being built."""
        return recover_from_marker(job, self.schedulers.find(job.spec), seconds)
