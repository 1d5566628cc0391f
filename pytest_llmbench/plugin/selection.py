"""Which items a session keeps: what is about a selected configuration stays, and what goes is on record.

pytest selects by name (`-k`, `-m`, node ids, `--lf`, `--sw`). An item about several configurations has none of theirs,
so it stays where one of its configurations does. What `--deselect`, a conftest or another plugin takes out stays out.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Any

import pytest

from pytest_llmbench.core.models import Case, Check, UnmatchedRun
from pytest_llmbench.pipeline.left_out import Selection, Subject
from pytest_llmbench.plugin.collection import PERFORMANCE, items_besides, keep_wanted
from pytest_llmbench.plugin.stash import (
    BY_NAME,
    CASES,
    COLLECTED,
    SUITE_ID,
    get_session,
    is_deselected,
    is_suite_wanted,
    list_selecting_options,
)

SELECTING = ("_pytest.mark", "_pytest.cacheprovider", "_pytest.stepwise", "pytest_llmbench.plugin.collection")
"""The modules that deselect what a selection does not name: -k and -m, --lf, --sw, and node ids of built-in tests."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Once everybody has selected, put back what is about a selected configuration and was only not named."""
    collected, by_name = list(items), set[pytest.Item]()
    config.stash[COLLECTED], config.stash[BY_NAME] = collected, by_name
    if config.getoption("stepwise", False):  # it looks for the item that failed last among those that are there
        keep_wanted(config, items)
    result = yield
    if not is_suite_wanted(config):
        added = _failing_checks(session, collected)
        collected += added
        by_name.update(added)
    following = _following(collected, by_name, items)
    items += following
    _uncount(config, following)
    return result


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Remember what was deselected because a selection did not name it. The hook does not say by whom, its caller
    does."""
    if items and _caller() in SELECTING:
        items[0].config.stash[BY_NAME].update(items)


def _caller() -> str:
    """Return the module that called the hook whose implementation called this."""
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("pluggy"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _cases(item: pytest.Item) -> Iterator[tuple[Subject, Any]]:
    """Yield what an item is about, and the case itself; nothing of a test for which there is none."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    for fixture, name in CASES.items():
        case = params.get(fixture)
        if isinstance(case, Case | Check | UnmatchedRun):
            yield (name, case.id), case


def _following(
    collected: Sequence[pytest.Item], by_name: set[pytest.Item], remaining: Sequence[pytest.Item]
) -> list[pytest.Item]:
    """Return the items that a selection did not name, and that are about a configuration that is selected.

    Where only a check about it is selected, or where a user's own tests run, nothing follows but what is red.
    """
    pairs = [pair for item in remaining for pair in _cases(item)]
    subjects = {subject for subject, _ in pairs}
    cases = [case for _, case in pairs if isinstance(case, Case)]
    ids, keys = {case.id for case in cases}, {case.key for case in cases}
    by_check = {case.about[0] for _, case in pairs if not isinstance(case, Case) and len(case.about) == 1}

    def follows(subject: Subject, case: Any, node: str) -> bool:
        if case.id in ids or not keys.isdisjoint(case.about):
            return node.startswith(f"{SUITE_ID}/") or (_is_red(case) and subject not in subjects)
        return not by_check.isdisjoint(case.about) and _is_red(case) and subject not in subjects

    left = by_name.difference(remaining)
    gone = (item for item in collected if item in left and not is_deselected(item))
    of_item = ((item, list(_cases(item))) for item in gone)
    return [
        item
        for item, about in of_item
        if not any(isinstance(case, Case) for _, case in about) and any(follows(*pair, item.nodeid) for pair in about)
    ]


def _is_red(case: Any) -> bool:
    """Whether a check fails; a run that fits no configuration always does."""
    return bool(getattr(case, "failed", True))


def _failing_checks(session: pytest.Session, collected: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the items of the failing checks that none of a user's own tests, which judge configurations, is about."""
    there = {subject for item in collected for subject, _ in _cases(item)}
    failed = [check for check in get_session(session.config).results.checks if check.failed]
    if not failed or not any(name == PERFORMANCE for name, _ in there):
        return []
    pairs = ((item, *pair) for item in items_besides(session) for pair in _cases(item))
    return [item for item, subject, case in pairs if case in failed and subject not in there]


def _uncount(config: pytest.Config, following: Collection[pytest.Item]) -> None:
    """Take what runs after all out of the count of deselected items."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and following:
        left = [item for item in reporter.stats.pop("deselected", []) if item not in set(following)]
        reporter.stats |= {"deselected": left} if left else {}


def _never_collected(config: pytest.Config, collected: Collection[Subject]) -> Iterator[Subject]:
    """Yield what has no item although the built-in suite makes one of each case, and node ids of a user's own tests, or
    --lf, leave items out before there are any."""
    whole = is_suite_wanted(config)
    if whole or (list_selecting_options(config) and any(name == PERFORMANCE for name, _ in collected)):
        for name, cases in get_session(config).cases.items():
            if whole or name == PERFORMANCE:
                yield from ((name, case.id) for case in cases if (name, case.id) not in collected)


def selection_of(session: pytest.Session) -> Selection:
    """Return what the items of a session are about, and what those that are gone were about."""
    selected = {item.nodeid: tuple(subject for subject, _ in _cases(item)) for item in session.items}
    there = {subject for subjects in selected.values() for subject in subjects}
    by_name: dict[Subject, bool] = {}
    for item in session.config.stash[COLLECTED]:
        unnamed = item in session.config.stash[BY_NAME] and not is_deselected(item)
        for subject, _ in _cases(item):
            by_name[subject] = by_name.get(subject, True) and unnamed
    for subject in list(_never_collected(session.config, by_name)):
        by_name[subject] = not is_suite_wanted(session.config)
    gone = [subject for subject in by_name if subject not in there]
    left_out, deselected = ([left for left in gone if by_name[left] is unnamed] for unnamed in (True, False))
    return Selection(selected, tuple(left_out), tuple(deselected))
