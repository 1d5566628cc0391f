"""The hooks of a session that judges runs, and the exit code at its end. No other
session registers them."""

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
    DESCRIBED,
    INFORMATION,
    MESSAGE,
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
    "nothing was judged: no item was selected. Next: look at -k and -m; `llmbench baselines list` has the names, and "
    'marks are such as llmb(gpus=128), llmb(gpu="h100")'
)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Go on where who reads the output goes away."""
    outlive_reader(session.config)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Write now what is left, not when Python ends, which would change the exit
    code."""
    _print_unshown(config)
    flush_terminal(config)


def _print_unshown(config: pytest.Config) -> None:
    """Print the problems of a session without a summary (`--no-summary`, `-p
    no:terminal`) to standard error."""
    session = get_session(config)
    if is_worker(config) or session.summarised:
        return
    with suppress(OSError):
        for failure in session.failures:
            sys.stderr.write(
                f"llmbench: {session.redactor.redact(formatting.escape(failure))}\n"
            )
        sys.stderr.flush()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand what the controller read and judged to an xdist worker."""
    node.workerinput["llmb"] = get_session(node.config).pack_for_workers()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what decides: the baselines and the tolerance in use, and where the logs
    are."""
    return [f"llmbench: {line}" for line in list_header(get_session(config))]


# --- items ----------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Keep the items whose node ids were given, once every conftest has seen all of
    them."""
    select_by_id(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Launch and settle the selected items before the first one runs.

    True ends a session that only tells what it would launch, or only submits.
    """
    config = session.config
    if config.getoption("collectonly"):
        return None
    # Before the first item, since what becomes of one depends on the others: if none
    # has a valid run, none is green.
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
    if session.items:  # the controller of workers has none
        state.selection = make_selection(session)
    return None


def _may_launch(session: pytest.Session) -> bool:
    """Whether a session does more than to tell something, and could collect
    everything."""
    return not session.testsfailed and not any(
        session.config.getoption(name, None) for name in INFORMATION
    )


def _launch_selected(session: pytest.Session) -> bool:
    """Launch what is selected; whether the session ends with that."""
    from pytest_llmbench.launch.continuation import Interrupted

    config = session.config
    _refuse_all_failed(session)
    tell = _make_teller(config)
    tell("")
    try:
        ends: bool = raise_usage_errors(
            lambda: get_session(config).launch(
                list(list_selected_ids(session.items)), tell
            )
        )
    except Interrupted as error:
        tell(
            f"llmbench: {error}"
        )  # commands among it: pytest's own line would add to them
        pytest.exit("the launch was stopped", returncode=pytest.ExitCode.INTERRUPTED)
    if not ends:
        add_checks(session)
    return ends


def _make_teller(config: pytest.Config) -> Callable[[str], None]:
    """Return what prints a line, now."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")

    def tell(line: str) -> None:
        if reporter is not None:
            with suppress(
                OSError
            ):  # a terminal that was closed keeps no job from being followed, or cancelled
                reporter.write_line(get_session(config).redactor.redact(line))
                # a CI log is no terminal: lines would stay in the buffer for hours
                reporter.flush()

    return tell


def _refuse_all_failed(session: pytest.Session) -> None:
    """Refuse --lf where no selected item is known to have failed."""
    # Pytest would run all of them, and all would be launched.
    cache = getattr(session.config, "cache", None)
    if not session.config.getoption("lf", False) or cache is None:
        return
    failed = cache.get("cache/lastfailed", {})
    if any(item.nodeid in failed for item in session.items):
        return
    reason = "--lf: none of the selected items is known to have failed, so nothing is launched"
    raise pytest.UsageError(f"{reason}{_advise_failed_checks(failed)}")


def _advise_failed_checks(failed: Collection[str]) -> str:
    """Return what to do where items failed that only a launch has; empty without
    such."""
    own = (
        node
        for node in failed
        if node.startswith(f"{SUITE_ID}/") and f"/{PERFORMANCE}.py::" not in node
    )
    names = [node.rpartition("::")[2] for node in own]
    if not names:
        return ""
    failed_names = formatting.join_first(names)
    return f"; {failed_names} failed, and follows from what was launched: leave out --lf to launch it again"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: Any
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the outcome on the report, as plain values: a report crosses xdist, and
    pytest-forked with marshal."""
    report = yield
    if DESCRIBED in item.stash and (call.when == "call" or not report.passed):
        from pytest_llmbench.report.outcome_documents import make_plain

        described = item.stash[DESCRIBED]
        session = get_session(item.config)
        redactor = session.redactor
        shown = (
            described
            if report.outcome == described.status
            else _overrule(described, report, redactor)
        )
        session.reported[item.nodeid] = shown
        report.llmb = make_plain(shown)  # type: ignore[attr-defined]
        _redact_report(report, redactor)
        if shown is described and _begins_with(report, item.stash[MESSAGE]):
            from pytest_llmbench.report.verdicts import make_headline

            # Of a message of ours, which has many lines, pytest's short summary shows
            # this; a user's own text stays.
            report.llmb_headline = make_headline(shown)  # type: ignore[attr-defined]
    elif uses_runs(item):
        report.llmb_unjudged = True  # type: ignore[attr-defined]
    if is_worker(item.config) and (
        selection := get_session(item.config).pop_selection()
    ):
        report.llmb_selection = selection  # type: ignore[attr-defined]
    return report


def _redact_report(report: pytest.TestReport, redactor: Redactor) -> None:
    """Hide secrets in what pytest prints of a test: a user's own quotes logs, too."""
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


