"""What if: the same runs judged under other settings, and the verdicts that change."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pytest_llmbench.core.formatting import count_noun, format_difference, join_first
from pytest_llmbench.core.models import Outcome
from pytest_llmbench.pipeline.catalog import load
from pytest_llmbench.pipeline.evaluate import evaluate_runs
from pytest_llmbench.pipeline.find_runs import ingest
from pytest_llmbench.pipeline.outcomes import decide_outcomes
from pytest_llmbench.pipeline.results import SessionResults
from pytest_llmbench.pipeline.settings import Settings


@dataclass(frozen=True, slots=True)
class Change:
    """A configuration whose verdict, or what follows from it, is another one; None where it has no item."""

    id: str
    before: Outcome | None
    after: Outcome | None


@dataclass(frozen=True, slots=True)
class Replay:
    """All that was judged, and what changed. `judged` counts the items with a verdict in either case, of `items`."""

    judged: int
    items: int
    changes: tuple[Change, ...]


def replay(before: Settings, after: Settings, now: datetime) -> Replay:
    """Judge the runs under `before.logs` twice; they are read once unless `after` takes them for another release."""
    catalog = load(before)
    found = ingest(before, catalog, now)
    one = _outcomes(evaluate_runs(found, before, catalog, now), before)
    other = load(after)
    if after.baseline_release != before.baseline_release:
        found = ingest(after, other, now)
    two = _outcomes(evaluate_runs(found, after, other, now), after)
    changes = tuple(
        Change(name, one.get(name), two.get(name))
        for name in sorted({*one, *two})
        if _said(one.get(name)) != _said(two.get(name))
    )
    judged = sum(_is_judged(one.get(name)) or _is_judged(two.get(name)) for name in {*one, *two})
    return Replay(judged, len({*one, *two}), changes)


def as_text(told: Replay) -> str:
    """Return the changes, 79 columns wide: those that turn red, those that turn green, the others; and a count."""
    if not told.judged:
        return "nothing was judged: there is no valid run of a known configuration under the given paths"
    lines, count = [], []
    for label, colours in (("turn red", (False, True)), ("turn from red", (True, False)), ("change otherwise", None)):
        chosen = [change for change in told.changes if _in(change, colours)]
        if chosen:
            count.append(f"{len(chosen)} {label}")
            heading = f"{label} (nothing turns red, or from red):" if colours is None else f"{label}:"
            lines += [heading, *map(_line, filter(_has_run, chosen)), *_without(chosen)]
    total = f"{len(told.changes)} of {count_noun(told.items, 'item')} would change"
    return "\n".join([*lines, ": ".join(filter(None, [total, ", ".join(count)]))])


def _in(change: Change, colours: tuple[bool, bool] | None) -> bool:
    before, after = _failed(change.before), _failed(change.after)
    return before == after if colours is None else (before, after) == colours


def _has_run(change: Change) -> bool:
    return any(one is not None and one.judgement.measurement is not None for one in (change.before, change.after))


def _without(changes: Sequence[Change]) -> list[str]:
    """Return one line for all that have no run."""
    ids = [change.id for change in changes if not _has_run(change)]
    text = f"{len(ids)} without a run: {join_first(ids)}"
    return textwrap.wrap(text, 79, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False) if ids else []


def _line(change: Change) -> str:
    names = " -> ".join(str(one.judgement.verdict) if one else "none" for one in (change.before, change.after))
    known = change.after or change.before
    ratio = known.judgement.log_difference if known else None
    skipped = " (skipped)" if change.after is not None and change.after.skipped else ""
    return f"  {change.id:<38} {names:<28} {'' if ratio is None else format_difference(math.exp(ratio)):>7}{skipped}"


def _outcomes(results: SessionResults, settings: Settings) -> dict[str, Outcome]:
    return {outcome.case.id: outcome for outcome in decide_outcomes(results, list(results.configurations), settings)}


def _said(outcome: Outcome | None) -> object:
    return outcome and (outcome.judgement.verdict, outcome.status)


def _is_judged(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.judged


def _failed(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.failed
