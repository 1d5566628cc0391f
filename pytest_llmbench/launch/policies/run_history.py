"""The run history of a configuration, and the possible answers of a policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, structs

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.job_records import Blame, Job, JobEnd, JobSpec, Purpose
from pytest_llmbench.core.outcome_records import ConfigurationResult
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.core.trial_records import TrialTime
from pytest_llmbench.launch.jobs.job_engine import NextJob

if TYPE_CHECKING:
    from pytest_llmbench.core.statements import NodeFinding
    from pytest_llmbench.core.trial_records import Trial, TrialReport


class RunProblem(NamedTuple):
    """The reason the run of a job cannot be judged."""

    reason: Reason
    text: str


class Confirmation(Struct, frozen=True):
    """The comparison of a run on suspect nodes with the history."""

    confirmed: bool  # True if slow again; False also if a comparison was impossible
    text: str
    step_seconds: float | None = None


class EndedJob(Struct, frozen=True):
    """A job that ended, with its run as read from its log."""

    job: Job
    end: JobEnd
    run: Run | None = None  # None: it left no log
    problem: RunProblem | None = None  # None: its run can be judged
    files: tuple[Path, ...] = ()  # output files in addition to its log
    failed_nodes: tuple[str, ...] = ()  # named in its log
    time: TrialTime | None = None  # the step time of a variant's run
    confirmation: Confirmation | None = None  # of a run on suspect nodes

    @property
    def dated_run(self) -> Run | None:
        """The run with the start time of its job, so that repeats can be ordered."""
        started = self.job.status.started if self.job.status else None
        if self.run is None or started is None:
            return self.run
        source = f"job {self.job.job_id}"
        return structs.replace(self.run, started=started, started_from=source)


def _map_last_by_repeat(ended: Iterable[EndedJob]) -> dict[int, EndedJob]:
    """Map each repeat to its last job, in the order in which the jobs ended."""
    last_by_repeat: dict[int, EndedJob] = {}
    for ended_job in ended:
        repeat = ended_job.job.repeat
        last_by_repeat.pop(repeat, None)  # moves the repeat to the end
        last_by_repeat[repeat] = ended_job
    return last_by_repeat


class RunHistory(Struct, frozen=True):
    """The state of all runs of one configuration: the input of its policy."""

    spec: JobSpec  # of its runs
    planned: tuple[NextJob, ...] = ()  # jobs that were submitted or will be
    ended: tuple[EndedJob, ...] = ()  # in the order in which they ended
    verdict: ConfigurationResult | None = None  # on all runs; None: not judged yet
    finding: NodeFinding | None = None  # slow and suspect nodes, from all runs
    excluded: tuple[str, ...] = ()  # slow nodes that its runs avoid
    # True if repeats may reuse nodes: the cluster has no others
    any_nodes: bool = False
    may_retry: bool = True  # False: the last ended job was handled already
    may_start: bool = True  # False: its runs were refused, so no more can start
    # the due runs (repeat, attempt) of a session that only collects (--llmb-collect):
    # it starts no runs, but a resumed session starts them
    held_back: frozenset[tuple[int, int]] = frozenset()

    @property
    def run_spec(self) -> JobSpec:
        """The specification of the configuration's runs, with slow nodes excluded."""
        return avoid_nodes(self.spec, self.excluded)

    @property
    def policy_jobs(self) -> tuple[EndedJob, ...]:
        """The ended jobs that are runs of this policy."""
        return tuple(
            ended_job
            for ended_job in self.ended
            if self.is_policy_job(ended_job.job.spec)
        )

    @property
    def pending(self) -> frozenset[tuple[int, int]]:
        """The runs (repeat, attempt) that have not ended."""
        return self._planned_runs - self._ended_runs

    @property
    def _planned_runs(self) -> frozenset[tuple[int, int]]:
        """The runs (repeat, attempt) that were submitted or will be."""
        jobs = (job for job in self.planned if self.is_policy_job(job.spec))
        return frozenset((job.repeat, job.attempt) for job in jobs)

    @property
    def _ended_runs(self) -> frozenset[tuple[int, int]]:
        """The runs (repeat, attempt) that have ended."""
        return frozenset(
            (ended_job.job.repeat, ended_job.job.attempt)
            for ended_job in self.policy_jobs
        )

    @property
    def due(self) -> frozenset[tuple[int, int]]:
        """The runs (repeat, attempt) in `held_back` that have not ended.

        A session that only collects leaves them to a resumed session.
        """
        return self.held_back - self._ended_runs

    @property
    def _effective_runs(self) -> tuple[EndedJob, ...]:
        """The ended runs that no later attempt replaces.

        Attempt 2 of a repeat replaces attempt 1 if it was planned, or if it was held
        back and has ended since. Any other attempt replaces no run: a resumed session
        may find one that was never planned, and the failure before it still counts.
        """
        ended_held_back = self.held_back & self._ended_runs
        replacements = self._planned_runs | ended_held_back
        effective = []
        for ended_job in self.policy_jobs:
            job = ended_job.job
            next_attempt = (job.repeat, job.attempt + 1)
            if next_attempt not in replacements:
                effective.append(ended_job)
        return tuple(effective)

    @property
    def counted(self) -> dict[int, EndedJob]:
        """The last ended run of each repeat, except replaced runs."""
        return _map_last_by_repeat(self._effective_runs)

    @property
    def runs(self) -> dict[int, EndedJob]:
        """The runs that can be judged, by repeat."""
        return _map_last_by_repeat(
            ended_job for ended_job in self._effective_runs if not ended_job.problem
        )

    @property
    def failures(self) -> dict[int, RunProblem]:
        """The problems of the runs that cannot be judged, by repeat."""
        failed = _map_last_by_repeat(
            ended_job for ended_job in self._effective_runs if ended_job.problem
        )
        return {
            repeat: ended_job.problem
            for repeat, ended_job in failed.items()
            if ended_job.problem  # always true; for the type checker
        }

    @property
    def confirmations(self) -> list[EndedJob]:
        """The runs on suspect nodes that can be compared."""
        return [
            ended_job
            for ended_job in self.ended
            if ended_job.job.spec.purpose is Purpose.CONFIRM_NODES
            and ended_job.problem is None
        ]

    @property
    def files(self) -> tuple[Path, ...]:
        """The output files of the ended jobs, in addition to their logs."""
        return tuple(path for ended_job in self.ended for path in ended_job.files)

    def has_next_attempt(self, job: Job) -> bool:
        """True if the next attempt of a run is planned or has ended."""
        next_attempt = (job.repeat, job.attempt + 1)
        return next_attempt in self._planned_runs | self._ended_runs

    def is_policy_job(self, spec: JobSpec) -> bool:
        """True if a job is one of the runs of this policy."""
        return spec.purpose is self.spec.purpose

    def with_ended(self, ended: EndedJob) -> RunHistory:
        """Add a job that ended.

        A new run of the policy invalidates the verdict. Every ended job allows the
        policy again to start and retry runs.
        """
        return structs.replace(
            self,
            ended=(*self.ended, ended),
            verdict=None if self.is_policy_job(ended.job.spec) else self.verdict,
            may_retry=True,
            may_start=True,
        )

    def with_planned(self, jobs: Sequence[NextJob]) -> RunHistory:
        """Add jobs that will be submitted."""
        return structs.replace(self, planned=(*self.planned, *jobs))

    def without(self, job: Job) -> RunHistory:
        """Remove a planned job that was not submitted.

        The policy may not retry the job that ended last, but it may start others.
        """
        planned = tuple(
            planned_job
            for planned_job in self.planned
            if planned_job.identity != job.identity
        )
        return structs.replace(self, planned=planned, may_retry=False, may_start=True)


