"""Decide after each poll which jobs continue, have ended, or must be cancelled.

Detects stalled jobs and schedulers that do not answer. A job makes progress if its log
shows a step, a checkpoint, an evaluation or the start of a process. Time that the
session did not observe does not count: the scheduler did not answer, the job was
suspended, the session was stopped, or the clock was set.
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

# A job is stalled after this many times its slowest gap between two steps, but not before
# SHORTEST_LIMIT.
GAPS = 20
SHORTEST_LIMIT = 600.0
# The limit before the first step: importing an image, building data, NCCL, XLA
# compilation.
START_SECONDS = 1800.0
CANCEL = 2.0  # a stalled job is cancelled at this multiple of its limit

# At most this time between two observations counts: they are at most 30 s apart, and a
# poll may take as long.
LONGEST_INTERVAL = 120.0

# The longest time that a job may run, and the multiple of its estimate plus its start,
# unless its time limit is longer.
LONGEST_RUN, ESTIMATES, LONGEST_START = 7200.0, 4.0, 3600.0

ReadProgress = Callable[[Job], LogProgress]


@dataclass(slots=True)
class _StallMemory:
    restarts: int
    observed: datetime
    marks: tuple[int, ...]
    steps: int
    has_stepped: bool  # True if the job made a step since its last start
    starting: bool  # True if a process started after the last step
    idle: float  # seconds without progress
    since_step: float  # seconds without a step
    observed_idle: float = 0.0  # the seconds of `idle` that this session observed
    slowest_gap: float = 0.0  # the slowest gap between two steps
    stall: Stall | None = None

    @property
    def limit_between_steps(self) -> float:
        """The time without progress between steps after which a job is stalled."""
        return max(SHORTEST_LIMIT, GAPS * self.slowest_gap)


class StallWatch:
    """Tracks the time since the last progress in the log of each running job."""

    def __init__(self, limits: StallLimits, last_step: LastStep = find_no_step) -> None:
        """`last_step` returns the last step in the log of a job."""
        self._limits = limits
        self._last_step = last_step
        self._memories: dict[int, _StallMemory] = {}

    def observe(
        self, job: Job, status: JobStatus, progress: LogProgress, now: datetime
    ) -> Stall | None:
        """Update the state of a running job, and return its stall or None."""
        memory = self._memories.get(job.number)
        if memory is None or memory.restarts != status.restarts:
            memory = self._memories[job.number] = self._begin(
                job, status, progress, now
            )
        elapsed = min(
            max((now - memory.observed).total_seconds(), 0.0), LONGEST_INTERVAL
        )
        memory.observed = now
        if (
            progress.problem or status.state != "RUNNING"
        ):  # unreadable log, suspended job, or a job about to end
            return memory.stall
        memory.idle, memory.observed_idle = (
            memory.idle + elapsed,
            memory.observed_idle + elapsed,
        )
        memory.since_step += elapsed
        if progress.path is not None and progress.marks != memory.marks:
            _record_progress(memory, progress)
        limit = self._find_limit(job, memory, progress)
        if memory.idle < limit or (progress.prints_late and not progress.steps):
            memory.stall = None
        elif memory.stall is None:
            memory.stall = self._describe(
                job, status, memory.idle, progress, has_stepped=memory.has_stepped
            )
        return memory.stall

    def forget(self, job: Job) -> None:
        """Forget a requeued job, which starts from its beginning."""
        self._memories.pop(job.number, None)

    def find_stall_to_cancel(self, job: Job, progress: LogProgress) -> Stall | None:
        """Return the stall of a running job that must be cancelled, or None.

        Only time observed by this session counts towards the limit, because the clock
        of a file system may differ.
        """
        memory = self._memories.get(job.number)
        if (
            memory is None
            or memory.stall is None
            or not self._limits.cancels
            or progress.problem
        ):
            return None
        limit = self._find_limit(job, memory, progress)
        is_over = memory.idle >= CANCEL * limit and memory.observed_idle >= limit
        return (
            replace(memory.stall, seconds=memory.idle, cancelled=True)
            if is_over
            else None
        )

    def find_final_stall(
        self, job: Job, status: JobStatus, progress: LogProgress | None
    ) -> Stall | None:
        """Return the stall of a job that hit its time limit, or None."""
        memory = self._memories.get(job.number)
        if progress is None:
            return None
        if memory is not None and memory.restarts == status.restarts:
            has_progress = progress.path is not None and progress.marks != memory.marks
            return (
                None
                if has_progress or memory.stall is None
                else replace(memory.stall, seconds=memory.idle)
            )
        earlier = job.status.stall if job.status else None
        if earlier and earlier.done == self._get_step(job, status)[0]:
            return earlier
        return self._find_unobserved(job, status, progress)

    def _find_unobserved(
        self, job: Job, status: JobStatus, progress: LogProgress
    ) -> Stall | None:
        """Return the stall of a job that no session observed, or None.

        Such a job stalled if it spent much more time outside of steps than a start and
        the longest allowed gap between steps would take.
        """
        if progress.problem or progress.prints_late or status.elapsed_seconds is None:
            return None
        slowest = min(progress.slowest_seconds, status.elapsed_seconds)
        seconds = status.elapsed_seconds - progress.taken_seconds
        if seconds < CANCEL * (START_SECONDS + GAPS * slowest):
            return None
        return self._describe(
            job, status, seconds, progress, has_stepped=progress.steps > 0
        )

    def _begin(
        self, job: Job, status: JobStatus, progress: LogProgress, now: datetime
    ) -> _StallMemory:
        """Start tracking a job, from its running time and the last change of its log."""
        running_seconds = status.elapsed_seconds
        if running_seconds is None:
            running_seconds = (
                (now - status.started).total_seconds() if status.started else 0.0
            )
        running_seconds = max(running_seconds, 0.0)
        # the log of a requeued job may contain the steps of its earlier start
        has_stepped = progress.steps > 0 and not status.restarts
        idle = running_seconds
        if progress.steps and progress.modified:
            idle = min(
                max((now - progress.modified).total_seconds(), 0.0), running_seconds
            )
        memory = _StallMemory(
            restarts=status.restarts,
            observed=now,
            marks=progress.marks,
            steps=progress.steps,
            has_stepped=has_stepped,
            starting=progress.starting,
            idle=idle,
            since_step=idle,
            slowest_gap=min(progress.slowest_seconds, running_seconds)
            if has_stepped
            else 0.0,
        )
        earlier = (
            job.status.stall
            if job.status and job.status.restarts == status.restarts
            else None
        )
        if (
            earlier and earlier.done == self._get_step(job, status)[0]
        ):  # an earlier session observed the stall
            memory.stall, memory.idle = earlier, max(idle, earlier.seconds)
        return memory

    def _find_limit(
        self, job: Job, memory: _StallMemory, progress: LogProgress
    ) -> float:
        """Return the seconds without progress after which a job is stalled."""
        if self._limits.tell_seconds is not None:
            return self._limits.tell_seconds
        # while profiles or checkpoints are written or loaded no step is printed; the gap
        # between steps is unknown before the second step
        is_starting = (
            not memory.slowest_gap or progress.starting or progress.path is None
        )
        is_slow = is_starting or job.spec.purpose is not Purpose.MEASURE
        return max(START_SECONDS if is_slow else 0.0, memory.limit_between_steps)

    def _describe(
        self,
        job: Job,
        status: JobStatus,
        seconds: float,
        progress: LogProgress,
        *,
        has_stepped: bool,
    ) -> Stall:
        """Build the record of a stall: its position, duration and last step."""
        done, total = self._get_step(job, status) if has_stepped else (0, None)
        if not has_stepped or progress.starting:
            position = StallPosition.START
        else:
            position = (
                StallPosition.END if total and done >= total else StallPosition.STEPS
            )
        log = str(progress.path or progress.place)
        return Stall(
            position, seconds, done, total, log, found=progress.path is not None
        )

    def _get_step(self, job: Job, status: JobStatus) -> tuple[int, int | None]:
        step = self._last_step(
            replace(job, status=status)
        )  # a requeued job may write another log
        return (step[0], step[1]) if step else (0, None)


def _record_progress(memory: _StallMemory, progress: LogProgress) -> None:
    """Record progress; if it is a step, also the gap before it."""
    if progress.steps > memory.steps:  # fewer steps: another log, as after a requeue
        if not memory.has_stepped:  # several steps at once: the log is written rarely
            memory.slowest_gap = min(memory.since_step, progress.taken_seconds)
        elif not memory.starting:
            memory.slowest_gap = max(memory.slowest_gap, memory.since_step)
        memory.has_stepped, memory.since_step = True, 0.0
    memory.marks, memory.steps, memory.starting = (
        progress.marks,
        progress.steps,
        progress.starting,
    )
    memory.idle = memory.observed_idle = 0.0


def describe_stall(stall: Stall) -> str:
    """Format a stall: `stalled for 24 min after step 5/50 (log-x_1.out)`."""
    duration = format_duration(stall.seconds)
    if not stall.found:
        return f"stalled for {duration}: no log was found in {stall.log}"
    return f"stalled for {duration} {describe_position(stall)} ({Path(stall.log).name})"


def limit_running(spec: JobSpec, status: JobStatus) -> float:
    """Return the seconds that a job may run.

    This is the largest of LONGEST_RUN, its time limit, and a multiple of its estimate
    plus LONGEST_START.
    """
    estimate = 3600.0 * spec.gpu_hours / max(spec.occupied_gpus, 1)
    return max(
        LONGEST_RUN, ESTIMATES * estimate + LONGEST_START, status.limit_seconds or 0.0
    )


# --- decisions after each poll ------------------------------------------------------


BLOCKED_SECONDS = 10.0  # a permanent reason must persist for this time, poll after poll
GONE_SECONDS = (
    600.0  # the same for the nodes of an A/B or a search: a node may come back
)

CANCEL_AGAIN_SECONDS = 60.0
TELL_AGAIN_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of jobs and polls. Times in seconds; None: no limit."""

    max_jobs: int = 100
    pending_seconds: float | None = None
    node_check_seconds: float = 3600.0  # the same for jobs that check nodes
    running_seconds: float | None = (
        None  # None: from the job's own estimate, if stalls are cancelled
    )
    stalls: StallLimits = field(default_factory=StallLimits)
    away_seconds: float = 1800.0  # a scheduler may fail to answer for this time
    lost_seconds: float = 600.0  # a job may have no record for this time
    first_poll: float = 1.0  # interval between polls after a change
    longest_poll: float = 30.0  # interval between polls without changes


