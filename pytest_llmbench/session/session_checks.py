"""Checks on several configurations and on the gate itself.

A check needs a kind (`CheckKind`), a row in CHECKS and a file in `suite/`. Its fixture,
its position among the items and its mark are derived from these.
"""

# Every session with a fixture of a check imports this module, so imports that need numpy
# are inside the functions.
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import JUDGED, Verdict
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.judgement_records import Judgement, LevelChange
from pytest_llmbench.core.node_records import NodeAnswer, NodeSearch
from pytest_llmbench.core.outcome_records import (
    Check,
    CheckKind,
    ComparedConfiguration,
    Finding,
    Status,
)
from pytest_llmbench.core.run_records import Acknowledgement

if TYPE_CHECKING:
    from pytest_llmbench.core.configuration_comparisons import (
        ComparisonRow,
        ConfigurationComparison,
    )
    from pytest_llmbench.core.outcome_records import ConfigurationResult
    from pytest_llmbench.session.catalog import Catalog
    from pytest_llmbench.session.outcomes import JudgedConfigurations
    from pytest_llmbench.session.settings import Settings

FAILS = 0.01
"""The smallest unacknowledged slowdown that fails, as a fraction.

Smaller changes are only reported, unless they add up to this.
"""


def make_checks(
    judged: JudgedConfigurations, settings: Settings, catalog: Catalog
) -> Iterator[Check]:
    """Yield the items of all checks, in the order of CHECKS."""
    for make, _ in CHECKS.values():
        yield from (
            replace(check, timed=settings.timed)
            for check in make(judged, settings, catalog)
        )


# --- several configurations -----------------------------------------------------------


def check_cluster(
    judged: JudgedConfigurations, settings: Settings, _: Catalog
) -> Iterator[Check]:
    """Yield an item for the shift that most configurations share.

    Each regressed configuration also fails in its own item.
    """
    shift = judged.shift
    if shift is None:
        return
    from pytest_llmbench.report.wording import phrase

    slower = shift.shift > 0
    yield Check(
        kind=CheckKind.CLUSTER_CHANGE,
        id="slower" if slower else "faster",
        status=Status.FAILED
        if slower and settings.scaling == "fail"
        else Status.PASSED,
        verdict=Finding.SLOWER if slower else Finding.FASTER,
        text=phrase(shift),
        lines=(f"  {formatting.join_first([key.id for key in shift.configurations])}",),
        decides=settings.scaling == "fail",
        about=shift.configurations,
    )


def check_weak_scaling(
    judged: JudgedConfigurations, settings: Settings, catalog: Catalog
) -> Iterator[Check]:
    """Yield the efficiency of each family with at least two judged members.

    It fails only with --llmb-scaling=fail.
    """
    from pytest_llmbench.judge.configuration_pairs import compare_weak_scaling
    from pytest_llmbench.runs.measure.run_metrics import group_families

    families = group_families(catalog.configurations)
    yield from _make_comparison_checks(
        compare_weak_scaling(families, judged.judgements), settings
    )


def check_speed_up(
    judged: JudgedConfigurations, settings: Settings, catalog: Catalog
) -> Iterator[Check]:
    """Yield the FP8 speed-up of each pair whose members were both judged.

    It fails only with --llmb-scaling=fail.
    """
    from pytest_llmbench.judge.configuration_pairs import compare_speed_ups
    from pytest_llmbench.runs.measure.run_metrics import find_pairs

    pairs = find_pairs(catalog.configurations)
    yield from _make_comparison_checks(
        compare_speed_ups(pairs, judged.judgements), settings
    )


