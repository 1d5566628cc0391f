"""Which items a session has: those of the built-in suite, and which of all stay when
something is selected.

pytest selects by name (`-k`, `-m`, node ids, `--lf`, `--sw`). An item about several
configurations has none of theirs, so it stays where one of its configurations does.
What `--deselect`, a conftest or another plugin takes out stays out.
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
    BY_NAME,
    CASES,
    COLLECTED,
    DESCRIBED,
    MESSAGE,
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

PERFORMANCE = "test_performance"
"""The test of the configurations, which has a file even where it has no case."""


SELECTING = (
    "_pytest.mark",
    "_pytest.cacheprovider",
    "_pytest.stepwise",
    "pytest_llmbench.plugin.collection",
)
"""The modules that deselect what a selection does not name: -k and -m, --lf, --sw, and
node ids of built-in tests."""


class SuiteModule(pytest.Module):
    """A file of the built-in suite, collected whatever names the user's ini asks
    for."""

    # It stands at the project's root, so that the project's conftest applies and node
    # ids and JUnit class names are the same wherever the package is installed; as a
    # path they would follow the place of the virtual environment.

    @classmethod
    def make(cls, parent: Suite, path: Path) -> SuiteModule:
        """Return the collector of one file."""
        module: SuiteModule = cls.from_parent(
            parent, path=parent.path, name=path.name, nodeid=f"{SUITE_ID}/{path.name}"
        )
        module.obj = importlib.import_module(f"pytest_llmbench.suite.{path.stem}")
        return module

    def funcnamefilter(self, name: str) -> bool:
        """Return whether a function is a test."""
        return name.startswith("test_")


class Suite(pytest.Directory):
    """The built-in tests in the place of the project's own."""

    def collect(self) -> Iterator[SuiteModule]:
        """Yield the files; but for the configurations', only those that have something
        to say."""
        for name, cases in get_session(self.config).cases.items():
            if cases or name == PERFORMANCE:
                yield SuiteModule.make(self, SUITE / f"{name}.py")


def pytest_collect_directory(
    path: Path, parent: pytest.Collector
) -> pytest.Directory | None:
    """Collect the built-in suite instead of the project where no path was given."""
    config = parent.config
    if path != config.rootpath or not is_suite_requested(config):
        return None
    suite: Suite = Suite.from_parent(parent, path=path)
    return suite


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Read the logs before the items are made."""
    # A problem with them is one message then, not one of each item.
    config = session.config
    cases = raise_usage_errors(lambda: get_session(config).cases)
    items = [
        f"{SUITE_ID}/{name}.py::{name}[{case.id}]"
        for name, of_name in cases.items()
        for case in of_name
    ]
    unknown = [
        node
        for node in list_requested_ids(config)
        if not any(_is_under(item, node) for item in items)
    ]
    if unknown and not is_worker(config):
        raise pytest.UsageError(
            f"not found: {unknown[0]}; --collect-only lists the items"
        )


def add_checks(session: pytest.Session) -> None:
    """Add the items of what a launch has shown, which was not known when the session
    selected its items.

    They are about what was launched, so no selection leaves them out, only --deselect
    with the id of one. Beside a user's own tests there are none, as for runs on disk,
    unless one of them fails: the session must not be green then.
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
    """Return the items of the built-in suite that are about no single run of a
    configuration."""
    suite: Suite = Suite.from_parent(session, path=session.config.rootpath)
    files = [file for file in suite.collect() if file.name != f"{PERFORMANCE}.py"]
    return [
        item
        for file in files
        for item in file.collect()
        if isinstance(item, pytest.Item)
    ]


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Make an item of each case of the fixtures that have some."""
    # For the first test that asks for any of ours is early enough: pytest looks for
    # them when it runs.
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
    """Register the fixtures of the checks over several configurations, one for each row
    of `CHECKS`, once."""
    name = "pytest_llmbench_check_fixtures"
    if not config.pluginmanager.has_plugin(name):
        plugin = ModuleType(
            name
        )  # pytest finds the fixtures of a plugin among the names of its module
        for kind, (_, meaning) in CHECKS.items():
            fixture = kind.test_name.replace("test_", "llmb_")
            setattr(plugin, fixture, _make_check_fixture(fixture, meaning))
        config.pluginmanager.register(plugin, name)


def _make_check_fixture(name: str, meaning: str) -> object:
    def describe_check(request: pytest.FixtureRequest) -> Check:
        case = get_case(request)
        check, described = get_session(request.config).describe_check(case)
        silent = (
            check.kind is CheckKind.SOMETHING_JUDGED and check.status is Status.PASSED
        )  # verdicts say it
        if (
            DESCRIBED not in request.node.stash and not silent
        ):  # the verdict on a configuration comes first
            request.node.stash[DESCRIBED], request.node.stash[MESSAGE] = (
                described,
                check.message,
            )
        return check

    # `pytest --fixtures` shows the docstring of the function.
    describe_check.__doc__ = meaning
    return pytest.fixture(name=name)(describe_check)


def select_by_id(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the items whose node ids were given, as a failed one is copied from the
    output to run it again."""
    wanted = list_requested_ids(config)
    if not wanted:
        return
    wanted_items = [
        item for item in items if any(_is_under(item.nodeid, node) for node in wanted)
    ]
    left = set(items).difference(wanted_items)
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = wanted_items