@dataclass(frozen=True, slots=True)
class PollDecision:
    """The decision on one job after a poll."""

    status: JobStatus | None  # to record
    ended: bool = False
    cancel: bool = False  # True if the job is to be cancelled


@dataclass(slots=True)
class _JobMemory:
    phase: Phase
    phase_since: datetime  # the start of its phase
    last_seen: datetime  # the last poll that returned a record of it
    blocked_since: datetime | None = (
        # since when it cannot start, or its nodes are gone
        None
    )
    is_stuck: bool = False  # True if it cannot start
    given_up: str = ""  # the reason it was given up
    stall: Stall | None = None  # the stall it was given up for
    cancelled_at: datetime | None = None

    def update(self, status: JobStatus, now: datetime) -> None:
        """Update the phase of a job. Time in which it was suspended does not count."""
        if status.state == "SUSPENDED" and not self.given_up:
            self.phase_since += now - self.last_seen
        self.last_seen = now
        if status.phase is not self.phase:
            self.phase, self.phase_since, self.blocked_since = status.phase, now, None


class Watch:
    """Tracks the phase of each job. Time without an answer does not count."""

    def __init__(self, limits: Limits, last_step: LastStep = find_no_step) -> None:
        self._limits = limits
        self._stalls = StallWatch(limits.stalls, last_step)
        self._memories: dict[int, _JobMemory] = {}
        self._cancelled_allocations: dict[
            str, str
        ] = {}  # by the id of an allocation: the run it was cancelled with, and why

    def decide(
        self,
        job: Job,
        status: JobStatus | None,
        now: datetime,
        progress: LogProgress | None = None,
    ) -> PollDecision:
        """Decide about a job after a poll.

        `status` is None if the poll returned no status, `progress` if the log was not
        read.
        """
        memory = self._memories.setdefault(
            job.number, _JobMemory(Phase.UNKNOWN, now, now)
        )
        if job.spec.purpose in STEPLESS:
            progress = None
        if status is None or status.phase is Phase.UNKNOWN:
            return self._decide_unknown(job, memory, now)
        memory.update(status, now)
        if status.phase is Phase.ENDED:
            return PollDecision(
                self._explain_ended(job, status, memory, progress), ended=True
            )
        if status.phase is Phase.WAITING:
            self._stalls.forget(job)
        elif progress is not None:
            status = replace(
                status, stall=self._stalls.observe(job, status, progress, now)
            )
            final_stall = self._stalls.find_stall_to_cancel(job, progress)
            if final_stall and not memory.given_up:
                memory.given_up, memory.stall = describe_stall(final_stall), final_stall
        if not memory.given_up:
            memory.given_up, memory.stall = (
                self._find_give_up_reason(job, status, memory, now),
                status.stall,
            )
        if not memory.given_up:
            return PollDecision(status)
        return self._cancel_job(job, replace(status, stall=memory.stall), memory, now)

    def _explain_ended(
        self,
        job: Job,
        status: JobStatus,
        memory: _JobMemory,
        progress: LogProgress | None,
    ) -> JobStatus:
        """Add our reason for cancelling an ended job, or its stall, to its status."""
        if status.state == "TIMEOUT":
            return replace(
                status, stall=self._stalls.find_final_stall(job, status, progress)
            )
        recorded = job.status.stall if job.status else None
        stall = (
            recorded if recorded and recorded.cancelled else None
        )  # cancelled by an earlier session
        reason = (
            memory.given_up
            or self._cancelled_allocations.get(job.job_id, "")
            or (describe_stall(stall) if stall else "")
        )
        if not reason or status.state != "CANCELLED":
            return status
        return replace(_mark_ended_by_us(status, reason), stall=memory.stall or stall)

    def exclude_pause(self, seconds: float, jobs: Iterable[Job]) -> None:
        """Exclude a pause, in which the scheduler did not answer, from times of jobs."""
        shift = timedelta(seconds=seconds)
        for job in jobs:
            if memory := self._memories.get(job.number):
                memory.phase_since, memory.last_seen = (
                    memory.phase_since + shift,
                    memory.last_seen + shift,
                )
                memory.blocked_since = (
                    memory.blocked_since and memory.blocked_since + shift
                )

    def _decide_unknown(
        self, job: Job, memory: _JobMemory, now: datetime
    ) -> PollDecision:
        """Decide about a job without a record.

        That is normal right after its submission and at its end; later the job is lost.
        """
        if (now - memory.last_seen).total_seconds() < self._limits.lost_seconds:
            return PollDecision(job.status)
        last = job.status or JobStatus(Phase.UNKNOWN, "")
        lost = replace(last, phase=Phase.UNKNOWN, state="")
        return PollDecision(
            _mark_ended_by_us(lost, _describe_lost(job, self._limits)), ended=True
        )

    def _find_give_up_reason(
        self, job: Job, status: JobStatus, memory: _JobMemory, now: datetime
    ) -> str:
        """Return the reason to give up on a job, or ""."""
        seconds = (now - memory.phase_since).total_seconds()
        if status.phase is Phase.RUNNING:
            return self._explain_overrun(job, status, seconds)
        if status.phase is not Phase.WAITING:
            return ""
        if reason := self._find_block(job, status, memory, now):
            return f"never started: {reason}"
        pending = self._limits.pending_seconds
        if job.spec.purpose in BESIDE:
            pending = min(self._limits.node_check_seconds, pending or math.inf)
        if pending is None or seconds <= pending:
            return ""
        reason = f" ({status.reason})" if status.reason else ""
        return f"never started: pending{reason} for {format_duration(seconds)} (limit {format_duration(pending)})"

    def _explain_overrun(self, job: Job, status: JobStatus, seconds: float) -> str:
        """Return the reason to cancel a job that has run for too long, or ""."""
        limit = self._limits.running_seconds
        if limit is None and self._limits.stalls.cancels:
            limit = limit_running(job.spec, status)
        if limit is None or seconds <= limit:
            return ""
        return (
            f"it ran for {format_duration(seconds)} (limit {format_duration(limit)}). Set a longer `time_limit` "
            "in the cluster file, or --llmb-stall-limit=none"
        )

    def _find_block(
        self, job: Job, status: JobStatus, memory: _JobMemory, now: datetime
    ) -> str:
        """Return the reason a waiting job will never start, or "".

        The reason must persist for some time.
        """
        scheduler = load_scheduler(job.spec.via)
        is_node_job = job.spec.purpose in BESIDE
        needs_these_nodes = job.spec.purpose in (*TRIALS, Purpose.ALLOCATION)
        stuck = reason = scheduler.explain_stuck(status)
        if not stuck and (is_node_job or needs_these_nodes):
            reason = scheduler.explain_unavailable(status, reserved=is_node_job)
        since = memory.blocked_since if memory.is_stuck is bool(stuck) else None
        memory.blocked_since, memory.is_stuck = (
            (since or now) if reason else None,
            bool(stuck),
        )
        longest = GONE_SECONDS if needs_these_nodes and not stuck else BLOCKED_SECONDS
        persists = (
            memory.blocked_since is not None
            and (now - memory.blocked_since).total_seconds() >= longest
        )
        return reason if persists else ""

    def _cancel_job(
        self, job: Job, status: JobStatus, memory: _JobMemory, now: datetime
    ) -> PollDecision:
        """Cancel a job, and cancel it again if it does not end.

        A job that cannot be cancelled is given up.
        """
        if memory.cancelled_at is None:
            memory.cancelled_at, memory.phase_since = now, now
            if job.spec.allocation:
                self._cancelled_allocations[job.scheduler_id] = (
                    f"cancelled by pytest for job {job.job_id} in it: {memory.given_up}"
                )
            return PollDecision(status, cancel=True)
        if (now - memory.phase_since).total_seconds() >= self._limits.lost_seconds:
            cancel = load_scheduler(job.spec.via).format_cancel([job.scheduler_id])
            text = f"{memory.given_up}; it could not be cancelled and is still {status.state}"
            text += f": {cancel}" if cancel else ""
            # without its stall: the job may still run, so it must not be retried
            return PollDecision(
                _mark_ended_by_us(replace(status, phase=Phase.ENDED, stall=None), text),
                ended=True,
            )
        is_due = (now - memory.cancelled_at).total_seconds() >= CANCEL_AGAIN_SECONDS
        memory.cancelled_at = now if is_due else memory.cancelled_at
        return PollDecision(status, cancel=is_due)


