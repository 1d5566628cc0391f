"""What is measured: each metric is declared once, here, with its formula and with all that reports need to show it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.core import throughput

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Baseline

STEP_TIME = "step_time_seconds"


class Statistic(Enum):
    """How the values that a log prints step by step become one: those of the window, or of all sound steps."""

    MEAN_OF_WINDOW = "mean of the window"
    LARGEST_OF_RUN = "largest of the run"


class Definition(NamedTuple):
    """A metric: JSON and the output of JUnit show every one that a run has."""

    unit: str
    larger_is_better: bool | None
    """None: neither is better."""
    formula: Callable[[Baseline, float], float | None] | None = None
    """Its value at a step time in seconds, None where a configuration has none. With a formula a baseline expects a
    value of it, and a tolerance may limit it."""
    printed: tuple[str, Statistic] | None = None
    """The column of `Steps` that it is taken from, where a log prints it."""
    label: str = ""
    """How a row of the terminal's and the page's tables calls it; empty: it has no row."""
    form: str = "{:g}"
    """How such a row writes a value."""
    is_property: bool = False
    """Whether it is a property of a test case in --junitxml."""

    @property
    def of_step_time(self) -> bool:
        """Whether it follows from the step time."""
        return self.formula is not None


def _step_time(_: Baseline, seconds: float) -> float:
    return seconds


def _tokens(baseline: Baseline, seconds: float) -> float:
    return throughput.tokens_per_second(baseline.configuration, seconds)


def _tokens_per_gpu(baseline: Baseline, seconds: float) -> float:
    return _tokens(baseline, seconds) / baseline.configuration.key.gpus


def _mfu(baseline: Baseline, seconds: float) -> float | None:
    if math.isnan(baseline.peak_tflops):  # a GPU whose peak no baseline file states
        return None
    return throughput.model_flops_utilization(baseline.configuration, seconds, baseline.peak_tflops)


def _tflops_per_gpu(baseline: Baseline, seconds: float) -> float:
    return throughput.tflops_per_gpu(baseline.configuration, seconds)


def _days_to_1t_tokens(baseline: Baseline, seconds: float) -> float | None:
    return throughput.days_to_1t_tokens(baseline.configuration, seconds)


# Reports list metrics in this order.
METRICS = {
    STEP_TIME: Definition(
        "s", larger_is_better=False, formula=_step_time, label="step time", form="{:#.4g} s", is_property=True
    ),
    "step_time_mean_seconds": Definition("s", larger_is_better=False),
    "step_time_trimmed_mean_seconds": Definition("s", larger_is_better=False),
    "step_time_cv": Definition("", larger_is_better=False),
    "tokens_per_second": Definition(
        "tokens/s", larger_is_better=True, formula=_tokens, label="tokens/s", form="{:,.0f}", is_property=True
    ),
    "tokens_per_second_per_gpu": Definition("tokens/s", larger_is_better=True, formula=_tokens_per_gpu),
    "mfu": Definition("", larger_is_better=True, formula=_mfu, label="MFU", form="{:.2%}", is_property=True),
    "tflops_per_gpu": Definition(
        "TFLOP/s",
        larger_is_better=True,
        formula=_tflops_per_gpu,
        label="TFLOP/s per GPU",
        form="{:,.1f}",
        is_property=True,
    ),
    "logged_tflops_per_gpu": Definition(
        "TFLOP/s", larger_is_better=True, printed=("tflops_per_gpu", Statistic.MEAN_OF_WINDOW)
    ),
    "days_to_1t_tokens": Definition(
        "days",
        larger_is_better=False,
        formula=_days_to_1t_tokens,
        label="days to 1T tokens",
        form="{:,.2f}",
        is_property=True,
    ),
    "weak_scaling_efficiency": Definition("", larger_is_better=True),
    # More memory is no regression: a recipe may use what is there.
    "peak_memory_bytes": Definition(
        "bytes", larger_is_better=None, printed=("peak_memory_bytes", Statistic.LARGEST_OF_RUN)
    ),
    "checkpoint_save_seconds": Definition("s", larger_is_better=False),
    "checkpoint_save_dispatch_seconds": Definition("s", larger_is_better=False),
    "checkpoint_load_seconds": Definition("s", larger_is_better=False),
    "checkpoint_saves": Definition("", larger_is_better=None),
}

BUDGETED = ("checkpoint_save_seconds", "checkpoint_save_dispatch_seconds", "checkpoint_load_seconds")
"""Metrics of which a baseline file can say the largest value."""


def list_rows() -> Iterator[tuple[str, Definition]]:
    """Yield name and definition of the metrics that have a row in the tables of the terminal and the page."""
    return ((name, definition) for name, definition in METRICS.items() if definition.label)


def list_property_names() -> tuple[str, ...]:
    """Return the names of the metrics that are properties in --junitxml."""
    return tuple(name for name, definition in METRICS.items() if definition.is_property)
