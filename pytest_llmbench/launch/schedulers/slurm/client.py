"""Slurm, asked by its own commands: what became of jobs, and what its cluster has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import NamedTuple

from pytest_llmbench.core.commands import CommandOutput, Runner
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.formatting import count_noun, join_first
from pytest_llmbench.core.gpus import read_gpu_type
from pytest_llmbench.core.job_records import Blame, Cluster, JobEnd, JobStatus, Phase
from pytest_llmbench.launch.plan.cluster_file import LearnedCluster
from pytest_llmbench.launch.schedulers.job_states import (
    ENDS,
    PHASES,
    SUCCESS,
    explain_by_state,
)
from pytest_llmbench.launch.schedulers.submission import SchedulerAway

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


# --- the commands ---------------------------------------------------------------------


COMMENT = "llmb:"  # what stands before the token in the comment of a job

CLOCK_MARGIN = timedelta(
    hours=1
)  # how far the clocks of this machine and of the controller may be apart

# what sacct says, with exit code 1, where there is no slurmdbd
_NO_ACCOUNTING = (
    "accounting storage is disabled",
    "not running a supported accounting_storage plugin",
)
_OVERRIDES = re.compile(r"(SQUEUE|SACCT|SINFO)_.*|SLURM_TIME_FORMAT")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the cluster."""

    name: str
    nodes: int  # up or down
    gpus: int  # the most that one of its nodes has
    time_limit_seconds: float | None  # the longest that a job may take, None: no limit
    up: bool  # whether it takes jobs
    is_default: bool = False  # whether a job gets it that names none
    gpu_nodes: tuple[
        tuple[str, int, int], ...
    ] = ()  # a type of GPU as gres names it, how many a node has, and nodes


class StepStatus(NamedTuple):
    """A step of a job."""

    state: str  # Slurm's word
    exit_code: str  # reads `7:0`
    started: datetime


