"""The pytest plugin: the hooks of every session.

Only sessions that judge runs register `hooks` and `collection`.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Generator
from typing import Any

import pytest

from pytest_llmbench.core.option import Option
from pytest_llmbench.core.options import OPTIONS, TYPED_OPTIONS
from pytest_llmbench.plugin import fixtures


def pytest_addoption(
    parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager
) -> None:
    """Declare the options and their ini keys."""
    pluginmanager.register(fixtures, fixtures.__name__)
    group = parser.getgroup("llmb", "LLM training benchmarks (pytest-llmbench)")
    for option in OPTIONS:
        if option.ini:
            kind: Any = option.ini
            parser.addini(option.dest, help=_describe_ini_key(option), type=kind)
    for option in TYPED_OPTIONS:
        keywords: dict[str, Any] = {
            "action": "append" if option.repeats else "store",
            "metavar": option.metavar,
        }
        if option.is_flag:
            keywords = {"action": "store_true", "default": None}
        elif option.alone:
            # The flag may be typed without a value, which means `option.alone`.
            keywords |= {"nargs": "?", "const": option.alone}
        group.addoption(option.flag, dest=option.dest, help=option.help, **keywords)


def _describe_ini_key(option: Option) -> str:
    """Return the help of an option's ini key."""
    return f"Default of {option.flag}." if option.has_flag else option.help


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Refuse unknown --llmb options and suggest the nearest valid option.

    Runs after the user's conftest files have declared their options. Raises UsageError.
    """
    result = yield
    flags = [option.flag for option in TYPED_OPTIONS]
    typed = [
        flag
        for flag in (argument.partition("=")[0] for argument in args)
        if flag.startswith("--llmb-")
    ]
    if not set(typed) <= set(flags):
        from pytest_llmbench.core.errors import did_you_mean
        from pytest_llmbench.core.options import describe_removed

        _, unknown = parser.parse_known_and_unknown_args(args)
        for flag in (argument.partition("=")[0] for argument in unknown):
            if flag in typed:
                hint = did_you_mean(flag, flags)
                unknown_option = f"{flag}: no such option{hint}; see pytest --help"
                raise pytest.UsageError(describe_removed(flag) or unknown_option)
    return result


def pytest_configure(config: pytest.Config) -> None:
    """Resolve the options; collect the built-in suite if no test path is given."""
    config.addinivalue_line(
        "markers",
        "llmb(model, size, release, gpu, dtype, gpus): a benchmark configuration",
    )
    if any(config.getoption(option.dest) is not None for option in TYPED_OPTIONS):
        from pytest_llmbench.core.runtime import describe_unfit_system

        if unfit := describe_unfit_system():
            raise pytest.UsageError(unfit)
        _start(config)
    if config.getoption("showfixtures", False):
        from pytest_llmbench.plugin.collection import register_check_fixtures

        register_check_fixtures(config)


def _start(config: pytest.Config) -> None:
    """Handle signals, then start a session with typed llmb options.

    An interrupted start is recorded in the reports before KeyboardInterrupt is raised.
    """
    from pytest_llmbench.core.runtime import (
        PlainImports,
        let_idle_threads_sleep,
        pause_garbage_collection,
    )

    imports = PlainImports("pytest_llmbench", "pytest_llmbench.suite")
    imports.install()
    config.add_cleanup(imports.remove)
    from pytest_llmbench.core.stop_signals import StopSignals

    stop = StopSignals()
    if not hasattr(config, "workerinput"):  # only the controller handles signals
        stop.install()
        # If another program called `pytest.main`, it needs its own handlers again.
        config.add_cleanup(lambda: stop.end() if _is_program() else stop.restore())
    try:
        with stop.keep_raised(), pause_garbage_collection():
            with let_idle_threads_sleep():
                from pytest_llmbench.core.redaction import redact_text
                from pytest_llmbench.plugin.configure import start

            start(config, stop)
            # Modules, baselines and histories live until the end: exclude them from
            # garbage collection.
            gc.freeze()
            if not _is_program():
                config.add_cleanup(gc.unfreeze)
    except pytest.UsageError as error:
        raise pytest.UsageError(*map(redact_text, map(str, error.args))) from None
    except KeyboardInterrupt:
        stop.hold()
        from contextlib import suppress

        from pytest_llmbench.core.errors import ReportError
        from pytest_llmbench.plugin.configure import (
            report_unlaunched,
            write_unfinished_reports,
        )

        with suppress(ReportError):  # the exit code is 2 in any case
            write_unfinished_reports(config)
        report_unlaunched(config)
        raise


def _is_program() -> bool:
    """True if the process ends with this pytest session.

    False if another program called `pytest.main`. Decides whether signals stay blocked
    until the process has ended, so that the exit code is not changed.
    """
    frames = (
        frame
        for frame, _ in traceback.walk_stack(None)
        if frame.f_globals.get("__name__") == "_pytest.config"
    )
    mains = [
        frame.f_code.co_name
        for frame in frames
        if frame.f_code.co_name.endswith("main")
    ]
    # The innermost frame is `pytest.main`; the next one called it.
    return mains[1:2] in (["console_main"], ["_console_main"])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests that use a fixture of this plugin with its cases."""
    if any(name.startswith("llmb_") for name in metafunc.fixturenames):
        from pytest_llmbench.plugin.collection import parametrize

        parametrize(metafunc)
