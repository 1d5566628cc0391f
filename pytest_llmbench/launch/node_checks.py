"""What a launch does about nodes that its runs make suspect, before anybody is told to leave them out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pytest_llmbench.core import formatting
from pytest_llmbench.core.job_records import Blame, Job, JobEnd, JobIdentity, JobSpec, Purpose
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.launch.configuration_progress import ConfigurationProgress, get_nodes, join_texts
from pytest_llmbench.launch.named_nodes import NamedNodes, build_confirmation
from pytest_llmbench.session.outcomes import ConfigurationResult

if TYPE_CHECKING:
    from pytest_llmbench.judge.cluster import NodeFinding
    from pytest_llmbench.launch.jobs.engine import NextJob

WORDS = {Purpose.CONFIRM_NODES: "confirmed", Purpose.CHECK_NODES: "checked"}


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What a run on nodes that the history names says of them."""

    confirmed: bool  # slow again; False also where nothing could be compared
    text: str
    step_seconds: float | None = None


class NodeJudge(Protocol):
    """What `NodeChecks` asks about the runs of jobs that have ended."""

    def judge_nodes(
        self,
        result: ConfigurationResult,
        nodes: Mapping[str, tuple[str, ...]],
        confirmations: Sequence[Run] = (),
        named: Collection[str] = (),
    ) -> NodeFinding:
        """Return what the runs behind a verdict tell of their nodes, which are given by run id; `confirmations` are
        runs on suspect nodes, which count for nothing else, `named` nodes that the history and such a run show."""

    def judge_named(self, job: Job, run: Run, nodes: Sequence[str]) -> Confirmation:
        """Return what the history says with a run on these nodes, which it names."""

    def find_driver_errors(self, job: Job, run: Run) -> str:
        """Return the last lines in which the driver of a GPU complains in the log of a run, with their numbers."""

    def read_check(self, job: Job) -> str:
        """Return the last lines that a check of nodes printed."""


