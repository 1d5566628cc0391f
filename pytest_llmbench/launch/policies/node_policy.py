"""Confirm suspect nodes by one more run there. No run on them changes a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_llmbench.core import formatting
from pytest_llmbench.core.job_records import Blame, JobSpec, Purpose
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.plan.job_spec import CHECK_MINUTES
from pytest_llmbench.launch.policies.run_history import (
    Conclusion,
    EndedJob,
    NextRuns,
    RunHistory,
    get_nodes,
)
from pytest_llmbench.launch.schedulers.registry import load_scheduler


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """The jobs that a launch may make on nodes that its own runs make suspect."""

    number: int = (
        1  # the repeat of both: those before are of nodes that a history names
    )
    check: JobSpec | None = None  # the site's own check of them


def next_runs(history: RunHistory, policy: NodePolicy) -> NextRuns | Conclusion:
    """Choose one more run on nodes that were slow once, and the check of all
    suspects."""
    if history.finding is None or not list_suspects(history):
        return Conclusion()
    again = history.finding.again
    may_confirm = history.finding.suspects and len(again) == history.spec.nodes
    confirmation = build_confirmation(history.run_spec, again) if may_confirm else None
    specs = filter(None, (confirmation, policy.check))
    return NextRuns(tuple(NextJob(spec, 1, policy.number) for spec in specs))


def list_suspects(history: RunHistory) -> tuple[str, ...]:
    """List the nodes that the runs of a configuration show to be slow, or suspect."""
    finding = history.finding
    return (*finding.exclude, *finding.suspects) if finding else ()


def list_doubtful(history: RunHistory) -> set[str]:
    """List the nodes that were slow, and those of jobs that the infrastructure
    ended."""
    broken = Blame.INFRASTRUCTURE
    ended = (each.job for each in history.ended if each.end.blame is broken)
    return {
        *list_suspects(history),
        *(node for job in ended for node in get_nodes(job)),
    }


def pin_nodes(spec: JobSpec, nodes: Iterable[str]) -> JobSpec:
    """Give a job exactly these nodes."""
    return load_scheduler(spec.via).pin_nodes(spec, tuple(nodes))


def build_confirmation(spec: JobSpec, nodes: Iterable[str]) -> JobSpec:
    """Build one more run of a configuration on exactly these nodes.

    It counts for no verdict: a run that is repeated until it is fast would pass.
    """
    return dataclasses.replace(pin_nodes(spec, nodes), purpose=Purpose.CONFIRM_NODES)


def describe_confirmation(ended: EndedJob, named: str) -> tuple[str, ...]:
    """Describe the end of a run on suspect nodes; `named`: the text of the history."""
    if ended.problem:
        return (named, f"not confirmed: {ended.problem.text}")
    if ended.confirmation is None:
        return ()
    follows = "not confirmed, and not left out"
    if ended.confirmation.confirmed:
        follows = "left out of what follows"
    return (named, f"{ended.confirmation.text}: {follows}")


def describe_check(ended: EndedJob, printed: str) -> str:
    """Describe the end of the site's check of nodes, and what it printed last."""
    job, end, nodes = ended.job, ended.end, get_nodes(ended.job)
    name = f" (job {job.job_id})" if job.job_id else ""
    where = f" on {formatting.fold_nodes(nodes)}" if nodes else ""
    how = end.text if end.blame is not Blame.NONE else "exit code 0"
    if job.status is not None and job.status.state == "TIMEOUT":
        how = f"it did not end within {CHECK_MINUTES} minutes"
    if job.refused and ended.problem:
        how = f"not submitted: {ended.problem.text}"
    head = f"node check{where}{name}: {how}"
    return f"{head}; it printed: {printed}" if printed else head
