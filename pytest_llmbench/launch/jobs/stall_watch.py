"""When a job stands still: for how long its log has shown no sign of life, and how long
that may be.

A sign of life is a line of a step, of a checkpoint, of an evaluation, or of a process
that starts. Nothing counts in which nobody looked: a scheduler that was away, a
suspended job, a session that was stopped, a clock that was set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pytest_llmbench.core.job_records import Job, JobSpec, JobStatus, Purpose
from pytest_llmbench.core.stall_limits import (
    LogProgress,
    Stall,
    StallLimits,
    StallPlace,
)
from pytest_llmbench.launch.jobs.progress import (
    LastStep,
    describe_place,
    find_no_step,
    format_duration,
)

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
            place = StallPlace.START
        else:
            place = StallPlace.END if total and done >= total else StallPlace.STEPS
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
    return (
        f"stood still for {duration} {describe_place(stall)} ({Path(stall.log).name})"
    )


def limit_running(spec: JobSpec, status: JobStatus) -> float:
    """Return how many seconds a job may run: generously by its own estimate, at least
    its time limit."""
    estimate = 3600.0 * spec.gpu_hours / max(spec.occupied_gpus, 1)
    return max(
        LONGEST_RUN, ESTIMATES * estimate + LONGEST_START, status.limit_seconds or 0.0
    )
