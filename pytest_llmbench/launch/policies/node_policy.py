"""Policy that confirms suspect nodes by one more run, which never changes a verdict."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

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


class NodePolicy(Struct, frozen=True):
    """The jobs that a launch may run on nodes that its runs make suspect."""

    # the repeat number of both jobs; lower numbers belong to suspects of the history
    number: int = 1
    check: JobSpec | None = None  # the site's node check


def next_runs(history: RunHistory, policy: NodePolicy) -> NextRuns | Conclusion:
    """Choose the confirmation run and the site's node check.

    The confirmation run repeats the configuration on the nodes of the slowest run with
    suspects. Concludes without runs if the history shows no slow or suspect nodes.
    """
    if history.finding is None or not list_suspects(history):
        return Conclusion()
    specs: list[JobSpec] = []
    nodes = history.finding.again  # of the slowest run with suspects
    # the confirmation run can be compared only if it has as many nodes as the others
    if history.finding.suspects and len(nodes) == history.spec.nodes:
        specs.append(build_confirmation(history.run_spec, nodes))
    if policy.check:
        specs.append(policy.check)
    return NextRuns(
        tuple(NextJob(spec, attempt=1, repeat=policy.number) for spec in specs)
    )


def list_suspects(history: RunHistory) -> tuple[str, ...]:
    """List the nodes that the runs of a configuration show to be slow or suspect."""
    finding = history.finding
    return (*finding.exclude, *finding.suspects) if finding else ()


def list_doubtful(history: RunHistory) -> set[str]:
    """Return the slow and suspect nodes, and the nodes of infrastructure failures."""
    nodes = set(list_suspects(history))
    for ended in history.ended:
        if ended.end.blame is Blame.INFRASTRUCTURE:
            nodes.update(get_nodes(ended.job))
    return nodes


def pin_nodes(spec: JobSpec, nodes: Iterable[str]) -> JobSpec:
    """Return a job that runs on exactly these nodes."""
    return load_scheduler(spec.via).pin_nodes(spec, tuple(nodes))


def build_confirmation(spec: JobSpec, nodes: Iterable[str]) -> JobSpec:
    """Build one more run of a configuration on exactly these nodes.

    The run counts for no verdict: repeating a run until it is fast would always pass.
    """
    return structs.replace(pin_nodes(spec, nodes), purpose=Purpose.CONFIRM_NODES)


def describe_confirmation(ended: EndedJob, evidence: str) -> tuple[str, ...]:
    """Describe the end of a run on suspect nodes by two texts: evidence and outcome.

    `evidence` is the text about these nodes from the stored history, or "". Empty if
    the run was not compared with the history.
    """
    if ended.problem:
        return (evidence, f"not confirmed: {ended.problem.text}")
    if ended.confirmation is None:
        return ()
    consequence = "not confirmed, not excluded"
    if ended.confirmation.confirmed:
        consequence = "excluded from all following jobs"
    return (evidence, f"{ended.confirmation.text}: {consequence}")


def describe_check(ended: EndedJob, printed: str) -> str:
    """Describe the end of the site's node check; `printed` is its last output."""
    job, end = ended.job, ended.end
    nodes = get_nodes(job)
    name = f" (job {job.job_id})" if job.job_id else ""
    location = f" on {formatting.fold_nodes(nodes)}" if nodes else ""
    outcome = end.text if end.blame is not Blame.NONE else "exit code 0"
    if job.status is not None and job.status.state == "TIMEOUT":
        outcome = f"it did not end within {CHECK_MINUTES} minutes"
    if job.refused and ended.problem:
        outcome = f"not submitted: {ended.problem.text}"
    summary = f"node check{location}{name}: {outcome}"
    return f"{summary}; it printed: {printed}" if printed else summary
