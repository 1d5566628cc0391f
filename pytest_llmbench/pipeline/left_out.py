"""What a session did not look at: left out by its selection, deselected by somebody's word, or not come to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Caution, CautionCode, Check, UnmatchedRun
from pytest_llmbench.pipeline.outcomes import find_red_results
from pytest_llmbench.pipeline.results import SessionResults
from pytest_llmbench.pipeline.settings import Settings

Subject = tuple[str, str]
"""What an item is about: the name of the built-in test, and the id of the case."""

TEST = "test_performance"
"""The built-in test of the configurations."""

NAMED = 3
"""Red items that a line names."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What became of everything that has an item. `kept` holds the subjects of each selected item by its node id;
    `left_out` is what pytest's own selection knows no better, `deselected` what somebody took out on purpose."""

    kept: Mapping[str, tuple[Subject, ...]]
    left_out: tuple[Subject, ...] = ()
    deselected: tuple[Subject, ...] = ()

    def without(self, nodes: Collection[str]) -> tuple[Subject, ...]:
        """Return what was selected and is about none of these items (node ids)."""
        done = set(chain.from_iterable(subjects for node, subjects in self.kept.items() if node in nodes))
        return tuple(one for one in dict.fromkeys(chain.from_iterable(self.kept.values())) if one not in done)


def selection_from(plain: Mapping[str, Any]) -> Selection:
    """Return the selection of a worker, which crossed as plain values."""
    return Selection(**plain)


def subjects_seen(results: SessionResults, settings: Settings, failing: Collection[UnmatchedRun]) -> dict[Subject, str]:
    """Return everything of which something was found, whether it was selected or not: what is red with its verdict and
    id, all else with an empty text. A recording has nothing red."""
    found = (result for result in results.configurations.values() if result.judgement.measurement is not None)
    seen = {(TEST, result.case.id): "" for result in found}
    seen |= {_subject(check): f"{check.kind} {check.id}" if check.failed else "" for check in results.checks}
    if settings.record is not None:
        return seen
    red = {result.case.id: str(result.judgement.verdict) for result in find_red_results(results, settings)}
    seen |= {(TEST, identifier): f"{verdict} {identifier}" for identifier, verdict in red.items()}
    return seen | {("test_unmatched_run", stray.id): f"{stray.reason.upper()} {stray.id}" for stray in failing}


def _subject(check: Check) -> Subject:
    return f"test_{check.kind.replace('-', '_')}", check.id


def tell_left_out(
    selection: Selection, ran: Collection[str], skipped: Collection[str], seen: Mapping[Subject, str], by: str
) -> Iterator[Caution]:
    """Yield what a session did not look at, of what was `seen`.

    `ran` and `skipped` are node ids, the last of items that ended before there was a verdict. `by` names the options
    that select, empty where they chose what to launch or to record, and only what is red needs a word.
    """
    not_run = selection.without(ran)
    unjudged = set(selection.without([node for node in ran if node not in skipped])).difference(not_run)
    parts = (
        (CautionCode.NOT_RUN, "did not run", not_run, False),
        (CautionCode.SKIPPED_ITEMS, "skipped before a verdict", unjudged, True),
        (CautionCode.DESELECTED, "deselected by --deselect, a conftest or a plugin", selection.deselected, False),
        (CautionCode.LEFT_OUT, f"left out by {by or 'the selection'}", selection.left_out, not by),
    )
    for code, what, subjects, only_red in parts:
        labels = [seen[subject] for subject in sorted(subjects) if subject in seen]
        red = list(filter(None, labels))
        if red or (labels and not only_red):
            named = f"{len(red)} red: {formatting.join_first(red, NAMED)}" if red else "none red"
            yield Caution(code, formatting.escape(f"{what}: {formatting.count_noun(len(labels), 'item')}, {named}"))


def tell_newer(results: SessionResults, selection: Selection, untold: Iterable[UnmatchedRun]) -> Iterator[Caution]:
    """Yield the runs that have no item, and that may be newer runs of what is selected."""
    names = (name for test, name in chain.from_iterable(selection.kept.values()) if test == TEST)
    measured = {
        results.configurations[name].case.key: results.configurations[name].judgement.measurement for name in names
    }
    judged = {key: measurement.run.started if measurement else None for key, measurement in measured.items()}

    def may_be_newer(stray: UnmatchedRun) -> bool:
        return any(key in judged and _is_newer(stray, judged[key]) for key in stray.about)

    newer = [f"{stray.reason.upper()} {stray.id}" for stray in untold if may_be_newer(stray)]
    if newer:
        text = f"not judged, and perhaps newer than what was: {formatting.join_first(newer, NAMED)}"
        yield Caution(CautionCode.NEWER_RUN, formatting.escape(text))


def _is_newer(stray: UnmatchedRun, judged: datetime | None) -> bool:
    return stray.started is None or judged is None or stray.started > judged
