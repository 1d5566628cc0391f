"""What is told of a session elsewhere than on its terminal: what GitHub Actions shows,
and a message for a chat.

GitHub has a job summary in Markdown and annotations (workflow commands). The message is
made from the document of `--llmb-json`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_llmbench.core.formatting import clip, format_seconds
from pytest_llmbench.report.advice import advise
from pytest_llmbench.report.document import SessionEnding
from pytest_llmbench.report.explain import list_last_good
from pytest_llmbench.report.outcome_documents import (
    CheckOutcome,
    ConfigurationOutcome,
    OutcomeDocument,
    SessionDocument,
)
from pytest_llmbench.report.verdicts import (
    JUDGED,
    SLOWER,
    explain_mfu,
    explain_no_judged_run,
    format_counts,
    format_mfu,
    format_step_time,
    get_mfu,
    list_caution_texts,
    locate_log,
    make_headline,
    name_outcome,
    name_verdict,
    select_worst,
    sort_outcomes,
)

MOST_BYTES = 1024 * 1024
"""GitHub refuses a larger job summary (of one step), all of it."""

MOST_ANNOTATIONS = 10
"""Of one level GitHub shows so many for a step, and drops the rest without a word."""

LONGEST = 300
"""Signs of a text in a cell of the table or an annotation: the whole explanation is in
the log."""

ROOM = 6
"""Lines of the message for cautions and red items together."""

MOST_CAUTIONS = 3
"""Lines of cautions beside red items, which then have the others."""

LONGEST_LINE = 160
"""Signs of a line of the message that says why."""

HEAD = "| verdict | configuration | step time | difference | MFU % | why | next |\n|---|---|---:|---:|---:|---|---|\n"

SECTIONS = ("red", "only reported", "in doubt", "passed")
"""The sections of a job summary, in their order."""

MARKUP = re.compile(r"[\\`*_\[\]|~#<>&!$@:]")
"""Signs that mean something in GitHub's Markdown; as references to characters they are
only signs."""


# --- GitHub ---------------------------------------------------------------------------


def render_job_summary(
    described: Sequence[OutcomeDocument], ending: SessionEnding, room: int = MOST_BYTES
) -> str:
    """Return the Markdown of a session, at most `room` bytes: what is red, what is in
    doubt, what passed, the count.

    Rows that do not fit are counted. Where not even the head fits the text is empty.
    """
    shown = sort_outcomes(select_worst(described))
    text = _render_head(described, shown, ending)
    # GitHub refuses the whole summary of a step that is too large, not only its end.
    if len(text.encode()) > room:
        return ""
    sections: dict[str, list[OutcomeDocument]] = defaultdict(list)
    for outcome in shown:
        sections[_choose_section(outcome)].append(outcome)
    for title in SECTIONS:
        outcomes = sections[title]
        if outcomes:
            text += _render_section(title, outcomes, room - len(text.encode()))
    legend = _escape(explain_mfu(shown))
    return text + legend if len((text + legend).encode()) <= room else text


def _render_head(
    described: Sequence[OutcomeDocument],
    shown: Sequence[OutcomeDocument],
    ending: SessionEnding,
) -> str:
    red = any(outcome.status == "failed" for outcome in shown)
    state, details = ending.describe(shown, green=not red and not ending.failures)
    cautions = "".join(
        f"- caution: {_escape(text)}\n" for text in list_caution_texts(ending.cautions)
    )
    nothing, count = explain_no_judged_run(described), format_counts(described)
    texts = map(_escape, (*ending.failures, nothing, count))
    paragraphs = [f"### llmbench: {state}{details}", cautions, *texts]
    return "".join(f"{paragraph}\n\n" for paragraph in paragraphs if paragraph)


def _choose_section(outcome: OutcomeDocument) -> str:
    """Return the section that lists an outcome; "" for what is skipped, and for a check
    that found nothing."""
    if outcome.status == "failed":
        return "red"
    if _is_only_reported(outcome):
        return "only reported"
    if _is_doubtful(outcome):
        return "in doubt"
    passed = outcome.status == "passed" and not isinstance(outcome, CheckOutcome)
    return "passed" if passed else ""


def append_job_summary(
    path: Path, described: Sequence[OutcomeDocument], ending: SessionEnding
) -> None:
    """Add the Markdown of a session to a job summary, where there is room behind what
    stands there.

    Raises OSError where that is impossible.
    """
    # Another session of the step may have written there.
    there = path.stat().st_size if path.exists() else 0
    text = render_job_summary(described, ending, MOST_BYTES - there)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def list_workflow_commands(
    described: Sequence[OutcomeDocument], failures: Sequence[str]
) -> list[str]:
    """Return the workflow commands of a session: an error for each red item, a warning
    for each that is in doubt."""
    shown = sort_outcomes(select_worst(described))
    red = [
        ("llmbench", text)
        for text in filter(None, (*failures, explain_no_judged_run(described)))
    ]
    red += [_annotate(outcome) for outcome in shown if outcome.status == "failed"]
    doubtful = [
        _annotate(outcome)
        for outcome in (*filter(_is_only_reported, shown), *filter(_is_doubtful, shown))
    ]
    return [
        *_format_commands("error", red, "red"),
        *_format_commands("warning", doubtful, "in doubt"),
    ]


def _is_only_reported(outcome: OutcomeDocument) -> bool:
    return (
        isinstance(outcome, CheckOutcome)
        and outcome.status == "passed"
        and outcome.verdict in SLOWER
    )


def _is_doubtful(outcome: OutcomeDocument) -> bool:
    is_configuration = isinstance(outcome, ConfigurationOutcome)
    return (
        is_configuration
        and outcome.status == "passed"
        and outcome.verdict == "INCONCLUSIVE"
    )


def _render_section(title: str, ones: Sequence[OutcomeDocument], room: int) -> str:
    """Return a table with as many rows as there is room for; that of what passed is
    folded."""
    start, end = f"#### {len(ones)} {title}\n\n{HEAD}", "\n"
    # Folded, so that the few others are seen.
    if title == "passed":
        start, end = (
            f"<details><summary>{len(ones)} {title}</summary>\n\n{HEAD}",
            "\n</details>\n\n",
        )
    left = (
        room - len((start + end).encode()) - 100
    )  # for the count of what does not fit
    rows: list[str] = []
    for row in map(_render_row, ones):
        left -= len(row.encode())
        if left < 0:
            break
        rows.append(row)
    more = len(ones) - len(rows)
    if more:
        rows.append(
            f"| | {more} more | | | | there is no room for them here: see the log | |\n"
        )
    text = f"{start}{''.join(rows)}{end}"
    return text if len(text.encode()) <= room else ""


def _render_row(outcome: OutcomeDocument) -> str:
    numbers = ("", "", "")
    if isinstance(outcome, ConfigurationOutcome):
        numbers = (*format_step_time(outcome), format_mfu(outcome))
    place = (
        f" ({locate_log(outcome)})"
        if outcome.status == "failed" and outcome.log
        else ""
    )
    past = [f"{label}: {text}" for label, text in _list_past(outcome)]
    texts = "; ".join([clip(outcome.text, LONGEST) + place, *past]), advise(outcome)
    cells = (name_verdict(outcome), name_outcome(outcome), *numbers, *texts)
    return f"| {' | '.join(map(_escape, cells))} |\n"


def _annotate(outcome: OutcomeDocument) -> tuple[str, str]:
    log = f"\nlog: {locate_log(outcome)}" if outcome.log else ""
    past = "".join(f"\n{label}: {text}" for label, text in _list_past(outcome))
    text = f"{clip(outcome.text, LONGEST)}{past}\nnext: {advise(outcome)}{log}"
    return " ".join(make_headline(outcome).split()), text


def _list_past(outcome: OutcomeDocument) -> list[tuple[str, str]]:
    last = outcome.last_good if isinstance(outcome, ConfigurationOutcome) else None
    return [(label, clip(text, LONGEST)) for label, text in list_last_good(last)]


def _format_commands(
    level: str, messages: Sequence[tuple[str, str]], named: str
) -> Iterator[str]:
    # The last place is kept for the count: GitHub drops what is beyond the tenth
    # without a word.
    shown = (
        messages
        if len(messages) <= MOST_ANNOTATIONS
        else messages[: MOST_ANNOTATIONS - 1]
    )
    for title, text in shown:
        yield f"::{level} title={_escape_property(title)}::{_escape_data(text)}"
    if len(shown) < len(messages):
        yield f"::{level} title=llmbench::{len(messages) - len(shown)} more are {named}: see the job summary"


def _escape(text: str) -> str:
    """Return text that stands in Markdown, in a cell too, as it is."""
    return MARKUP.sub(lambda match: f"&#{ord(match.group())};", " ".join(text.split()))


def _escape_data(text: str) -> str:
    """Return text as the message of a workflow command (the runner decodes %25, %0D and
    %0A)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    """Return text as a property of a workflow command, in which colons and commas end
    something."""
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


