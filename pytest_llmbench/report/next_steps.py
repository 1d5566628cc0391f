"""What to do next after a session: the most important steps, made from outcome dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pytest_llmbench.report.advice import NOTHING_TO_DO, advise
from pytest_llmbench.report.columns import TerminalLine, wrap
from pytest_llmbench.report.explain import count_repeats_needed, locate_log, name_outcome

MOST = 2
"""Groups of items of which the summary tells; the message of each red one has its own step."""

UNFINISHED = ("NOT_ASSERTED", "INCONCLUSIVE", "IMPROVEMENT", "RECORDED")
"""Verdicts that leave something to do where nothing is red."""

INDENT = " " * 6

Advice = tuple[list[dict[str, Any]], str]
"""Items with one reason, and what to do about them."""


def list_advice(described: Iterable[dict[str, Any]]) -> list[Advice]:
    """Return what to do about outcomes that stand in the order of their importance: red ones first, those that leave
    nothing to do left out."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for outcome in sorted(filter(_is_unfinished, described), key=lambda outcome: outcome["status"] != "failed"):
        groups.setdefault(outcome["reason"], []).append(outcome)
    advised = ((group, advise(group[0])) for group in groups.values())
    return [
        (group, f"{text}{_advise_repeats(group[0])}")
        for group, text in advised
        if group[0]["reason"] not in NOTHING_TO_DO
    ]


def _is_unfinished(outcome: dict[str, Any]) -> bool:
    """Whether it is red, or a configuration that leaves something to do though it is not."""
    return outcome["status"] == "failed" or (outcome["kind"] == "configuration" and outcome["verdict"] in UNFINISHED)


def _advise_repeats(outcome: dict[str, Any]) -> str:
    runs = count_repeats_needed(outcome)
    return f"; about {runs} would settle it" if runs else ""


def list_next_steps(described: Sequence[dict[str, Any]]) -> Iterator[TerminalLine]:
    """Yield the lines of what to do about outcomes that stand in the order of their importance.

    Nothing is yielded about items of a session that judged nothing: their context says what to do.
    """
    judged = [outcome for outcome in described if not outcome.get("context")]
    advised = list_advice(judged)
    for group, text in advised[:MOST]:
        yield from _format_advice(f"{_name_group(group)}: {text}")
        if group[0]["status"] == "failed" and group[0]["log"]:
            yield TerminalLine(f"{INDENT}log: {locate_log(group[0])}")  # whole, to be copied
    red = [outcome for outcome in judged if outcome["status"] == "failed"]
    launched = any(outcome.get("jobs") for outcome in described)
    if any(not (launched and outcome["kind"] == "check") for outcome in red):  # what a launch shows cannot be asked for
        yield from _format_advice("only what is red again: the same command with --lf")
    if not advised:
        yield from _advise_launch([outcome for outcome in judged if outcome["reason"] == "no-run"])


def _advise_launch(group: Sequence[dict[str, Any]]) -> Iterator[TerminalLine]:
    if group:
        launch = f"pytest -k {group[0]['id']} --llmb-launch launches it, --llmb-dry-run says what that takes"
        yield from _format_advice(f"{_name_group(group)} without a run: {launch}")


def _name_group(group: Sequence[dict[str, Any]]) -> str:
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{name_outcome(group[0])}{more}"


def _format_advice(text: str) -> Iterator[TerminalLine]:
    for number, line in enumerate(wrap(f"next: {text}", INDENT)):
        yield TerminalLine(line, "bold", 0 if number else len("next:"))
