"""The result of comparing two sides of runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pytest_llmbench.comparison.comparison_records import (
    ComparedSide,
    NoData,
    NotCompared,
    SideComparison,
    SideRun,
    SidesCompared,
)
from pytest_llmbench.comparison.unpaired import Sides, compare_all
from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.codes import Reason

NOW = datetime(2025, 11, 20, 6, tzinfo=UTC)
WINDOW = Window(11, 44)
WOBBLE = (1.0, 1.001, 0.999)


def make_side(seconds: float, first: int, container: str) -> tuple[SideRun, ...]:
    """Build three runs on separate days and nodes."""
    return tuple(
        SideRun(
            f"r{first + day}",
            seconds * wobble,
            started=NOW - timedelta(days=30 - first - day),
            nodes=frozenset({f"n{first + day}"}),
            facts={"container": container},
        )
        for day, wobble in enumerate(WOBBLE)
    )


def make_result(*factors: float, container: str = "nemo:2") -> SidesCompared:
    """Compare one configuration per factor, by which side B is slower.

    The result also contains an unusable run, and a side name with markup.
    """
    sides = {
        f"model_{index}-25.05-h100-bf16-8": (
            make_side(7, 0, "nemo:1"),
            make_side(7 * factor, 10, container),
        )
        for index, factor in enumerate(factors)
    }
    answers = compare_all(
        {name: Sides(*runs) for name, runs in sides.items()}, 0.01, 0.01
    )
    compared_sides = [
        ComparedSide(
            label,
            label.lower(),
            {(name, WINDOW): runs[index] for name, runs in sides.items()},
        )
        for index, label in enumerate("AB")
    ]
    no_data = (
        NoData("B", "B/r99", "x", Reason.DIVERGED, "the loss is <b>no number</b>"),
    )
    return SidesCompared(
        compared_sides[0],
        ComparedSide("B", "<script>alert(1)</script>", compared_sides[1].runs, no_data),
        0.01,
        tuple(
            SideComparison(name, WINDOW, *sides[name], *answers[name]) for name in sides
        ),
        (NotCompared("y", "A", "only in A: B has no run"),),
        history="",
    )
