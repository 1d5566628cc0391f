"""Client for Slurm's commands: job states and the cluster."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.commands import CommandOutput, Runner
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.formatting import count_noun, join_first
from pytest_llmbench.core.gpus import read_gpu_type
from pytest_llmbench.core.job_records import Blame, Cluster, JobEnd, JobStatus, Phase
from pytest_llmbench.core.patterns import compile_on_use
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
# the separator after each field makes squeue print the field at full length
SQUEUE_FIELDS = (
    "JobID:|,State:|,exit_code:|,DerivedEC:|,TimeUsed:|,SubmitTime:|,StartTime:|,EndTime:|,NodeList:|,RestartCnt:|,"
    "Reason:|,TimeLimit:|"
)

MOST_HOSTS = 20_000
Statuses = dict[str, JobStatus]

# an item of a node list, such as `n[1-2,04]`, between commas outside of brackets
_HOST_ITEM = compile_on_use(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*")
# sacct writes `CANCELLED by 1000`
_STATE = compile_on_use(r"(?P<state>[A-Z_]+)(?: by (?P<uid>\d+))?")
# Slurm's numbers have at most ten digits; the limit keeps int() and float() from
# failing on absurd input
_DIGITS = "[0-9]{1,15}"
# `10:00`, `1:00:00`, `7-00:00:00`
_DURATION = compile_on_use(
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
    "DEADLINE": (Blame.RUN, "the job reached its deadline (--deadline)"),
    "OUT_OF_MEMORY": (Blame.RUN, "a node ran out of host memory (--mem)"),
}


_HELD = "the job was put back into the queue and held: see `scontrol show job`, then `scontrol release`"
_HELD_STATES = {
    "REQUEUE_HOLD": _HELD,
    "SPECIAL_EXIT": _HELD,
    "RESV_DEL_HOLD": "its reservation was deleted: `scontrol release` it, or name another reservation",
}

# (pattern of Slurm's reason, explanation) of waiting jobs that can never start
_NEVER_STARTS = (
    ("DependencyNeverSatisfied", "the job that it depends on failed"),
    (
        "PartitionNodeLimit",
        "it requests more or fewer nodes than its partition allows, or they are down: see `sinfo`",
    ),
    (
        "PartitionTimeLimit",
        "it requests more time than its partition allows: lower `time_limit`, see `sinfo -o '%R %l'`",
    ),
    (
        "BadConstraints",
        "no node matches its request: check --constraint, --gres and --nodelist",
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
        "it needs a reservation that does not exist: check --reservation",
    ),
    (
        "(JobHoldMaxRequeue|RequeueExitHold|launch.failed.requeued.held)",
        "it failed to start and is held: see `scontrol show job`",
    ),
    (
        "(Assoc|QOS)Max[A-Za-z]*Per(Job|Node)[A-Za-z]*",
        "it requests more than its account or QOS allows per job",
    ),
    ("QOSMin[A-Za-z]*", "it requests less than its QOS requires"),
    (
        "(AssociationTimeLimit|QOSTimeLimit)",
        "it requests more time than its account or QOS allows",
    ),
    (
        "(Assoc|QOS)Grp[A-Za-z]*(?<!Run)Minutes(Limit)?",
        "the budget of its account or QOS is used up",
    ),
)
_NEVER_STARTS_PATTERNS = tuple(
    (compile_on_use(pattern), text) for pattern, text in _NEVER_STARTS
)


def read_sacct(output: str, submitted: Mapping[str, datetime]) -> Statuses:
    """Parse the output of sacct into job statuses, by job id.

    Expects SACCT_FIELDS with duplicates, and times in UTC. A requeued job has a row per
    start: the latest row counts, the others become restarts. `submitted` is the
    earliest possible submission of each job: older rows belong to another job, because
    Slurm reuses job ids.
    """
    rows_by_id: dict[str, list[JobStatus]] = {}
    for job_id, status in _read_rows(output, _read_sacct_status, submitted):
        rows_by_id.setdefault(job_id, []).append(status)
    statuses = {}
    for job_id, rows in rows_by_id.items():
        starts = sorted(rows, key=_find_submission)
        *earlier_starts, latest_start = starts
        statuses[job_id] = replace(
            latest_start,
            submitted=starts[0].submitted,
            restarts=len(earlier_starts),
            earlier_seconds=_list_elapsed_seconds(earlier_starts),
        )
    return statuses


def read_squeue(output: str, submitted: Mapping[str, datetime]) -> Statuses:
    """Parse the output of squeue into job statuses, by job id.

    Expects SQUEUE_FIELDS, all states, and times in UTC. `started` of a waiting job is
    its expected start.
    """
    return dict(_read_rows(output, _read_squeue_status, submitted))


def merge_statuses(accounting: JobStatus | None, queue: JobStatus | None) -> JobStatus:
    """Merge the statuses of a job from sacct and squeue; squeue must be queried later.

    slurmctld (squeue) decides, because accounting lags: it may show the failed start of
    a job that is queued again. A job that slurmctld has forgotten has ended; its phase
    is UNKNOWN if accounting does not contain its end.
    """
    if queue is None:
        if accounting is None:
            return JobStatus(Phase.UNKNOWN, "")
        # slurmctld has forgotten the job: only an end in accounting is certain
        phase = find_phase(accounting.state)
        has_ended = phase is Phase.ENDED or accounting.state == "PREEMPTED"
        return replace(accounting, phase=Phase.ENDED if has_ended else Phase.UNKNOWN)
    if accounting is None:
        return queue
    # only accounting records who cancelled a job, and the exit codes of its steps;
    # both describe the same start of the job if the states are equal
    is_same_state = accounting.state == queue.state
    derived_exit_code, cancelled_by = queue.derived_exit_code, ""
    if is_same_state:
        cancelled_by = accounting.cancelled_by
        if derived_exit_code == SUCCESS:
            derived_exit_code = accounting.derived_exit_code
    # accounting has no row yet for the start that slurmctld knows, or never gets one
    # because the job did not start
    is_behind = not is_same_state and accounting.restarts < queue.restarts
    earlier_seconds = accounting.earlier_seconds
    if is_behind:
        earlier_seconds += _list_elapsed_seconds([accounting])
    times = [status.submitted for status in (accounting, queue) if status.submitted]
    return replace(
        queue,
        derived_exit_code=derived_exit_code,
        submitted=min(times, default=None),
        cancelled_by=cancelled_by,
        restarts=max(accounting.restarts, queue.restarts),
        earlier_seconds=earlier_seconds,
    )


def expand_hosts(expression: str) -> tuple[str, ...]:
    """Expand a node list: `n[1-2,04]` becomes n1, n2, n04.

    Empty if Slurm prints that a job has no nodes. An expression that cannot be expanded
    is returned unchanged.
    """
    if not expression or expression in ("None assigned", "(null)", "None"):
        return ()
    items = [item for item in _HOST_ITEM.findall(expression) if item]
    if ",".join(items) != expression:
        return (expression,)
    hosts: list[str] = []
    for item in items:
        # `n[1-2,04]`: `n`, `[1-2,04]` and ``
        pieces = re.split(r"(\[[^\[\]]*\])", item)
        alternatives = [_expand_piece(piece) for piece in pieces]
        host_count = math.prod(map(len, alternatives))
        if not 0 < host_count <= MOST_HOSTS - len(hosts):
            return (expression,)
        hosts.extend("".join(combination) for combination in product(*alternatives))
    return tuple(hosts)


def count_gpus(gres: str) -> int:
    """Count the GPUs of a node from its gres.

    Examples: `gpu:8`, `gpu:h100:8(S:0-1),nvme:1`, `(null)`.
    """
    return sum(count for _, count in list_gpus(gres))


def list_gpus(gres: str) -> list[tuple[str, int]]:
    """Return (type, count) of the GPUs in a gres.

    The type is "" if the gres does not name it.
    """
    # `gpu`, `gpu:8`, `gpu:h100`, `gpu:h100:8(S:0-1)`
    types = re.findall(
        r"(?:^|,)gpu(?::([A-Za-z][^:,()]*))?(?::([0-9]{1,9}))?(?=[(,]|$)", gres
    )
    return [(gres_type, int(count or 1)) for gres_type, count in types]


def is_number(text: str) -> bool:
    """True if a text is a whole number as Slurm prints it."""
    return re.fullmatch(_DIGITS, text) is not None


def parse_duration(duration: str) -> float | None:
    """Parse a duration such as `10:00`, `1:00:00` or `7-00:00:00` into seconds.

    None for `infinite` and invalid texts.
    """
    match = _DURATION.fullmatch(duration)
    if not match:
        return None
    # the groups have the names of timedelta's arguments
    units = {unit: int(value) for unit, value in match.groupdict("0").items()}
    return timedelta(**units).total_seconds()


def _read_rows(
    output: str,
    read_status: Callable[[Sequence[str]], JobStatus | None],
    submitted: Mapping[str, datetime],
) -> Iterator[tuple[str, JobStatus]]:
    """Yield job id and status of each line about a job of `submitted`.

    `read_status` parses the fields of a line. If it returns None, the status is
    UNKNOWN. `submitted` contains the earliest possible submission by job id: older
    lines are skipped, because they belong to another job with the same id.
    """
    for line in output.splitlines():
        job_id, *fields = line.split("|")
        if job_id in submitted and fields:
            status = read_status(fields) or JobStatus(Phase.UNKNOWN, "")
            if _find_submission(status) >= submitted[job_id]:
                yield job_id, status


def _find_submission(status: JobStatus) -> datetime:
    """Return the submission time of a job; the latest possible time if unknown."""
    return status.submitted or datetime.max.replace(tzinfo=UTC)


def _list_elapsed_seconds(starts: Sequence[JobStatus]) -> tuple[float, ...]:
    return tuple(
        start.elapsed_seconds for start in starts if start.elapsed_seconds is not None
    )


def _read_sacct_status(fields: Sequence[str]) -> JobStatus | None:
    """Read a job status from the fields of a sacct row, None if they are invalid."""
    if len(fields) != SACCT_FIELDS.count(","):  # all fields except the job id
        return None
    state_text, exit_text, derived_text, elapsed, submitted, started, ended, nodes = (
        fields
    )
    match = _STATE.fullmatch(state_text)
    exit_code, derived_exit_code = _parse_code(exit_text), _parse_code(derived_text)
    if not match or not exit_code or not derived_exit_code:
        return None
    return JobStatus(
        phase=find_phase(match["state"]),
        state=match["state"],
        nodes=expand_hosts(nodes),
        exit_code=exit_code,
        derived_exit_code=derived_exit_code,
        elapsed_seconds=float(elapsed) if is_number(elapsed) else None,
        submitted=parse_time(submitted),
        started=parse_time(started),
        ended=parse_time(ended),
        cancelled_by=match["uid"] or "",
        seen_by="sacct",
    )


def _read_squeue_status(fields: Sequence[str]) -> JobStatus | None:
    """Read a job status from the fields of a squeue row, None if they are invalid."""
    if len(fields) < SQUEUE_FIELDS.count(","):  # all fields except the job id
        return None
    (
        state,
        exit_text,
        derived_text,
        elapsed,
        submitted,
        started,
        ended,
        nodes,
        restarts,
        reason,
        limit,
    ) = fields[:11]  # squeue prints a separator after the last field, too
    exit_code, derived_exit_code = _parse_code(exit_text), _parse_code(derived_text)
    if not exit_code or not derived_exit_code:
        return None
    # slurmctld does not report a job as PREEMPTED after it put the job back into its queue
    phase = Phase.ENDED if state == "PREEMPTED" else find_phase(state)
    return JobStatus(
        phase=phase,
        state=state,
        reason="" if reason == "None" else reason,
        nodes=expand_hosts(nodes),
        exit_code=exit_code,
        derived_exit_code=derived_exit_code,
        elapsed_seconds=parse_duration(elapsed),
        submitted=parse_time(submitted),
        started=parse_time(started),
        ended=parse_time(ended) if phase is Phase.ENDED else None,
        restarts=int(restarts) if is_number(restarts) else 0,
        seen_by="squeue",
        limit_seconds=parse_duration(limit),
    )


def _parse_code(text: str) -> str:
    """Parse an exit status into `<exit code>:<signal>`, such as `7:0`.

    sacct prints it like this, squeue as the number of wait(2): `1792` (7 x 256) is
    `7:0`. "" for invalid texts.
    """
    if is_number(text):
        return f"{int(text) >> 8}:{int(text) & 0x7F}"
    return text if re.fullmatch(f"{_DIGITS}:{_DIGITS}", text) else ""


def parse_time(text: str) -> datetime | None:
    """Parse a time as Slurm prints it, in UTC; None for any other text."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:  # Unknown, None, N/A
        return None


