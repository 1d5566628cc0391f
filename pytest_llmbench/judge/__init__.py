"""From evidence to a verdict: pure functions."""
