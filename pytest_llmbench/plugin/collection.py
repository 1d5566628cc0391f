"""The built-in suite: its files, and an item for each case."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.plugin.stash import (
    CASES,
    COLLECTED,
    SESSION,
    SUITE,
    SUITE_ID,
    find_judging_option,
    get_session,
    is_suite_wanted,
    is_worker,
    list_wanted_ids,
    raise_usage_errors,
    uses_runs,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Key

PERFORMANCE = "test_performance"
"""The test of the configurations, which has a file even where it has no case."""


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
        """Yield the files; but for the configurations', only those that have something to say."""
        for name, cases in get_session(self.config).cases.items():
            if cases or name == PERFORMANCE:
                yield SuiteModule.of(self, SUITE / f"{name}.py")


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Directory | None:
    """Collect the built-in suite instead of the project where no path was given."""
    config = parent.config
    if path != config.rootpath or not is_suite_wanted(config):
        return None
    suite: Suite = Suite.from_parent(parent, path=path)
    return suite


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Read the logs before the items are made, so that a problem with them is one message."""
    config = session.config
    cases = raise_usage_errors(lambda: get_session(config).cases)
    items = [f"{SUITE_ID}/{name}.py::{name}[{case.id}]" for name, of_name in cases.items() for case in of_name]
    unknown = [node for node in list_wanted_ids(config) if not any(_is_under(item, node) for item in items)]
    if unknown and not is_worker(config):
        raise pytest.UsageError(f"not found: {unknown[0]}; --collect-only lists the items")


def add_checks(session: pytest.Session) -> None:
    """Add the items of what a launch has shown, which was not known when the session selected its items.

    They are about what was launched, so no selection leaves them out, only --deselect with the id of one. Beside a
    user's own tests there are none, as for runs on disk, unless one of them fails: the session must not be green then.
    """
    config, state = session.config, get_session(session.config)
    if not is_suite_wanted(config) and not any(check.failed for check in state.results.checks):
        return
    added = items_besides(session)
    config.stash[COLLECTED] += added
    deselected = session.config.getoption("deselect") or ()
    session.items += [item for item in added if item.nodeid not in deselected]
    session.testscollected = len(session.items)


def items_besides(session: pytest.Session) -> list[pytest.Item]:
    """Return the items of the built-in suite that are about no single run of a configuration."""
    suite: Suite = Suite.from_parent(session, path=session.config.rootpath)
    files = [file for file in suite.collect() if file.name != f"{PERFORMANCE}.py"]
    return [item for file in files for item in file.collect() if isinstance(item, pytest.Item)]


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Make an item of each case of the fixtures that have some."""
    for fixture, name in CASES.items():
        if fixture not in metafunc.fixturenames:
            continue
        if SESSION not in metafunc.config.stash:
            parameters = [pytest.param(None, id="no-logs", marks=pytest.mark.llmb)]
        else:
            cases = raise_usage_errors(lambda: get_session(metafunc.config).cases)[name]
            parameters = [pytest.param(case, id=case.id, marks=_marks(name, case)) for case in cases]
        metafunc.parametrize(fixture, parameters, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the items whose node ids were given, once every conftest has seen all of them."""
    keep_wanted(config, items)


def keep_wanted(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the items whose node ids were given, as a failed one is copied from the output to run it again."""
    wanted = list_wanted_ids(config)
    if not wanted:
        return
    kept = [item for item in items if any(_is_under(item.nodeid, node) for node in wanted)]
    left = set(items).difference(kept)
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = kept


def _is_under(nodeid: str, given: str) -> bool:
    return nodeid == given or nodeid.startswith((f"{given}::", f"{given}[", f"{given}/"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a session in which nothing uses the --llmb options that were typed."""
    config = session.config
    if is_worker(config) or not session.items:
        return
    typed = find_judging_option(config)
    if typed and not any(uses_runs(item) for item in session.items):
        raise pytest.UsageError(f"no selected test uses {typed}: a test asks for a run with the fixture llmb_verdict")


def _marks(name: str, case: Any) -> list[pytest.MarkDecorator]:
    """Return the mark of a configuration, or those of each configuration that a check is about."""
    key = getattr(case, "key", None)
    if key is not None:
        return [_mark(key)]
    if name == "test_unmatched_run":
        return [pytest.mark.llmb(unmatched=True)]
    return [pytest.mark.llmb(check=case.kind), *(_mark(about, check=case.kind) for about in case.about)]


def _mark(key: Key, **more: str) -> pytest.MarkDecorator:
    return pytest.mark.llmb(
        model=key.recipe, size=key.size, release=key.release, gpu=key.gpu, dtype=key.dtype, gpus=key.gpus, **more
    )