# --- a message ------------------------------------------------------------------------


def make_message(session: SessionDocument, link: str = "") -> str:
    """Return at most ten lines: how the session ended, the counts, what is red, and
    where all of it is (`link`)."""
    state, details = SessionEnding(session.exit_code).describe(
        session.outcomes, green=session.green
    )
    started = session.started[:16].replace("T", " ")
    failed = [outcome for outcome in session.outcomes if outcome.status == "failed"]
    red = list(map(_format_item, sort_outcomes(failed)))
    cautions = [f"caution: {text}" for text in list_caution_texts(session.cautions)]
    # What is red is worth more lines than what is to be known beside it.
    cautions = _limit(cautions, MOST_CAUTIONS if red else ROOM, " cautions")
    failures = session.failures
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    lines = [
        f"llmbench {state.upper()}{details}, {started} UTC: {session.count}",
        *map(_shorten, cautions),
        f"{_shorten(failures[0])}{more}" if failures else "",
        _shorten(explain_no_judged_run(session.outcomes)),
        *_limit(red, ROOM - len(cautions)),
        link,
    ]
    return "\n".join(filter(None, lines))


def convert_to_slack(text: str) -> str:
    """Return the JSON that incoming webhooks of Slack, Mattermost and others take, in
    which no text calls anybody."""
    # Slack takes `<!channel>` for a call to everybody: a log must not ring their
    # phones.
    for sign, reference in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, reference)
    return json.dumps({"text": text})


def _limit(lines: Sequence[str], most: int, noun: str = "") -> list[str]:
    """Return at most so many lines, the last of which counts the others where there are
    more."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"and {len(lines) - most + 1} more{noun}"]


def _format_item(outcome: OutcomeDocument) -> str:
    title = f"{name_verdict(outcome)} {name_outcome(outcome)}"
    if isinstance(outcome, ConfigurationOutcome) and outcome.verdict in JUDGED:
        step_time, change = format_step_time(outcome)
        expected = format_seconds(outcome.expected_seconds)
        mfu, logged = get_mfu(outcome)
        rate = "" if mfu is None else f", {'logged ' * logged}MFU {mfu * 100:.1f} %"
        last = outcome.last_good
        since = f", last good {last.started[:10]}" if last else ""
        return f"{title}: {change} ({step_time}, expected {expected}{rate}){since}"
    return _shorten(f"{title}: {outcome.text}")


def _shorten(text: str) -> str:
    """Return a text as one line of the message."""
    return clip(" ".join(text.split()), LONGEST_LINE)
