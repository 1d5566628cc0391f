"""Render the pages of `llmbench site`: an index, and a page for each configuration."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any

from msgspec import Struct

from pytest_llmbench.comparison.comparison_page import name_anchor
from pytest_llmbench.core import formatting
from pytest_llmbench.core.judgement_records import LevelChange
from pytest_llmbench.core.run_records import Acknowledgement
from pytest_llmbench.history.stored_verdicts import StoredVerdict
from pytest_llmbench.report.advice import ADVICE, NOTHING_TO_DO, advise_on_stored
from pytest_llmbench.report.html import (
    COLOURS,
    MOST_ADVICE,
    SYMBOLS,
    Badge,
    make_environment,
    make_policy,
    read_script,
    read_style,
)
from pytest_llmbench.report.html.charts import (
    Chart,
    DrawnChange,
    DrawnDay,
    draw_days,
)
from pytest_llmbench.report.site_names import ENDING, INDEX
from pytest_llmbench.report.verdicts import MFU_LOGGED, ORDER, choose_colour
from pytest_llmbench.report.wording import phrase
from pytest_llmbench.tools.site.fleet_records import FleetDays, FleetRow
from pytest_llmbench.tools.site.site_folder import (
    CONFIGURATIONS,
    name_page,
)
from pytest_llmbench.tools.site.strips import draw_strip

CELLS = 14
"""Number of last days that have a table cell each; the drawing shows all days."""

RECENT_DAYS = 14
"""Days for which a level change is listed as recent."""

MOST_CHANGES = 10
"""Limit of listed recent changes."""

MOST_LINKS = 3
"""Limit of linked configurations for each piece of advice."""

OLD = timedelta(hours=36)
"""Age of the newest session from which the page warns."""

NO_RUN = Badge("skipped", "\N{WHITE CIRCLE}", "NO RUN")
"""The badge of a configuration that the newest sessions have not judged."""

COLUMNS = (
    ("Latest", "text"),
    ("Configuration", "text"),
    ("All changes", "number"),
    ("Last change", "number"),
    ("Step time", "number"),
    ("MFU %", "number"),
)
"""Head and alignment of the columns before the daily verdicts."""

LAST_GOOD = (
    "the page of each configuration links to a comparison with its last good run"
)
SINCE_LAST_GOOD = (
    "check the differences from the last good run; if they do not explain it, run both builds alternately on the same "
    "nodes (--llmb-ab), or search the builds between them (--llmb-bisect)"
)


class SiteFacts(Struct, frozen=True):
    """The origin of the pages, for their footer."""

    now: datetime
    command: str
    """The typed command line, without secrets."""

    version: str
    host: str


class _PageEntry(Struct, frozen=True):
    """A configuration on the index page and on its page."""

    row: FleetRow
    colours: tuple[str, ...]
    """The colour of each day."""

    badge: Badge
    page: str
    """The name of its page in the folder CONFIGURATIONS."""


def render_site(
    fleet: FleetDays, compared: Mapping[str, str], facts: SiteFacts
) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each page; paths are relative to the site's folder.

    `compared` contains the name of the comparison page of each configuration that
    failed after a good run; the caller renders these pages (`render_sides`).
    """
    entries = [_make_entry(row) for row in fleet.rows]
    environment = make_environment()
    common: dict[str, Any] = {
        "ending": ENDING,
        "facts": facts,
        "session": fleet.session,
        "place": fleet.location,
        "now": _format_timestamp(facts.now),
    }
    configuration_template = environment.get_template("nights.html")
    # A configuration has no table to sort or filter, and no cards.
    assets = _describe_assets(read_style("style.css"), read_script("theme.js"))
    make_rows = _DayRows().make_rows
    for entry in entries:
        values = _describe_page(entry, compared, fleet.location, make_rows)
        page = configuration_template.render(**common, **assets, **values)
        yield f"{CONFIGURATIONS}/{entry.page}", page
    index_template = environment.get_template("fleet.html")
    assets = _describe_assets(
        read_style("style.css", "report.css"), read_script("script.js", "theme.js")
    )
    values = _describe_fleet(fleet, entries, facts)
    yield INDEX, index_template.render(**common, **assets, **values)


