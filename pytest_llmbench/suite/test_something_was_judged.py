"""The session has judged something."""

import pytest


def test_something_was_judged(llmb_something_was_judged):
    """At least one of the selected configurations has a run that could be judged."""
    if llmb_something_was_judged.skipped:
        pytest.skip(llmb_something_was_judged.message)
    if llmb_something_was_judged.failed:
        pytest.fail(llmb_something_was_judged.message, pytrace=False)
