"""One night's outcomes for all tests of the page."""

from __future__ import annotations

from typing import Any

import pytest
from support.night import night


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The outcomes of all 82 configurations with 90 nights each; not to be changed."""
    return night(tmp_path_factory.mktemp("night"))
