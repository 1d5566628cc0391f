"""Both kinds of stores: tests with these fixtures run on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.databases import new_database, server

from pytest_llmbench.history.store import StoreLocation, locate_store


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Path]:
    """The folder with a server's socket."""
    yield from server()


@pytest.fixture
def database(postgresql: Path) -> Iterator[str]:
    """The URL of a new PostgreSQL database."""
    with new_database(postgresql) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The location of a new store, as given on the command line."""
    if request.param == "sqlite":
        return str(tmp_path / "history.db")
    url: str = request.getfixturevalue("database")
    return url


@pytest.fixture
def location(url: str, tmp_path: Path) -> StoreLocation:
    """A new store."""
    return locate_store(url, tmp_path)
