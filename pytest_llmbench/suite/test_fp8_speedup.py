"""Test for the speed-up of FP8 over BF16."""

import pytest


def test_fp8_speedup(llmb_fp8_speedup):
    """The speed-up matches the documents within the tolerance (--llmb-scaling)."""
    if llmb_fp8_speedup.skipped:
        pytest.skip(llmb_fp8_speedup.message)
    if llmb_fp8_speedup.failed:
        pytest.fail(llmb_fp8_speedup.message, pytrace=False)
