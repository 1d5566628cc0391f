"""Collection of the built-in suite, and the items that a selection keeps.

pytest selects items by name (`-k`, `-m`, node ids, `--lf`, `--sw`). An item about
several configurations does not have their names, so it is kept if one of its
configurations is kept. Items that `--deselect`, a conftest or another plugin removes
stay removed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.core.outcome_records import (
    Case,
    Check,
    CheckKind,
    Status,
    UnmatchedRun,
)
from pytest_llmbench.plugin.fixtures import get_case
from pytest_llmbench.plugin.stash import (
    CASES,
    COLLECTED,
    DESELECTED_BY_NAME,
    FIXTURE_VALUE,
    OUTCOME,
    SESSION,
    SUITE,
    SUITE_ID,
    find_judging_option,
    get_session,
    is_deselected,
    is_suite_requested,
    is_worker,
    list_requested_ids,
    list_selecting_options,
    raise_usage_errors,
    uses_runs,
)
from pytest_llmbench.session.cautions import Selection, Subject
from pytest_llmbench.session.session_checks import CHECKS

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Key
    from pytest_llmbench.plugin.messages import DescribedCheck

PERFORMANCE = "test_performance"
"""The test of the configurations, which is collected even without cases."""


SELECTING_MODULES = (
    "_pytest.mark",
    "_pytest.cacheprovider",
    "_pytest.stepwise",
    "pytest_llmbench.plugin.collection",
)
"""Modules that deselect items by name: -k and -m, --lf, --sw, and node ids of built-in
tests."""


class SuiteModule(pytest.Module):
    """A file of the built-in suite, independent of the user's `python_files`.

    Its path is the root of the project, so that the project's conftest applies, and
    node ids and JUnit class names do not depend on the installation path.
    """

    @classmethod
    def make(cls, parent: Suite, path: Path) -> SuiteModule:
        """Create the collector of one file."""
        module: SuiteModule = cls.from_parent(
            parent, path=parent.path, name=path.name, nodeid=f"{SUITE_ID}/{path.name}"
        )
        module.obj = importlib.import_module(f"pytest_llmbench.suite.{path.stem}")
        return module

    def funcnamefilter(self, name: str) -> bool:
        """Return True for names of test functions, independent of the user's ini."""
        return name.startswith("test_")


class Suite(pytest.Directory):
    """The directory of the built-in tests, which replaces the project's tests."""

    def collect(self) -> Iterator[SuiteModule]:
        """Yield the test files that have cases, and always `test_performance`."""
        for name, cases in get_session(self.config).cases.items():
            if cases or name == PERFORMANCE:
                yield SuiteModule.make(self, SUITE / f"{name}.py")


def pytest_collect_directory(
    path: Path, parent: pytest.Collector
) -> pytest.Directory | None:
    """Collect the built-in suite instead of the project if no path was given."""
    config = parent.config
    if path != config.rootpath or not is_suite_requested(config):
        return None
    suite: Suite = Suite.from_parent(parent, path=path)
    return suite


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Read the logs before collection, so that an error is reported only once.

    Raises UsageError for an unknown node id of a built-in test.
    """
    config = session.config
    cases = raise_usage_errors(lambda: get_session(config).cases)
    known_nodes = [
        f"{SUITE_ID}/{name}.py::{name}[{case.id}]"
        for name, cases_of_test in cases.items()
        for case in cases_of_test
    ]
    unknown = [
        requested
        for requested in list_requested_ids(config)
        if not any(_is_under(node, requested) for node in known_nodes)
    ]
    if unknown and not is_worker(config):
        raise pytest.UsageError(
            f"not found: {unknown[0]}; list the node ids with --collect-only"
        )


def add_checks(session: pytest.Session) -> None:
    """Add the items of checks after a launch, whose results were unknown at collection.

    Only --deselect with the node id of an item removes the item, because it is about
    launched configurations, which were selected. In a session with the user's own tests
    the items are added only if a check failed, so that the session does not pass.
    """
    config, state = session.config, get_session(session.config)
    if not is_suite_requested(config) and not any(
        check.failed for check in state.results.checks
    ):
        return
    added = collect_checks(session)
    config.stash[COLLECTED] += added
    deselected = session.config.getoption("deselect") or ()
    session.items += [item for item in added if item.nodeid not in deselected]
    session.testscollected = len(session.items)


def collect_checks(session: pytest.Session) -> list[pytest.Item]:
    """Return the items of the built-in suite, except those of `test_performance`."""
    suite: Suite = Suite.from_parent(session, path=session.config.rootpath)
    files = [file for file in suite.collect() if file.name != f"{PERFORMANCE}.py"]
    return [
        item
        for file in files
        for item in file.collect()
        if isinstance(item, pytest.Item)
    ]


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with the cases of the fixtures that it uses."""
    # Early enough: pytest resolves the fixtures when it runs the test.
    register_check_fixtures(metafunc.config)
    for fixture, name in CASES.items():
        if fixture not in metafunc.fixturenames:
            continue
        if SESSION not in metafunc.config.stash:
            parameters = [pytest.param(None, id="no-logs", marks=pytest.mark.llmb)]
        else:
            cases = raise_usage_errors(lambda: get_session(metafunc.config).cases)[name]
            parameters = [
                pytest.param(case, id=case.id, marks=_make_marks(name, case))
                for case in cases
            ]
        metafunc.parametrize(fixture, parameters, indirect=True)


