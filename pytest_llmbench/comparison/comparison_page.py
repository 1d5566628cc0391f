"""Render the HTML page of `llmbench compare`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from pytest_llmbench.comparison.comparison_document import (
    ComparisonDocument,
    ReportedConfiguration,
    ReportedSideRun,
)
from pytest_llmbench.comparison.comparison_records import SideAnswer
from pytest_llmbench.comparison.comparison_text import (
    MANY,
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
from pytest_llmbench.report.html import (
    Badge,
    make_environment,
    make_policy,
    read_script,
    read_style,
)
from pytest_llmbench.report.html.charts import Chart
from pytest_llmbench.report.html.drawing import Picture, Scale, make_number_scale, pad
from pytest_llmbench.report.html.page_tables import ShownTable
from pytest_llmbench.report.site_names import ENDING, INDEX

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


class _Entry(Struct, frozen=True):
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
    style = read_style("style.css", "report.css")
    script = read_script("script.js", "theme.js")
    entries = [
        _make_entry(comparison, document.margin) for comparison in document.comparisons
    ]
    lists = (
        ("Not compared", list_not_compared(document)),
        ("Runs without data", list(map(format_no_data, document.no_data))),
    )
    template = make_environment().get_template("sides.html")
    return template.render(
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


def _count_colours(entries: Sequence[_Entry]) -> list[tuple[str, int]]:
    """Count the configurations of each colour, in the order of the page."""
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
        tables=[table for table in _list_tables(comparison) if table.rows],
    )


def _list_cells(comparison: ReportedConfiguration) -> list[tuple[str, str]]:
    """Return (text, sort key) pairs for the cells of a row.

    The cells are in the order of `COLUMNS`, without answer and configuration.
    """
    difference, low, high = format_interval(comparison)
    seconds_a, seconds_b = comparison.a.step_seconds, comparison.b.step_seconds
    runs_a, runs_b = comparison.runs
    return [
        (difference, f"{comparison.difference:.9g}"),
        (f"{low} to {high}", f"{comparison.low:.9g}"),
        (formatting.format_seconds(seconds_a), f"{seconds_a:.9g}"),
        (formatting.format_seconds(seconds_b), f"{seconds_b:.9g}"),
        (f"{runs_a} + {runs_b}", str(runs_a + runs_b)),
        (name_label(comparison.candidate), comparison.candidate),
    ]


def _list_tables(comparison: ReportedConfiguration) -> Iterator[ShownTable]:
    """Yield the tables of a configuration: differing facts, varying facts, runs."""
    differs = [(name_label(fact.name), fact.a, fact.b) for fact in comparison.differs]
    yield ShownTable("Differs", ("fact", "A", "B"), differs)
    varies = [
        (
            name_label(fact.name),
            formatting.join_first(fact.a, MANY),
            formatting.join_first(fact.b, MANY),
        )
        for fact in comparison.varies
    ]
    yield ShownTable("Varies within a side", ("fact", "A", "B"), varies)
    yield ShownTable(
        "Runs",
        ("run", "step time", "started (UTC)", "job", "nodes", "log"),
        [_list_run(run) for side in comparison.sides for run in side.runs],
    )


def _list_run(run: ReportedSideRun) -> tuple[str, ...]:
    """Return the cells of a run."""
    started = "unknown"
    if run.started:
        started = run.started[:16].replace("T", " ")
    return (
        run.run,
        formatting.format_seconds(run.step_seconds),
        started,
        run.job_id or "-",
        formatting.fold_nodes(run.nodes) or "unknown",
        run.log,
    )


def _draw_runs(comparison: ReportedConfiguration, name: str) -> Chart:
    """Draw the step time of each run, with the mean of each side."""
    low, high = pad(run.step_seconds for side in comparison.sides for run in side.runs)
    # A is drawn at 1 on the x axis, B at 2.
    x = Scale(0.0, 3.0, [(1.0, "A"), (2.0, "B")])
    picture = Picture(x, make_number_scale(low, high), x_name="", y_name="seconds")
    spans = []
    for position, (label, side) in enumerate(
        zip("AB", comparison.sides, strict=True), 1
    ):
        mean = side.step_seconds
        picture.draw_line([(position - 0.4, mean), (position + 0.4, mean)], "line")
        times = [run.step_seconds for run in side.runs]
        # The runs of a side are evenly spaced between position -0.25 and +0.25.
        points = [
            (position + 0.5 * ((index + 0.5) / len(times) - 0.5), seconds)
            for index, seconds in enumerate(times)
        ]
        picture.draw_points(points, "dot", "measured")
        runs = formatting.count_noun(len(times), "run")
        fastest, slowest = map(formatting.format_seconds, (min(times), max(times)))
        spans.append(f"{label}: {runs}, {fastest} to {slowest}")
    key = "the line is the mean of a side"
    return Chart(name, "Runs", f"{'; '.join(spans)}.", picture.make_svg(name), key)
