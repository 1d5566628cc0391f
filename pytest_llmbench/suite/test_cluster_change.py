"""What most configurations share is one finding."""

import pytest


def test_cluster_change(llmb_cluster_change):
    """A shift that most configurations share is named once; each regressed one fails on
    its own."""
    if llmb_cluster_change.skipped:
        pytest.skip(llmb_cluster_change.message)
    if llmb_cluster_change.failed:
        pytest.fail(llmb_cluster_change.message, pytrace=False)
