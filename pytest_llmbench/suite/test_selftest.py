"""Test that the gate detects damaged runs."""

import pytest


def test_selftest(llmb_selftest):
    """Each kind of damage to a copy of a passed run changes its verdict
    (--llmb-selftest)."""
    if llmb_selftest.skipped:
        pytest.skip(llmb_selftest.message)
    if llmb_selftest.failed:
        pytest.fail(llmb_selftest.message, pytrace=False)