def _describe_assets(style: str, script: str) -> dict[str, str]:
    """Return the template values of a style sheet and a script, with their policy."""
    return {"style": style, "script": script, "policy": make_policy(style, script)}


def _make_entry(row: FleetRow) -> _PageEntry:
    """Build an entry; its badge shows the last verdict, or NO_RUN if not current."""
    colours = tuple(map(_choose_day_colour, row.verdicts))
    word = row.verdicts[-1].verdict
    badge = NO_RUN
    if row.current:
        badge = Badge(colours[-1], SYMBOLS.get(word, "!"), word)
    return _PageEntry(row, colours, badge, name_page(row.configuration))


def _choose_day_colour(verdict: StoredVerdict) -> str:
    return choose_colour(verdict.status, verdict.verdict)


def _format_timestamp(timestamp: datetime) -> str:
    return f"{timestamp:%Y-%m-%d %H:%M} UTC"


# --- the index page -------------------------------------------------------------------


def _describe_fleet(
    fleet: FleetDays, entries: Sequence[_PageEntry], facts: SiteFacts
) -> dict[str, Any]:
    """Return the template values of the index page."""
    ordered = sorted(entries, key=_rank)
    count_by_colour = Counter(entry.badge.colour for entry in entries)
    counts = [
        (colour, count_by_colour[colour])
        for colour in COLOURS
        if count_by_colour[colour]
    ]
    count_by_word = Counter(entry.badge.word for entry in ordered)
    columns = {day: column for column, day in enumerate(fleet.days)}
    last_days = fleet.days[-CELLS:]
    has_logged_mfu = any(row.verdicts[-1].mfu_logged for row in fleet.rows)
    return {
        "title": ", ".join(f"{count} {colour}" for colour, count in counts),
        "counts": counts,
        "words": [f"{count} {word}" for word, count in count_by_word.items()],
        "cautions": list(_list_cautions(fleet, facts.now)),
        "next_steps": _list_advice(ordered),
        **_list_recent_changes(entries, fleet.session.started),
        "columns": COLUMNS,
        "mfu": MFU_LOGGED if has_logged_mfu else "",
        "days": last_days,
        "span": f"{formatting.count_noun(len(fleet.days), 'day')}, {fleet.days[0]} to {fleet.days[-1]}",
        "legend": [(SYMBOLS[word], word, colour) for word, colour in LEGEND],
        "entries": [
            {
                **_describe_entry(entry),
                "cells": _list_cells(entry),
                "strip": draw_strip(entry.row, entry.colours, columns),
                "nights": list(_list_days(entry, last_days)),
            }
            for entry in ordered
        ],
    }


LEGEND = (
    ("REGRESSION", "red"),
    ("INVALID", "red"),
    ("INCONCLUSIVE", "unclear"),
    ("PASS", "green"),
    ("IMPROVEMENT", "green"),
    ("MISSING", "skipped"),
)
"""The verdicts in the legend, each with its most frequent colour."""


def _rank(entry: _PageEntry) -> tuple[int, int, float, str]:
    """Return the sort key: failures first, then the largest slowdown."""
    word = entry.badge.word
    order = ORDER.index(word) if word in ORDER else len(ORDER)
    return (
        COLOURS.index(entry.badge.colour),
        order,
        -(entry.row.total or 0.0),
        entry.row.configuration,
    )


def _list_cautions(fleet: FleetDays, now: datetime) -> Iterator[str]:
    """Yield the warnings of the index page: omitted, damaged and old sessions."""
    if fleet.future:
        yield fleet.future
    yield from fleet.damaged
    age = now - fleet.session.started
    if age > OLD:
        yield f"the newest session of this history started {formatting.format_age(age)} ago: these pages are out of date"
    not_current = sum(not row.current for row in fleet.rows)
    if not_current:
        yield f"{formatting.count_noun(not_current, 'configuration')} without a verdict of the newest sessions"


