"""Submit the jobs of a session, poll them together, and dispatch those that ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    NEVER_MADE,
    Job,
    JobEnd,
    JobIdentity,
    JobSpec,
    JobStatus,
    Phase,
    SubmissionState,
)
from pytest_llmbench.core.redaction import MASK
from pytest_llmbench.core.stall_limits import LogProgress
from pytest_llmbench.launch.job_secrets import find_secret_values
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.jobs.progress import Progress, summarize
from pytest_llmbench.launch.jobs.submitter import Submitter
from pytest_llmbench.launch.jobs.watch import (
    Absence,
    Limits,
    ReadProgress,
    Watch,
    differs,
    explain_job_end,
    has_moved_on,
)
from pytest_llmbench.launch.schedulers.scheduler import Scheduler
from pytest_llmbench.launch.schedulers.shared_allocation import (
    is_allocation,
    waits_for_nodes,
)
from pytest_llmbench.launch.schedulers.submission import (
    SchedulerAway,
    Submission,
    SubmitError,
    describe_problem,
)

# how long to wait for a submission in progress before its job is cancelled
RECOVER_SECONDS = 20.0

# the pause after a poll is at least this many times as long as the poll, so that a slow
# scheduler is polled rarely
PAUSES = 10

PAUSE_GROWTH = 1.5  # each pause without a change is this many times as long as the last

CANCEL_SECONDS = 30.0  # how long to wait for the end of cancelled jobs
# the pauses between two polls of cancelled jobs
FIRST_CANCEL_PAUSE, LONGEST_CANCEL_PAUSE = 0.25, 3.0

# called with every job that ended or could not be submitted; returns the jobs to submit
# next
OnJobEnd = Callable[[Job, JobEnd], Sequence["NextJob"]]

# returns the jobs to submit first
ListFirstJobs = Callable[[], Sequence["NextJob"]]


class NextJob(Struct, frozen=True):
    """A job to submit. `attempt` and `repeat` as in `Job`."""

    spec: JobSpec
    attempt: int = 1
    repeat: int = 1

    @property
    def identity(self) -> JobIdentity:
        """The identity of the job after its submission."""
        return self.spec.case_id, self.spec.purpose.value, self.attempt, self.repeat


class _PolledJob(NamedTuple):
    """A job after a poll."""

    job: Job
    previous_status: JobStatus | None
    has_changed_state: bool
    is_to_cancel: bool = False


class Engine:
    """Submits and follows the jobs of one session. `follow_only` submits nothing."""

    def __init__(  # noqa: PLR0917 (all collaborators are injected)
        self,
        journal: Journal,
        submitter: Submitter,
        tell: Callable[[str], None],
        now: Callable[[], datetime],
        sleep: Callable[[float], None],
        limits: Limits,
        *,
        progress: Progress | None = None,
        read_progress: ReadProgress | None = None,
        follow_only: bool = False,
        admit: Callable[[Job], str] = lambda _job: "",
    ) -> None:
        """All collaborators are injected for tests.

        `admit` returns the reason not to submit a job, or "".
        """
        self._journal = journal
        self._submitter = submitter
        self._schedulers = submitter.schedulers
        self._now, self._sleep, self._limits = now, sleep, limits
        self._progress = progress or Progress(tell)
        self._follow_only = follow_only
        self._admit = admit
        self._on_job_end: OnJobEnd = lambda job, end: ()
        self._queue: deque[NextJob] = deque()  # to be submitted
        # in the journal, but whether they were submitted is unknown
        self._unconfirmed: deque[Job] = deque()
        self._jobs: dict[int, Job] = {}  # all jobs, by number
        self._live: dict[int, Job] = {}  # submitted and not ended, by number
        self._identities: set[JobIdentity] = set()  # of queued jobs and of all jobs
        self._resumed_identities: frozenset[JobIdentity] = frozenset()
        self._specs: dict[str, JobSpec] = {}  # by configuration id, with secrets
        self._read_progress = read_progress
        self._watch = Watch(limits, self._progress.last_step)
        self._absences: dict[Scheduler, Absence] = {}
        self._pause = limits.first_poll
        # the time of the last poll; the first poll is due at once
        self._polled = now() - timedelta(days=1)

    def run(
        self,
        specs: Sequence[JobSpec],
        on_job_end: OnJobEnd,
        begin: ListFirstJobs | None = None,
    ) -> None:
        """Submit jobs and their follow-ups, and return when all have ended.

        `begin`, if given, returns the jobs to submit first, in place of `specs`.
        `on_job_end` may get a job of status UNKNOWN, whose record was lost: only its log
        shows how it ended. Raises LaunchError if a scheduler does not answer for too
        long; its jobs keep running.
        """
        self._on_job_end = on_job_end
        self._enqueue(begin() if begin else map(NextJob, specs))
        self._follow()

    def resume(
        self,
        specs: Sequence[JobSpec],
        on_job_end: OnJobEnd,
        begin: ListFirstJobs | None = None,
    ) -> None:
        """Continue the session that the journal resumed, until all jobs have ended.

        Jobs that ended are passed to `on_job_end` again, running jobs are followed, and
        only jobs that were certainly not submitted are submitted. `specs` contain the
        secrets, which the journal does not store, and configurations that the session
        had not reached. `begin` as for `run`.
        """
        self._on_job_end = on_job_end
        for job in self._restore_jobs(specs):
            self._enqueue(on_job_end(job, explain_job_end(job)))
        self._enqueue(begin() if begin else map(NextJob, specs))
        self._follow()

    def submit_only(
        self, specs: Sequence[JobSpec], *, resumed: bool = False
    ) -> tuple[JobSpec, ...]:
        """Submit jobs, and return the specs that found no free slot.

        Slots are limited by `max_jobs`; local jobs run one at a time. With `resumed`,
        jobs that the session submitted before are not submitted again.
        """
        if resumed:
            self._restore_jobs(specs)
        self._enqueue(NextJob(spec) for spec in specs)
        while self._queue or self._unconfirmed:
            if self._submit_next():
                continue
            if not self._unconfirmed:  # no slot is free, and none will become free
                break
            self._wait()  # for a scheduler that does not answer
        return tuple(queued.spec for queued in self._queue)

    def _restore_jobs(self, specs: Sequence[JobSpec]) -> list[Job]:
        """Restore the jobs of a resumed session, and return those that ended.

        `specs` contain the secrets, which the journal does not store.
        """
        for spec in specs:
            self._journal.hide(find_secret_values(spec))
        self._specs = {spec.case_id: spec for spec in specs}
        live_numbers = {job.number for job in self._journal.list_live()}
        # jobs that were never made are planned again
        jobs = [
            self._restore_secrets(job)
            for job in self._journal.list_jobs()
            if job.submission not in NEVER_MADE
        ]
        self._identities = {job.identity for job in jobs}
        self._resumed_identities = frozenset(self._identities)
        self._jobs = {job.number: job for job in jobs}
        ended = []
        for job in jobs:
            if job.number not in live_numbers:
                ended.append(job)
            elif job.job_id:
                self._live[job.number] = job
            else:  # the session was interrupted before the scheduler returned a job id
                self._unconfirmed.append(job)
        self._report(f"resumed: {summarize(jobs)}")
        return sorted(ended, key=is_allocation)  # allocations after the runs in them

    def cancel(self) -> tuple[str, ...]:
        """Cancel all unfinished jobs of this session, and wait for their end.

        Waits at most 30 s. Returns the ids of jobs that may still run, and the
        configuration ids of jobs whose submission is uncertain.
        """
        to_cancel: list[Job] = []
        uncertain: list[str] = []
        for job in self._journal.list_live():
            if job.job_id:
                to_cancel.append(job)
                continue
            # without an id: its submission may still be in progress
            try:
                submitted = self._await_submission(self._restore_job(job))
                if submitted:
                    to_cancel.append(submitted)
            except LaunchError as error:
                self._report(str(error))
                jobs_by_number = {
                    recorded.number: recorded for recorded in self._journal.list_jobs()
                }
                recorded_job = jobs_by_number[job.number]
                # the id was found: the journal keeps it even if it cannot be written
                if recorded_job.job_id:
                    to_cancel.append(recorded_job)
                else:
                    uncertain.append(job.spec.case_id)
        still_running = self._cancel_jobs(to_cancel)
        self._live.clear()
        return (*uncertain, *still_running)

    def _cancel_jobs(self, jobs: Iterable[Job]) -> tuple[str, ...]:
        """Cancel submitted jobs together, and wait at most 30 s for their end.

        Cancels again if the scheduler reports a problem. Returns the ids of jobs that
        have not ended.
        """
        running = {job.number: job for job in jobs}
        problem = self._ask_to_cancel(running.values())
        last_problem = ""
        waited, pause = 0.0, FIRST_CANCEL_PAUSE
        while running and waited < CANCEL_SECONDS:
            if problem and problem != last_problem:
                self._report(problem)
                last_problem = problem
            self._sleep(pause)
            waited += pause
            pause = min(pause * PAUSE_GROWTH, LONGEST_CANCEL_PAUSE)
            self._record_cancelled(running)
            problem = self._ask_to_cancel(running.values()) if problem else ""
        return tuple(job.job_id for job in running.values())

    def _ask_to_cancel(self, running: Iterable[Job]) -> str:
        """Send each scheduler one request to cancel its jobs; return their problems."""
        problems = []
        for scheduler, jobs in self._schedulers.group(running).items():
            try:
                problems.append(scheduler.cancel(jobs))
            except SchedulerAway as error:
                problems.append(str(error))
        return "\n".join(filter(None, problems))

    def _record_cancelled(self, running: dict[int, Job]) -> None:
        """Record the cancelled jobs that have ended, and remove them from `running`."""
        for scheduler, jobs in self._schedulers.group(running.values()).items():
            try:
                statuses = scheduler.poll(jobs)
            except SchedulerAway:
                continue
            for number, status in statuses.items():
                if status.phase is Phase.ENDED:
                    del running[number]
                    text = "cancelled by pytest" if status.state == "CANCELLED" else ""
                    self._journal.record_end(number, status, text, self._now())

    # --- submitting -------------------------------------------------------------------

    def _enqueue(self, jobs: Iterable[NextJob]) -> None:
        """Queue jobs for submission, except jobs that a resumed session made before.

        Raises ValueError for a job that was queued before in this process: each job must
        have its own attempt or repeat number.
        """
        for job in jobs:
            self._schedulers.find(job.spec)  # raises if there is no such scheduler
            if job.identity not in self._identities:
                self._identities.add(job.identity)
                self._queue.append(job)
            elif job.identity not in self._resumed_identities:
                raise ValueError(
                    f"{job.identity}: the session already has a job for this"
                )

    def _submit_next(self) -> bool:
        """Submit or recover one job if possible; return True if a job was handled.

        Jobs that may have been submitted already come before the queued jobs.
        """
        for _ in range(len(self._unconfirmed)):  # each of them at most once
            job = self._unconfirmed.popleft()
            # a scheduler that did not answer is asked again after a pause
            is_silent = self._find_absence(job.spec).is_silent
            if not is_silent or self._is_poll_due():
                self._recover(job)
                return True
            self._unconfirmed.append(job)
        if self._follow_only:
            self._drop_queue()
            return False
        for index, queued in enumerate(self._queue):
            if self._has_room(queued.spec):
                del self._queue[index]
                job = self._journal.intend(
                    queued.spec, self._now(), queued.attempt, queued.repeat
                )
                self._submit(job, queued.spec)
                return True
        return False

    def _has_room(self, spec: JobSpec) -> bool:
        """True if a job may be submitted now: a slot is free and its scheduler answers."""
        if spec.allocation:  # a run in an allocation needs no slot, only its nodes
            return not waits_for_nodes(spec, (*self._queue, *self._unconfirmed))
        scheduler = self._schedulers.find(spec)
        if scheduler.at_once is not None:
            live_on_scheduler = sum(
                self._schedulers.find(job.spec) is scheduler
                for job in self._live.values()
            )
            if live_on_scheduler >= scheduler.at_once:
                return False
        has_free_slot = len(self._live) < self._limits.max_jobs
        return has_free_slot and not self._find_absence(spec).is_silent

    def _submit(self, job: Job, spec: JobSpec) -> None:
        """Submit a planned job, and record the result.

        A job beyond the GPU-hours is recorded as unaffordable. A job whose scheduler is
        silent is tried again later. `spec` contains the secrets of the job.
        """
        # without the digests of secrets that an earlier submission used
        job = replace(job, spec=replace(spec, digests=()))
        self._jobs[job.number] = job
        if reason := self._admit(job):
            self._identities.discard(job.identity)  # the job may be planned again
            unaffordable_job = self._record_failure(
                job, SubmissionState.UNAFFORDABLE, f"not submitted: {reason}"
            )
            self._dispatch(unaffordable_job)
            return
        try:
            self._record_submission(job, self._submitter.submit(job))
        except SchedulerAway as error:
            self._record_silence(job, error)
            self._unconfirmed.append(job)
        except SubmitError as error:
            self._record_refusal(job, error)

    def _recover(self, job: Job) -> None:
        """Find the submission of a planned job without a recorded job id.

        The job is submitted again only if it certainly was not submitted, and never if
        the session only collects. A job whose scheduler is silent is tried again later.
        """
        try:
            submission = self._submitter.recover(job)
        except SchedulerAway as error:
            self._record_silence(job, error)
            self._unconfirmed.append(job)
        except SubmitError as error:
            self._record_refusal(job, error)
        else:
            if submission:
                self._record_submission(job, submission)
            elif self._follow_only:
                self._report(
                    f"{job.spec.case_id} was not submitted. Submit it with --llmb-resume"
                )
            else:
                self._submit_again(job)

    def _submit_again(self, job: Job) -> None:
        """Repeat a failed submission as a new job in a new folder.

        The journal keeps both jobs.
        """
        self._record_failure(job, SubmissionState.SUPERSEDED)
        del self._jobs[job.number]
        new_job = self._journal.intend(job.spec, self._now(), job.attempt, job.repeat)
        self._submit(new_job, job.spec)

    def _record_submission(self, job: Job, submission: Submission) -> Job:
        """Record the id and folder of a submitted job, and follow the job."""
        self._record_answer(job)
        recorded = self._journal.record_submission(
            job.number, submission.job_id, submission.folder, self._now()
        )
        submitted = replace(recorded, spec=job.spec)  # with its secrets
        self._jobs[job.number] = self._live[job.number] = submitted
        self._progress.report_submitted(submitted, self._now())
        # a burst of submissions must not cause a poll of all jobs after each of them
        if not self._queue:
            self._pause = self._limits.first_poll
        return submitted

    def _record_refusal(self, job: Job, error: SubmitError) -> None:
        """Record a job that could not be submitted, and queue its follow-ups."""
        refused = self._record_failure(job, error.state, str(error))
        self._dispatch(replace(refused, spec=job.spec))

    def _record_failure(self, job: Job, state: SubmissionState, text: str = "") -> Job:
        """Record in the journal that a job was not submitted. Returns the job."""
        return self._journal.record_failure(
            job.number, describe_problem(state, text), self._now(), state
        )

    def _drop_queue(self) -> None:
        """Drop and report the queued jobs of a session that only collects."""
        while self._queue:
            queued = self._queue.popleft()
            is_first = queued.repeat == 1 and queued.attempt == 1
            attempt = f" (run {queued.repeat}, attempt {queued.attempt})"
            name = queued.spec.case_id + ("" if is_first else attempt)
            self._report(f"{name} is not submitted: --llmb-collect submits nothing")

    # --- following --------------------------------------------------------------------

    def _follow(self) -> None:
        """Submit and poll until no job is queued, unconfirmed or live."""
        while self._queue or self._unconfirmed or self._live:
            submitted = self._submit_next()
            if self._is_poll_due():
                self._poll()
            elif not submitted:
                self._wait()

    def _is_poll_due(self) -> bool:
        """True if the pause after the last poll has passed."""
        elapsed = (self._now() - self._polled).total_seconds()
        is_in_pause = 0 <= elapsed < self._pause  # negative: the clock was set back
        return not is_in_pause

    def _wait(self) -> None:
        """Sleep until the next poll is due."""
        elapsed = (self._now() - self._polled).total_seconds()
        remaining = min(self._pause - elapsed, self._limits.longest_poll)
        self._sleep(max(0.01, remaining))

    def _poll(self) -> None:
        """Poll each scheduler once for all of its jobs, and apply the answers.

        Then choose the next pause: short after a change, else longer than the last.
        """
        has_change, poll_seconds = False, 0.0
        for scheduler, jobs in self._schedulers.group(self._live.values()).items():
            started = self._now()
            try:
                statuses = scheduler.poll(jobs)
            except SchedulerAway as error:
                self._record_silence(jobs[0], error)
                continue
            poll_seconds += (self._now() - started).total_seconds()
            self._record_answer(jobs[0])
            has_change |= self._apply_answers(scheduler, jobs, statuses)
        self._polled = self._now()
        pause = self._limits.first_poll if has_change else self._pause * PAUSE_GROWTH
        self._pause = min(max(pause, PAUSES * poll_seconds), self._limits.longest_poll)
        waiting = len(self._queue) + len(self._unconfirmed)
        self._progress.update(list(self._jobs.values()), waiting, self._now())

    def _apply_answers(
        self,
        scheduler: Scheduler,
        jobs: Sequence[Job],
        statuses: Mapping[int, JobStatus],
    ) -> bool:
        """Record and report the answers of a poll, and act on them.

        Dispatches jobs that ended, and cancels jobs that must not continue. Returns True
        if a job changed its state.
        """
        log_progress = self._read_logs(jobs, statuses)
        # on slow disks, a single write takes as long as the poll
        with self._journal.write_together():
            polled_jobs = [
                self._apply_answer(
                    job, statuses.get(job.number), log_progress.get(job.number)
                )
                for job in jobs
            ]
        # report only recorded changes, so that a resumed session agrees
        for polled in polled_jobs:
            self._progress.report_change(
                polled.job,
                polled.previous_status,
                self._now(),
                cancels=self._limits.stalls.cancels,
            )
        for job in jobs:
            has_ended = job.number not in self._live
            if has_ended:
                self._dispatch(self._jobs[job.number])
        to_cancel = [polled.job for polled in polled_jobs if polled.is_to_cancel]
        problem = scheduler.cancel(to_cancel) if to_cancel else ""
        if problem:
            self._report(problem)
        return any(polled.has_changed_state for polled in polled_jobs)

    def _read_logs(
        self, jobs: Sequence[Job], statuses: Mapping[int, JobStatus]
    ) -> dict[int, LogProgress]:
        """Read the progress of running jobs and of jobs that hit their time limit.

        Returns the progress by job number.
        """
        if self._read_progress is None:
            return {}
        progress = {}
        for job in jobs:
            status = statuses.get(job.number)
            if status is None:
                continue
            if status.phase is Phase.RUNNING or status.state == "TIMEOUT":
                polled_job = replace(job, status=status)
                progress[job.number] = self._read_progress(polled_job)
        return progress

    def _apply_answer(
        self, job: Job, status: JobStatus | None, log: LogProgress | None
    ) -> _PolledJob:
        """Record the answer of a poll for one job: its end, or its new status.

        `status` is None if the poll returned none, `log` if the log was not read.
        """
        now = self._now()
        decision = self._watch.decide(job, status, now, log)
        previous_status, new_status = job.status, decision.status
        if decision.ended and new_status:
            text = explain_job_end(replace(job, status=new_status)).text
            del self._live[job.number]
            recorded = self._journal.record_end(job.number, new_status, text, now)
            job = replace(recorded, spec=job.spec)  # with its secrets
            self._jobs[job.number] = job
            return _PolledJob(job, previous_status, has_changed_state=True)
        if new_status and differs(previous_status, new_status):
            recorded = self._journal.record_status(job.number, new_status)
            job = replace(recorded, spec=job.spec)
            self._jobs[job.number] = self._live[job.number] = job
        return _PolledJob(
            job,
            previous_status,
            has_changed_state=has_moved_on(previous_status, new_status),
            is_to_cancel=decision.cancel,
        )

    def _dispatch(self, job: Job) -> None:
        """Report a job that ended or was refused, and queue its follow-ups."""
        end = explain_job_end(job)
        self._jobs[job.number] = job
        self._progress.report_ended(job, end, self._now())
        self._enqueue(self._on_job_end(job, end))

    def _await_submission(self, job: Job) -> Job | None:
        """Wait for a submission in progress, and return its job.

        Returns None if the job certainly was not submitted.
        """
        submission = self._submitter.recover(job, RECOVER_SECONDS)
        if submission:
            return self._record_submission(job, submission)
        self._record_failure(
            job, SubmissionState.STOPPED, "cancelled before it was submitted"
        )
        return None

    def _restore_job(self, job: Job) -> Job:
        """Return a job of the journal with the secrets of its submission."""
        submitted = self._jobs.get(job.number)
        return (
            replace(job, spec=submitted.spec)
            if submitted
            else self._restore_secrets(job)
        )

    def _restore_secrets(self, job: Job) -> Job:
        """Fill in the secrets of a job as far as this session knows them.

        The journal does not store secrets.
        """
        planned_spec = self._specs.get(job.spec.case_id)
        known_values = dict(planned_spec.environment) if planned_spec else {}
        environment = []
        for name, value in job.spec.environment:
            known_value = known_values.get(name, value)
            environment.append((name, known_value if value == MASK else value))
        return replace(job, spec=replace(job.spec, environment=tuple(environment)))

    def _find_absence(self, spec: JobSpec) -> Absence:
        """Return the tracker of unanswered queries to a job's scheduler."""
        scheduler = self._schedulers.find(spec)
        return self._absences.setdefault(
            scheduler, Absence(scheduler.name, self._limits.away_seconds)
        )

    def _record_silence(self, job: Job, error: SchedulerAway) -> None:
        """Record and report that a job's scheduler did not answer.

        Raises LaunchError if it has not answered for too long.
        """
        self._polled = self._now()  # wait before the next try
        self._pause = min(self._pause * PAUSE_GROWTH, self._limits.longest_poll)
        absence = self._find_absence(job.spec)
        message = absence.record_silence(str(error), self._polled)
        if message:
            self._report(message)

    def _record_answer(self, job: Job) -> None:
        """Record that a job's scheduler answered.

        The time without answers before it does not count for the jobs of the scheduler.
        """
        silent_seconds = self._find_absence(job.spec).record_answer(self._now())
        if not silent_seconds:
            return
        scheduler = self._schedulers.find(job.spec)
        jobs_of_scheduler = [
            live_job
            for live_job in self._live.values()
            if self._schedulers.find(live_job.spec) is scheduler
        ]
        self._watch.exclude_pause(silent_seconds, jobs_of_scheduler)
        self._report(f"{scheduler.name} answers again")

    def _report(self, text: str) -> None:
        self._progress.report(text, self._now())
