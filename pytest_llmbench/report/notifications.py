"""Reports of a session for GitHub Actions and for a chat.

GitHub shows a job summary in Markdown and annotations (workflow commands). The chat
message is made from the document of `--llmb-json`.
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
"""Maximum size of the job summary of a step; GitHub discards a larger one completely."""

MOST_ANNOTATIONS = 10
"""Maximum number of annotations of one level in a step; GitHub drops further ones."""

LONGEST = 300
"""Maximum number of characters of a text in a table cell or an annotation."""

ROOM = 6
"""Maximum number of lines for cautions and failed items in a chat message."""

MOST_CAUTIONS = 3
"""Maximum number of lines for cautions if items failed."""

LONGEST_LINE = 160
"""Maximum number of characters of an explanation in a chat message."""

HEAD = "| verdict | configuration | step time | difference | MFU % | why | next |\n|---|---|---:|---:|---:|---|---|\n"

SECTIONS = ("red", "only reported", "inconclusive", "passed")
"""The sections of a job summary, in their order."""

MARKUP = re.compile(r"[\\`*_\[\]|~#<>&!$@:]")
"""Matches characters with a meaning in GitHub's Markdown."""


# --- GitHub ---------------------------------------------------------------------------


def render_job_summary(
    outcomes: Sequence[OutcomeDocument], ending: SessionEnding, room: int = MOST_BYTES
) -> str:
    """Render a session as Markdown of at most `room` bytes.

    The sections are failed, only reported, inconclusive and passed outcomes. Rows that
    do not fit are counted. Returns "" if even the head does not fit.
    """
    shown = sort_outcomes(select_worst(outcomes))
    text = _render_head(outcomes, shown, ending)
    if len(text.encode()) > room:
        return ""
    sections: dict[str, list[OutcomeDocument]] = defaultdict(list)
    for outcome in shown:
        sections[_choose_section(outcome)].append(outcome)
    for title in SECTIONS:
        if sections[title]:
            text += _render_section(title, sections[title], room - len(text.encode()))
    legend = _escape(explain_mfu(shown))
    return text + legend if len((text + legend).encode()) <= room else text


def _render_head(
    outcomes: Sequence[OutcomeDocument],
    shown: Sequence[OutcomeDocument],
    ending: SessionEnding,
) -> str:
    """Render the head of the job summary: state, cautions and counts."""
    red = any(outcome.status == "failed" for outcome in shown)
    state, details = ending.describe(shown, green=not red and not ending.failures)
    cautions = "".join(
        f"- caution: {_escape(text)}\n" for text in list_caution_texts(ending.cautions)
    )
    nothing, count = explain_no_judged_run(outcomes), format_counts(outcomes)
    texts = map(_escape, (*ending.failures, nothing, count))
    paragraphs = [f"### llmbench: {state}{details}", cautions, *texts]
    return "".join(f"{paragraph}\n\n" for paragraph in paragraphs if paragraph)


def _choose_section(outcome: OutcomeDocument) -> str:
    """Return the section of an outcome.

    Returns "" for skipped outcomes and for checks that passed without a finding.
    """
    if outcome.status == "failed":
        return "red"
    if _is_only_reported(outcome):
        return "only reported"
    if _is_doubtful(outcome):
        return "inconclusive"
    passed = outcome.status == "passed" and not isinstance(outcome, CheckOutcome)
    return "passed" if passed else ""


