"""The summary at the end of a session: a line for each configuration, made from outcome dictionaries."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_llmbench import wording

ORDER = (
    "TEST_FAILED",
    "REGRESSION",
    "INVALID",
    "INCONCLUSIVE",
    "IMPROVEMENT",
    "PASS",
    "RECORDED",
    "NOT_COMPARABLE",
    "MISSING",
)
"""The verdicts in the order in which a reader wants them."""

JUDGED = ("REGRESSION", "INCONCLUSIVE", "IMPROVEMENT", "PASS", "RECORDED")
"""Those with a step time that means something."""


def summary(described: Sequence[dict[str, Any]], remarks: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the summary, 80 columns wide: verdicts, remarks, and the count by verdict last."""
    configurations = [one for one in described if one["kind"] == "configuration"]
    measured = [one for one in configurations if one["verdict"] != "MISSING" or one["run"]]
    yield f"{'verdict':<14} {'configuration':<39} {'step time':>9} {'diff':>7} {'age':>5}"
    for one in sorted(measured, key=lambda one: (ORDER.index(one["verdict"]), one["id"])):
        yield _line(one)
    missing = [one["id"] for one in configurations if one["verdict"] == "MISSING" and not one["run"]]
    if missing:
        yield f"{'MISSING':<14} {len(missing)} without a run, first {missing[0]}"
    for one in described:
        if one["kind"] == "stray":
            yield f"{one['reason'].upper():<14} {one['id']}"
    for remark in remarks:
        yield from textwrap.wrap(remark, 79, subsequent_indent="  ", break_on_hyphens=False)
    yield from textwrap.wrap(count(described), 79, subsequent_indent="  ")


def count(described: Sequence[dict[str, Any]]) -> str:
    """Return `82 green: 74 PASS, 8 INCONCLUSIVE; 3 red: 2 REGRESSION, 1 UNMATCHED; 4 skipped: 4 MISSING`."""
    parts = []
    for status, label in (("passed", "green"), ("failed", "red"), ("skipped", "skipped")):
        names = Counter(one.get("verdict") or one["reason"].upper() for one in described if one["status"] == status)
        if names:
            told = ", ".join(f"{number} {name}" for name, number in sorted(names.items(), key=_rank))
            parts.append(f"{names.total()} {label}: {told}")
    return "; ".join(parts) or "nothing judged"


def _rank(item: tuple[str, int]) -> tuple[int, str]:
    return (ORDER.index(item[0]) if item[0] in ORDER else len(ORDER)), item[0]


def _line(one: dict[str, Any]) -> str:
    judged = one["verdict"] in JUDGED
    measured = one["metrics"].get("step_time_seconds", {}).get("value") if judged else None
    change = wording.difference(
        math.exp(one["log_difference"]) if judged and one["log_difference"] is not None else None
    )
    line = f"{one['verdict']:<14} {one['id']:<39} {wording.seconds(measured):>9} {change:>7} {one['run']['age']:>5}"
    return line if judged else f"{line}\n{'':<17}{_clipped(one['text'], 62)}"


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