class NodeChecks:
    """Plans the jobs on suspect nodes of configurations, and takes what they say. None changes a verdict."""

    def __init__(
        self,
        configurations: Mapping[str, ConfigurationProgress],
        judge: NodeJudge,
        reserve: Callable[[Sequence[NextJob], str], bool],
        build_check: Callable[[JobSpec, Sequence[str]], JobSpec] | None,
        named: Sequence[NamedNodes],
    ) -> None:
        """Take the configurations by id, what judges runs, whether GPU-hours are left for jobs (with what is said where
        not), what makes the job of the site's own check of some nodes, None where there is none, and the nodes that
        the history names."""
        from pytest_llmbench.launch.jobs.engine import NextJob

        self._configurations = configurations
        self._judge = judge
        self._reserve = reserve
        self._build_check = build_check
        self._awaited: dict[JobIdentity, tuple[NextJob, NamedNodes]] = {}
        for number, each in enumerate(named, 1):
            spec = build_confirmation(configurations[each.case].spec, (*each.nodes, *each.others))
            job = NextJob(spec, 1, number)
            self._awaited[job.identity] = job, each
        self._repeat = len(named) + 1  # of a run on nodes that this launch itself makes suspect
        self._confirmed: tuple[str, ...] = ()
        self._begun = False

    def begin(self) -> list[NextJob]:
        """Return what starts before all else: a run on each node that the history names, and where none is awaited, or
        any more, the first job of each configuration, once."""
        if not self._begun:
            for identity, (job, named) in list(self._awaited.items()):
                if not self._reserve([job], f"{named.text}; not confirmed"):
                    del self._awaited[identity]
        return [job for job, _ in self._awaited.values()] or self._begin_configurations()

    def _begin_configurations(self) -> list[NextJob]:
        """Return the first job of each configuration, without the nodes that were confirmed."""
        from pytest_llmbench.launch.jobs.engine import NextJob

        if self._begun:
            return []
        self._begun = True
        for progress in self._configurations.values():
            progress.planned_exclude = progress.spec.exclude
            progress.spec = avoid_nodes(progress.spec, self._confirmed)
        return [NextJob(progress.spec) for progress in self._configurations.values()]

    def give_back(self, progress: ConfigurationProgress) -> None:
        """Let a configuration have the nodes that were confirmed, since there are too few without them."""
        if progress.planned_exclude != progress.spec.exclude:
            progress.spec = dataclasses.replace(progress.spec, exclude=progress.planned_exclude)
            nodes = formatting.fold_nodes(self._confirmed)
            progress.notes = join_texts(progress.notes, f"{nodes} not left out here: there are too few others")

    def plan(self, progress: ConfigurationProgress) -> list[NextJob]:
        """Return one more run on nodes that were slow once, and the site's check of all that are named."""
        from pytest_llmbench.launch.jobs.engine import NextJob

        finding = progress.finding
        named = (*finding.exclude, *finding.suspects) if finding else ()
        if finding is None or not named or progress.nodes_checked:
            return []
        progress.nodes_checked = True
        confirmation = plan_confirmation(progress.spec, finding)
        check = self._build_check(progress.spec, named) if self._build_check else None
        jobs = [NextJob(spec, 1, self._repeat) for spec in (confirmation, check) if spec]
        return [job for job in jobs if self._reserve([job], f"not {WORDS[job.spec.purpose]}")]

    def judge(self, progress: ConfigurationProgress) -> None:
        """Keep what all runs of a configuration that was judged tell of their nodes."""
        if progress.result is not None and progress.runs:
            judged = progress.result, progress.nodes, progress.confirmations
            progress.finding = self._judge.judge_nodes(*judged, self._confirmed)

    def take(
        self, progress: ConfigurationProgress, job: Job, end: JobEnd, run: Run | None, problem: str
    ) -> list[NextJob]:
        """Take a job on suspect nodes that ended, and return what waited for it; `problem` says why it has no run that
        could be judged."""
        awaited = self._awaited.pop(job.identity, None)
        named = awaited[1] if awaited else None
        if job.spec.purpose is Purpose.CHECK_NODES:
            note = _describe_check(job, end, "" if job.refused else self._judge.read_check(job))
            progress.notes = join_texts(progress.notes, note)
        elif problem or run is None:
            text = f"not confirmed: {problem or 'no log'}"
            progress.notes = join_texts(progress.notes, named.text if named else "", text)
        else:
            progress.confirmations.append(run)
            progress.nodes[run.id] = get_nodes(job)
            if named is not None:
                self._take_named(progress, job, run, named)
            self.judge(progress)
        return self._begin_configurations() if named and not self._awaited else []

    def _take_named(self, progress: ConfigurationProgress, job: Job, run: Run, named: NamedNodes) -> None:
        """Leave nodes out of what follows where they were slow again, and say so either way."""
        confirmation = self._judge.judge_named(job, run, named.nodes)
        follows = "left out of what follows" if confirmation.confirmed else "not confirmed, and not left out"
        progress.notes = join_texts(progress.notes, named.text, f"{confirmation.text}: {follows}")
        progress.confirmed_seconds[job.job_id] = confirmation.step_seconds
        if confirmation.confirmed:
            self._confirmed += named.nodes

    def add_remarks(self, list_reasons: Callable[[Collection[str]], Mapping[str, str]]) -> None:
        """Add what Slurm says of the nodes that are named, or failed, and what the drivers of their GPUs say in the
        logs of the runs there."""
        named = [(progress, _list_named(progress)) for progress in self._configurations.values()]
        every = sorted({node for _, nodes in named for node in nodes})
        reasons = list_reasons(every) if every else {}
        for progress, nodes in named:
            texts = [
                f"sinfo -R: {node}: {formatting.escape(reasons[node])}" for node in sorted(nodes) if node in reasons
            ]
            runs = {run.found.job_id: run for run in (*progress.runs.values(), *progress.confirmations)}
            there = [job for job, _ in progress.jobs if job.job_id in runs and not nodes.isdisjoint(get_nodes(job))]
            errors = (self._judge.find_driver_errors(job, runs[job.job_id]) for job in there)
            progress.notes = join_texts(progress.notes, *texts, *errors)


def plan_confirmation(spec: JobSpec, finding: NodeFinding) -> JobSpec | None:
    """Return one more run of a configuration on exactly the nodes of its slowest run; None where no node is suspect."""
    suspect = finding.suspects and len(finding.again) == spec.nodes
    return build_confirmation(spec, finding.again) if suspect else None


def avoid_nodes(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    """Return a job that gets none of these nodes."""
    return dataclasses.replace(spec, exclude=tuple(dict.fromkeys((*spec.exclude, *nodes))))


def _list_named(progress: ConfigurationProgress) -> set[str]:
    """Return the nodes that were slow, and those of jobs that the infrastructure ended."""
    finding = progress.finding
    slow = (*finding.exclude, *finding.suspects) if finding else ()
    ends = ((get_nodes(job), end) for job, end in progress.jobs)
    return {*slow, *(node for nodes, end in ends if end.blame is Blame.INFRASTRUCTURE for node in nodes)}


def _describe_check(job: Job, end: JobEnd, printed: str) -> str:
    """Return how the site's check of nodes ended, and what it printed last."""
    from pytest_llmbench.launch.plan.node_check import MINUTES

    nodes = get_nodes(job)
    name = f" (job {job.job_id})" if job.job_id else ""
    where = f" on {formatting.fold_nodes(nodes)}" if nodes else ""
    ended = end.text if end.blame is not Blame.NONE else "exit code 0"
    if job.status is not None and job.status.state == "TIMEOUT":
        ended = f"it did not end within {MINUTES} minutes"
    if job.refused:
        ended = f"not submitted: {job.problem.replace(f'{job.spec.case_id}: ', '', 1)}"
    head = f"node check{where}{name}: {ended}"
    return f"{head}; it printed: {printed}" if printed else head
