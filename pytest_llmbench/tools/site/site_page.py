"""The pages of `llmbench site`: all configurations by their nights, and one page for
each of them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

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
    read_asset,
)
from pytest_llmbench.report.html.charts import (
    Chart,
    DrawnChange,
    DrawnDay,
    draw_days,
    format_change,
)
from pytest_llmbench.report.html.site_names import ENDING, INDEX
from pytest_llmbench.report.verdicts import MFU_LOGGED, ORDER, choose_colour
from pytest_llmbench.report.wording import phrase
from pytest_llmbench.tools.site.fleet_records import FleetDays, FleetRow
from pytest_llmbench.tools.site.site_folder import (
    COMPARISONS,
    CONFIGURATIONS,
    name_page,
)
from pytest_llmbench.tools.site.strips import draw_strip

CELLS = 14
"""The last nights that have a cell each; all of them are drawn beside."""

NEWS = 14
"""A change is news for so many days."""

MOST_NEWS = 10

OLD = timedelta(hours=36)
"""A newest session that began longer ago is told: what it says is not tonight's."""

NO_RUN = Badge("skipped", "\N{WHITE CIRCLE}", "NO RUN")
"""Of a configuration that no newest session has judged: its last verdict is an old
one."""

COLUMNS = (
    ("Tonight", "text"),
    ("Configuration", "text"),
    ("All changes", "number"),
    ("Last change", "number"),
    ("Step time", "number"),
    ("MFU %", "number"),
)
"""The heads of the columns before the nights, and how their cells are aligned."""

LAST_GOOD = "the page of each says what it took on its last good night, and links to a comparison of both nights"
SINCE_LAST_GOOD = (
    "look at what differs since the last good night; else run both in turn on the same nodes (--llmb-ab), or search "
    "the builds between them (--llmb-bisect)"
)


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """What the foot of each page says of its making; `command` is what was typed,
    without secrets."""

    now: datetime
    command: str
    version: str
    host: str


@dataclass(frozen=True, slots=True)
class _Shown:
    """A configuration as both kinds of pages show it."""

    row: FleetRow
    colours: tuple[str, ...]  # of its nights
    badge: Badge
    page: str  # below the folder of configurations


def render_site(
    fleet: FleetDays, compared: Mapping[str, str], facts: SiteFacts
) -> Iterator[tuple[str, str]]:
    """Yield the name of each page below the folder of the site, and its text.

    `compared` has by configuration the name of a page that compares its last night with
    its last good one, which the caller makes (`render_sides`).
    """
    shown = [
        _Shown(row, *_choose_look(row), name_page(row.configuration))
        for row in fleet.rows
    ]
    environment, style, script = (
        make_environment(),
        read_asset("style.css"),
        read_asset("script.js"),
    )
    common: dict[str, Any] = {
        "style": style,
        "script": script,
        "policy": make_policy(style, script),
        "ending": ENDING,
        "facts": facts,
        "session": fleet.session,
        "place": fleet.place,
        "now": _format_timestamp(facts.now),
    }
    template = environment.get_template("nights.html")
    for entry in shown:
        yield (
            f"{CONFIGURATIONS}/{entry.page}",
            template.render(**common, **_describe_page(entry, compared, fleet.place)),
        )
    yield (
        INDEX,
        environment.get_template("fleet.html").render(
            **common, **_describe_fleet(fleet, shown, facts)
        ),
    )


def _choose_look(row: FleetRow) -> tuple[tuple[str, ...], Badge]:
    colours = tuple(map(_choose_day_colour, row.nights))
    word = row.nights[-1].verdict
    return colours, Badge(
        colours[-1], SYMBOLS.get(word, "!"), word
    ) if row.current else NO_RUN


def _choose_day_colour(night: StoredVerdict) -> str:
    return choose_colour(night.status, night.verdict)


def _format_timestamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


# --- the first page -------------------------------------------------------------------


