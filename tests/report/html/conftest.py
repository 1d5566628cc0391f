"""One night's outcomes for all tests of the page."""

from __future__ import annotations

import pytest
from support.full_session import make_session_outcomes

from pytest_llmbench.report.outcome_documents import OutcomeDocument


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[OutcomeDocument]:
    """The outcomes of all 82 configurations with 90 nights each; not to be changed."""
    return make_session_outcomes(tmp_path_factory.mktemp("night"))
