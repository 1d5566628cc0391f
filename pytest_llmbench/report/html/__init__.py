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
from pytest_llmbench.core.patterns import compile_on_use
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

CODE = compile_on_use(r"`([^`]+)`|(--llmb-[a-z-]+(?:=[^\s;,]+)?)")
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

MOST_LINKS = 3
"""Maximum number of links to outcomes for each next step."""

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
    worst_outcomes = sorted(
        select_worst(outcomes),
        key=lambda outcome: (outcome.kind, _rank_outcome(outcome)),
    )
    cost = sum_session(worst_outcomes, planned)
    style = read_style("style.css", "report.css")
    script = read_script("script.js", "theme.js")
    template = make_environment().get_template("page.html")
    return template.render(
        **_collect_content(worst_outcomes),
        state=_name_state(ending),
        mfu=explain_mfu(worst_outcomes),
        problems=ending.problems,
        cautions=list_all_texts(worst_outcomes, ending.cautions),
        foot=foot,
        cost=format_cost(cost) if cost else "",
        now=f"{now:%Y-%m-%d %H:%M} UTC",
        style=style,
        script=script,
        # A second protection: unescaped markup of a log would not be executed.
        policy=make_policy(style, script),
    )


def _name_state(ending: SessionEnding) -> str:
    """Return the prefix of the title if the session did not run to its end, else ""."""
    state, exit_code = ending.describe((), green=False)
    # With `green=False`, a session that ran to its end is red.
    return "" if state is SessionState.RED else f"{state}{exit_code}, "


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
    # If the user has custom baselines, other configurations without a run are only
    # counted and named. All other outcomes get a row.
    documented = list_documented_absent(outcomes)
    documented_identities = {_identify(outcome) for outcome in documented}
    outcomes_with_row = [
        outcome
        for outcome in outcomes
        if _identify(outcome) not in documented_identities
    ]
    configurations = [
        _show_configuration(outcome, anchors)
        for outcome in select_configurations(outcomes_with_row)
    ]
    unmatched = select_unmatched(outcomes_with_row)
    shown_unmatched = [
        _show_unmatched(outcome, anchors) for outcome in unmatched[:MOST_UNMATCHED]
    ]
    rows: list[ShownRow] = [*configurations, *shown_unmatched]
    rows.sort(key=lambda row: COLOURS.index(row.badge.colour))
    return {
        "title": _make_title(outcomes),
        "counts": _count_colours(outcomes),
        "words": _list_counts(outcomes),
        "next_steps": _list_linked_advice(outcomes, anchors),
        "columns": COLUMNS,
        "configurations": configurations,
        "unmatched": shown_unmatched,
        "unmatched_left_out": len(unmatched) - len(shown_unmatched),
        "documented": count_documented(documented) if documented else "",
        "documented_names": [name_outcome(outcome) for outcome in documented],
        "rows": rows,
        "changes": _list_news(configurations),
        "checks": _group_checks(outcomes_with_row, anchors),
        "advise": advise,
        "locate_log": locate_log,
    }


def _show_head(
    outcome: OutcomeDocument, anchors: Mapping[Identity, str]
) -> dict[str, Any]:
    """Return the fields of `ShownOutcome`, except the outcome itself."""
    return {
        "anchor": anchors[_identify(outcome)],
        "name": name_outcome(outcome),
        "badge": _make_badge(outcome),
    }


def _show_unmatched(
    outcome: UnmatchedOutcome, anchors: Mapping[Identity, str]
) -> ShownRow:
    """Prepare an unmatched run; only the cell of its reason is filled."""
    # The template fills the columns of verdict and id; the reason is the last column.
    empty_cells = [("-", "")] * (len(COLUMNS) - 3)
    cells = [*empty_cells, (outcome.reason, outcome.reason)]
    return ShownRow(**_show_head(outcome, anchors), outcome=outcome, cells=cells)


def _group_checks(
    outcomes: Sequence[OutcomeDocument], anchors: Mapping[Identity, str]
) -> dict[str, list[ShownCheck]]:
    """Group the checks by the title of their kind, with their charts."""
    configurations = {
        outcome.id: outcome for outcome in select_configurations(outcomes)
    }
    groups: dict[str, list[ShownCheck]] = {}
    for check in sorted(select_checks(outcomes), key=lambda check: check.check):
        chart_id = f"{anchors[_identify(check)]}-curve"
        chart = draw_curve(check, configurations, chart_id)
        shown = ShownCheck(**_show_head(check, anchors), outcome=check, chart=chart)
        title = TITLES.get(check.suite, check.suite.capitalize())
        groups.setdefault(title, []).append(shown)
    return groups


