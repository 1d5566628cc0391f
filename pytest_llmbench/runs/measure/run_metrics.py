"""The metrics of a run, over a window and by its step time; and of several
configurations the weak scaling."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline, Configuration, Key
from pytest_llmbench.core.log_records import (
    CheckpointAction,
    CheckpointRecord,
    Checkpoints,
)
from pytest_llmbench.core.metric_definitions import (
    BUDGETED,
    METRICS,
    STEP_TIME,
    Statistic,
    is_logged,
)
from pytest_llmbench.core.robust import compute_mean, compute_trimmed_mean
from pytest_llmbench.core.run_records import Measurement, Metric
from pytest_llmbench.runs.measure.window import Timing

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats


# Logs print one or two decimals of TFLOP/s: below this their rounding would look like
# other work.
PRECISE = 10


def make_metric(
    name: str, value: float, standard_deviation: float | None = None
) -> Metric:
    """Return a metric with its unit and direction."""
    definition = METRICS[name]
    return Metric(
        name, value, standard_deviation, definition.unit, definition.larger_is_better
    )


def derive_metrics(baseline: Baseline, seconds: float) -> tuple[Metric, ...]:
    """Return the metrics that have a value at a step time, itself the first.

    Nothing from a step time that is NaN: a baseline that nothing has timed.
    """
    if math.isnan(seconds):
        return ()
    formulas = (
        (name, definition.formula)
        for name, definition in METRICS.items()
        if definition.formula
    )
    values = ((name, formula(baseline, seconds)) for name, formula in formulas)
    return tuple(
        make_metric(name, value) for name, value in values if value is not None
    )


def expect_metrics(baseline: Baseline) -> tuple[Metric, ...]:
    """Return the metrics at the baseline's step time; none where it has no step
    time."""
    return derive_metrics(baseline, baseline.step_seconds)


def compute_window_metrics(
    baseline: Baseline, timed: Timing, seconds: float
) -> tuple[Metric, ...]:
    """Return all metrics; `seconds` is the statistic of the window.

    A standard deviation is that of the printed times: of means, where the log prints
    means of several steps.
    """
    counted = timed.window
    window, steps = counted.seconds, counted.mean_of.tolist()
    deviation, middle = compute_spread(window), compute_mean(window, steps)
    # What a log prints itself is not computed a second time.
    printed = {metric.name: metric for metric in _take_printed(timed)}
    return (
        make_metric(STEP_TIME, seconds, deviation),
        make_metric("step_time_mean_seconds", middle, deviation),
        make_metric(
            "step_time_trimmed_mean_seconds", compute_trimmed_mean(window, steps)
        ),
        make_metric("step_time_cv", deviation / middle),
        *(
            metric
            for metric in derive_metrics(baseline, seconds)
            if metric.name not in (STEP_TIME, *printed)
        ),
        *printed.values(),
    )


def with_logged_work(measurement: Measurement) -> Baseline:
    """Return the baseline of a run with the work of a step that its log counts, where
    no formula does."""
    baseline, window = measurement.baseline, np.array(measurement.window_seconds)
    logged = next(
        (
            metric.value
            for metric in measurement.metrics
            if metric.name == "logged_tflops_per_gpu"
        ),
        None,
    )
    if not (
        is_logged(baseline.configuration)
        and logged
        and logged >= PRECISE
        and len(window)
    ):
        return baseline
    seconds = compute_trimmed_mean(
        window, measurement.mean_of
    )  # later runs are judged by it
    # Four digits, as most logs print of TFLOP/s.
    configuration = replace(
        baseline.configuration, logged_tflop=float(f"{logged * seconds:.4g}")
    )
    return replace(baseline, configuration=configuration)


def compute_checkpoint_metrics(checkpoints: Checkpoints) -> tuple[Metric, ...]:
    """Return the mean of the save and load times that a log states, and the number of
    saves. The time after which training went on, while the save did too, is a metric of
    its own."""
    stated: dict[str, list[float]] = defaultdict(list)
    for record in checkpoints.records:
        if record.seconds is not None:
            stated[choose_budgeted(record)].append(record.seconds)
    means = (
        make_metric(
            name, float(np.mean(stated[name])), compute_spread(np.array(stated[name]))
        )
        for name in BUDGETED
        if stated[name]
    )
    saves = Counter(
        (record.rank, record.seconds is None)
        for record in checkpoints.records
        if record.action == CheckpointAction.SAVE
    )
    count = (make_metric("checkpoint_saves", max(saves.values())),) if saves else ()
    return (*means, *count)


def choose_budgeted(record: CheckpointRecord) -> str:
    """Return the name of the metric that a record's time is a value of."""
    if record.action == CheckpointAction.LOAD:
        return "checkpoint_load_seconds"
    return (
        "checkpoint_save_dispatch_seconds"
        if record.dispatched
        else "checkpoint_save_seconds"
    )


