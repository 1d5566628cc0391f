"""Slurm, asked by its own commands: what became of jobs, what the cluster has; and told
to cancel."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pytest_llmbench.core.commands import CommandOutput, Runner
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import JobStatus
from pytest_llmbench.launch.schedulers.slurm.statuses import (
    SACCT_FIELDS,
    SQUEUE_FIELDS,
    Statuses,
    count_gpus,
    expand_hosts,
    is_number,
    list_gpus,
    merge_statuses,
    parse_duration,
    parse_time,
    read_sacct,
    read_squeue,
)
from pytest_llmbench.launch.schedulers.submission import SchedulerAway

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
