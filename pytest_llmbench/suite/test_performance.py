"""Test for the step time of each configuration."""

import pytest


def test_performance(llmb_verdict):
    """The newest run is valid, and not slower than its baseline x (1 + tolerance)."""
    if llmb_verdict.skipped:
        pytest.skip(llmb_verdict.message)
    if llmb_verdict.failed:
        pytest.fail(llmb_verdict.message, pytrace=False)
