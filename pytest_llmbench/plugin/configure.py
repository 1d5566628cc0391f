"""The start of a session with llmb options: refuse misuse, then prepare the session."""

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
from pytest_llmbench.plugin.outputs import replace_reports
from pytest_llmbench.plugin.session_state import Session
from pytest_llmbench.plugin.stash import (
    INFORMATION,
    SESSION,
    WRITTEN_BY_PYTEST,
    is_judging,
    is_launching,
    is_suite_requested,
    is_worker,
    list_requested_ids,
    list_requested_patterns,
    raise_usage_errors,
)
from pytest_llmbench.report.output_files import REPORTS
from pytest_llmbench.session.settings import list_outputs, refuse_logs, refuse_shared

# Imported by name: pytester removes modules of a session from sys.modules, but not from
# the attributes of their package.
HOOKS = ("pytest_llmbench.plugin.hooks", "pytest_llmbench.plugin.collection")

SPARE_FILES = 8
"""File descriptors that the session needs in addition to the open ones: for a log, an
archive, and pytest's capture."""


def start(config: pytest.Config, stop: StopSignals) -> None:
    """Check the options; in a session that judges runs, register hooks and read baselines.

    Writes a UsageError into the reports of an earlier session before it is raised. In a
    session that judges no runs, signals regain their previous handlers.
    """
    try:
        raise_usage_errors(lambda: _start(config, stop))
    except pytest.UsageError as error:
        _void_old_reports(config, redact_text("\n".join(map(str, error.args))))
        raise


def _start(config: pytest.Config, stop: StopSignals) -> None:
    """Do the work of `start`, raising errors of any kind."""
    if not is_worker(config):
        _refuse_misuse(config)
        _refuse_unknown_keys(config)
    if is_suite_requested(config):
        # A new list: pytest may share the old one with the option.
        config.args = [str(config.rootpath)]
    if is_judging(config):
        _refuse_few_files()
        _start_judging(config, stop)
        stop.hold()
        # Not earlier: a session that cannot start must not write new reports.
        write_unfinished_reports(config)
        stop.release()
    else:
        stop.restore()


def _start_judging(config: pytest.Config, stop: StopSignals) -> None:
    """Create the session, register its hooks and fixtures, and read the baselines."""
    session = _make_session(config)
    session.stop = stop
    config.stash[SESSION] = session
    for name in HOOKS:
        config.pluginmanager.register(import_module(name), name)
    register_check_fixtures(config)
    config.pluginmanager.register(Collector(session), "pytest_llmbench_collector")
    session.prepare()


def write_unfinished_reports(config: pytest.Config) -> None:
    """Overwrite the reports with reports that the session has not ended yet."""
    if is_judging(config):
        replace_reports(_find_reports(config))


def _void_old_reports(config: pytest.Config, problem: str) -> None:
    """Replace existing reports by the reason why this session could not start."""
    old_reports = {
        flag: path
        for flag, path in _find_reports(config).items()
        if os.path.exists(path)
    }
    with suppress(ReportError):  # the exit code is 4 in any case
        replace_reports(
            old_reports,
            pytest.ExitCode.USAGE_ERROR,
            f"the session could not start: {problem}",
        )


def _find_reports(config: pytest.Config) -> dict[str, Path]:
    """Return the paths of the reports that the session will write, by flag."""
    without_reports = (
        *INFORMATION,
        "help",
        "markers",
        "llmb_dry_run",
        "llmb_submit_only",
    )
    if is_worker(config) or any(
        config.getoption(name, None) for name in without_reports
    ):
        return {}
    paths = {
        flag: path
        for flag, path in _find_pytest_outputs(config).items()
        if flag == "--junitxml"
    }
    for flag in REPORTS:
        with suppress(LlmbenchError):  # reported later, unless interrupted
            if path := find_output(
                _read_values(config), get_option(flag), config.invocation_params.dir
            ):
                paths[flag] = path
    return paths


def report_unlaunched(config: pytest.Config) -> None:
    """Print the running jobs of a session that was interrupted before its launch."""
    session = config.stash.get(SESSION, None)
    text = session.describe_unlaunched() if session else ""
    if text and not is_worker(config):
        with suppress(OSError):
            sys.stderr.write(f"llmbench: {text}\n")