def _is_under(nodeid: str, wanted: str) -> bool:
    return nodeid == wanted or nodeid.startswith(
        (f"{wanted}::", f"{wanted}[", f"{wanted}/")
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a session in which nothing uses the --llmb options that were typed."""
    config = session.config
    if is_worker(config) or not session.items:
        return
    typed = find_judging_option(config)
    if typed and not any(uses_runs(item) for item in session.items):
        raise pytest.UsageError(
            f"no selected test uses {typed}: a test asks for a run with the fixture llmb_verdict"
        )


def _make_marks(name: str, case: Any) -> list[pytest.MarkDecorator]:
    """Return the mark of a configuration, or those of each configuration that a check
    is about."""
    key = getattr(case, "key", None)
    if key is not None:
        return [_mark(key)]
    if name == "test_unmatched_run":
        return [pytest.mark.llmb(unmatched=True)]
    return [
        pytest.mark.llmb(check=case.kind),
        *(_mark(about, check=case.kind) for about in case.about),
    ]


def _mark(key: Key, **more: str) -> pytest.MarkDecorator:
    return pytest.mark.llmb(
        model=key.recipe,
        size=key.size,
        release=key.release,
        gpu=key.gpu,
        dtype=key.dtype,
        gpus=key.gpus,
        **more,
    )


# --- what a selection keeps -----------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Once everybody has selected, put back what is about a selected configuration and
    was only not named."""
    collected, by_name = list(items), set[pytest.Item]()
    config.stash[COLLECTED], config.stash[BY_NAME] = collected, by_name
    if config.getoption(
        "stepwise", False
    ):  # it looks for the item that failed last among those that are there
        select_by_id(config, items)
    result = yield
    if not is_suite_requested(config):
        added = _select_failing_checks(session, collected)
        collected += added
        by_name.update(added)
    following = _select_guarded(collected, by_name, items)
    items += following
    others = _select_following(collected, by_name, items)
    items += others
    following += others
    _correct_deselected(config, following)
    return result


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Remember what was deselected because a selection did not name it."""
    # The hook does not say by whom, its caller does.
    if items and _find_caller() in SELECTING:
        items[0].config.stash[BY_NAME].update(items)


def _find_caller() -> str:
    """Return the module that called the hook whose implementation called this."""
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(
        "pluggy"
    ):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _list_cases(item: pytest.Item) -> Iterator[tuple[Subject, Any]]:
    """Yield what an item is about, and the case itself; nothing of a test for which
    there is none."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    for fixture, name in CASES.items():
        case = params.get(fixture)
        if isinstance(case, Case | Check | UnmatchedRun):
            yield (name, case.id), case


def is_guard(item: pytest.Item) -> bool:
    """Whether an item says that the session has judged something."""
    return any(
        name == CheckKind.SOMETHING_JUDGED.test_name
        for (name, _), _ in _list_cases(item)
    )


def _select_guarded(
    collected: Sequence[pytest.Item],
    by_name: set[pytest.Item],
    remaining: Sequence[pytest.Item],
) -> list[pytest.Item]:
    """Return the item that says whether anything was judged, where a configuration is
    selected and it is not; where it alone is, as after it failed (--lf), the
    configurations."""
    judged = {
        item: any(isinstance(case, Case) for _, case in _list_cases(item))
        for item in collected
    }
    left = [item for item in collected if item not in set(remaining)]
    if any(judged.get(item) for item in remaining):
        # Without it nothing that was not judged is green either, but then all of it is
        # red.
        return [
            item
            for item in left
            if is_guard(item) and (item in by_name or is_deselected(item))
        ]
    if any(map(is_guard, remaining)):
        return [
            item
            for item in left
            if judged[item] and item in by_name and not is_deselected(item)
        ]
    return []


def _select_following(
    collected: Sequence[pytest.Item],
    by_name: set[pytest.Item],
    remaining: Sequence[pytest.Item],
) -> list[pytest.Item]:
    """Return the items that a selection did not name, and that are about a
    configuration that is selected.

    Where only a check about it is selected, or where a user's own tests run, nothing
    follows but what is red.
    """
    pairs = [pair for item in remaining for pair in _list_cases(item)]
    subjects = {subject for subject, _ in pairs}
    cases = [case for _, case in pairs if isinstance(case, Case)]
    ids, keys = {case.id for case in cases}, {case.key for case in cases}
    by_check = {
        case.about[0]
        for _, case in pairs
        if not isinstance(case, Case) and len(case.about) == 1
    }

    def is_following(subject: Subject, case: Any, node: str) -> bool:
        if case.id in ids or not keys.isdisjoint(case.about):
            return node.startswith(f"{SUITE_ID}/") or (
                _is_red(case) and subject not in subjects
            )
        return (
            not by_check.isdisjoint(case.about)
            and _is_red(case)
            and subject not in subjects
        )

    left = by_name.difference(remaining)
    gone = (item for item in collected if item in left and not is_deselected(item))
    of_item = ((item, list(_list_cases(item))) for item in gone)
    return [
        item
        for item, about in of_item
        if not any(isinstance(case, Case) for _, case in about)
        and any(is_following(*pair, item.nodeid) for pair in about)
    ]


def _is_red(case: Any) -> bool:
    """Whether a check fails; a run that fits no configuration always does."""
    return bool(getattr(case, "failed", True))


def _select_failing_checks(
    session: pytest.Session, collected: Sequence[pytest.Item]
) -> list[pytest.Item]:
    """Return the items of the failing checks that none of a user's own tests, which
    judge configurations, is about."""
    there = {subject for item in collected for subject, _ in _list_cases(item)}
    failed = [
        check for check in get_session(session.config).results.checks if check.failed
    ]
    if not failed or not any(name == PERFORMANCE for name, _ in there):
        return []
    pairs = (
        (item, *pair) for item in collect_checks(session) for pair in _list_cases(item)
    )
    return [
        item for item, subject, case in pairs if case in failed and subject not in there
    ]


def _correct_deselected(
    config: pytest.Config, following: Collection[pytest.Item]
) -> None:
    """Take what runs after all out of the count of deselected items."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and following:
        left = [
            item
            for item in reporter.stats.pop("deselected", [])
            if item not in set(following)
        ]
        reporter.stats |= {"deselected": left} if left else {}


def _list_never_collected(
    config: pytest.Config, collected: Collection[Subject]
) -> Iterator[Subject]:
    """Yield what has no item although the built-in suite makes one of each case, and node ids of a user's own tests, or
    --lf, leave items out before there are any."""
    whole = is_suite_requested(config)
    if whole or (
        list_selecting_options(config)
        and any(name == PERFORMANCE for name, _ in collected)
    ):
        for name, cases in get_session(config).cases.items():
            if whole or name == PERFORMANCE:
                yield from (
                    (name, case.id)
                    for case in cases
                    if (name, case.id) not in collected
                )


def make_selection(session: pytest.Session) -> Selection:
    """Return what the items of a session are about, and what those that are gone were
    about."""
    selected = {
        item.nodeid: tuple(subject for subject, _ in _list_cases(item))
        for item in session.items
    }
    there = {subject for subjects in selected.values() for subject in subjects}
    by_name: dict[Subject, bool] = {}
    for item in session.config.stash[COLLECTED]:
        unnamed = item in session.config.stash[BY_NAME] and not is_deselected(item)
        for subject, _ in _list_cases(item):
            by_name[subject] = by_name.get(subject, True) and unnamed
    for subject in list(_list_never_collected(session.config, by_name)):
        by_name[subject] = not is_suite_requested(session.config)
    gone = [subject for subject in by_name if subject not in there]
    left_out, deselected = (
        [left for left in gone if by_name[left] is unnamed] for unnamed in (True, False)
    )
    return Selection(selected, tuple(left_out), tuple(deselected))
