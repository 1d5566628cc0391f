"""What a session did not look at: left out by its selection, deselected by somebody's word, or not come to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from pytest_llmbench import wording
from pytest_llmbench.batch import Batch
from pytest_llmbench.models import Caution, CautionCode, Stray
from pytest_llmbench.settings import Settings
from pytest_llmbench.settling import red_results

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

    def not_run(self, ran: Collection[str]) -> tuple[Subject, ...]:
        """Return what was selected and is about none of the items (node ids) that ran."""
        done = set(chain.from_iterable(subjects for node, subjects in self.kept.items() if node in ran))
        return tuple(one for one in dict.fromkeys(chain.from_iterable(self.kept.values())) if one not in done)


def selection_from(plain: Mapping[str, Any]) -> Selection:
    """Return the selection of a worker, which crossed as plain values."""
    return Selection(**plain)


def red_subjects(batch: Batch, settings: Settings, failing: Collection[Stray]) -> dict[Subject, str]:
    """Return what is red, whether it was selected or not, each with its verdict and id; nothing in a recording."""
    if settings.record is not None:
        return {}
    results = {result.case.id: str(result.judgement.verdict) for result in red_results(batch, settings)}
    red = {(TEST, identifier): f"{verdict} {identifier}" for identifier, verdict in results.items()}
    red |= {("test_unmatched_run", one.id): f"{one.reason.upper()} {one.id}" for one in failing}
    checks = (check for check in batch.checks if check.failed)
    red |= {(f"test_{one.kind.replace('-', '_')}", one.id): f"{one.kind} {one.id}" for one in checks}
    return red


def tell_left_out(selection: Selection, ran: Collection[str], red: Mapping[Subject, str], by: str) -> Iterator[Caution]:
    """Yield what a session did not look at; `by` names the options that select, empty where they chose what to launch
    and only what is red needs a word."""
    parts = (
        (CautionCode.NOT_RUN, "did not run", selection.not_run(ran)),
        (CautionCode.DESELECTED, "deselected by --deselect, a conftest or a plugin", selection.deselected),
        (CautionCode.LEFT_OUT, f"left out by {by or 'the selection'}", selection.left_out),
    )
    for code, what, subjects in parts:
        if subjects and (by or code is not CautionCode.LEFT_OUT or not red.keys().isdisjoint(subjects)):
            yield Caution(code, f"{what}: {wording.counted(len(subjects), 'item')}{_named(subjects, red)}")


def tell_newer(batch: Batch, selection: Selection, untold: Iterable[Stray]) -> Iterator[Caution]:
    """Yield the runs that have no item, and that may be newer runs of what is selected."""
    names = (name for test, name in chain.from_iterable(selection.kept.values()) if test == TEST)
    measured = {batch.results[name].case.key: batch.results[name].judgement.measurement for name in names}
    judged = {key: measurement.run.started if measurement else None for key, measurement in measured.items()}

    def may_be_newer(stray: Stray) -> bool:
        return any(key in judged and _is_newer(stray, judged[key]) for key in stray.about)

    newer = [f"{stray.reason.upper()} {stray.id}" for stray in untold if may_be_newer(stray)]
    if newer:
        text = f"not judged, and perhaps newer than what was: {wording.listed(newer, NAMED)}"
        yield Caution(CautionCode.NEWER_RUN, wording.printable(text))


def _is_newer(stray: Stray, judged: datetime | None) -> bool:
    return stray.started is None or judged is None or stray.started > judged


def _named(subjects: Collection[Subject], red: Mapping[Subject, str]) -> str:
    names = [red[subject] for subject in subjects if subject in red]
    return f", {len(names)} red: {wording.printable(wording.listed(names, NAMED))}" if names else ", none red"