class Slurm:
    """Slurm as this machine reaches it. `timeout`, in seconds, is for each command.

    A question is asked for all jobs at once, so that the number of commands does not
    grow with that of the jobs.
    """

    def __init__(
        self, run: Runner, environment: Mapping[str, str], timeout: float = 30.0
    ) -> None:
        """Take the environment of the commands."""
        # SQUEUE_STATES and its like would hide jobs, SLURM_TIME_FORMAT make times that
        # cannot be read
        harmless = {
            name: value
            for name, value in environment.items()
            if not _OVERRIDES.fullmatch(name)
        }
        self._environment = {**harmless, "TZ": "UTC", "LC_ALL": "C"}
        self._run, self._timeout = run, timeout

    def poll(self, jobs: Mapping[str, datetime]) -> dict[str, JobStatus]:
        """Return the status of each job; `jobs` maps ids to when they were submitted
        (aware). One sacct, one squeue.

        Phase.UNKNOWN is what nothing knows, `started` of a waiting job when Slurm
        expects to start it. SchedulerAway: slurmctld does not answer, or slurmdbd does
        not and slurmctld does not know all jobs.
        """
        earliest = {
            job_id: submitted - CLOCK_MARGIN
            for job_id, submitted in jobs.items()
            if job_id.isdecimal()
        }
        if not earliest:
            return dict.fromkeys(jobs, merge_statuses(None, None))
        # before squeue: a job leaves squeue some 0.3 s before sacct shows its end, and
        # would be in neither
        accounting = self._query_accounting(earliest)
        queue = self._query_queue(earliest)
        if isinstance(accounting, SchedulerAway):
            if queue.keys() < earliest.keys():
                raise accounting
            accounting = {}
        return {
            job_id: merge_statuses(accounting.get(job_id), queue.get(job_id))
            for job_id in jobs
        }

    def cancel(self, job_ids: Sequence[str]) -> str:
        """Cancel jobs with one scancel; return what went wrong, or nothing. Jobs that
        are over are no problem."""
        numbers = [job_id for job_id in job_ids if job_id.isdecimal()]
        others = [
            f"{job_id!r} is not the id of a Slurm job"
            for job_id in job_ids
            if job_id not in numbers
        ]
        done = self._ask("scancel", *numbers) if numbers else CommandOutput(0, "", "")
        if done.code == 0:
            return "; ".join(others)
        over = ("Invalid job id specified", "already completing or completed")
        lines = [
            line
            for line in done.err.splitlines()
            if line.strip() and not any(text in line for text in over)
        ]
        silent = [] if done.err.strip() else [f"scancel ended with {done.code}"]
        return "; ".join((*others, *lines, *silent))

    def find(self, tokens: Collection[str], since: datetime) -> dict[str, str]:
        """Return token and job id of the caller's jobs whose comment is `llmb:<token>`,
        submitted later than `since`.

        Without accounting, or if it keeps no comments
        (AccountingStoreFlags=job_comment), only recent jobs are found. LaunchError: two
        jobs have the same one. SchedulerAway: nobody answers, so it may be there.
        """
        queue = self._answer(
            "squeue",
            "--noheader",
            "--all",
            "--me",
            "--states=all",
            "--Format=JobID:|,Comment:|",
        )
        job_ids_by_token = _read_comments(queue, tokens)
        if set(tokens) <= job_ids_by_token.keys():
            return _require_single(job_ids_by_token)
        done = self._ask(
            "sacct", *_format_period(since - CLOCK_MARGIN), "--format=JobIDRaw,Comment"
        )
        if done.code == 0:
            for token, job_ids in _read_comments(done.out, tokens).items():
                job_ids_by_token.setdefault(token, set()).update(job_ids)
        elif not _is_without_accounting(done):
            raise _report_away("sacct", done)
        return _require_single(job_ids_by_token)

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return the partitions of the cluster; SchedulerAway if it does not answer."""
        partitions: dict[str, Partition] = {}
        for line in self._answer(
            "sinfo", "--noheader", "--all", "--format=%P|%a|%l|%D|%G"
        ).splitlines():
            shown, _, rest = line.partition("|")
            fields = rest.split("|")
            if len(fields) != 4 or not is_number(fields[2]):
                continue
            up, limit, nodes, gres = fields
            name = shown.rstrip("*")
            before = partitions.get(name, Partition(name, 0, 0, None, False))
            partitions[name] = Partition(
                name,
                before.nodes + int(nodes),
                max(before.gpus, count_gpus(gres)),
                parse_duration(limit),
                up == "up",
                is_default=shown.endswith("*"),
                gpu_nodes=(
                    *before.gpu_nodes,
                    *((kind, count, int(nodes)) for kind, count in list_gpus(gres)),
                ),
            )
        return tuple(partitions.values())

    def find_cluster_name(self) -> str:
        """Return how the cluster is called; empty where Slurm does not say it.
        SchedulerAway if it does not answer."""
        named = re.search(
            r"^ClusterName\s*=\s*(\S+)",
            self._answer("scontrol", "show", "config"),
            re.MULTILINE,
        )
        return named[1] if named else ""

    def list_node_reasons(self, nodes: Collection[str]) -> dict[str, str]:
        """Return what `sinfo -R` says of nodes, with who set it and when; it says
        nothing of most. Raises SchedulerAway."""
        options = (
            "--list-reasons",
            "--noheader",
            f"--nodes={','.join(nodes)}",
            "--format=%N|%u|%H|%E",
        )
        reasons = {}
        for line in self._answer("sinfo", *options).splitlines():
            names, *fields = line.split("|", 3)
            if len(fields) == 3:
                user, moment, reason = (text.strip() for text in fields)
                named = (name for name in expand_hosts(names.strip()) if name in nodes)
                reasons.update(dict.fromkeys(named, f"{reason} ({user}, {moment})"))
        return reasons

    def keeps_accounts(self) -> bool:
        """Whether sacct answers, which alone knows how each step of a job ended."""
        return self._ask("sacct", "-X", "--noheader", "--starttime=now").code == 0

    def list_steps(self, job_id: str, since: datetime) -> tuple[StepStatus, ...]:
        """Return the steps of a job that began since then, as accounting has them.
        Raises SchedulerAway."""
        options = (
            "--parsable2",
            "--noheader",
            "--format=JobIDRaw,State,ExitCode,Start",
            f"--jobs={job_id}",
        )
        rows = (
            line.split("|")
            for line in self._answer(
                "sacct", *_format_times(since), *options
            ).splitlines()
        )
        return tuple(
            StepStatus(state.partition(" ")[0], code, started)
            for number, state, code, start in (row for row in rows if len(row) == 4)
            if re.fullmatch(r"[0-9]+\.[0-9]+", number)
            and (started := parse_time(start))
        )

    def list_accounts(self) -> tuple[str, ...] | None:
        """Return the accounts that the caller may use; None where Slurm does not insist
        on one, or cannot tell."""
        config = self._answer("scontrol", "show", "config")
        enforced = re.search(
            r"^AccountingStorageEnforce\s*=\s*(.*)$", config, re.MULTILINE
        )
        if not enforced or not re.search(
            r"associations|limits|safe|qos|all", enforced[1]
        ):
            return None
        user = self._ask("id", "-un").out.strip()
        where = ("where", f"user={user}", "format=account")
        done = self._ask(
            "sacctmgr", "--noheader", "--parsable2", "show", "associations", *where
        )
        accounts = tuple(sorted(set(done.out.split())))
        return accounts if user and done.code == 0 and accounts else None

    def find_default_account(self) -> str:
        """Return the account that Slurm takes where none is named; empty where it has
        none, or cannot tell."""
        user = self._ask("id", "-un").out.strip()
        where = ("where", f"name={user}", "format=defaultaccount")
        done = self._ask(
            "sacctmgr", "--noheader", "--parsable2", "show", "user", *where
        )
        return done.out.strip() if user and done.code == 0 else ""

    def _query_accounting(
        self, jobs: Mapping[str, datetime]
    ) -> Statuses | SchedulerAway:
        """Return what sacct knows: nothing if Slurm keeps no accounts, SchedulerAway if
        it does not answer."""
        # without --duplicates a job that was requeued has its last row alone, and its
        # restarts are lost; without --jobs sacct lags seconds behind
        options = (
            "--duplicates",
            f"--format={SACCT_FIELDS}",
            f"--jobs={','.join(jobs)}",
        )
        done = self._ask("sacct", *_format_period(min(jobs.values())), *options)
        if done.code == 0:
            return read_sacct(done.out, jobs)
        return {} if _is_without_accounting(done) else _report_away("sacct", done)

    def _query_queue(self, jobs: Mapping[str, datetime]) -> Statuses:
        options = (
            "--noheader",
            "--all",
            "--states=all",
            f"--Format={SQUEUE_FIELDS}",
            f"--jobs={','.join(jobs)}",
        )
        done = self._ask("squeue", *options)
        if "Invalid job id specified" in done.err and len(jobs) == 1:
            # only asked for a single job squeue complains that it does not know it
            return {}
        if done.code:
            raise _report_away("squeue", done)
        return read_squeue(done.out, jobs)

    def _answer(self, *command: str) -> str:
        done = self._ask(*command)
        if done.code:
            raise _report_away(command[0], done)
        return done.out

    def _ask(self, *command: str) -> CommandOutput:
        return self._run(command, timeout=self._timeout, environment=self._environment)


def _report_away(program: str, done: CommandOutput) -> SchedulerAway:
    if done.code == 127:
        return SchedulerAway(
            f"{done.err.strip()}: start pytest where Slurm's commands are, on a login node of the cluster"
        )
    message = done.err.strip() or done.out.strip() or f"it ended with {done.code}"
    return SchedulerAway(
        f"{program} does not answer: {message}; `scontrol ping` shows whether Slurm is up"
    )


def _is_without_accounting(done: CommandOutput) -> bool:
    return done.code == 127 or any(
        text in (done.err + done.out).lower() for text in _NO_ACCOUNTING
    )


def _format_period(moment: datetime) -> tuple[str, ...]:
    """Return sacct's options for the jobs since a moment, without their steps."""
    return "-X", "--parsable2", "--noheader", *_format_times(moment)


