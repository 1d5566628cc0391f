"""Submits jobs, follows all of them with one poll, and hands each one on when it has
ended."""

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

# how long a submission that is under way may take to end when everything is cancelled
RECOVER_SECONDS = 20.0

# how many times as long as a poll took the pause after it is at least: a slow scheduler
# is asked rarely
PAUSES = 10

CANCEL_SECONDS = 30.0
LONGEST_PAUSE = 3.0

# gets every job that ended or could not be submitted; returns the jobs that follow from
# it
Finished = Callable[[Job, JobEnd], Sequence["NextJob"]]

Begin = Callable[[], Sequence["NextJob"]]


@dataclass(frozen=True, slots=True)
class NextJob:
    """A job to be submitted; `attempt` and `repeat` as in `Job`."""

    spec: JobSpec
    attempt: int = 1
    repeat: int = 1

    @property
    def identity(self) -> JobIdentity:
        """That of the job which it becomes."""
        return self.spec.case_id, self.spec.purpose.value, self.attempt, self.repeat


class _TakenJob(NamedTuple):
    """What a poll made of a job: the job, its status before, whether it moved on, and
    whether it is to be cancelled."""

    job: Job
    before: JobStatus | None
    moved: bool
    cancel: bool = False


class Engine:
    """The jobs of one session. With `follow_only` nothing is ever submitted."""

    def __init__(  # noqa: PLR0917 (every part of it is a stand-in in some test)
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
        """Take a stand-in for each part; `admit` says why a job may not be submitted,
        or nothing."""
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
        """Submit jobs and what follows from them, and return when all have ended;
        `begin` says what starts first, where that is not all of them.

        LaunchError: a scheduler did not answer for too long; the jobs are left as they
        are. `finished` may be called with a job whose status is UNKNOWN: nothing knows
        it, and only its log can tell.
        """
        self._finished = finished
        self._enqueue(begin() if begin else map(NextJob, specs))
        self._follow()

    def resume(
        self, specs: Sequence[JobSpec], finished: Finished, begin: Begin | None = None
    ) -> None:
        """Go on with the session that the journal has resumed, as `run` would have:
        jobs that ended are handed on again, live ones followed, and submitted is only
        what certainly was not. `specs` hold the secrets that the journal does not, and
        configurations that the session had not come to."""
        self._finished = finished
        ended = self._take_up(specs)
        for job in ended:
            self._enqueue(finished(job, explain_job_end(job)))
        self._enqueue(begin() if begin else map(NextJob, specs))
        self._follow()

    def submit_only(
        self, specs: Sequence[JobSpec], *, goes_on: bool = False
    ) -> tuple[JobSpec, ...]:
        """Submit jobs and return those for which there was no room (`max_jobs`, or
        local jobs, which take turns).

        `goes_on`: the journal has resumed a session, and what it submitted is not
        submitted again.
        """
        if goes_on:
            self._take_up(specs)
        self._enqueue(NextJob(spec) for spec in specs)
        while self._queue or self._intended:
            if self._submit_next():
                continue
            if not self._intended:
                break
            self._wait()
        return tuple(each.spec for each in self._queue)

    def _take_up(self, specs: Sequence[JobSpec]) -> list[Job]:
        """Take up the jobs of a resumed session, and return those that are over."""
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
        self._say(f"resumed: {summarize(jobs)}")
        return sorted(
            (job for job in jobs if job.number not in live), key=is_allocation
        )  # behind the runs in them

    def cancel(self) -> tuple[str, ...]:
        """Cancel every job of this session that has not ended, and wait until they are
        gone, at most 30 s.

        Returns the job ids that may still be there; a configuration's id for a job of
        which nothing tells whether it was submitted.
        """
        going: list[Job] = []
        doubtful: list[str] = []
        for job in self._journal.list_live():
            try:
                caught = (
                    job if job.job_id else self._catch_submission(self._find_whole(job))
                )
                going += [caught] if caught else []
            except LaunchError as error:
                self._say(str(error))
                recorded = next(
                    other
                    for other in self._journal.list_jobs()
                    if other.number == job.number
                )
                if recorded.job_id:  # it was found, and only could not be written down
                    going.append(recorded)
                else:
                    doubtful.append(job.spec.case_id)
        left = self._cancel_jobs(going)
        self._live.clear()
        return (*doubtful, *left)

    def _cancel_jobs(self, jobs: Iterable[Job]) -> tuple[str, ...]:
        """Cancel submitted jobs, all at once, and wait at most 30 s until they have
        ended; return the ids of those that have not.

        If the scheduler reports a problem, cancelling is tried again.
        """
        going = {job.number: job for job in jobs}
        problem = self._ask_to_cancel(going.values())
        last_problem = ""
        waited, pause = 0.0, 0.25
        while going and waited < CANCEL_SECONDS:
            if problem and problem != last_problem:
                self._say(problem)
                last_problem = problem
            self._sleep(pause)
            waited, pause = waited + pause, min(pause * 1.5, LONGEST_PAUSE)
            self._record_cancelled(going)
            problem = self._ask_to_cancel(going.values()) if problem else ""
        return tuple(job.job_id for job in going.values())

    def _ask_to_cancel(self, going: Iterable[Job]) -> str:
        """Ask each scheduler once to end all of its jobs; return the problems."""
        problems = []
        for scheduler, jobs in self._schedulers.group(going).items():
            try:
                problems.append(scheduler.cancel(jobs))
            except SchedulerAway as error:
                problems.append(str(error))
        return "\n".join(filter(None, problems))

    def _record_cancelled(self, going: dict[int, Job]) -> None:
        """Record the jobs that have ended, and take them out of `going`."""
        for scheduler, jobs in self._schedulers.group(going.values()).items():
            try:
                statuses = scheduler.poll(jobs)
            except SchedulerAway:
                continue
            for number, status in statuses.items():
                if status.phase is Phase.ENDED:
                    del going[number]
                    text = "cancelled by pytest" if status.state == "CANCELLED" else ""
                    self._journal.record_end(number, status, text, self._now())

    # --- submitting -------------------------------------------------------------------

    def _enqueue(self, following: Iterable[NextJob]) -> None:
        for each in following:
            self._schedulers.find(each.spec)
            if each.identity not in self._identities:
                self._identities.add(each.identity)
                self._queue.append(each)
            elif each.identity not in self._resumed_identities:
                raise ValueError(
                    f"{each.identity}: there is a job for this already in this session"
                )

    def _submit_next(self) -> bool:
        """Submit one job if there is room; return whether something was done."""
        for _ in range(len(self._intended)):
            job = self._intended.popleft()
            if not self._find_absence(job.spec).lasts or self._is_due():
                self._recover(job)
                return True
            self._intended.append(job)
        if self._follow_only:
            self._leave_out()
            return False
        for place, each in enumerate(self._queue):
            if self._has_room(each.spec):
                del self._queue[place]
                self._submit(
                    self._journal.intend(
                        each.spec, self._now(), each.attempt, each.repeat
                    ),
                    each.spec,
                )
                return True
        return False

    def _has_room(self, spec: JobSpec) -> bool:
        if spec.allocation:
            return not waits_for_nodes(spec, (*self._queue, *self._intended))
        scheduler = self._schedulers.find(spec)
        mine = sum(
            self._schedulers.find(job.spec) is scheduler for job in self._live.values()
        )
        if scheduler.at_once is not None and mine >= scheduler.at_once:
            return False
        return (
            len(self._live) < self._limits.max_jobs
            and not self._find_absence(spec).lasts
        )

    def _submit(self, job: Job, spec: JobSpec) -> None:
        job = replace(
            job, spec=replace(spec, digests=())
        )  # the journal's has no secrets
        self._jobs[job.number] = job
        if why := self._admit(job):
            self._identities.discard(job.identity)  # it may be planned once more
            self._dispatch(
                self._record_failure(
                    job, SubmissionState.UNAFFORDABLE, f"not submitted: {why}"
                )
            )
            return
        try:
            self._note_submission(job, self._submitter.submit(job))
        except SchedulerAway as error:
            self._note_silence(job, error)
            self._intended.append(job)
        except SubmitError as error:
            self._note_refusal(job, error)

    def _recover(self, job: Job) -> None:
        """Go on with a job that was intended before: find its submission, or submit it
        if it certainly was not."""
        try:
            submission = self._submitter.recover(job)
        except SchedulerAway as error:
            self._note_silence(job, error)
            self._intended.append(job)
        except SubmitError as error:
            self._note_refusal(job, error)
        else:
            if submission:
                self._note_submission(job, submission)
            elif self._follow_only:
                self._say(
                    f"{job.spec.case_id} was not submitted; --llmb-resume submits it"
                )
            else:
                self._submit_again(job)

    def _submit_again(self, job: Job) -> None:
        """Submit a job anew, in a folder of its own, of which a submission came to
        nothing; the journal keeps both."""
        self._record_failure(job, SubmissionState.SUPERSEDED)
        del self._jobs[job.number]
        self._submit(
            self._journal.intend(job.spec, self._now(), job.attempt, job.repeat),
            job.spec,
        )

    def _note_submission(self, job: Job, submission: Submission) -> Job:
        self._note_answer(job)
        done = replace(
            self._journal.record_submission(
                job.number, submission.job_id, submission.folder, self._now()
            ),
            spec=job.spec,
        )
        self._jobs[job.number] = self._live[job.number] = done
        self._progress.report_submitted(done, self._now())
        # where many are submitted one after another, each of them is no reason to ask
        # for all
        if not self._queue:
            self._pause = self._limits.first_poll
        return done

    def _note_refusal(self, job: Job, error: SubmitError) -> None:
        self._dispatch(
            replace(self._record_failure(job, error.state, str(error)), spec=job.spec)
        )

    def _record_failure(self, job: Job, state: SubmissionState, text: str = "") -> Job:
        return self._journal.record_failure(
            job.number, describe_problem(state, text), self._now(), state
        )

    def _leave_out(self) -> None:
        while self._queue:
            each = self._queue.popleft()
            which = (
                f" (run {each.repeat}, attempt {each.attempt})"
                if (each.repeat, each.attempt) != (1, 1)
                else ""
            )
            self._say(
                f"{each.spec.case_id}{which} is not submitted: --llmb-collect submits nothing"
            )

    # --- following --------------------------------------------------------------------

    def _follow(self) -> None:
        while self._queue or self._intended or self._live:
            submitted = self._submit_next()
            if self._is_due():
                self._poll()
            elif not submitted:
                self._wait()

    def _is_due(self) -> bool:
        elapsed = (self._now() - self._polled).total_seconds()
        return (
            not 0 <= elapsed < self._pause
        )  # a clock that was set back must not stop the polls

    def _wait(self) -> None:
        elapsed = (self._now() - self._polled).total_seconds()
        self._sleep(max(0.01, min(self._pause - elapsed, self._limits.longest_poll)))

    def _poll(self) -> None:
        """Ask each scheduler once for all of its jobs, and take what is said."""
        moved, taken = False, 0.0
        for scheduler, jobs in self._schedulers.group(self._live.values()).items():
            begun = self._now()
            try:
                statuses = scheduler.poll(jobs)
            except SchedulerAway as error:
                self._note_silence(jobs[0], error)
                continue
            taken += (self._now() - begun).total_seconds()
            self._note_answer(jobs[0])
            moved |= self._take_answers(scheduler, jobs, statuses)
        self._polled = self._now()
        pause = self._limits.first_poll if moved else self._pause * 1.5
        self._pause = min(max(pause, PAUSES * taken), self._limits.longest_poll)
        waiting = len(self._queue) + len(self._intended)
        self._progress.update(list(self._jobs.values()), waiting, self._now())

    def _take_answers(
        self,
        scheduler: Scheduler,
        jobs: Sequence[Job],
        statuses: Mapping[int, JobStatus],
    ) -> bool:
        """Write what a poll says, report it, and do what follows; return True if a job
        came to another state."""
        logs = self._read_logs(jobs, statuses)
        with (
            self._journal.write_together()
        ):  # on many disks each write takes as long as the poll
            answers = [
                self._take(job, statuses.get(job.number), logs.get(job.number))
                for job in jobs
            ]
        cancels = self._limits.stalls.cancels
        for answer in (
            answers
        ):  # only what is written: a session that is killed goes on with what it said
            self._progress.report_change(
                answer.job, answer.before, self._now(), cancels=cancels
            )
        for job in jobs:
            if job.number not in self._live:
                self._dispatch(self._jobs[job.number])
        doomed = [answer.job for answer in answers if answer.cancel]
        problem = scheduler.cancel(doomed) if doomed else ""
        if problem:
            self._say(problem)
        return any(answer.moved for answer in answers)

    def _read_logs(
        self, jobs: Sequence[Job], statuses: Mapping[int, JobStatus]
    ) -> dict[int, LogProgress]:
        """Return what the logs of running jobs show, by number, and of those whose time
        was over."""
        if self._read_progress is None:
            return {}
        return {
            job.number: self._read_progress(replace(job, status=status))
            for job in jobs
            if (status := statuses.get(job.number))
            and (status.phase is Phase.RUNNING or status.state == "TIMEOUT")
        }

    def _take(
        self, job: Job, status: JobStatus | None, log: LogProgress | None
    ) -> _TakenJob:
        """Write what a poll says of a job."""
        now = self._now()
        step = self._watch.decide(job, status, now, log)
        before, moved = job.status, has_moved_on(job.status, step.status)
        if step.ended and step.status:
            text = explain_job_end(replace(job, status=step.status)).text
            del self._live[job.number]
            job = replace(
                self._journal.record_end(job.number, step.status, text, now),
                spec=job.spec,
            )
            self._jobs[job.number] = job
            return _TakenJob(job, before, moved=True)
        if differs(before, step.status) and step.status:
            job = replace(
                self._journal.record_status(job.number, step.status), spec=job.spec
            )
            self._jobs[job.number] = self._live[job.number] = job
        return _TakenJob(job, before, moved=moved, cancel=step.cancel)

    def _dispatch(self, job: Job) -> None:
        """Tell of a job that ended or was refused, and queue what follows from it."""
        end = explain_job_end(job)
        self._jobs[job.number] = job
        self._progress.report_ended(job, end, self._now())
        self._enqueue(self._finished(job, end))

    def _catch_submission(self, job: Job) -> Job | None:
        """Return a job whose submission is under way once it is submitted; None if it
        certainly was not."""
        submission = self._submitter.recover(job, RECOVER_SECONDS)
        if submission:
            return self._note_submission(job, submission)
        self._record_failure(
            job, SubmissionState.STOPPED, "cancelled before it was submitted"
        )
        return None

    def _find_whole(self, job: Job) -> Job:
        """Return a job of the journal with the secrets that it was submitted with."""
        mine = self._jobs.get(job.number)
        return replace(job, spec=mine.spec) if mine else self._restore_secrets(job)

    def _restore_secrets(self, job: Job) -> Job:
        """Return a job with the secrets that the journal does not keep, where this
        session knows them."""
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

    def _note_silence(self, job: Job, error: SchedulerAway) -> None:
        self._polled = self._now()  # the next try has to wait
        self._pause = min(self._pause * 1.5, self._limits.longest_poll)
        if text := self._find_absence(job.spec).record_silence(
            str(error), self._polled
        ):
            self._say(text)

    def _note_answer(self, job: Job) -> None:
        if away := self._find_absence(job.spec).record_answer(self._now()):
            scheduler = self._schedulers.find(job.spec)
            alike = [
                other
                for other in self._live.values()
                if self._schedulers.find(other.spec) is scheduler
            ]
            self._watch.leave_out_pause(away, alike)
            self._say(f"{scheduler.name} answers again")

    def _say(self, text: str) -> None:
        self._progress.say(text, self._now())
