"""What a waiting session tells: a line for each change of a job, one for all of them
now and then.

The lines are the same for people and for CI logs: no control characters, at most 80
columns, rarer as time passes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from pytest_llmbench.core.formatting import escape, join_first
from pytest_llmbench.core.job_records import STEPLESS, Job, JobEnd, JobStatus, Phase
from pytest_llmbench.core.stall_limits import Stall, StallPosition
from pytest_llmbench.launch.schedulers.registry import load_scheduler

# how far the log of a job is: steps done, of how many (None: unknown), seconds that one
# takes
LastStep = Callable[[Job], tuple[int, int | None, float] | None]

COLUMNS = 80
INDENT = " " * 10
CHANGED_SECONDS = 10.0
FIRST_HEARTBEAT_SECONDS, LONGEST_HEARTBEAT_SECONDS, SLOWER = 60.0, 300.0, 1.5
# the logs of so many running jobs are looked at for one line: those that started last,
# which end last
LOOKED_AT = 4


def find_no_step(_job: Job) -> None:
    """Know nothing of any log."""


class Progress:
    """Tells how the jobs of a session are, with times of this machine's zone."""

    def __init__(
        self, tell: Callable[[str], None], last_step: LastStep = find_no_step
    ) -> None:
        self._tell = tell
        self.last_step = last_step
        self._told: datetime | None = None
        self._counts = ""
        self._heartbeat = FIRST_HEARTBEAT_SECONDS

    def report_submitted(self, job: Job, now: datetime) -> None:
        """Tell that a job was submitted."""
        self.say(f"job {job.job_id} submitted: {_name_job(job)}", now)

    def report_change(
        self,
        job: Job,
        before: JobStatus | None,
        now: datetime,
        *,
        cancels: bool = False,
    ) -> None:
        """Tell what is new of a job: it was requeued, it runs and where, it stands
        still, it goes on."""
        status = job.status
        if status is None:
            return
        ran, runs = (
            known is not None and known.phase is Phase.RUNNING
            for known in (before, status)
        )
        again = before is not None and status.restarts > before.restarts
        if again:
            self.say(
                f"job {job.job_id} was requeued, and starts again: {_name_job(job)}",
                now,
            )
        if runs and (again or not ran):
            self.say(
                f"job {job.job_id} runs{_name_nodes(status)}: {_name_job(job)}", now
            )
        was_still, is_still = (
            before is not None and before.stall is not None,
            status.stall is not None,
        )
        if runs and was_still != is_still:
            self.say(self._describe_still(job, status, cancels=cancels), now)

    def _describe_still(self, job: Job, status: JobStatus, *, cancels: bool) -> str:
        """Return that a job stands still, or does so no longer."""
        stall = status.stall
        if stall is None:
            return f"job {job.job_id} goes on: {_name_job(job)}"
        since = format_duration(stall.seconds)
        text = f"job {job.job_id} stands still{_name_nodes(status)}: {_name_job(job)}: no sign of life for {since}"
        text += f", {describe_position(stall)}" if stall.found else ""
        place = (
            f"log: {stall.log}"
            if stall.found
            else f"no log of its own was found in {stall.log}"
        )
        return f"{text}; {place}" + (
            "; it is cancelled if that goes on" if cancels else ""
        )

    def report_ended(self, job: Job, end: JobEnd, now: datetime) -> None:
        """Tell that a job ended, and what is wrong with it; or that it was not
        submitted."""
        if not job.status:
            self.say(end.text or f"{_name_job(job)} was not submitted", now)
            return
        elapsed = job.status.elapsed_seconds
        took = f" after {format_duration(elapsed)}" if elapsed is not None else ""
        state = job.status.state or "without a trace"
        text = end.text.removeprefix(f"{state}: ")
        why = f": {text}" if text else ""
        self.say(f"job {job.job_id} ended {state}{took}: {_name_job(job)}{why}", now)

    def say(self, text: str, now: datetime) -> None:
        """Tell something, with the time before it."""
        first, *others = text.splitlines() or [""]
        indented = (wrap_line(line.strip(), INDENT) for line in others)
        self._tell(
            "\n".join((wrap_line(f"{now.astimezone():%H:%M:%S}  {first}"), *indented))
        )

    def update(self, jobs: Sequence[Job], waiting: int, now: datetime) -> None:
        """Tell how all jobs are, if it is time: something changed, or nothing was told
        for long.

        `waiting` is the number of jobs that are not submitted yet.
        """
        counts = summarize(jobs, waiting)
        if self._told is None:
            self._told = now
        silent = (now - self._told).total_seconds()
        changed = counts != self._counts
        if silent < (CHANGED_SECONDS if changed else self._heartbeat):
            return
        slower = min(self._heartbeat * SLOWER, LONGEST_HEARTBEAT_SECONDS)
        self._heartbeat = FIRST_HEARTBEAT_SECONDS if changed else slower
        self._told, self._counts = now, counts
        self.say("; ".join(filter(None, (counts, self._find_furthest(jobs, now)))), now)

    def _find_furthest(self, jobs: Sequence[Job], now: datetime) -> str:
        """Return how far the run is that has the longest way to go, of those that
        started last."""
        running = [
            job
            for job in jobs
            if job.status and job.status.phase is Phase.RUNNING and not job.status.stall
        ]
        # a log that is found by the id of an allocation is that of a run in it
        stepping = [job for job in running if job.spec.purpose not in STEPLESS]
        seen = [
            (job, step)
            for job in stepping[-LOOKED_AT:]
            if (step := self.last_step(job))
        ]
        ways = [
            (_estimate_rest(done, total, seconds), job, done, total)
            for job, (done, total, seconds) in seen
        ]
        if not ways:
            return ""
        left, job, done, total = max(
            ways, key=lambda way: -1 if way[0] is None else way[0]
        )
        text = f"{_name_job(job)} step {format_step(done, total)}"
        if left is None:
            return text
        until = (now + timedelta(seconds=left)).astimezone()
        return f"{text}, about {format_duration(left)} left ({until:%H:%M})"


