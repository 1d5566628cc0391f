"""The page: one file that holds all it shows, with a policy that lets it run nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.models import Caution
from pytest_llmbench.report.advice import advise
from pytest_llmbench.report.cautions import list_all_texts
from pytest_llmbench.report.explain import name_outcome
from pytest_llmbench.report.html import families, table, verdicts
from pytest_llmbench.report.html.details import make_details
from pytest_llmbench.report.terminal import select_worst

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent

OPTION = re.compile(r"--llmb-[a-z-]+(?:=[^\s;,]+)?")
"""An option in a text of ours."""

KINDS = {"fp8 speedup": "FP8 speed-up"}
"""The titles of checks that are not just their kind."""


def render(described: Sequence[dict[str, Any]], now: datetime, cautions: Sequence[Caution] = ()) -> str:
    """Return the page: the same text for the same outcomes and time, in whatever order they came.

    Whatever stands in an outcome is text of the page: the templates escape it, and the policy forbids other scripts.
    """
    outcomes = sorted(select_worst(described), key=lambda outcome: (outcome["kind"], verdicts.rank_outcome(outcome)))
    style, script = (_read(name) for name in ("style.css", "script.js"))
    return (
        _make_environment()
        .get_template("page.html")
        .render(
            **_collect_content(outcomes),
            cautions=list_all_texts(outcomes, cautions),
            now=f"{now:%Y-%m-%d %H:%M} UTC",
            style=style,
            script=script,
            policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'",
        )
    )


def _collect_content(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the templates show."""
    anchors = _assign_anchors(outcomes)
    of_kind = {
        kind: [outcome for outcome in outcomes if outcome["kind"] == kind]
        for kind in ("configuration", "stray", "check")
    }
    by_id = {outcome["id"]: outcome for outcome in of_kind["configuration"]}
    return {
        "title": verdicts.make_title(outcomes),
        "counts": verdicts.count_colours(outcomes),
        "words": verdicts.list_counts(outcomes),
        "next_steps": verdicts.list_linked_advice(outcomes, anchors),
        "columns": table.COLUMNS,
        "rows": table.list_rows(of_kind["configuration"], anchors),
        "strays": [
            (anchors[verdicts.identify_outcome(outcome)], outcome, verdicts.make_badge(outcome))
            for outcome in of_kind["stray"]
        ],
        "checks": _list_checks(of_kind["check"], by_id, anchors),
        "configurations": [
            make_details(outcome, anchors[verdicts.identify_outcome(outcome)]) for outcome in of_kind["configuration"]
        ],
        "advice": advise,
    }


def _list_checks(
    checks: Sequence[dict[str, Any]], by_id: Mapping[str, dict[str, Any]], anchors: Mapping[tuple[str, str], str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the checks of each kind, those of families with their curve."""
    of_kind: dict[str, list[dict[str, Any]]] = {}
    for outcome in sorted(checks, key=lambda outcome: outcome["check"]):
        anchor = anchors[verdicts.identify_outcome(outcome)]
        chart = families.draw_curve(outcome, by_id, f"{anchor}-curve")
        title = KINDS.get(outcome["suite"], outcome["suite"].capitalize())
        shown = {
            "anchor": anchor,
            "one": outcome,
            "named": name_outcome(outcome),
            "badge": verdicts.make_badge(outcome),
            "chart": chart,
        }
        of_kind.setdefault(title, []).append(shown)
    return of_kind


def _assign_anchors(outcomes: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return for the key of an outcome a name that links can hold, each once."""
    anchors: dict[tuple[str, str], str] = {}
    for outcome in outcomes:
        head = "" if outcome["kind"] == "configuration" else f"{outcome.get('check', outcome['kind'])}-"
        name = head + (re.sub(r"[^\w.-]+", "-", outcome["id"], flags=re.ASCII).strip("-") or "item")
        taken = set(anchors.values())
        anchors.setdefault(verdicts.identify_outcome(outcome), name if name not in taken else f"{name}-{len(taken)}")
    return anchors


def _make_environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["drawn"] = Markup  # charts are elements, made by a library that escapes
    environment.filters["marked"] = lambda text: Markup(OPTION.sub(r"<code>\g<0></code>", str(escape(text))))  # noqa: S704
    return environment


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8").strip()


def _hash(content: str) -> str:
    """Return how a policy names a style sheet or script of the page: by its content."""
    digest = hashlib.sha256(f"\n{content}\n".encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
