"""Progress lines of a launching session: one per job change, and regular summaries.

The lines are equal in terminals and in CI logs: no control characters, at most 80
columns, less frequent as time passes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from pytest_llmbench.core.formatting import escape, join_first
from pytest_llmbench.core.job_records import (
    STEPLESS,
    Job,
    JobEnd,
    JobStatus,
    Phase,
    Purpose,
)
from pytest_llmbench.core.stall_limits import Stall, StallPosition
from pytest_llmbench.launch.schedulers.registry import load_scheduler

# returns the progress in a job's log: steps done, number of steps (None: unknown), and
# seconds per step
LastStep = Callable[[Job], tuple[int, int | None, float] | None]

COLUMNS = 80
INDENT = " " * 10
CHANGED_SECONDS = 10.0  # from the last summary to the next, if job counts changed
# between summaries without a change: the first interval, and how intervals grow
FIRST_HEARTBEAT_SECONDS, LONGEST_HEARTBEAT_SECONDS, HEARTBEAT_FACTOR = 60.0, 300.0, 1.5
# logs read for one summary: those of the jobs that started last, which end last
LOGS_READ = 4


def find_no_step(_job: Job) -> None:
    """Report no step for any job, the default of `Progress`."""


class Progress:
    """Prints the progress of a session's jobs, with local times."""

    def __init__(
        self, tell: Callable[[str], None], last_step: LastStep = find_no_step
    ) -> None:
        self._tell = tell
        self.last_step = last_step
        self._reported_at: datetime | None = None  # the time of the last summary
        self._counts = ""  # the job counts of the last summary
        # the seconds between two summaries without a change
        self._heartbeat_seconds = FIRST_HEARTBEAT_SECONDS

    def report_submitted(self, job: Job, now: datetime) -> None:
        """Print that a job was submitted."""
        self.report(f"job {job.job_id} submitted: {_name_job(job)}", now)

    def report_change(
        self,
        job: Job,
        previous: JobStatus | None,
        now: datetime,
        *,
        cancels: bool = False,
    ) -> None:
        """Print changes of a job: requeued, running, stalled, or continuing.

        `previous` is its status before the poll. `cancels` is True if jobs that stay
        stalled will be cancelled.
        """
        status = job.status
        if status is None:
            return
        was_running = previous is not None and previous.phase is Phase.RUNNING
        is_running = status.phase is Phase.RUNNING
        was_requeued = previous is not None and status.restarts > previous.restarts
        if was_requeued:
            self.report(
                f"job {job.job_id} was requeued and starts again: {_name_job(job)}",
                now,
            )
        if is_running and (was_requeued or not was_running):
            self.report(
                f"job {job.job_id} running{_name_nodes(status)}: {_name_job(job)}", now
            )
        was_stalled = previous is not None and previous.stall is not None
        is_stalled = status.stall is not None
        if is_running and was_stalled != is_stalled:
            self.report(self._describe_stall(job, status, cancels=cancels), now)

    def _describe_stall(self, job: Job, status: JobStatus, *, cancels: bool) -> str:
        """Describe a job that stalled, or that continues after a stall."""
        stall = status.stall
        if stall is None:
            return f"job {job.job_id} continues: {_name_job(job)}"
        since = format_duration(stall.seconds)
        text = f"job {job.job_id} stalled{_name_nodes(status)}: {_name_job(job)}: no progress for {since}"
        if stall.found:
            text += f", {describe_position(stall)}; log: {stall.log}"
        else:
            text += f"; no log was found in {stall.log}"
        if cancels:
            text += "; it will be cancelled if this continues"
        return text

    def report_ended(self, job: Job, end: JobEnd, now: datetime) -> None:
        """Print the end of a job, or that it was not submitted."""
        if not job.status:
            self.report(end.text or f"{_name_job(job)} was not submitted", now)
            return
        elapsed = job.status.elapsed_seconds
        duration = f" after {format_duration(elapsed)}" if elapsed is not None else ""
        state = job.status.state or "in an unknown state"
        text = end.text.removeprefix(f"{state}: ")
        detail = f": {text}" if text else ""
        self.report(
            f"job {job.job_id} ended {state}{duration}: {_name_job(job)}{detail}", now
        )

    def report(self, text: str, now: datetime) -> None:
        """Print a text after the current time, with its further lines indented."""
        first, *further = text.splitlines() or [""]
        lines = [wrap_line(f"{now.astimezone():%H:%M:%S}  {first}")]
        lines += [wrap_line(line.strip(), INDENT) for line in further]
        self._tell("\n".join(lines))

    def update(self, jobs: Sequence[Job], waiting: int, now: datetime) -> None:
        """Print a summary of all jobs, if due.

        A summary is due soon after a change, else after a growing interval. `waiting`
        is the number of jobs not submitted yet.
        """
        counts = summarize(jobs, waiting)
        if self._reported_at is None:
            self._reported_at = now
        has_changed = counts != self._counts
        interval = CHANGED_SECONDS if has_changed else self._heartbeat_seconds
        if (now - self._reported_at).total_seconds() < interval:
            return
        if has_changed:
            self._heartbeat_seconds = FIRST_HEARTBEAT_SECONDS
        else:
            longer_interval = self._heartbeat_seconds * HEARTBEAT_FACTOR
            self._heartbeat_seconds = min(longer_interval, LONGEST_HEARTBEAT_SECONDS)
        self._reported_at, self._counts = now, counts
        slowest = self._describe_slowest(jobs, now)
        self.report(f"{counts}; {slowest}" if slowest else counts, now)

    def _describe_slowest(self, jobs: Sequence[Job], now: datetime) -> str:
        """Describe the recently started run with the longest remaining time.

        Returns "" if no running job has made a step.
        """
        running = [
            job
            for job in jobs
            if job.status and job.status.phase is Phase.RUNNING and not job.status.stall
        ]
        # a log found by the id of an allocation belongs to a run in it
        stepping = [job for job in running if job.spec.purpose not in STEPLESS]
        slowest, longest_seconds = "", -math.inf
        remaining_seconds: float | None = None
        for job in stepping[-LOGS_READ:]:
            last_step = self.last_step(job)
            if last_step is None:
                continue
            done, total, seconds_per_step = last_step
            remaining = _estimate_remaining(done, total, seconds_per_step)
            # a run of unknown remaining time is shown only if there is no other
            compared_seconds = -1.0 if remaining is None else remaining
            if compared_seconds > longest_seconds:
                slowest = f"{_name_job(job)} step {format_step(done, total)}"
                remaining_seconds, longest_seconds = remaining, compared_seconds
        if not slowest or remaining_seconds is None:
            return slowest
        until = (now + timedelta(seconds=remaining_seconds)).astimezone()
        duration = format_duration(remaining_seconds)
        return f"{slowest}, about {duration} left ({until:%H:%M})"