class Absence:
    """Tracks how long a scheduler has not answered."""

    def __init__(self, name: str, away_seconds: float) -> None:
        self._name = name
        self._allowed = away_seconds
        self._since: datetime | None = None
        self._reported: datetime | None = None

    @property
    def is_silent(self) -> bool:
        """True if the last query was not answered."""
        return self._since is not None

    def record_silence(self, error: str, now: datetime) -> str:
        """Record that there was no answer, and return the message to print, or "".

        Raises LaunchError if the scheduler has not answered for too long.
        """
        self._since = self._since or now
        silent_seconds = (now - self._since).total_seconds()
        if silent_seconds > self._allowed:
            raise LaunchError(
                f"{self._name} has not answered for {format_duration(silent_seconds)}: {error}\n"
                "The jobs of this session were not cancelled. Resume it with --llmb-resume when "
                f"{self._name} answers again"
            )
        if (
            self._reported
            and (now - self._reported).total_seconds() < TELL_AGAIN_SECONDS
        ):
            return ""
        self._reported = now
        remaining = format_duration(self._allowed - silent_seconds)
        return f"{self._name} does not answer, waiting up to {remaining}: {error.splitlines()[0]}"

    def record_answer(self, now: datetime) -> float:
        """Record an answer; return the seconds without an answer before it."""
        silent_seconds = (now - self._since).total_seconds() if self._since else 0.0
        self._since = self._reported = None
        return silent_seconds


