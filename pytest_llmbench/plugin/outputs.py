"""The outputs of a session: header, terminal summary, report files, history."""

from __future__ import annotations

import errno
import os
import shlex
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench import __version__
from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import TimedBy
from pytest_llmbench.core.errors import ReportError
from pytest_llmbench.core.runtime import discard_output

if TYPE_CHECKING:
    from pytest_llmbench.logs.quoted_lines import Excerpt
    from pytest_llmbench.plugin.session_state import Session
    from pytest_llmbench.report.document import SessionEnding
    from pytest_llmbench.report.outcome_documents import (
        OutcomeDocument,
        ReportedExcerpt,
        SessionDocument,
    )
    from pytest_llmbench.report.output_files import FileKind
    from pytest_llmbench.report.terminal import TerminalLine
    from pytest_llmbench.session.settings import Settings


NOT_ENDED = (
    "the session has not ended: it is still running, or was killed before its end"
)
"""The failure in reports from the start of a session to its end."""

MOST_UNMATCHED_REMARKS = 5
"""Maximum number of unmatched runs without an item that the summary names."""


def list_header(session: Session) -> Iterator[str]:
    """Yield the settings for the head of the session's output and for reports."""
    return map(session.redactor.redact, _list_settings(session))


def _list_settings(session: Session) -> Iterator[str]:
    """Yield the baselines, tolerances, folders and changed settings of a session."""
    settings = session.settings
    yield f"baselines: {session.catalog.describe()}"
    for path in settings.baselines:
        yield f"baselines: {formatting.format_path(path, session.directory)}"
    if settings.baselines:
        yield f"judged against: {settings.against or 'recorded baselines if there are any'}"
    for tolerance in describe_tolerances(settings):
        yield f"tolerance: {tolerance}"
    for path in settings.logs:
        yield f"{'history' if settings.launch else 'logs'}: {formatting.format_path(path, session.directory)}"
    if session.history:
        yield f"history in {session.history.describe()}"
    yield from _list_changed_settings(session)


def _list_changed_settings(session: Session) -> Iterator[str]:
    """Yield the settings that differ from their defaults."""
    settings = session.settings
    if session.launching is not None:
        yield from session.launching.describe(session.directory)
    if settings.certify:
        yield f"certifying against {settings.against} baselines: INCONCLUSIVE and MISSING fail"
    elif settings.inconclusive != "literal":
        yield f"inconclusive runs: {settings.inconclusive}"
    if settings.repeat_window:
        yield f"repeats: runs of one build within {formatting.format_age(settings.repeat_window)} of the newest"
    if settings.acknowledged:
        count = formatting.count_noun(
            len(session.catalog.acknowledged), "acknowledged change"
        )
        yield f"{count}: {formatting.format_path(settings.acknowledged, session.directory)}"
    if settings.timed == TimedBy.DOCUMENT:
        yield "timed like the documents, to compare with their tables: nothing is recorded, stored or certified"
    if settings.baseline_release:
        yield f"all runs are judged against release {settings.baseline_release}"
    if settings.record:
        yield f"recording to {formatting.format_path(settings.record, session.directory)}; nothing is judged"


def render_terminal(session: Session, verbosity: int) -> list[TerminalLine]:
    """Render the lines of the summary; `verbosity` is -1 with -q and 1 with -v."""
    from pytest_llmbench.report.explain import wrap
    from pytest_llmbench.report.terminal import TerminalLine, render_summary

    if not session.finished_outcomes:
        lines = []
        for failure in _list_failures(session):
            lines += wrap(failure, "  ")
        return [TerminalLine(line, "red") for line in lines]
    if verbosity >= 0:
        remarks = [
            *_list_remarks(session),
            *_describe_skipped(session, verbosity > 0),
            *session.written,
        ]
    else:
        remarks = [*_explain_no_judged_run(session)]
    shown = [
        session.redactor.redact(formatting.escape(line))
        for line in (*remarks, *session.failures)
    ]
    return [
        *render_summary(session.finished_outcomes, shown, verbosity, session.cautions)
    ]


