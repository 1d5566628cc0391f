"""Decide after each poll which jobs continue, have ended, or must be cancelled.

Detects stalled jobs and schedulers that do not answer. A job makes progress if its log
shows a step, a checkpoint, an evaluation or the start of a process. Time that the
session did not observe does not count: the scheduler did not answer, the job was
suspended, the session was stopped, or the clock was set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

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
# SHORTEST_LIMIT (seconds).
GAPS = 20
SHORTEST_LIMIT = 600.0
# The limit before the first step: importing an image, building data, NCCL, XLA
# compilation.
START_SECONDS = 1800.0
CANCEL = 2.0  # a stalled job is cancelled at this multiple of its limit

# At most this time between two observations counts: they are at most 30 s apart, and a
# poll may take as long.
LONGEST_INTERVAL = 120.0

# A job may run for this many times its estimate, plus the time for its start, but at
# least for SHORTEST_RUN_LIMIT (see `find_running_limit`).
ESTIMATE_FACTOR, START_ALLOWANCE, SHORTEST_RUN_LIMIT = 4.0, 3600.0, 7200.0

SECONDS_PER_HOUR = 3600.0

ReadProgress = Callable[[Job], LogProgress]


class _StallMemory(Struct):
    """The progress of one start of a job, as of the last observation."""

    restarts: int
    observed: datetime  # the time of the last observation
    marks: tuple[int, ...]  # change with any progress in the log
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
            memory = self._memories[job.number] = self._start_tracking(
                job, status, progress, now
            )
        # negative if the clock was set back, long if the session was suspended
        elapsed = (now - memory.observed).total_seconds()
        elapsed = min(max(elapsed, 0.0), LONGEST_INTERVAL)
        memory.observed = now
        # unreadable log, suspended job, or a job about to end
        if progress.problem or status.state != "RUNNING":
            return memory.stall
        memory.idle += elapsed
        memory.observed_idle += elapsed
        memory.since_step += elapsed
        if _has_new_progress(memory, progress):
            _record_progress(memory, progress)
        limit = self._find_limit(job, memory, progress)
        # a framework that prints its steps late cannot stall before it prints the first
        is_silent_by_design = progress.prints_late and not progress.steps
        if memory.idle < limit or is_silent_by_design:
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

        A stalled job is cancelled after CANCEL times its limit. This session must have
        observed at least one limit of that time: the time before is computed from the
        clock of the file system, which may differ.
        """
        if progress.problem or not self._limits.cancels:
            return None
        memory = self._memories.get(job.number)
        if memory is None or memory.stall is None:
            return None
        limit = self._find_limit(job, memory, progress)
        if memory.idle < CANCEL * limit or memory.observed_idle < limit:
            return None
        return replace(memory.stall, seconds=memory.idle, cancelled=True)

    def find_final_stall(
        self, job: Job, status: JobStatus, progress: LogProgress | None
    ) -> Stall | None:
        """Return the stall of a job that hit its time limit, or None.

        If this session did not observe the last start of the job, the stall is the one
        that an earlier session recorded, or is inferred from the times in the log.
        """
        if progress is None:
            return None
        memory = self._memories.get(job.number)
        if memory is not None and memory.restarts == status.restarts:
            if memory.stall is None or _has_new_progress(memory, progress):
                return None
            return replace(memory.stall, seconds=memory.idle)
        # this session did not observe the last start
        recorded_stall = job.status.stall if job.status else None
        if recorded_stall and self._is_at_same_step(recorded_stall, job, status):
            return recorded_stall
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
        slowest_gap = min(progress.slowest_seconds, status.elapsed_seconds)
        seconds_outside_steps = status.elapsed_seconds - progress.taken_seconds
        if seconds_outside_steps < CANCEL * (START_SECONDS + GAPS * slowest_gap):
            return None
        return self._describe(
            job,
            status,
            seconds_outside_steps,
            progress,
            has_stepped=progress.steps > 0,
        )

    def _start_tracking(
        self, job: Job, status: JobStatus, progress: LogProgress, now: datetime
    ) -> _StallMemory:
        """Start tracking a job whose progress before now was not observed.

        The time without progress is estimated from the running time and the last change
        of the log. A stall that an earlier session recorded continues.
        """
        running_seconds = status.elapsed_seconds
        if running_seconds is None and status.started:
            running_seconds = (now - status.started).total_seconds()
        running_seconds = max(running_seconds or 0.0, 0.0)
        # the log of a requeued job may contain the steps of its earlier start
        has_stepped = progress.steps > 0 and not status.restarts
        slowest_gap = 0.0  # unknown
        if has_stepped:
            slowest_gap = min(progress.slowest_seconds, running_seconds)
        # idle since its start, or if the log contains steps, since the last write to it
        idle = running_seconds
        if progress.steps and progress.modified:
            seconds_unmodified = (now - progress.modified).total_seconds()
            idle = min(max(seconds_unmodified, 0.0), running_seconds)
        memory = _StallMemory(
            restarts=status.restarts,
            observed=now,
            marks=progress.marks,
            steps=progress.steps,
            has_stepped=has_stepped,
            starting=progress.starting,
            idle=idle,
            since_step=idle,
            slowest_gap=slowest_gap,
        )
        recorded = job.status
        if recorded is None or recorded.restarts != status.restarts:
            return memory
        stall = recorded.stall  # as an earlier session observed it
        if stall and self._is_at_same_step(stall, job, status):
            memory.stall, memory.idle = stall, max(idle, stall.seconds)
        return memory

    def _find_limit(
        self, job: Job, memory: _StallMemory, progress: LogProgress
    ) -> float:
        """Return the seconds without progress after which a job is stalled."""
        if self._limits.tell_seconds is not None:
            return self._limits.tell_seconds
        # before the second step, the gap between steps is unknown (0)
        is_starting = (
            not memory.slowest_gap or progress.starting or progress.path is None
        )
        # such jobs print no step while they write or load profiles or checkpoints
        has_long_pauses = job.spec.purpose is not Purpose.MEASURE
        if is_starting or has_long_pauses:
            return max(START_SECONDS, memory.limit_between_steps)
        return memory.limit_between_steps

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
        elif total and done >= total:
            position = StallPosition.END
        else:
            position = StallPosition.STEPS
        log = str(progress.path or progress.place)
        return Stall(
            position, seconds, done, total, log, found=progress.path is not None
        )

    def _get_step(self, job: Job, status: JobStatus) -> tuple[int, int | None]:
        """Return the last step of a job and the number of its steps (None: unknown)."""
        # with the new status, because a requeued job may write another log
        last_step = self._last_step(replace(job, status=status))
        if last_step is None:
            return 0, None
        done, total, _seconds_per_step = last_step
        return done, total

    def _is_at_same_step(self, stall: Stall, job: Job, status: JobStatus) -> bool:
        """True if a job made no step since a stall was recorded."""
        done, _ = self._get_step(job, status)
        return stall.done == done