def _make_comparison_checks(
    comparisons: Iterable[ConfigurationComparison], settings: Settings
) -> Iterator[Check]:
    """Yield a check for each comparison that has a verdict."""
    from pytest_llmbench.report.wording import phrase_scaling

    decides = settings.scaling == "fail"
    for comparison in comparisons:
        if comparison.verdict is Verdict.MISSING:
            continue
        yield Check(
            kind=comparison.kind,
            id=comparison.id,
            status=Status.FAILED
            if decides and comparison.verdict is Verdict.REGRESSION
            else Status.PASSED,
            verdict=comparison.verdict,
            text=phrase_scaling(comparison),
            lines=tuple(map(_format_row, comparison.rows)),
            decides=decides,
            members=comparison.members,
            about=comparison.members,
            compared=tuple(
                ComparedConfiguration(
                    row.key,
                    row.reference,
                    row.baseline,
                    row.measured,
                    row.documented,
                    row.verdict,
                )
                for row in comparison.rows
            ),
        )


def _format_row(row: ComparisonRow) -> str:
    """Format one configuration of a comparison.

    The line contains the measured and the documented value, and their difference with
    its interval.
    """
    name = f"{row.key.dtype} on {row.key.gpus} GPUs"
    low, high = (
        formatting.format_difference(1 + bound) for bound in (row.low, row.high)
    )
    interval = f"{formatting.format_fraction(row.difference)} ({low} to {high})"
    return f"  {name:<18} {row.measured:6.3f}, {row.baseline} {row.documented:6.3f}: {interval:<27} {row.verdict}"


# --- changes over the daily runs ------------------------------------------------------


def check_trends(
    judged: JudgedConfigurations, settings: Settings, catalog: Catalog
) -> Iterator[Check]:
    """Yield an item for each configuration with a persisting change or on its bound.

    It fails only if `settings.trend` is "fail", for slowdowns that are not
    acknowledged, or no longer, and that are at least FAILS in total.
    """
    for result, _ in judged.newest.values():
        persisting = [change for change in result.judgement.changes if change.stands]
        if persisting:
            yield _make_trend_check(result, persisting, settings, catalog.acknowledged)
        elif result.judgement.on_bound:
            text = _describe_flips(result.judgement)
            yield Check(
                CheckKind.TREND,
                result.case.key.id,
                Status.PASSED,
                verdict=Finding.ON_BOUND,
                text=text,
            )


def _describe_flips(judgement: Judgement) -> str:
    """Return `is on its bound (7.691 s): 5 of the last 10 days passed`, or ""."""
    flips = judgement.on_bound
    if flips is None:
        return ""
    bound = formatting.format_seconds(judgement.bound_seconds)
    return f"is on its bound ({bound}): {flips.passed} of the last {flips.runs} days passed"


def _make_trend_check(
    result: ConfigurationResult,
    persisting: Sequence[LevelChange],
    settings: Settings,
    acknowledged: Sequence[Acknowledgement],
) -> Check:
    """Build the check of the level changes that persist.

    It fails if --llmb-trend=fail is set and a slowdown is not accepted. Its verdict is
    SLOWER for such a slowdown, else ACKNOWLEDGED if a change was accepted, else the
    direction of the last change.
    """
    from pytest_llmbench.report.wording import phrase

    slowdown_text = _describe_unaccepted_slowdowns(persisting)
    accepted_changes = [
        change for change in persisting if change.acknowledged is not None
    ]
    if slowdown_text:
        verdict, change_text = Finding.SLOWER, slowdown_text
    elif accepted_changes:
        verdict, change_text = Finding.ACKNOWLEDGED, phrase(accepted_changes[-1])
    else:
        last = persisting[-1]
        verdict = Finding.SLOWER if last.difference > 0 else Finding.FASTER
        change_text = phrase(last)
    may_fail = settings.trend == "fail"
    is_failed = may_fail and bool(slowdown_text)
    changes = result.judgement.changes
    change_lines = (
        [f"  {phrase(change)}" for change in changes] if len(changes) > 1 else []
    )
    advice = (
        _advise_acknowledgement(result.case.key, changes, acknowledged)
        if is_failed
        else ()
    )
    texts = (change_text, _describe_flips(result.judgement))
    return Check(
        kind=CheckKind.TREND,
        id=result.case.key.id,
        status=Status.FAILED if is_failed else Status.PASSED,
        verdict=verdict,
        text=formatting.join_clauses(*texts),
        lines=(*change_lines, *advice),
        # A session without a newly judged run must not pass because of old runs.
        decides=may_fail and result.judgement.verdict in JUDGED,
        about=(result.case.key,),
    )


