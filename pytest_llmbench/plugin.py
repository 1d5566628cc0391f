"""The pytest plugin: hooks of a few lines. An idle session (no --llmb option) does nothing here."""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.options import OPTIONS, destination

if TYPE_CHECKING:
    from pytest_llmbench.models import Key
    from pytest_llmbench.session import Session

pytest_plugins = ["pytest_llmbench.fixtures"]

SESSION: pytest.StashKey[Session] = pytest.StashKey()
DESCRIBED: pytest.StashKey[dict[str, Any]] = pytest.StashKey()

SUITE = Path(__file__).parent / "suite"
SUITE_ID = "pytest_llmbench/suite"
"""Node ids of the built-in tests start with this, and with dots their class names in JUnit."""


# --- start of a session -----------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options, and the ini keys of those that a repository may decide."""
    group = parser.getgroup("llmb", "LLM training benchmarks (pytest-llmbench)")
    for option in OPTIONS:
        dest, action = destination(option.flag), "append" if option.repeats else "store"
        group.addoption(option.flag, dest=dest, metavar=option.metavar, action=action, help=option.help)
        if option.ini:
            kind: Any = option.ini
            parser.addini(dest, help=f"Default of {option.flag}.", type=kind)


def pytest_configure(config: pytest.Config) -> None:
    """Resolve the options; with --llmb-logs and no path on the command line, collect the built-in suite."""
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
    return _session(config).header() if SESSION in config.stash else []


def _start(config: pytest.Config) -> None:
    if _in_worker(config):
        _session(config)
    else:
        _refuse_misuse(config)
    if _suite_wanted(config):
        config.args = [str(config.rootpath)]  # a new list: the old one may be the option itself
    if config.getoption("llmb_logs"):
        _checked(_session(config).prepare)


def _suite_wanted(config: pytest.Config) -> bool:
    """Whether the built-in tests run: without a path on the command line, or with their own node ids."""
    return bool(config.getoption("llmb_logs")) and len(_wanted_ids(config)) == len(_paths(config))


def _paths(config: pytest.Config) -> list[str]:
    return list(config.getoption("file_or_dir", None) or [])


def _wanted_ids(config: pytest.Config) -> list[str]:
    """Return the node ids of built-in tests that were given; from a sub-folder pytest prints them with `../`."""
    plain = (path.lstrip("./").rstrip("/") for path in _paths(config))
    return [path for path in plain if path == SUITE_ID or path.startswith(f"{SUITE_ID}/")]


def _refuse_misuse(config: pytest.Config) -> None:
    """Raise UsageError for options typed on the command line that would do something else than they say."""
    typed = [str(argument) for argument in config.invocation_params.args]
    for flag, value in pairwise([*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), "", *typed]):
        if flag in {option.flag for option in OPTIONS} and Path(value).exists():
            raise pytest.UsageError(
                f"write {flag}={value} with an equals sign: after a space pytest takes {value} for a test path "
                "and looks for the project's ini file there"
            )
    given = [argument.partition("=")[0] for argument in typed if argument.startswith("--llmb-")]
    if given and not config.getoption("llmb_logs"):
        raise pytest.UsageError(f"{given[0]} has no runs to work on: add --llmb-logs=PATH")
    if 0 < len(_wanted_ids(config)) < len(_paths(config)):
        raise pytest.UsageError(f"{_wanted_ids(config)[0]}: ids of built-in tests and paths cannot run in one session")
    if config.getoption("llmb_record") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--llmb-record writes from one process: leave out -n, or add -n0")


def _session(config: pytest.Config) -> Session:
    """Return the session's state; the first use resolves the options."""
    if SESSION not in config.stash:
        from pytest_llmbench.session import Session

        if _in_worker(config):
            session = Session.in_worker(config.workerinput["llmb"])  # type: ignore[attr-defined]
        else:
            session = _checked(lambda: Session.from_options(_values(config), config.invocation_params.dir))
        config.stash[SESSION] = session
        config.pluginmanager.register(Collector(session), "pytest_llmbench_collector")
    return config.stash[SESSION]


def _values(config: pytest.Config) -> dict[str, Any]:
    """Return each option's value: the command line's, else the ini file's. An empty value is none that was meant."""
    values = {}
    for option in OPTIONS:
        dest = destination(option.flag)
        given = config.getoption(dest)
        if given == "":
            raise pytest.UsageError(f"{option.flag}= is empty: give a value, or leave the option out")
        values[dest] = given if given is not None else config.getini(dest) if option.ini else None
    return values


def _in_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _checked(action: Any) -> Any:
    """Return what `action` returns; a problem that the user can fix becomes a usage error."""
    from pytest_llmbench.errors import LlmbenchError

    try:
        return action()
    except LlmbenchError as error:
        raise pytest.UsageError(str(error)) from None


# --- collection -------------------------------------------------------------------------------------------


class SuiteModule(pytest.Module):
    """A file of the built-in suite, collected whatever names the user's ini asks for.

    It stands at the project's root, so that the project's conftest applies and node ids and JUnit class names are the
    same wherever the package is installed; as a path they would follow the place of the virtual environment.
    """

    @classmethod
    def of(cls, parent: Suite, path: Path) -> SuiteModule:
        """Return the collector of one file."""
        made: SuiteModule = cls.from_parent(parent, path=parent.path, name=path.name, nodeid=f"{SUITE_ID}/{path.name}")
        made.obj = importlib.import_module(f"pytest_llmbench.suite.{path.stem}")
        return made

    def funcnamefilter(self, name: str) -> bool:
        """Return whether a function is a test."""
        return name.startswith("test_")


