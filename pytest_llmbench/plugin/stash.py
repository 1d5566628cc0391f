"""Stash keys of the plugin, and queries about pytest's command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.core.formatting import get_item_id
from pytest_llmbench.core.option import name_destination
from pytest_llmbench.core.options import LAUNCHING
from pytest_llmbench.core.outcome_records import CheckKind

if TYPE_CHECKING:
    from pytest_llmbench.core.outcome_records import UnmatchedRun
    from pytest_llmbench.plugin.messages import DescribedCheck, DescribedOutcome
    from pytest_llmbench.plugin.session_state import Session
    from pytest_llmbench.report.outcome_documents import OutcomeDocument

SESSION: pytest.StashKey[Session] = pytest.StashKey()
OUTCOME: pytest.StashKey[OutcomeDocument] = pytest.StashKey()
"""The outcome document of an item."""

FIXTURE_VALUE: pytest.StashKey[DescribedOutcome | DescribedCheck | UnmatchedRun] = (
    pytest.StashKey()
)
"""The outcome, check or run that a fixture of an item returned, with its message."""

COLLECTED: pytest.StashKey[list[pytest.Item]] = pytest.StashKey()
"""All items of a session before the selection."""

DESELECTED_BY_NAME: pytest.StashKey[set[pytest.Item]] = pytest.StashKey()
"""The items that were deselected because -k, -m and similar options did not match."""

SUITE = Path(__file__).parents[1] / "suite"
SUITE_ID = "pytest_llmbench/suite"
"""Prefix of the node ids of the built-in tests, and (with dots) of their class names in
JUnit."""

CASES = {
    "llmb_case": "test_performance",
    "llmb_unmatched": "test_unmatched_run",
    **{kind.test_name.replace("test_", "llmb_"): kind.test_name for kind in CheckKind},
}
"""The fixtures that are parametrized with cases, and their built-in tests, in the order
in which the tests run."""

INFORMATION = (
    "collectonly",
    "setuponly",
    "setupplan",
    "showfixtures",
    "show_fixtures_per_test",
    "cacheshow",
)
"""Options with which pytest only prints information and runs no tests."""

WRITTEN_BY_PYTEST = {"--junitxml": "xmlpath", "--log-file": "log_file"}
"""Flags of files that pytest overwrites without a check, and their destinations."""


def get_session(config: pytest.Config) -> Session:
    """Return the state of a session that judges runs; raises KeyError in others."""
    return config.stash[SESSION]


def is_launching(config: pytest.Config) -> bool:
    """True if the session launches jobs or resumes a launch."""
    return any(config.getoption(name_destination(flag)) for flag in LAUNCHING)


def is_judging(config: pytest.Config) -> bool:
    """True if the session judges runs, from disk or launched."""
    return bool(config.getoption("llmb_logs")) or is_launching(config)


def is_suite_requested(config: pytest.Config) -> bool:
    """True if the built-in tests run.

    They run in a session that judges runs, if no path is given or if all given paths
    are node ids of built-in tests.
    """
    return is_judging(config) and len(list_requested_ids(config)) == len(
        _list_paths(config)
    )


def _list_paths(config: pytest.Config) -> list[str]:
    """Return the paths and node ids on the command line."""
    return list(config.getoption("file_or_dir", None) or [])


def list_requested_ids(config: pytest.Config) -> list[str]:
    """Return the node ids of built-in tests on the command line."""
    # In a sub-folder pytest prints node ids with `../`, which users copy.
    paths = (path.lstrip("./").rstrip("/") for path in _list_paths(config))
    return [
        path for path in paths if path == SUITE_ID or path.startswith(f"{SUITE_ID}/")
    ]


def is_deselected(item: pytest.Item) -> bool:
    """True if --deselect matches an item."""
    return item.nodeid.startswith(tuple(item.config.getoption("deselect") or ()))


def list_selecting_options(config: pytest.Config) -> str:
    """Return the given options that select items, as text: `-k and -m`."""
    options = {
        "-k": config.getoption("keyword", ""),
        "-m": config.getoption("markexpr", ""),
        "node ids": any("::" in path for path in _list_paths(config)),
        "--lf": config.getoption("lf", False),
        "--sw": config.getoption("stepwise", False),
    }
    return " and ".join(name for name, value in options.items() if value)


def list_requested_patterns(config: pytest.Config) -> tuple[str, ...]:
    """Return item ids and id patterns that the command line requests.

    The words of -k become patterns. Returns ("*",) for -m with an llmb mark and for
    options like --collect-only, which may concern any item.
    """
    is_informational = any(config.getoption(name, None) for name in INFORMATION)
    if is_informational or "llmb" in config.getoption("markexpr", ""):
        return ("*",)
    words = re.findall(r"[\w.+-]+", config.getoption("keyword", "").casefold())
    patterns = [f"*{word}*" for word in words if word not in ("and", "or", "not")]
    nodes = [*_list_paths(config)]
    if any(config.getoption(name, False) for name in ("lf", "failedfirst", "stepwise")):
        for cache_name in ("lastfailed", "stepwise"):
            nodes += map(str, _read_cached_ids(config, cache_name))
    ids = filter(None, map(get_item_id, nodes))
    return (*patterns, *ids)


def _read_cached_ids(config: pytest.Config, name: str) -> list[str]:
    """Return the node ids in pytest's cache from the previous session."""
    cache = getattr(config, "cache", None)
    cached = cache.get(f"cache/{name}", []) if cache is not None else []
    if isinstance(cached, dict) and "last_failed" in cached:  # of --stepwise
        return [cached["last_failed"]] if cached["last_failed"] else []
    return list(cached)


