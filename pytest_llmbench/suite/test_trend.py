"""Test for lasting slowdowns that are not acknowledged."""

import pytest


def test_trend(llmb_trend):
    """The daily runs show no lasting slowdown.

    A slowdown fails with --llmb-trend=fail, otherwise it is only reported.
    """
    if llmb_trend.skipped:
        pytest.skip(llmb_trend.message)
    if llmb_trend.failed:
        pytest.fail(llmb_trend.message, pytrace=False)