class Suite(pytest.Directory):
    """The built-in tests in the place of the project's own."""

    def collect(self) -> Iterator[SuiteModule]:
        """Yield the files; runs that match nothing have theirs only where there are any."""
        strays = bool(_session(self.config).failing_strays)
        for path in sorted(SUITE.glob("test_*.py")):
            if strays or path.stem != "test_unmatched_run":
                yield SuiteModule.of(self, path)


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Directory | None:
    """Collect the built-in suite instead of the project where no path was given."""
    config = parent.config
    if path != config.rootpath or not _suite_wanted(config):
        return None
    suite: Suite = Suite.from_parent(parent, path=path)
    return suite


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Read the logs before the items are made, so that a problem with them is one message."""
    config = session.config
    if SESSION not in config.stash:
        return
    batch = _checked(lambda: config.stash[SESSION].batch)
    items = [f"{SUITE_ID}/test_performance.py::test_performance[{name}]" for name in batch.results]
    items += [f"{SUITE_ID}/test_unmatched_run.py::test_unmatched_run[{stray.id}]" for stray in batch.strays]
    unknown = [node for node in _wanted_ids(config) if not any(_is_under(item, node) for item in items)]
    if unknown and not _in_worker(config):
        raise pytest.UsageError(f"not found: {unknown[0]}; --collect-only lists the items")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make an item of each configuration, and of each run that matches none."""
    if "llmb_case" in metafunc.fixturenames and not metafunc.config.getoption("llmb_logs"):
        metafunc.parametrize("llmb_case", [pytest.param(None, id="no-logs", marks=pytest.mark.llmb)], indirect=True)
    elif "llmb_case" in metafunc.fixturenames:
        cases = (result.case for result in _checked(lambda: _session(metafunc.config).batch).results.values())
        parameters = [pytest.param(case, id=case.id, marks=_mark(case.key)) for case in cases]
        metafunc.parametrize("llmb_case", parameters, indirect=True)
    if "llmb_unmatched" in metafunc.fixturenames:
        strays = _checked(lambda: _session(metafunc.config).failing_strays)
        parameters = [pytest.param(stray, id=stray.id, marks=pytest.mark.llmb(unmatched=True)) for stray in strays]
        metafunc.parametrize("llmb_unmatched", parameters, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the items whose node ids were given, as a failed one is copied from the output to run it again."""
    wanted = _wanted_ids(config)
    if SESSION not in config.stash or not wanted:
        return
    kept = [item for item in items if any(_is_under(item.nodeid, node) for node in wanted)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _is_under(nodeid: str, given: str) -> bool:
    return nodeid == given or nodeid.startswith((f"{given}::", f"{given}[", f"{given}/"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a session in which nothing uses the --llmb options that were typed."""
    config = session.config
    if SESSION not in config.stash or _in_worker(config) or not session.items:
        return
    if _typed_logs(config) and not any(_uses_runs(item) for item in session.items):
        raise pytest.UsageError(
            "no selected test uses --llmb-logs: a test asks for a run with the fixture llmb_verdict"
        )


def _uses_runs(item: pytest.Item) -> bool:
    return bool(set(getattr(item, "fixturenames", ())) & {"llmb_case", "llmb_unmatched"})


def _typed_logs(config: pytest.Config) -> bool:
    return any(str(argument).startswith("--llmb-logs") for argument in config.invocation_params.args)


def _mark(key: Key) -> pytest.MarkDecorator:
    return pytest.mark.llmb(
        model=key.recipe, size=key.size, release=key.release, gpu=key.gpu, dtype=key.dtype, gpus=key.gpus
    )


# --- items ------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Settle the selected items before the first one runs: what no run was found for depends on the others."""
    if SESSION in session.config.stash and not session.config.getoption("collectonly"):
        _checked(lambda: session.config.stash[SESSION].settle(list(_selected(session.items))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the outcome on the report, as a dictionary that crosses xdist."""
    report = yield
    if DESCRIBED in item.stash and (call.when == "call" or not report.passed):
        described = item.stash[DESCRIBED]
        report.llmb = described if report.outcome == described["status"] else _overruled(described, report)  # type: ignore[attr-defined]
    elif _uses_runs(item):
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


def _selected(items: Sequence[pytest.Item]) -> Iterator[str]:
    """Yield the ids of the configurations that the items are about, each once."""
    specs = (getattr(item, "callspec", None) for item in items)
    cases = (spec.params.get("llmb_case") for spec in specs if spec is not None)
    yield from dict.fromkeys(case.id for case in cases if case is not None)


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


INFORMATION = ("collectonly", "setuponly", "setupplan", "showfixtures", "show_fixtures_per_test", "cacheshow")
"""Options of pytest with which a session only tells something."""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report files. A session that judged nothing, or a report that cannot be written, is red."""
    config = session.config
    if SESSION not in config.stash or _in_worker(config) or any(config.getoption(name, None) for name in INFORMATION):
        return
    state = config.stash[SESSION]
    expected = state.used or _typed_logs(config) or _suite_wanted(config)
    if session.exitstatus == pytest.ExitCode.OK and expected and not state.judged:
        state.failures.append("nothing was judged: no item with a verdict ran to its end")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if not state.write_reports():
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print a line for each configuration, and the count by verdict."""
    lines = config.stash[SESSION].summary() if SESSION in config.stash else []
    if lines:
        terminalreporter.section("llmbench")
        terminalreporter.write("\n".join([*lines, ""]))
