"""The hooks of a session that judges runs, and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import describe_os_error
from pytest_llmbench.core.redaction import Redactor
from pytest_llmbench.plugin.collection import (
    PERFORMANCE,
    add_checks,
    is_guard,
    make_selection,
    select_by_id,
)
from pytest_llmbench.plugin.outputs import (
    flush_terminal,
    list_header,
    list_workflow_commands,
    outlive_reader,
    render_terminal,
    store_outcomes,
    write_github_summary,
    write_reports,
)
from pytest_llmbench.plugin.stash import (
    FIXTURE_VALUE,
    INFORMATION,
    OUTCOME,
    SUITE_ID,
    WRITTEN_BY_PYTEST,
    find_judging_option,
    get_session,
    is_suite_requested,
    is_worker,
    list_selected_ids,
    list_selecting_options,
    raise_usage_errors,
    uses_runs,
    will_run,
)
from pytest_llmbench.session.cautions import Selection

if TYPE_CHECKING:
    from pytest_llmbench.plugin.session_state import Session
    from pytest_llmbench.report.outcome_documents import OutcomeDocument

NOTHING_SELECTED = (
    "nothing was judged: no item was selected. Next: check -k and -m; `llmbench baselines list` prints the names; "
    'marks look like llmb(gpus=128), llmb(gpu="h100")'
)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the session running if the reader of its output closes the pipe."""
    outlive_reader(session.config)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Flush output before Python ends, where an error would change the exit code."""
    _print_unsummarised_failures(config)
    flush_terminal(config)


def _print_unsummarised_failures(config: pytest.Config) -> None:
    """Print the session's failures to standard error if there was no summary.

    The summary is missing with `--no-summary` and `-p no:terminal`.
    """
    session = get_session(config)
    if is_worker(config) or session.has_summary:
        return
    with suppress(OSError):
        for failure in session.failures:
            sys.stderr.write(
                f"llmbench: {session.redactor.redact(formatting.escape(failure))}\n"
            )
        sys.stderr.flush()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the results of the controller to an xdist worker."""
    node.workerinput["llmb"] = get_session(node.config).pack_for_workers()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Print the settings: baselines, tolerances, log folders."""
    return [f"llmbench: {line}" for line in list_header(get_session(config))]


# --- items ----------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Select items by the given node ids, after every conftest has seen all items."""
    select_by_id(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Launch the selected items and decide their outcomes before the first item runs.

    Outcomes depend on each other: if no item has a valid run, none passes. Returns True
    to end a session that only plans or submits jobs.
    """
    config = session.config
    if config.getoption("collectonly"):
        return None
    state = get_session(config)
    if (
        state.settings.launch is not None
        and _may_launch(session)
        and _launch_selected(session)
    ):
        return True
    guarded = any(is_guard(item) and will_run(item) for item in session.items)
    raise_usage_errors(
        lambda: state.decide_outcomes(
            list(list_selected_ids(session.items)), guarded=guarded
        )
    )
    if session.items:  # an xdist controller has none
        state.selection = make_selection(session)
    return None


def _may_launch(session: pytest.Session) -> bool:
    """True if collection succeeded and the session runs tests."""
    return not session.testsfailed and not any(
        session.config.getoption(name, None) for name in INFORMATION
    )


def _launch_selected(session: pytest.Session) -> bool:
    """Launch the selected items; returns True if the session must then end."""
    from pytest_llmbench.launch.continuation import Interrupted

    config = session.config
    _refuse_last_failed(session)
    print_line = _make_printer(config)
    print_line("")
    try:
        must_end: bool = raise_usage_errors(
            lambda: get_session(config).launch(
                list(list_selected_ids(session.items)), print_line
            )
        )
    except Interrupted as error:
        # pytest.exit would add text to the commands in this message.
        print_line(f"llmbench: {error}")
        pytest.exit("the launch was stopped", returncode=pytest.ExitCode.INTERRUPTED)
    if not must_end:
        add_checks(session)
    return must_end


def _make_printer(config: pytest.Config) -> Callable[[str], None]:
    """Create a function that prints a line without buffering."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")

    def print_line(line: str) -> None:
        """Print a line, with secrets redacted; nothing under `-p no:terminal`."""
        if reporter is not None:
            # A closed terminal must not stop the launch.
            with suppress(OSError):
                reporter.write_line(get_session(config).redactor.redact(line))
                # The buffer of a CI log would keep lines for hours.
                reporter.flush()

    return print_line


def _refuse_last_failed(session: pytest.Session) -> None:
    """Raise UsageError for --lf if no selected item failed last time.

    Pytest would run all items then, so all would be launched.
    """
    cache = getattr(session.config, "cache", None)
    if not session.config.getoption("lf", False) or cache is None:
        return
    failed = cache.get("cache/lastfailed", {})
    if any(item.nodeid in failed for item in session.items):
        return
    reason = "--lf: no selected item failed last time, so nothing is launched"
    raise pytest.UsageError(f"{reason}{_advise_failed_checks(failed)}")