def _describe_fleet(
    fleet: FleetDays, shown: Sequence[_Shown], facts: SiteFacts
) -> dict[str, Any]:
    ordered = sorted(shown, key=_rank)
    counts = Counter(entry.badge.colour for entry in shown)
    places = {day: column for column, day in enumerate(fleet.days)}
    last_days = fleet.days[-CELLS:]
    return {
        "title": ", ".join(
            f"{counts[colour]} {colour}" for colour in COLOURS if counts[colour]
        ),
        "counts": [(colour, counts[colour]) for colour in COLOURS if counts[colour]],
        "words": [
            f"{number} {word}"
            for word, number in Counter(entry.badge.word for entry in ordered).items()
        ],
        "cautions": list(_list_cautions(fleet, facts.now)),
        "next_steps": _list_advice(ordered),
        **_list_news(shown, fleet.session.started),
        "columns": COLUMNS,
        "mfu": MFU_LOGGED
        if any(night.mfu_logged for row in fleet.rows for night in row.nights[-1:])
        else "",
        "days": last_days,
        "span": f"{formatting.count_noun(len(fleet.days), 'night')}, {fleet.days[0]} to {fleet.days[-1]}",
        "legend": [(SYMBOLS[word], word, colour) for word, colour in LEGEND],
        "entries": [
            {
                **_describe_entry(entry),
                "cells": _list_cells(entry),
                "strip": draw_strip(entry.row, entry.colours, places),
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
"""The verdicts whose sign the page explains, and the colour that they have most
often."""


def _rank(entry: _Shown) -> tuple[int, int, float, str]:
    """Return by what configurations are ordered: what needs a reader first, then what
    lost most."""
    word = entry.badge.word
    order = ORDER.index(word) if word in ORDER else len(ORDER)
    return (
        COLOURS.index(entry.badge.colour),
        order,
        -(entry.row.total or 0.0),
        entry.row.configuration,
    )


def _list_cautions(fleet: FleetDays, now: datetime) -> Iterator[str]:
    yield from [fleet.future] if fleet.future else []
    yield from fleet.damaged
    age = now - fleet.session.started
    if age > OLD:
        yield f"the newest session of this history began {formatting.format_age(age)} ago: nothing here is of tonight"
    old = sum(not row.current for row in fleet.rows)
    if old:
        yield f"{formatting.count_noun(old, 'configuration')} without a verdict of the newest sessions"


def _describe_entry(entry: _Shown) -> dict[str, Any]:
    page = f"{CONFIGURATIONS}/{entry.page}"
    night = entry.row.nights[-1]
    last = "" if entry.row.current else f"{night.day} {night.verdict}"
    return {
        "name": entry.row.configuration,
        "badge": entry.badge,
        "page": page,
        "last": last,
    }


def _list_cells(entry: _Shown) -> list[tuple[str, str]]:
    """Return the texts of cells, and the values that they are sorted by."""
    row = entry.row
    last, night = _find_last_change(row), row.nights[-1]
    seconds = next(
        (value for value in reversed(row.seconds) if value is not None), None
    )
    measured = next((night for night in reversed(row.nights) if night.counts), night)
    return [
        (format_change(row.total), "" if row.total is None else f"{row.total:.6g}"),
        (
            f"{format_change(last.difference)} {last.started:%Y-%m-%d}"
            if last
            else "-",
            f"{last.difference:.6g}" if last else "",
        ),
        (
            formatting.format_seconds(seconds),
            "" if seconds is None else f"{seconds:.6g}",
        ),
        (_format_mfu(measured), "" if measured.mfu is None else f"{measured.mfu:.6g}"),
    ]


def _find_last_change(row: FleetRow) -> LevelChange | None:
    return max(row.changes, key=lambda change: change.started, default=None)


def _list_days(entry: _Shown, days: Sequence[date]) -> Iterator[dict[str, str] | None]:
    """Yield a cell for each of the last days; None for a day without a verdict."""
    by_day = {
        night.day: (night, colour)
        for night, colour in zip(entry.row.nights, entry.colours, strict=True)
    }
    for day in days:
        if day not in by_day:
            yield None
            continue
        night, colour = by_day[day]
        yield {
            "day": f"{day}",
            "colour": colour,
            "sign": SYMBOLS.get(night.verdict, "!"),
            "text": f"{day} {night.verdict} {_format_day_difference(night)}".removesuffix(
                " -"
            ),
        }


def _format_day_difference(night: StoredVerdict) -> str:
    difference = night.log_difference if night.counts else None
    return formatting.format_difference(
        None if difference is None else formatting.compute_bounded_exp(difference)
    )


def _format_mfu(night: StoredVerdict) -> str:
    return (
        "-"
        if night.mfu is None or not night.counts
        else f"{night.mfu * 100:.1f}{'*' * night.mfu_logged}"
    )


def _list_advice(ordered: Sequence[_Shown]) -> list[dict[str, Any]]:
    """Return what to do about those that need a reader, by verdict and reason: links to
    the first ones."""
    groups: dict[tuple[str, str], list[_Shown]] = {}
    for entry in ordered:
        if entry.badge.colour in ("red", "unclear"):
            groups.setdefault(
                (entry.badge.word, entry.row.nights[-1].reason), []
            ).append(entry)
    return [
        {
            "reason": f"{word} ({reason})",
            "links": [_describe_entry(entry) for entry in group[:3]],
            "more": len(group[3:]),
            "advice": _advise(group[0].row, LAST_GOOD),
        }
        for (word, reason), group in list(groups.items())[:MOST_ADVICE]
    ]


def _advise(row: FleetRow, slower: str) -> str:
    """Return what to do about the last night of a configuration, `slower` about one
    that is slower than on its last good night; empty where nothing is known to do."""
    night = row.nights[-1]
    if row.last_good is not None and night.reason == "slower-than-bound":
        return slower
    if night.reason not in ADVICE or night.reason in NOTHING_TO_DO:
        return ""
    return advise_on_stored(
        row.configuration, night.reason, night.verdict, night.baseline
    )


def _list_news(shown: Sequence[_Shown], newest: datetime) -> dict[str, Any]:
    """Return the changes of the last days that stand, newest first, and how many of
    them are no news: acknowledged."""
    changes = [
        (change, entry)
        for entry in shown
        for change in entry.row.changes
        if change.stands and newest - change.started < timedelta(days=NEWS)
    ]
    news = [(change, entry) for change, entry in changes if change.acknowledged is None]
    news.sort(
        key=lambda pair: (pair[0].started.date(), abs(pair[0].difference)), reverse=True
    )
    count = len(changes) - len(news)
    return {
        "changes": [
            {**_describe_entry(entry), "text": phrase(change)}
            for change, entry in news[:MOST_NEWS]
        ],
        "acknowledged": f"{formatting.count_noun(count, 'acknowledged change')} left out"
        if count
        else "",
    }


# --- the page of a configuration ------------------------------------------------------


def _describe_page(
    entry: _Shown, compared: Mapping[str, str], place: str
) -> dict[str, Any]:
    row, night = entry.row, entry.row.nights[-1]
    good = row.last_good
    link = compared.get(row.configuration)
    return {
        "entry": _describe_entry(entry),
        "text": night.text,
        "advice": _advise(row, SINCE_LAST_GOOD)
        if entry.colours[-1] in ("red", "unclear")
        else "",
        "back": f"../{INDEX}",
        "good": f"{good.day}, {formatting.format_seconds(good.run_seconds)}"
        if good
        else "",
        "command": f"llmbench compare {good.day} {night.day} --history {shlex.quote(place)}"
        if link and good
        else "",
        "compare": f"../{COMPARISONS}/{link}" if link else "",
        "facts_of_night": list(_list_facts(row, night)),
        "chart_of_nights": _draw(row),
        "anchor": name_anchor(row.configuration),
        "changes": [_list_change(change) for change in reversed(row.changes)],
        "nights": [
            _describe_day(night, colour)
            for night, colour in zip(
                reversed(row.nights), reversed(entry.colours), strict=True
            )
        ],
    }


def _list_facts(row: FleetRow, night: StoredVerdict) -> Iterator[tuple[str, str]]:
    last = _find_last_change(row)
    yield "all changes", f"{format_change(row.total)} since {row.nights[0].day}"
    yield "last change", phrase(last) if last else "none is shown"
    yield (
        "baseline",
        f"{night.baseline}, {formatting.format_seconds(night.expected_seconds)}",
    )
    yield "tolerance", night.tolerance
    yield (
        "window",
        f"{night.window.statistic.replace('_', ' ')} of steps {night.window.first} to {night.window.last}",
    )
    yield (
        "nights",
        f"{len(row.nights)}, {sum(value is not None for value in row.seconds)} with a step time that counts",
    )


def _draw(row: FleetRow) -> Chart | None:
    nights = [
        DrawnDay(night.day.isoformat(), night.verdict, seconds, night.expected_seconds)
        for night, seconds in zip(row.nights, row.seconds, strict=True)
    ]
    counted = [at for at, seconds in enumerate(row.seconds) if seconds is not None]
    changes = [
        DrawnChange(
            counted[change.first_run],
            f"{change.started:%Y-%m-%d}",
            change.difference,
            change.acknowledged is not None,
        )
        for change in row.changes
        if change.first_run < len(counted)
    ]
    return draw_days(nights, changes, "chart")


def _list_change(change: LevelChange) -> tuple[str, ...]:
    return (
        f"{change.started:%Y-%m-%d}",
        f"{change.kind}",
        format_change(change.difference),
        f"{format_change(change.low)} to {format_change(change.high)}",
        "; ".join(
            f"{name}: {before} to {after}" for name, before, after in change.environment
        )
        or "nothing that is known",
        _describe_state(change),
    )


def _describe_state(change: LevelChange) -> str:
    if not change.stands:
        return "taken back since"
    if change.acknowledged is not None:
        return f"acknowledged {_describe_acknowledged(change.acknowledged)}"
    return (
        f"stands; was acknowledged {_describe_acknowledged(change.expired)}"
        if change.expired
        else "stands"
    )


def _describe_acknowledged(entry: Acknowledgement) -> str:
    return f"by {entry.by} until {entry.expires}: {entry.reason}"


def _describe_day(night: StoredVerdict, colour: str) -> dict[str, Any]:
    return {
        "day": f"{night.day}",
        "badge": Badge(colour, SYMBOLS.get(night.verdict, "!"), night.verdict),
        "cells": (
            formatting.format_seconds(night.step_seconds if night.counts else None),
            _format_day_difference(night),
            _format_mfu(night),
        ),
        "texts": (
            night.reason,
            night.job_id or "-",
            formatting.fold_nodes(night.nodes) or "-",
            night.session,
        ),
    }
