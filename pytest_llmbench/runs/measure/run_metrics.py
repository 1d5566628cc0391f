"""Compute the metrics of a run, and the weak scaling of several configurations."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

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
    uses_logged_flops,
)
from pytest_llmbench.core.robust import compute_mean, compute_trimmed_mean
from pytest_llmbench.core.run_records import Measurement, Metric
from pytest_llmbench.runs.measure.window import Timing

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats


# Logs print TFLOP/s with one or two decimals: below this value their rounding would
# look like a change of work.
ENOUGH_TFLOPS = 10


def make_metric(
    name: str, value: float, standard_deviation: float | None = None
) -> Metric:
    """Make a metric with its unit and direction."""
    definition = METRICS[name]
    return Metric(
        name, value, standard_deviation, definition.unit, definition.larger_is_better
    )


def derive_metrics(baseline: Baseline, seconds: float) -> tuple[Metric, ...]:
    """Compute the metrics that follow from a step time, the step time first.

    Empty if `seconds` is NaN, as for a baseline without a step time.
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
    """Compute the metrics at the baseline's step time; empty if it has none."""
    return derive_metrics(baseline, baseline.step_seconds)


def compute_window_metrics(
    baseline: Baseline, timing: Timing, seconds: float
) -> tuple[Metric, ...]:
    """Compute all metrics of a window; `seconds` is its statistic.

    Standard deviations are those of the printed times, which may be means of several
    steps.
    """
    seconds_per_time = timing.window.seconds
    mean_of = timing.window.mean_of.tolist()
    deviation = compute_spread(seconds_per_time)
    mean = compute_mean(seconds_per_time, mean_of)
    trimmed_mean = compute_trimmed_mean(seconds_per_time, mean_of)
    # Metrics that the log prints are not computed.
    printed = {metric.name: metric for metric in _list_printed_metrics(timing)}
    return (
        make_metric(STEP_TIME, seconds, deviation),
        make_metric("step_time_mean_seconds", mean, deviation),
        make_metric("step_time_trimmed_mean_seconds", trimmed_mean),
        make_metric("step_time_cv", deviation / mean),
        *(
            metric
            for metric in derive_metrics(baseline, seconds)
            if metric.name not in (STEP_TIME, *printed)
        ),
        *printed.values(),
    )


def add_logged_work(measurement: Measurement) -> Baseline:
    """Return the run's baseline with the TFLOP per step that the log implies.

    The baseline is unchanged if the model has a FLOPs formula, or if the logged TFLOP/s
    are missing or too small.
    """
    baseline, window = measurement.baseline, np.array(measurement.window_seconds)
    logged = next(
        (
            metric.value
            for metric in measurement.metrics
            if metric.name == "logged_tflops_per_gpu"
        ),
        None,
    )
    if not uses_logged_flops(baseline.configuration) or not len(window):
        return baseline
    if not logged or logged < ENOUGH_TFLOPS:
        return baseline
    # later runs are judged by the trimmed mean
    seconds = compute_trimmed_mean(window, measurement.mean_of)
    # Four digits, like TFLOP/s in most logs.
    work = float(f"{logged * seconds:.4g}")
    configuration = replace(baseline.configuration, logged_tflop=work)
    return replace(baseline, configuration=configuration)


def compute_checkpoint_metrics(checkpoints: Checkpoints) -> tuple[Metric, ...]:
    """Compute the mean save and load times that a log prints, and the number of saves.

    The time of a save until training continues is a separate metric.
    """
    seconds_by_metric: dict[str, list[float]] = defaultdict(list)
    for record in checkpoints.records:
        if record.seconds is not None:
            seconds_by_metric[get_checkpoint_metric(record)].append(record.seconds)
    metrics: list[Metric] = []
    for name in BUDGETED:
        seconds = np.array(seconds_by_metric[name])
        if len(seconds):
            mean = float(np.mean(seconds))
            metrics.append(make_metric(name, mean, compute_spread(seconds)))
    # Several ranks may print a save, and each may print it with and without its time.
    saves = Counter(
        (record.rank, record.seconds is None)
        for record in checkpoints.records
        if record.action == CheckpointAction.SAVE
    )
    if saves:
        metrics.append(make_metric("checkpoint_saves", max(saves.values())))
    return tuple(metrics)