def _advise_failed_checks(failed: Collection[str]) -> str:
    """Return advice to rerun failed checks that exist only after a launch, or ""."""
    checks = (
        node
        for node in failed
        if node.startswith(f"{SUITE_ID}/") and f"/{PERFORMANCE}.py::" not in node
    )
    names = [node.rpartition("::")[2] for node in checks]
    if not names:
        return ""
    failed_names = formatting.join_first(names)
    return f"; {failed_names} failed, which needs a launch: remove --lf to launch again"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: Any
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the outcome of an item to its test report, and redact the report.

    If a user's own test ended otherwise than its verdict, the result of the test
    overrules the outcome. Also attaches a headline for pytest's short summary, a mark
    if the item has no outcome, and in an xdist worker the selection (once). All values
    are plain, because xdist and pytest-forked serialise reports.
    """
    report = yield
    if OUTCOME in item.stash and (call.when == "call" or not report.passed):
        from pytest_llmbench.report.outcome_documents import make_plain

        outcome = item.stash[OUTCOME]
        session = get_session(item.config)
        redactor = session.redactor
        reported = (
            outcome
            if report.outcome == outcome.status
            else _overrule(outcome, report, redactor)
        )
        session.reported[item.nodeid] = reported
        report.llmb = make_plain(reported)  # type: ignore[attr-defined]
        _redact_report(report, redactor)
        if reported is outcome and _begins_with_message(report, item):
            from pytest_llmbench.report.verdicts import make_headline

            # Replaces the multi-line message in pytest's short summary.
            report.llmb_headline = make_headline(reported)  # type: ignore[attr-defined]
    elif uses_runs(item):
        report.llmb_unjudged = True  # type: ignore[attr-defined]
    if is_worker(item.config) and (
        selection := get_session(item.config).pop_selection()
    ):
        report.llmb_selection = selection  # type: ignore[attr-defined]
    return report


def _redact_report(report: pytest.TestReport, redactor: Redactor) -> None:
    """Redact secrets in pytest's output of a test, which may quote logs."""
    if isinstance(report.longrepr, str):
        report.longrepr = redactor.redact(report.longrepr)
    elif isinstance(report.longrepr, tuple):  # of a skipped one
        path, line, reason = report.longrepr
        report.longrepr = path, line, redactor.redact(reason)
    else:
        for traceback, crash, _ in getattr(report.longrepr, "chain", ()):
            if crash is not None:
                crash.message = redactor.redact(crash.message)
            for entry in getattr(traceback, "reprentries", ()):
                entry.lines = redactor.redact_lines(entry.lines)
                if getattr(entry, "reprlocals", None):  # of --showlocals
                    entry.reprlocals.lines = redactor.redact_lines(
                        entry.reprlocals.lines
                    )
    report.sections = [
        (title, redactor.redact(text)) for title, text in report.sections
    ]


def _begins_with_message(report: pytest.TestReport, item: pytest.Item) -> bool:
    """True if the failure of a test begins with the first line of its item's message."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return False
    message = item.stash[FIXTURE_VALUE].message
    first_line = str(crash.message).partition("\n")[0]
    # The name of the exception precedes the message.
    return bool(message) and first_line.partition(": ")[2] == message.partition("\n")[0]


def _overrule(
    outcome: OutcomeDocument, report: pytest.TestReport, redactor: Redactor
) -> OutcomeDocument:
    """Change the outcome of a user's own test whose result contradicts the verdict."""
    from msgspec.structs import replace

    crash = getattr(report.longrepr, "reprcrash", None)
    error = redactor.redact(
        formatting.escape(
            str(crash.message if crash else report.longreprtext)
            .strip()
            .partition("\n")[0]
        )
    )
    original = outcome.verdict or outcome.reason.upper()
    verdict = "NOT_ASSERTED"
    text = f"{original}, but the test {report.outcome} without checking the verdict"
    if report.failed:
        verdict, text = "TEST_FAILED", f"{original}, but the test failed: {error}"
    reason = verdict.lower().replace("_", "-")
    return replace(
        outcome,
        status=report.outcome,
        verdict=verdict,
        reason=reason,
        text=text,
        overruled=original,
    )


# --- end of a session -----------------------------------------------------------------