def register_check_fixtures(config: pytest.Config) -> None:
    """Register a fixture for each kind of check in `CHECKS`, unless already done."""
    name = "pytest_llmbench_check_fixtures"
    if not config.pluginmanager.has_plugin(name):
        # pytest finds fixtures of a plugin among the names of its module.
        plugin = ModuleType(name)
        for kind, (_, docstring) in CHECKS.items():
            fixture = kind.test_name.replace("test_", "llmb_")
            setattr(plugin, fixture, _make_check_fixture(fixture, docstring))
        config.pluginmanager.register(plugin, name)


def _make_check_fixture(name: str, docstring: str) -> object:
    """Make the fixture of a check, with the docstring for `pytest --fixtures`."""

    def provide_check(request: pytest.FixtureRequest) -> DescribedCheck:
        case = get_case(request)
        check = get_session(request.config).describe_check(case)
        # Judged runs have their own verdicts, so this check need not be reported.
        is_silent = (
            check.kind is CheckKind.SOMETHING_JUDGED and check.status is Status.PASSED
        )
        # The verdict of a configuration has priority.
        if OUTCOME not in request.node.stash and not is_silent:
            request.node.stash[OUTCOME] = check.document
            request.node.stash[FIXTURE_VALUE] = check
        return check

    # `pytest --fixtures` shows the docstring of the function.
    provide_check.__doc__ = docstring
    return pytest.fixture(name=name)(provide_check)