def get_checkpoint_metric(record: CheckpointRecord) -> str:
    """Return the name of the metric that a record's time belongs to."""
    if record.action == CheckpointAction.LOAD:
        return "checkpoint_load_seconds"
    if record.dispatched:
        return "checkpoint_save_dispatch_seconds"
    return "checkpoint_save_seconds"


def compute_spread(values: Floats) -> float:
    """Return the sample standard deviation of values of shape (n,); 0 for one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _list_printed_metrics(timing: Timing) -> Iterator[Metric]:
    """Yield the metrics that the log prints."""
    for name, definition in METRICS.items():
        if definition.printed is None:
            continue
        column, statistic = definition.printed
        is_window_mean = statistic is Statistic.MEAN_OF_WINDOW
        values: Floats
        if is_window_mean:
            values = getattr(timing.window, column)
        else:  # the maximum over the run
            values = getattr(timing.steps, column)[timing.usable]
        finite = values[np.isfinite(values)]
        if not len(finite):
            continue
        if is_window_mean:
            yield make_metric(name, float(np.mean(finite)), compute_spread(finite))
        else:
            yield make_metric(name, float(np.max(finite)))


# --- weak scaling and FP8: configurations to compare ----------------------------------


def group_families(
    configurations: Sequence[Configuration],
) -> tuple[tuple[Configuration, ...], ...]:
    """Group configurations that differ in their number of GPUs only.

    They have equal layers, sequence length, MBS and GBS per GPU. Proxies, which have
    fewer layers or shorter sequences than the real model, are excluded.
    """
    families: dict[tuple[object, ...], list[Configuration]] = defaultdict(list)
    for configuration in configurations:
        if not configuration.proxy and _has_known_work(configuration):
            families[_describe_family(configuration)].append(configuration)
    return tuple(
        tuple(sorted(family, key=lambda member: member.key.gpus))
        for family in families.values()
        if len(family) > 1
    )


def find_pairs(
    configurations: Sequence[Configuration],
) -> tuple[tuple[Configuration, Configuration], ...]:
    """Return (BF16, FP8) pairs of configurations that differ in precision only.

    Model, sequence length, layers and GBS are equal. MBS, gradient accumulation and
    parallelism may differ: they do not change the work.
    """
    by_key = {configuration.key: configuration for configuration in configurations}
    bf16 = [
        configuration
        for configuration in configurations
        if configuration.key.dtype == "bf16"
    ]
    pairs = []
    for configuration in bf16:
        fp8 = by_key.get(replace(configuration.key, dtype="fp8"))
        if fp8 is None or not _has_known_work(fp8):
            continue
        if _get_work(configuration) == _get_work(fp8):
            pairs.append((configuration, fp8))
    return tuple(pairs)


def compute_efficiency(
    family: Sequence[Key], seconds: Mapping[Key, float]
) -> dict[Key, float]:
    """Return tokens/s/GPU relative to the family's smallest size, by key.

    Equals the ratio of step times, because the work per GPU is the same. Empty if the
    smallest size has no step time.
    """
    smallest = min(family, key=lambda member: member.gpus)
    reference = seconds.get(smallest)
    if not reference:
        return {}
    return {key: reference / seconds[key] for key in family if key in seconds}


def _has_known_work(configuration: Configuration) -> bool:
    """True if the work of a step is known: unknown sizes never compare equal."""
    architecture = configuration.architecture
    sizes = (configuration.key.gpus, architecture.layers, architecture.sequence_length)
    return bool(all(sizes) and configuration.global_batch_size)


def _get_work(configuration: Configuration) -> tuple[object, ...]:
    """Return the facts that determine the work of a step."""
    return (
        configuration.architecture,
        configuration.global_batch_size,
        configuration.proxy,
    )


def _describe_family(configuration: Configuration) -> tuple[object, ...]:
    """Return the facts that all members of a weak-scaling family share."""
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
