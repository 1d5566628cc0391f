"""What a verdict looks like, and how many there are of each kind: the head of the page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report.cautions import findings
from pytest_llmbench.report.explain import named
from pytest_llmbench.report.next_steps import steps
from pytest_llmbench.report.terminal import BY_DOCUMENT, ORDER, UNSURE, counting

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
class Next:
    """What to do about items with one reason: (anchor, id) of the first ones, how many more there are, the advice."""

    reason: str
    items: Sequence[tuple[str, str]]
    more: int
    advice: str


def badge(one: dict[str, Any]) -> Badge:
    """Return how an outcome is shown."""
    word = str(one.get("verdict") or one["reason"].upper())
    other = "!" if one["status"] == "failed" else "\N{BULLET}"
    return Badge(colour(one), SYMBOLS.get(word, other), word)


def colour(one: dict[str, Any]) -> str:
    """Return red for what failed, unclear for what passed in doubt, or unasked, else green or skipped."""
    if one["status"] == "failed":
        return "red"
    if one["status"] == "skipped":
        return "skipped"
    return "unclear" if one.get("verdict") in UNSURE else "green"


def key(one: dict[str, Any]) -> tuple[str, str]:
    """Return what tells an outcome from all others of a session; checks of several kinds may share an id."""
    return str(one.get("check", one["kind"])), one["id"]


def rank(one: dict[str, Any]) -> tuple[int, int, str]:
    """Return by what outcomes are ordered: what needs a reader first, then the id, with 8 GPUs before 16."""
    word = str(one.get("verdict"))
    name = re.sub("[0-9]+", lambda digits: digits.group().zfill(9), one["id"])
    return list(COLOURS).index(colour(one)), ORDER.index(word) if word in ORDER else len(ORDER), name


def counted(described: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return each colour, and how many of what is counted have it."""
    found = Counter(map(colour, counting(described)))
    return [(name, found[name]) for name in COLOURS if found[name]]


def words(described: Sequence[dict[str, Any]]) -> list[str]:
    """Return `1 REGRESSION`, `2 INVALID`, `72 PASS`: what `counted` counts, by verdict."""
    found = Counter(badge(one).word for one in sorted(counting(described), key=rank))
    told = [f"{number} {word}" for word, number in found.items()]
    return [*told, BY_DOCUMENT] if any(one.get("timed") == "document" for one in described) else told


def next_steps(described: Sequence[dict[str, Any]], anchors: Mapping[tuple[str, str], str]) -> list[Next]:
    """Return what to do, as the summary of the terminal says it: what is red first."""
    return [
        Next(group[0]["reason"], [(anchors[key(one)], named(one)) for one in group[:3]], len(group[3:]), text)
        for group, text in steps(sorted(described, key=rank))[:MOST]
    ]


def title(described: Sequence[dict[str, Any]]) -> str:
    """Return `3 red, trend: 6 SLOWER, 2 unclear, 77 green`, for the title of the window."""
    counts = [f"{number} {name}" for name, number in counted(described)]
    reported = [finding.text for finding in findings(described)]
    red = sum(text.endswith(" red") for text in counts)
    return ", ".join([*counts[:red], *reported, *counts[red:]]) or formatting.count_noun(len(described), "outcome")
