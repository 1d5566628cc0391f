"""Test for nodes that slow down jobs, using the runs of many days."""

import pytest


def test_slow_node(llmb_slow_node):
    """No node is identified as slow.

    A slow node that is not identified yet is only reported.
    """
    if llmb_slow_node.skipped:
        pytest.skip(llmb_slow_node.message)
    if llmb_slow_node.failed:
        pytest.fail(llmb_slow_node.message, pytrace=False)
