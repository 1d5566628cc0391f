"""Nodes that the history suspects before a launch, and the runs to confirm them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from msgspec import Struct

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
"""Maximum age of a fast run whose nodes count as sound.

The age is counted back from the newest run. Sound nodes complete the nodes of a job
that confirms a suspect.
"""


class SuspectNodes(Struct, frozen=True):
    """A node that the history suspects, or several that it cannot distinguish.

    A suspect is not excluded before a run confirms it.
    """

    case: str  # the id of the configuration whose run is to confirm them
    nodes: tuple[str, ...]
    others: tuple[str, ...]  # sound nodes that complete the job
    text: str  # the evidence of the history


def find_suspect_nodes(
    jobs: Sequence[PlannedJob],
    launch: LaunchSettings,
    settings: Settings,
    catalog: Catalog,
    tell: Callable[[str], None],
) -> tuple[SuspectNodes, ...]:
    """Find the nodes that the history suspects and that these jobs may get.

    Prints each suspect, and the error of an unreadable history, with `tell`. Returns
    only the suspects that a run may confirm; empty for a launch that is not judged.
    """
    if settings.history is None or launch.purpose is not Purpose.MEASURE:
        return ()
    # imported here, because a launch without a history needs no database
    from pytest_llmbench.history.details import has_nodes
    from pytest_llmbench.report.node_text import describe, format_suspect

    try:
        if not has_nodes(settings.history):
            return ()
        search = search_history(settings.history, catalog.last_repair)
    except HistoryError as error:
        tell(f"llmbench: {error}")
        return ()
    # why this launch may not confirm any suspect, or ""
    refusal = _explain_refusal(launch, recording=settings.record is not None)
    plans = []
    for suspect, description in zip(
        search.evidence.named, describe(search).named, strict=True
    ):
        reachable = [job.spec for job in jobs if _may_get(job.spec, suspect.nodes)]
        if not reachable:  # no job of this launch can run on the suspect
            continue
        text = f"by the history {format_suspect(description)}"
        plan = None
        reason = refusal
        if not refusal:
            plan = _plan_confirmation(reachable, suspect, search, text)
            reason = "no selected configuration that was slow there has enough other nodes known to be sound"
        consequence = f"not confirmed: {reason}"
        if plan:
            plans.append(plan)
            consequence = f"one run of {plan.case} there comes first"
        tell(
            textwrap.fill(
                f"llmbench: {text}: {consequence}",
                79,
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
        )
    return tuple(plans)


def _explain_refusal(launch: LaunchSettings, *, recording: bool) -> str:
    """Return the reason a launch may not confirm suspects, or ""."""
    if launch.submit_only:
        return "--llmb-submit-only does not wait for runs"
    if recording:
        return "a session that records baselines does not confirm nodes"
    if launch.repeats == 1:
        return "--llmb-repeats=1 allows one run of each configuration"
    return ""


def _may_get(spec: JobSpec, nodes: Sequence[str]) -> bool:
    """True if a job may run on all of `nodes`: not pinned, and no node excluded."""
    if load_scheduler(spec.via).is_pinned(spec):
        return False
    return _list_excluded(spec).isdisjoint(nodes)


def _list_excluded(spec: JobSpec) -> set[str]:
    """Return the names of the nodes that a job excludes."""
    expand = load_scheduler(spec.via).expand_nodes
    return {node for nodes in spec.exclude for node in expand(nodes)}


def _plan_confirmation(
    specs: Sequence[JobSpec], suspect: Suspect, search: NodeSearch, text: str
) -> SuspectNodes | None:
    """Plan the cheapest run that can confirm a suspect, or return None.

    Its configuration was slow on the suspect nodes, and sound nodes must complete the
    job.
    """
    slow_cases = {search.runs[name].configuration for name in suspect.slow_runs}
    candidates = [spec for spec in specs if spec.case_id in slow_cases]
    for spec in sorted(candidates, key=lambda spec: spec.gpu_hours):
        # how many sound nodes the job needs in addition to the suspect nodes
        sound_count = spec.nodes - len(suspect.nodes)
        excluded = _list_excluded(spec)
        sound = [
            node
            for node in _list_sound(spec.case_id, suspect, search)
            if node not in excluded
        ]
        if 0 <= sound_count <= len(sound):
            return SuspectNodes(
                case=spec.case_id,
                nodes=suspect.nodes,
                others=tuple(sorted(sound[:sound_count])),
                text=text,
            )
    return None


def _list_sound(case: str, suspect: Suspect, search: NodeSearch) -> list[str]:
    """List the nodes of recent fast runs of a configuration, newest run first.

    A run is fast if its step time is nearer to the usual step time than to the step
    time of runs on the suspect. Nodes of any suspect are omitted.
    """
    # how much slower than usual each run was, as a fraction, by run
    differences = search.evidence.differences or {}
    suspect_nodes = {
        node for any_suspect in search.evidence.suspects for node in any_suspect.nodes
    }
    runs = sorted(search.runs.items(), key=lambda item: item[1].started, reverse=True)
    sound: list[str] = []
    for name, run in runs:
        if run.configuration != case:
            continue
        _, newest_run = runs[0]
        is_recent = newest_run.started - run.started <= RECENT
        is_fast = differences[name] < suspect.slowness / 2
        if is_fast and is_recent:
            sound += [node for node in sorted(run.nodes) if node not in suspect_nodes]
    return list(dict.fromkeys(sound))


def restore_suspects(records: Iterable[Mapping[str, Any]]) -> tuple[SuspectNodes, ...]:
    """Restore the suspects that an earlier session recorded.

    Raises TypeError or LookupError for invalid records.
    """
    return tuple(
        SuspectNodes(
            case=str(record["case"]),
            nodes=tuple(map(str, record["nodes"])),
            others=tuple(map(str, record["others"])),
            text=str(record["text"]),
        )
        for record in records
    )


def select_suspects(
    suspects: Iterable[SuspectNodes],
    jobs: Iterable[PlannedJob],
    collected: Iterable[JobSpec] | None,
) -> tuple[SuspectNodes, ...]:
    """Select the suspects whose configuration is among `jobs`.

    `collected` are all jobs of a session that is only collected (--llmb-collect), and
    None for other sessions. Collecting starts no run, so a suspect is dropped unless
    `collected` contains its confirmation run.
    """
    cases = {job.spec.case_id for job in jobs}
    if collected is not None:
        cases &= {
            spec.case_id for spec in collected if spec.purpose is Purpose.CONFIRM_NODES
        }
    return tuple(suspect for suspect in suspects if suspect.case in cases)
