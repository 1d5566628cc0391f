"""What is measured: each metric is declared once, here, with its formula and with all
that reports need to show it.

The FLOPs of one training sequence are as the recipe documents count them
(`core/flops.py`), or those that a framework logs.
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
STEP_TIME = "step_time_seconds"


class Statistic(Enum):
    """How the values that a log prints step by step become one: those of the window, or
    of all sound steps."""

    MEAN_OF_WINDOW = "mean of the window"
    LARGEST_OF_RUN = "largest of the run"


class Definition(NamedTuple):
    """A metric: JSON and the output of JUnit show every one that a run has."""

    unit: str
    larger_is_better: bool | None
    """None: neither is better."""
    formula: Callable[[Baseline, float], float | None] | None = None
    """Its value at a step time in seconds, None where a configuration has none. With a
    formula a baseline expects a value of it, and a tolerance may limit it."""
    printed: tuple[str, Statistic] | None = None
    """The column of `Steps` that it is taken from, where a log prints it."""
    label: str = ""
    """How a row of the terminal's and the page's tables calls it; empty: it has no
    row."""
    form: str = "{:g}"
    """How such a row writes a value."""
    is_property: bool = False
    """Whether it is a property of a test case in --junitxml."""

    @property
    def of_step_time(self) -> bool:
        """Whether it follows from the step time."""
        return self.formula is not None


def _get_step_time(_: Baseline, seconds: float) -> float:
    return seconds


def _compute_tokens(baseline: Baseline, seconds: float) -> float | None:
    return compute_tokens_per_second(baseline.configuration, seconds) or None


def _compute_tokens_per_gpu(baseline: Baseline, seconds: float) -> float | None:
    tokens, gpus = _compute_tokens(baseline, seconds), baseline.key.gpus
    return tokens / gpus if tokens and gpus else None


def _compute_utilization(
    baseline: Baseline, seconds: float, *, logged: bool
) -> float | None:
    """Return MFU, None if its FLOPs are counted another way than `logged`, or if a peak
    or the work is unknown."""
    configuration = baseline.configuration
    if is_logged(configuration) is not logged:
        return None
    utilization = compute_model_flops_utilization(
        configuration, seconds, baseline.peak_tflops
    )
    return None if math.isnan(utilization) else utilization


def _compute_tflops_per_gpu(baseline: Baseline, seconds: float) -> float | None:
    configuration = baseline.configuration
    return (
        None
        if is_logged(configuration)
        else compute_tflops_per_gpu(configuration, seconds)
    )


def _compute_logged_tflops(baseline: Baseline, seconds: float) -> float | None:
    work = baseline.configuration.logged_tflop
    return work / seconds if work and is_logged(baseline.configuration) else None


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
    # Of a run whose FLOPs a formula counts it stands in JSON only.
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
    # More memory is no regression: a recipe may use what is there.
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
"""Metrics of which a baseline file can say the largest value."""


def list_rows() -> Iterator[tuple[str, Definition]]:
    """Yield name and definition of the metrics that have a row in the tables of the
    terminal and the page."""
    return (
        (name, definition) for name, definition in METRICS.items() if definition.label
    )


def list_property_names() -> tuple[str, ...]:
    """Return the names of the metrics that are properties in --junitxml."""
    return tuple(name for name, definition in METRICS.items() if definition.is_property)


# --- what follows from a step time ----------------------------------------------------


def compute_tokens_per_second(
    configuration: Configuration, step_seconds: float
) -> float:
    """Return tokens per second of the whole run: sequence length x global batch size /
    step time in seconds.

    0 where a file states one of them not.
    """
    return (
        configuration.architecture.sequence_length
        * configuration.global_batch_size
        / step_seconds
    )


def compute_tflops_per_gpu(configuration: Configuration, step_seconds: float) -> float:
    """Return model TFLOP/s per GPU: global batch size x model FLOPs / step time in
    seconds / GPUs / 1e12.

    Without a formula it is what its framework logs of a step, NaN where that is not
    known either.
    """
    if is_logged(configuration):
        return (configuration.logged_tflop or math.nan) / step_seconds
    flops = configuration.global_batch_size * count_model_flops(
        configuration.architecture
    )
    return flops / step_seconds / configuration.key.gpus / 1e12


def compute_model_flops_utilization(
    configuration: Configuration, step_seconds: float, peak_tflops: float
) -> float:
    """Return MFU as a fraction (0.4759 is printed as 47.59 %) of the peak TFLOP/s of
    one GPU at this precision."""
    return compute_tflops_per_gpu(configuration, step_seconds) / peak_tflops


def is_logged(configuration: Configuration) -> bool:
    """Whether no formula counts the FLOPs of a model: only its framework may, in the
    log."""
    return configuration.architecture.formula == NO_FORMULA


def compute_days_to_1t_tokens(
    configuration: Configuration, step_seconds: float
) -> float | None:
    """Return days to train on 1e12 tokens; None for a proxy, which is not the model
    (the documents print NA)."""
    tokens = compute_tokens_per_second(configuration, step_seconds)
    return (
        None if configuration.proxy or not tokens else TOKENS / tokens / SECONDS_PER_DAY
    )
