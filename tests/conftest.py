"""Set up every test session: test order, environment, signals and garbage
collection."""

# pytester drops the imports of an in-process session, but extension modules cannot be
# loaded twice: import them first.
import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pandas as pd  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import yaml  # noqa: F401

if TYPE_CHECKING:
    from support.forked_processes import Programs

with suppress(
    ModuleNotFoundError
):  # judging the examples in a checkout loads this file without test packages
    from hypothesis import settings

    settings.register_profile(
        "untimed", deadline=None
    )  # a busy machine must not fail tests
    settings.load_profile("untimed")


gc.set_threshold(50_000, 20, 100)  # garbage collection took a seventh of the test time

WAITING = Path(__file__).parent / "integration" / "slurm"
"""Tests in this folder spend most of their time waiting for Slurm."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slow Slurm tests early in two workers, or shuffle all tests.

    pytest-xdist gives each worker an equal share of the items, in their order, before
    it moves items between workers. The first two workers get half of the waiting tests
    each, so that the other workers keep the processors busy.

    If LLMB_TEST_ORDER holds a seed, shuffle the test files, and the tests in each file,
    instead. Files stay together, so that their fixtures are set up once.
    """
    if seed := os.environ.get("LLMB_TEST_ORDER"):
        random = Random(seed)  # noqa: S311 (an order, not a secret)
        rank: dict[Path, float] = {}
        for item in items:
            rank.setdefault(item.path, random.random())
        random.shuffle(items)
        items.sort(key=lambda item: rank[item.path])
        return
    waiting = [item for item in items if WAITING in item.path.parents]
    others = [item for item in items if WAITING not in item.path.parents]
    part = len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    half = len(waiting) // 2
    items[:] = [
        *waiting[:half],
        *others[: part - half],
        *waiting[half:],
        *others[part - half :],
    ]


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_commit() -> Iterator[None]:
    """Unset the variables in which a CI passes the commit."""
    from pytest_llmbench.core.runtime import COMMITS

    with pytest.MonkeyPatch.context() as patch:
        for name in COMMITS:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Redirect the cache to a temporary folder, and disable the GitHub job summary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GITHUB_ACTIONS", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _utc() -> Iterator[None]:
    """Interpret times without a zone as UTC, as the log generator writes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="session", autouse=True)
def _interrupts() -> Iterator[None]:
    """Restore the default SIGINT handler.

    A shell starts background processes with SIGINT ignored, and tests interrupt
    themselves.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def programs() -> "Iterator[Programs]":
    """Run `llmbench` and pytest in separate processes."""
    from support.forked_processes import forking

    with forking() as programs:
        yield programs