def _assign_anchors(outcomes: Sequence[OutcomeDocument]) -> dict[Identity, str]:
    """Assign a unique URL fragment to each outcome.

    The fragment of a configuration is its id: `report.html#grok1_314b-25.05-...`. The
    fragment of another outcome begins with its kind. A number makes it unique.
    """
    anchors: dict[Identity, str] = {}
    used: set[str] = set()
    for outcome in outcomes:
        # An id may contain any character, for example those of a path.
        anchor = re.sub(r"[^\w.-]+", "-", outcome.id, flags=re.ASCII).strip("-")
        anchor = anchor or "item"
        if not isinstance(outcome, ConfigurationOutcome):
            anchor = f"{_name_kind(outcome)}-{anchor}"
        if anchor in used:
            anchor = f"{anchor}-{len(used)}"
        used.add(anchors.setdefault(_identify(outcome), anchor))
    return anchors


def _identify(outcome: OutcomeDocument) -> Identity:
    """Return the unique key of an outcome; checks of different kinds may share ids."""
    return _name_kind(outcome), outcome.id


def _name_kind(outcome: OutcomeDocument) -> str:
    """Return the kind of a check, such as `trend`, or of another outcome."""
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
    # Commands and options are shown as code; only one of the two groups matches.
    environment.filters["marked"] = lambda text: Markup(  # noqa: S704
        CODE.sub(r"<code>\1\2</code>", str(escape(text)))
    )
    return environment


def read_style(*names: str) -> str:
    """Read the style sheets of a page, joined and without needless space.

    They have no comments, and no braces, colons, commas or semicolons in strings.
    """
    text = " ".join("\n".join(map(_read_asset, names)).split())
    for mark in "{};,>":
        text = text.replace(f" {mark}", mark).replace(f"{mark} ", mark)
    return text.replace(": ", ":").replace(";}", "}")


def read_script(*names: str) -> str:
    """Read the scripts of a page, joined and without comments and indentation.

    A comment begins a line or follows two spaces; strings have one line.
    """
    lines = []
    for line in "\n".join(map(_read_asset, names)).splitlines():
        code, _, _comment = line.strip().partition("  //")
        if code and not code.startswith("//"):
            lines.append(code)
    return "\n".join(lines)


def _read_asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def make_policy(style: str, script: str) -> str:
    """Build the content security policy of a page.

    It allows only the given style sheet and script, and no requests.
    """
    directives = (
        "default-src 'none'",
        f"style-src {_hash(style)}",
        f"script-src {_hash(script)}",
        "base-uri 'none'",
    )
    return "; ".join(directives)


