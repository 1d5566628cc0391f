"""What a launch does about nodes that its runs make suspect, before anybody is told to leave them out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Run
from pytest_llmbench.core.models.jobs import Blame, Job, JobEnd, JobSpec, Purpose
from pytest_llmbench.pipeline.launch.configuration_progress import ConfigurationProgress, get_nodes, join_texts
from pytest_llmbench.pipeline.outcomes import ConfigurationResult

if TYPE_CHECKING:
    from pytest_llmbench.judge.cluster import NodeFinding
    from pytest_llmbench.launch.follow import NextJob

NODELIST = "--nodelist="

WORDS = {Purpose.CONFIRM_NODES: "confirmed", Purpose.CHECK_NODES: "checked"}


class NodeJudge(Protocol):
    """What `NodeChecks` asks about the runs of jobs that have ended."""

    def judge_nodes(
        self, result: ConfigurationResult, nodes: Mapping[str, tuple[str, ...]], confirmations: Sequence[Run] = ()
    ) -> NodeFinding:
        """Return what the runs behind a verdict tell of their nodes, which are given by run id; `confirmations` are
        runs on suspect nodes, which count for nothing else."""

    def find_driver_errors(self, job: Job, run: Run) -> str:
        """Return the last lines in which the driver of a GPU complains in the log of a run, with their numbers."""

    def read_check(self, job: Job) -> str:
        """Return the last lines that a check of nodes printed."""


class NodeChecks:
    """Plans the jobs on suspect nodes of configurations, and takes what they say. None changes a verdict."""

    def __init__(
        self,
        judge: NodeJudge,
        reserve: Callable[[Sequence[NextJob], str], bool],
        build_check: Callable[[JobSpec, Sequence[str]], JobSpec] | None,
    ) -> None:
        """Take what judges runs, whether GPU-hours are left for jobs (with what is said where not), and what makes the
        job of the site's own check of some nodes, None where there is none."""
        self._judge = judge
        self._reserve = reserve
        self._build_check = build_check

    def plan(self, progress: ConfigurationProgress) -> list[NextJob]:
        """Return one more run on nodes that were slow once, and the site's check of all that are named."""
        from pytest_llmbench.launch.follow import NextJob

        finding = progress.finding
        named = (*finding.exclude, *finding.suspects) if finding else ()
        if finding is None or not named or progress.nodes_checked:
            return []
        progress.nodes_checked = True
        confirmation = plan_confirmation(progress.spec, finding)
        check = self._build_check(progress.spec, named) if self._build_check else None
        jobs = [NextJob(spec) for spec in (confirmation, check) if spec]
        return [job for job in jobs if self._reserve([job], f"not {WORDS[job.spec.purpose]}")]

    def judge(self, progress: ConfigurationProgress) -> None:
        """Keep what all runs of a configuration that was judged tell of their nodes."""
        if progress.result is not None and progress.runs:
            progress.finding = self._judge.judge_nodes(progress.result, progress.nodes, progress.confirmations)

    def take(self, progress: ConfigurationProgress, job: Job, end: JobEnd, run: Run | None, problem: str) -> None:
        """Take a job on suspect nodes that ended; `problem` says why it has no run that could be judged."""
        if job.spec.purpose is Purpose.CHECK_NODES:
            note = _describe_check(job, end, "" if job.refused else self._judge.read_check(job))
            progress.notes = join_texts(progress.notes, note)
        elif problem or run is None:
            progress.notes = join_texts(progress.notes, f"not confirmed: {problem or 'no log'}")
        else:
            progress.confirmations.append(run)
            progress.nodes[run.id] = get_nodes(job)
            self.judge(progress)

    def add_remarks(
        self,
        configurations: Iterable[ConfigurationProgress],
        list_reasons: Callable[[Collection[str]], Mapping[str, str]],
    ) -> None:
        """Add what Slurm says of the nodes that are named, or failed, and what the drivers of their GPUs say in the
        logs of the runs there."""
        named = [(progress, _list_named(progress)) for progress in configurations]
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
    """Return one more run of a configuration on exactly the nodes of its slowest run; None where no node is suspect.

    It counts for no verdict on the configuration: one that is repeated until it is fast would be green in the end.
    """
    if not finding.suspects or len(finding.again) != spec.nodes:
        return None
    options = [option for option in spec.sbatch_options if not option.startswith(NODELIST)]
    pinned = (*options, f"{NODELIST}{','.join(finding.again)}")
    return dataclasses.replace(spec, purpose=Purpose.CONFIRM_NODES, sbatch_options=pinned)


def _list_named(progress: ConfigurationProgress) -> set[str]:
    """Return the nodes that were slow, and those of jobs that the infrastructure ended."""
    finding = progress.finding
    slow = (*finding.exclude, *finding.suspects) if finding else ()
    ends = ((get_nodes(job), end) for job, end in progress.jobs)
    return {*slow, *(node for nodes, end in ends if end.blame is Blame.INFRASTRUCTURE for node in nodes)}


def _describe_check(job: Job, end: JobEnd, printed: str) -> str:
    """Return how the site's check of nodes ended, and what it printed last."""
    from pytest_llmbench.launch.recipe.node_check import MINUTES

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