def summarize(jobs: Iterable[Job], waiting: int = 0) -> str:
    """Count the jobs by state: `3 pending (Resources), 4 running, 2 ended`."""
    return ", ".join(_count_phases(list(jobs), waiting)) or "no job"


def _count_phases(jobs: Sequence[Job], waiting: int) -> Iterator[str]:
    """Yield a text with the number of jobs for each phase that has jobs.

    Refused jobs, and the `waiting` jobs that are not submitted yet, come last.
    """
    by_phase: dict[Phase, list[Job]] = {phase: [] for phase in Phase}
    submitted = [job for job in jobs if not job.refused]
    for job in submitted:
        by_phase[job.status.phase if job.status else Phase.WAITING].append(job)
    if pending := by_phase[Phase.WAITING]:
        reasons = {job.status.reason for job in pending if job.status} - {""}
        detail = f" ({join_first(sorted(reasons), 3)})" if reasons else ""
        yield f"{len(pending)} pending{detail}"
    if running := by_phase[Phase.RUNNING]:
        stalled_names = [
            _name_stalled(job, job.status.stall)
            for job in running
            if job.status and job.status.stall
        ]
        detail = f" (stalled: {join_first(stalled_names, 3)})" if stalled_names else ""
        yield f"{len(running)} running{detail}"
    if unknown := by_phase[Phase.UNKNOWN]:
        names = sorted({load_scheduler(job.spec.via).name for job in unknown})
        yield f"{len(unknown)} unknown to {join_first(names)}"
    if ended := by_phase[Phase.ENDED]:
        yield f"{len(ended)} ended"
    if len(jobs) > len(submitted):
        yield f"{len(jobs) - len(submitted)} refused"
    if waiting:
        yield f"{waiting} not submitted yet"


def describe_position(stall: Stall) -> str:
    """Format the position in a run at which a job stalled: `after step 5/50`."""
    step = format_step(stall.done, stall.total)
    return {
        StallPosition.START: "before its first step",
        StallPosition.STEPS: f"after step {step}",
        StallPosition.END: f"after its last step, {step}, in its final save or teardown",
    }[stall.place]


def format_step(done: int, total: int | None) -> str:
    """Format a step as `5/50`, or `5` if the total is unknown."""
    return f"{done}/{total}" if total else str(done)


def format_duration(seconds: float) -> str:
    """Format a duration: `40 s`, `4 min`, `2 h 5 min`."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, remaining = divmod(minutes, 60)
    return f"{hours} h {remaining} min" if remaining else f"{hours} h"


def wrap_line(line: str, first: str = "") -> str:
    """Wrap a line at 80 columns, and escape control characters.

    `first` is the indent of the first line; further lines are indented by INDENT.
    """
    text = escape(line)
    # fill returns "" for a blank line
    return (
        textwrap.fill(
            text,
            COLUMNS,
            initial_indent=first,
            subsequent_indent=INDENT,
            break_on_hyphens=False,
        )
        or first
    )


def _estimate_remaining(
    done: int, total: int | None, seconds_per_step: float
) -> float | None:
    """Estimate the seconds until the last step; None if the total is unknown."""
    return None if total is None else max(total - done, 0) * seconds_per_step


def _name_stalled(job: Job, stall: Stall) -> str:
    """Format a stalled job as `job 4711 at step 5/50`, or `job 4711` before a step."""
    step = f" at step {format_step(stall.done, stall.total)}" if stall.done else ""
    return f"job {job.job_id}{step}"


def _name_nodes(status: JobStatus) -> str:
    """Format the nodes of a job as ` on n1, n2`, or "" if they are unknown."""
    return f" on {join_first(status.nodes, 4)}" if status.nodes else ""


def _name_job(job: Job) -> str:
    """Format the configuration of a job, with its purpose, run and attempt."""
    spec = job.spec
    purpose = ""
    if spec.purpose is not Purpose.MEASURE:
        purpose = f"{spec.purpose.value} {spec.variant}".rstrip()
    attempt = f"attempt {job.attempt}" if job.attempt > 1 else ""
    repeat = f"run {job.repeat}" if job.repeat > 1 else ""
    details = ", ".join(filter(None, (purpose, repeat, attempt)))
    return f"{spec.case_id} ({details})" if details else spec.case_id
