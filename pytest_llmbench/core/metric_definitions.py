"""What is measured: each metric's unit and direction, declared once."""

from __future__ import annotations

from typing import NamedTuple


class Definition(NamedTuple):
    """A metric's unit, and whether a larger value is better, worse or neither (None).

    `of_step_time`: it follows from the step time, so a baseline's step time has an expected value of it.
    """

    unit: str
    larger_is_better: bool | None
    of_step_time: bool = False


METRICS = {
    "step_time_seconds": Definition("s", larger_is_better=False, of_step_time=True),
    "step_time_mean_seconds": Definition("s", larger_is_better=False),
    "step_time_trimmed_mean_seconds": Definition("s", larger_is_better=False),
    "step_time_cv": Definition("", larger_is_better=False),
    "tokens_per_second": Definition("tokens/s", larger_is_better=True, of_step_time=True),
    "tokens_per_second_per_gpu": Definition("tokens/s", larger_is_better=True, of_step_time=True),
    "mfu": Definition("", larger_is_better=True, of_step_time=True),
    "tflops_per_gpu": Definition("TFLOP/s", larger_is_better=True, of_step_time=True),
    "logged_tflops_per_gpu": Definition("TFLOP/s", larger_is_better=True),
    "days_to_1t_tokens": Definition("days", larger_is_better=False, of_step_time=True),
    "weak_scaling_efficiency": Definition("", larger_is_better=True),
    "peak_memory_bytes": Definition("bytes", larger_is_better=None),
    "checkpoint_save_seconds": Definition("s", larger_is_better=False),
    "checkpoint_save_dispatch_seconds": Definition("s", larger_is_better=False),
    "checkpoint_load_seconds": Definition("s", larger_is_better=False),
    "checkpoint_saves": Definition("", larger_is_better=None),
}

BUDGETED = ("checkpoint_save_seconds", "checkpoint_save_dispatch_seconds", "checkpoint_load_seconds")
"""Metrics of which a baseline file can say the largest value."""