def is_worker(config: pytest.Config) -> bool:
    """True in a worker process of pytest-xdist."""
    return hasattr(config, "workerinput")


def raise_usage_errors(action: Any) -> Any:
    """Call `action` and return its result; convert known errors into UsageError."""
    from pytest_llmbench.core.errors import LlmbenchError, describe_os_error
    from pytest_llmbench.core.formatting import escape_lines
    from pytest_llmbench.core.redaction import redact_text

    try:
        return action()
    except LlmbenchError as error:
        raise pytest.UsageError(escape_lines(redact_text(str(error)))) from None
    except OSError as error:  # unread logs may contain failures, so the session ends
        remedy = "make the path readable and writable, then start the session again"
        raise pytest.UsageError(
            escape_lines(redact_text(f"{describe_os_error(error)}; {remedy}"))
        ) from None
    except MemoryError:
        raise pytest.UsageError(
            "out of memory: allow more memory, or point --llmb-logs at fewer files"
        ) from None


def uses_runs(item: pytest.Item) -> bool:
    """True if an item uses a fixture that has the cases of this plugin."""
    return bool(CASES.keys() & set(getattr(item, "fixturenames", ())))


def find_judging_option(config: pytest.Config) -> str:
    """Return the typed option that makes the session judge runs, or ""."""
    flags = ("--llmb-logs", *LAUNCHING)
    typed = (
        str(argument).partition("=")[0] for argument in config.invocation_params.args
    )
    return next((argument for argument in typed if argument in flags), "")


def list_selected_ids(items: Sequence[pytest.Item]) -> Iterator[str]:
    """Yield the configuration ids of items that will run, without duplicates."""
    call_specs = (getattr(item, "callspec", None) for item in items if will_run(item))
    cases = (spec.params.get("llmb_case") for spec in call_specs if spec is not None)
    yield from dict.fromkeys(case.id for case in cases if case is not None)


def will_run(item: pytest.Item) -> bool:
    """True unless a skip or xfail mark prevents the test from running.

    Marks with a condition as text are ignored: pytest evaluates them later.
    """
    # Of the xfail marks, only those with `run=False` prevent the test from running.
    preventing_marks = (
        mark
        for mark in item.iter_markers()
        if mark.name == "skipif"
        or (mark.name == "xfail" and mark.kwargs.get("run") is False)
    )
    is_prevented = any(
        all(mark.args)
        for mark in preventing_marks
        if not any(isinstance(condition, str) for condition in mark.args)
    )
    return item.get_closest_marker("skip") is None and not is_prevented