def _expand_piece(piece: str) -> list[str]:
    """Expand a piece of a node list: `[1-2,04]` becomes 1, 2, 04.

    A piece without brackets is returned unchanged. Empty if the brackets cannot be
    parsed.
    """
    if not piece.startswith("["):
        return [piece]
    numbers: list[str] = []
    for item in piece[1:-1].split(","):
        match = re.fullmatch(f"({_DIGITS})(?:-({_DIGITS}))?", item)
        if match is None:
            return []
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MOST_HOSTS:
            return []
        width = len(match[1])
        numbers.extend(f"{number:0{width}d}" for number in range(first, last + 1))
    return numbers


def find_phase(state: str) -> Phase:
    """Return the phase of a Slurm state; UNKNOWN for an unknown state.

    PREEMPTED and REQUEUED jobs are waiting: Slurm starts them again, unless slurmctld
    reports their end.
    """
    return _PHASES.get(state, Phase.UNKNOWN)


def explain_stuck(status: JobStatus) -> str:
    """Return the reason a waiting job can never start, with a remedy, or "".

    Reasons that others can clear are not included: resources, priority, running jobs of
    the account, nodes that are down, a job held by a user.
    """
    if status.phase is not Phase.WAITING:
        return ""
    if status.state in _HELD_STATES:
        return f"{status.state}: {_HELD_STATES[status.state]}"
    # `ReqNodeNotAvail, UnavailableNodes:n1`: only the first part names the reason
    reason = status.reason.partition(",")[0].strip()
    for pattern, explanation in _NEVER_STARTS_PATTERNS:
        if pattern.fullmatch(reason):
            return f"{reason}: {explanation}"
    return ""


