"""Reports of a session for GitHub Actions and for a chat.

GitHub shows a job summary in Markdown and annotations (workflow commands). The chat
message is made from the document of `--llmb-json`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_llmbench.core.formatting import clip, format_seconds
from pytest_llmbench.core.patterns import compile_on_use
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

RESERVED = 100
"""Bytes of a table that are reserved for the number of rows that do not fit."""

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

MARKUP = compile_on_use(r"[\\`*_\[\]|~#<>&!$@:]")
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
            remaining_bytes = room - len(text.encode())
            text += _render_section(title, sections[title], remaining_bytes)
    with_legend = text + _escape(explain_mfu(shown))
    return with_legend if len(with_legend.encode()) <= room else text


def _render_head(
    outcomes: Sequence[OutcomeDocument],
    shown: Sequence[OutcomeDocument],
    ending: SessionEnding,
) -> str:
    """Render the head of the job summary: state, cautions and counts.

    `shown` contains the worst outcome of each id.
    """
    has_failed = any(outcome.status == "failed" for outcome in shown)
    green = not has_failed and not ending.failures
    state, details = ending.describe(shown, green=green)
    cautions = "".join(
        f"- caution: {_escape(text)}\n" for text in list_caution_texts(ending.cautions)
    )
    texts = [
        *ending.failures,
        explain_no_judged_run(outcomes),
        format_counts(outcomes),
    ]
    paragraphs = [f"### llmbench: {state}{details}", cautions, *map(_escape, texts)]
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
    if outcome.status == "passed" and not isinstance(outcome, CheckOutcome):
        return "passed"
    return ""


def append_job_summary(
    path: Path, outcomes: Sequence[OutcomeDocument], ending: SessionEnding
) -> None:
    """Append the Markdown of a session to a job summary file if there is room.

    Raises OSError if the file cannot be read or written.
    """
    # Another session of the same step may have written to the file.
    used_bytes = path.stat().st_size if path.exists() else 0
    text = render_job_summary(outcomes, ending, MOST_BYTES - used_bytes)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def list_workflow_commands(
    outcomes: Sequence[OutcomeDocument], failures: Sequence[str]
) -> list[str]:
    """Return the workflow commands of a session.

    Failed items become errors; inconclusive and only reported items become warnings.
    """
    shown = sort_outcomes(select_worst(outcomes))
    session_problems = [*failures, explain_no_judged_run(outcomes)]
    errors = [("llmbench", text) for text in session_problems if text]
    errors += [_annotate(outcome) for outcome in shown if outcome.status == "failed"]
    warnings = [_annotate(outcome) for outcome in shown if _is_only_reported(outcome)]
    warnings += [_annotate(outcome) for outcome in shown if _is_doubtful(outcome)]
    return [
        *_format_commands("error", errors, "red"),
        *_format_commands("warning", warnings, "inconclusive"),
    ]


def _is_only_reported(outcome: OutcomeDocument) -> bool:
    """True for a check that found a slowdown but is only reported."""
    return (
        isinstance(outcome, CheckOutcome)
        and outcome.status == "passed"
        and outcome.verdict in SLOWER
    )


def _is_doubtful(outcome: OutcomeDocument) -> bool:
    """True for a configuration that passed although its verdict is INCONCLUSIVE."""
    return (
        isinstance(outcome, ConfigurationOutcome)
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
    remaining_bytes = room - len((start + end).encode()) - RESERVED
    rows: list[str] = []
    for outcome in outcomes:
        row = _render_row(outcome)
        remaining_bytes -= len(row.encode())
        if remaining_bytes < 0:
            break
        rows.append(row)
    omitted_count = len(outcomes) - len(rows)
    if omitted_count:
        rows.append(
            f"| | {omitted_count} more | | | | no room for them here: see the log | |\n"
        )
    text = f"{start}{''.join(rows)}{end}"
    return text if len(text.encode()) <= room else ""


def _render_row(outcome: OutcomeDocument) -> str:
    """Render the table row of an outcome in the job summary.

    The columns are those of `HEAD`.
    """
    step_time, difference, mfu = "", "", ""
    if isinstance(outcome, ConfigurationOutcome):
        step_time, difference = format_step_time(outcome)
        mfu = format_mfu(outcome)
    explanation = clip(outcome.text, LONGEST)
    if outcome.status == "failed" and outcome.log:
        explanation += f" ({locate_log(outcome)})"
    for label, text in _list_past(outcome):
        explanation += f"; {label}: {text}"
    cells = (
        name_verdict(outcome),
        name_outcome(outcome),
        step_time,
        difference,
        mfu,
        explanation,
        advise(outcome),
    )
    return f"| {' | '.join(map(_escape, cells))} |\n"


def _annotate(outcome: OutcomeDocument) -> tuple[str, str]:
    """Return the title and the text of an outcome's annotation."""
    log = f"\nlog: {locate_log(outcome)}" if outcome.log else ""
    past = "".join(f"\n{label}: {text}" for label, text in _list_past(outcome))
    text = f"{clip(outcome.text, LONGEST)}{log}\nnext: {advise(outcome)}{past}"
    title = " ".join(make_headline(outcome).split())
    return title, text