def _has_new_progress(memory: _StallMemory, progress: LogProgress) -> bool:
    """True if the log shows progress since the last observation."""
    return progress.path is not None and progress.marks != memory.marks


def _record_progress(memory: _StallMemory, progress: LogProgress) -> None:
    """Record progress; if it is a step, also the gap before it."""
    # fewer steps than before are not a new step: another log, as after a requeue
    if progress.steps > memory.steps:
        if not memory.has_stepped:
            # the first observed step is the first of all (its gap is 0), or one of
            # several, if the log is written rarely
            memory.slowest_gap = min(memory.since_step, progress.taken_seconds)
        elif not memory.starting:  # the time of a start is no gap between steps
            memory.slowest_gap = max(memory.slowest_gap, memory.since_step)
        memory.has_stepped, memory.since_step = True, 0.0
    memory.marks, memory.steps = progress.marks, progress.steps
    memory.starting = progress.starting
    memory.idle = memory.observed_idle = 0.0


def describe_stall(stall: Stall) -> str:
    """Format a stall: `stalled for 24 min after step 5/50 (log-x_1.out)`."""
    duration = format_duration(stall.seconds)
    if not stall.found:
        return f"stalled for {duration}: no log was found in {stall.log}"
    return f"stalled for {duration} {describe_position(stall)} ({Path(stall.log).name})"


