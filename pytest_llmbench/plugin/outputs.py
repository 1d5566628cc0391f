"""What a session leaves behind: report files, its history, and what a CI server is told."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench import __version__
from pytest_llmbench.core import formatting

if TYPE_CHECKING:
    from pytest_llmbench.plugin.session import Session


def write_reports(session: Session, exit_code: int) -> bool:
    """Write the report files that were asked for; False, with the reason kept for the summary, where one failed.

    `exit_code` is that of the session as far as it is known.
    """
    from pytest_llmbench.report.junit import render

    complete = _complete(session) if session.settings.html or session.settings.json else []
    well = _write(session, "junit", "JUnit report", lambda: render(session.described, session.now))
    well &= _write(session, "html", "HTML report", lambda: _page(session, complete))
    well &= _write(session, "json", "JSON document", lambda: _document(session, complete, exit_code or int(not well)))
    _tell_github(session, exit_code or int(not well))
    return well


def _complete(session: Session) -> list[dict[str, Any]]:
    """Return the outcomes with the nights of the history, and the lines of their logs around a failure.

    Nothing shows the secrets of launched jobs. There are no lines where a log cannot be read, or where the secrets are
    not known, as in a session that only collects.
    """
    from pytest_llmbench.launch.recipe.redaction import MASK, redact
    from pytest_llmbench.pipeline.log_excerpt import read_excerpts

    history = session.history
    outcomes = session.described if history is None else [history.with_nights(outcome) for outcome in session.described]
    places = [_locate_excerpt(session, outcome["excerpt"]) for outcome in outcomes if "excerpt" in outcome]
    excerpts = read_excerpts(places) if MASK not in session.secrets else {}

    def add_lines(outcome: dict[str, Any]) -> dict[str, Any]:
        excerpt = excerpts.get(_locate_excerpt(session, outcome["excerpt"])) if "excerpt" in outcome else None
        if excerpt is None:
            return {name: value for name, value in outcome.items() if name != "excerpt"}
        lines = [redact(line, session.secrets) for line in excerpt["lines"]]
        return {**outcome, "excerpt": {**outcome["excerpt"], **excerpt, "lines": lines}}

    return [add_lines(outcome) for outcome in outcomes]


def _locate_excerpt(session: Session, excerpt: dict[str, Any]) -> tuple[Path, int]:
    return session.directory / excerpt["log"], excerpt["line"]


def _write(session: Session, name: str, label: str, content: Callable[[], bytes]) -> bool:
    """Write one report, if it was asked for; False where that failed."""
    from pytest_llmbench.report.document import write_whole

    path = getattr(session.settings, name)
    if path is None:
        return True
    try:
        write_whole(path, content())
    except OSError as error:
        session.failures.append(f"--llmb-{name}={path}: the report was not written: {error.strerror}")
        return False
    session.written.append(f"{label}: {formatting.format_place(path, session.directory)}")
    return True


def _page(session: Session, outcomes: list[dict[str, Any]]) -> bytes:
    from pytest_llmbench.report.html.page import render

    return render(outcomes, session.now, session.cautions).encode("utf-8", "backslashreplace")


def _document(session: Session, outcomes: list[dict[str, Any]], exit_code: int) -> bytes:
    from pytest_llmbench.plugin.terminal import header, tolerances
    from pytest_llmbench.report.document import SessionEnding, make_document, render

    asked = {
        "version": __version__,
        "baselines": session.catalog.describe(),
        "tolerances": list(tolerances(session.settings)),
        "header": list(header(session)),
        "timed": str(session.settings.timed),
    }
    ending = SessionEnding(exit_code, session.failures, session.cautions)
    return render(make_document(outcomes, asked, ending, session.now))


def _tell_github(session: Session, exit_code: int) -> None:
    """Add to the job summary; what is wrong with that is told, and changes nothing."""
    from pytest_llmbench.report.document import SessionEnding
    from pytest_llmbench.report.github import append_job_summary

    path = session.settings.step_summary
    if path is None:
        return
    try:
        append_job_summary(path, session.described, SessionEnding(exit_code, session.failures, session.cautions))
    except OSError as error:
        session.written.append(f"GITHUB_STEP_SUMMARY={path}: the job summary was not written: {error.strerror}")


def workflow_commands(session: Session) -> list[str]:
    """Return the workflow commands with which GitHub annotates what is red; none elsewhere."""
    from pytest_llmbench.report import github

    return github.list_workflow_commands(session.described, session.failures) if session.settings.github else []


def store_outcomes(session: Session) -> None:
    """Store the outcomes in the history, if there is one; what cannot be stored is told, and changes nothing."""
    if session.history is None:
        return
    from pytest_llmbench.pipeline.session_history import with_hashes
    from pytest_llmbench.report.verdicts import select_worst

    outcomes = select_worst(session.described)
    try:
        outcomes = with_hashes(outcomes, session.directory)
    except KeyboardInterrupt:  # all is decided by now, and gigabytes take their time
        session.written.append("history: interrupted, so it holds no sha256 of the logs of this session")
    folders = (session.directory, Path(tempfile.gettempdir()))
    stored, problem = session.history.store(outcomes, session.now, session.command, os.environ, folders)
    session.written += filter(None, [stored])
    session.failures += filter(None, [problem])
