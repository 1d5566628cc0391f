"""Nodes that the history names before the first job of a launch, and the run that is to
confirm each."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.job_records import JobSpec, Purpose
from pytest_llmbench.core.node_records import NodeSearch, Suspect
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.schedulers.registry import load_scheduler
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.node_history import search_history
from pytest_llmbench.session.settings import Settings

RECENT = timedelta(days=7)
"""A node that was in a fast run so long before the newest night is sound, and fills up
the job on a suspect."""


@dataclass(frozen=True, slots=True)
class SuspectNodes:
    """A node that the history names slow, or several that nothing tells apart: suspect,
    and not left out for that."""

    case: str  # the id of the configuration that runs on them once more
    nodes: tuple[str, ...]
    others: tuple[str, ...]  # sound ones, which the job gets besides
    text: str  # what the history says


def find_suspect_nodes(
    jobs: Sequence[PlannedJob],
    launch: LaunchSettings,
    settings: Settings,
    catalog: Catalog,
    tell: Callable[[str], None],
) -> tuple[SuspectNodes, ...]:
    """Return the nodes that the history names and these jobs may get, each with what
    confirms it; where a launch may not, that is only told. None for what is not
    judged."""
    if settings.history is None or launch.purpose is not Purpose.MEASURE:
        return ()
    # A launch without a history opens no database.
    from pytest_llmbench.history.details import has_nodes
    from pytest_llmbench.report.node_text import describe, format_suspect

    try:
        if not has_nodes(settings.history):
            return ()
        search = search_history(settings.history, catalog.last_repair)
    except HistoryError as error:
        tell(f"llmbench: {error}")
        return ()
    forbidden = _explain_forbidden(launch, recording=settings.record is not None)
    named = []
    for suspect, described in zip(
        search.evidence.named, describe(search).named, strict=True
    ):
        reached = [job.spec for job in jobs if _may_get(job.spec, suspect.nodes)]
        if not reached:
            continue
        text = f"by the history {format_suspect(described)}"
        plan = None if forbidden else _plan_named(reached, suspect, search, text)
        why = (
            forbidden
            or "no selected configuration that was slow there has enough other nodes that are known sound"
        )
        follows = (
            f"one run of {plan.case} there comes first"
            if plan
            else f"not confirmed: {why}"
        )
        tell(
            textwrap.fill(
                f"llmbench: {text}: {follows}",
                79,
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
        )
        named += [plan] if plan else []
    return tuple(named)


def _explain_forbidden(launch: LaunchSettings, *, recording: bool) -> str:
    """Return why a launch may not make runs for it; empty where it may."""
    if launch.submit_only:
        return "nothing follows from jobs that are only submitted"
    if recording:
        return "a session that records makes no such run"
    return (
        "--llmb-repeats=1 allows one run of each configuration"
        if launch.repeats == 1
        else ""
    )


def _may_get(spec: JobSpec, nodes: Sequence[str]) -> bool:
    """Whether a job may get all of these nodes: none is left out, and it is pinned to
    no others."""
    return not load_scheduler(spec.via).is_pinned(spec) and _list_excluded(
        spec
    ).isdisjoint(nodes)


def _list_excluded(spec: JobSpec) -> set[str]:
    expand = load_scheduler(spec.via).expand_nodes
    return {node for nodes in spec.exclude for node in expand(nodes)}


def _plan_named(
    specs: Sequence[JobSpec], suspect: Suspect, search: NodeSearch, text: str
) -> SuspectNodes | None:
    """Return the cheapest of the jobs whose configuration was slow with a node and that
    sound nodes can fill up."""
    slow = {search.runs[name].configuration for name in suspect.slow_runs}
    for spec in sorted(
        (spec for spec in specs if spec.case_id in slow),
        key=lambda spec: spec.gpu_hours,
    ):
        more, excluded = spec.nodes - len(suspect.nodes), _list_excluded(spec)
        sound = [
            node
            for node in _list_sound(spec.case_id, suspect, search)
            if node not in excluded
        ]
        if 0 <= more <= len(sound):
            return SuspectNodes(
                spec.case_id, suspect.nodes, tuple(sorted(sound[:more])), text
            )
    return None


def _list_sound(case: str, suspect: Suspect, search: NodeSearch) -> list[str]:
    """Return the nodes of the last fast runs of a configuration, those of the newest
    run first."""
    differences = search.evidence.differences or {}
    doubtful = {node for other in search.evidence.suspects for node in other.nodes}
    runs = sorted(search.runs.items(), key=lambda item: item[1].started, reverse=True)
    fast = (
        run
        for name, run in runs
        if run.configuration == case
        and differences[name] < suspect.slowness / 2
        and runs[0][1].started - run.started <= RECENT
    )
    return list(
        dict.fromkeys(
            node for run in fast for node in sorted(run.nodes) if node not in doubtful
        )
    )


def restore_suspects(noted: Iterable[Mapping[str, Any]]) -> tuple[SuspectNodes, ...]:
    """Return what a session noted; TypeError or LookupError for what none did."""
    lists = (
        (str(each["case"]), each["nodes"], each["others"], str(each["text"]))
        for each in noted
    )
    return tuple(
        SuspectNodes(case, tuple(map(str, nodes)), tuple(map(str, others)), text)
        for case, nodes, others, text in lists
    )


def select_suspects(
    named: Iterable[SuspectNodes],
    jobs: Iterable[PlannedJob],
    made: Iterable[JobSpec] | None,
) -> tuple[SuspectNodes, ...]:
    """Return those whose configuration is among these jobs; `made` are all jobs of a
    session that is only collected, which gets no run on named nodes that is not among
    them."""
    cases = {job.spec.case_id for job in jobs}
    if made is not None:
        cases &= {
            spec.case_id for spec in made if spec.purpose is Purpose.CONFIRM_NODES
        }
    return tuple(each for each in named if each.case in cases)
