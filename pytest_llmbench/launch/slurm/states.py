"""What Slurm's words for states, reasons and exit codes mean. Pure; the words are those of squeue(1) and sacct(1)."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from pytest_llmbench.core.models import EndingCode
from pytest_llmbench.core.models.jobs import Blame, JobEnd, JobStatus, Phase

OWN = "pytest: "
"""How the reason of a status that this program ended begins; EndedBy says so too, since journals have it."""

SUCCESS = "0:0"
OUT_OF_MEMORY_SIGNAL = 125
"""What Slurm gives as the signal of a step that ran out of memory."""

_WAITING = "PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT PREEMPTED"
_RUNNING = "RUNNING CONFIGURING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED"
_ENDED = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY REVOKED TIMEOUT"
_PHASES = {
    state: phase
    for phase, states in ((Phase.WAITING, _WAITING), (Phase.RUNNING, _RUNNING), (Phase.ENDED, _ENDED))
    for state in states.split()
}

_ENDS = {
    "BOOT_FAIL": (Blame.INFRASTRUCTURE, "its nodes did not start"),
    "NODE_FAIL": (Blame.INFRASTRUCTURE, "a node failed under it"),
    "PREEMPTED": (Blame.INFRASTRUCTURE, "another job took its nodes"),
    "REVOKED": (Blame.INFRASTRUCTURE, "another cluster of the federation took it over"),
    "DEADLINE": (Blame.RUN, "its deadline (--deadline) came first"),
    "TIMEOUT": (Blame.RUN, "it reached its time limit: give it more time, or fewer steps"),
    "OUT_OF_MEMORY": (Blame.RUN, "a node ran out of host memory (--mem)"),
}

_CODES = {
    EndingCode.NODE_FAILURE: Blame.INFRASTRUCTURE,
    EndingCode.PREEMPTED: Blame.INFRASTRUCTURE,
    EndingCode.GPU_FAILURE: Blame.INFRASTRUCTURE,
    EndingCode.NCCL_TIMEOUT: Blame.INFRASTRUCTURE,
    EndingCode.CANCELLED: Blame.CANCELLED,
    EndingCode.STEP_CANCELLED: Blame.CANCELLED,
}

_HELD_STATES = {
    "REQUEUE_HOLD": "it was put back into the queue and held: see `scontrol show job`, then `scontrol release`",
    "SPECIAL_EXIT": "it was put back into the queue and held: see `scontrol show job`, then `scontrol release`",
    "RESV_DEL_HOLD": "its reservation was deleted: `scontrol release` it, or name another reservation",
}

_NEVER = (
    ("DependencyNeverSatisfied", "the job that it depends on failed"),
    ("PartitionNodeLimit", "it asks for more or fewer nodes than its partition gives a job, or they are down: `sinfo`"),
    (
        "PartitionTimeLimit",
        "it asks for more time than its partition allows: lower `time_limit`, see `sinfo -o '%R %l'`",
    ),
    ("BadConstraints", "no node fits what it asks for: see --constraint, --gres and --nodelist"),
    ("(AccountNotAllowed|InvalidAccount)", "its account cannot be used: see `sacctmgr show associations user=$USER`"),
    ("(QOSNotAllowed|InvalidQOS)", "its QOS cannot be used: see `sacctmgr show associations user=$USER`"),
    ("(RequiresReservation|ReqResv|ReservationDeleted)", "it needs a reservation that is not there: --reservation"),
    (
        "(JobHoldMaxRequeue|RequeueExitHold|launch.failed.requeued.held)",
        "it failed to start and is held: see `scontrol show job`",
    ),
    ("(Assoc|QOS)Max[A-Za-z]*Per(Job|Node)[A-Za-z]*", "it asks for more than its account or QOS allows one job"),
    ("QOSMin[A-Za-z]*", "it asks for less than its QOS demands"),
    ("(AssociationTimeLimit|QOSTimeLimit)", "it asks for more time than its account or QOS allows"),
    ("(Assoc|QOS)Grp[A-Za-z]*(?<!Run)Minutes(Limit)?", "the budget of its account or QOS is used up"),
)
_NEVER_PATTERNS = tuple((re.compile(pattern), text) for pattern, text in _NEVER)


def find_phase(state: str) -> Phase:
    """Return where a job of a state stands; UNKNOWN for a word that is none of Slurm's.

    PREEMPTED and REQUEUED wait: such a job comes back, unless slurmctld itself says that it ended so.
    """
    return _PHASES.get(state, Phase.UNKNOWN)


def drop_passing(status: JobStatus) -> JobStatus:
    """Return what of a status is worth keeping: not for how long a job runs, nor when a waiting one may start, which
    Slurm computes anew all the time."""
    started = None if status.phase is Phase.WAITING else status.started
    return replace(status, elapsed_seconds=None, started=started)


def explain_status(status: JobStatus) -> JobEnd:
    """Return how a job ended, and whose failure it is. Only COMPLETED without any failed step ended well.

    What has not ended, or nothing is known of, is blamed on the run: it may run yet, and is not to be started again.
    """
    if status.phase is Phase.UNKNOWN:
        return JobEnd(Blame.RUN, "Slurm has no record of it (any more), which does not say how it ended")
    if status.phase is not Phase.ENDED:
        return JobEnd(Blame.RUN, f"it has not ended: Slurm says {status.state or 'nothing'}")
    if status.state == "COMPLETED":
        return _explain_completed(status)
    if status.state == "CANCELLED":
        return JobEnd(Blame.CANCELLED, f"CANCELLED: {_name_canceller(status)}")
    if status.state == "FAILED":
        return JobEnd(Blame.RUN, f"FAILED: {_explain_failure(status)}")
    blame, text = _ENDS.get(status.state, (Blame.RUN, "a state that is not known here, so no success"))
    nodes = f" ({', '.join(status.nodes)})" if blame is Blame.INFRASTRUCTURE and status.nodes else ""
    return JobEnd(blame, f"{status.state or 'no state'}: {text}{nodes}")


def explain_stuck(status: JobStatus) -> str:
    """Return why a waiting job will never start by itself and what to do, or nothing if it may.

    Reasons that others can clear (resources, priority, running jobs of the account, nodes down, a job that somebody
    holds) are not among them.
    """
    if status.phase is not Phase.WAITING:
        return ""
    if status.state in _HELD_STATES:
        return f"{status.state}: {_HELD_STATES[status.state]}"
    reason = status.reason.partition(",")[0].strip()
    text = next((text for pattern, text in _NEVER_PATTERNS if pattern.fullmatch(reason)), "")
    return text and f"{reason}: {text}"


def find_blame(ending_code: EndingCode) -> Blame:
    """Return whose failure it is that a log ends with this code."""
    return _CODES.get(ending_code, Blame.RUN)


def format_exit(code: str) -> str:
    """Return `exit code 7`, `signal 11 (SIGSEGV)` or `out of memory` for Slurm's `7:0`, `0:11` and `0:125`."""
    exit_code, _, number = code.partition(":")
    if not (exit_code.isdecimal() and number.isdecimal()):
        return f"exit code {code!r}"
    if int(number) == OUT_OF_MEMORY_SIGNAL:
        return "out of memory"
    return f"signal {number}{_name_signal(int(number))}" if int(number) else f"exit code {exit_code}"


def _name_signal(number: int) -> str:
    return f" ({signal.Signals(number).name})" if number in signal.valid_signals() else ""


def _explain_completed(status: JobStatus) -> JobEnd:
    if status.exit_code not in ("", SUCCESS):
        return JobEnd(Blame.RUN, f"COMPLETED, yet with {format_exit(status.exit_code)}")
    if status.derived_exit_code not in ("", SUCCESS):
        text = f"a step of it failed with {format_exit(status.derived_exit_code)}, although the batch script succeeded"
        return JobEnd(Blame.RUN, f"COMPLETED, but {text}")
    return JobEnd(Blame.NONE)


def _explain_failure(status: JobStatus) -> str:
    if status.reason == "BadConstraints" or (status.seen_by == "sacct" and not status.nodes):
        return "no node ever ran it: Slurm refused what it asks for"
    return "Slurm gives no exit code" if status.exit_code in ("", SUCCESS) else format_exit(status.exit_code)


def _name_canceller(status: JobStatus) -> str:
    return f"by the user with uid {status.cancelled_by}" if status.cancelled_by else "Slurm does not say by whom"
