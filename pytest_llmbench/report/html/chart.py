"""A drawn chart, and what the charts of a configuration share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.core import formatting

BEYOND = 1.5
"""What takes longer than the bound, or the median, times this is drawn at the edge: the others stay readable."""

FEWEST = 2
"""Steps, nights or sizes of which a chart says more than a number."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart: what it is of, a sentence for those who do not see it, the element, and what its symbols mean;
    `id` is the sentence's."""

    id: str
    title: str
    sentence: str
    svg: str
    key: str = ""


def list_lines(outcome: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield kind, text and seconds of the baseline and the bound, as far as there are."""
    for kind, text, value in (
        ("expected", "baseline", outcome.get("expected_seconds")),
        ("bound", "bound", outcome.get("bound_seconds")),
    ):
        if value:
            yield kind, text, value


def list_line_seconds(outcome: dict[str, Any]) -> list[float]:
    """Return the seconds of these lines."""
    return [value for _, _, value in list_lines(outcome)]


def list_lines_in_words(outcome: dict[str, Any]) -> Iterator[str]:
    """Yield these lines in words."""
    for _, text, value in list_lines(outcome):
        yield f"{text} {formatting.format_seconds(value)}"


def format_span(values: Sequence[float]) -> str:
    """Return the smallest and the largest of some seconds."""
    return f"{formatting.format_seconds(min(values))} to {formatting.format_seconds(max(values))}"


def make_sentence(parts: Sequence[str]) -> str:
    """Return the parts that say something as one sentence."""
    return f"{'; '.join(part for part in parts if part)}."
