"""How a session starts in which llmb options were given: what they may not be, and what
judges."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import EMFILE, ENFILE
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import LlmbenchError, ReportError
from pytest_llmbench.core.ini_file import (
    INI_KEYS,
    find_shadowed_keys,
    read_file_keys,
    refuse_empty,
    refuse_misplaced,
    refuse_unknown,
)
from pytest_llmbench.core.option import (
    OptionValues,
    Origins,
    Written,
    find_ini_origins,
    find_option_origins,
    find_output,
    refuse_blank,
)
from pytest_llmbench.core.options import LAUNCH_OPTIONS, TYPED_OPTIONS, get_option
from pytest_llmbench.core.outcome_records import Caution, CautionCode
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.stop_signals import StopSignals
from pytest_llmbench.logs.reading.run_reader import ReadingProgress
from pytest_llmbench.plugin.collection import register_check_fixtures
from pytest_llmbench.plugin.hooks import Collector
from pytest_llmbench.plugin.outputs import announce_reports
from pytest_llmbench.plugin.session_state import Session
from pytest_llmbench.plugin.stash import (
    INFORMATION,
    SESSION,
    WRITTEN_BY_PYTEST,
    is_judging,
    is_launching,
    is_suite_requested,
    is_worker,
    list_requested,
    list_requested_ids,
    raise_usage_errors,
)
from pytest_llmbench.report.output_files import REPORTS
from pytest_llmbench.session.settings import list_outputs, refuse_logs, refuse_shared

# Imported by name: pytester forgets modules that a session imported, but their package
# would still have them.
HOOKS = ("pytest_llmbench.plugin.hooks", "pytest_llmbench.plugin.collection")

SPARE_FILES = 8
"""So many files have to be open beside those that are: a log, an archive, pytest's own
capture of a test."""


def start(config: pytest.Config, stop: StopSignals) -> None:
    """Refuse misused options; with runs to judge register the hooks, and read the
    baselines; else let signals go."""
    try:
        raise_usage_errors(lambda: _start(config, stop))
    except pytest.UsageError as error:
        _void_old_reports(config, redact_text("\n".join(map(str, error.args))))
        raise


def _start(config: pytest.Config, stop: StopSignals) -> None:
    if not is_worker(config):
        _refuse_misuse(config)
        _refuse_strange_keys(config)
    if is_suite_requested(config):
        config.args = [
            str(config.rootpath)
        ]  # a new list: the old one may be the option itself
    if is_judging(config):
        _refuse_few_files()
        _start_judging(config, stop)
        stop.hold()
        announce(
            config
        )  # not before: what cannot begin makes old reports void, and writes no new ones
        stop.let_go()
    else:
        stop.restore()


def _start_judging(config: pytest.Config, stop: StopSignals) -> None:
    session = _make_session(config)
    session.stop = stop
    config.stash[SESSION] = session
    for name in HOOKS:
        config.pluginmanager.register(import_module(name), name)
    register_check_fixtures(config)
    config.pluginmanager.register(Collector(session), "pytest_llmbench_collector")
    session.prepare()


def announce(config: pytest.Config) -> None:
    """Let the reports say that the session has not ended, if it is to write any."""
    if is_judging(config):
        announce_reports(_find_reports(config))


def _void_old_reports(config: pytest.Config, problem: str) -> None:
    """Let the reports of an earlier session say why this one could not begin."""
    old = {
        flag: path
        for flag, path in _find_reports(config).items()
        if os.path.exists(path)
    }
    with suppress(ReportError):  # the session ends with 4 in any case
        announce_reports(
            old, pytest.ExitCode.USAGE_ERROR, f"the session could not begin: {problem}"
        )


def _find_reports(config: pytest.Config) -> dict[str, Path]:
    """Return the reports that the session is to write, by the flag."""
    silent = (*INFORMATION, "help", "markers", "llmb_dry_run", "llmb_submit_only")
    if is_worker(config) or any(config.getoption(name, None) for name in silent):
        return {}
    paths = {
        flag: path
        for flag, path in _find_written(config).items()
        if flag == "--junitxml"
    }
    for flag in REPORTS:
        with suppress(LlmbenchError):  # it is told, where nobody interrupts
            if path := find_output(
                _read_values(config), get_option(flag), config.invocation_params.dir
            ):
                paths[flag] = path
    return paths


def report_unlaunched(config: pytest.Config) -> None:
    """Say which jobs go on that a session, which was interrupted as it started, was to
    go on with."""
    session = config.stash.get(SESSION, None)
    text = session.describe_unlaunched() if session else ""
    if text and not is_worker(config):
        with suppress(OSError):
            sys.stderr.write(f"llmbench: {text}\n")


def _find_written(config: pytest.Config) -> dict[str, Path]:
    """Return the files that pytest itself writes, by the flag."""
    written = {
        flag: config.getoption(name, None) for flag, name in WRITTEN_BY_PYTEST.items()
    }
    return {
        flag: Path(os.path.expanduser(os.path.expandvars(path)))
        for flag, path in written.items()
        if path
    }


def _refuse_few_files() -> None:
    """Raise UsageError where so few files may be open that every log would be
    unreadable."""
    spare: list[int] = []
    try:
        while len(spare) < SPARE_FILES:
            spare.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno in (EMFILE, ENFILE):
            raise pytest.UsageError(
                f"{error.strerror}: allow this process more of them, with `ulimit -n 256`"
            ) from None
    finally:
        for handle in spare:
            os.close(handle)


def _make_session(config: pytest.Config) -> Session:
    if is_worker(config):
        return Session.unpack_from_controller(config.workerinput["llmb"])  # type: ignore[attr-defined]
    made: Session = Session.from_options(
        _read_values(config), config.invocation_params.dir
    )
    history = made.settings.history and made.settings.history.until(made.now)
    made.settings = made.settings.replace(asked=list_requested(config), history=history)
    others = _find_written(config)
    refuse_shared(others, list_outputs(made.settings))
    refuse_logs(made.settings.logs, others)
    made.noticed += _find_shadowed(config)
    made.tell_reading = _make_progress(config)
    made.command = tuple(map(str, config.invocation_params.args))
    if any(config.getoption(name, None) for name in INFORMATION):
        made.settings = made.settings.replace(
            history=None
        )  # it neither judges nor stores
    return made


def _make_progress(config: pytest.Config) -> ReadingProgress:
    """Return what tells on the terminal how far reading is: nothing under -q."""

    def get_terminal() -> Any:
        return (
            config.pluginmanager.get_plugin("terminalreporter")
            if config.get_verbosity() >= 0
            else None
        )

    return ReadingProgress(get_terminal, time.monotonic)


def _refuse_misuse(config: pytest.Config) -> None:
    """Raise UsageError for options typed on the command line that would do something
    else than they say."""
    typed = [str(argument) for argument in config.invocation_params.args]
    for flag, value in pairwise(
        [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), "", *typed]
    ):
        if flag in {
            option.flag for option in TYPED_OPTIONS if not option.is_flag
        } and os.path.exists(value):
            raise pytest.UsageError(
                f"write {flag}={value} with an equals sign: after a space pytest takes {value} for a test path "
                "and looks for the project's ini file there"
            )
    flags = [
        argument.partition("=")[0]
        for argument in typed
        if argument.startswith("--llmb-")
    ]
    idle = {option.flag for option in LAUNCH_OPTIONS} & set(flags)
    if idle and not is_launching(config):
        raise pytest.UsageError(f"{min(idle)} has nothing to launch: add --llmb-launch")
    if flags and not is_judging(config):
        raise pytest.UsageError(
            f"{flags[0]} has no runs to work on: add --llmb-logs=PATH, or --llmb-launch"
        )
    if (
        "-" in (config.getoption("llmb_logs") or ())
        and config.getoption("capture") != "no"
    ):
        raise pytest.UsageError(
            "--llmb-logs=- reads standard input, which pytest takes away from tests: add -s"
        )
    if is_launching(config) and _is_distributed(config):
        raise pytest.UsageError(
            "a launch runs in one process: leave out -n, or add -n0 (jobs run side by side anyway)"
        )
    if (
        0
        < len(list_requested_ids(config))
        < len(config.getoption("file_or_dir", None) or [])
    ):
        raise pytest.UsageError(
            f"{list_requested_ids(config)[0]}: ids of built-in tests and paths cannot run in one session"
        )
    if config.getoption("llmb_record") and config.getoption("numprocesses", None):
        raise pytest.UsageError(
            "--llmb-record writes from one process: leave out -n, or add -n0"
        )


def _is_distributed(config: pytest.Config) -> bool:
    return (
        bool(config.getoption("numprocesses", None))
        or config.getoption("dist", "no") != "no"
    )


def _read_values(config: pytest.Config) -> OptionValues:
    """Return the values on the command line, and behind them the ini file's. An empty
    value is none that was meant."""
    given = [
        option for option in TYPED_OPTIONS if config.getoption(option.dest) is not None
    ]
    typed = {option.dest: config.getoption(option.dest) for option in given}
    refuse_blank(typed)
    ini = {name: _read_ini_value(config, name) for name in INI_KEYS}
    return OptionValues(
        typed, ini, _find_origins(config, [option.flag for option in given])
    )


def _read_ini_value(config: pytest.Config, name: str) -> Any:
    try:
        return config.getini(name)
    except (
        TypeError,
        ValueError,
    ) as error:  # before pytest 9.2 it tells nobody which key it was
        raise pytest.UsageError(f"{_file(config)}: {name}: {error}") from None


def _find_origins(config: pytest.Config, flags: Sequence[str]) -> Origins:
    """Return where the options that were given, and the ini keys, were written."""
    typed, file = (
        [str(argument) for argument in config.invocation_params.args],
        _file(config),
    )
    keys = [key for key in _file_keys(config) if key in INI_KEYS]
    arguments = {
        Written.TYPED: typed,
        Written.ENVIRONMENT: shlex.split(os.environ.get("PYTEST_ADDOPTS", "")),
        Written.ADDOPTS: config.getini("addopts"),
    }
    return {
        **find_option_origins(flags, arguments, file),
        **find_ini_origins(keys, config.getoption("override_ini") or (), typed, file),
    }


def _find_shadowed(config: pytest.Config) -> Iterator[Caution]:
    """Yield the keys of ours that count for nothing, since pytest reads another file of
    the same folder."""
    if config.inipath is None or config.getoption("inifilename", None):
        return
    for name, keys in find_shadowed_keys(config.inipath).items():
        text = f"{keys[0]} in {name} does not count: pytest reads {config.inipath.name}"
        yield Caution(CautionCode.OVERRIDDEN, text)


def _refuse_strange_keys(config: pytest.Config) -> None:
    """Refuse keys of pytest's configuration that were meant for this plugin and do
    nothing."""
    # Pytest only warns, and a misspelled tolerance would judge with the default.
    overrides = [
        override.partition("=")[0]
        for override in config.getoption("override_ini") or ()
    ]
    keys = _file_keys(config)
    refuse_unknown(
        [key for key in keys if not _is_declared(config, key)], _file(config)
    )
    refuse_unknown([key for key in overrides if not _is_declared(config, key)], "-o")
    refuse_empty(keys, _file(config))
    if config.inipath is not None and config.inipath.is_file():
        refuse_misplaced(config.inipath, _file(config))


def _is_declared(config: pytest.Config, key: str) -> bool:
    try:
        config.getini(key)
    except (TypeError, ValueError):
        return (
            key in INI_KEYS
        )  # a value of ours that cannot be used is told where it is resolved
    except pytest.UsageError:
        return True
    return True


def _file_keys(config: pytest.Config) -> dict[str, object]:
    """Return what the configuration file sets that pytest reads; without one
    nothing."""
    path = config.inipath
    return read_file_keys(path) if path is not None and path.is_file() else {}


def _file(config: pytest.Config) -> str:
    path = config.inipath
    return (
        ""
        if path is None
        else formatting.format_path(path, config.invocation_params.dir)
    )