def explain_unavailable(status: JobStatus, *, reserved: bool = True) -> str:
    """Return a message if a waiting job's nodes are out of service, or "".

    With `reserved`, nodes that are only reserved count as out of service. The nodes may
    become available again.
    """
    # `ReqNodeNotAvail, UnavailableNodes:n[1-2]`; reserved nodes are not listed
    word = "ReqNodeNotAvail" if reserved else "UnavailableNodes"
    if status.phase is not Phase.WAITING or word not in status.reason:
        return ""
    causes = "down, drained or reserved" if reserved else "down, drained"
    return f"{status.reason}: its nodes are {causes}"


def explain_end(status: JobStatus) -> JobEnd:
    """Explain how a job ended, and who is to blame."""
    return explain_by_state(status, "Slurm", _ENDS, refused=is_refused(status))


def is_refused(status: JobStatus) -> bool:
    """True if Slurm recorded a refused job as FAILED.

    For example --gres=gpu:9 on nodes with 8 GPUs, or more nodes than available.
    """
    if status.phase is not Phase.ENDED or status.state != "FAILED":
        return False
    # sacct lists the nodes of every job that started
    got_no_nodes = status.seen_by == "sacct" and not status.nodes
    return status.reason == "BadConstraints" or got_no_nodes


# --- the commands ---------------------------------------------------------------------


