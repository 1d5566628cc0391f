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
    for one in sorted(filter(_is_unfinished, described), key=lambda one: one["status"] != "failed"):
        groups.setdefault(one["reason"], []).append(one)
    told = ((group, advice(group[0])) for group in groups.values())
    return [(group, f"{text}{_settle(group[0])}") for group, text in told if not text.startswith("nothing")]


def _is_unfinished(one: dict[str, Any]) -> bool:
    """Whether it is red, or a configuration that leaves something to do though it is not."""
    return one["status"] == "failed" or (one["kind"] == "configuration" and one["verdict"] in UNFINISHED)


def _settle(one: dict[str, Any]) -> str:
    runs = repeats(one)
    return f"; about {runs} would settle it" if runs else ""


def next_steps(described: Sequence[dict[str, Any]]) -> Iterator[Line]:
    """Yield the lines of what to do about outcomes that stand in the order of their importance.

    Nothing is yielded about items of a session that judged nothing: their context says what to do.
    """
    judged = [one for one in described if not one.get("context")]
    found = steps(judged)
    for group, text in found[:MOST]:
        yield from _lines(f"{_named(group)}: {text}")
        if group[0]["status"] == "failed" and group[0]["log"]:
            yield Line(f"{INDENT}log: {where(group[0])}")  # whole, to be copied
    red = [one for one in judged if one["status"] == "failed"]
    launched = any(one.get("jobs") for one in described)
    if any(not (launched and one["kind"] == "check") for one in red):  # what a launch shows cannot be asked for
        yield from _lines("only what is red again: the same command with --lf")
    if not found:
        yield from _missing([one for one in judged if one["reason"] == "no-run"])


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
