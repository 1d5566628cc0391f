"""FP8 is as much faster than BF16 as documented."""

import pytest


def test_fp8_speedup(llmb_fp8_speedup):
    """The speed-up is what the documents state, within the tolerance (see
    --llmb-scaling)."""
    if llmb_fp8_speedup.skipped:
        pytest.skip(llmb_fp8_speedup.message)
    if llmb_fp8_speedup.failed:
        pytest.fail(llmb_fp8_speedup.message, pytrace=False)