def _find_pytest_outputs(config: pytest.Config) -> dict[str, Path]:
    """Return the paths of the files that pytest itself writes, by flag."""
    written = {
        flag: config.getoption(name, None) for flag, name in WRITTEN_BY_PYTEST.items()
    }
    return {
        flag: Path(os.path.expanduser(os.path.expandvars(path)))
        for flag, path in written.items()
        if path
    }


def _refuse_few_files() -> None:
    """Raise UsageError if the limit of open files is too low to read logs."""
    spare: list[int] = []
    try:
        while len(spare) < SPARE_FILES:
            spare.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno in (EMFILE, ENFILE):
            raise pytest.UsageError(
                f"{error.strerror}: raise the limit of open files, for example with `ulimit -n 256`"
            ) from None
    finally:
        for descriptor in spare:
            os.close(descriptor)


def _make_session(config: pytest.Config) -> Session:
    """Create the session from the options, or in an xdist worker from the controller.

    Raises SettingsError for an invalid value, or if two outputs share a file.
    """
    if is_worker(config):
        return Session.unpack_from_controller(config.workerinput["llmb"])  # type: ignore[attr-defined]
    session: Session = Session.from_options(
        _read_values(config), config.invocation_params.dir
    )
    settings = session.settings
    history = settings.history and settings.history.until(session.now)
    settings = settings.replace(
        requested=list_requested_patterns(config), history=history
    )
    written = _find_pytest_outputs(config)
    refuse_shared(written, list_outputs(settings))
    refuse_logs(settings.logs, written)
    session.noticed += _find_shadowed_files(config)
    session.report_reading = _make_progress(config)
    session.command = tuple(map(str, config.invocation_params.args))
    if any(config.getoption(name, None) for name in INFORMATION):
        # Such a session neither judges nor stores.
        settings = settings.replace(history=None)
    session.settings = settings
    return session


def _make_progress(config: pytest.Config) -> ReadingProgress:
    """Create the progress report of log reading on the terminal; silent under -q."""

    def get_terminal() -> Any:
        return (
            config.pluginmanager.get_plugin("terminalreporter")
            if config.get_verbosity() >= 0
            else None
        )

    return ReadingProgress(get_terminal, time.monotonic)


def _refuse_misuse(config: pytest.Config) -> None:
    """Raise UsageError for options that have no effect or exclude each other."""
    typed = [str(argument) for argument in config.invocation_params.args]
    flags_with_value = {option.flag for option in TYPED_OPTIONS if not option.is_flag}
    addopts = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    # The empty text separates the last argument of the variable from the first typed one.
    for flag, value in pairwise([*addopts, "", *typed]):
        if flag in flags_with_value and os.path.exists(value):
            raise pytest.UsageError(
                f"{flag} {value}: write {flag}={value} with an equals sign; after a space pytest treats {value} as a "
                "test path and looks for the project's ini file there"
            )
    flags = [
        argument.partition("=")[0]
        for argument in typed
        if argument.startswith("--llmb-")
    ]
    unused = {option.flag for option in LAUNCH_OPTIONS} & set(flags)
    if unused and not is_launching(config):
        raise pytest.UsageError(
            f"{min(unused)} has no effect without a launch: add --llmb-launch"
        )
    if flags and not is_judging(config):
        raise pytest.UsageError(
            f"{flags[0]} has no effect without runs: add --llmb-logs=PATH or --llmb-launch"
        )
    if (
        "-" in (config.getoption("llmb_logs") or ())
        and config.getoption("capture") != "no"
    ):
        raise pytest.UsageError(
            "--llmb-logs=- reads standard input, which pytest closes for tests: add -s"
        )
    if is_launching(config) and _is_distributed(config):
        raise pytest.UsageError(
            "-n cannot be used with a launch: remove -n, or add -n0 (jobs run in parallel anyway)"
        )
    requested_ids = list_requested_ids(config)
    paths = config.getoption("file_or_dir", None) or []
    if requested_ids and len(requested_ids) < len(paths):
        raise pytest.UsageError(
            f"{requested_ids[0]}: run ids of built-in tests and other paths in separate sessions"
        )
    if config.getoption("llmb_record") and config.getoption("numprocesses", None):
        raise pytest.UsageError(
            "-n cannot be used with --llmb-record: remove -n, or add -n0"
        )


