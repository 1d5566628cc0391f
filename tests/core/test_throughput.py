"""What follows from a step time, against the documents' own examples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core import throughput
from pytest_llmbench.core.models import Architecture, Configuration, Key, Parallelism


def llama(gpus: int, batch: int, *, proxy: bool = False) -> Configuration:
    return Configuration(
        Key("llama3.1", "8b", "25.04", "h100", "fp8", gpus),
        Architecture("llama:3", 8192, 32, 4096, 128256, ffn_size=14336, attention_heads=32, query_groups=8),
        Parallelism(),
        batch,
        proxy=proxy,
    )


def test_the_example_of_the_llama_document() -> None:
    """8 H100, GBS 128, 12.39 s: 84631 tokens/s, 136.76 days, 30.93 %."""
    configuration = llama(8, 128)
    days = throughput.days_to_1t_tokens(configuration, 12.39)
    assert f"{throughput.tokens_per_second(configuration, 12.39):.0f}" == "84631"
    assert days is not None
    assert f"{days:.2f}" == "136.76"
    assert f"{throughput.model_flops_utilization(configuration, 12.39, 1979):.2%}" == "30.93%"


def test_tflops_are_of_one_gpu() -> None:
    assert throughput.tflops_per_gpu(llama(8, 128), 12.39) == pytest.approx(128 * 474 / 12.39 / 8)


def test_a_proxy_has_no_days_to_train() -> None:
    assert throughput.days_to_1t_tokens(llama(8, 128, proxy=True), 12.39) is None


@given(
    seconds=st.floats(0.001, 1e4),
    factor=st.sampled_from([2, 4, 16]),
    gpus=st.sampled_from([8, 64, 2048]),
)
def test_units_cancel(seconds: float, factor: int, gpus: int) -> None:
    """Twice the GPUs with twice the batch: twice the throughput, the same utilization. Twice the time: half of both."""
    small, large = llama(gpus, 128), llama(gpus * factor, 128 * factor)

    def same(one: float, other: float) -> bool:
        return math.isclose(one, other, rel_tol=1e-12)

    assert same(throughput.tokens_per_second(large, seconds), factor * throughput.tokens_per_second(small, seconds))
    assert same(
        throughput.model_flops_utilization(large, seconds, 989), throughput.model_flops_utilization(small, seconds, 989)
    )
    assert same(
        throughput.model_flops_utilization(small, seconds, 989),
        throughput.tflops_per_gpu(small, seconds * factor) * factor / 989,
    )
