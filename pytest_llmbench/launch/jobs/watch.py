"""Decide after each poll which jobs go on, have ended or are cancelled; detect stalls
and schedulers that do not answer.

Signs of life are lines of the log: a step, a checkpoint, an evaluation, the start of a
process. Time in which nobody looked does not count: the scheduler did not answer, the
job was suspended, the session was stopped, the clock was set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    BESIDE,
    STEPLESS,
    TRIALS,
    Blame,
    EndedBy,
    Job,
    JobEnd,
    JobSpec,
    JobStatus,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.stall_limits import (
    LogProgress,
    Stall,
    StallLimits,
    StallPosition,
)
from pytest_llmbench.launch.jobs.progress import (
    LastStep,
    describe_position,
    find_no_step,
    format_duration,
)
from pytest_llmbench.launch.schedulers.job_states import OWN, drop_passing
from pytest_llmbench.launch.schedulers.registry import load_scheduler

# A job is told that stands still for so many of its own slowest gaps between steps, but
# not sooner than this.
GAPS = 20
FEWEST_SECONDS = 600.0
# Before the first step: importing an image, building data, NCCL, the compilation of
# XLA.
START_SECONDS = 1800.0
CANCEL = 2.0  # it is cancelled at so many times that

# What lies between two looks counts up to this much: looks are at most 30 s apart, and
# a poll may take as long.
LONGEST_LOOK = 120.0

# A job may run for so long, and so many times its own estimate, where nobody says more.
LONGEST_RUN, ESTIMATES, LONGEST_START = 7200.0, 4.0, 3600.0

ReadProgress = Callable[[Job], LogProgress]


@dataclass(slots=True)
class _StallMemory:
    restarts: int
    looked: datetime
    marks: tuple[int, ...]
    steps: int
    stepped: bool  # whether this start of the job has had a step
    starting: bool  # whether a process started behind it
    idle: float  # seconds without a sign of life
    since_step: float  # seconds without a step
    watched: float = 0.0  # how many seconds of `idle` this session looked on
    slowest: float = 0.0  # the slowest gap between two steps
    stall: Stall | None = None

    @property
    def limit_of_steps(self) -> float:
        """How long a job may stand still between its steps."""
        return max(FEWEST_SECONDS, GAPS * self.slowest)


class StallWatch:
    """Remembers of each running job when its log last showed that it lives."""

    def __init__(self, limits: StallLimits, last_step: LastStep = find_no_step) -> None:
        """Take the limits, and what says the last step in the log of a job."""
        self._limits = limits
        self._last_step = last_step
        self._memories: dict[int, _StallMemory] = {}

    def look(
        self, job: Job, status: JobStatus, progress: LogProgress, now: datetime
    ) -> Stall | None:
        """Return that a running job stands still, as far as its log shows it, None
        where it lives."""
        memory = self._memories.get(job.number)
        if memory is None or memory.restarts != status.restarts:
            memory = self._memories[job.number] = self._begin(
                job, status, progress, now
            )
        passed = min(max((now - memory.looked).total_seconds(), 0.0), LONGEST_LOOK)
        memory.looked = now
        if (
            progress.problem or status.state != "RUNNING"
        ):  # nobody can tell, or it is suspended, or its end has begun
            return memory.stall
        memory.idle, memory.watched = memory.idle + passed, memory.watched + passed
        memory.since_step += passed
        if progress.path is not None and progress.marks != memory.marks:
            _note_life(memory, progress)
        limit = self._find_limit(job, memory, progress)
        if memory.idle < limit or (progress.prints_late and not progress.steps):
            memory.stall = None
        elif memory.stall is None:
            memory.stall = self._describe(
                job, status, memory.idle, progress, stepped=memory.stepped
            )
        return memory.stall

    def forget(self, job: Job) -> None:
        """Forget a job that waits again: it begins from its start."""
        self._memories.pop(job.number, None)

    def find_hopeless(self, job: Job, progress: LogProgress) -> Stall | None:
        """Return that a running job stands still for so long that it is to be
        cancelled. What a session did not see itself is not enough for that: the clock
        of a file system may be another one."""
        memory = self._memories.get(job.number)
        if (
            memory is None
            or memory.stall is None
            or not self._limits.cancels
            or progress.problem
        ):
            return None
        limit = self._find_limit(job, memory, progress)
        hopeless = memory.idle >= CANCEL * limit and memory.watched >= limit
        return (
            replace(memory.stall, seconds=memory.idle, cancelled=True)
            if hopeless
            else None
        )

    def find_last(
        self, job: Job, status: JobStatus, progress: LogProgress | None
    ) -> Stall | None:
        """Return how a job stood still when its time was over, None where it did not or
        nothing tells."""
        memory = self._memories.get(job.number)
        if progress is None:
            return None
        if memory is not None and memory.restarts == status.restarts:
            lives = progress.path is not None and progress.marks != memory.marks
            return (
                None
                if lives or memory.stall is None
                else replace(memory.stall, seconds=memory.idle)
            )
        earlier = job.status.stall if job.status else None
        if earlier and earlier.done == self._get_step(job, status)[0]:
            return earlier
        return self._find_unwatched(job, status, progress)

    def _find_unwatched(
        self, job: Job, status: JobStatus, progress: LogProgress
    ) -> Stall | None:
        """Return how a job stood still at which nobody looked: most of its time is in
        no step."""
        if progress.problem or progress.prints_late or status.elapsed_seconds is None:
            return None
        slowest = min(progress.slowest_seconds, status.elapsed_seconds)
        seconds = status.elapsed_seconds - progress.taken_seconds
        if seconds < CANCEL * (START_SECONDS + GAPS * slowest):
            return None
        return self._describe(
            job, status, seconds, progress, stepped=progress.steps > 0
        )

    def _begin(
        self, job: Job, status: JobStatus, progress: LogProgress, now: datetime
    ) -> _StallMemory:
        """Return what is known of a job at the first look: how long it runs, when its
        log was last written."""
        runs = status.elapsed_seconds
        if runs is None:
            runs = (now - status.started).total_seconds() if status.started else 0.0
        runs = max(runs, 0.0)
        # the log of a job that was requeued may hold the steps of its earlier start
        stepped = progress.steps > 0 and not status.restarts
        idle = runs
        if progress.steps and progress.modified:
            idle = min(max((now - progress.modified).total_seconds(), 0.0), runs)
        memory = _StallMemory(
            restarts=status.restarts,
            looked=now,
            marks=progress.marks,
            steps=progress.steps,
            stepped=stepped,
            starting=progress.starting,
            idle=idle,
            since_step=idle,
            slowest=min(progress.slowest_seconds, runs) if stepped else 0.0,
        )
        earlier = (
            job.status.stall
            if job.status and job.status.restarts == status.restarts
            else None
        )
        if (
            earlier and earlier.done == self._get_step(job, status)[0]
        ):  # an earlier session saw it stand still
            memory.stall, memory.idle = earlier, max(idle, earlier.seconds)
        return memory

    def _find_limit(
        self, job: Job, memory: _StallMemory, progress: LogProgress
    ) -> float:
        """Return for how long a job may stand still until that is told."""
        if self._limits.tell_seconds is not None:
            return self._limits.tell_seconds
        # profiles are written, checkpoints saved and loaded, while no step is printed;
        # how far apart lines of steps are nobody knows before the second one
        starts = not memory.slowest or progress.starting or progress.path is None
        slow = starts or job.spec.purpose is not Purpose.MEASURE
        return max(START_SECONDS if slow else 0.0, memory.limit_of_steps)

    def _describe(
        self,
        job: Job,
        status: JobStatus,
        seconds: float,
        progress: LogProgress,
        *,
        stepped: bool,
    ) -> Stall:
        done, total = self._get_step(job, status) if stepped else (0, None)
        if not stepped or progress.starting:
            place = StallPosition.START
        else:
            place = (
                StallPosition.END if total and done >= total else StallPosition.STEPS
            )
        log = str(progress.path or progress.place)
        return Stall(place, seconds, done, total, log, found=progress.path is not None)

    def _get_step(self, job: Job, status: JobStatus) -> tuple[int, int | None]:
        step = self._last_step(
            replace(job, status=status)
        )  # a requeued job may have another log
        return (step[0], step[1]) if step else (0, None)


def _note_life(memory: _StallMemory, progress: LogProgress) -> None:
    """Take a sign of life, and the gap before it where it is a step."""
    if (
        progress.steps > memory.steps
    ):  # fewer: another log, as of a job that was requeued
        if not memory.stepped:  # many at once: the log is written so rarely
            memory.slowest = min(memory.since_step, progress.taken_seconds)
        elif not memory.starting:
            memory.slowest = max(memory.slowest, memory.since_step)
        memory.stepped, memory.since_step = True, 0.0
    memory.marks, memory.steps, memory.starting = (
        progress.marks,
        progress.steps,
        progress.starting,
    )
    memory.idle = memory.watched = 0.0


def describe_stall(stall: Stall) -> str:
    """Return `stood still for 24 min after step 5/50 (log-x_1.out)`."""
    duration = format_duration(stall.seconds)
    if not stall.found:
        return f"stood still for {duration}: no log of its own was found in {stall.log}"
    return f"stood still for {duration} {describe_position(stall)} ({Path(stall.log).name})"


def limit_running(spec: JobSpec, status: JobStatus) -> float:
    """Return how many seconds a job may run: generously by its own estimate, at least
    its time limit."""
    estimate = 3600.0 * spec.gpu_hours / max(spec.occupied_gpus, 1)
    return max(
        LONGEST_RUN, ESTIMATES * estimate + LONGEST_START, status.limit_seconds or 0.0
    )


# --- all that is decided from poll to poll --------------------------------------------


BLOCKED_SECONDS = (
    10.0  # a reason that never clears has to be seen for so long, in poll after poll
)
GONE_SECONDS = (
    600.0  # the same of nodes that an A/B or a search holds on to: a node may come back
)

CANCEL_AGAIN_SECONDS = 60.0
TELL_AGAIN_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much and how long (seconds; None: no limit)."""

    max_jobs: int = 100
    pending_seconds: float | None = None
    beside_seconds: float = 3600.0  # the same of a job that no verdict waits for
    running_seconds: float | None = (
        None  # None: by the job's own estimate, where stalls cancel
    )
    stalls: StallLimits = field(default_factory=StallLimits)
    away_seconds: float = 1800.0  # so long a scheduler may not answer
    lost_seconds: float = 600.0  # so long nothing may know a job
    first_poll: float = 1.0  # so far apart are polls after a change
    longest_poll: float = 30.0  # and without one


