"""The pytest plugin: hooks of a few lines. An idle session (no --llmb option) does nothing here."""

from __future__ import annotations

import os
import shlex
import time
from collections import ChainMap
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench import collection, fixtures
from pytest_llmbench.options import LAUNCH_OPTIONS, OPTIONS, destination
from pytest_llmbench.stash import (
    DESCRIBED,
    INFORMATION,
    SESSION,
    checked,
    in_worker,
    judging,
    launching,
    selected,
    session_of,
    suite_wanted,
    typed_judging,
    uses_runs,
    wanted_ids,
)

if TYPE_CHECKING:
    from pytest_llmbench.reading_progress import ReadingProgress
    from pytest_llmbench.session import Session


# --- start of a session -----------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the options, and the ini keys of those that a repository may decide."""
    for module in (fixtures, collection):
        pluginmanager.register(module, module.__name__)
    group = parser.getgroup("llmb", "LLM training benchmarks (pytest-llmbench)")
    for option in OPTIONS:
        dest = destination(option.flag)
        takes: dict[str, Any] = {"action": "append" if option.repeats else "store", "metavar": option.metavar}
        if option.is_flag:
            takes = {"action": "store_true", "default": None}
        elif option.alone:
            takes |= {"nargs": "?", "const": option.alone}
        group.addoption(option.flag, dest=dest, help=option.help, **takes)
        if option.ini:
            kind: Any = option.ini
            parser.addini(dest, help=f"Default of {option.flag}.", type=kind)


def pytest_configure(config: pytest.Config) -> None:
    """Resolve the options; with runs to judge and no path on the command line, collect the built-in suite."""
    config.addinivalue_line("markers", "llmb(model, size, release, gpu, dtype, gpus): a benchmark configuration")
    if any(config.getoption(destination(option.flag)) is not None for option in OPTIONS):
        _start(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand what the controller read and judged to an xdist worker."""
    if SESSION in node.config.stash:
        node.workerinput["llmb"] = node.config.stash[SESSION].for_workers()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what decides: the baselines and the tolerance in use, and where the logs are."""
    return session_of(config).header() if SESSION in config.stash else []


def _start(config: pytest.Config) -> None:
    if not in_worker(config):
        _refuse_misuse(config)
    if suite_wanted(config):
        config.args = [str(config.rootpath)]  # a new list: the old one may be the option itself
    if judging(config):
        session = _session(config)
        config.stash[SESSION] = session
        config.pluginmanager.register(Collector(session), "pytest_llmbench_collector")
        checked(session.prepare)


def _session(config: pytest.Config) -> Session:
    from pytest_llmbench.session import Session

    if in_worker(config):
        return Session.in_worker(config.workerinput["llmb"])  # type: ignore[attr-defined]
    made: Session = checked(lambda: Session.from_options(_values(config), config.invocation_params.dir))
    made.tell_reading = _progress(config)
    return made


def _progress(config: pytest.Config) -> ReadingProgress:
    """Return what tells on the terminal how far reading is: nothing under -q."""
    from pytest_llmbench.reading_progress import ReadingProgress

    def terminal() -> Any:
        return config.pluginmanager.get_plugin("terminalreporter") if config.get_verbosity() >= 0 else None

    return ReadingProgress(terminal, time.monotonic)


def _refuse_misuse(config: pytest.Config) -> None:
    """Raise UsageError for options typed on the command line that would do something else than they say."""
    typed = [str(argument) for argument in config.invocation_params.args]
    for flag, value in pairwise([*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), "", *typed]):
        if flag in {option.flag for option in OPTIONS if not option.is_flag} and Path(value).exists():
            raise pytest.UsageError(
                f"write {flag}={value} with an equals sign: after a space pytest takes {value} for a test path "
                "and looks for the project's ini file there"
            )
    given = [argument.partition("=")[0] for argument in typed if argument.startswith("--llmb-")]
    idle = {option.flag for option in LAUNCH_OPTIONS} & set(given)
    if idle and not launching(config):
        raise pytest.UsageError(f"{min(idle)} has nothing to launch: add --llmb-launch")
    if given and not judging(config):
        raise pytest.UsageError(f"{given[0]} has no runs to work on: add --llmb-logs=PATH, or --llmb-launch")
    if "-" in (config.getoption("llmb_logs") or ()) and config.getoption("capture") != "no":
        raise pytest.UsageError("--llmb-logs=- reads standard input, which pytest takes away from tests: add -s")
    if launching(config) and _distributed(config):
        raise pytest.UsageError("a launch runs in one process: leave out -n, or add -n0 (jobs run side by side anyway)")
    if 0 < len(wanted_ids(config)) < len(config.getoption("file_or_dir", None) or []):
        raise pytest.UsageError(f"{wanted_ids(config)[0]}: ids of built-in tests and paths cannot run in one session")
    if config.getoption("llmb_record") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--llmb-record writes from one process: leave out -n, or add -n0")