def _format_times(moment: datetime) -> tuple[str, ...]:
    """Return sacct's options for what was since a moment, in UTC as the commands run.
    It refuses a start behind the end, which is now by default: the clock of this
    machine may be ahead."""
    start, end = (
        each.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        for each in (moment, moment + timedelta(days=3650))
    )
    return f"--starttime={start}", f"--endtime={end}"


def _read_comments(output: str, tokens: Collection[str]) -> dict[str, set[str]]:
    """Return the ids of the jobs with each token, from lines of id and comment."""
    job_ids: dict[str, set[str]] = {}
    for line in output.splitlines():
        job_id, _, comment = line.partition("|")
        token = comment.removesuffix("|").removeprefix(COMMENT)
        if comment.startswith(COMMENT) and token in tokens and job_id.isdecimal():
            job_ids.setdefault(token, set()).add(job_id)
    return job_ids


def _require_single(by_token: Mapping[str, set[str]]) -> dict[str, str]:
    for token, job_ids in by_token.items():
        if len(job_ids) > 1:
            jobs = " ".join(sorted(job_ids, key=int))
            raise LaunchError(
                f"jobs {jobs} carry the same mark {COMMENT}{token}, so it cannot be told which of them is ours: "
                "scancel all but one, and remove its comment (scontrol update JobId=... Comment=)"
            )
    return {token: min(job_ids) for token, job_ids in by_token.items()}


