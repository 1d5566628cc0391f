"""What a verdict looks like, and how many there are of each kind: the head of the page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report.cautions import list_findings
from pytest_llmbench.report.explain import name_outcome
from pytest_llmbench.report.next_steps import list_advice
from pytest_llmbench.report.terminal import BY_DOCUMENT, ORDER, UNSURE, select_counted

COLOURS = {"red": "red", "unclear": "unclear", "green": "green", "skipped": "skipped"}
"""The colours of a page in their order, with the word for each."""

SYMBOLS = {
    "REGRESSION": "\N{MULTIPLICATION X}",
    "INVALID": "!",
    "INCONCLUSIVE": "?",
    "IMPROVEMENT": "\N{BLACK STAR}",
    "PASS": "\N{CHECK MARK}",
    "RECORDED": "\N{BLACK CIRCLE}",
    "MISSING": "\N{WHITE CIRCLE}",
    "NOT_COMPARABLE": "\N{EN DASH}",
    "TEST_FAILED": "\N{MULTIPLICATION X}",
    "NOT_ASSERTED": "!",
}
"""What stands beside the word of a verdict, so that colour is not the only sign."""

MOST = 6
"""Reasons for which the head of the page says what to do next."""


@dataclass(frozen=True, slots=True)
class Badge:
    """A verdict as it is shown: its colour, symbol and word."""

    colour: str
    symbol: str
    word: str


@dataclass(frozen=True, slots=True)
class LinkedAdvice:
    """What to do about items with one reason: (anchor, id) of the first ones, how many more there are, the advice."""

    reason: str
    items: Sequence[tuple[str, str]]
    more: int
    advice: str


def make_badge(outcome: dict[str, Any]) -> Badge:
    """Return how an outcome is shown."""
    word = str(outcome.get("verdict") or outcome["reason"].upper())
    other = "!" if outcome["status"] == "failed" else "\N{BULLET}"
    return Badge(choose_colour(outcome), SYMBOLS.get(word, other), word)


def choose_colour(outcome: dict[str, Any]) -> str:
    """Return red for what failed, unclear for what passed in doubt, or unasked, else green or skipped."""
    if outcome["status"] == "failed":
        return "red"
    if outcome["status"] == "skipped":
        return "skipped"
    return "unclear" if outcome.get("verdict") in UNSURE else "green"


def identify_outcome(outcome: dict[str, Any]) -> tuple[str, str]:
    """Return what tells an outcome from all others of a session; checks of several kinds may share an id."""
    return str(outcome.get("check", outcome["kind"])), outcome["id"]


def rank_outcome(outcome: dict[str, Any]) -> tuple[int, int, str]:
    """Return by what outcomes are ordered: what needs a reader first, then the id, with 8 GPUs before 16."""
    word = str(outcome.get("verdict"))
    name = re.sub("[0-9]+", lambda digits: digits.group().zfill(9), outcome["id"])
    return list(COLOURS).index(choose_colour(outcome)), ORDER.index(word) if word in ORDER else len(ORDER), name


def count_colours(described: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return each colour, and how many of what is counted have it."""
    numbers = Counter(map(choose_colour, select_counted(described)))
    return [(name, numbers[name]) for name in COLOURS if numbers[name]]


def list_counts(described: Sequence[dict[str, Any]]) -> list[str]:
    """Return `1 REGRESSION`, `2 INVALID`, `72 PASS`: what `counted` counts, by verdict."""
    numbers = Counter(make_badge(outcome).word for outcome in sorted(select_counted(described), key=rank_outcome))
    texts = [f"{number} {word}" for word, number in numbers.items()]
    return [*texts, BY_DOCUMENT] if any(outcome.get("timed") == "document" for outcome in described) else texts


def list_linked_advice(
    described: Sequence[dict[str, Any]], anchors: Mapping[tuple[str, str], str]
) -> list[LinkedAdvice]:
    """Return what to do, as the summary of the terminal says it: what is red first."""
    return [
        LinkedAdvice(
            group[0]["reason"],
            [(anchors[identify_outcome(outcome)], name_outcome(outcome)) for outcome in group[:3]],
            len(group[3:]),
            text,
        )
        for group, text in list_advice(sorted(described, key=rank_outcome))[:MOST]
    ]


def make_title(described: Sequence[dict[str, Any]]) -> str:
    """Return `3 red, trend: 6 SLOWER, 2 unclear, 77 green`, for the title of the window."""
    counts = count_colours(described)
    reported = [finding.text for finding in list_findings(described)]
    red = [f"{number} {name}" for name, number in counts if name == "red"]
    others = [f"{number} {name}" for name, number in counts if name != "red"]
    return ", ".join([*red, *reported, *others]) or formatting.count_noun(len(described), "outcome")
