"""What stands beside a green light: findings that fail nothing, and cautions, in the words of every report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_llmbench.core.models import Caution, CautionCode, Finding, Verdict

SLOWER = (Finding.SLOWER, Verdict.REGRESSION)
"""Verdicts of checks that know of something slower: where their item passed, nobody asked it to fail."""

RED = (*SLOWER, "INVALID", "INCONCLUSIVE", "UNMATCHED", "AMBIGUOUS", "UNREADABLE", "SURVIVED")
"""Verdicts of which a test that did not fail says nothing."""

LEAST = 0.01
"""A smaller change to slower, as a fraction, fails nothing where a change is to fail."""

FINDINGS = (CautionCode.REPORTED_ONLY, CautionCode.NOT_ASSERTED)
"""Cautions that the headline of a report names: what is known of these runs, and not how they were judged."""


def list_findings(outcomes: Sequence[dict[str, Any]]) -> Iterator[Caution]:
    """Yield what is known to be worse and fails nothing: `trend: 6 SLOWER`, `not asserted: 1 REGRESSION`.

    `outcomes` are those of a session, each id once.
    """
    passed = [outcome for outcome in outcomes if outcome["status"] != "failed"]
    checks = [
        outcome
        for outcome in passed
        if outcome["kind"] == "check" and "overruled" not in outcome and outcome["verdict"] in SLOWER
    ]
    verdicts: dict[str, Counter[str]] = {}
    for kind, verdict in (
        *((check["check"], check["verdict"]) for check in checks),
        *_list_trends_without_item(outcomes),
    ):
        verdicts.setdefault(kind, Counter())[verdict] += 1
    for kind, of_kind in verdicts.items():
        yield Caution(CautionCode.REPORTED_ONLY, f"{kind}: {_format_counts(of_kind)}")
    overruled = Counter(outcome["overruled"] for outcome in passed if outcome.get("overruled") in RED)
    if overruled:
        yield Caution(CautionCode.NOT_ASSERTED, f"not asserted: {_format_counts(overruled)}")


def _list_trends_without_item(outcomes: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield a trend for each configuration that did not fail though it became slower for good, and whose nights have no
    item: a user's own tests need none, and a selection may leave it out."""
    items = {outcome["id"] for outcome in outcomes if outcome.get("check") == "trend"}
    slower = {
        outcome["configuration"]["id"]
        for outcome in outcomes
        if outcome["status"] != "failed" and _has_become_slower(outcome)
    }
    yield from (("trend", Finding.SLOWER) for _ in slower - items)


def _has_become_slower(outcome: Mapping[str, Any]) -> bool:
    standing = [
        change for change in outcome.get("changes", ()) if change["stands"] and change.get("acknowledged") is None
    ]
    slower = [float(change["difference"]) for change in standing if change["difference"] > 0]
    return math.prod(1 + difference for difference in slower) >= 1 + LEAST


def append_findings(state: str, outcomes: Sequence[dict[str, Any]]) -> str:
    """Return how a session ended, with what is known to be worse: `green, but trend: 6 SLOWER`."""
    texts = [finding.text for finding in list_findings(outcomes)]
    joined = " but " if state == "green" else " "
    return f"{state},{joined}{', '.join(texts)}" if texts else state


def list_caution_texts(cautions: Sequence[Caution]) -> list[str]:
    """Return the texts of the cautions that a headline does not name."""
    return [caution.text for caution in cautions if caution.code not in FINDINGS]


def list_all_texts(outcomes: Sequence[dict[str, Any]], cautions: Sequence[Caution]) -> list[str]:
    """Return the texts of what a headline names and of all other cautions, in the order in which they are read."""
    return [*(finding.text for finding in list_findings(outcomes)), *list_caution_texts(cautions)]


def _format_counts(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items()))
