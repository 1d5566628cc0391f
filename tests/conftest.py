"""For all tests."""

# pytester forgets what an in-process session imported, and extension modules cannot be
# loaded twice
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
):  # judging the examples in a checkout loads this file, too, and needs no test package
    from hypothesis import settings

    settings.register_profile(
        "untimed", deadline=None
    )  # no test fails because a machine is busy
    settings.load_profile("untimed")


gc.set_threshold(
    50_000, 20, 100
)  # garbage collection took a seventh of the time of thousands of tests

WAITING = Path(__file__).parent / "integration" / "slurm"
"""These tests wait for Slurm most of the time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the tests that wait in two processes, half in each, while others keep the
    processors busy.

    pytest-xdist gives each process an equal part of the items, in their order, before
    it moves tests between them. If LLMB_TEST_ORDER holds a seed, shuffle the test
    files, and the tests within each, instead. Files stay together, so that their
    fixtures are set up once.
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
    """Keep the commit that a CI names out of reports."""
    from pytest_llmbench.core.runtime import COMMITS

    with pytest.MonkeyPatch.context() as patch:
        for name in COMMITS:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests read out of the cache of the user who runs them, and what they
    judge out of the CI's own page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GITHUB_ACTIONS", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _utc() -> Iterator[None]:
    """Read the times of generated logs, which name no zone, as they were meant,
    wherever the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="session", autouse=True)
def _interrupts() -> Iterator[None]:
    """Let tests interrupt themselves and their processes where the tests run in the
    background of a shell, too, which has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def programs() -> "Iterator[Programs]":
    """Runs `llmbench` and pytest in processes of their own."""
    from support.forked_processes import forking

    with forking() as programs:
        yield programs