def find_running_limit(spec: JobSpec, status: JobStatus) -> float:
    """Return the seconds that a job may run.

    This is the largest of SHORTEST_RUN_LIMIT, the time limit of the job, and
    ESTIMATE_FACTOR times its estimate plus START_ALLOWANCE.
    """
    gpus = max(spec.occupied_gpus, 1)
    estimated_seconds = SECONDS_PER_HOUR * spec.gpu_hours / gpus
    limit_by_estimate = ESTIMATE_FACTOR * estimated_seconds + START_ALLOWANCE
    return max(SHORTEST_RUN_LIMIT, limit_by_estimate, status.limit_seconds or 0.0)


# --- decisions after each poll ------------------------------------------------------


BLOCKED_SECONDS = 10.0  # a permanent reason must persist for this time, poll after poll
# the same for the nodes of an A/B or a search: a node may come back
GONE_SECONDS = 600.0

CANCEL_AGAIN_SECONDS = 60.0  # a job that does not end is cancelled again after this
REPORT_AGAIN_SECONDS = 300.0  # between two messages that a scheduler does not answer


class Limits(Struct, frozen=True):
    """Limits of jobs and polls. Times in seconds; None: no limit."""

    max_jobs: int = 100
    pending_seconds: float | None = None
    node_check_seconds: float = 3600.0  # the same for jobs that check nodes
    # None: from the job's own estimate, if stalls are cancelled
    running_seconds: float | None = None
    stalls: StallLimits = field(default_factory=StallLimits)
    away_seconds: float = 1800.0  # a scheduler may fail to answer for this time
    lost_seconds: float = 600.0  # a job may have no record for this time
    first_poll: float = 1.0  # interval between polls after a change
    longest_poll: float = 30.0  # interval between polls without changes


class PollDecision(Struct, frozen=True):
    """The decision on one job after a poll."""

    status: JobStatus | None  # to record
    ended: bool = False
    cancel: bool = False  # True if the job is to be cancelled