COMMENT = "llmb:"  # prefix of the token in a job's comment

# the largest expected difference between the clocks of this machine and the controller
CLOCK_MARGIN = timedelta(hours=1)

# sacct's errors, with exit code 1, without slurmdbd
_NO_ACCOUNTING = (
    "accounting storage is disabled",
    "not running a supported accounting_storage plugin",
)
_MISLEADING_VARIABLES = compile_on_use(r"(SQUEUE|SACCT|SINFO)_.*|SLURM_TIME_FORMAT")


class Partition(Struct, frozen=True):
    """A partition of the cluster."""

    name: str
    nodes: int  # up or down
    gpus: int  # the largest number of GPUs on one of its nodes
    time_limit_seconds: float | None  # of a job; None: no limit
    up: bool  # True if it accepts jobs
    is_default: bool = False  # True if jobs without a partition use it
    # (GPU type as gres names it, GPUs per node, nodes)
    gpu_nodes: tuple[tuple[str, int, int], ...] = ()


class StepStatus(NamedTuple):
    """A step of a job."""

    state: str  # as Slurm prints it
    exit_code: str  # such as `7:0`
    started: datetime


class Slurm:
    """Client for Slurm's commands on this machine.

    `timeout` is the time limit of each command in seconds. Each query covers all jobs,
    so that the number of commands does not grow with the number of jobs.
    """

    def __init__(
        self, run: Runner, environment: Mapping[str, str], timeout: float = 30.0
    ) -> None:
        """`environment` is the environment of the commands."""
        # variables such as SQUEUE_STATES would hide jobs, and SLURM_TIME_FORMAT would
        # change the format of times
        allowed = {
            name: value
            for name, value in environment.items()
            if not _MISLEADING_VARIABLES.fullmatch(name)
        }
        self._environment = {**allowed, "TZ": "UTC", "LC_ALL": "C"}
        self._run, self._timeout = run, timeout

    def poll(self, jobs: Mapping[str, datetime]) -> dict[str, JobStatus]:
        """Return the status of each job, using one sacct and one squeue.

        `jobs` maps job ids to submission times (aware). Unknown jobs have
        Phase.UNKNOWN. `started` of a waiting job is its expected start. Raises
        SchedulerAway if slurmctld does not answer, or if slurmdbd does not answer and
        slurmctld does not know all jobs.
        """
        # the earliest possible submission of each job
        earliest = {
            job_id: submitted - CLOCK_MARGIN
            for job_id, submitted in jobs.items()
            if job_id.isdecimal()
        }
        if not earliest:
            return dict.fromkeys(jobs, merge_statuses(None, None))
        # query sacct first: a job leaves squeue some 0.3 s before sacct shows its end,
        # so that in the other order it could be in neither
        accounting = self._query_accounting(earliest)
        queue = self._query_queue(earliest)
        # sacct is needed only for jobs that have left the queue
        if isinstance(accounting, SchedulerAway):
            is_job_missing = queue.keys() < earliest.keys()
            if is_job_missing:
                raise accounting
            accounting = {}
        return {
            job_id: merge_statuses(accounting.get(job_id), queue.get(job_id))
            for job_id in jobs
        }

    def cancel(self, job_ids: Sequence[str]) -> str:
        """Cancel jobs with one scancel; return the problems, or "".

        Jobs that have ended are ignored.
        """
        valid = [job_id for job_id in job_ids if job_id.isdecimal()]
        problems = [
            f"{job_id!r} is not the id of a Slurm job"
            for job_id in job_ids
            if job_id not in valid
        ]
        if valid:
            problems += self._cancel_valid(valid)
        return "; ".join(problems)

    def _cancel_valid(self, job_ids: Sequence[str]) -> list[str]:
        """Cancel jobs with one scancel; return the problems."""
        output = self._run_command("scancel", *job_ids)
        if output.code == 0:
            return []
        if not output.err.strip():
            return [f"scancel ended with {output.code}"]
        of_ended_job = ("Invalid job id specified", "already completing or completed")
        return [
            line
            for line in output.err.splitlines()
            if line.strip() and not any(text in line for text in of_ended_job)
        ]

    def find(self, tokens: Collection[str], since: datetime) -> dict[str, str]:
        """Find the caller's jobs by the token in their comment, `llmb:<token>`.

        Returns the job id by token, without tokens that no job has. Searches the queue,
        then accounting from `since` on. Without accounting, or if accounting stores no
        comments (AccountingStoreFlags=job_comment), only recent jobs are found. Raises
        LaunchError if two jobs have the same token, and SchedulerAway if Slurm does not
        answer: the job may exist.
        """
        queue = self._require_output(
            "squeue",
            "--noheader",
            "--all",
            "--me",
            "--states=all",
            "--Format=JobID:|,Comment:|",
        )
        job_ids_by_token = _read_comments(queue, tokens)
        are_all_found = set(tokens) <= job_ids_by_token.keys()
        if are_all_found:
            return _require_single_jobs(job_ids_by_token)
        output = self._run_command(
            "sacct", *_format_period(since - CLOCK_MARGIN), "--format=JobIDRaw,Comment"
        )
        if output.code == 0:
            for token, job_ids in _read_comments(output.out, tokens).items():
                job_ids_by_token.setdefault(token, set()).update(job_ids)
        elif not _is_without_accounting(output):
            raise _build_away_error("sacct", output)
        return _require_single_jobs(job_ids_by_token)

    def list_partitions(self) -> tuple[Partition, ...]:
        """List the partitions of the cluster.

        Raises SchedulerAway if Slurm does not answer.
        """
        output = self._require_output(
            "sinfo", "--noheader", "--all", "--format=%P|%a|%l|%D|%G"
        )
        partitions: dict[str, Partition] = {}
        # `batch*|up|7-00:00:00|32|gpu:h100:8`: one line for each kind of nodes of a
        # partition; `*` marks the default partition
        for line in output.splitlines():
            fields = line.split("|")
            if len(fields) != 5:
                continue
            printed_name, state, limit, node_text, gres = fields
            if not is_number(node_text):
                continue
            nodes = int(node_text)
            name = printed_name.rstrip("*")
            # the sum of the earlier lines of this partition
            before = partitions.get(name, Partition(name, 0, 0, None, False))
            gpu_nodes = [
                (gres_type, per_node, nodes) for gres_type, per_node in list_gpus(gres)
            ]
            partitions[name] = Partition(
                name=name,
                nodes=before.nodes + nodes,
                gpus=max(before.gpus, count_gpus(gres)),
                time_limit_seconds=parse_duration(limit),
                up=state == "up",
                is_default=printed_name.endswith("*"),
                gpu_nodes=(*before.gpu_nodes, *gpu_nodes),
            )
        return tuple(partitions.values())

    def find_cluster_name(self) -> str:
        """Return the name of the cluster, or "" if Slurm does not report it.

        Raises SchedulerAway if Slurm does not answer.
        """
        config = self._require_output("scontrol", "show", "config")
        match = re.search(r"^ClusterName\s*=\s*(\S+)", config, re.MULTILINE)
        return match[1] if match else ""

    def list_node_reasons(self, nodes: Collection[str]) -> dict[str, str]:
        """Return the reasons in `sinfo -R`, with user and time, by node name.

        Most nodes have none. Raises SchedulerAway.
        """
        options = (
            "--list-reasons",
            "--noheader",
            f"--nodes={','.join(nodes)}",
            "--format=%N|%u|%H|%E",
        )
        reasons = {}
        for line in self._require_output("sinfo", *options).splitlines():
            fields = [field.strip() for field in line.split("|", maxsplit=3)]
            if len(fields) != 4:
                continue
            node_list, user, time, reason = fields
            for name in expand_hosts(node_list):
                if name in nodes:
                    reasons[name] = f"{reason} ({user}, {time})"
        return reasons

    def keeps_accounts(self) -> bool:
        """True if sacct answers.

        Without accounting, Slurm does not record how each step of a job ended.
        """
        return (
            self._run_command("sacct", "-X", "--noheader", "--starttime=now").code == 0
        )

    def list_steps(self, job_id: str, since: datetime) -> tuple[StepStatus, ...]:
        """List the steps of a job that began since a time, from accounting.

        Raises SchedulerAway.
        """
        options = (
            "--parsable2",
            "--noheader",
            "--format=JobIDRaw,State,ExitCode,Start",
            f"--jobs={job_id}",
        )
        output = self._require_output("sacct", *_format_times(since), *options)
        steps = []
        for line in output.splitlines():
            fields = line.split("|")
            if len(fields) != 4:
                continue
            step_id, state, exit_code, start = fields
            # `4711.0`; not the job `4711`, nor its step `4711.batch`
            is_step = re.fullmatch(r"[0-9]+\.[0-9]+", step_id)
            started = parse_time(start)
            if is_step and started:
                # `CANCELLED by 1000`: only the state
                steps.append(StepStatus(state.partition(" ")[0], exit_code, started))
        return tuple(steps)

    def list_accounts(self) -> tuple[str, ...] | None:
        """List the accounts that the caller may use.

        None if Slurm does not require an account, or the accounts are unknown. Raises
        SchedulerAway if Slurm does not answer.
        """
        config = self._require_output("scontrol", "show", "config")
        # `AccountingStorageEnforce = associations,limits`; all of the values below
        # require an association, that is a user's account
        enforced = re.search(
            r"^AccountingStorageEnforce\s*=\s*(.*)$", config, re.MULTILINE
        )
        requires_account = enforced is not None and re.search(
            r"associations|limits|safe|qos|all", enforced[1]
        )
        if not requires_account:
            return None
        user = self._run_command("id", "-un").out.strip()
        where = ("where", f"user={user}", "format=account")
        output = self._run_command(
            "sacctmgr", "--noheader", "--parsable2", "show", "associations", *where
        )
        accounts = tuple(sorted(set(output.out.split())))
        is_known = user and output.code == 0 and accounts
        return accounts if is_known else None

    def find_default_account(self) -> str:
        """Return the caller's default account, or "" if there is none or it is unknown."""
        user = self._run_command("id", "-un").out.strip()
        where = ("where", f"name={user}", "format=defaultaccount")
        output = self._run_command(
            "sacctmgr", "--noheader", "--parsable2", "show", "user", *where
        )
        return output.out.strip() if user and output.code == 0 else ""

    def _query_accounting(
        self, jobs: Mapping[str, datetime]
    ) -> Statuses | SchedulerAway:
        """Query sacct for jobs; empty if Slurm has no accounting.

        Returns a SchedulerAway if sacct does not answer.
        """
        # without --duplicates sacct prints only the last row of a requeued job, and
        # restarts are lost; without --jobs sacct lags by seconds
        options = (
            "--duplicates",
            f"--format={SACCT_FIELDS}",
            f"--jobs={','.join(jobs)}",
        )
        output = self._run_command(
            "sacct", *_format_period(min(jobs.values())), *options
        )
        if output.code == 0:
            return read_sacct(output.out, jobs)
        if _is_without_accounting(output):
            return {}
        return _build_away_error("sacct", output)

    def _query_queue(self, jobs: Mapping[str, datetime]) -> Statuses:
        """Query squeue for jobs. Raises SchedulerAway without an answer."""
        options = (
            "--noheader",
            "--all",
            "--states=all",
            f"--Format={SQUEUE_FIELDS}",
            f"--jobs={','.join(jobs)}",
        )
        output = self._run_command("squeue", *options)
        if "Invalid job id specified" in output.err and len(jobs) == 1:
            # squeue reports an unknown job only if it is the only one in the query
            return {}
        if output.code:
            raise _build_away_error("squeue", output)
        return read_squeue(output.out, jobs)

    def _require_output(self, *command: str) -> str:
        """Run a command and return its output. Raises SchedulerAway if it fails."""
        output = self._run_command(*command)
        if output.code:
            raise _build_away_error(command[0], output)
        return output.out

    def _run_command(self, *command: str) -> CommandOutput:
        return self._run(command, timeout=self._timeout, environment=self._environment)


