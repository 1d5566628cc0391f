"""Shared fixtures for tests of launches."""

from __future__ import annotations

import pytest
from support.node_nights import make_nights, store

from pytest_llmbench.history.store import StoreLocation


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> StoreLocation:
    """A history of thirty daily runs of two configurations, in which n07 is 10 % slow."""
    return StoreLocation(
        "h.db", store(tmp_path_factory.mktemp("nights") / "h.db", make_nights({7: 0.1}))
    )
