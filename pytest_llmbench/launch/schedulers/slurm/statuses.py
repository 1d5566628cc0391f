"""What sacct, squeue and sinfo print, as records, and what their words mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

from pytest_llmbench.core.job_records import Blame, JobEnd, JobStatus, Phase
from pytest_llmbench.launch.schedulers.job_states import (
    ENDS,
    PHASES,
    SUCCESS,
    explain_by_state,
)

SACCT_FIELDS = (
    "JobIDRaw,State,ExitCode,DerivedExitCode,ElapsedRaw,Submit,Start,End,NodeList"
)
# each field with the sign behind it, so that it is printed at its full length
SQUEUE_FIELDS = (
    "JobID:|,State:|,exit_code:|,DerivedEC:|,TimeUsed:|,SubmitTime:|,StartTime:|,EndTime:|,NodeList:|,RestartCnt:|,"
    "Reason:|,TimeLimit:|"
)

MOST_HOSTS = 20_000
Statuses = dict[str, JobStatus]

_NAME = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*")
# sacct writes `CANCELLED by 1000`
_STATE = re.compile(r"(?P<state>[A-Z_]+)(?: by (?P<uid>\d+))?")
# Slurm's numbers have at most ten digits; of thousands Python makes none, and of
# hundreds infinity.
_DIGITS = "[0-9]{1,15}"
_DURATION = re.compile(
    "(?:(?:(?P<days>[0-9]{1,6})-)?(?P<hours>[0-9]{1,9}):)?(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{1,9})"
)

_WAITING = "REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT PREEMPTED"
_RUNNING = "CONFIGURING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED"
_PHASES = {
    **PHASES,
    **dict.fromkeys(_WAITING.split(), Phase.WAITING),
    **dict.fromkeys(_RUNNING.split(), Phase.RUNNING),
    **dict.fromkeys(("DEADLINE", "REVOKED"), Phase.ENDED),
}

_ENDS = {
    **ENDS,
    "REVOKED": (Blame.INFRASTRUCTURE, "another cluster of the federation took it over"),
    "DEADLINE": (Blame.RUN, "its deadline (--deadline) came first"),
    "OUT_OF_MEMORY": (Blame.RUN, "a node ran out of host memory (--mem)"),
}


_HELD = "it was put back into the queue and held: see `scontrol show job`, then `scontrol release`"
_HELD_STATES = {
    "REQUEUE_HOLD": _HELD,
    "SPECIAL_EXIT": _HELD,
    "RESV_DEL_HOLD": "its reservation was deleted: `scontrol release` it, or name another reservation",
}

_NEVER = (
    ("DependencyNeverSatisfied", "the job that it depends on failed"),
    (
        "PartitionNodeLimit",
        "it asks for more or fewer nodes than its partition gives a job, or they are down: `sinfo`",
    ),
    (
        "PartitionTimeLimit",
        "it asks for more time than its partition allows: lower `time_limit`, see `sinfo -o '%R %l'`",
    ),
    (
        "BadConstraints",
        "no node fits what it asks for: see --constraint, --gres and --nodelist",
    ),
    (
        "(AccountNotAllowed|InvalidAccount)",
        "its account cannot be used: see `sacctmgr show associations user=$USER`",
    ),
    (
        "(QOSNotAllowed|InvalidQOS)",
        "its QOS cannot be used: see `sacctmgr show associations user=$USER`",
    ),
    (
        "(RequiresReservation|ReqResv|ReservationDeleted)",
        "it needs a reservation that is not there: --reservation",
    ),
    (
        "(JobHoldMaxRequeue|RequeueExitHold|launch.failed.requeued.held)",
        "it failed to start and is held: see `scontrol show job`",
    ),
    (
        "(Assoc|QOS)Max[A-Za-z]*Per(Job|Node)[A-Za-z]*",
        "it asks for more than its account or QOS allows one job",
    ),
    ("QOSMin[A-Za-z]*", "it asks for less than its QOS demands"),
    (
        "(AssociationTimeLimit|QOSTimeLimit)",
        "it asks for more time than its account or QOS allows",
    ),
    (
        "(Assoc|QOS)Grp[A-Za-z]*(?<!Run)Minutes(Limit)?",
        "the budget of its account or QOS is used up",
    ),
)
_NEVER_PATTERNS = tuple((re.compile(pattern), text) for pattern, text in _NEVER)


def read_sacct(output: str, submitted: Mapping[str, datetime]) -> Statuses:
    """Return what sacct prints (SACCT_FIELDS, all duplicates, times in UTC) of the
    jobs, by id.

    A requeued job has a row for each start: the latest one counts, and the others are
    its restarts. Rows that were submitted earlier than `submitted` are of another job:
    Slurm begins again with 1 after the largest job id.
    """
    rows: dict[str, list[JobStatus]] = {}
    for job_id, status in _read_rows(output, _read_sacct_status, submitted):
        rows.setdefault(job_id, []).append(status)
    latest = {}
    for job_id, unsorted in rows.items():
        starts = sorted(unsorted, key=_find_submission)
        latest[job_id] = replace(
            starts[-1],
            submitted=starts[0].submitted,
            restarts=len(starts) - 1,
            earlier_seconds=_list_seconds(starts[:-1]),
        )
    return latest


def read_squeue(output: str, submitted: Mapping[str, datetime]) -> Statuses:
    """Return what squeue prints (SQUEUE_FIELDS, all states, times in UTC) of the jobs,
    by id.

    `started` of a waiting job is when Slurm expects it to start.
    """
    return dict(_read_rows(output, _read_squeue_status, submitted))


def merge_statuses(accounting: JobStatus | None, queue: JobStatus | None) -> JobStatus:
    """Return what is known of a job by sacct and by squeue, where squeue was asked
    later.

    What slurmctld knows decides: accounting lags, and shows the failed start of a job
    that is already queued again. A job that slurmctld has forgotten is over; where
    accounting has no end of it, nothing is known.
    """
    if queue is None:
        if accounting is None:
            return JobStatus(Phase.UNKNOWN, "")
        phase = find_phase(accounting.state)
        over = phase is Phase.ENDED or accounting.state == "PREEMPTED"
        return replace(accounting, phase=Phase.ENDED if over else Phase.UNKNOWN)
    if accounting is None:
        return queue
    same = accounting.state == queue.state
    # its row of the start that slurmctld knows is not there yet, or never comes since
    # it did not start
    behind = not same and accounting.restarts < queue.restarts
    return replace(
        queue,
        derived_exit_code=_choose_worse(
            queue.derived_exit_code, accounting.derived_exit_code if same else SUCCESS
        ),
        submitted=min(
            (status.submitted for status in (accounting, queue) if status.submitted),
            default=None,
        ),
        cancelled_by=accounting.cancelled_by if same else "",
        restarts=max(accounting.restarts, queue.restarts),
        earlier_seconds=(
            *accounting.earlier_seconds,
            *(_list_seconds([accounting]) if behind else ()),
        ),
    )


def expand_hosts(expression: str) -> tuple[str, ...]:
    """Return the names of a node list: `n[1-2,04]` reads n1 n2 n04. What cannot be
    expanded stays as it is."""
    if not expression or expression in ("None assigned", "(null)", "None"):
        return ()
    names = _NAME.findall(expression)
    parts = [name for name in names if name]
    if ",".join(parts) != expression:
        return (expression,)
    expanded: list[str] = []
    for part in parts:
        pieces = [_expand_piece(piece) for piece in re.split(r"(\[[^\[\]]*\])", part)]
        size = 1
        for piece in pieces:
            size *= len(piece)
        if not 0 < size <= MOST_HOSTS - len(expanded):
            return (expression,)
        expanded.extend("".join(each) for each in product(*pieces))
    return tuple(expanded)


def count_gpus(gres: str) -> int:
    """Return the GPUs of a node with a gres of `gpu:8`, `gpu:h100:8(S:0-1),nvme:1` or
    `(null)`."""
    return sum(count for _, count in list_gpus(gres))


def list_gpus(gres: str) -> list[tuple[str, int]]:
    """Return the types of GPUs of such a node, each with their number; empty for a type
    that gres does not name."""
    types = re.findall(
        r"(?:^|,)gpu(?::([A-Za-z][^:,()]*))?(?::([0-9]{1,9}))?(?=[(,]|$)", gres
    )
    return [(kind, int(count or 1)) for kind, count in types]


def is_number(text: str) -> bool:
    """Whether a text is a whole number as Slurm prints one."""
    return re.fullmatch(_DIGITS, text) is not None


def parse_duration(duration: str) -> float | None:
    """Return `10:00`, `1:00:00` or `7-00:00:00` in seconds; None for `infinite` and
    what is no duration."""
    match = _DURATION.fullmatch(duration)
    if not match:
        return None
    return timedelta(
        **{unit: int(value) for unit, value in match.groupdict("0").items()}
    ).total_seconds()


def _read_rows(
    output: str,
    read: Callable[[Sequence[str]], JobStatus | None],
    submitted: Mapping[str, datetime],
) -> Iterator[tuple[str, JobStatus]]:
    """Yield what each line says of a job of ours; of one whose line cannot be read,
    that nothing is known."""
    for line in output.splitlines():
        job_id, *fields = line.split("|")
        if job_id in submitted and fields:
            status = read(fields) or JobStatus(Phase.UNKNOWN, "")
            if _find_submission(status) >= submitted[job_id]:
                yield job_id, status


def _find_submission(status: JobStatus) -> datetime:
    return status.submitted or datetime.max.replace(tzinfo=UTC)


def _list_seconds(starts: Sequence[JobStatus]) -> tuple[float, ...]:
    return tuple(
        start.elapsed_seconds for start in starts if start.elapsed_seconds is not None
    )


def _read_sacct_status(fields: Sequence[str]) -> JobStatus | None:
    if len(fields) != SACCT_FIELDS.count(","):
        return None
    word, exit_code, derived, elapsed, submitted, started, ended, nodes = fields
    state, codes = (
        _STATE.fullmatch(word),
        (_parse_code(exit_code), _parse_code(derived)),
    )
    if not state or not all(codes):
        return None
    return JobStatus(
        phase=find_phase(state["state"]),
        state=state["state"],
        nodes=expand_hosts(nodes),
        exit_code=codes[0],
        derived_exit_code=codes[1],
        elapsed_seconds=float(elapsed) if is_number(elapsed) else None,
        submitted=parse_time(submitted),
        started=parse_time(started),
        ended=parse_time(ended),
        cancelled_by=state["uid"] or "",
        seen_by="sacct",
    )


def _read_squeue_status(fields: Sequence[str]) -> JobStatus | None:
    if len(fields) < SQUEUE_FIELDS.count(","):
        return None
    (
        state,
        exit_code,
        derived,
        elapsed,
        submitted,
        started,
        ended,
        nodes,
        restarts,
        reason,
        limit,
    ) = fields[:11]
    codes = _parse_code(exit_code), _parse_code(derived)
    if not all(codes):
        return None
    # slurmctld does not show a job as PREEMPTED that it has put back into its queue
    phase = Phase.ENDED if state == "PREEMPTED" else find_phase(state)
    return JobStatus(
        phase=phase,
        state=state,
        reason="" if reason == "None" else reason,
        nodes=expand_hosts(nodes),
        exit_code=codes[0],
        derived_exit_code=codes[1],
        elapsed_seconds=parse_duration(elapsed),
        submitted=parse_time(submitted),
        started=parse_time(started),
        ended=parse_time(ended) if phase is Phase.ENDED else None,
        restarts=int(restarts) if is_number(restarts) else 0,
        seen_by="squeue",
        limit_seconds=parse_duration(limit),
    )


def _parse_code(text: str) -> str:
    """Return `7:0` for it, and for the status of wait(2) that squeue prints, 1792;
    nothing for what is neither."""
    if is_number(text):
        return f"{int(text) >> 8}:{int(text) & 0x7F}"
    return text if re.fullmatch(f"{_DIGITS}:{_DIGITS}", text) else ""


def _choose_worse(code: str, other: str) -> str:
    return other if code == SUCCESS else code


def parse_time(text: str) -> datetime | None:
    """Return a time as Slurm prints it in UTC; None for what is none."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:  # Unknown, None, N/A
        return None