def compute_spread(values: Floats) -> float:
    """Return the sample standard deviation of values of shape (n,); 0 for a single
    one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _take_printed(timed: Timing) -> Iterator[Metric]:
    """Yield the metrics that a log prints itself."""
    for name, definition in METRICS.items():
        if definition.printed is None:
            continue
        column, statistic = definition.printed
        of_window = statistic is Statistic.MEAN_OF_WINDOW
        values: Floats = (
            getattr(timed.window, column)
            if of_window
            else getattr(timed.steps, column)[timed.usable]
        )
        present = values[np.isfinite(values)]
        if not len(present):
            continue
        if of_window:
            yield make_metric(name, float(np.mean(present)), compute_spread(present))
        else:
            yield make_metric(name, float(np.max(present)))


# --- weak scaling and FP8: which configurations are compared --------------------------


def group_families(
    configurations: Sequence[Configuration],
) -> tuple[tuple[Configuration, ...], ...]:
    """Group configurations that differ in size only: equal layers, sequence length, MBS
    and GBS per GPU; no proxies."""
    groups: dict[tuple[object, ...], list[Configuration]] = defaultdict(list)
    for configuration in configurations:
        if not configuration.proxy and _states_work(configuration):
            groups[_describe_family(configuration)].append(configuration)
    ordered = (
        sorted(group, key=lambda member: member.key.gpus) for group in groups.values()
    )
    return tuple(tuple(group) for group in ordered if len(group) > 1)


def find_pairs(
    configurations: Sequence[Configuration],
) -> tuple[tuple[Configuration, Configuration], ...]:
    """Return (BF16, FP8) of configurations that differ in precision only: equal model,
    sequence length, layers and GBS.

    MBS, gradient accumulation and parallelism may differ: they are how the same work is
    done.
    """
    by_key = {configuration.key: configuration for configuration in configurations}
    bf16 = [
        configuration
        for configuration in configurations
        if configuration.key.dtype == "bf16"
    ]
    both = (
        (configuration, by_key.get(replace(configuration.key, dtype="fp8")))
        for configuration in bf16
    )
    return tuple(
        (configuration, other)
        for configuration, other in both
        if other is not None
        and _states_work(other)
        and _work(configuration) == _work(other)
    )


def compute_efficiency(
    family: Sequence[Key], seconds: Mapping[Key, float]
) -> dict[Key, float]:
    """Return tokens/s/GPU over that of the family's smallest size, for step times in
    seconds by key.

    Within a family the work per GPU is the same, so this is the ratio of step times;
    empty without the smallest size.
    """
    reference = seconds.get(min(family, key=lambda member: member.gpus))
    return (
        {key: reference / seconds[key] for key in family if key in seconds}
        if reference
        else {}
    )


def _states_work(configuration: Configuration) -> bool:
    """Whether it is known what a configuration does in a step: of two that say nothing,
    nothing is equal."""
    architecture = configuration.architecture
    sizes = (configuration.key.gpus, architecture.layers, architecture.sequence_length)
    return bool(all(sizes) and configuration.global_batch_size)


def _work(configuration: Configuration) -> tuple[object, ...]:
    return (
        configuration.architecture,
        configuration.global_batch_size,
        configuration.proxy,
    )


def _describe_family(configuration: Configuration) -> tuple[object, ...]:
    key = configuration.key
    return (
        (
            key.recipe,
            key.size,
            key.release,
            key.gpu,
            key.dtype,
            key.task,
            key.scaling,
            key.variant,
        ),
        configuration.architecture,
        configuration.micro_batch_size,
        configuration.global_batch_size / key.gpus,
    )