def append_job_summary(
    path: Path, outcomes: Sequence[OutcomeDocument], ending: SessionEnding
) -> None:
    """Append the Markdown of a session to a job summary file if there is room.

    Raises OSError if the file cannot be read or written.
    """
    # Another session of the same step may have written to the file.
    used = path.stat().st_size if path.exists() else 0
    text = render_job_summary(outcomes, ending, MOST_BYTES - used)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def list_workflow_commands(
    outcomes: Sequence[OutcomeDocument], failures: Sequence[str]
) -> list[str]:
    """Return the workflow commands of a session.

    Failed items become errors; inconclusive and only reported items become warnings.
    """
    shown = sort_outcomes(select_worst(outcomes))
    red = [
        ("llmbench", text)
        for text in filter(None, (*failures, explain_no_judged_run(outcomes)))
    ]
    red += [_annotate(outcome) for outcome in shown if outcome.status == "failed"]
    doubtful = [
        _annotate(outcome)
        for outcome in (*filter(_is_only_reported, shown), *filter(_is_doubtful, shown))
    ]
    return [
        *_format_commands("error", red, "red"),
        *_format_commands("warning", doubtful, "inconclusive"),
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


def _render_section(title: str, outcomes: Sequence[OutcomeDocument], room: int) -> str:
    """Render a table with as many rows as fit into `room` bytes.

    The table of passed outcomes is folded. Returns "" if not even the head fits.
    """
    start, end = f"#### {len(outcomes)} {title}\n\n{HEAD}", "\n"
    if title == "passed":
        start = f"<details><summary>{len(outcomes)} {title}</summary>\n\n{HEAD}"
        end = "\n</details>\n\n"
    # Reserve 100 bytes for the count of the rows that do not fit.
    remaining = room - len((start + end).encode()) - 100
    rows: list[str] = []
    for row in map(_render_row, outcomes):
        remaining -= len(row.encode())
        if remaining < 0:
            break
        rows.append(row)
    more = len(outcomes) - len(rows)
    if more:
        rows.append(f"| | {more} more | | | | no room for them here: see the log | |\n")
    text = f"{start}{''.join(rows)}{end}"
    return text if len(text.encode()) <= room else ""


def _render_row(outcome: OutcomeDocument) -> str:
    """Render the table row of an outcome in the job summary."""
    numbers = ("", "", "")
    if isinstance(outcome, ConfigurationOutcome):
        numbers = (*format_step_time(outcome), format_mfu(outcome))
    log = (
        f" ({locate_log(outcome)})"
        if outcome.status == "failed" and outcome.log
        else ""
    )
    past = [f"{label}: {text}" for label, text in _list_past(outcome)]
    texts = "; ".join([clip(outcome.text, LONGEST) + log, *past]), advise(outcome)
    cells = (name_verdict(outcome), name_outcome(outcome), *numbers, *texts)
    return f"| {' | '.join(map(_escape, cells))} |\n"


def _annotate(outcome: OutcomeDocument) -> tuple[str, str]:
    log = f"\nlog: {locate_log(outcome)}" if outcome.log else ""
    past = "".join(f"\n{label}: {text}" for label, text in _list_past(outcome))
    text = f"{clip(outcome.text, LONGEST)}{log}\nnext: {advise(outcome)}{past}"
    return " ".join(make_headline(outcome).split()), text


def _list_past(outcome: OutcomeDocument) -> list[tuple[str, str]]:
    last = outcome.last_good if isinstance(outcome, ConfigurationOutcome) else None
    return [(label, clip(text, LONGEST)) for label, text in list_last_good(last)]


def _format_commands(
    level: str, messages: Sequence[tuple[str, str]], state: str
) -> Iterator[str]:
    """Yield the annotation commands of one level, at most MOST_ANNOTATIONS."""
    # The last annotation counts the ones that GitHub would drop silently.
    shown = (
        messages
        if len(messages) <= MOST_ANNOTATIONS
        else messages[: MOST_ANNOTATIONS - 1]
    )
    for title, text in shown:
        yield f"::{level} title={_escape_property(title)}::{_escape_data(text)}"
    if len(shown) < len(messages):
        yield f"::{level} title=llmbench::{len(messages) - len(shown)} more are {state}: see the job summary"


def _escape(text: str) -> str:
    """Escape a text for Markdown, also inside a table cell."""
    return MARKUP.sub(lambda match: f"&#{ord(match.group())};", " ".join(text.split()))


def _escape_data(text: str) -> str:
    """Escape a text as the message of a workflow command (%25, %0D, %0A)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    """Escape a text as a property of a workflow command (also `:` and `,`)."""
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


# --- chat -----------------------------------------------------------------------------


def make_message(session: SessionDocument, link: str = "") -> str:
    """Write a chat message of at most ten lines.

    It contains the state of the session, the counts, cautions, failed items, and the
    `link` to the complete report.
    """
    state, details = SessionEnding(session.exit_code).describe(
        session.outcomes, green=session.green
    )
    started = session.started[:16].replace("T", " ")
    failed = [outcome for outcome in session.outcomes if outcome.status == "failed"]
    red = list(map(_format_item, sort_outcomes(failed)))
    cautions = [f"caution: {text}" for text in list_caution_texts(session.cautions)]
    # Failed items get more lines than cautions.
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
    """Build the JSON for incoming webhooks of Slack, Mattermost and similar chats.

    Mentions are escaped: a log that contains `<!channel>` must not notify everybody.
    """
    for character, reference in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, reference)
    return json.dumps({"text": text})


def _limit(lines: Sequence[str], most: int, noun: str = "") -> list[str]:
    """Cut lines to `most`; the last line then counts the omitted ones."""
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
    """Cut a text to one line of the chat message."""
    return clip(" ".join(text.split()), LONGEST_LINE)