def _advise_acknowledgement(
    key: Key, changes: Sequence[LevelChange], acknowledged: Sequence[Acknowledgement]
) -> tuple[str, ...]:
    """Return the lines of an entry that would accept the persisting slowdown.

    Returns other advice if an existing entry must be changed first, or if the slowdown
    is too large for an entry. Returns nothing for several slowdowns, which one entry
    cannot accept.
    """
    from pytest_llmbench.judge.acknowledged import LARGEST, select_covering
    from pytest_llmbench.session.acknowledgements import RECORD_INSTEAD, SAME_CHANGE

    persisting = [change for change in changes if change.stands]
    slowdowns = _select_unaccepted_slowdowns(persisting)
    if len(slowdowns) != 1:
        return ()
    # An entry has expired.
    if slowdowns[0].expired is not None:
        return (
            f"to accept it for longer, set a later day in `expires`: {slowdowns[0].expired.place}",
        )
    # An entry starts in the same week.
    since = slowdowns[0].started.date()
    for acknowledgement in select_covering(key.id, acknowledged):
        if abs(acknowledgement.since - since) <= SAME_CHANGE:
            reason = "it starts within a week of this change, so a second entry would be refused"
            return f"to accept it, change the entry of {acknowledgement.place}:", reason
    # A later entry accepts a change that was reverted. Earlier entries are no problem:
    # the runs before this slowdown show that their changes were reverted.
    reverted_entries = {
        change.acknowledged for change in changes if change.partly_taken_back
    }
    later_entries = [
        acknowledgement.place
        for acknowledgement in select_covering(key.id, acknowledged)
        if acknowledgement in reverted_entries and acknowledgement.since > since
    ]
    if later_entries:
        reason = "its change was reverted, partly or completely: remove or reduce that entry first"
        return (
            f"to accept it, change the entry of {formatting.join_first(later_entries)}:",
            reason,
        )
    percent = math.ceil(slowdowns[0].lasting * 1000) / 10
    if percent > LARGEST * 100:
        # A larger value would be refused when the file is read.
        return (
            f"it is more than the {LARGEST * 100:g} % that an entry may accept; {RECORD_INSTEAD}",
        )
    return (
        "to accept it, add under `acknowledged:` in the file:",
        f"  - configuration: {key.id}",
        f"    slower: {percent}%",
        f"    since: {since}",
        "    expires: DAY",
        "    reason: WHY",
        "    by: WHO",
    )


def _select_unaccepted_slowdowns(changes: Sequence[LevelChange]) -> list[LevelChange]:
    """Return the slowdowns that are not acknowledged."""
    return [
        change
        for change in changes
        if change.difference > 0 and change.acknowledged is None
    ]


def _describe_unaccepted_slowdowns(changes: Sequence[LevelChange]) -> str:
    """Describe the slowdowns that are not acknowledged.

    Describes the last one of at least FAILS, else their total. "" if the total is
    smaller than FAILS.
    """
    from pytest_llmbench.report.wording import phrase

    slowdowns = _select_unaccepted_slowdowns(changes)
    large = [change for change in slowdowns if change.difference >= FAILS]
    if large:
        return phrase(large[-1])
    total_ratio = math.prod(1 + change.difference for change in slowdowns)
    if total_ratio < 1 + FAILS:
        return ""
    return f"{formatting.format_difference(total_ratio)} in {len(slowdowns)} changes, the last: {phrase(slowdowns[-1])}"


# --- slow nodes -----------------------------------------------------------------------


