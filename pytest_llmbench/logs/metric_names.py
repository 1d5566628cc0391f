"""The names under which frameworks keep metrics in event files of TensorBoard, in
tables and in JSON lines."""

from __future__ import annotations

from enum import StrEnum


class MetricKind(StrEnum):
    """What a value is."""

    STEP_SECONDS = "step-seconds"  # of one step
    INTERVAL_SECONDS = (
        "interval-seconds"  # the mean of the steps since the one before it
    )
    # The time since the one before it, or since a validation, divided by the steps of a
    # whole log interval.
    RESTARTED_SECONDS = "restarted-seconds"
    LOSS = "loss"
    GRAD_NORM = "grad-norm"
    TFLOPS = "tflops"  # of one GPU
    FLOPS = "flops"  # FLOP/s of one GPU
    TOKENS = "tokens"  # tokens per second of one GPU
    BATCH = "batch"  # samples of a step, of all GPUs
    LEARNING_RATE = "learning-rate"
    CONSUMED = "consumed"  # samples of the run so far
    SAMPLES = "samples"  # samples per second of all GPUs
    STEP_TOKENS = "step-tokens"  # tokens of a step
    TARGETS = "targets"  # those of them whose loss counts
    VALIDATION_LOSS = "validation-loss"  # of the validation that ended after this step


METRIC_NAMES = {
    # Megatron-LM and Megatron-Bridge
    "iteration-time": MetricKind.INTERVAL_SECONDS,
    "lm loss": MetricKind.LOSS,
    "lm loss validation": MetricKind.VALIDATION_LOSS,
    "grad-norm": MetricKind.GRAD_NORM,
    "throughput": MetricKind.TFLOPS,
    "throughput/tflops/device": MetricKind.TFLOPS,
    "batch-size": MetricKind.BATCH,
    "learning-rate": MetricKind.LEARNING_RATE,
    # MindFormers, beside the names of Megatron-LM
    "loss": MetricKind.LOSS,
    # torchtitan
    "time_metrics/end_to_end(s)": MetricKind.RESTARTED_SECONDS,
    "loss_metrics/global_avg_loss": MetricKind.LOSS,
    "validation_metrics/loss": MetricKind.VALIDATION_LOSS,
    "grad_norm": MetricKind.GRAD_NORM,
    "tflops": MetricKind.TFLOPS,
    "throughput(tps)": MetricKind.TOKENS,
    # GPT-NeoX
    "runtime/iteration_time": MetricKind.INTERVAL_SECONDS,
    "runtime/flops_per_sec_per_gpu": MetricKind.FLOPS,
    "runtime/samples_per_sec": MetricKind.SAMPLES,
    "train/lm_loss": MetricKind.LOSS,
    "train/learning_rate": MetricKind.LEARNING_RATE,
    "validation/lm_loss": MetricKind.VALIDATION_LOSS,
    # MaxText
    "perf/step_time_seconds": MetricKind.STEP_SECONDS,
    "perf/per_device_tflops_per_sec": MetricKind.TFLOPS,
    "perf/per_device_tokens_per_sec": MetricKind.TOKENS,
    "perf/per_device_tokens": MetricKind.STEP_TOKENS,
    "learning/total_weights": MetricKind.TARGETS,
    "learning/current_learning_rate": MetricKind.LEARNING_RATE,
    "learning/loss": MetricKind.LOSS,
    "learning/grad_norm": MetricKind.GRAD_NORM,
    "eval/avg_loss": MetricKind.VALIDATION_LOSS,
    # NeMo, Lightning
    "train_step_timing in s": MetricKind.STEP_SECONDS,
    "reduced_train_loss": MetricKind.LOSS,
    "val_loss": MetricKind.VALIDATION_LOSS,
    "TFLOPS_per_GPU": MetricKind.TFLOPS,
    "lr": MetricKind.LEARNING_RATE,
    "consumed_samples": MetricKind.CONSUMED,
    "global_batch_size": MetricKind.BATCH,
}

_TIMES = (
    MetricKind.STEP_SECONDS,
    MetricKind.INTERVAL_SECONDS,
    MetricKind.RESTARTED_SECONDS,
)
STEP_TIMES = tuple(name for name, kind in METRIC_NAMES.items() if kind in _TIMES)
"""Without one of them a file says no step time."""