def _describe_entry(entry: _PageEntry) -> dict[str, Any]:
    """Return the template values of a configuration: name, badge and link."""
    page = f"{CONFIGURATIONS}/{entry.page}"
    verdict = entry.row.verdicts[-1]
    last = "" if entry.row.current else f"{verdict.day} {verdict.verdict}"
    return {
        "name": entry.row.configuration,
        "badge": entry.badge,
        "page": page,
        "last": last,
    }


def _list_cells(entry: _PageEntry) -> list[tuple[str, str]]:
    """Return the texts of the table cells, each with its sort value."""
    row = entry.row
    change = _find_last_change(row)
    change_text, change_value = "-", None
    if change:
        change_text = (
            f"{formatting.format_fraction(change.difference)} {change.started:%Y-%m-%d}"
        )
        change_value = change.difference
    step_times = [seconds for seconds in row.seconds if seconds is not None]
    seconds = step_times[-1] if step_times else None
    # The last valid run, else the last verdict.
    valid = [verdict for verdict in row.verdicts if verdict.counts]
    measured = valid[-1] if valid else row.verdicts[-1]
    return [
        (formatting.format_fraction(row.total), _format_sort_value(row.total)),
        (change_text, _format_sort_value(change_value)),
        (formatting.format_seconds(seconds), _format_sort_value(seconds)),
        (_format_mfu(measured), _format_sort_value(measured.mfu)),
    ]