@dataclass(frozen=True, slots=True)
class PollDecision:
    """What follows from a poll."""

    status: JobStatus | None  # to keep
    ended: bool = False
    cancel: bool = False  # it is to be cancelled


@dataclass(slots=True)
class _JobMemory:
    phase: Phase
    since: datetime  # it is in this phase
    last_seen: datetime  # when something knew it
    blocked: datetime | None = (
        # since when its reason is one that never clears, or that its nodes are gone
        None
    )
    is_stuck: bool = False  # the first of these
    doomed: str = ""  # why it is not waited for any longer
    stall: Stall | None = None  # it stood still then
    cancelled: datetime | None = None

    def note(self, status: JobStatus, now: datetime) -> None:
        """Note what is known of a job. A time in which it was suspended does not
        count."""
        if status.state == "SUSPENDED" and not self.doomed:
            self.since += now - self.last_seen
        self.last_seen = now
        if status.phase is not self.phase:
            self.phase, self.since, self.blocked = status.phase, now, None


class Watch:
    """Remembers since when each job is in its phase. Time in which nobody answered does
    not count."""

    def __init__(self, limits: Limits, last_step: LastStep = find_no_step) -> None:
        self._limits = limits
        self._stalls = StallWatch(limits.stalls, last_step)
        self._memories: dict[int, _JobMemory] = {}
        self._taken_along: dict[
            str, str
        ] = {}  # by the id of an allocation: which run it was cancelled with, and why

    def decide(
        self,
        job: Job,
        status: JobStatus | None,
        now: datetime,
        progress: LogProgress | None = None,
    ) -> PollDecision:
        """Decide about a job from what a poll says of it, None where the poll says
        nothing, and from what its log shows, None where nobody looked."""
        memory = self._memories.setdefault(
            job.number, _JobMemory(Phase.UNKNOWN, now, now)
        )
        if job.spec.purpose in STEPLESS:
            progress = None
        if status is None or status.phase is Phase.UNKNOWN:
            return self._decide_unknown(job, memory, now)
        memory.note(status, now)
        if status.phase is Phase.ENDED:
            return PollDecision(
                self._explain_ended(job, status, memory, progress), ended=True
            )
        if status.phase is Phase.WAITING:
            self._stalls.forget(job)
        elif progress is not None:
            status = replace(
                status, stall=self._stalls.look(job, status, progress, now)
            )
            hopeless = self._stalls.find_hopeless(job, progress)
            if hopeless and not memory.doomed:
                memory.doomed, memory.stall = describe_stall(hopeless), hopeless
        if not memory.doomed:
            memory.doomed, memory.stall = (
                self._find_doom(job, status, memory, now),
                status.stall,
            )
        if not memory.doomed:
            return PollDecision(status)
        return self._cancel_doomed(
            job, replace(status, stall=memory.stall), memory, now
        )

    def _explain_ended(
        self,
        job: Job,
        status: JobStatus,
        memory: _JobMemory,
        progress: LogProgress | None,
    ) -> JobStatus:
        """Return the status of a job that ended with what we did to it, or how it stood
        still."""
        if status.state == "TIMEOUT":
            return replace(status, stall=self._stalls.find_last(job, status, progress))
        before = job.status.stall if job.status else None
        stall = (
            before if before and before.cancelled else None
        )  # an earlier session may have cancelled it
        doomed = (
            memory.doomed
            or self._taken_along.get(job.job_id, "")
            or (describe_stall(stall) if stall else "")
        )
        if not doomed or status.state != "CANCELLED":
            return status
        return replace(_mark_own(status, doomed), stall=memory.stall or stall)

    def leave_out_pause(self, seconds: float, jobs: Iterable[Job]) -> None:
        """Leave out a time in which nobody answered for these jobs."""
        shift = timedelta(seconds=seconds)
        for job in jobs:
            if memory := self._memories.get(job.number):
                memory.since, memory.last_seen = (
                    memory.since + shift,
                    memory.last_seen + shift,
                )
                memory.blocked = memory.blocked and memory.blocked + shift

    def _decide_unknown(
        self, job: Job, memory: _JobMemory, now: datetime
    ) -> PollDecision:
        """A job without a record is normal right after its submission and at its end;
        for long it is lost."""
        if (now - memory.last_seen).total_seconds() < self._limits.lost_seconds:
            return PollDecision(job.status)
        last = job.status or JobStatus(Phase.UNKNOWN, "")
        lost = replace(last, phase=Phase.UNKNOWN, state="")
        return PollDecision(
            _mark_own(lost, _describe_lost(job, self._limits)), ended=True
        )

    def _find_doom(
        self, job: Job, status: JobStatus, memory: _JobMemory, now: datetime
    ) -> str:
        """Return why a job is not to be waited for any longer, or nothing."""
        seconds = (now - memory.since).total_seconds()
        if status.phase is Phase.RUNNING:
            return self._explain_endless(job, status, seconds)
        if status.phase is not Phase.WAITING:
            return ""
        if why := self._find_block(job, status, memory, now):
            return f"never started: {why}"
        pending = self._limits.pending_seconds
        if job.spec.purpose in BESIDE:
            pending = min(self._limits.beside_seconds, pending or math.inf)
        if pending is None or seconds <= pending:
            return ""
        reason = f" ({status.reason})" if status.reason else ""
        return f"never started: pending{reason} for {format_duration(seconds)}, allowed are {format_duration(pending)}"

    def _explain_endless(self, job: Job, status: JobStatus, seconds: float) -> str:
        """Return that a job has run for too long, or nothing."""
        running = self._limits.running_seconds
        if running is None and self._limits.stalls.cancels:
            running = limit_running(job.spec, status)
        if running is None or seconds <= running:
            return ""
        return (
            f"it ran for {format_duration(seconds)}, allowed are {format_duration(running)}: a longer `time_limit` "
            "in the cluster file, or --llmb-stall-limit=none, allows more"
        )

    def _find_block(
        self, job: Job, status: JobStatus, memory: _JobMemory, now: datetime
    ) -> str:
        """Return the reason that has kept a waiting job from starting for so long that
        it never will, or nothing."""
        scheduler = load_scheduler(job.spec.via)
        beside, pinned = (
            job.spec.purpose in BESIDE,
            job.spec.purpose in (*TRIALS, Purpose.ALLOCATION),
        )
        stuck = why = scheduler.explain_stuck(status)
        if not stuck and (beside or pinned):
            why = scheduler.explain_unavailable(status, reserved=beside)
        again = memory.blocked if memory.is_stuck is bool(stuck) else None
        memory.blocked, memory.is_stuck = (again or now) if why else None, bool(stuck)
        longest = GONE_SECONDS if pinned and not stuck else BLOCKED_SECONDS
        lasts = (
            memory.blocked is not None
            and (now - memory.blocked).total_seconds() >= longest
        )
        return why if lasts else ""

    def _cancel_doomed(
        self, job: Job, status: JobStatus, memory: _JobMemory, now: datetime
    ) -> PollDecision:
        """Cancel a job, again if it does not go; give it up if it cannot be
        cancelled."""
        if memory.cancelled is None:
            memory.cancelled, memory.since = now, now
            if job.spec.allocation:
                self._taken_along[job.scheduler_id] = (
                    f"cancelled by pytest for job {job.job_id} in it: {memory.doomed}"
                )
            return PollDecision(status, cancel=True)
        if (now - memory.since).total_seconds() >= self._limits.lost_seconds:
            cancel = load_scheduler(job.spec.via).format_cancel([job.scheduler_id])
            text = f"{memory.doomed}; it could not be cancelled and is still {status.state}"
            text += f": {cancel}" if cancel else ""
            # without its stall: it may run on, so that it is not started again
            return PollDecision(
                _mark_own(replace(status, phase=Phase.ENDED, stall=None), text),
                ended=True,
            )
        again = (now - memory.cancelled).total_seconds() >= CANCEL_AGAIN_SECONDS
        memory.cancelled = now if again else memory.cancelled
        return PollDecision(status, cancel=again)