def _is_distributed(config: pytest.Config) -> bool:
    """True if pytest-xdist distributes the tests."""
    return (
        bool(config.getoption("numprocesses", None))
        or config.getoption("dist", "no") != "no"
    )


def _read_values(config: pytest.Config) -> OptionValues:
    """Read the values of the command line and of the ini file.

    Raises SettingsError for a blank value on the command line.
    """
    options = [
        option for option in TYPED_OPTIONS if config.getoption(option.dest) is not None
    ]
    typed = {option.dest: config.getoption(option.dest) for option in options}
    refuse_blank(typed)
    ini = {name: _read_ini_value(config, name) for name in INI_KEYS}
    return OptionValues(
        typed, ini, _find_origins(config, [option.flag for option in options])
    )


def _read_ini_value(config: pytest.Config, name: str) -> Any:
    """Return the value of an ini key. Raises UsageError for an invalid value."""
    try:
        return config.getini(name)
    except (TypeError, ValueError) as error:
        # Before version 9.2 pytest does not name the key.
        raise pytest.UsageError(
            f"{_format_ini_path(config)}: {name}: {error}"
        ) from None


def _find_origins(config: pytest.Config, flags: Sequence[str]) -> Origins:
    """Return the sources of the given options and of the ini keys."""
    typed = [str(argument) for argument in config.invocation_params.args]
    file = _format_ini_path(config)
    keys = [key for key in _read_ini_keys(config) if key in INI_KEYS]
    arguments = {
        Written.TYPED: typed,
        Written.ENVIRONMENT: shlex.split(os.environ.get("PYTEST_ADDOPTS", "")),
        Written.ADDOPTS: config.getini("addopts"),
    }
    return {
        **find_option_origins(flags, arguments, file),
        **find_ini_origins(keys, config.getoption("override_ini") or (), typed, file),
    }


def _find_shadowed_files(config: pytest.Config) -> Iterator[Caution]:
    """Yield a caution for each ini file with ignored llmb keys.

    Pytest ignores such a file if it reads another one in the same folder.
    """
    if config.inipath is None or config.getoption("inifilename", None):
        return
    for name, keys in find_shadowed_keys(config.inipath).items():
        text = f"{keys[0]} in {name} is ignored: pytest reads {config.inipath.name}"
        yield Caution(CautionCode.OVERRIDDEN, text)


def _refuse_unknown_keys(config: pytest.Config) -> None:
    """Refuse unknown, empty and misplaced llmb keys in pytest's configuration.

    Pytest only warns about unknown keys, and a misspelled tolerance would be ignored.
    """
    overrides = [
        override.partition("=")[0]
        for override in config.getoption("override_ini") or ()
    ]
    keys = _read_ini_keys(config)
    refuse_unknown(
        [key for key in keys if not _is_declared(config, key)], _format_ini_path(config)
    )
    refuse_unknown([key for key in overrides if not _is_declared(config, key)], "-o")
    refuse_empty(keys, _format_ini_path(config))
    if config.inipath is not None and config.inipath.is_file():
        refuse_misplaced(config.inipath, _format_ini_path(config))


def _is_declared(config: pytest.Config, key: str) -> bool:
    """True if pytest or a plugin declares an ini key."""
    try:
        config.getini(key)
    except (TypeError, ValueError):
        return key in INI_KEYS  # an invalid value is reported when it is resolved
    except pytest.UsageError:
        return True
    return True


def _read_ini_keys(config: pytest.Config) -> dict[str, object]:
    """Return the keys of pytest's configuration file, or {} without a file."""
    path = config.inipath
    return read_file_keys(path) if path is not None and path.is_file() else {}


def _format_ini_path(config: pytest.Config) -> str:
    """Return the path of pytest's configuration file for messages, "" without a file."""
    path = config.inipath
    return (
        ""
        if path is None
        else formatting.format_path(path, config.invocation_params.dir)
    )
