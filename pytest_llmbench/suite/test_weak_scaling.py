"""Larger runs of a family are as efficient as documented."""

import pytest


def test_weak_scaling(llmb_weak_scaling):
    """Weak-scaling efficiency is what the documents state, within the tolerance (see
    --llmb-scaling)."""
    if llmb_weak_scaling.skipped:
        pytest.skip(llmb_weak_scaling.message)
    if llmb_weak_scaling.failed:
        pytest.fail(llmb_weak_scaling.message, pytrace=False)