def _format_sort_value(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _find_last_change(row: FleetRow) -> LevelChange | None:
    return max(row.changes, key=lambda change: change.started, default=None)


def _list_days(
    entry: _PageEntry, days: Sequence[date]
) -> Iterator[dict[str, str] | None]:
    """Yield a cell for each of the last days; None for a day without a verdict."""
    by_day = {
        verdict.day: (verdict, colour)
        for verdict, colour in zip(entry.row.verdicts, entry.colours, strict=True)
    }
    for day in days:
        if day not in by_day:
            yield None
            continue
        verdict, colour = by_day[day]
        text = f"{day} {verdict.verdict} {_format_day_difference(verdict)}"
        yield {
            "day": f"{day}",
            "colour": colour,
            "sign": SYMBOLS.get(verdict.verdict, "!"),
            "text": text.removesuffix(" -"),  # an unknown difference
        }


def _format_day_difference(verdict: StoredVerdict) -> str:
    """Format the difference from the baseline; `-` if it is unknown or not valid."""
    if not verdict.counts or verdict.log_difference is None:
        return formatting.format_difference(None)
    ratio = formatting.compute_bounded_exp(verdict.log_difference)
    return formatting.format_difference(ratio)


def _format_mfu(verdict: StoredVerdict) -> str:
    """Format an MFU: `41.5`, with `*` if it was logged; `-` if unknown or not valid."""
    if verdict.mfu is None or not verdict.counts:
        return "-"
    mark = "*" if verdict.mfu_logged else ""
    return f"{verdict.mfu * 100:.1f}{mark}"


def _list_advice(ordered: Sequence[_PageEntry]) -> list[dict[str, Any]]:
    """List the advice for failed and unclear configurations, by verdict and reason.

    Each entry links to the first configurations.
    """
    groups: dict[tuple[str, str], list[_PageEntry]] = {}
    for entry in ordered:
        if entry.badge.colour in ("red", "unclear"):
            key = (entry.badge.word, entry.row.verdicts[-1].reason)
            groups.setdefault(key, []).append(entry)
    advice = []
    for (word, reason), group in list(groups.items())[:MOST_ADVICE]:
        linked, not_linked = group[:MOST_LINKS], group[MOST_LINKS:]
        advice.append(
            {
                "reason": f"{word} ({reason})",
                "links": [_describe_entry(entry) for entry in linked],
                "more": len(not_linked),
                "advice": _advise(group[0].row, LAST_GOOD),
            }
        )
    return advice


def _advise(row: FleetRow, regression_advice: str) -> str:
    """Return the advice for the last verdict of a configuration, or "".

    `regression_advice` is the advice for a regression after a good run.
    """
    last = row.verdicts[-1]
    if row.last_good is not None and last.reason == "slower-than-bound":
        return regression_advice
    if last.reason not in ADVICE or last.reason in NOTHING_TO_DO:
        return ""
    return advise_on_stored(row.configuration, last.reason, last.verdict, last.baseline)


def _list_recent_changes(
    entries: Sequence[_PageEntry], newest: datetime
) -> dict[str, Any]:
    """List the recent level changes that persist, newest first.

    Acknowledged changes are only counted.
    """
    changes = [
        (change, entry)
        for entry in entries
        for change in entry.row.changes
        if change.stands and newest - change.started < timedelta(days=RECENT_DAYS)
    ]
    recent = [
        (change, entry) for change, entry in changes if change.acknowledged is None
    ]

    def rank(pair: tuple[LevelChange, _PageEntry]) -> tuple[date, float]:
        """Return the sort key: by day, and by size for changes of one day."""
        change, _ = pair
        return change.started.date(), abs(change.difference)

    recent.sort(key=rank, reverse=True)
    acknowledged = len(changes) - len(recent)
    note = ""
    if acknowledged:
        note = (
            f"{formatting.count_noun(acknowledged, 'acknowledged change')} not listed"
        )
    return {
        "changes": [
            {**_describe_entry(entry), "text": phrase(change)}
            for change, entry in recent[:MOST_CHANGES]
        ],
        "acknowledged": note,
    }


# --- the page of a configuration ------------------------------------------------------


def _describe_page(
    entry: _PageEntry,
    compared: Mapping[str, str],
    location: str,
    make_rows: Callable[[Sequence[StoredVerdict], Sequence[str]], str],
) -> dict[str, Any]:
    """Return the template values of the page of one configuration."""
    row, last = entry.row, entry.row.verdicts[-1]
    advice = ""
    if entry.colours[-1] in ("red", "unclear"):
        advice = _advise(row, SINCE_LAST_GOOD)
    last_good = row.last_good
    good_day, command = "", ""
    comparison_page = compared.get(row.configuration)
    if last_good:
        seconds = formatting.format_seconds(last_good.run_seconds)
        good_day = f"{last_good.day}, {seconds}"
        if comparison_page:
            command = f"llmbench compare {last_good.day} {last.day} --history {shlex.quote(location)}"
    return {
        "entry": _describe_entry(entry),
        "text": row.text,
        "advice": advice,
        "back": f"../{INDEX}",
        "good": good_day,
        "command": command,
        "compare": f"../{comparison_page}" if comparison_page else "",
        "facts_of_night": list(_list_facts(row, last)),
        "chart_of_nights": _draw(row),
        "anchor": name_anchor(row.configuration),
        "changes": [_list_change(change) for change in reversed(row.changes)],
        # Newest first.
        "nights": make_rows(row.verdicts[::-1], entry.colours[::-1]),
    }


def _list_facts(row: FleetRow, last: StoredVerdict) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of the facts on a configuration and its last verdict."""
    change = _find_last_change(row)
    yield (
        "all changes",
        f"{formatting.format_fraction(row.total)} since {row.verdicts[0].day}",
    )
    yield "last change", phrase(change) if change else "none"
    yield (
        "baseline",
        f"{last.baseline}, {formatting.format_seconds(last.expected_seconds)}",
    )
    yield "tolerance", last.tolerance
    yield (
        "window",
        f"{last.window.statistic.replace('_', ' ')} of steps {last.window.first} to {last.window.last}",
    )
    yield (
        "days",
        f"{len(row.verdicts)}, {sum(value is not None for value in row.seconds)} with a valid step time",
    )


def _draw(row: FleetRow) -> Chart | None:
    """Draw the daily step times of a configuration with its level changes."""
    days = [
        DrawnDay(
            verdict.day.isoformat(), verdict.verdict, seconds, verdict.expected_seconds
        )
        for verdict, seconds in zip(row.verdicts, row.seconds, strict=True)
    ]
    # `first_run` counts only the days with a step time; the chart shows all days.
    timed_days = [
        index for index, seconds in enumerate(row.seconds) if seconds is not None
    ]
    changes = [
        DrawnChange(
            timed_days[change.first_run],
            f"{change.started:%Y-%m-%d}",
            change.difference,
            change.acknowledged is not None,
        )
        for change in row.changes
        if change.first_run < len(timed_days)
    ]
    return draw_days(days, changes, "chart")


def _list_change(change: LevelChange) -> tuple[str, ...]:
    """Return the cells: day, kind, difference, interval, environment and state."""
    environment = [
        f"{name}: {before} to {after}" for name, before, after in change.environment
    ]
    return (
        f"{change.started:%Y-%m-%d}",
        f"{change.kind}",
        formatting.format_fraction(change.difference),
        f"{formatting.format_fraction(change.low)} to {formatting.format_fraction(change.high)}",
        "; ".join(environment) or "no known change",
        _describe_state(change),
    )


def _describe_state(change: LevelChange) -> str:
    """Describe if a change persists and is acknowledged."""
    if not change.stands:
        return "reverted since"
    if change.acknowledged is not None:
        return f"acknowledged {_describe_acknowledged(change.acknowledged)}"
    if change.expired:
        return f"persists; was acknowledged {_describe_acknowledged(change.expired)}"
    return "persists"


def _describe_acknowledged(entry: Acknowledgement) -> str:
    return f"by {entry.by} until {entry.expires}: {entry.reason}"


class _DayRows:
    """Makes the rows of the table of days as HTML.

    A template would take ten times as long: a year of a cluster has 125,000 rows.
    """

    def __init__(self) -> None:
        from markupsafe import escape

        # Sessions, jobs and reasons repeat in the rows of all configurations.
        self._escape = lru_cache(maxsize=4096)(lambda text: str(escape(text)))
        self._fold_nodes = lru_cache(maxsize=4096)(formatting.fold_nodes)
        self._make_badge = lru_cache(maxsize=4096)(self._format_badge)

    def make_rows(
        self, verdicts: Sequence[StoredVerdict], colours: Sequence[str]
    ) -> str:
        """Return the table rows of these days; all texts of verdicts are escaped."""
        days = [verdict.day.isoformat() for verdict in verdicts]
        seconds = [
            verdict.step_seconds if verdict.counts else None for verdict in verdicts
        ]
        columns: tuple[Iterable[str], ...] = (
            days,
            days,
            map(self._make_badge, [verdict.verdict for verdict in verdicts], colours),
            map(formatting.format_seconds, seconds),
            map(_format_day_difference, verdicts),
            map(_format_mfu, verdicts),
            map(self._escape, [verdict.reason for verdict in verdicts]),
            map(self._escape, [verdict.job_id or "-" for verdict in verdicts]),
            [
                self._escape(self._fold_nodes(verdict.nodes) or "-")
                for verdict in verdicts
            ],
            map(self._escape, [verdict.session for verdict in verdicts]),
        )
        return "\n".join([ROW % cells for cells in zip(*columns, strict=True)])

    def _format_badge(self, word: str, colour: str) -> str:
        """Return the badge of a verdict, with the class of its colour."""
        # The style sheet gives the usual colour to a badge without a class.
        colour_class = "" if colour == "green" else f" class={colour}"
        symbol = self._escape(SYMBOLS.get(word, "!"))
        return f"<b{colour_class}><i aria-hidden=true>{symbol}</i> {self._escape(word)}</b>"


ROW = "<tr id=n%s><th>%s" + "<td>%s" * 8
"""The table row of one day; all values are escaped.

HTML needs no quotes and closing tags here, which would be a quarter of the page.
"""