def _list_failures(session: Session) -> list[str]:
    """Return the failures of the session itself, with secrets redacted."""
    return list(map(session.redactor.redact, session.failures))


def _list_remarks(session: Session) -> list[str]:
    """Return remarks on runs that were not judged, and on the GPU-hours."""
    from pytest_llmbench.plugin.session_state import MOST_UNMATCHED
    from pytest_llmbench.report.gpu_hours import format_cost, sum_session
    from pytest_llmbench.report.verdicts import select_worst

    results, since = session.results, session.settings.since
    remarks = []
    if results.runs_before_since and since:
        left_out = formatting.count_noun(results.runs_before_since, "run")
        remarks.append(
            f"{left_out} left out: started before {since:%Y-%m-%d %H:%M} UTC (--llmb-since)"
        )
    remarks += [*_explain_no_judged_run(session), *results.remarks]
    reported_ids = {
        outcome.id for outcome in session.finished_outcomes if outcome.kind == "stray"
    }
    unreported_runs = [run for run in results.unmatched if run.id not in reported_ids]
    remarks += [
        f"{run.reason.upper()}, not judged: {run.id}: {run.summary}"
        for run in unreported_runs[:MOST_UNMATCHED_REMARKS]
    ]
    if len(unreported_runs) > MOST_UNMATCHED_REMARKS:
        limit = f"at most {MOST_UNMATCHED:,} have an item, the last one for all others; `llmbench summary` lists all"
        advice = (
            limit
            if session.settings.unmatched == "fail"
            else "--llmb-unmatched=fail creates an item for each"
        )
        remarks.append(
            f"{len(unreported_runs) - MOST_UNMATCHED_REMARKS:,} more runs were not judged: {advice}"
        )
    if cost := sum_session(
        select_worst(session.finished_outcomes), results.planned_hours
    ):
        remarks.append(f"GPU-hours: {format_cost(cost)}")
    return remarks


def _explain_no_judged_run(session: Session) -> Iterator[str]:
    """Yield the reason why nothing was judged, with advice; nothing otherwise."""
    if session.absence_reasons:
        reason = formatting.join_sentences(session.absence_reasons).removesuffix(".")
        from pytest_llmbench.session.absences import advise_no_judged_run

        advice = advise_no_judged_run(
            session.results, session.settings, session.directory
        )
        yield reason if session.settings.launch else f"{reason}. Next: {advice}"


def _describe_skipped(session: Session, verbose: bool) -> Iterator[str]:
    """Yield the files that were not read: all if `verbose`, else the first and a count."""
    ignored = session.results.ignored
    if verbose or len(ignored) == 1:
        yield from (f"skipped {file}" for file in ignored)
    elif ignored:
        yield f"{len(ignored)} files skipped (-v lists all), first {ignored[0]}"


def describe_tolerances(settings: Settings) -> Iterator[str]:
    """Yield the tolerances of a session with their sources."""
    from pytest_llmbench.core.tolerance import TIME, get_metric_name
    from pytest_llmbench.session.settings import DEFAULT_TOLERANCE

    for tolerance in settings.tolerances:
        yield f"{tolerance} ({tolerance.source})"
    if not any(get_metric_name(tolerance) == TIME for tolerance in settings.tolerances):
        yield f"{DEFAULT_TOLERANCE} unless a baseline file sets another"


def outlive_reader(config: pytest.Config) -> None:
    """Discard output after its reader has closed the pipe (`| head`) or the terminal.

    The session continues and writes its reports.
    """
    if config.pluginmanager.has_plugin("terminalreporter"):
        writer = config.get_terminal_writer()
        write, flush = writer.write, writer.flush
        setattr(writer, "write", _discard_unread(write, flush))  # noqa: B010 (mypy: a method)
        setattr(writer, "flush", _discard_unread(flush, flush))  # noqa: B010


def flush_terminal(config: pytest.Config) -> None:
    """Flush the terminal's output."""
    if config.pluginmanager.has_plugin("terminalreporter"):
        config.get_terminal_writer().flush()