def _hash(content: str) -> str:
    """Return the CSP hash of an inline style sheet or script."""
    # Browsers hash everything between the tags, including the line breaks that the
    # template adds.
    digest = hashlib.sha256(f"\n{content}\n".encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


# --- the head: badges, counts and next steps ------------------------------------------


def _make_badge(outcome: OutcomeDocument) -> Badge:
    """Build the badge of an outcome: colour, symbol and verdict."""
    verdict = name_verdict(outcome)
    unlisted = "!" if outcome.status == "failed" else "\N{BULLET}"
    symbol = SYMBOLS.get(verdict, unlisted)
    return Badge(_choose_colour(outcome), symbol, word=verdict)


def _choose_colour(outcome: OutcomeDocument) -> str:
    return choose_colour(outcome.status, outcome.verdict)


def _rank_outcome(outcome: OutcomeDocument) -> tuple[int, int, str]:
    """Return the sort key of an outcome: colour, verdict, id."""
    colour_rank = COLOURS.index(_choose_colour(outcome))
    verdict = str(outcome.verdict)
    verdict_rank = ORDER.index(verdict) if verdict in ORDER else len(ORDER)
    # Numbers are padded, so that 8 GPUs come before 16.
    padded_id = re.sub("[0-9]+", lambda digits: digits.group().zfill(9), outcome.id)
    return colour_rank, verdict_rank, padded_id


def _count_colours(outcomes: Sequence[OutcomeDocument]) -> list[tuple[str, int]]:
    """Count the outcomes of each colour, without checks that passed."""
    counts = Counter(map(_choose_colour, select_counted(outcomes)))
    return [(colour, counts[colour]) for colour in COLOURS if counts[colour]]


def _list_counts(outcomes: Sequence[OutcomeDocument]) -> list[str]:
    """Count outcomes by verdict: `1 REGRESSION`, `2 INVALID`, `72 PASS`."""
    # Sorted, since `counts` keeps the order: the worst verdict comes first.
    counted = sorted(select_counted(outcomes), key=_rank_outcome)
    counts = Counter(map(name_verdict, counted))
    texts = [f"{count} {verdict}" for verdict, count in counts.items()]
    if any(outcome.timed == "document" for outcome in outcomes):
        texts.append(BY_DOCUMENT)
    return texts


def _list_linked_advice(
    outcomes: Sequence[OutcomeDocument], anchors: Mapping[Identity, str]
) -> list[dict[str, Any]]:
    """Return the next steps by reason, with links to the first outcomes of each.

    The advice is the same as in the terminal summary, for more reasons.
    """
    advised = list_advice(sorted(outcomes, key=_rank_outcome))
    next_steps = []
    for group, advice in advised[:MOST_ADVICE]:
        linked = group[:MOST_LINKS]
        links = [
            (anchors[_identify(outcome)], name_outcome(outcome)) for outcome in linked
        ]
        next_steps.append(
            {
                "reason": group[0].reason,  # the same for the whole group
                "links": links,
                "more": len(group) - len(linked),
                "advice": advice,
            }
        )
    return next_steps


def _make_title(outcomes: Sequence[OutcomeDocument]) -> str:
    """Return the page title: `3 red, trend: 6 SLOWER, 2 unclear, 77 green`."""
    counts = dict(_count_colours(outcomes))
    texts = []
    if "red" in counts:
        texts.append(f"{counts.pop('red')} red")
    texts += [finding.text for finding in list_findings(outcomes)]
    texts += [f"{count} {colour}" for colour, count in counts.items()]
    return ", ".join(texts) or formatting.count_noun(len(outcomes), "outcome")


# --- a configuration: its row in the verdict table, and its details -------------------


def _show_configuration(
    outcome: ConfigurationOutcome, anchors: Mapping[Identity, str]
) -> ShownConfiguration:
    """Build the content of one configuration on the page, with its charts."""
    anchor = anchors[_identify(outcome)]
    excerpt = outcome.excerpt
    facts = [
        (label, text)
        for label, text in explain.list_facts(outcome)
        if label not in TABLES
    ]
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
        facts=facts,
        tables=[table for table in list_tables(outcome) if table.rows],
        charts=[chart for chart in charts if chart],
        notes=list(map(explain.format_note, outcome.notes)),
        excerpt=excerpt if excerpt and excerpt.lines else None,
    )


def _list_cells(outcome: ConfigurationOutcome) -> list[tuple[str, str]]:
    """Return (text, sort key) pairs for the cells of a row; "" sorts last.

    The cells are in the order of `COLUMNS`, without verdict and id.
    """
    step_seconds, difference = get_step_time(outcome)
    step_time_text, difference_text = format_step_time(outcome)
    expected, gpus = outcome.expected_seconds, outcome.configuration.gpus
    mfu, _ = get_mfu(outcome)
    total_change = None
    if outcome.changes:
        total_change = formatting.add_changes(
            change.difference for change in outcome.changes
        )
    age, start = jobs.find_age(outcome)
    # Sorted by age: newer runs first, unknown start times last.
    age_key = f"{-datetime.fromisoformat(start).timestamp():.0f}" if start else ""
    return [
        (difference_text, _format_sort_key(difference)),
        (step_time_text, _format_sort_key(step_seconds)),
        (formatting.format_seconds(expected), _format_sort_key(expected)),
        (format_mfu(outcome), _format_sort_key(mfu)),
        (formatting.format_fraction(total_change), _format_sort_key(total_change)),
        (str(gpus), _format_sort_key(gpus)),
        (age, age_key),
        (outcome.reason, outcome.reason),
    ]


def _list_news(configurations: Sequence[ShownConfiguration]) -> list[ShownChange]:
    """Return the newest lasting, unacknowledged level changes, newest first."""
    dated_changes = []
    for shown in configurations:
        for change in shown.outcome.changes:
            if change.stands and not change.acknowledged:
                date = change.started[:10]
                news = ShownChange(shown.anchor, shown.name, change.text)
                dated_changes.append((date, news))
    # Changes of the same day are sorted by configuration, in reverse like the days.
    dated_changes.sort(key=lambda item: (item[0], item[1].name), reverse=True)
    return [news for _, news in dated_changes[:MOST_CHANGES]]


def _format_sort_key(value: float | None) -> str:
    """Return a value as the sort key of a cell; "" for None."""
    return "" if value is None else f"{value:.9g}"