class _JobMemory(Struct):
    """The phase of a job as of the last poll, and the reason to give it up.

    A job that is given up is cancelled, or recorded as ended if that fails.
    """

    phase: Phase
    phase_since: datetime  # the start of its phase
    last_seen: datetime  # the last poll that returned a record of it
    # since when it cannot start, or its nodes are gone
    blocked_since: datetime | None = None
    is_stuck: bool = False  # True if it cannot start, False if its nodes are gone
    reason_to_give_up: str = ""  # "": it is not given up
    stall: Stall | None = None  # its stall when it was given up, if any
    cancelled_at: datetime | None = None

    def update(self, status: JobStatus, now: datetime) -> None:
        """Update the phase of a job. Time in which it was suspended does not count."""
        if status.state == "SUSPENDED" and not self.reason_to_give_up:
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
        # by the id of an allocation: the run it was cancelled with, and why
        self._cancelled_allocations: dict[str, str] = {}

    def decide(
        self,
        job: Job,
        status: JobStatus | None,
        now: datetime,
        progress: LogProgress | None = None,
    ) -> PollDecision:
        """Decide whether a job continues, has ended, or must be cancelled.

        `status` is None if the poll returned no status, `progress` if the log was not
        read.
        """
        first_memory = _JobMemory(Phase.UNKNOWN, phase_since=now, last_seen=now)
        memory = self._memories.setdefault(job.number, first_memory)
        if job.spec.purpose in STEPLESS:  # its log contains no steps
            progress = None
        if status is None or status.phase is Phase.UNKNOWN:
            return self._decide_unknown(job, memory, now)
        memory.update(status, now)
        if status.phase is Phase.ENDED:
            explained = self._explain_ended(job, status, memory, progress)
            return PollDecision(explained, ended=True)
        if status.phase is Phase.WAITING:  # also after a requeue
            self._stalls.forget(job)
        elif progress is not None:
            stall = self._stalls.observe(job, status, progress, now)
            status = replace(status, stall=stall)
            stall_to_cancel = self._stalls.find_stall_to_cancel(job, progress)
            if stall_to_cancel and not memory.reason_to_give_up:
                memory.reason_to_give_up = describe_stall(stall_to_cancel)
                memory.stall = stall_to_cancel
        if not memory.reason_to_give_up:
            memory.reason_to_give_up = self._find_give_up_reason(
                job, status, memory, now
            )
            memory.stall = status.stall
        if not memory.reason_to_give_up:
            return PollDecision(status)
        return self._cancel_job(job, replace(status, stall=memory.stall), memory, now)

    def _explain_ended(
        self,
        job: Job,
        status: JobStatus,
        memory: _JobMemory,
        progress: LogProgress | None,
    ) -> JobStatus:
        """Complete the status of an ended job, and return it.

        Adds our reason if we cancelled the job, and its stall if it hung.
        """
        if status.state == "TIMEOUT":
            final_stall = self._stalls.find_final_stall(job, status, progress)
            return replace(status, stall=final_stall)
        # if an earlier session cancelled a stalled job, only its stall was recorded
        recorded_stall = job.status.stall if job.status else None
        if recorded_stall and not recorded_stall.cancelled:
            recorded_stall = None
        # an allocation was cancelled because of a run in it
        cancelled_with_run = self._cancelled_allocations.get(job.job_id, "")
        reason = memory.reason_to_give_up or cancelled_with_run
        if not reason and recorded_stall:
            reason = describe_stall(recorded_stall)
        was_cancelled_by_us = bool(reason) and status.state == "CANCELLED"
        if not was_cancelled_by_us:
            return status
        stall = memory.stall or recorded_stall
        return replace(_mark_ended_by_us(status, reason), stall=stall)

    def exclude_pause(self, seconds: float, jobs: Iterable[Job]) -> None:
        """Exclude a pause, in which the scheduler did not answer, from times of jobs."""
        shift = timedelta(seconds=seconds)
        for job in jobs:
            memory = self._memories.get(job.number)
            if memory is None:
                continue
            memory.phase_since += shift
            memory.last_seen += shift
            if memory.blocked_since is not None:
                memory.blocked_since += shift

    def _decide_unknown(
        self, job: Job, memory: _JobMemory, now: datetime
    ) -> PollDecision:
        """Decide about a job that the scheduler does not know.

        This is normal right after its submission and at its end. A job that stays
        unknown for too long is lost.
        """
        if (now - memory.last_seen).total_seconds() < self._limits.lost_seconds:
            return PollDecision(job.status)
        last_status = job.status or JobStatus(Phase.UNKNOWN, "")
        lost = replace(last_status, phase=Phase.UNKNOWN, state="")
        lost = _mark_ended_by_us(lost, _describe_lost(job, self._limits))
        return PollDecision(lost, ended=True)

    def _find_give_up_reason(
        self, job: Job, status: JobStatus, memory: _JobMemory, now: datetime
    ) -> str:
        """Return the reason to give up on a job, or "".

        Reasons: it runs for too long, it can never start, or it waits for too long.
        """
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
            limit = find_running_limit(job.spec, status)
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

        Either the scheduler can never start the job (it is stuck), or the job needs
        certain nodes, and these are unavailable. The reason must persist for some time.
        """
        scheduler = load_scheduler(job.spec.via)
        is_node_job = job.spec.purpose in BESIDE
        is_trial = job.spec.purpose in (*TRIALS, Purpose.ALLOCATION)
        reason = scheduler.explain_stuck(status)
        is_stuck = bool(reason)
        if not is_stuck and (is_node_job or is_trial):
            reason = scheduler.explain_unavailable(status, reserved=is_node_job)
        # the time starts anew if the kind of reason changes
        is_same_kind = memory.is_stuck is is_stuck
        since = memory.blocked_since if is_same_kind else None
        memory.is_stuck = is_stuck
        if not reason:
            memory.blocked_since = None
            return ""
        memory.blocked_since = since or now
        limit = GONE_SECONDS if is_trial and not is_stuck else BLOCKED_SECONDS
        persists = (now - memory.blocked_since).total_seconds() >= limit
        return reason if persists else ""

    def _cancel_job(
        self, job: Job, status: JobStatus, memory: _JobMemory, now: datetime
    ) -> PollDecision:
        """Cancel a job, and cancel it again if it does not end.

        A job that cannot be cancelled is recorded as ended.
        """
        if memory.cancelled_at is None:
            # from now on, `phase_since` is the time of the first cancelling
            memory.cancelled_at, memory.phase_since = now, now
            if job.spec.allocation:
                self._cancelled_allocations[job.scheduler_id] = (
                    f"cancelled by pytest for job {job.job_id} in it: {memory.reason_to_give_up}"
                )
            return PollDecision(status, cancel=True)
        if (now - memory.phase_since).total_seconds() >= self._limits.lost_seconds:
            text = f"{memory.reason_to_give_up}; it could not be cancelled and is still {status.state}"
            command = load_scheduler(job.spec.via).format_cancel([job.scheduler_id])
            if command:
                text += f": {command}"
            # without its stall: the job may still run, so it must not be retried
            final_status = replace(status, phase=Phase.ENDED, stall=None)
            return PollDecision(_mark_ended_by_us(final_status, text), ended=True)
        is_due = (now - memory.cancelled_at).total_seconds() >= CANCEL_AGAIN_SECONDS
        if is_due:
            memory.cancelled_at = now
        return PollDecision(status, cancel=is_due)


class Absence:
    """Tracks how long a scheduler has not answered."""

    def __init__(self, name: str, away_seconds: float) -> None:
        """`away_seconds` is the longest time that the scheduler may not answer."""
        self._name = name
        self._away_seconds = away_seconds
        self._silent_since: datetime | None = None  # None: it answers
        self._reported_at: datetime | None = None  # the last message; None: no message

    @property
    def is_silent(self) -> bool:
        """True if the last query was not answered."""
        return self._silent_since is not None

    def record_silence(self, error: str, now: datetime) -> str:
        """Record that there was no answer, and return the message to print, or "".

        Raises LaunchError if the scheduler has not answered for too long.
        """
        self._silent_since = self._silent_since or now
        silent_seconds = (now - self._silent_since).total_seconds()
        if silent_seconds > self._away_seconds:
            raise LaunchError(
                f"{self._name} has not answered for {format_duration(silent_seconds)}: {error}\n"
                "The jobs of this session were not cancelled. Resume it with --llmb-resume when "
                f"{self._name} answers again"
            )
        if self._reported_at is not None:
            since_report = (now - self._reported_at).total_seconds()
            if since_report < REPORT_AGAIN_SECONDS:
                return ""
        self._reported_at = now
        remaining = format_duration(self._away_seconds - silent_seconds)
        first_line, *_ = error.splitlines()
        return f"{self._name} does not answer, waiting up to {remaining}: {first_line}"

    def record_answer(self, now: datetime) -> float:
        """Record an answer; return the seconds without an answer before it."""
        if self._silent_since is None:
            return 0.0
        silent_seconds = (now - self._silent_since).total_seconds()
        self._silent_since = self._reported_at = None
        return silent_seconds


def explain_job_end(job: Job) -> JobEnd:
    """Explain the end of a job: refused, ended by us, lost, or reported."""
    if job.submission is SubmissionState.STOPPED:  # before it was submitted
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
    """True if a status has changes worth recording.

    Values that change with every poll, such as the elapsed time, are ignored.
    """
    if old is None or new is None:
        return new is not old
    return drop_passing(old) != drop_passing(new)


def has_moved_on(old: JobStatus | None, new: JobStatus | None) -> bool:
    """True if a job changed its state, so that it may soon change again.

    A new reason for waiting is not a change of state.
    """
    if old is None or new is None:
        return new is not old
    return (old.phase, old.state) != (new.phase, new.state)


def _mark_ended_by_us(status: JobStatus, text: str) -> JobStatus:
    """Record in the status that we ended the job, with the reason `text`."""
    return replace(status, reason=OWN + text, ended_by=EndedBy.PYTEST)


def _describe_lost(job: Job, limits: Limits) -> str:
    """Describe a job whose scheduler has had no record of it for too long."""
    problem = (
        f"job {job.job_id} has had no record for {format_duration(limits.lost_seconds)}"
    )
    if job.status and job.status.phase is Phase.RUNNING:
        return f"{problem}, though it ran: the record was purged or lost. Only its log can show how it ended"
    return f"{problem}: the record was purged, or the job belongs to another cluster. Only its log can show whether it ran"
