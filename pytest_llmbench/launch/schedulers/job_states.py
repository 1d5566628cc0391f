"""Job states that all schedulers share, and the explanation of a job's end.

PENDING jobs wait, RUNNING and SUSPENDED jobs run; COMPLETED, FAILED, CANCELLED, TIMEOUT
and the states in `ENDS` have ended. A scheduler maps its states to these. It may keep
further states for messages, if it maps them to a phase.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping

from msgspec.structs import replace

from pytest_llmbench.core.job_records import Blame, JobEnd, JobStatus, Phase
from pytest_llmbench.core.log_records import EndingCode

# prefix of the reason of a job that this program ended (see also EndedBy)
OWN = "pytest: "

SUCCESS = "0:0"  # exit code and signal of a successful job
OUT_OF_MEMORY_SIGNAL = 125  # Slurm's pseudo signal for "out of memory"

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
"""Blame and description of an end, by state."""

ENDS: Ends = {
    "BOOT_FAIL": (Blame.INFRASTRUCTURE, "the nodes did not start"),
    "NODE_FAIL": (Blame.INFRASTRUCTURE, "a node failed under it"),
    "PREEMPTED": (Blame.INFRASTRUCTURE, "another job took the nodes"),
    "TIMEOUT": (
        Blame.RUN,
        "the job reached its time limit: allow more time, or fewer steps",
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
    """Return who is to blame for a log that ends with `ending_code`."""
    return _CODES.get(ending_code, Blame.RUN)


def drop_passing(status: JobStatus) -> JobStatus:
    """Remove the values of a status that change with every poll.

    These are the elapsed time, and the expected start of a waiting job.
    """
    started = None if status.phase is Phase.WAITING else status.started
    return replace(status, elapsed_seconds=None, started=started)


def explain_by_state(
    status: JobStatus, scheduler: str, ends: Ends = ENDS, *, refused: bool = False
) -> JobEnd:
    """Explain how a job ended, and who is to blame.

    Only COMPLETED without a failed step is a success. A job that has not ended, or is
    unknown, is blamed on the run: it may still run, and must not be restarted.
    `scheduler` is the name of the scheduler. `refused` is True if the job requested
    resources that no node has.
    """
    if status.phase is not Phase.ENDED:
        return JobEnd(Blame.RUN, _explain_no_end(status, scheduler))
    match status.state:
        case "COMPLETED":
            return _explain_completed(status)
        case "CANCELLED":
            canceller = f"by an unknown user ({scheduler} does not record it)"
            if status.cancelled_by:
                canceller = f"by the user with uid {status.cancelled_by}"
            return JobEnd(Blame.CANCELLED, f"CANCELLED: {canceller}")
        case "FAILED" if refused:
            return JobEnd(
                Blame.RUN,
                f"FAILED: it never ran: {scheduler} refused the requested resources",
            )
        case "FAILED":
            return JobEnd(Blame.RUN, f"FAILED: {_explain_exit(status, scheduler)}")
    return _explain_other(status, ends)


def _explain_no_end(status: JobStatus, scheduler: str) -> str:
    """Explain that a job has not ended, or that its end is unknown."""
    if status.phase is Phase.UNKNOWN:
        return f"{scheduler} has no record of it (any more), so its end is unknown"
    return f"it has not ended: {scheduler} reports {status.state or 'no state'}"


def _explain_other(status: JobStatus, ends: Ends) -> JobEnd:
    """Explain an end in a state of `ends`."""
    unknown = (Blame.RUN, "unknown state, so not a success")
    blame, text = ends.get(status.state, unknown)
    nodes = ""
    if blame is Blame.INFRASTRUCTURE and status.nodes:
        nodes = f" ({', '.join(status.nodes)})"
    return JobEnd(blame, f"{status.state or 'no state'}: {text}{nodes}")


def format_exit(code: str) -> str:
    """Format an exit status: `7:0`, `0:11`, `0:125`.

    Results: `exit code 7`, `signal 11 (SIGSEGV)`, `out of memory`.
    """
    exit_code, _, signal_text = code.partition(":")
    if not (exit_code.isdecimal() and signal_text.isdecimal()):
        return f"exit code {code!r}"
    signal_number = int(signal_text)
    if signal_number == OUT_OF_MEMORY_SIGNAL:
        return "out of memory"
    if signal_number:  # 0: the job ended by itself
        return f"signal {signal_text}{_name_signal(signal_number)}"
    return f"exit code {exit_code}"


def _name_signal(number: int) -> str:
    """Return ` (SIGSEGV)` for 11; "" for a number without a name."""
    # most real-time signals are valid but have no name
    for named_signal in signal.Signals:
        if named_signal == number:
            return f" ({named_signal.name})"
    return ""


def _explain_completed(status: JobStatus) -> JobEnd:
    """Explain a COMPLETED job: a success, unless the job or a step of it failed."""
    if status.exit_code not in ("", SUCCESS):
        text = f"COMPLETED, yet with {format_exit(status.exit_code)}"
        return JobEnd(Blame.RUN, text)
    # the script ignores the exit codes of its steps
    if status.derived_exit_code not in ("", SUCCESS):
        failed = format_exit(status.derived_exit_code)
        text = f"a step of it failed with {failed}, although the batch script succeeded"
        return JobEnd(Blame.RUN, f"COMPLETED, but {text}")
    return JobEnd(Blame.NONE)


def _explain_exit(status: JobStatus, scheduler: str) -> str:
    if status.exit_code in ("", SUCCESS):
        return f"{scheduler} reports no exit code"
    return format_exit(status.exit_code)