def _begins_with(report: pytest.TestReport, message: str) -> bool:
    """Whether what a test failed with has the first line of our message, whatever an
    assertion wrote behind it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None or not message:
        return False
    first = str(crash.message).partition("\n")[0]
    return first.partition(": ")[2] == message.partition("\n")[0]


def _overrule(
    described: OutcomeDocument, report: pytest.TestReport, redactor: Redactor
) -> OutcomeDocument:
    """Make the outcome of a user's own test that ended otherwise than the verdict on
    its configuration."""
    from msgspec.structs import replace

    crash = getattr(report.longrepr, "reprcrash", None)
    error = redactor.redact(
        formatting.escape(
            str(crash.message if crash else report.longreprtext)
            .strip()
            .partition("\n")[0]
        )
    )
    own = described.verdict or described.reason.upper()
    verdict, text = (
        "NOT_ASSERTED",
        f"{own}, but the test {report.outcome} without asking for it",
    )
    if report.failed:
        verdict, text = "TEST_FAILED", f"{own}, but the test failed: {error}"
    reason = verdict.lower().replace("_", "-")
    return replace(
        described,
        status=report.outcome,
        verdict=verdict,
        reason=reason,
        text=text,
        overruled=own,
    )


# --- end of a session -----------------------------------------------------------------


class Collector:
    """Collects outcomes where the reports arrive: in the only process, or in the xdist
    controller."""

    def __init__(self, session: Session) -> None:
        """Take the session that keeps them."""
        self.session = session

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """From the end of the last item on, a signal is only noted: the reports will
        say so."""
        try:
            with self.session.stop.keep_raised():
                return (yield)
        finally:
            self.session.stop.hold()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Only note what follows the first signal."""
        self.session.stop.hold()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a report; an item that crashed its worker has none of its
        own."""
        if hasattr(report, "llmb_selection"):
            self.session.selection = Selection(**report.llmb_selection)
        if report.when == "call" or not report.passed:
            self.session.ran.add(report.nodeid)
        if hasattr(report, "llmb"):
            if report.outcome in (
                "passed",
                "failed",
                "skipped",
            ):  # a plugin's own outcome is tried again
                self.session.add_reported(report.nodeid, report.llmb)
        elif hasattr(report, "llmb_unjudged"):
            self.session.used = True
            self.session.unjudged += [report.nodeid] if report.skipped else []
        elif report.failed and report.when not in (
            "setup",
            "call",
            "teardown",
        ):  # xdist's word of a crash has none
            self.session.described += self.session.describe_crash(
                report.nodeid, report.longreprtext
            )

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(
        self, session: pytest.Session
    ) -> Generator[None, None, None]:
        """Tell what pytest could not write, which would end the session with a
        traceback and without a summary."""
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
    """Write the report files. A session that judged nothing, or a report that cannot be
    written, is red."""
    if is_worker(session.config):
        return
    state = get_session(session.config)
    state.stop.hold()
    try:
        _note_interruption(session, state)
        if not any(session.config.getoption(name, None) for name in INFORMATION):
            _finish(session, state)
    finally:
        state.stop.end()


def _finish(session: pytest.Session, state: Session) -> None:
    config = session.config
    expected = (
        state.used or bool(find_judging_option(config)) or is_suite_requested(config)
    )
    if state.ended_early:
        session.exitstatus = session.exitstatus or int(state.problems)
        return
    if session.exitstatus == pytest.ExitCode.OK and expected and not state.judged:
        state.failures.append(
            "nothing was judged: no item with a verdict ran to its end"
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if session.exitstatus == pytest.ExitCode.OK and any(
        item.status == "failed" for item in state.described
    ):
        state.failures.append(
            "a red item was reported as passed: a conftest or a plugin has changed its report"
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and expected:
        state.failures.append(NOTHING_SELECTED)
    state.notice_left_out(list_selecting_options(config))
    try:
        if not write_reports(state, int(session.exitstatus)):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    finally:
        # last: whatever happens there, verdicts and reports stand, and the other way round
        store_outcomes(state, int(session.exitstatus))
        if _note_interruption(session, state):
            write_reports(state, int(session.exitstatus))
        write_github_summary(state, int(session.exitstatus))


def _note_interruption(session: pytest.Session, state: Session) -> bool:
    """Whether the session was interrupted and nobody has said so yet; then its exit
    code and reports will."""
    ran = session.exitstatus not in (
        pytest.ExitCode.INTERNAL_ERROR,
        pytest.ExitCode.USAGE_ERROR,
    )
    stopped = session.exitstatus == pytest.ExitCode.INTERRUPTED or state.stop.number
    if state.interrupted or not (stopped and ran):
        return False
    state.interrupted = True
    session.exitstatus = pytest.ExitCode.INTERRUPTED
    by = f" by {state.stop.name}" if state.stop.name else ""
    text = f"interrupted{by}: what did not run has no verdict"
    state.failures += filter(None, [text, state.describe_recorded()])
    if left := state.describe_unlaunched():
        state.failures.append(
            left.partition(":\n")[0]
        )  # without the command, which would be wrapped
        _make_teller(session.config)(f"\nllmbench: {left}")
    report = pytest.TestReport(
        "llmbench::session", ("llmbench", None, "session"), {}, "failed", text, "setup"
    )
    for plugin in session.config.pluginmanager.get_plugins():
        if (
            type(plugin).__module__ == "_pytest.junitxml"
        ):  # else --junitxml would be green: it holds only what ran
            plugin.pytest_runtest_logreport(report)
    return True


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print a line for each configuration, what to do next, and the count by
    verdict."""
    session = get_session(config)
    session.summarised = True
    # The sections of the failures and the JUnit report are written by now; the short
    # summary follows, which in a CI and with -vv is not cut to the width of the
    # terminal.
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
