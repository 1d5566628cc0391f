"""Sessions of the plugin over generated runs."""

from __future__ import annotations

import email.parser  # noqa: F401 (sessions import this, junit_xml and zstd when they need them)
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import junit_xml  # noqa: F401
import pytest
from generator import write_run
from generator.__main__ import shipped
from support.sessions import Judge, JudgedSession, Write

import pytest_llmbench
from pytest_llmbench.baseline import read
from pytest_llmbench.core.baseline_records import Baseline, Recipe
from pytest_llmbench.launch.jobs import watch
from pytest_llmbench.logs.sources.zstd import zstd  # noqa: F401

# pytester forgets what a session imported: a second one would import it again, and
# compare enums of two modules
OPTIONAL = {"sqlalchemy", "jinja2"}
for module in pkgutil.walk_packages(pytest_llmbench.__path__, "pytest_llmbench."):
    if not module.name.startswith("pytest_llmbench.suite."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise

UNUSED = (
    *("doctest", "faulthandler", "legacypath", "logging", "pastebin", "stepwise"),
    *("threadexception", "unittest", "unraisableexception"),
)
"""Plugins of pytest that no verdict meets. A session takes a tenth less time without
them."""

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "experiments"


@pytest.fixture
def examples() -> Path:
    """The committed example runs."""
    return EXAMPLES


@pytest.fixture(scope="session")
def baselines() -> dict[str, Baseline]:
    """The shipped baselines by id."""
    return shipped()


@pytest.fixture(scope="session")
def recipes() -> dict[Path, Recipe]:
    """Shipped recipes by the file that they were read from."""
    return {}


@pytest.fixture(scope="module", autouse=True)
def _recipes_read_once(recipes: dict[Path, Recipe]) -> Iterator[None]:
    """Parse each shipped baseline file once, which every session reads."""
    parse, shipped = read.read_recipe, read.find_shipped_baselines()

    def read_recipe(path: Path) -> Recipe:
        if not path.is_relative_to(shipped):
            return parse(path)
        if path not in recipes:
            recipes[path] = parse(path)
        return recipes[path]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "read_recipe", read_recipe)
        yield


@pytest.fixture(scope="module", autouse=True)
def _polls_at_once() -> Iterator[None]:
    """Ask for the jobs of sessions in this process as fast as they end: within
    milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "Limits", partial(watch.Limits, first_poll=0.02))
        yield


@pytest.fixture
def generated(tmp_path: Path, baselines: dict[str, Baseline]) -> Write:
    """Write a run of a configuration (id, generator options) and return its folder."""
    folder = tmp_path / "runs"
    folder.mkdir()

    def write(identifier: str, **options: Any) -> Path:
        write_run(folder, baselines[identifier], **options)
        return folder

    return write


@pytest.fixture
def judged(pytester: pytest.Pytester) -> Judge:
    """Run pytest in this process and return its parsed output."""

    without = [f"-pno:{name}" for name in ("cacheprovider", *UNUSED)]

    def run(*arguments: str, plugins: Sequence[object] = ()) -> JudgedSession:
        return JudgedSession(pytester.inline_run(*without, *arguments, plugins=plugins))

    return run