def _distributed(config: pytest.Config) -> bool:
    return bool(config.getoption("numprocesses", None)) or config.getoption("dist", "no") != "no"


def _values(config: pytest.Config) -> ChainMap[str, Any]:
    """Return the values on the command line, and behind them the ini file's. An empty value is none that was meant."""
    given = {option.flag: config.getoption(destination(option.flag)) for option in OPTIONS}
    for flag, value in given.items():
        if value == "":
            raise pytest.UsageError(f"{flag}= is empty: give a value, or leave the option out")
    typed = {destination(flag): value for flag, value in given.items() if value is not None}
    decided = (destination(option.flag) for option in OPTIONS if option.ini)
    return ChainMap(typed, {name: config.getini(name) for name in decided})


# --- items ------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Launch and settle the selected items before the first one runs: what becomes of one depends on the others.

    True ends a session that only tells what it would launch, or only submits.
    """
    config = session.config
    if SESSION not in config.stash or config.getoption("collectonly"):
        return None
    from pytest_llmbench.launch_session import launched

    if config.stash[SESSION].settings.launch is not None and launched(session):
        return True
    checked(lambda: config.stash[SESSION].settle(list(selected(session.items))))
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the outcome on the report, as a dictionary that crosses xdist."""
    report = yield
    if DESCRIBED in item.stash and (call.when == "call" or not report.passed):
        described = item.stash[DESCRIBED]
        report.llmb = described if report.outcome == described["status"] else _overruled(described, report)  # type: ignore[attr-defined]
    elif uses_runs(item):
        report.llmb_unjudged = True  # type: ignore[attr-defined]
    return report


def _overruled(described: dict[str, Any], report: pytest.TestReport) -> dict[str, Any]:
    """Return the outcome of a user's own test that ended otherwise than the verdict on its configuration."""
    crash = getattr(report.longrepr, "reprcrash", None)
    error = str(crash.message if crash else report.longreprtext).strip().partition("\n")[0]
    own = described.get("verdict") or described["reason"].upper()
    verdict, text = "NOT_ASSERTED", f"{own}, but the test {report.outcome} without asking for it"
    if report.failed:
        verdict, text = "TEST_FAILED", f"{own}, but the test failed: {error}"
    reason = verdict.lower().replace("_", "-")
    told = {"status": report.outcome, "verdict": verdict, "reason": reason, "text": text, "overruled": own}
    return {**described, **told}


# --- end of a session -------------------------------------------------------------------------------------


class Collector:
    """Collects outcome dictionaries where the reports arrive: in the only process, or in the xdist controller."""

    def __init__(self, session: Session) -> None:
        """Take the session that keeps them."""
        self.session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a report; an item that crashed its worker has none of its own."""
        if hasattr(report, "llmb"):
            if report.outcome in ("passed", "failed", "skipped"):  # a plugin's own outcome is tried again
                self.session.described.append(report.llmb)
        elif hasattr(report, "llmb_unjudged"):
            self.session.used = True
        elif report.failed and report.when not in ("setup", "call", "teardown"):  # xdist's word of a crash has none
            self.session.described += self.session.crashed(report.nodeid, report.longreprtext)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report files. A session that judged nothing, or a report that cannot be written, is red."""
    config = session.config
    if SESSION not in config.stash or in_worker(config) or any(config.getoption(name, None) for name in INFORMATION):
        return
    state = config.stash[SESSION]
    expected = state.used or bool(typed_judging(config)) or suite_wanted(config)
    if state.ended_early:
        session.exitstatus = session.exitstatus or int(state.problems)
        return
    if session.exitstatus == pytest.ExitCode.OK and expected and not state.judged:
        state.failures.append("nothing was judged: no item with a verdict ran to its end")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if not state.write_reports():
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print a line for each configuration, and the count by verdict."""
    lines = config.stash[SESSION].summary(config.get_verbosity() > 0) if SESSION in config.stash else []
    if lines:
        terminalreporter.section("llmbench")
        terminalreporter.write("\n".join([*lines, ""]))