def _discard_unread(
    write: Callable[..., None], flush: Callable[[], None]
) -> Callable[..., None]:
    """Wrap `write` so that output without a reader is discarded; `flush` empties it."""

    def write_or_discard(*arguments: Any, **options: Any) -> None:
        """Call `write`; after an error of a closed pipe or terminal, discard output."""
        try:
            write(*arguments, **options)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            discard_output()
            # Discard the buffer now: pytest's capture will restore the old output.
            flush()

    return write_or_discard


# --- files ----------------------------------------------------------------------------


def write_reports(session: Session, exit_code: int) -> bool:
    """Write the requested report files; returns False if one could not be written.

    The reason is added to the failures of the session. `exit_code` is the current exit
    code of the session.
    """

    def describe_ending() -> SessionEnding:
        """Describe the ending; its exit code is 1 instead of 0 after a write error."""
        return _describe_ending(session, exit_code or int(not is_written))

    def render_junit() -> bytes:
        from pytest_llmbench.report.junit import render

        return render(
            session.finished_outcomes, session.now, describe_ending().problems
        )

    is_written = True
    complete_outcomes = (
        _complete_outcomes(session)
        if session.settings.html or session.settings.json
        else []
    )
    is_written &= _write_report(session, "junit", "JUnit report", render_junit)
    is_written &= _write_report(
        session,
        "html",
        "HTML report",
        lambda: _render_page(session, complete_outcomes, describe_ending()),
    )
    # Last, because it contains the exit code, which a failed report changes.
    is_written &= _write_report(
        session,
        "json",
        "JSON document",
        lambda: _render_document(session, complete_outcomes, describe_ending()),
    )
    return is_written


def _describe_ending(session: Session, exit_code: int) -> SessionEnding:
    """Return the exit code, failures and cautions of a session for its reports."""
    from pytest_llmbench.report.document import SessionEnding

    return SessionEnding(exit_code, _list_failures(session), session.cautions)


def replace_reports(
    paths: Mapping[str, Path],
    exit_code: int = pytest.ExitCode.INTERRUPTED,
    problem: str = NOT_ENDED,
) -> None:
    """Overwrite the report files (by flag) with reports of a `problem`.

    The reports contain no outcomes. A report of an earlier session can then not be
    mistaken for a report of this session, even if this session is killed. If a report
    cannot be written, for example on a full disk, the old report is emptied or removed.
    Raises ReportError if that fails, too.
    """
    if not paths:
        return
    from pytest_llmbench.core.userfile import is_stream
    from pytest_llmbench.report import html, junit
    from pytest_llmbench.report.document import (
        SessionEnding,
        make_document,
        render_session,
    )
    from pytest_llmbench.report.output_files import JUNIT, REPORTS, write_atomically

    ending, now = SessionEnding(int(exit_code), [problem]), datetime.now(UTC)
    contents: dict[str, Callable[[], bytes]] = {
        "--llmb-json": lambda: render_session(
            make_document([], __version__, ending, now)
        ),
        "--llmb-html": lambda: html.render([], now, ending=ending).encode(),
        "--llmb-junit": lambda: junit.render([], now, ending.problems),
        "--junitxml": lambda: junit.render([], now, ending.problems),
    }
    problems = []
    for flag, path in paths.items():
        if is_stream(path):
            continue
        # pytest follows links when it writes --junitxml
        target, kind = (
            (Path(os.path.realpath(path)), JUNIT)
            if flag == "--junitxml"
            else (path, REPORTS[flag])
        )
        try:
            write_atomically(target, contents[flag](), kind)
        except (OSError, ImportError):  # the session reports the reason at its end
            problems.append(_void_report(f"{flag}={path}", target, kind))
    if first_problem := next(filter(None, problems), ""):
        raise ReportError(first_problem)


def _void_report(option: str, path: Path, kind: FileKind) -> str:
    """Empty or remove the report of an earlier session; return the problem or ""."""
    from pytest_llmbench.report.output_files import make_void

    try:
        make_void(path, kind)
    except OSError as error:
        return (
            f"{option}: cannot replace or empty the report of an earlier session ({error.strerror}), which could be "
            "mistaken for this session's: remove it, or use another name"
        )
    return ""


