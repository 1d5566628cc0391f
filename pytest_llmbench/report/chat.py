"""A session in a few lines, for a chat or a mail: made from the document of `--llmb-json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_llmbench import wording
from pytest_llmbench.report.document import Ending
from pytest_llmbench.report.explain import named
from pytest_llmbench.report.terminal import JUDGED, ordered, timing, why_nothing

MOST = 5
"""Red items that are named."""

LONGEST = 160
"""Signs of a line that says why."""


def message(told: Mapping[str, Any], link: str = "") -> str:
    """Return at most ten lines: how the session ended, the counts, what is red, and where all of it is (`link`)."""
    word, space, code = Ending(told["exit_code"]).state(green=told["green"] is True).partition(" ")
    started = str(told["started"])[:16].replace("T", " ")
    lines = [
        f"llmbench {word.upper()}{space}{code}, {started} UTC: {told['count']}",
        *_failures(told),
        _clipped(why_nothing(told["outcomes"])),
        *_red(told),
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


def _red(told: Mapping[str, Any]) -> Iterator[str]:
    red = ordered([one for one in told["outcomes"] if one["status"] == "failed"])
    yield from map(_line, red[:MOST])
    if len(red) > MOST:
        yield f"and {len(red) - MOST} more"


def _line(one: dict[str, Any]) -> str:
    verdict = one.get("verdict") or one["reason"].upper()
    if one["kind"] == "configuration" and verdict in JUDGED:
        step_time, change = timing(one)
        return f"{verdict} {named(one)}: {change} ({step_time}, expected {wording.seconds(one['expected_seconds'])})"
    return _clipped(f"{verdict} {named(one)}: {one['text']}")


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
