"""The history of a configuration's runs, and the answers that a policy gives to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
    """The reason a job has no run that can be judged."""

    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The comparison of a run on nodes that the history names with that history."""

    confirmed: bool  # slow again; False also if nothing could be compared
    text: str
    step_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that ended, with all that was read of its run."""

    job: Job
    end: JobEnd
    run: Run | None = None  # None: it left no log of its own
    problem: RunProblem | None = None  # None: its run can be judged
    files: tuple[Path, ...] = ()  # besides its log
    failed_nodes: tuple[str, ...] = ()  # that its log names
    time: TrialTime | None = None  # of the run of a variant
    confirmation: Confirmation | None = None  # of a run on nodes that the history names

    @property
    def dated_run(self) -> Run | None:
        """The run with the start of its job, so that the order of repeats is
        certain."""
        started = self.job.status.started if self.job.status else None
        if self.run is None or started is None:
            return self.run
        source = f"job {self.job.job_id}"
        return dataclasses.replace(self.run, started=started, started_from=source)


def _list_by_repeat(ended: Iterable[EndedJob]) -> dict[int, EndedJob]:
    """List the last of these jobs of each repeat, in the order in which they ended."""
    last: dict[int, EndedJob] = {}
    for each in ended:
        last.pop(each.job.repeat, None)
        last[each.job.repeat] = each
    return last


@dataclass(frozen=True, slots=True)
class RunHistory:
    """All that is known of the runs of one configuration: the input of its policy."""

    spec: JobSpec  # of its runs
    asked: tuple[NextJob, ...] = ()  # the jobs that were submitted, or will be
    ended: tuple[EndedJob, ...] = ()  # in the order in which they ended
    verdict: ConfigurationResult | None = None  # on all runs; None: not judged yet
    finding: NodeFinding | None = None  # what all runs show of their nodes
    left_out: tuple[str, ...] = ()  # slow nodes that its runs avoid
    anywhere: bool = False  # the cluster has no other nodes for its repeats
    may_retry: bool = True  # False: what becomes of the last ended job is decided
    may_start: bool = True  # False: its runs were refused, and no others can start
    # the runs (repeat and attempt) that a session which only collects leaves to another
    held_back: frozenset[tuple[int, int]] = frozenset()

    @property
    def run_spec(self) -> JobSpec:
        """The job of its runs, without the slow nodes."""
        return avoid_nodes(self.spec, self.left_out)

    @property
    def own(self) -> tuple[EndedJob, ...]:
        """The ended jobs that are its runs."""
        return tuple(each for each in self.ended if self.is_policy_job(each.job.spec))

    @property
    def pending(self) -> frozenset[tuple[int, int]]:
        """The runs that have not ended: repeat and attempt."""
        return self._asked_runs - self._ended_runs

    @property
    def _asked_runs(self) -> frozenset[tuple[int, int]]:
        own = (job for job in self.asked if self.is_policy_job(job.spec))
        return frozenset((job.repeat, job.attempt) for job in own)

    @property
    def _ended_runs(self) -> frozenset[tuple[int, int]]:
        return frozenset((each.job.repeat, each.job.attempt) for each in self.own)

    @property
    def due(self) -> frozenset[tuple[int, int]]:
        """The held back runs that have not ended: a resumed session starts them."""
        return self.held_back - self._ended_runs

    @property
    def _standing(self) -> tuple[EndedJob, ...]:
        """The ended runs without those that the policy replaced by another attempt.

        An attempt that no policy asked for replaces nothing: the failure before it
        still counts. A resumed session may find such an attempt.
        """
        held_back = self.held_back & self._ended_runs
        replacing = self._asked_runs | held_back
        return tuple(
            each
            for each in self.own
            if (each.job.repeat, each.job.attempt + 1) not in replacing
        )

    @property
    def counted(self) -> dict[int, EndedJob]:
        """The last ended run of each repeat, without those that were replaced."""
        return _list_by_repeat(self._standing)

    @property
    def runs(self) -> dict[int, EndedJob]:
        """The runs that can be judged, by repeat."""
        return _list_by_repeat(each for each in self._standing if not each.problem)

    @property
    def failures(self) -> dict[int, RunProblem]:
        """The problems of the other runs, by repeat."""
        failed = _list_by_repeat(each for each in self._standing if each.problem)
        return {repeat: each.problem for repeat, each in failed.items() if each.problem}

    @property
    def confirmations(self) -> list[EndedJob]:
        """The runs on suspect nodes that can be compared."""
        purpose = Purpose.CONFIRM_NODES
        beside = (each for each in self.ended if each.job.spec.purpose is purpose)
        return [each for each in beside if each.problem is None]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that its jobs left besides their logs."""
        return tuple(path for each in self.ended for path in each.files)

    def is_made_again(self, job: Job) -> bool:
        """True if the next attempt of a run was asked for, or has ended."""
        again = (job.repeat, job.attempt + 1)
        return again in self._asked_runs | self._ended_runs

    def is_policy_job(self, spec: JobSpec) -> bool:
        """True for a job that is one of its runs."""
        return spec.purpose is self.spec.purpose

    def with_ended(self, ended: EndedJob) -> RunHistory:
        """Add a job that ended; the policy may start runs, and the job, again."""
        return dataclasses.replace(
            self,
            ended=(*self.ended, ended),
            verdict=None if self.is_policy_job(ended.job.spec) else self.verdict,
            may_retry=True,
            may_start=True,
        )

    def with_planned(self, jobs: Sequence[NextJob]) -> RunHistory:
        """Add jobs that will be submitted."""
        return dataclasses.replace(self, asked=(*self.asked, *jobs))

    def without(self, job: Job) -> RunHistory:
        """Drop a job that was asked for and not submitted."""
        asked = tuple(each for each in self.asked if each.identity != job.identity)
        return dataclasses.replace(self, asked=asked, may_retry=False, may_start=True)