class NextRuns(Struct, frozen=True):
    """The next runs; empty while other runs are pending."""

    runs: tuple[NextJob, ...] = ()
    # True if a refused run is retried on nodes that it avoided
    on_excluded_nodes: bool = False
    releases: bool = False  # True if the current allocation is no longer needed


class NeedsVerdict(Struct, frozen=True):
    """A request to judge all runs so far before the policy decides."""


class TrialFacts(NamedTuple):
    """The trials of an A/B or a search, for reports."""

    trials: Mapping[int, Trial]  # by run number
    problems: Mapping[int, str]  # by run number
    allocations: frozenset[int]  # numbers of the allocations with a measured run


class Conclusion(Struct, frozen=True):
    """The end of a configuration's runs: their verdict, or the reason there is none."""

    verdict: ConfigurationResult | None = None
    reason: Reason = Reason.PURPOSE_DONE  # used if there is no verdict
    text: str = ""
    done: bool = False  # True if the runs served their purpose
    run: Run | None = None  # the run to report
    files: tuple[Path, ...] = ()  # requested files in addition to those of the jobs
    lost: frozenset[int] = frozenset()  # the repeats without a usable run
    names_nodes: bool = False  # True if runs on suspect nodes may follow
    trials: TrialFacts | None = None  # of an A/B or a search
    report: TrialReport | None = None
    note: str = ""


def avoid_nodes(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    """Return a job that excludes more nodes."""
    exclude = tuple(dict.fromkeys((*spec.exclude, *nodes)))
    return structs.replace(spec, exclude=exclude)


def get_nodes(job: Job) -> tuple[str, ...]:
    """Return the nodes of a job; empty before it started."""
    return job.status.nodes if job.status else ()


def describe_hung(ended: Sequence[EndedJob]) -> str:
    """Describe the jobs that hung, with their nodes and progress."""
    descriptions = [
        f"{_name_job(ended_job.job)}: {ended_job.end.text}"
        for ended_job in ended
        if ended_job.end.blame is Blame.HUNG
    ]
    return formatting.join_clauses(*descriptions)


def _name_job(job: Job) -> str:
    """Name a job with its nodes: `job 4711 on n[1-4]`."""
    nodes = formatting.fold_nodes(get_nodes(job))
    return f"job {job.job_id} on {nodes}" if nodes else f"job {job.job_id}"


def list_nodes_by_run(ended: Sequence[EndedJob]) -> Mapping[str, tuple[str, ...]]:
    """Map the id of each run that left a log to the nodes of its job."""
    return {
        ended_job.run.id: get_nodes(ended_job.job)
        for ended_job in ended
        if ended_job.run
    }
