"""The metrics of a run: their values over a window, and those that follow from a step time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.measure import derive
from pytest_llmbench.models import Baseline, Metric, ParsedLog, Steps
from pytest_llmbench.quantities import METRICS
from pytest_llmbench.robust import trimmed_mean

if TYPE_CHECKING:
    from pytest_llmbench.models import Flags, Floats


def metric(name: str, value: float, standard_deviation: float | None = None) -> Metric:
    """Return a metric with its unit and direction."""
    definition = METRICS[name]
    return Metric(name, value, standard_deviation, definition.unit, definition.larger_is_better)


def at_step_time(baseline: Baseline, seconds: float) -> tuple[Metric, ...]:
    """Return what follows from a step time alone: tokens/s, MFU, TFLOP/s and, but for proxies, days to 1T tokens.

    No MFU without a peak, and nothing from a step time that is NaN: a baseline that nothing has timed.
    """
    if math.isnan(seconds):
        return ()
    configuration = baseline.configuration
    tokens = derive.tokens_per_second(configuration, seconds)
    days = derive.days_to_1t_tokens(configuration, seconds)
    return (
        metric("tokens_per_second", tokens),
        metric("tokens_per_second_per_gpu", tokens / configuration.key.gpus),
        *_utilization(baseline, seconds),
        metric("tflops_per_gpu", derive.tflops_per_gpu(configuration, seconds)),
        *([metric("days_to_1t_tokens", days)] if days is not None else []),
    )


def expected(baseline: Baseline) -> tuple[Metric, ...]:
    """Return the metrics at the baseline's step time; none where it has no step time."""
    seconds = baseline.step_seconds
    return () if math.isnan(seconds) else (metric("step_time_seconds", seconds), *at_step_time(baseline, seconds))


def of_window(baseline: Baseline, steps: Steps, counted: Flags, seconds: float) -> tuple[Metric, ...]:
    """Return all metrics; `counted` is the window as a mask of shape (n,), `seconds` its statistic."""
    window = steps.seconds[counted]
    deviation = spread(window)
    return (
        metric("step_time_seconds", seconds, deviation),
        metric("step_time_mean_seconds", float(np.mean(window)), deviation),
        metric("step_time_trimmed_mean_seconds", trimmed_mean(window)),
        metric("step_time_cv", deviation / float(np.mean(window))),
        *at_step_time(baseline, seconds),
        *_logged("logged_tflops_per_gpu", steps.tflops_per_gpu[counted]),
        *_largest("peak_memory_bytes", steps.peak_memory_bytes),
    )


def of_checkpoints(log: ParsedLog) -> tuple[Metric, ...]:
    """Return the first save and load time that a log states; an asynchronous save states its dispatch only."""
    stated = (
        ("checkpoint_save_seconds", log.checkpoint_save_seconds),
        ("checkpoint_load_seconds", log.checkpoint_load_seconds),
    )
    return tuple(metric(name, value) for name, value in stated if value is not None)


def spread(values: Floats) -> float:
    """Return the sample standard deviation of values of shape (n,); 0 for a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _utilization(baseline: Baseline, seconds: float) -> tuple[Metric, ...]:
    if math.isnan(baseline.peak_tflops):
        return ()
    return (metric("mfu", derive.model_flops_utilization(baseline.configuration, seconds, baseline.peak_tflops)),)


def _logged(name: str, values: Floats) -> tuple[Metric, ...]:
    present = values[np.isfinite(values)]
    return (metric(name, float(np.mean(present)), spread(present)),) if len(present) else ()


def _largest(name: str, values: Floats) -> tuple[Metric, ...]:
    present = values[np.isfinite(values)]
    return (metric(name, float(np.max(present))),) if len(present) else ()
