"""The attempts that the logs of a run tell of: as plain values, and what reports say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Try

MOST = 6
"""Attempts that an explanation lists; the JUnit property names all."""


def describe_try(attempt: Try, directory: Path) -> dict[str, Any]:
    """Return an attempt as plain values; a log below `directory` is shown relative to it."""
    return {
        "number": attempt.number,
        "log": formatting.format_place(attempt.log, directory),
        "line": attempt.line,
        "first_step": attempt.first_step,
        "last_step": attempt.last_step,
        "finished": attempt.finished,
        "ended": attempt.ended,
        "starts_over": attempt.starts_over,
        "judged": attempt.judged,
    }


def format_tries(described: dict[str, Any]) -> str | None:
    """Return `1 stopped after step 12 (time limit); 2 finished, judged`; None for a single attempt."""
    attempts = described.get("tries", ())
    return (
        "; ".join(f"{attempt['number']} {_format_end(attempt)}" for attempt in attempts) if len(attempts) > 1 else None
    )


def list_tries(described: dict[str, Any]) -> list[str]:
    """Return a line for each of several attempts: its number, its place, its steps, and how it ended.

    Of many the last ones stand there, and always the one that is judged.
    """
    attempts = described.get("tries", ())
    if len(attempts) < 2:
        return []
    shown = [attempt for attempt in attempts if attempt["judged"] or attempt["number"] > len(attempts) - MOST]
    more = [f"{len(attempts) - len(shown)} earlier ones, not judged"] if len(shown) < len(attempts) else []
    return [*more, *map(_format_try, shown)]


def _format_try(attempt: dict[str, Any]) -> str:
    place = f"{attempt['log']}:{attempt['line']}" if attempt["line"] else attempt["log"]
    steps = "" if attempt["last_step"] is None else f"steps {attempt['first_step']} to {attempt['last_step']}, "
    return f"{attempt['number']}: {steps}{_format_end(attempt)} ({place})"


def _format_end(attempt: dict[str, Any]) -> str:
    return f"{attempt['ended']}, judged" if attempt["judged"] else str(attempt["ended"])
