"""Test for runs that match no baseline."""

import pytest


def test_unmatched_run(llmb_unmatched):
    """Every run matches a baseline (--llmb-unmatched=list only lists other runs)."""
    pytest.fail(llmb_unmatched.message, pytrace=False)