@dataclass(frozen=True, slots=True)
class NextRuns:
    """The runs that follow; none while others are waited for."""

    runs: tuple[NextJob, ...] = ()
    elsewhere: bool = False  # a refused run again, on nodes that it avoided
    releases: bool = False  # no run continues in an allocation that is held


@dataclass(frozen=True, slots=True)
class NeedsVerdict:
    """The policy decides once all runs so far are judged."""


class TrialFacts(NamedTuple):
    """What the reports show of the runs of variants."""

    trials: Mapping[int, Trial]  # by the number of the run, as are the problems
    problems: Mapping[int, str]
    allocations: frozenset[int]  # those in which a run was measured


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The end of a configuration's runs: a verdict on them, or why there is none."""

    verdict: ConfigurationResult | None = None
    reason: Reason = Reason.PURPOSE_DONE  # why nothing is judged
    text: str = ""
    done: bool = False  # the runs did what they were for
    run: Run | None = None  # the one that is reported
    files: tuple[Path, ...] = ()  # what was asked for, besides files of the jobs
    lost: frozenset[int] = frozenset()  # the repeats whose run brought nothing
    names_nodes: bool = False  # runs on suspect nodes may follow
    trials: TrialFacts | None = None  # of runs of variants
    report: TrialReport | None = None
    note: str = ""


def avoid_nodes(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    """Exclude nodes from a job."""
    exclude = tuple(dict.fromkeys((*spec.exclude, *nodes)))
    return dataclasses.replace(spec, exclude=exclude)


def get_nodes(job: Job) -> tuple[str, ...]:
    """Return the nodes of a job, none before it started."""
    return job.status.nodes if job.status else ()


def join_texts(*texts: str) -> str:
    """Join the texts that are not empty."""
    return "; ".join(filter(None, texts))


def describe_hung(ended: Sequence[EndedJob]) -> str:
    """Describe the jobs that hung: their nodes, and how far they came."""
    hung = (each for each in ended if each.end.blame is Blame.HUNG)
    return join_texts(*(f"{_name_job(each.job)}: {each.end.text}" for each in hung))


def _name_job(job: Job) -> str:
    nodes = formatting.fold_nodes(get_nodes(job))
    return f"job {job.job_id} on {nodes}" if nodes else f"job {job.job_id}"


def list_nodes_by_run(ended: Sequence[EndedJob]) -> Mapping[str, tuple[str, ...]]:
    """Map the id of each run to the nodes of its job."""
    return {each.run.id: get_nodes(each.job) for each in ended if each.run}
