"""A session in a few lines, for a chat or a mail: made from the document of `--llmb-json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_llmbench.core.formatting import format_seconds
from pytest_llmbench.report.document import SessionEnding
from pytest_llmbench.report.verdicts import (
    FINDINGS,
    JUDGED,
    explain_nothing_judged,
    format_step_time,
    name_outcome,
    name_verdict,
    sort_outcomes,
)

ROOM = 6
"""Lines for cautions and red items together."""

MOST_CAUTIONS = 3
"""Lines of cautions beside red items, which then have the others."""

LONGEST = 160
"""Signs of a line that says why."""


def make_message(session: Mapping[str, Any], link: str = "") -> str:
    """Return at most ten lines: how the session ended, the counts, what is red, and where all of it is (`link`)."""
    state, details = SessionEnding(session["exit_code"]).describe(session["outcomes"], green=session["green"] is True)
    started = str(session["started"])[:16].replace("T", " ")
    failed = [outcome for outcome in session["outcomes"] if outcome["status"] == "failed"]
    red = list(map(_format_item, sort_outcomes(failed)))
    cautions = [
        f"caution: {caution['text']}" for caution in session.get("cautions", ()) if caution["code"] not in FINDINGS
    ]
    # What is red is worth more lines than what is to be known beside it.
    cautions = _limit(cautions, MOST_CAUTIONS if red else ROOM, " cautions")
    failures = session["failures"]
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    lines = [
        f"llmbench {state.upper()}{details}, {started} UTC: {session['count']}",
        *map(_clip, cautions),
        f"{_clip(failures[0])}{more}" if failures else "",
        _clip(explain_nothing_judged(session["outcomes"])),
        *_limit(red, ROOM - len(cautions)),
        link,
    ]
    return "\n".join(filter(None, lines))


def convert_to_slack(text: str) -> str:
    """Return the JSON that incoming webhooks of Slack, Mattermost and others take, in which no text calls anybody."""
    # Slack takes `<!channel>` for a call to everybody: a log must not ring their phones.
    for sign, reference in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, reference)
    return json.dumps({"text": text})


def _limit(lines: Sequence[str], most: int, noun: str = "") -> list[str]:
    """Return at most so many lines, the last of which counts the others where there are more."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"and {len(lines) - most + 1} more{noun}"]


def _format_item(outcome: dict[str, Any]) -> str:
    title = f"{name_verdict(outcome)} {name_outcome(outcome)}"
    if outcome["kind"] == "configuration" and outcome["verdict"] in JUDGED:
        step_time, change = format_step_time(outcome)
        expected = format_seconds(outcome["expected_seconds"])
        return f"{title}: {change} ({step_time}, expected {expected})"
    return _clip(f"{title}: {outcome['text']}")


def _clip(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
