"""The verdict table: a row for each configuration, with what it is sorted by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report.explain import name_outcome
from pytest_llmbench.report.html.verdicts import Badge, identify_outcome, make_badge, rank_outcome
from pytest_llmbench.report.terminal import format_step_time, get_step_time

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
class VerdictRow:
    """A configuration in the table; `cells` are those behind verdict and configuration."""

    anchor: str
    id: str
    badge: Badge
    place: int
    cells: Sequence[Cell]


def list_rows(configurations: Sequence[dict[str, Any]], anchors: dict[tuple[str, str], str]) -> list[VerdictRow]:
    """Return the rows in the order in which a reader wants them."""
    ordered = sorted(configurations, key=rank_outcome)
    return [
        VerdictRow(
            anchors[identify_outcome(outcome)], name_outcome(outcome), make_badge(outcome), place, _list_cells(outcome)
        )
        for place, outcome in enumerate(ordered)
    ]


def _list_cells(outcome: dict[str, Any]) -> list[Cell]:
    (measured, difference), run = get_step_time(outcome), outcome.get("run")
    return [
        _make_number_cell(format_step_time(outcome)[1], difference),
        _make_number_cell(format_step_time(outcome)[0], measured),
        _make_number_cell(formatting.format_seconds(outcome["expected_seconds"]), outcome["expected_seconds"]),
        _make_number_cell(str(outcome["configuration"]["gpus"]), outcome["configuration"]["gpus"]),
        Cell(run["age"] if run else "-", _rank_by_age(run)),
        Cell(outcome["reason"], outcome["reason"]),
    ]


def _make_number_cell(text: str, value: float | None) -> Cell:
    return Cell(text, "" if value is None else f"{value:.9g}")


def _rank_by_age(run: dict[str, Any] | None) -> str:
    """Return a number that is smaller for a younger run, empty for an unknown start."""
    started = (run or {}).get("started")
    return f"{-datetime.fromisoformat(started).timestamp():.0f}" if started else ""