def explain_job_end(job: Job) -> JobEnd:
    """Explain the end of a job: refused, ended by us, lost, or reported."""
    if job.submission is SubmissionState.STOPPED:
        return JobEnd(Blame.CANCELLED, job.problem)
    if job.refused:
        return JobEnd(Blame.RUN, job.problem)
    if job.status is None:
        return JobEnd(Blame.RUN, "its end is unknown")
    stall = job.status.stall
    # if the record of a job was lost, its stall proves nothing unless we cancelled it
    if stall and (job.status.phase is Phase.ENDED or stall.cancelled):
        suffix = ", until its time limit" if job.status.state == "TIMEOUT" else ""
        return JobEnd(Blame.HUNG, f"it {describe_stall(stall)}{suffix}")
    if job.status.ended_by is EndedBy.PYTEST:
        blame = Blame.CANCELLED if job.status.state == "CANCELLED" else Blame.RUN
        return JobEnd(blame, job.status.reason.removeprefix(OWN))
    return load_scheduler(job.spec.via).explain_end(job.status)


def differs(old: JobStatus | None, new: JobStatus | None) -> bool:
    """True if a status has changes worth recording."""
    if old is None or new is None:
        return new is not old
    return drop_passing(old) != drop_passing(new)


def has_moved_on(old: JobStatus | None, new: JobStatus | None) -> bool:
    """True if a job changed its state, so that it may soon change again.

    A new reason for waiting is not a change of state.
    """
    return (old and (old.phase, old.state)) != (new and (new.phase, new.state))


def _mark_ended_by_us(status: JobStatus, text: str) -> JobStatus:
    """Record in the status that we ended the job, with the reason `text`."""
    return replace(status, reason=OWN + text, ended_by=EndedBy.PYTEST)


def _describe_lost(job: Job, limits: Limits) -> str:
    missing = (
        f"job {job.job_id} has had no record for {format_duration(limits.lost_seconds)}"
    )
    if job.status and job.status.phase is Phase.RUNNING:
        return f"{missing}, though it ran: the record was purged or lost. Only its log can show how it ended"
    return f"{missing}: the record was purged, or the job belongs to another cluster. Only its log can show whether it ran"
