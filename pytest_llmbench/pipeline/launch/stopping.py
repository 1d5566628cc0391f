"""What becomes of a launch when somebody stops it, or an error ends it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import LaunchError

if TYPE_CHECKING:
    from pytest_llmbench.launch.follow.engine import Engine
    from pytest_llmbench.launch.journal.journal import Journal
    from pytest_llmbench.pipeline.launch.planner import Host

AT_ONCE_SECONDS = 1.0
"""Signals that come so soon after one another are one."""


class Interrupted(Exception):  # noqa: N818 (no error: somebody stopped the session)
    """The session was stopped while it launched; the message says what became of its jobs."""


@contextmanager
def handle_stop() -> Iterator[None]:
    """Let SIGTERM stop the session as Ctrl-C does: the jobs are cancelled then. A signal that follows at once is the
    same one: timeout(1) sends it to the process and to its group, and it must not stop the cancelling."""
    last = -AT_ONCE_SECONDS

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        if time.monotonic() - last >= AT_ONCE_SECONDS:
            last = time.monotonic()
            raise KeyboardInterrupt

    handled = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored, as in the background
        handled.append(signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_jobs(engine: Engine, journal: Journal, host: Host, *, keep: bool) -> str:
    """Cancel the jobs of this session, or leave them, and say so."""
    if keep:
        ids = [job.job_id for job in journal.list_live() if job.job_id]
        return f"{formatting.count_noun(len(ids), 'job')} left running: --llmb-resume goes on with {journal.session}"
    before = sum(bool(job.job_id) for job in journal.list_live())
    try:
        host.tell("llmbench: stopped; cancelling the jobs of this session ...")
        left = engine.cancel()
        if not left:
            journal.finish(host.now())
    except KeyboardInterrupt:
        return f"stopped while cancelling; {describe_left(journal)}"
    except LaunchError as error:
        return f"{error}\n{describe_left(journal)}"
    if left:
        return f"could not be cancelled: {formatting.join_first(left)}; {describe_left(journal)}"
    return f"{formatting.count_noun(before, 'job')} cancelled"


def tell_left(journal: Journal, host: Host) -> None:
    """Say which jobs go on where a session ends in an error; without a terminal there is nobody to tell."""
    with suppress(OSError):
        if journal.list_live():
            host.tell(f"llmbench: session {journal.session}: {describe_left(journal)}")


def describe_left(journal: Journal) -> str:
    """Say which jobs of a session may run on, and how to end them."""
    live = journal.list_live()
    slurm = [job.job_id for job in live if job.job_id and job.spec.via != "local"]
    here = [f"{job.spec.case_id} on this machine" for job in live if job.job_id and job.spec.via == "local"]
    unknown = [f"{job.spec.case_id} was perhaps being submitted" for job in live if not job.job_id]
    ends = f"`scancel {' '.join(slurm)}` ends them, " if slurm else ""
    named = formatting.join_first([*(f"job {job_id}" for job_id in slurm), *here, *unknown], 20) or "no job"
    return f"may still run: {named}; {ends}--llmb-resume goes on with them"
