"""What follows from a step time: throughput, model FLOPs utilization, TFLOP/s and days to train."""

from __future__ import annotations

from pytest_llmbench.core.flops import model_flops
from pytest_llmbench.core.models import Configuration

SECONDS_PER_DAY = 86400
TOKENS = 1e12


def tokens_per_second(configuration: Configuration, step_seconds: float) -> float:
    """Return tokens per second of the whole run: sequence length x global batch size / step time in seconds."""
    return configuration.architecture.sequence_length * configuration.global_batch_size / step_seconds


def tflops_per_gpu(configuration: Configuration, step_seconds: float) -> float:
    """Return model TFLOP/s per GPU: global batch size x model FLOPs / step time in seconds / GPUs / 1e12."""
    flops = configuration.global_batch_size * model_flops(configuration.architecture)
    return flops / step_seconds / configuration.key.gpus / 1e12


def model_flops_utilization(configuration: Configuration, step_seconds: float, peak_tflops: float) -> float:
    """Return MFU as a fraction (0.4759 is printed as 47.59 %) of the peak TFLOP/s of one GPU at this precision."""
    return tflops_per_gpu(configuration, step_seconds) / peak_tflops


def days_to_1t_tokens(configuration: Configuration, step_seconds: float) -> float | None:
    """Return days to train on 1e12 tokens; None for a proxy, which is not the model (the documents print NA)."""
    if configuration.proxy:
        return None
    return TOKENS / tokens_per_second(configuration, step_seconds) / SECONDS_PER_DAY
