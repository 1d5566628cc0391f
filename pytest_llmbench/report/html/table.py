"""The verdict table: a row for each configuration, with what it is sorted by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report.explain import named
from pytest_llmbench.report.html.verdicts import Badge, badge, key, rank
from pytest_llmbench.report.terminal import timed, timing

COLUMNS = (
    ("Verdict", "text"),
    ("Configuration", "text"),
    ("Difference", "number"),
    ("Step time", "number"),
    ("Baseline", "number"),
    ("GPUs", "number"),
    ("Age", "number"),
    ("Reason", "text"),
)
"""The heads of the columns, and how their cells are aligned."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A text, and the value that it is sorted by: empty sorts last."""

    text: str
    value: str


@dataclass(frozen=True, slots=True)
class Row:
    """A configuration in the table; `cells` are those behind verdict and configuration."""

    anchor: str
    id: str
    badge: Badge
    place: int
    cells: Sequence[Cell]


def rows(configurations: Sequence[dict[str, Any]], anchors: dict[tuple[str, str], str]) -> list[Row]:
    """Return the rows in the order in which a reader wants them."""
    ordered = sorted(configurations, key=rank)
    return [Row(anchors[key(one)], named(one), badge(one), place, _cells(one)) for place, one in enumerate(ordered)]


def _cells(one: dict[str, Any]) -> list[Cell]:
    (measured, difference), run = timed(one), one.get("run")
    return [
        _number(timing(one)[1], difference),
        _number(timing(one)[0], measured),
        _number(formatting.format_seconds(one["expected_seconds"]), one["expected_seconds"]),
        _number(str(one["configuration"]["gpus"]), one["configuration"]["gpus"]),
        Cell(run["age"] if run else "-", _newest_first(run)),
        Cell(one["reason"], one["reason"]),
    ]


def _number(text: str, value: float | None) -> Cell:
    return Cell(text, "" if value is None else f"{value:.9g}")


def _newest_first(run: dict[str, Any] | None) -> str:
    """Return a number that is smaller for a younger run, empty for an unknown start."""
    started = (run or {}).get("started")
    return f"{-datetime.fromisoformat(started).timestamp():.0f}" if started else ""
