"""The --llmb-html report: one self-contained page.

Its content security policy allows only its own style sheet and script. The charts are
visible without the script.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_llmbench.core import formatting
from pytest_llmbench.report import explain
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.advice import advise, list_advice
from pytest_llmbench.report.document import SessionEnding
from pytest_llmbench.report.gpu_hours import format_cost, sum_session
from pytest_llmbench.report.html.charts import (
    Chart,
    draw_distribution,
    draw_history,
    draw_loss,
    draw_steps,
    format_change,
)
from pytest_llmbench.report.html.curves import draw_curve
from pytest_llmbench.report.html.page_tables import ShownTable, list_tables
from pytest_llmbench.report.outcome_documents import (
    CheckOutcome,
    ConfigurationOutcome,
    OutcomeDocument,
    ReportedExcerpt,
    UnmatchedOutcome,
    select_checks,
    select_configurations,
    select_unmatched,
)
from pytest_llmbench.report.verdicts import (
    BY_DOCUMENT,
    ORDER,
    SessionState,
    choose_colour,
    count_documented,
    explain_mfu,
    format_mfu,
    format_step_time,
    get_mfu,
    get_step_time,
    list_all_texts,
    list_documented_absent,
    list_findings,
    locate_log,
    name_outcome,
    name_verdict,
    select_counted,
    select_worst,
)

if TYPE_CHECKING:
    from jinja2 import Environment

    from pytest_llmbench.core.job_records import PlannedHours

Identity = tuple[str, str]
"""The kind of an outcome, or of a check, and its id."""

TEMPLATES = Path(__file__).parent

SUCCESS = SessionEnding(0)

CODE = re.compile(r"`([^`]+)`|(--llmb-[a-z-]+(?:=[^\s;,]+)?)")
"""Matches a command or an option in a text of this package."""

TITLES = {"fp8 speedup": "FP8 speed-up"}
"""Titles of checks that differ from their kind."""

COLOURS = ("red", "unclear", "green", "skipped")
"""The colours of outcomes in the order of the page."""

SYMBOLS = {
    "REGRESSION": "\N{MULTIPLICATION X}",
    "INVALID": "!",
    "INCONCLUSIVE": "?",
    "IMPROVEMENT": "\N{BLACK STAR}",
    "PASS": "\N{CHECK MARK}",
    "RECORDED": "\N{BLACK CIRCLE}",
    "MISSING": "\N{WHITE CIRCLE}",
    "NOT_COMPARABLE": "\N{EN DASH}",
    "TEST_FAILED": "\N{MULTIPLICATION X}",
    "NOT_ASSERTED": "!",
}
"""Symbols of the verdicts, so that colour is not the only distinction."""

COLUMNS = (
    ("Verdict", "text"),
    ("Configuration", "text"),
    ("Difference", "number"),
    ("Step time", "number"),
    ("Baseline", "number"),
    ("MFU %", "number"),
    ("All changes", "number"),
    ("GPUs", "number"),
    ("Age", "number"),
    ("Reason", "text"),
)
"""Titles of the columns of the verdict table, and the alignment of their cells."""

MOST_ADVICE = 6
"""Maximum number of next steps at the head of the page."""

MOST_UNMATCHED = 1000
"""Maximum number of unmatched runs on the page, so that it opens quickly."""

MOST_CHANGES = 8
"""Maximum number of level changes at the head of the page."""

TABLES = ("attempt", "job", "file", "software")
"""Labels of facts that the page shows in tables."""


def render(
    outcomes: Sequence[OutcomeDocument],
    now: datetime,
    planned: PlannedHours | None = None,
    ending: SessionEnding = SUCCESS,
    *,
    foot: Sequence[tuple[str, str]] = (),
) -> str:
    """Render the page; the order of `outcomes` does not matter.

    `foot` contains labels and texts about the session: command, version, host. All
    texts of outcomes are escaped by the templates, and the policy of the page forbids
    other scripts.
    """
    outcomes = sorted(
        select_worst(outcomes),
        key=lambda outcome: (outcome.kind, _rank_outcome(outcome)),
    )
    cost = sum_session(outcomes, planned)
    style, script = (read_asset(name) for name in ("style.css", "script.js"))
    return (
        make_environment()
        .get_template("page.html")
        .render(
            **_collect_content(outcomes),
            state=_name_state(ending),
            mfu=explain_mfu(outcomes),
            problems=ending.problems,
            cautions=list_all_texts(outcomes, ending.cautions),
            foot=foot,
            cost=format_cost(cost) if cost else "",
            now=f"{now:%Y-%m-%d %H:%M} UTC",
            style=style,
            script=script,
            # A second protection: unescaped markup of a log would not be executed.
            policy=make_policy(style, script),
        )
    )


def _name_state(ending: SessionEnding) -> str:
    """Return the prefix of the title if the session did not run to its end, else ""."""
    state, code = ending.describe((), green=False)
    return "" if state is SessionState.RED else f"{state}{code}, "


class Badge(NamedTuple):
    """The coloured label of a verdict."""

    colour: str
    symbol: str
    word: str


@dataclass(frozen=True, kw_only=True)
class ShownOutcome:
    """An outcome prepared for the templates."""

    anchor: str
    outcome: OutcomeDocument
    name: str
    badge: Badge


@dataclass(frozen=True, kw_only=True)
class ShownRow(ShownOutcome):
    """An outcome with the cells of its table row, as (text, sort key) pairs."""

    cells: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class ShownConfiguration(ShownRow):
    """A configuration with its texts, tables and charts."""

    outcome: ConfigurationOutcome
    texts: Sequence[str]
    advice: str
    facts: Sequence[tuple[str, str]]
    tables: Sequence[ShownTable]
    charts: Sequence[Chart]
    notes: Sequence[str]
    excerpt: ReportedExcerpt | None


@dataclass(frozen=True, kw_only=True)
class ShownCheck(ShownOutcome):
    """A check with its chart."""

    chart: Chart | None


@dataclass(frozen=True, slots=True)
class ShownChange:
    """A level change at the head of the page."""

    anchor: str
    name: str
    text: str


def _collect_content(outcomes: Sequence[OutcomeDocument]) -> dict[str, Any]:
    """Collect the values for the templates."""
    anchors = _assign_anchors(outcomes)
    documented = list_documented_absent(outcomes)
    folded = {_identify(outcome) for outcome in documented}
    shown = [outcome for outcome in outcomes if _identify(outcome) not in folded]
    unmatched = select_unmatched(shown)
    configurations = [
        _show_configuration(outcome, anchors)
        for outcome in select_configurations(shown)
    ]
    listed = [
        _show_unmatched(outcome, anchors) for outcome in unmatched[:MOST_UNMATCHED]
    ]
    rows: list[ShownRow] = [*configurations, *listed]
    return {
        "title": _make_title(outcomes),
        "counts": _count_colours(outcomes),
        "words": _list_counts(outcomes),
        "next_steps": _list_linked_advice(outcomes, anchors),
        "columns": COLUMNS,
        "configurations": configurations,
        "unmatched": listed,
        "unmatched_left_out": len(unmatched) - len(listed),
        "documented": count_documented(documented) if documented else "",
        "documented_names": [name_outcome(outcome) for outcome in documented],
        "rows": sorted(rows, key=lambda shown: COLOURS.index(shown.badge.colour)),
        "changes": _list_news(configurations),
        "checks": _group_checks(shown, anchors),
        "advise": advise,
        "locate_log": locate_log,
    }


def _show_head(
    outcome: OutcomeDocument, anchors: Mapping[Identity, str]
) -> dict[str, Any]:
    return {
        "anchor": anchors[_identify(outcome)],
        "name": name_outcome(outcome),
        "badge": _make_badge(outcome),
    }


def _show_unmatched(
    outcome: UnmatchedOutcome, anchors: Mapping[Identity, str]
) -> ShownRow:
    """Prepare an unmatched run; only the cell of its reason is filled."""
    unknown = [("-", "")] * (len(COLUMNS) - 3)
    cells = [*unknown, (outcome.reason, outcome.reason)]
    return ShownRow(**_show_head(outcome, anchors), outcome=outcome, cells=cells)


def _group_checks(
    shown: Sequence[OutcomeDocument], anchors: Mapping[Identity, str]
) -> dict[str, list[ShownCheck]]:
    """Group the checks by the title of their kind, with their charts."""
    by_id = {outcome.id: outcome for outcome in select_configurations(shown)}
    groups: dict[str, list[ShownCheck]] = {}
    for check in sorted(select_checks(shown), key=lambda check: check.check):
        head = _show_head(check, anchors)
        chart = draw_curve(check, by_id, f"{anchors[_identify(check)]}-curve")
        title = TITLES.get(check.suite, check.suite.capitalize())
        groups.setdefault(title, []).append(
            ShownCheck(**head, outcome=check, chart=chart)
        )
    return groups


def _assign_anchors(outcomes: Sequence[OutcomeDocument]) -> dict[Identity, str]:
    """Assign a unique URL fragment to each outcome.

    The fragment of a configuration is its id: `report.html#grok1_314b-25.05-...`.
    """
    anchors: dict[Identity, str] = {}
    used: set[str] = set()
    for outcome in outcomes:
        prefix = (
            ""
            if isinstance(outcome, ConfigurationOutcome)
            else f"{_name_kind(outcome)}-"
        )
        name = prefix + (
            re.sub(r"[^\w.-]+", "-", outcome.id, flags=re.ASCII).strip("-") or "item"
        )
        anchor = anchors.setdefault(
            _identify(outcome), name if name not in used else f"{name}-{len(used)}"
        )
        used.add(anchor)
    return anchors


def _identify(outcome: OutcomeDocument) -> Identity:
    """Return the unique key of an outcome: checks of different kinds may share an id."""
    return _name_kind(outcome), outcome.id


def _name_kind(outcome: OutcomeDocument) -> str:
    return outcome.check if isinstance(outcome, CheckOutcome) else outcome.kind


@cache
def make_environment() -> Environment:
    """Create the Jinja environment for the templates of this folder, with escaping."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Charts are SVG elements whose texts are already escaped.
    environment.filters["drawn"] = Markup
    environment.filters["marked"] = lambda text: Markup(  # noqa: S704
        CODE.sub(r"<code>\1\2</code>", str(escape(text)))
    )
    return environment