def _build_away_error(program: str, output: CommandOutput) -> SchedulerAway:
    """Build the error of a command that failed, or that is not installed."""
    if output.code == 127:
        return SchedulerAway(
            f"{output.err.strip()}: start pytest on a login node of the cluster, which has Slurm's commands"
        )
    message = output.err.strip() or output.out.strip() or f"it ended with {output.code}"
    return SchedulerAway(
        f"{program} does not answer: {message}; `scontrol ping` shows whether Slurm is up"
    )


def _is_without_accounting(output: CommandOutput) -> bool:
    """True if sacct is not installed, or if Slurm has no accounting."""
    printed = (output.err + output.out).lower()
    return output.code == 127 or any(text in printed for text in _NO_ACCOUNTING)


def _format_period(since: datetime) -> tuple[str, ...]:
    """Return sacct options for the jobs since a time, without their steps."""
    return "-X", "--parsable2", "--noheader", *_format_times(since)


def _format_times(since: datetime) -> tuple[str, ...]:
    """Return sacct's time options, in UTC, for a period that starts at `since`.

    sacct refuses a start after the end, which defaults to now; the clock of this
    machine may be ahead.
    """
    distant_future = since + timedelta(days=3650)
    start, end = _format_time(since), _format_time(distant_future)
    return f"--starttime={start}", f"--endtime={end}"