def _expand_piece(piece: str) -> list[str]:
    """Return what a part of a node name stands for: itself, or each number of its
    brackets; nothing if unreadable."""
    if not piece.startswith("["):
        return [piece]
    numbers: list[str] = []
    for item in piece[1:-1].split(","):
        match = re.fullmatch(f"({_DIGITS})(?:-({_DIGITS}))?", item)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MOST_HOSTS:
            return []
        width = len(match[1]) if match else 0
        numbers.extend(f"{number:0{width}d}" for number in range(first, last + 1))
    return numbers


def find_phase(state: str) -> Phase:
    """Return where a job of a state stands; UNKNOWN for a word that is none of Slurm's.

    PREEMPTED and REQUEUED wait: such a job comes back, unless slurmctld itself says
    that it ended so.
    """
    return _PHASES.get(state, Phase.UNKNOWN)


def explain_stuck(status: JobStatus) -> str:
    """Return why a waiting job will never start by itself and what to do, or nothing if
    it may.

    Reasons that others can clear (resources, priority, running jobs of the account,
    nodes down, a job that somebody holds) are not among them.
    """
    if status.phase is not Phase.WAITING:
        return ""
    if status.state in _HELD_STATES:
        return f"{status.state}: {_HELD_STATES[status.state]}"
    reason = status.reason.partition(",")[0].strip()
    text = next(
        (text for pattern, text in _NEVER_PATTERNS if pattern.fullmatch(reason)), ""
    )
    return text and f"{reason}: {text}"


def explain_unavailable(status: JobStatus, *, reserved: bool = True) -> str:
    """Return that the nodes which a job names are out of service (or `reserved`: that
    ends), which others may undo."""
    word = "ReqNodeNotAvail" if reserved else "UnavailableNodes"
    out = status.phase is Phase.WAITING and word in status.reason
    return (
        f"{status.reason}: its nodes are down, drained{' or reserved' * reserved}"
        if out
        else ""
    )


def explain_end(status: JobStatus) -> JobEnd:
    """Return how a job ended, and whose failure it is."""
    return explain_by_state(status, "Slurm", _ENDS, refused=is_refused(status))


def is_refused(status: JobStatus) -> bool:
    """Whether Slurm recorded as a job that FAILED what it refused: --gres=gpu:9 on
    nodes with 8, or more nodes than are left."""
    no_node = status.reason == "BadConstraints" or (
        status.seen_by == "sacct" and not status.nodes
    )
    return status.phase is Phase.ENDED and status.state == "FAILED" and no_node
