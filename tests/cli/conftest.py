"""Processes of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forked_processes import Programs, forking


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    """Runs `llmbench` in processes of its own."""
    with forking() as programs:
        yield programs