class Collector:
    """Collects outcomes from test reports, in the only process or in the controller."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Stop raising signals after the last item; reports mention a later signal."""
        try:
            with self.session.stop.keep_raised():
                return (yield)
        finally:
            self.session.stop.hold()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Stop raising signals after the first one."""
        self.session.stop.hold()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the outcome of a test report, or create one for a crashed worker."""
        if hasattr(report, "llmb_selection"):
            self.session.selection = Selection(**report.llmb_selection)
        if report.when == "call" or not report.passed:
            self.session.finished_ids.add(report.nodeid)
        if hasattr(report, "llmb"):
            # Other outcomes are from plugins that rerun the test.
            if report.outcome in ("passed", "failed", "skipped"):
                self.session.add_outcome(report.nodeid, report.llmb)
        elif hasattr(report, "llmb_unjudged"):
            self.session.has_plugin_items = True
            if report.skipped:
                self.session.unjudged_ids.append(report.nodeid)
        elif report.failed and report.when not in ("setup", "call", "teardown"):
            # xdist reports a crash with another value of `when`.
            self.session.finished_outcomes += self.session.describe_crash(
                report.nodeid, report.longreprtext
            )

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(
        self, session: pytest.Session
    ) -> Generator[None, None, None]:
        """Turn write errors of pytest's own reports into session failures.

        Otherwise the session would end with a traceback and without a summary.
        """
        try:
            yield
        except OSError as error:
            written = (
                (flag, session.config.getoption(name, None))
                for flag, name in WRITTEN_BY_PYTEST.items()
            )
            files = (
                " or ".join(f"{flag}={path}" for flag, path in written if path)
                or "a report of another plugin"
            )
            self.session.failures.append(
                f"{files}: not written: {describe_os_error(error)}"
            )
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report files and set the exit code.

    A session fails if it judged nothing or if a report cannot be written.
    """
    if is_worker(session.config):
        return
    state = get_session(session.config)
    state.stop.hold()
    try:
        _record_interruption(session, state)
        if not any(session.config.getoption(name, None) for name in INFORMATION):
            _finish(session, state)
    finally:
        state.stop.end()


def _finish(session: pytest.Session, state: Session) -> None:
    """Record the failures of the session itself, and write all of its outputs.

    Changes the exit code if the session judged nothing, if a report hides a failed item
    or cannot be written, or if the session was interrupted meanwhile.
    """
    config = session.config
    expects_verdicts = (
        state.has_plugin_items
        or bool(find_judging_option(config))
        or is_suite_requested(config)
    )
    if state.ended_early:
        session.exitstatus = session.exitstatus or int(state.has_launch_problems)
        return
    # The items passed, but no verdict is among them.
    if (
        session.exitstatus == pytest.ExitCode.OK
        and expects_verdicts
        and not state.has_judged
    ):
        state.failures.append("nothing was judged: no test with a verdict was finished")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    # An item failed, but pytest does not know it.
    if session.exitstatus == pytest.ExitCode.OK and any(
        item.status == "failed" for item in state.finished_outcomes
    ):
        state.failures.append(
            "a failed item was reported as passed: a conftest or a plugin changed its report"
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    # The selection matched no item.
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and expects_verdicts:
        state.failures.append(NOTHING_SELECTED)
    state.add_selection_cautions(list_selecting_options(config))
    try:
        if not write_reports(state, int(session.exitstatus)):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    finally:
        # Last, so that a failure of either does not prevent the other.
        store_outcomes(state, int(session.exitstatus))
        if _record_interruption(session, state):
            write_reports(state, int(session.exitstatus))
        write_github_summary(state, int(session.exitstatus))


def _record_interruption(session: pytest.Session, state: Session) -> bool:
    """Record an interruption in the exit code and reports.

    Returns True if the session was interrupted and this was not recorded before.
    """
    is_started = session.exitstatus not in (
        pytest.ExitCode.INTERNAL_ERROR,
        pytest.ExitCode.USAGE_ERROR,
    )
    is_stopped = session.exitstatus == pytest.ExitCode.INTERRUPTED or state.stop.number
    if state.interrupted or not (is_stopped and is_started):
        return False
    state.interrupted = True
    session.exitstatus = pytest.ExitCode.INTERRUPTED
    by = f" by {state.stop.name}" if state.stop.name else ""
    text = f"interrupted{by}: items that did not run have no verdict"
    state.failures += filter(None, [text, state.describe_recorded()])
    if running := state.describe_unlaunched():
        # Without the command, which would be wrapped.
        state.failures.append(running.partition(":\n")[0])
        _make_printer(session.config)(f"\nllmbench: {running}")
    report = pytest.TestReport(
        "llmbench::session", ("llmbench", None, "session"), {}, "failed", text, "setup"
    )
    for plugin in session.config.pluginmanager.get_plugins():
        # Otherwise --junitxml would pass: it contains only items that ran.
        if type(plugin).__module__ == "_pytest.junitxml":
            plugin.pytest_runtest_logreport(report)
    return True


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print a line for each configuration, the next steps, and the counts."""
    session = get_session(config)
    session.has_summary = True
    # Failures and JUnit report are already written. Shorten the messages for the short
    # summary, which is not cut to the terminal width in CI and with -vv.
    for report in chain.from_iterable(terminalreporter.stats.values()):
        crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
        if crash is not None and hasattr(report, "llmb_headline"):
            crash.message = (
                f"{crash.message.partition(': ')[0]}: {report.llmb_headline}"
            )
    lines = render_terminal(session, config.get_verbosity())
    if lines:
        terminalreporter.section("llmbench")
    for line in lines:
        terminalreporter.write(
            line[: line.marked], **({line.colour: True} if line.colour else {})
        )
        terminalreporter.write(f"{line[line.marked :]}\n")
    for command in list_workflow_commands(session):
        terminalreporter.write(f"{command}\n")