def _list_past(outcome: OutcomeDocument) -> list[tuple[str, str]]:
    """Return labels and texts about the last good run, if there is one."""
    last = outcome.last_good if isinstance(outcome, ConfigurationOutcome) else None
    return [(label, clip(text, LONGEST)) for label, text in list_last_good(last)]


def _format_commands(
    level: str, messages: Sequence[tuple[str, str]], state: str
) -> Iterator[str]:
    """Yield the annotation commands of one level, at most MOST_ANNOTATIONS.

    `messages` are pairs of title and text. If some are left out, the last annotation
    counts them: `3 more are red`, with `state` as the adjective.
    """
    shown = messages
    if len(messages) > MOST_ANNOTATIONS:
        # GitHub would drop the others silently.
        shown = messages[: MOST_ANNOTATIONS - 1]
    for title, text in shown:
        yield f"::{level} title={_escape_property(title)}::{_escape_data(text)}"
    omitted_count = len(messages) - len(shown)
    if omitted_count:
        text = f"{omitted_count} more are {state}: see the job summary"
        yield f"::{level} title=llmbench::{text}"


def _escape(text: str) -> str:
    """Escape a text for Markdown, also inside a table cell, and join its lines."""
    line = " ".join(text.split())
    return MARKUP.sub(lambda match: f"&#{ord(match.group())};", line)


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
    failed_items = [_format_item(outcome) for outcome in sort_outcomes(failed)]
    cautions = [f"caution: {text}" for text in list_caution_texts(session.cautions)]
    # Failed items get more lines than cautions.
    most_cautions = MOST_CAUTIONS if failed_items else ROOM
    cautions = _limit(cautions, most_cautions, " cautions")
    failure = ""
    if session.failures:
        failure = _shorten(session.failures[0])
        if len(session.failures) > 1:
            failure += f" (and {len(session.failures) - 1} more)"
    lines = [
        f"llmbench {state.upper()}{details}, {started} UTC: {session.count}",
        *map(_shorten, cautions),
        failure,
        _shorten(explain_no_judged_run(session.outcomes)),
        *_limit(failed_items, ROOM - len(cautions)),
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
    shown = lines[: most - 1]
    return [*shown, f"and {len(lines) - len(shown)} more{noun}"]


def _format_item(outcome: OutcomeDocument) -> str:
    """Format a failed item: verdict, id, and the step time if it was judged.

    `REGRESSION grok1: +6.0 % (10.05 s, expected 9.480 s, MFU 41.5 %)`
    """
    title = f"{name_verdict(outcome)} {name_outcome(outcome)}"
    if isinstance(outcome, ConfigurationOutcome) and outcome.verdict in JUDGED:
        step_time, change = format_step_time(outcome)
        expected = format_seconds(outcome.expected_seconds)
        details = f"{step_time}, expected {expected}"
        mfu, by_framework = get_mfu(outcome)
        if mfu is not None:
            name = "logged MFU" if by_framework else "MFU"
            details += f", {name} {mfu * 100:.1f} %"
        last = outcome.last_good
        since = f", last good {last.started[:10]}" if last else ""
        return f"{title}: {change} ({details}){since}"
    return _shorten(f"{title}: {outcome.text}")


def _shorten(text: str) -> str:
    """Cut a text to one line of the chat message."""
    return clip(" ".join(text.split()), LONGEST_LINE)
