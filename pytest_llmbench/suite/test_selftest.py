"""The gate sees damage."""

import pytest


def test_selftest(llmb_selftest):
    """On damaged copies of a run that passed, the verdict changes each time
    (--llmb-selftest)."""
    if llmb_selftest.skipped:
        pytest.skip(llmb_selftest.message)
    if llmb_selftest.failed:
        pytest.fail(llmb_selftest.message, pytrace=False)
