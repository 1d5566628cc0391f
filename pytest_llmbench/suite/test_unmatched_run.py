"""Every run that was found is the run of a known configuration."""

import pytest


def test_unmatched_run(llmb_unmatched):
    """A run that no baseline fits is not passed over in silence (--llmb-unmatched=list
    does only list it)."""
    pytest.fail(llmb_unmatched.message, pytrace=False)