def summarize(jobs: Iterable[Job], waiting: int = 0) -> str:
    """Return `3 pending (Resources), 4 running, 2 ended, 5 not submitted yet`."""
    return ", ".join(_count_phases(list(jobs), waiting)) or "no job"


def _count_phases(jobs: Sequence[Job], waiting: int) -> Iterator[str]:
    by_phase: dict[Phase, list[Job]] = {phase: [] for phase in Phase}
    made = [job for job in jobs if not job.refused]
    for job in made:
        by_phase[job.status.phase if job.status else Phase.WAITING].append(job)
    if pending := by_phase[Phase.WAITING]:
        reasons = {job.status.reason for job in pending if job.status} - {""}
        shown = f" ({join_first(sorted(reasons), 3)})" if reasons else ""
        yield f"{len(pending)} pending{shown}"
    if running := by_phase[Phase.RUNNING]:
        stalls = ((job, job.status and job.status.stall) for job in running)
        still = [_name_still(job, stall) for job, stall in stalls if stall]
        shown = f" (standing still: {join_first(still, 3)})" if still else ""
        yield f"{len(running)} running{shown}"
    if unknown := by_phase[Phase.UNKNOWN]:
        names = sorted({load_scheduler(job.spec.via).name for job in unknown})
        yield f"{len(unknown)} unknown to {join_first(names)}"
    if ended := by_phase[Phase.ENDED]:
        yield f"{len(ended)} ended"
    if len(jobs) > len(made):
        yield f"{len(jobs) - len(made)} refused"
    if waiting:
        yield f"{waiting} not submitted yet"


def describe_position(stall: Stall) -> str:
    """Return where in its run a job stands still: `after step 5/50`."""
    step = format_step(stall.done, stall.total)
    return {
        StallPosition.START: "before its first step",
        StallPosition.STEPS: f"after step {step}",
        StallPosition.END: f"after its last step, {step}, in its final save or teardown",
    }[stall.place]


def format_step(done: int, total: int | None) -> str:
    """Return `5/50`, or `5` where nothing tells of how many."""
    return f"{done}/{total}" if total else str(done)


def format_duration(seconds: float) -> str:
    """Return `40 s`, `4 min`, `2 h 5 min`."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def wrap_line(line: str, first: str = "") -> str:
    """Return a line in as many of 80 columns as it takes, without anything that a
    terminal would act on."""
    text = escape(line)
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


def _estimate_rest(done: int, total: int | None, seconds: float) -> float | None:
    return None if total is None else max(total - done, 0) * seconds


def _name_still(job: Job, stall: Stall) -> str:
    step = f" at step {format_step(stall.done, stall.total)}" if stall.done else ""
    return f"job {job.job_id}{step}"


def _name_nodes(status: JobStatus) -> str:
    return f" on {join_first(status.nodes, 4)}" if status.nodes else ""


def _name_job(job: Job) -> str:
    """Return the configuration, and which of several jobs for it this one is."""
    spec = job.spec
    purpose = (
        ""
        if spec.purpose.value == "measure"
        else " ".join(filter(None, (spec.purpose.value, spec.variant)))
    )
    again = f"attempt {job.attempt}" if job.attempt > 1 else ""
    repeat = f"run {job.repeat}" if job.repeat > 1 else ""
    more = ", ".join(filter(None, (purpose, repeat, again)))
    return f"{spec.case_id} ({more})" if more else spec.case_id