def check_slow_nodes(
    judged: JudgedConfigurations, settings: Settings, catalog: Catalog
) -> Iterator[Check]:
    """Yield the evidence for slow nodes in the history and this session.

    Nothing without a history. It fails only if a slow node is identified.
    """
    if settings.history is None:
        return
    from pytest_llmbench.history.details import has_nodes
    from pytest_llmbench.session.node_history import list_current_runs, search_history

    problem = (
        "no run in the history has known nodes; only runs started by --llmb-launch do"
    )
    try:
        if has_nodes(settings.history):
            current = list_current_runs(judged.results.values())
            yield _make_node_check(
                search_history(settings.history, catalog.last_repair, current), catalog
            )
            return
    except HistoryError as error:  # the runs are judged already, maybe after long jobs
        problem = str(error)
    yield Check(
        CheckKind.SLOW_NODE, "nodes", Status.SKIPPED, Finding.NOTHING_TO_TELL, problem
    )


def _make_node_check(search: NodeSearch, catalog: Catalog) -> Check:
    """Build the check that names slow nodes."""
    from pytest_llmbench.report.node_text import (
        describe,
        format_answer,
        format_coverage,
        format_facts,
        format_suspects,
    )

    described = describe(search)
    facts = [
        line for suspect in described.named for line in format_facts(suspect, described)
    ]
    configurations = {run.configuration for run in search.runs.values()}
    finding = FINDINGS[search.answer]
    return Check(
        kind=CheckKind.SLOW_NODE,
        id="nodes",
        status=STATUSES.get(finding, Status.PASSED),
        verdict=finding,
        text=format_answer(described),
        lines=(
            *(facts or format_suspects(described)),
            f"  {format_coverage(described)}",
        ),
        about=tuple(key for key in catalog.baselines if key.id in configurations),
    )


FINDINGS = {
    NodeAnswer.NAMED: Finding.SLOW_NODE,
    NodeAnswer.EVIDENT: Finding.SUSPECT_NODES,
    NodeAnswer.NONE: Finding.NO_NODE,
    NodeAnswer.NOTHING_TO_TELL: Finding.NOTHING_TO_TELL,
}

STATUSES = {Finding.SLOW_NODE: Status.FAILED, Finding.NOTHING_TO_TELL: Status.SKIPPED}


# --- the gate itself ------------------------------------------------------------------


def check_gate(
    judged: JudgedConfigurations, settings: Settings, _: Catalog
) -> Iterator[Check]:
    """Yield the self-tests of the passed runs, if requested."""
    if settings.selftest:
        from pytest_llmbench.session.selftest import run_selftests

        yield from run_selftests(judged, settings)


def check_anything_judged(
    _: JudgedConfigurations, settings: Settings, __: Catalog
) -> Iterator[Check]:
    """Yield the item that fails if nothing was judged or recorded.

    `decide_guard` sets its status once the selected items are known.
    """
    action = "judged" if settings.record is None else "recorded"
    yield Check(
        CheckKind.SOMETHING_JUDGED,
        "session",
        Status.PASSED,
        Verdict.PASS,
        f"a configuration was {action}",
    )


CHECKS: dict[
    CheckKind,
    tuple[Callable[[JudgedConfigurations, Settings, Catalog], Iterator[Check]], str],
] = {
    CheckKind.CLUSTER_CHANGE: (
        check_cluster,
        "A shift that most configurations share.",
    ),
    CheckKind.WEAK_SCALING: (
        check_weak_scaling,
        "The weak-scaling efficiency of a family of configurations, against the documented one.",
    ),
    CheckKind.FP8_SPEEDUP: (
        check_speed_up,
        "The speed-up of FP8 over BF16, against the documented one.",
    ),
    CheckKind.TREND: (
        check_trends,
        "The changes in the level of a configuration over the days, and their acknowledgements.",
    ),
    CheckKind.SLOW_NODE: (
        check_slow_nodes,
        "The slow nodes, found in the runs of the history.",
    ),
    CheckKind.SELFTEST: (
        check_gate,
        "The verdicts on damaged copies of a run that passed (--llmb-selftest).",
    ),
    CheckKind.SOMETHING_JUDGED: (
        check_anything_judged,
        "The check that at least one selected configuration was judged.",
    ),
}
"""For each kind, the function that yields its items and the docstring of its fixture.
"""
