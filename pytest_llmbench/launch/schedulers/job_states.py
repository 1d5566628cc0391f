"""The states of jobs by which this program decides, and what an end means. Every
scheduler says its own in these words.

PENDING waits, RUNNING and SUSPENDED run; COMPLETED, FAILED, CANCELLED, TIMEOUT and
those of `ENDS` have ended. A scheduler may keep further words for people; it says in
which phase they are.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace

from pytest_llmbench.core.job_records import Blame, JobEnd, JobStatus, Phase
from pytest_llmbench.core.log_records import EndingCode

# how the reason of a status that this program ended begins; EndedBy says so too
OWN = "pytest: "

SUCCESS = "0:0"  # exit code and signal of a job that ended well
OUT_OF_MEMORY_SIGNAL = 125  # stands in place of a signal for want of memory

PHASES = {
    "PENDING": Phase.WAITING,
    "RUNNING": Phase.RUNNING,
    "SUSPENDED": Phase.RUNNING,
    **dict.fromkeys(
        [
            "BOOT_FAIL",
            "CANCELLED",
            "COMPLETED",
            "FAILED",
            "NODE_FAIL",
            "OUT_OF_MEMORY",
            "TIMEOUT",
        ],
        Phase.ENDED,
    ),
}

Ends = Mapping[str, tuple[Blame, str]]
"""By state whose failure an end is, and what happened."""

ENDS: Ends = {
    "BOOT_FAIL": (Blame.INFRASTRUCTURE, "its nodes did not start"),
    "NODE_FAIL": (Blame.INFRASTRUCTURE, "a node failed under it"),
    "PREEMPTED": (Blame.INFRASTRUCTURE, "another job took its nodes"),
    "TIMEOUT": (
        Blame.RUN,
        "it reached its time limit: give it more time, or fewer steps",
    ),
    "OUT_OF_MEMORY": (Blame.RUN, "a node ran out of host memory"),
}

_CODES = {
    EndingCode.NODE_FAILURE: Blame.INFRASTRUCTURE,
    EndingCode.PREEMPTED: Blame.INFRASTRUCTURE,
    EndingCode.GPU_FAILURE: Blame.INFRASTRUCTURE,
    EndingCode.NCCL_TIMEOUT: Blame.INFRASTRUCTURE,
    EndingCode.CANCELLED: Blame.CANCELLED,
    EndingCode.STEP_CANCELLED: Blame.CANCELLED,
}


def find_blame(ending_code: EndingCode) -> Blame:
    """Return whose failure it is that a log ends with this code."""
    return _CODES.get(ending_code, Blame.RUN)


def drop_passing(status: JobStatus) -> JobStatus:
    """Return what of a status is worth keeping: not for how long a job runs, nor when a
    waiting one may start, which a scheduler computes anew all the time."""
    started = None if status.phase is Phase.WAITING else status.started
    return replace(status, elapsed_seconds=None, started=started)


def explain_by_state(
    status: JobStatus, scheduler: str, ends: Ends = ENDS, *, refused: bool = False
) -> JobEnd:
    """Return how a job ended, and whose failure it is. Only COMPLETED without any
    failed step ended well.

    A job that has not ended, or is unknown, is blamed on the run: it may run yet, and
    is not to be started again. `scheduler` is the name of what runs it, `refused` that
    it asked for what no node has.
    """
    if status.phase is not Phase.ENDED:
        return JobEnd(Blame.RUN, _explain_no_end(status, scheduler))
    match status.state:
        case "COMPLETED":
            return _explain_completed(status)
        case "CANCELLED":
            by_whom = f"{scheduler} does not say by whom"
            if status.cancelled_by:
                by_whom = f"by the user with uid {status.cancelled_by}"
            return JobEnd(Blame.CANCELLED, f"CANCELLED: {by_whom}")
        case "FAILED" if refused:
            return JobEnd(
                Blame.RUN,
                f"FAILED: no node ever ran it: {scheduler} refused what it asks for",
            )
        case "FAILED":
            return JobEnd(Blame.RUN, f"FAILED: {_explain_exit(status, scheduler)}")
    return _explain_other(status, ends)


def _explain_no_end(status: JobStatus, scheduler: str) -> str:
    if status.phase is Phase.UNKNOWN:
        return f"{scheduler} has no record of it (any more), which does not say how it ended"
    return f"it has not ended: {scheduler} says {status.state or 'nothing'}"


def _explain_other(status: JobStatus, ends: Ends) -> JobEnd:
    """Return the end in a state that means one thing."""
    unknown = (Blame.RUN, "a state that is not known here, so no success")
    blame, text = ends.get(status.state, unknown)
    nodes = ""
    if blame is Blame.INFRASTRUCTURE and status.nodes:
        nodes = f" ({', '.join(status.nodes)})"
    return JobEnd(blame, f"{status.state or 'no state'}: {text}{nodes}")


def format_exit(code: str) -> str:
    """Return `exit code 7`, `signal 11 (SIGSEGV)` or `out of memory` for `7:0`, `0:11`
    and `0:125`."""
    exit_code, _, number = code.partition(":")
    if not (exit_code.isdecimal() and number.isdecimal()):
        return f"exit code {code!r}"
    if int(number) == OUT_OF_MEMORY_SIGNAL:
        return "out of memory"
    if int(number):
        return f"signal {number}{_name_signal(int(number))}"
    return f"exit code {exit_code}"


def _name_signal(number: int) -> str:
    # Most of the real-time signals, which are valid, have no name.
    names = (f" ({known.name})" for known in signal.Signals if known == number)
    return next(names, "")


def _explain_completed(status: JobStatus) -> JobEnd:
    if status.exit_code not in ("", SUCCESS):
        text = f"COMPLETED, yet with {format_exit(status.exit_code)}"
        return JobEnd(Blame.RUN, text)
    # a script that does not end with the exit code of its steps
    if status.derived_exit_code not in ("", SUCCESS):
        failed = format_exit(status.derived_exit_code)
        text = f"a step of it failed with {failed}, although the batch script succeeded"
        return JobEnd(Blame.RUN, f"COMPLETED, but {text}")
    return JobEnd(Blame.NONE)


def _explain_exit(status: JobStatus, scheduler: str) -> str:
    if status.exit_code in ("", SUCCESS):
        return f"{scheduler} gives no exit code"
    return format_exit(status.exit_code)