def read_asset(name: str) -> str:
    """Read the style sheet or the script of a page."""
    return (TEMPLATES / name).read_text(encoding="utf-8").strip()


def make_policy(style: str, script: str) -> str:
    """Build the content security policy of a page.

    It allows only the given style sheet and script, and no requests.
    """
    return f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"


def _hash(content: str) -> str:
    """Return the CSP hash of an inline style sheet or script."""
    # Browsers hash everything between the tags, including the line breaks that the
    # template adds.
    digest = hashlib.sha256(f"\n{content}\n".encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


# --- the head: badges, counts and next steps ------------------------------------------


def _make_badge(outcome: OutcomeDocument) -> Badge:
    word = name_verdict(outcome)
    other = "!" if outcome.status == "failed" else "\N{BULLET}"
    return Badge(_choose_colour(outcome), SYMBOLS.get(word, other), word)


def _choose_colour(outcome: OutcomeDocument) -> str:
    return choose_colour(outcome.status, outcome.verdict)


def _rank_outcome(outcome: OutcomeDocument) -> tuple[int, int, str]:
    """Return the sort key of an outcome: colour, verdict, id."""
    word = str(outcome.verdict)
    # Numbers are padded, so that 8 GPUs come before 16.
    name = re.sub("[0-9]+", lambda digits: digits.group().zfill(9), outcome.id)
    return (
        COLOURS.index(_choose_colour(outcome)),
        ORDER.index(word) if word in ORDER else len(ORDER),
        name,
    )


def _count_colours(outcomes: Sequence[OutcomeDocument]) -> list[tuple[str, int]]:
    """Count the outcomes of each colour, without checks that passed."""
    numbers = Counter(map(_choose_colour, select_counted(outcomes)))
    return [(name, numbers[name]) for name in COLOURS if numbers[name]]


def _list_counts(outcomes: Sequence[OutcomeDocument]) -> list[str]:
    """Count outcomes by verdict: `1 REGRESSION`, `2 INVALID`, `72 PASS`."""
    numbers = Counter(
        _make_badge(outcome).word
        for outcome in sorted(select_counted(outcomes), key=_rank_outcome)
    )
    texts = [f"{number} {word}" for word, number in numbers.items()]
    return (
        [*texts, BY_DOCUMENT]
        if any(outcome.timed == "document" for outcome in outcomes)
        else texts
    )


def _list_linked_advice(
    outcomes: Sequence[OutcomeDocument], anchors: Mapping[Identity, str]
) -> list[dict[str, Any]]:
    """Return the next steps by reason, with links to the first outcomes of each.

    The advice is the same as in the terminal summary, for more reasons.
    """
    return [
        {
            "reason": group[0].reason,
            "links": [
                (anchors[_identify(outcome)], name_outcome(outcome))
                for outcome in group[:3]
            ],
            "more": len(group[3:]),
            "advice": text,
        }
        for group, text in list_advice(sorted(outcomes, key=_rank_outcome))[
            :MOST_ADVICE
        ]
    ]


def _make_title(outcomes: Sequence[OutcomeDocument]) -> str:
    """Return the page title: `3 red, trend: 6 SLOWER, 2 unclear, 77 green`."""
    counts = _count_colours(outcomes)
    reported = [finding.text for finding in list_findings(outcomes)]
    red = [f"{number} {name}" for name, number in counts if name == "red"]
    others = [f"{number} {name}" for name, number in counts if name != "red"]
    return ", ".join([*red, *reported, *others]) or formatting.count_noun(
        len(outcomes), "outcome"
    )


# --- a configuration: its row in the verdict table, and its details -------------------


def _show_configuration(
    outcome: ConfigurationOutcome, anchors: Mapping[Identity, str]
) -> ShownConfiguration:
    """Build the content of one configuration on the page, with its charts."""
    anchor, excerpt = anchors[_identify(outcome)], outcome.excerpt
    charts = (
        draw_loss(outcome, f"{anchor}-loss"),
        draw_steps(outcome, f"{anchor}-steps"),
        draw_distribution(outcome, f"{anchor}-spread"),
        draw_history(outcome, f"{anchor}-history"),
    )
    return ShownConfiguration(
        **_show_head(outcome, anchors),
        outcome=outcome,
        cells=_list_cells(outcome),
        texts=[text for text in (outcome.text, outcome.context) if text],
        advice=advise(outcome) if outcome.status != "passed" else "",
        facts=[fact for fact in explain.list_facts(outcome) if fact[0] not in TABLES],
        tables=[table for table in list_tables(outcome) if table[-1]],
        charts=[chart for chart in charts if chart],
        notes=list(map(explain.format_note, outcome.notes)),
        excerpt=excerpt if excerpt and excerpt.lines else None,
    )


def _list_cells(outcome: ConfigurationOutcome) -> list[tuple[str, str]]:
    """Return (text, sort key) pairs for the cells of a row; "" sorts last."""
    (measured, difference), (age, start) = (
        get_step_time(outcome),
        jobs.find_age(outcome),
    )
    expected, gpus = outcome.expected_seconds, outcome.configuration.gpus
    changes = outcome.changes
    total = (
        formatting.add_changes(change.difference for change in changes)
        if changes
        else None
    )
    # Sorted by age: newer runs first, unknown start times last.
    started = datetime.fromisoformat(start).timestamp() if start else None
    return [
        (format_step_time(outcome)[1], _format_value(difference)),
        (format_step_time(outcome)[0], _format_value(measured)),
        (formatting.format_seconds(expected), _format_value(expected)),
        (format_mfu(outcome), _format_value(get_mfu(outcome)[0])),
        (format_change(total), _format_value(total)),
        (str(gpus), _format_value(gpus)),
        (age, "" if started is None else f"{-started:.0f}"),
        (outcome.reason, outcome.reason),
    ]


def _list_news(shown: Sequence[ShownConfiguration]) -> list[ShownChange]:
    """Return the newest lasting, unacknowledged level changes, newest first."""
    changes = [
        (change, entry)
        for entry in shown
        for change in entry.outcome.changes
        if change.stands and not change.acknowledged
    ]
    changes.sort(key=lambda pair: (pair[0].started[:10], pair[1].name), reverse=True)
    return [
        ShownChange(entry.anchor, entry.name, change.text)
        for change, entry in changes[:MOST_CHANGES]
    ]


def _format_value(value: float | None) -> str:
    return "" if value is None else f"{value:.9g}"