class Absence:
    """How long a scheduler has not answered."""

    def __init__(self, name: str, away_seconds: float) -> None:
        self._name = name
        self._allowed = away_seconds
        self._since: datetime | None = None
        self._told: datetime | None = None

    @property
    def lasts(self) -> bool:
        """Whether there was no answer the last time."""
        return self._since is not None

    def record_silence(self, error: str, now: datetime) -> str:
        """Note that there was no answer; return what to tell. LaunchError when it lasts
        too long."""
        self._since = self._since or now
        away = (now - self._since).total_seconds()
        if away > self._allowed:
            raise LaunchError(
                f"{self._name} has not answered for {format_duration(away)}: {error}\n"
                "The jobs of this session are left as they are; --llmb-resume follows them when "
                f"{self._name} answers again"
            )
        if self._told and (now - self._told).total_seconds() < TELL_AGAIN_SECONDS:
            return ""
        self._told = now
        rest = format_duration(self._allowed - away)
        return f"{self._name} does not answer, waiting up to {rest}: {error.splitlines()[0]}"

    def record_answer(self, now: datetime) -> float:
        """Note an answer; return for how many seconds there was none."""
        away = (now - self._since).total_seconds() if self._since else 0.0
        self._since = self._told = None
        return away


def explain_job_end(job: Job) -> JobEnd:
    """Return how a job of the journal ended: refused, ended by us, lost, or what its
    scheduler says."""
    if job.submission is SubmissionState.STOPPED:
        return JobEnd(Blame.CANCELLED, job.problem)
    if job.refused:
        return JobEnd(Blame.RUN, job.problem)
    if job.status is None:
        return JobEnd(Blame.RUN, "nothing is known of its end")
    stall = job.status.stall
    # of one whose record was lost its log alone cannot tell that it was cancelled for
    # it
    if stall and (job.status.phase is Phase.ENDED or stall.cancelled):
        until = ", until its time limit" if job.status.state == "TIMEOUT" else ""
        return JobEnd(Blame.HUNG, f"it {describe_stall(stall)}{until}")
    if job.status.ended_by is EndedBy.PYTEST:
        blame = Blame.CANCELLED if job.status.state == "CANCELLED" else Blame.RUN
        return JobEnd(blame, job.status.reason.removeprefix(OWN))
    return load_scheduler(job.spec.via).explain_end(job.status)


def differs(old: JobStatus | None, new: JobStatus | None) -> bool:
    """Whether something changed that is worth keeping."""
    if old is None or new is None:
        return new is not old
    return drop_passing(old) != drop_passing(new)


def has_moved_on(old: JobStatus | None, new: JobStatus | None) -> bool:
    """Whether a job came to another state, so that more may happen soon; to wait for
    another reason is none."""
    return (old and (old.phase, old.state)) != (new and (new.phase, new.state))


def _mark_own(status: JobStatus, text: str) -> JobStatus:
    """Return a status that we ended; it is kept with the job, so that a resumed session
    says the same."""
    return replace(status, reason=OWN + text, ended_by=EndedBy.PYTEST)


def _describe_lost(job: Job, limits: Limits) -> str:
    nothing = (
        f"nothing has known job {job.job_id} for {format_duration(limits.lost_seconds)}"
    )
    if job.status and job.status.phase is Phase.RUNNING:
        return f"{nothing}, though it ran: its record was purged or lost; only its log can tell how it ended"
    return f"{nothing}: its record was purged, or it is another cluster's; whether it ran, only its log can tell"
