"""The attempts that the logs of a run tell of: as plain values, and what reports say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Try

MOST = 6
"""Attempts that an explanation lists; the JUnit property names all."""


def describe(one: Try, directory: Path) -> dict[str, Any]:
    """Return an attempt as plain values; a log below `directory` is shown relative to it."""
    return {
        "number": one.number,
        "log": formatting.format_place(one.log, directory),
        "line": one.line,
        "first_step": one.first_step,
        "last_step": one.last_step,
        "finished": one.finished,
        "ended": one.ended,
        "starts_over": one.starts_over,
        "judged": one.judged,
    }


def listed(described: dict[str, Any]) -> str | None:
    """Return `1 stopped after step 12 (time limit); 2 finished, judged`; None for a single attempt."""
    found = described.get("tries", ())
    return "; ".join(f"{one['number']} {_ended(one)}" for one in found) if len(found) > 1 else None


def lines(described: dict[str, Any]) -> list[str]:
    """Return a line for each of several attempts: its number, its place, its steps, and how it ended.

    Of many the last ones stand there, and always the one that is judged.
    """
    found = described.get("tries", ())
    if len(found) < 2:
        return []
    shown = [one for one in found if one["judged"] or one["number"] > len(found) - MOST]
    more = [f"{len(found) - len(shown)} earlier ones, not judged"] if len(shown) < len(found) else []
    return [*more, *map(_line, shown)]


def _line(one: dict[str, Any]) -> str:
    place = f"{one['log']}:{one['line']}" if one["line"] else one["log"]
    steps = "" if one["last_step"] is None else f"steps {one['first_step']} to {one['last_step']}, "
    return f"{one['number']}: {steps}{_ended(one)} ({place})"


def _ended(one: dict[str, Any]) -> str:
    return f"{one['ended']}, judged" if one["judged"] else str(one["ended"])
