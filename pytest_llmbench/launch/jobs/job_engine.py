"""Submit the jobs of a session, poll them together, and dispatch those that ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

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

CANCEL_SECONDS = 30.0
LONGEST_PAUSE = 3.0

# called with every job that ended or could not be submitted; returns the jobs to submit
# next
Finished = Callable[[Job, JobEnd], Sequence["NextJob"]]

Begin = Callable[[], Sequence["NextJob"]]


@dataclass(frozen=True, slots=True)
class NextJob:
    """A job to submit. `attempt` and `repeat` as in `Job`."""

    spec: JobSpec
    attempt: int = 1
    repeat: int = 1

    @property
    def identity(self) -> JobIdentity:
        """The identity of the job after its submission."""
        return self.spec.case_id, self.spec.purpose.value, self.attempt, self.repeat


class _PolledJob(NamedTuple):
    """A job after a poll.

    `before` is its previous status, `moved` is True if it changed its state, `cancel`
    if it is to be cancelled.
    """

    job: Job
    before: JobStatus | None
    moved: bool
    cancel: bool = False


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
        self._finished: Finished = lambda job, end: ()
        self._queue: deque[NextJob] = deque()
        self._intended: deque[Job] = deque()
        self._jobs: dict[int, Job] = {}
        self._live: dict[int, Job] = {}
        self._identities: set[JobIdentity] = set()
        self._resumed_identities: frozenset[JobIdentity] = frozenset()
        self._specs: dict[str, JobSpec] = {}
        self._read_progress = read_progress
        self._watch = Watch(limits, self._progress.last_step)
        self._absences: dict[Scheduler, Absence] = {}
        self._pause = limits.first_poll
        self._polled = now() - timedelta(days=1)

    def run(
        self, specs: Sequence[JobSpec], finished: Finished, begin: Begin | None = None
    ) -> None:
        """Submit jobs and their follow-ups, and return when all have ended.

        `begin` returns the jobs to submit first, if not all of `specs`. `finished` may
        get a job of status UNKNOWN, whose record was lost: only its log shows how it
        ended. Raises LaunchError if a scheduler does not answer for too long; its jobs
        keep running.
        """
        self._finished = finished
        self._enqueue(begin() if begin else map(NextJob, specs))
        self._follow()

    def resume(
        self, specs: Sequence[JobSpec], finished: Finished, begin: Begin | None = None
    ) -> None:
        """Continue the session that the journal resumed, until all jobs have ended.

        Jobs that ended are passed to `finished` again, running jobs are followed, and
        only jobs that were certainly not submitted are submitted. `specs` contain the
        secrets, which the journal does not store, and configurations that the session
        had not reached.
        """
        self._finished = finished
        ended = self._restore_jobs(specs)
        for job in ended:
            self._enqueue(finished(job, explain_job_end(job)))
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
        while self._queue or self._intended:
            if self._submit_next():
                continue
            if not self._intended:
                break
            self._wait()
        return tuple(queued.spec for queued in self._queue)

    def _restore_jobs(self, specs: Sequence[JobSpec]) -> list[Job]:
        """Restore the jobs of a resumed session, and return those that ended."""
        for spec in specs:
            self._journal.hide(find_secret_values(spec))
        self._specs = {spec.case_id: spec for spec in specs}
        live = {job.number for job in self._journal.list_live()}
        jobs = [
            self._restore_secrets(job)
            for job in self._journal.list_jobs()
            if job.submission not in NEVER_MADE
        ]
        self._identities = {job.identity for job in jobs}
        self._resumed_identities = frozenset(self._identities)
        self._jobs = {job.number: job for job in jobs}
        for job in jobs:
            if job.number in live and job.job_id:
                self._live[job.number] = job
            elif job.number in live:
                self._intended.append(job)
        self._report(f"resumed: {summarize(jobs)}")
        return sorted(
            (job for job in jobs if job.number not in live), key=is_allocation
        )  # allocations after the runs in them

    def cancel(self) -> tuple[str, ...]:
        """Cancel all unfinished jobs of this session, and wait for their end.

        Waits at most 30 s. Returns the ids of jobs that may still run, and the
        configuration ids of jobs whose submission is uncertain.
        """
        to_cancel: list[Job] = []
        uncertain: list[str] = []
        for job in self._journal.list_live():
            try:
                submitted = (
                    job
                    if job.job_id
                    else self._await_submission(self._restore_job(job))
                )
                if submitted:
                    to_cancel.append(submitted)
            except LaunchError as error:
                self._report(str(error))
                recorded = next(
                    other
                    for other in self._journal.list_jobs()
                    if other.number == job.number
                )
                if recorded.job_id:  # found, but its record could not be written
                    to_cancel.append(recorded)
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
        waited, pause = 0.0, 0.25
        while running and waited < CANCEL_SECONDS:
            if problem and problem != last_problem:
                self._report(problem)
                last_problem = problem
            self._sleep(pause)
            waited, pause = waited + pause, min(pause * 1.5, LONGEST_PAUSE)
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
        """Record the jobs that have ended, and remove them from `running`."""
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
        """Submit or recover one job if possible; return True if a job was handled."""
        for _ in range(len(self._intended)):
            job = self._intended.popleft()
            if not self._find_absence(job.spec).is_silent or self._is_poll_due():
                self._recover(job)
                return True
            self._intended.append(job)
        if self._follow_only:
            self._drop_queue()
            return False
        for index, queued in enumerate(self._queue):
            if self._has_room(queued.spec):
                del self._queue[index]
                self._submit(
                    self._journal.intend(
                        queued.spec, self._now(), queued.attempt, queued.repeat
                    ),
                    queued.spec,
                )
                return True
        return False

    def _has_room(self, spec: JobSpec) -> bool:
        """True if a job may be submitted now: a slot is free and its scheduler answers."""
        if spec.allocation:
            return not waits_for_nodes(spec, (*self._queue, *self._intended))
        scheduler = self._schedulers.find(spec)
        live_here = sum(
            self._schedulers.find(job.spec) is scheduler for job in self._live.values()
        )
        if scheduler.at_once is not None and live_here >= scheduler.at_once:
            return False
        return (
            len(self._live) < self._limits.max_jobs
            and not self._find_absence(spec).is_silent
        )

    def _submit(self, job: Job, spec: JobSpec) -> None:
        """Submit a planned job, and record the result.

        A job beyond the GPU-hours is recorded as unaffordable. A job whose scheduler is
        silent is tried again later.
        """
        job = replace(
            job, spec=replace(spec, digests=())
        )  # the job of the journal has no secrets
        self._jobs[job.number] = job
        if reason := self._admit(job):
            self._identities.discard(job.identity)  # the job may be planned again
            self._dispatch(
                self._record_failure(
                    job, SubmissionState.UNAFFORDABLE, f"not submitted: {reason}"
                )
            )
            return
        try:
            self._record_submission(job, self._submitter.submit(job))
        except SchedulerAway as error:
            self._record_silence(job, error)
            self._intended.append(job)
        except SubmitError as error:
            self._record_refusal(job, error)

    def _recover(self, job: Job) -> None:
        """Find the submission of a planned job without a recorded job id.

        The job is submitted again only if it certainly was not submitted.
        """
        try:
            submission = self._submitter.recover(job)
        except SchedulerAway as error:
            self._record_silence(job, error)
            self._intended.append(job)
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
        self._submit(
            self._journal.intend(job.spec, self._now(), job.attempt, job.repeat),
            job.spec,
        )

    def _record_submission(self, job: Job, submission: Submission) -> Job:
        """Record the id and folder of a submitted job, and follow the job."""
        self._record_answer(job)
        submitted = replace(
            self._journal.record_submission(
                job.number, submission.job_id, submission.folder, self._now()
            ),
            spec=job.spec,
        )
        self._jobs[job.number] = self._live[job.number] = submitted
        self._progress.report_submitted(submitted, self._now())
        # a burst of submissions must not cause a poll of all jobs after each of them
        if not self._queue:
            self._pause = self._limits.first_poll
        return submitted

    def _record_refusal(self, job: Job, error: SubmitError) -> None:
        self._dispatch(
            replace(self._record_failure(job, error.state, str(error)), spec=job.spec)
        )

    def _record_failure(self, job: Job, state: SubmissionState, text: str = "") -> Job:
        return self._journal.record_failure(
            job.number, describe_problem(state, text), self._now(), state
        )

    def _drop_queue(self) -> None:
        while self._queue:
            queued = self._queue.popleft()
            attempt = (
                f" (run {queued.repeat}, attempt {queued.attempt})"
                if (queued.repeat, queued.attempt) != (1, 1)
                else ""
            )
            self._report(
                f"{queued.spec.case_id}{attempt} is not submitted: --llmb-collect submits nothing"
            )

    # --- following --------------------------------------------------------------------

    def _follow(self) -> None:
        while self._queue or self._intended or self._live:
            submitted = self._submit_next()
            if self._is_poll_due():
                self._poll()
            elif not submitted:
                self._wait()

    def _is_poll_due(self) -> bool:
        elapsed = (self._now() - self._polled).total_seconds()
        return (
            not 0 <= elapsed < self._pause
        )  # polling must continue if the clock was set back

    def _wait(self) -> None:
        elapsed = (self._now() - self._polled).total_seconds()
        self._sleep(max(0.01, min(self._pause - elapsed, self._limits.longest_poll)))

    def _poll(self) -> None:
        """Poll each scheduler once for all of its jobs, and apply the answers."""
        has_moved, poll_seconds = False, 0.0
        for scheduler, jobs in self._schedulers.group(self._live.values()).items():
            started = self._now()
            try:
                statuses = scheduler.poll(jobs)
            except SchedulerAway as error:
                self._record_silence(jobs[0], error)
                continue
            poll_seconds += (self._now() - started).total_seconds()
            self._record_answer(jobs[0])
            has_moved |= self._apply_answers(scheduler, jobs, statuses)
        self._polled = self._now()
        pause = self._limits.first_poll if has_moved else self._pause * 1.5
        self._pause = min(max(pause, PAUSES * poll_seconds), self._limits.longest_poll)
        waiting = len(self._queue) + len(self._intended)
        self._progress.update(list(self._jobs.values()), waiting, self._now())

    def _apply_answers(
        self,
        scheduler: Scheduler,
        jobs: Sequence[Job],
        statuses: Mapping[int, JobStatus],
    ) -> bool:
        """Record and report the answers of a poll, and act on them.

        Returns True if a job changed its state.
        """
        logs = self._read_logs(jobs, statuses)
        with (
            self._journal.write_together()
        ):  # on slow disks, a single write takes as long as the poll
            answers = [
                self._apply_answer(job, statuses.get(job.number), logs.get(job.number))
                for job in jobs
            ]
        cancels = self._limits.stalls.cancels
        for (
            answer
        ) in answers:  # report only recorded changes, so that a resumed session agrees
            self._progress.report_change(
                answer.job, answer.before, self._now(), cancels=cancels
            )
        for job in jobs:
            if job.number not in self._live:
                self._dispatch(self._jobs[job.number])
        to_cancel = [answer.job for answer in answers if answer.cancel]
        problem = scheduler.cancel(to_cancel) if to_cancel else ""
        if problem:
            self._report(problem)
        return any(answer.moved for answer in answers)

    def _read_logs(
        self, jobs: Sequence[Job], statuses: Mapping[int, JobStatus]
    ) -> dict[int, LogProgress]:
        """Read the progress of running jobs and of jobs that hit their time limit.

        Returns the progress by job number.
        """
        if self._read_progress is None:
            return {}
        return {
            job.number: self._read_progress(replace(job, status=status))
            for job in jobs
            if (status := statuses.get(job.number))
            and (status.phase is Phase.RUNNING or status.state == "TIMEOUT")
        }

    def _apply_answer(
        self, job: Job, status: JobStatus | None, log: LogProgress | None
    ) -> _PolledJob:
        """Record the answer of a poll for one job."""
        now = self._now()
        decision = self._watch.decide(job, status, now, log)
        previous, moved = job.status, has_moved_on(job.status, decision.status)
        if decision.ended and decision.status:
            text = explain_job_end(replace(job, status=decision.status)).text
            del self._live[job.number]
            job = replace(
                self._journal.record_end(job.number, decision.status, text, now),
                spec=job.spec,
            )
            self._jobs[job.number] = job
            return _PolledJob(job, previous, moved=True)
        if differs(previous, decision.status) and decision.status:
            job = replace(
                self._journal.record_status(job.number, decision.status), spec=job.spec
            )
            self._jobs[job.number] = self._live[job.number] = job
        return _PolledJob(job, previous, moved=moved, cancel=decision.cancel)

    def _dispatch(self, job: Job) -> None:
        """Report a job that ended or was refused, and queue its follow-ups."""
        end = explain_job_end(job)
        self._jobs[job.number] = job
        self._progress.report_ended(job, end, self._now())
        self._enqueue(self._finished(job, end))

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
        fresh = self._specs.get(job.spec.case_id)
        values = dict(fresh.environment) if fresh else {}
        stored = job.spec.environment
        pairs = tuple(
            (name, values.get(name, value) if value == MASK else value)
            for name, value in stored
        )
        return replace(job, spec=replace(job.spec, environment=pairs))

    def _find_absence(self, spec: JobSpec) -> Absence:
        scheduler = self._schedulers.find(spec)
        return self._absences.setdefault(
            scheduler, Absence(scheduler.name, self._limits.away_seconds)
        )

    def _record_silence(self, job: Job, error: SchedulerAway) -> None:
        self._polled = self._now()  # wait before the next try
        self._pause = min(self._pause * 1.5, self._limits.longest_poll)
        if text := self._find_absence(job.spec).record_silence(
            str(error), self._polled
        ):
            self._report(text)

    def _record_answer(self, job: Job) -> None:
        if silent_seconds := self._find_absence(job.spec).record_answer(self._now()):
            scheduler = self._schedulers.find(job.spec)
            same_scheduler = [
                other
                for other in self._live.values()
                if self._schedulers.find(other.spec) is scheduler
            ]
            self._watch.exclude_pause(silent_seconds, same_scheduler)
            self._report(f"{scheduler.name} answers again")

    def _report(self, text: str) -> None:
        self._progress.report(text, self._now())
