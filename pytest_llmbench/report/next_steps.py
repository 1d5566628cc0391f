"""What to do next after a session: the most important steps, made from outcome dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pytest_llmbench.report.advice import advice
from pytest_llmbench.report.columns import Line, wrapped
from pytest_llmbench.report.explain import named, repeats, where

MOST = 2
"""Groups of items of which the summary tells; the message of each red one has its own step."""

UNFINISHED = ("NOT_ASSERTED", "INCONCLUSIVE", "IMPROVEMENT", "RECORDED")
"""Verdicts that leave something to do where nothing is red."""

INDENT = " " * 6

Step = tuple[list[dict[str, Any]], str]
"""Items with one reason, and what to do about them."""


def steps(described: Iterable[dict[str, Any]]) -> list[Step]:
    """Return what to do about outcomes that stand in the order of their importance: red ones first, those that leave
    nothing to do left out."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for outcome in sorted(filter(_is_unfinished, described), key=lambda outcome: outcome["status"] != "failed"):
        groups.setdefault(outcome["reason"], []).append(outcome)
    advised = ((group, advice(group[0])) for group in groups.values())
    return [(group, f"{text}{_settle(group[0])}") for group, text in advised if not text.startswith("nothing")]


def _is_unfinished(outcome: dict[str, Any]) -> bool:
    """Whether it is red, or a configuration that leaves something to do though it is not."""
    return outcome["status"] == "failed" or (outcome["kind"] == "configuration" and outcome["verdict"] in UNFINISHED)


def _settle(outcome: dict[str, Any]) -> str:
    runs = repeats(outcome)
    return f"; about {runs} would settle it" if runs else ""


def next_steps(described: Sequence[dict[str, Any]]) -> Iterator[Line]:
    """Yield the lines of what to do about outcomes that stand in the order of their importance.

    Nothing is yielded about items of a session that judged nothing: their context says what to do.
    """
    judged = [outcome for outcome in described if not outcome.get("context")]
    advised = steps(judged)
    for group, text in advised[:MOST]:
        yield from _lines(f"{_named(group)}: {text}")
        if group[0]["status"] == "failed" and group[0]["log"]:
            yield Line(f"{INDENT}log: {where(group[0])}")  # whole, to be copied
    red = [outcome for outcome in judged if outcome["status"] == "failed"]
    launched = any(outcome.get("jobs") for outcome in described)
    if any(not (launched and outcome["kind"] == "check") for outcome in red):  # what a launch shows cannot be asked for
        yield from _lines("only what is red again: the same command with --lf")
    if not advised:
        yield from _missing([outcome for outcome in judged if outcome["reason"] == "no-run"])


def _missing(group: Sequence[dict[str, Any]]) -> Iterator[Line]:
    if group:
        launch = f"pytest -k {group[0]['id']} --llmb-launch launches it, --llmb-dry-run says what that takes"
        yield from _lines(f"{_named(group)} without a run: {launch}")


def _named(group: Sequence[dict[str, Any]]) -> str:
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{named(group[0])}{more}"


def _lines(text: str) -> Iterator[Line]:
    for number, line in enumerate(wrapped(f"next: {text}", INDENT)):
        yield Line(line, "bold", 0 if number else len("next:"))
