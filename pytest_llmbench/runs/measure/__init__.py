"""Measure runs: window, step times, metrics and validity."""