# --- the cluster that they describe ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuNodes:
    """The nodes of a partition that have GPUs of one type."""

    partition: Partition
    gres_type: str
    gpu: str  # the type as configurations name it; empty: nothing says it
    per_node: int
    nodes: int

    @property
    def gpus(self) -> int:
        """All of them together."""
        return self.per_node * self.nodes


def learn_cluster(slurm: Slurm, gpu: str = "") -> LearnedCluster | None:
    """Return the cluster that Slurm has GPUs in; None where it has none that it knows
    of.

    Of several types the one with the most GPUs counts, or `gpu` where an option says
    it; of several partitions the default one, else the one with the most of them.
    SchedulerAway where Slurm does not answer.
    """
    groups = [
        GpuNodes(partition, kind, _read_type(kind) or gpu, count, nodes)
        for partition in slurm.list_partitions()
        if partition.up
        for kind, count, nodes in partition.gpu_nodes
    ]
    chosen = gpu if gpu else _find_most_common(groups)
    fitting = [group for group in groups if group.gpu == chosen]
    if not fitting:
        return None
    best = max(
        fitting,
        key=lambda group: (
            group.partition.is_default,
            group.gpus,
            group.partition.name,
        ),
    )
    return _describe(best, groups, slurm.find_default_account())


def _read_type(gres_type: str) -> str:
    """Return `h100` for `nvidia_h100_80gb_hbm3`; empty where gres names no type."""
    return read_gpu_type(re.sub("[_-]", " ", gres_type)) if gres_type else ""


def _find_most_common(groups: Sequence[GpuNodes]) -> str:
    """Return the type of most GPUs; a node may be in several partitions, and counts in
    the largest alone."""
    gpus: Counter[str] = Counter()
    for group in groups:
        gpus[group.gpu] = max(gpus[group.gpu], group.gpus)
    return max(gpus, key=lambda gpu: (gpus[gpu], gpu), default="")


def _describe(
    best: GpuNodes, groups: Sequence[GpuNodes], account: str
) -> LearnedCluster:
    partition = best.partition
    own = {group.gres_type for group in groups if group.partition == partition}
    named = (
        f"gpu:{best.gres_type}:{best.per_node}"
        if best.gres_type
        else f"gpu:{best.per_node}"
    )
    gres = f"gpu:{best.per_node}" if len(own) == 1 else named
    others = sorted({group.gpu for group in groups} - {best.gpu, ""})
    limit = partition.time_limit_seconds
    sources = {
        "gpu": f"sinfo: gres {named} on {count_noun(best.nodes, 'node')}"
        * bool(best.gpu)
        + (f"; there are {join_first(others)}, too" if others else ""),
        "gpus_per_node": f"sinfo: gres {named}",
        "largest": f"sinfo: {count_noun(best.nodes, 'node')} of the partition have them",
        "partition": (
            "the default one"
            if partition.is_default
            else "the one with the most of these GPUs"
        )
        + (
            f"; a job takes at most {limit / 3600:g} h"
            if limit is not None
            else "; a job may take any time"
        ),
        "gres": f"sinfo: {named}",
        "account": "sacctmgr: your default account" if account else "",
    }
    cluster = Cluster(
        gpu=best.gpu,
        gpus_per_node=best.per_node,
        largest=best.gpus,
        partition=partition.name,
        gres=gres,
        account=account,
    )
    return LearnedCluster(
        "Slurm", cluster, tuple((name, text) for name, text in sources.items() if text)
    )
