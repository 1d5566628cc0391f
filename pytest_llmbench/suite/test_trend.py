"""No configuration became slower for good, unless somebody accepted it."""

import pytest


def test_trend(llmb_trend):
    """A change of level over the nights is named; one to slower fails where
    --llmb-trend=fail asks for it."""
    if llmb_trend.skipped:
        pytest.skip(llmb_trend.message)
    if llmb_trend.failed:
        pytest.fail(llmb_trend.message, pytrace=False)