def _complete_outcomes(session: Session) -> list[OutcomeDocument]:
    """Return the outcomes with daily runs of the history and excerpts of logs.

    An excerpt consists of the lines of a log around a failure. Excerpts are left out if
    the secrets of launched jobs are unknown, as in a session that only collects,
    because the secrets could not be redacted.
    """
    from pytest_llmbench.core.redaction import MASK
    from pytest_llmbench.logs.quoted_lines import read_excerpts
    from pytest_llmbench.report.describe_outcome import redact_texts
    from pytest_llmbench.report.outcome_documents import select_configurations

    history = session.history
    outcomes = session.finished_outcomes
    if history is not None:
        outcomes = [
            redact_texts(history.add_daily_runs(outcome), session.redactor)
            if outcome.kind == "configuration"
            else outcome
            for outcome in outcomes
        ]
    requested = (outcome.excerpt for outcome in select_configurations(outcomes))
    positions = [_locate_excerpt(session, excerpt) for excerpt in requested if excerpt]
    # A launch adds MASK to the secrets if a job used secrets that are unknown here.
    has_unknown_secrets = MASK in session.secrets
    excerpts = {} if has_unknown_secrets else read_excerpts(positions)
    return [_add_excerpt_lines(session, outcome, excerpts) for outcome in outcomes]


def _add_excerpt_lines(
    session: Session,
    outcome: OutcomeDocument,
    excerpts: Mapping[tuple[Path, int], Excerpt],
) -> OutcomeDocument:
    """Add the redacted lines of its excerpt to an outcome.

    An excerpt that could not be read is removed.
    """
    from msgspec.structs import replace

    from pytest_llmbench.core.redaction import hide_values

    if outcome.kind != "configuration" or outcome.excerpt is None:
        return outcome
    read = excerpts.get(_locate_excerpt(session, outcome.excerpt))
    if read is None:
        return replace(outcome, excerpt=None)
    lines = session.redactor.redact_lines(
        hide_values(line, session.secrets) for line in read.lines
    )
    return replace(
        outcome,
        excerpt=replace(
            outcome.excerpt, first_line=read.first_line, lines=tuple(lines)
        ),
    )


def _locate_excerpt(session: Session, excerpt: ReportedExcerpt) -> tuple[Path, int]:
    """Return the log and the line of an excerpt."""
    return session.directory / excerpt.log, excerpt.line


def _write_report(
    session: Session, name: str, label: str, content: Callable[[], bytes]
) -> bool:
    """Write one report if requested; returns False if that failed."""
    from pytest_llmbench.report.output_files import REPORTS, write_atomically

    path = getattr(session.settings, name)
    if path is None:
        return True
    try:
        write_atomically(path, content(), REPORTS[f"--llmb-{name}"])
    except OSError as error:
        session.failures.append(
            f"--llmb-{name}={path}: the report was not written: {error.strerror}"
        )
        return False
    line = f"{label}: {formatting.format_path(path, session.directory)}"
    if line not in session.written:
        session.written.append(line)
    return True


def _render_page(
    session: Session, outcomes: list[OutcomeDocument], ending: SessionEnding
) -> bytes:
    """Render the HTML page of a session."""
    from msgspec.structs import replace

    from pytest_llmbench.report.describe_outcome import (
        describe_unmatched_run,
        redact_texts,
    )
    from pytest_llmbench.report.html import render

    # The page also shows unmatched runs without an item.
    reported_ids = {outcome.id for outcome in outcomes if outcome.kind == "stray"}
    unmatched_documents = [
        redact_texts(
            replace(describe_unmatched_run(run, session.directory), status="skipped"),
            session.redactor,
        )
        for run in session.results.unmatched
        if session.settings.unmatched == "list" and run.id not in reported_ids
    ]
    foot = [
        (label, session.redactor.redact(text))
        for label, text in _list_foot(session, ending)
    ]
    page = render(
        [*outcomes, *unmatched_documents],
        session.now,
        session.results.planned_hours,
        ending,
        foot=foot,
    )
    return page.encode("utf-8", "backslashreplace")