def _format_time(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _read_comments(output: str, tokens: Collection[str]) -> dict[str, set[str]]:
    """Return the job ids of each token, from lines of id and comment."""
    job_ids_by_token: dict[str, set[str]] = {}
    for line in output.splitlines():
        # sacct: `4711|llmb:a1b2c3`; squeue: `4711|llmb:a1b2c3|`
        job_id, _, comment = line.partition("|")
        token = comment.removesuffix("|").removeprefix(COMMENT)
        if comment.startswith(COMMENT) and token in tokens and job_id.isdecimal():
            job_ids_by_token.setdefault(token, set()).add(job_id)
    return job_ids_by_token


def _require_single_jobs(
    job_ids_by_token: Mapping[str, set[str]],
) -> dict[str, str]:
    """Return the only job of each token. Raises LaunchError if a token has several."""
    single_jobs = {}
    for token, job_ids in job_ids_by_token.items():
        if len(job_ids) > 1:
            jobs = " ".join(sorted(job_ids, key=int))
            raise LaunchError(
                f"jobs {jobs} have the same comment {COMMENT}{token}, so the right one is unknown: "
                "scancel all but one, and remove its comment (scontrol update JobId=... Comment=)"
            )
        (single_jobs[token],) = job_ids
    return single_jobs


# --- description of the cluster -------------------------------------------------------


class GpuNodes(Struct, frozen=True):
    """The nodes of a partition that have GPUs of one type."""

    partition: Partition
    gres_type: str
    gpu: str  # the type as configurations name it; "" if unknown
    per_node: int
    nodes: int

    @property
    def gpus(self) -> int:
        """The number of GPUs of all nodes."""
        return self.per_node * self.nodes


def learn_cluster(slurm: Slurm, gpu: str = "") -> LearnedCluster | None:
    """Describe the cluster from Slurm's partitions; None without GPUs.

    Uses the GPU type `gpu` if given, else the type with the most GPUs. Of several
    partitions the default one is used, else the partition with the most GPUs. Raises
    SchedulerAway if Slurm does not answer.
    """
    gpu_type = read_gpu_type(gpu) if gpu else ""
    groups: list[GpuNodes] = []
    for partition in slurm.list_partitions():
        if partition.up:
            groups += _list_gpu_nodes(partition, default_type=gpu_type)
    chosen_type = gpu_type or _find_most_common_type(groups)
    candidates = [group for group in groups if group.gpu == chosen_type]
    if not candidates:
        return None
    best = max(
        candidates,
        key=lambda group: (
            group.partition.is_default,
            group.gpus,
            group.partition.name,
        ),
    )
    return _build_learned_cluster(best, groups, slurm.find_default_account())


def _list_gpu_nodes(partition: Partition, *, default_type: str) -> list[GpuNodes]:
    """List the nodes of a partition with GPUs, by type; `default_type` if unknown."""
    return [
        GpuNodes(
            partition=partition,
            gres_type=gres_type,
            gpu=_read_type(gres_type) or default_type,
            per_node=per_node,
            nodes=nodes,
        )
        for gres_type, per_node, nodes in partition.gpu_nodes
    ]


def _read_type(gres_type: str) -> str:
    """Return `h100` for the gres type `nvidia_h100_80gb_hbm3`; "" without a gres type."""
    return read_gpu_type(re.sub("[_-]", " ", gres_type)) if gres_type else ""


def _find_most_common_type(groups: Sequence[GpuNodes]) -> str:
    """Return the GPU type with the most GPUs.

    A node may be in several partitions, so each type is counted in its largest
    partition.
    """
    gpus_by_type: Counter[str] = Counter()
    for group in groups:
        gpus_by_type[group.gpu] = max(gpus_by_type[group.gpu], group.gpus)
    return max(gpus_by_type, key=lambda gpu: (gpus_by_type[gpu], gpu), default="")


def _build_learned_cluster(
    best: GpuNodes, groups: Sequence[GpuNodes], account: str
) -> LearnedCluster:
    """Build the record of the cluster, with the source of each value."""
    partition = best.partition
    gres_types = {group.gres_type for group in groups if group.partition == partition}
    gres_without_type = f"gpu:{best.per_node}"
    gres_with_type = gres_without_type
    if best.gres_type:
        gres_with_type = f"gpu:{best.gres_type}:{best.per_node}"
    # a job must name the type only if the partition has several types
    gres = gres_without_type if len(gres_types) == 1 else gres_with_type
    nodes = count_noun(best.nodes, "node")

    gpu_source = ""
    if best.gpu:
        gpu_source = f"sinfo: gres {gres_with_type} on {nodes}"
    other_types = sorted({group.gpu for group in groups} - {best.gpu, ""})
    if other_types:
        gpu_source += f"; also available: {join_first(other_types)}"
    partition_source = "the partition with the most of these GPUs"
    if partition.is_default:
        partition_source = "the default partition"
    limit = partition.time_limit_seconds
    limit_text = "no time limit"
    if limit is not None:
        limit_text = f"at most {limit / 3600:g} h per job"
    sources = {
        "gpu": gpu_source,
        "gpus_per_node": f"sinfo: gres {gres_with_type}",
        "largest": f"sinfo: {nodes} of the partition have these GPUs",
        "partition": f"{partition_source}; {limit_text}",
        "gres": f"sinfo: {gres_with_type}",
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
    pairs = tuple((name, source) for name, source in sources.items() if source)
    return LearnedCluster("Slurm", cluster, sources=pairs)
