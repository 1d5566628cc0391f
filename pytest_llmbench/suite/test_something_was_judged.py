"""Test that the session judged at least one run."""

import pytest


def test_something_was_judged(llmb_something_was_judged):
    """At least one selected configuration has a judged run."""
    if llmb_something_was_judged.skipped:
        pytest.skip(llmb_something_was_judged.message)
    if llmb_something_was_judged.failed:
        pytest.fail(llmb_something_was_judged.message, pytrace=False)
