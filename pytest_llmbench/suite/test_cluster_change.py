"""Test for a shift that most configurations share."""

import pytest


def test_cluster_change(llmb_cluster_change):
    """No shift of the step time is common to most configurations.

    Each configuration with a regression also fails separately.
    """
    if llmb_cluster_change.skipped:
        pytest.skip(llmb_cluster_change.message)
    if llmb_cluster_change.failed:
        pytest.fail(llmb_cluster_change.message, pytrace=False)
