"""A session in a few lines, for a chat or a mail: made from the document of `--llmb-json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_llmbench.core.formatting import format_seconds
from pytest_llmbench.report.cautions import FINDINGS, with_findings
from pytest_llmbench.report.document import Ending
from pytest_llmbench.report.explain import named
from pytest_llmbench.report.terminal import JUDGED, ordered, timing, why_nothing

ROOM = 6
"""Lines for cautions and red items together."""

MOST_CAUTIONS = 3
"""Lines of cautions beside red items, which then have the others."""

LONGEST = 160
"""Signs of a line that says why."""


def message(told: Mapping[str, Any], link: str = "") -> str:
    """Return at most ten lines: how the session ended, the counts, what is red, and where all of it is (`link`)."""
    state = Ending(told["exit_code"]).state(green=told["green"] is True)
    ended = with_findings(state, told["outcomes"])
    started = str(told["started"])[:16].replace("T", " ")
    red = [_line(one) for one in ordered([one for one in told["outcomes"] if one["status"] == "failed"])]
    cautions = [f"caution: {one['text']}" for one in told.get("cautions", ()) if one["code"] not in FINDINGS]
    cautions = _first(cautions, MOST_CAUTIONS if red else ROOM, " cautions")
    word = state.partition(" ")[0]
    lines = [
        f"llmbench {word.upper()}{ended.removeprefix(word)}, {started} UTC: {told['count']}",
        *map(_clipped, cautions),
        *_failures(told),
        _clipped(why_nothing(told["outcomes"])),
        *_first(red, ROOM - len(cautions)),
        link,
    ]
    return "\n".join(filter(None, lines))


def as_slack(text: str) -> str:
    """Return the JSON that incoming webhooks of Slack, Mattermost and others take, in which no text calls anybody."""
    for sign, reference in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, reference)
    return json.dumps({"text": text})


def _failures(told: Mapping[str, Any]) -> Iterator[str]:
    if told["failures"]:
        more = f" (and {len(told['failures']) - 1} more)" if len(told["failures"]) > 1 else ""
        yield f"{_clipped(told['failures'][0])}{more}"


def _first(lines: Sequence[str], most: int, noun: str = "") -> list[str]:
    """Return at most so many lines, the last of which counts the others where there are more."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"and {len(lines) - most + 1} more{noun}"]


def _line(one: dict[str, Any]) -> str:
    verdict = one.get("verdict") or one["reason"].upper()
    if one["kind"] == "configuration" and verdict in JUDGED:
        step_time, change = timing(one)
        return f"{verdict} {named(one)}: {change} ({step_time}, expected {format_seconds(one['expected_seconds'])})"
    return _clipped(f"{verdict} {named(one)}: {one['text']}")


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
