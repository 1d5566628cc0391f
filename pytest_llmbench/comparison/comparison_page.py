"""Render the HTML page of `llmbench compare`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pytest_llmbench.comparison.comparison_document import (
    ComparisonDocument,
    ReportedConfiguration,
)
from pytest_llmbench.comparison.comparison_records import SideAnswer
from pytest_llmbench.comparison.comparison_text import (
    count_answers,
    format_answer,
    format_interval,
    format_no_data,
    list_facts,
    list_not_compared,
    list_remarks,
)
from pytest_llmbench.core import formatting
from pytest_llmbench.report.explain import name_label
from pytest_llmbench.report.html import Badge, make_environment, make_policy, read_asset
from pytest_llmbench.report.html.charts import Chart
from pytest_llmbench.report.html.drawing import Picture, Scale, make_number_scale, pad
from pytest_llmbench.report.html.page_tables import ShownTable
from pytest_llmbench.report.html.site_names import ENDING, INDEX

BADGES = {
    SideAnswer.SLOWER: ("red", "\N{MULTIPLICATION X}"),
    SideAnswer.CANNOT_TELL: ("unclear", "?"),
    SideAnswer.ALIKE: ("green", "\N{CHECK MARK}"),
    SideAnswer.FASTER: ("green", "\N{BLACK STAR}"),
}
"""Colour and symbol of each answer."""

COLUMNS = (
    ("Answer", "text"),
    ("Configuration", "text"),
    ("Difference", "number"),
    ("Interval", "text"),
    ("A", "number"),
    ("B", "number"),
    ("Runs", "number"),
    ("Candidate", "text"),
)
"""Column heads of the table, with their alignment."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A configuration as displayed on the page."""

    anchor: str
    name: str
    badge: Badge
    cells: list[tuple[str, str]]  # (text, sort key) pairs
    facts: list[tuple[str, str]]
    chart: Chart
    tables: list[ShownTable]


def render_sides(
    document: ComparisonDocument, now: datetime, *, of_site: bool = False
) -> str:
    """Render a comparison as a self-contained HTML page.

    A page of a site links to the site's index.
    """
    style, script = read_asset("style.css"), read_asset("script.js")
    entries = [
        _make_entry(comparison, document.margin) for comparison in document.comparisons
    ]
    lists = (
        ("Not compared", list_not_compared(document)),
        ("Runs without data", list(map(format_no_data, document.no_data))),
    )
    return (
        make_environment()
        .get_template("sides.html")
        .render(
            title=count_answers(document),
            ending=ENDING if of_site else "llmbench",
            back=f"../{INDEX}" if of_site else "",
            now=f"{now:%Y-%m-%d %H:%M} UTC",
            remarks=list(list_remarks(document)),
            sides=(document.a, document.b),
            counts=_count_colours(entries),
            columns=COLUMNS,
            comparisons=entries,
            lists=[(title, texts) for title, texts in lists if texts],
            style=style,
            script=script,
            policy=make_policy(style, script),
        )
    )


def _count_colours(entries: Sequence[_Entry]) -> list[tuple[str, int]]:
    colours = [entry.badge.colour for entry in entries]
    return [(colour, colours.count(colour)) for colour in dict.fromkeys(colours)]


def name_anchor(configuration: str) -> str:
    """Return the anchor of a configuration id on the page."""
    return re.sub(r"[^\w.-]+", "-", configuration, flags=re.ASCII)


def _make_entry(comparison: ReportedConfiguration, margin: float) -> _Entry:
    """Build the section of one configuration on the page."""
    name, answer = comparison.configuration, SideAnswer(comparison.answer)
    anchor = name_anchor(name)
    colour, symbol = BADGES[answer]
    return _Entry(
        anchor=anchor,
        name=name,
        badge=Badge(colour, symbol, format_answer(comparison, margin)),
        cells=_list_cells(comparison),
        facts=list(list_facts(comparison, margin)),
        chart=_draw_runs(comparison, f"{anchor}-runs"),
        tables=[table for table in _list_tables(comparison) if table[-1]],
    )


def _list_cells(comparison: ReportedConfiguration) -> list[tuple[str, str]]:
    difference, low, high = format_interval(comparison)
    seconds = [side.step_seconds for side in comparison.sides]
    return [
        (difference, f"{comparison.difference:.9g}"),
        (f"{low} to {high}", f"{comparison.low:.9g}"),
        *((formatting.format_seconds(value), f"{value:.9g}") for value in seconds),
        ("{} + {}".format(*comparison.runs), str(sum(comparison.runs))),
        (name_label(comparison.candidate), comparison.candidate),
    ]


def _list_tables(comparison: ReportedConfiguration) -> Iterator[ShownTable]:
    """Yield the tables of a configuration: differing facts, varying facts, runs."""
    yield (
        "Differs",
        ("fact", "A", "B"),
        [(name_label(fact.name), fact.a, fact.b) for fact in comparison.differs],
    )
    varies = [
        (
            name_label(fact.name),
            formatting.join_first(fact.a, 8),
            formatting.join_first(fact.b, 8),
        )
        for fact in comparison.varies
    ]
    yield "Varies within a side", ("fact", "A", "B"), varies
    runs = [
        (
            run.run,
            formatting.format_seconds(run.step_seconds),
            (run.started or "unknown")[:16].replace("T", " "),
            run.job_id or "-",
            formatting.fold_nodes(run.nodes) or "unknown",
            run.log,
        )
        for side in comparison.sides
        for run in side.runs
    ]
    yield "Runs", ("run", "step time", "started (UTC)", "job", "nodes", "log"), runs


def _draw_runs(comparison: ReportedConfiguration, name: str) -> Chart:
    """Draw the step time of each run, with the mean of each side."""
    times = [[run.step_seconds for run in side.runs] for side in comparison.sides]
    means = [side.step_seconds for side in comparison.sides]
    y = make_number_scale(*pad([value for values in times for value in values]))
    picture = Picture(Scale(0.0, 3.0, [(1.0, "A"), (2.0, "B")]), y, "", "seconds")
    for position, (values, mean) in enumerate(zip(times, means, strict=True), 1):
        picture.draw_line([(position - 0.4, mean), (position + 0.4, mean)], "line")
        count = len(values)
        points = [
            (position + 0.5 * ((index + 0.5) / count - 0.5), value)
            for index, value in enumerate(values)
        ]
        picture.draw_points(points, "dot", "measured")
    spans = [
        f"{label}: {formatting.count_noun(len(values), 'run')}, {formatting.format_seconds(min(values))} to "
        f"{formatting.format_seconds(max(values))}"
        for label, values in zip("AB", times, strict=True)
    ]
    key = "the line is the mean of a side"
    return Chart(name, "Runs", f"{'; '.join(spans)}.", picture.make_svg(name), key)
