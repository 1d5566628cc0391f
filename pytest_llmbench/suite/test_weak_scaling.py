"""Test for the efficiency of larger runs of a family."""

import pytest


def test_weak_scaling(llmb_weak_scaling):
    """Weak-scaling efficiency matches the documents within the tolerance
    (--llmb-scaling)."""
    if llmb_weak_scaling.skipped:
        pytest.skip(llmb_weak_scaling.message)
    if llmb_weak_scaling.failed:
        pytest.fail(llmb_weak_scaling.message, pytrace=False)