def select_by_id(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect items whose node ids were not requested, if any ids were given."""
    requested_ids = list_requested_ids(config)
    if not requested_ids:
        return
    selected = [
        item
        for item in items
        if any(_is_under(item.nodeid, node) for node in requested_ids)
    ]
    deselected = set(items).difference(selected)
    if deselected:
        config.hook.pytest_deselected(
            items=[item for item in items if item in deselected]
        )
    items[:] = selected


def _is_under(nodeid: str, requested: str) -> bool:
    """True if a node is the requested node, or is in it."""
    return nodeid == requested or nodeid.startswith(
        (f"{requested}::", f"{requested}[", f"{requested}/")
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a session without any test that uses the typed --llmb options."""
    config = session.config
    if is_worker(config) or not session.items:
        return
    typed = find_judging_option(config)
    if typed and not any(uses_runs(item) for item in session.items):
        raise pytest.UsageError(
            f"no selected test uses {typed}: use the fixture llmb_verdict in your tests"
        )


def _make_marks(name: str, case: Any) -> list[pytest.MarkDecorator]:
    """Return the `llmb` marks of a case.

    A check gets a mark for itself and for each configuration that it covers.
    """
    key = getattr(case, "key", None)
    if key is not None:
        return [_make_mark(key)]
    if name == "test_unmatched_run":
        return [pytest.mark.llmb(unmatched=True)]
    return [
        pytest.mark.llmb(check=case.kind),
        *(_make_mark(about, check=case.kind) for about in case.about),
    ]


def _make_mark(key: Key, **arguments: str) -> pytest.MarkDecorator:
    """Return the `llmb` mark of a configuration, with additional arguments."""
    return pytest.mark.llmb(
        model=key.recipe,
        size=key.size,
        release=key.release,
        gpu=key.gpu,
        dtype=key.dtype,
        gpus=key.gpus,
        **arguments,
    )


# --- items that a selection keeps -----------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Put back checks and unmatched runs of selected configurations into `items`.

    `-k`, `-m` and similar options deselect such items because their names do not match.
    Runs after all other selections.
    """
    collected, deselected_by_name = list(items), set[pytest.Item]()
    # pytest_deselected adds the items that the selections below drop.
    config.stash[COLLECTED], config.stash[DESELECTED_BY_NAME] = (
        collected,
        deselected_by_name,
    )
    if config.getoption("stepwise", False):
        # --stepwise looks for the last failed item among the given items.
        select_by_id(config, items)
    result = yield
    if not is_suite_requested(config):
        # The user's own tests run: failing checks without a test are candidates, too.
        uncovered_checks = _select_failing_checks(session, collected)
        collected += uncovered_checks
        deselected_by_name.update(uncovered_checks)
    # First the item that fails if nothing is judged, together with configurations.
    restored_items = _select_guard_or_configurations(
        collected, deselected_by_name, items
    )
    items += restored_items
    # Then the items about the configurations that are selected by now.
    related_items = _select_related(collected, deselected_by_name, items)
    items += related_items
    _correct_deselected(config, [*restored_items, *related_items])
    return result


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Record the items that were deselected by name."""
    # The hook has no argument for the caller, so inspect the stack.
    if items and _find_caller() in SELECTING_MODULES:
        items[0].config.stash[DESELECTED_BY_NAME].update(items)


def _find_caller() -> str:
    """Return the name of the module that called the current hook."""
    frame = sys._getframe(2)  # the caller of the hook function
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(
        "pluggy"
    ):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _list_cases(item: pytest.Item) -> Iterator[tuple[Subject, Any]]:
    """Yield the subjects and cases of an item; none for a test without cases."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    for fixture, name in CASES.items():
        case = params.get(fixture)
        if case is not None and isinstance(case, Case | Check | UnmatchedRun):
            yield (name, case.id), case


def is_guard(item: pytest.Item) -> bool:
    """True if an item checks that the session judged something."""
    return any(
        name == CheckKind.SOMETHING_JUDGED.test_name
        for (name, _), _ in _list_cases(item)
    )


def _select_guard_or_configurations(
    collected: Sequence[pytest.Item],
    deselected_by_name: set[pytest.Item],
    remaining: Sequence[pytest.Item],
) -> list[pytest.Item]:
    """Return the deselected guard item or configurations that `remaining` lacks.

    The guard item checks that something was judged. It is returned if a configuration
    is selected, because without a guard each configuration without a run would fail. If
    only the guard is selected, for example by --lf, the configurations are returned.
    """
    is_configuration = {
        item: any(isinstance(case, Case) for _, case in _list_cases(item))
        for item in collected
    }
    deselected = [item for item in collected if item not in set(remaining)]
    if any(is_configuration.get(item) for item in remaining):
        # --deselect cannot remove the guard, but a conftest or another plugin can.
        return [
            item
            for item in deselected
            if is_guard(item) and (item in deselected_by_name or is_deselected(item))
        ]
    if any(map(is_guard, remaining)):
        return [
            item
            for item in deselected
            if is_configuration[item]
            and item in deselected_by_name
            and not is_deselected(item)
        ]
    return []


def _select_related(
    collected: Sequence[pytest.Item],
    deselected_by_name: set[pytest.Item],
    remaining: Sequence[pytest.Item],
) -> list[pytest.Item]:
    """Return the items deselected by name that are about a selected configuration.

    These are checks and unmatched runs. Only failing items are returned if merely a
    check about the configuration is selected, or if the user's own tests run.
    """
    remaining_subjects: set[Subject] = set()
    selected_ids: set[str] = set()
    selected_keys: set[Key] = set()
    checked_keys: set[Key] = set()  # configurations that have a selected check
    for item in remaining:
        for subject, case in _list_cases(item):
            remaining_subjects.add(subject)
            if isinstance(case, Case):
                selected_ids.add(case.id)
                selected_keys.add(case.key)
            elif len(case.about) == 1:
                checked_keys.add(case.about[0])

    def is_related(subject: Subject, check: Any, node: str) -> bool:
        """True if a deselected check must be selected with the remaining items.

        A built-in check follows the items of its configurations. A check of the user's
        own tests, and a check that merely shares a configuration with a selected check,
        follow only if they fail and no selected item shows the failure. `check` may be
        an unmatched run; `node` is the node id of its item.
        """
        fails_unseen = _is_failing(check) and subject not in remaining_subjects
        is_about_selected = check.id in selected_ids or not selected_keys.isdisjoint(
            check.about
        )
        is_built_in = node.startswith(f"{SUITE_ID}/")
        if is_about_selected:
            return is_built_in or fails_unseen
        return fails_unseen and not checked_keys.isdisjoint(check.about)

    def has_related_check(item: pytest.Item) -> bool:
        """True if an item has a related check and is no item of a configuration."""
        cases = list(_list_cases(item))
        is_check = not any(isinstance(case, Case) for _, case in cases)
        return is_check and any(
            is_related(subject, check, item.nodeid) for subject, check in cases
        )

    still_deselected = deselected_by_name.difference(remaining)
    return [
        item
        for item in collected
        if item in still_deselected
        and not is_deselected(item)
        and has_related_check(item)
    ]


def _is_failing(case: Any) -> bool:
    """True if a check fails; unmatched runs always fail."""
    return bool(getattr(case, "failed", True))


def _select_failing_checks(
    session: pytest.Session, collected: Sequence[pytest.Item]
) -> list[pytest.Item]:
    """Return the items of failing checks that the user's own tests do not cover.

    Returns no items if the user's tests judge no configurations.
    """
    covered_subjects = {
        subject for item in collected for subject, _ in _list_cases(item)
    }
    checks = get_session(session.config).results.checks
    failed_checks = [check for check in checks if check.failed]
    judges_configurations = any(
        test_name == PERFORMANCE for test_name, _ in covered_subjects
    )
    if not failed_checks or not judges_configurations:
        return []
    selected = []
    for item in collect_checks(session):
        for subject, check in _list_cases(item):
            if check in failed_checks and subject not in covered_subjects:
                selected.append(item)
    return selected


def _correct_deselected(
    config: pytest.Config, restored: Collection[pytest.Item]
) -> None:
    """Remove re-selected items from pytest's count of deselected items."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and restored:
        deselected = [
            item
            for item in reporter.stats.pop("deselected", [])
            if item not in set(restored)
        ]
        reporter.stats |= {"deselected": deselected} if deselected else {}


def _list_never_collected(
    config: pytest.Config, collected: Collection[Subject]
) -> Iterator[Subject]:
    """Yield the subjects that were never collected as items.

    Node ids of the user's own tests and --lf exclude items before they are collected.
    Then only configurations are yielded, if the user's tests judge any.
    """
    is_suite = is_suite_requested(config)
    judges_configurations = any(name == PERFORMANCE for name, _ in collected)
    selects_user_tests = list_selecting_options(config) and judges_configurations
    if is_suite or selects_user_tests:
        for name, cases in get_session(config).cases.items():
            if is_suite or name == PERFORMANCE:
                yield from (
                    (name, case.id)
                    for case in cases
                    if (name, case.id) not in collected
                )


def make_selection(session: pytest.Session) -> Selection:
    """Return the subjects of the selected items and of the items that were left out."""
    subjects_by_node = {
        item.nodeid: tuple(subject for subject, _ in _list_cases(item))
        for item in session.items
    }
    selected_subjects = {
        subject for subjects in subjects_by_node.values() for subject in subjects
    }
    deselected_by_name = session.config.stash[DESELECTED_BY_NAME]
    # True if the subject's items were deselected by name only, not by --deselect,
    # a conftest or another plugin.
    is_by_name: dict[Subject, bool] = {}
    for item in session.config.stash[COLLECTED]:
        item_is_by_name = item in deselected_by_name and not is_deselected(item)
        for subject, _ in _list_cases(item):
            others_are_by_name = is_by_name.get(subject, True)
            is_by_name[subject] = others_are_by_name and item_is_by_name
    # The user's own tests were excluded by name (see `_list_never_collected`).
    for subject in list(_list_never_collected(session.config, is_by_name)):
        is_by_name[subject] = not is_suite_requested(session.config)
    not_selected = [
        subject for subject in is_by_name if subject not in selected_subjects
    ]
    left_out = tuple(subject for subject in not_selected if is_by_name[subject])
    deselected = tuple(subject for subject in not_selected if not is_by_name[subject])
    return Selection(subjects_by_node, left_out, deselected)