def _list_foot(session: Session, ending: SessionEnding) -> Iterator[tuple[str, str]]:
    """Yield labels and texts for the foot of the page: command, version, host etc."""
    from pytest_llmbench.core import runtime
    from pytest_llmbench.core.redaction import hide_password_of

    yield "command", shlex.join(["pytest", *map(hide_password_of, session.command)])
    yield "version", f"pytest-llmbench {__version__}"
    yield "baselines", session.catalog.describe()
    yield "tolerance", "; ".join(describe_tolerances(session.settings))
    yield "host", formatting.escape(socket.gethostname())
    yield from (
        (label, formatting.escape(text))
        for label, text in (
            ("commit", runtime.read_commit(os.environ)),
            ("CI job", runtime.read_job_url(os.environ)),
        )
        if text
    )
    yield "exit code", f"{ending.exit_code}"


def _render_document(
    session: Session, outcomes: list[OutcomeDocument], ending: SessionEnding
) -> bytes:
    """Render the JSON document of a session."""
    from pytest_llmbench.report.document import render_session

    return render_session(_make_document(session, outcomes, ending))


def _make_document(
    session: Session, outcomes: Sequence[OutcomeDocument], ending: SessionEnding
) -> SessionDocument:
    """Return the document of a session, with its baselines, tolerances and settings."""
    from msgspec.structs import replace

    from pytest_llmbench.report.document import make_document

    hours = session.results.planned_hours
    return replace(
        make_document(outcomes, __version__, ending, session.now, hours),
        baselines=session.catalog.describe(),
        tolerances=tuple(describe_tolerances(session.settings)),
        header=tuple(list_header(session)),
        timed=str(session.settings.timed),
    )


def write_github_summary(session: Session, exit_code: int) -> None:
    """Append to GitHub's job summary; an error is reported but changes no exit code."""
    path = session.settings.step_summary
    if path is None:
        return
    from pytest_llmbench.report.notifications import append_job_summary

    try:
        append_job_summary(
            path, session.finished_outcomes, _describe_ending(session, exit_code)
        )
    except OSError as error:
        session.failures.append(
            f"GITHUB_STEP_SUMMARY={path}: the job summary was not written: {error.strerror}"
        )


def list_workflow_commands(session: Session) -> list[str]:
    """Return the commands for GitHub's annotations; none outside GitHub Actions."""
    if not session.settings.in_github_job:
        return []
    from pytest_llmbench.report import notifications

    return notifications.list_workflow_commands(
        session.finished_outcomes, _list_failures(session)
    )


def store_outcomes(session: Session, exit_code: int) -> None:
    """Store the outcomes in the history, if there is one.

    An error is reported but does not change the exit code.
    """
    # Without outcomes there is nothing to store, and an interrupted session would read
    # its logs again.
    if session.history is None or not session.finished_outcomes:
        return
    from msgspec.structs import replace

    from pytest_llmbench.report.document import shorten
    from pytest_llmbench.report.verdicts import select_worst
    from pytest_llmbench.session.session_history import describe_origin, with_hashes

    outcomes = select_worst(session.finished_outcomes)
    try:
        with session.stop.keep_raised(), session.stop.allow():
            outcomes = with_hashes(outcomes, session.directory)
    except KeyboardInterrupt:  # hashing gigabytes of logs takes long
        session.failures.append(
            "history: interrupted, so the sha256 of this session's logs are not stored"
        )
    ending = _describe_ending(session, exit_code)
    command = list(map(session.redactor.redact, session.command))
    document = replace(
        _make_document(session, outcomes, ending),
        outcomes=tuple(map(shorten, outcomes)),  # in the order of the session
        session=describe_origin(session.now, command, os.environ),
    )
    folders = (session.directory, Path(tempfile.gettempdir()))
    stored, problem = session.history.store(document, folders)
    session.written += filter(None, [stored])
    session.failures += filter(None, [problem])
