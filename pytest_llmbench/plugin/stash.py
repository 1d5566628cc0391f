"""What the plugin keeps with a pytest session, and what its command line asks for."""

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
    from pytest_llmbench.plugin.session_state import Session
    from pytest_llmbench.report.outcome_documents import OutcomeDocument

SESSION: pytest.StashKey[Session] = pytest.StashKey()
DESCRIBED: pytest.StashKey[OutcomeDocument] = pytest.StashKey()
MESSAGE: pytest.StashKey[str] = pytest.StashKey()
"""The outcome of what an item is about, and the message that its fixture has for the
test."""

COLLECTED: pytest.StashKey[list[pytest.Item]] = pytest.StashKey()
BY_NAME: pytest.StashKey[set[pytest.Item]] = pytest.StashKey()
"""All items before any was deselected, and those that were because a selection (-k, -m
and so on) did not name them."""

SUITE = Path(__file__).parents[1] / "suite"
SUITE_ID = "pytest_llmbench/suite"
"""Node ids of the built-in tests start with this, and with dots their class names in
JUnit."""

CASES = {
    "llmb_case": "test_performance",
    "llmb_unmatched": "test_unmatched_run",
    **{kind.test_name.replace("test_", "llmb_"): kind.test_name for kind in CheckKind},
}
"""The fixtures that have an item for each case, and the built-in test of each, in the
order in which they run."""

INFORMATION = (
    "collectonly",
    "setuponly",
    "setupplan",
    "showfixtures",
    "show_fixtures_per_test",
    "cacheshow",
)
"""Options of pytest with which a session only tells something."""

WRITTEN_BY_PYTEST = {"--junitxml": "xmlpath", "--log-file": "log_file"}
"""Files that pytest writes by itself, whatever stands there, and the names of their
options."""


def get_session(config: pytest.Config) -> Session:
    """Return the state of a session that judges runs; KeyError in any other."""
    return config.stash[SESSION]


def is_launching(config: pytest.Config) -> bool:
    """Whether the session launches jobs, or goes on with what was launched."""
    return any(config.getoption(name_destination(flag)) for flag in LAUNCHING)


def is_judging(config: pytest.Config) -> bool:
    """Whether the session judges runs, from disk or launched."""
    return bool(config.getoption("llmb_logs")) or is_launching(config)


def is_suite_requested(config: pytest.Config) -> bool:
    """Whether the built-in tests run: without a path on the command line, or with their
    own node ids."""
    return is_judging(config) and len(list_requested_ids(config)) == len(
        _list_paths(config)
    )


def _list_paths(config: pytest.Config) -> list[str]:
    return list(config.getoption("file_or_dir", None) or [])


def list_requested_ids(config: pytest.Config) -> list[str]:
    """Return the node ids of built-in tests that were given."""
    # From a sub-folder pytest prints them with `../`, and people copy them from its
    # output.
    plain = (path.lstrip("./").rstrip("/") for path in _list_paths(config))
    return [
        path for path in plain if path == SUITE_ID or path.startswith(f"{SUITE_ID}/")
    ]


def is_deselected(item: pytest.Item) -> bool:
    """Whether --deselect names an item."""
    return item.nodeid.startswith(tuple(item.config.getoption("deselect") or ()))


def list_selecting_options(config: pytest.Config) -> str:
    """Return the options that select by name, as they were given: `-k and -m`."""
    options = {
        "-k": config.getoption("keyword", ""),
        "-m": config.getoption("markexpr", ""),
        "node ids": any("::" in path for path in _list_paths(config)),
        "--lf": config.getoption("lf", False),
        "--sw": config.getoption("stepwise", False),
    }
    return " and ".join(name for name, value in options.items() if value)


def list_requested(config: pytest.Config) -> tuple[str, ...]:
    """Return what a session asks for by name: ids of items, and patterns of ids for the words of -k; `*` for -m and
    --collect-only, which may mean any."""
    if any(
        config.getoption(name, None) for name in INFORMATION
    ) or "llmb" in config.getoption("markexpr", ""):
        return ("*",)
    words = re.findall(r"[\w.+-]+", config.getoption("keyword", "").casefold())
    failed = config.getoption("lf", False) or config.getoption("failedfirst", False)
    nodes = [*_list_paths(config)]
    if failed or config.getoption("stepwise", False):
        nodes += [
            str(node)
            for name in ("lastfailed", "stepwise")
            for node in _read_cached(config, name)
        ]
    ids = map(get_item_id, nodes)
    return (
        *(f"*{word}*" for word in words if word not in ("and", "or", "not")),
        *filter(None, ids),
    )


def _read_cached(config: pytest.Config, name: str) -> list[str]:
    """Return the node ids that pytest keeps of a session before."""
    cache = getattr(config, "cache", None)
    kept = cache.get(f"cache/{name}", []) if cache is not None else []
    if isinstance(kept, dict) and "last_failed" in kept:  # of --stepwise
        return [kept["last_failed"]] if kept["last_failed"] else []
    return list(kept)


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def raise_usage_errors(action: Any) -> Any:
    """Return what `action` returns; a problem that the user can fix becomes a usage
    error."""
    from pytest_llmbench.core.errors import LlmbenchError, describe_os_error
    from pytest_llmbench.core.formatting import escape_lines
    from pytest_llmbench.core.redaction import redact_text

    try:
        return action()
    except LlmbenchError as error:
        raise pytest.UsageError(escape_lines(redact_text(str(error)))) from None
    except OSError as error:  # a disk or a share that fails in the middle: what was not read may be red
        expected = (
            "expected a place that can be read and written; the session ends here"
        )
        raise pytest.UsageError(
            escape_lines(redact_text(f"{describe_os_error(error)}, {expected}"))
        ) from None
    except MemoryError:
        raise pytest.UsageError(
            "it takes more memory than there is: allow more, or give --llmb-logs fewer"
        ) from None


def uses_runs(item: pytest.Item) -> bool:
    return bool(CASES.keys() & set(getattr(item, "fixturenames", ())))


def find_judging_option(config: pytest.Config) -> str:
    """Return the option on the command line that asks for runs to be judged; empty
    where none was typed."""
    flags = ("--llmb-logs", *LAUNCHING)
    typed = (
        str(argument).partition("=")[0] for argument in config.invocation_params.args
    )
    return next((argument for argument in typed if argument in flags), "")


def list_selected_ids(items: Sequence[pytest.Item]) -> Iterator[str]:
    """Yield the ids of the configurations that the items are about, each once; a test
    that a mark keeps from running asks for none."""
    specs = (getattr(item, "callspec", None) for item in items if will_run(item))
    cases = (spec.params.get("llmb_case") for spec in specs if spec is not None)
    yield from dict.fromkeys(case.id for case in cases if case is not None)


def will_run(item: pytest.Item) -> bool:
    """Whether no mark says now that a test will not run."""
    # A condition that is text is only known when the turn of the test comes.
    conditions = [
        all(mark.args)
        if mark.name == "skipif"
        else mark.kwargs.get("run") is False and all(mark.args)
        for mark in item.iter_markers()
        if mark.name in ("skipif", "xfail")
        and not any(isinstance(condition, str) for condition in mark.args)
    ]
    return item.get_closest_marker("skip") is None and not any(conditions)
