"""Fixtures for the tests of the example runs."""

from __future__ import annotations

import pytest
from generator.__main__ import shipped

from pytest_llmbench.core.baseline_records import Baseline


@pytest.fixture(scope="session")
def documented() -> dict[str, Baseline]:
    """The shipped baselines by id."""
    return shipped()
