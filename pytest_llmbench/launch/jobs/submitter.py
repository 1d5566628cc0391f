"""A submission with what comes before it: the build of a checkout, and the mark of a
variant's run."""

from __future__ import annotations

from pytest_llmbench.core.job_records import Job
from pytest_llmbench.launch.jobs.builds import Builder
from pytest_llmbench.launch.jobs.variant_marks import recover_marked, submit_marked
from pytest_llmbench.launch.schedulers import Schedulers
from pytest_llmbench.launch.schedulers.submission import SUBMIT_SECONDS, Submission


class Submitter:
    """Submits the jobs of a session, each through its scheduler."""

    def __init__(self, schedulers: Schedulers, builder: Builder) -> None:
        self.schedulers = schedulers
        self._builder = builder

    def submit(self, job: Job) -> Submission:
        """Build the checkout of a job if it has one, mark the run of a variant, and
        submit; raises as a scheduler."""
        self._builder.build(job)
        return submit_marked(job, self.schedulers.find(job.spec))

    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        """Return what became of a submission; None if nothing was submitted, or its job
        was still being built."""
        return recover_marked(job, self.schedulers.find(job.spec), seconds)
