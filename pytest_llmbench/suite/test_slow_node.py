"""No node makes jobs slow, by the runs of many nights."""

import pytest


def test_slow_node(llmb_slow_node):
    """A node that is named slow fails; that some node is, and which one cannot be told
    yet, is only told."""
    if llmb_slow_node.skipped:
        pytest.skip(llmb_slow_node.message)
    if llmb_slow_node.failed:
        pytest.fail(llmb_slow_node.message, pytrace=False)
