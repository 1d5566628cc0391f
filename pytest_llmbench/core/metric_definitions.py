"""Definitions of all metrics: unit, direction, formula and display.

FLOPs of one training sequence are counted as in the recipe documents (`core/flops.py`),
or taken from the framework's log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.core.flops import NO_FORMULA, count_model_flops

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Baseline, Configuration

SECONDS_PER_DAY = 86400
TOKENS = 1e12
"""The number of tokens in `days_to_1t_tokens`."""

FLOP_PER_TFLOP = 1e12

STEP_TIME = "step_time_seconds"


class Statistic(Enum):
    """The method that combines the printed values of single steps to one value."""

    MEAN_OF_WINDOW = "mean of the window"
    LARGEST_OF_RUN = "largest of the run"


class Definition(NamedTuple):
    """A metric. JSON and the output of JUnit contain every metric that a run has."""

    unit: str
    larger_is_better: bool | None
    """None if neither direction is better."""
    formula: Callable[[Baseline, float], float | None] | None = None
    """Computes the value for a step time in seconds; None if it is undefined.

    Only a metric with a formula has an expected value in a baseline and may have a
    tolerance.
    """
    printed: tuple[str, Statistic] | None = None
    """The column of `Steps` with the value and the statistic to use, if logs print it.
    """
    label: str = ""
    """Label of its row in the tables of the terminal and the page; "" for no row."""
    form: str = "{:g}"
    """Format of the value in such a row."""
    is_property: bool = False
    """True if the metric is a property of a test case in --junitxml."""

    @property
    def of_step_time(self) -> bool:
        """True if the metric is computed from the step time."""
        return self.formula is not None


def _get_step_time(_: Baseline, seconds: float) -> float:
    """Return the step time itself, as the formula of the metric STEP_TIME."""
    return seconds


def _compute_tokens(baseline: Baseline, seconds: float) -> float | None:
    """Return tokens per second of the whole run, or None if they are unknown."""
    return compute_tokens_per_second(baseline.configuration, seconds) or None


def _compute_tokens_per_gpu(baseline: Baseline, seconds: float) -> float | None:
    """Return tokens per second of one GPU, or None if they are unknown."""
    tokens, gpus = _compute_tokens(baseline, seconds), baseline.key.gpus
    if not tokens or not gpus:
        return None
    return tokens / gpus


def _compute_utilization(
    baseline: Baseline, seconds: float, *, logged: bool
) -> float | None:
    """Return MFU as a fraction.

    `logged` is the kind of MFU: True for FLOPs that only the framework logs, False for
    FLOPs that a formula counts. Returns None if the configuration has the other kind,
    or if its peak or FLOPs are unknown.
    """
    configuration = baseline.configuration
    if uses_logged_flops(configuration) is not logged:
        return None
    utilization = compute_model_flops_utilization(
        configuration, seconds, baseline.peak_tflops
    )
    return None if math.isnan(utilization) else utilization


def _compute_tflops_per_gpu(baseline: Baseline, seconds: float) -> float | None:
    """Return TFLOP/s of one GPU, or None if no formula counts the FLOPs."""
    configuration = baseline.configuration
    if uses_logged_flops(configuration):
        return None
    return compute_tflops_per_gpu(configuration, seconds)


def _compute_logged_tflops(baseline: Baseline, seconds: float) -> float | None:
    """Return TFLOP/s of one GPU as logged, or None if a formula counts the FLOPs."""
    configuration = baseline.configuration
    step_tflop = configuration.logged_tflop
    if not step_tflop or not uses_logged_flops(configuration):
        return None
    return step_tflop / seconds


def _compute_days_to_1t_tokens(baseline: Baseline, seconds: float) -> float | None:
    return compute_days_to_1t_tokens(baseline.configuration, seconds)


# Reports list metrics in this order.
METRICS = {
    STEP_TIME: Definition(
        "s",
        larger_is_better=False,
        formula=_get_step_time,
        label="step time",
        form="{:#.4g} s",
        is_property=True,
    ),
    "step_time_mean_seconds": Definition("s", larger_is_better=False),
    "step_time_trimmed_mean_seconds": Definition("s", larger_is_better=False),
    "step_time_cv": Definition("", larger_is_better=False),
    "tokens_per_second": Definition(
        "tokens/s",
        larger_is_better=True,
        formula=_compute_tokens,
        label="tokens/s",
        form="{:,.0f}",
        is_property=True,
    ),
    "tokens_per_second_per_gpu": Definition(
        "tokens/s", larger_is_better=True, formula=_compute_tokens_per_gpu
    ),
    "mfu": Definition(
        "",
        larger_is_better=True,
        formula=partial(_compute_utilization, logged=False),
        label="MFU",
        form="{:.2%}",
        is_property=True,
    ),
    "tflops_per_gpu": Definition(
        "TFLOP/s",
        larger_is_better=True,
        formula=_compute_tflops_per_gpu,
        label="TFLOP/s per GPU",
        form="{:,.1f}",
        is_property=True,
    ),
    "mfu_logged": Definition(
        "",
        larger_is_better=True,
        formula=partial(_compute_utilization, logged=True),
        label="MFU (logged)",
        form="{:.2%}",
        is_property=True,
    ),
    # If a formula counts the FLOPs of a run, only JSON contains this metric.
    "logged_tflops_per_gpu": Definition(
        "TFLOP/s",
        larger_is_better=True,
        formula=_compute_logged_tflops,
        printed=("tflops_per_gpu", Statistic.MEAN_OF_WINDOW),
        label="logged TFLOP/s",
        form="{:,.1f}",
    ),
    "days_to_1t_tokens": Definition(
        "days",
        larger_is_better=False,
        formula=_compute_days_to_1t_tokens,
        label="days to 1T tokens",
        form="{:,.2f}",
        is_property=True,
    ),
    "weak_scaling_efficiency": Definition("", larger_is_better=True),
    # More memory is not a regression: a recipe may use all available memory.
    "peak_memory_bytes": Definition(
        "bytes",
        larger_is_better=None,
        printed=("peak_memory_bytes", Statistic.LARGEST_OF_RUN),
    ),
    "checkpoint_save_seconds": Definition("s", larger_is_better=False),
    "checkpoint_save_dispatch_seconds": Definition("s", larger_is_better=False),
    "checkpoint_load_seconds": Definition("s", larger_is_better=False),
    "checkpoint_saves": Definition("", larger_is_better=None),
}

BUDGETED = (
    "checkpoint_save_seconds",
    "checkpoint_save_dispatch_seconds",
    "checkpoint_load_seconds",
)
"""Metrics whose largest value a baseline file may limit."""


def list_rows() -> Iterator[tuple[str, Definition]]:
    """Yield name and definition of the metrics with a row in tables."""
    return (
        (name, definition) for name, definition in METRICS.items() if definition.label
    )


def list_property_names() -> tuple[str, ...]:
    """Return the names of the metrics that are properties in --junitxml."""
    return tuple(name for name, definition in METRICS.items() if definition.is_property)


# --- values computed from a step time -------------------------------------------------


def compute_tokens_per_second(
    configuration: Configuration, step_seconds: float
) -> float:
    """Return tokens per second of the whole run, or 0 if a factor is unknown.

    The formula is sequence length x global batch size / step time in seconds.
    """
    return (
        configuration.architecture.sequence_length
        * configuration.global_batch_size
        / step_seconds
    )


def compute_tflops_per_gpu(configuration: Configuration, step_seconds: float) -> float:
    """Return model TFLOP/s per GPU.

    The formula is global batch size x model FLOPs / step time in seconds / GPUs / 1e12.
    Without a FLOPs formula, the TFLOP per step that the framework logs are used; NaN if
    they are unknown.
    """
    if uses_logged_flops(configuration):
        return (configuration.logged_tflop or math.nan) / step_seconds
    sequence_flops = count_model_flops(configuration.architecture)
    step_flops = configuration.global_batch_size * sequence_flops
    return step_flops / step_seconds / configuration.key.gpus / FLOP_PER_TFLOP


def compute_model_flops_utilization(
    configuration: Configuration, step_seconds: float, peak_tflops: float
) -> float:
    """Return MFU: model TFLOP/s over the peak of one GPU at this precision.

    The result is a fraction; 0.4759 is printed as 47.59 %.
    """
    return compute_tflops_per_gpu(configuration, step_seconds) / peak_tflops


def uses_logged_flops(configuration: Configuration) -> bool:
    """True if the model has no FLOPs formula, so that only the framework counts them."""
    return configuration.architecture.formula == NO_FORMULA


def compute_days_to_1t_tokens(
    configuration: Configuration, step_seconds: float
) -> float | None:
    """Return the days to train on 1e12 tokens.

    None for a proxy, which is not the real model (the documents print NA), and for an
    unknown rate.
    """
    tokens_per_second = compute_tokens_per_second(configuration, step_seconds)
    if configuration.proxy or not tokens_per_second:
        return None
    return TOKENS / tokens_per_second / SECONDS_PER_DAY
