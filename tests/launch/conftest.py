"""Shared fixtures for tests of launches."""

from __future__ import annotations

import pytest
from support.node_histories import make_sessions, write_sessions

from pytest_llmbench.history.store import StoreLocation


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> StoreLocation:
    """A history of thirty daily runs of two configurations, in which n07 is 10 % slow."""
    return StoreLocation(
        "h.db",
        write_sessions(
            tmp_path_factory.mktemp("nights") / "h.db", make_sessions({7: 0.1})
        ),
    )
