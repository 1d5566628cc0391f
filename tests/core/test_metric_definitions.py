"""Metrics and FLOPs formulas, compared with the examples and constants of the
documents."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from pytest_llmbench.core import metric_definitions as metrics
from pytest_llmbench.core.baseline_records import (
    Architecture,
    Configuration,
    Key,
    Parallelism,
)
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.flops import count_flops_per_token, count_model_flops


def llama(gpus: int, batch: int, *, proxy: bool = False) -> Configuration:
    return Configuration(
        Key("llama3.1", "8b", "25.04", "h100", "fp8", gpus),
        Architecture(
            "llama:3",
            8192,
            32,
            4096,
            128256,
            ffn_size=14336,
            attention_heads=32,
            query_groups=8,
        ),
        Parallelism(),
        batch,
        proxy=proxy,
    )


def test_metrics_reproduce_the_llama_document() -> None:
    """8 H100, GBS 128, 12.39 s: 84631 tokens/s, 136.76 days, 30.93 %."""
    configuration = llama(8, 128)
    days = metrics.compute_days_to_1t_tokens(configuration, 12.39)
    assert f"{metrics.compute_tokens_per_second(configuration, 12.39):.0f}" == "84631"
    assert days is not None
    assert f"{days:.2f}" == "136.76"
    assert (
        f"{metrics.compute_model_flops_utilization(configuration, 12.39, 1979):.2%}"
        == "30.93%"
    )


def test_tflops_are_per_gpu() -> None:
    assert metrics.compute_tflops_per_gpu(llama(8, 128), 12.39) == pytest.approx(
        128 * 474 / 12.39 / 8
    )


def test_no_days_to_1t_tokens_for_a_proxy_model() -> None:
    assert metrics.compute_days_to_1t_tokens(llama(8, 128, proxy=True), 12.39) is None


@pytest.mark.slow
@given(
    seconds=st.floats(0.001, 1e4),
    factor=st.sampled_from([2, 4, 16]),
    gpus=st.sampled_from([8, 64, 2048]),
)
def test_throughput_scales_with_gpus_and_time(
    seconds: float, factor: int, gpus: int
) -> None:
    """Twice the GPUs with twice the batch: twice the throughput, the same utilization.

    Twice the time: half of both.
    """
    small, large = llama(gpus, 128), llama(gpus * factor, 128 * factor)

    def same(first: float, second: float) -> bool:
        return math.isclose(first, second, rel_tol=1e-12)

    assert same(
        metrics.compute_tokens_per_second(large, seconds),
        factor * metrics.compute_tokens_per_second(small, seconds),
    )
    assert same(
        metrics.compute_model_flops_utilization(large, seconds, 989),
        metrics.compute_model_flops_utilization(small, seconds, 989),
    )
    assert same(
        metrics.compute_model_flops_utilization(small, seconds, 989),
        metrics.compute_tflops_per_gpu(small, seconds * factor) * factor / 989,
    )


GROK = Architecture(
    "grok",
    8192,
    64,
    6144,
    128256,
    ffn_size=32768,
    attention_heads=48,
    query_groups=8,
    top_k=2,
)
LLAMA_8B = Architecture(
    "llama", 8192, 32, 4096, 128256, ffn_size=14336, attention_heads=32, query_groups=8
)
LLAMA_70B = Architecture(
    "llama", 8192, 80, 8192, 128256, ffn_size=28672, attention_heads=64, query_groups=8
)
LLAMA2_70B = replace(LLAMA_70B, sequence_length=4096, vocabulary_size=32000)
NEMOTRON = Architecture("nemotron", 4096, 96, 18432, 256000)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        pytest.param(
            GROK, (53_150_220_288, 463_856_467_968, 4_728_029_184), id="grok1"
        ),
        pytest.param(
            LLAMA_8B, (20_937_965_568, 33_822_867_456, 3_152_019_456), id="llama3.1-8b"
        ),
        pytest.param(
            LLAMA_70B,
            (136_902_082_560, 338_228_674_560, 6_304_038_912),
            id="llama3.1-70b",
        ),
        pytest.param(
            LLAMA2_70B,
            (104_689_827_840, 338_228_674_560, 1_572_864_000),
            id="maxtext-llama2-70b",
        ),
        pytest.param(
            NEMOTRON,
            (869_730_877_440, 1_565_515_579_392, 28_311_552_000),
            id="nemotron4",
        ),
    ],
)
def test_flops_components_match_the_documents(
    architecture: Architecture, expected: tuple[int, ...]
) -> None:
    assert tuple(count_flops_per_token(architecture)) == expected


@pytest.mark.parametrize(
    ("architecture", "stated"),
    [
        (GROK, "4.27E+15"),
        (LLAMA_8B, "4.74E+14"),
        (LLAMA_70B, "3.94E+15"),
        (LLAMA2_70B, "1.82E+15"),
        (NEMOTRON, "1.01e16"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.formula,
)
def test_documented_flops_are_rounded_to_three_digits(
    architecture: Architecture, stated: str
) -> None:
    rounded = replace(architecture, formula=f"{architecture.formula}:3")
    assert count_model_flops(rounded) == float(stated)
    assert count_model_flops(architecture) == pytest.approx(float(stated), rel=5e-3)
    assert count_model_flops(architecture) != float(stated)


def test_flops_of_a_proxy_model_follow_from_its_own_layers_and_sequence_length() -> (
    None
):
    """The smallest Grok 1 proxy: 45.4 % of 8 H100 at 24.03 s."""
    proxy = replace(GROK, sequence_length=4096, layers=2)
    assert f"{1024 * count_model_flops(proxy) / 24.03 / 8 / 989e12:.1%}" == "45.4%"


QWEN = Architecture(
    "moe",
    4096,
    48,
    2048,
    151936,
    attention_heads=32,
    query_groups=4,
    head_size=128,
    top_k=8,
)
GPT_OSS = Architecture(
    "moe",
    4096,
    36,
    2880,
    201088,
    attention_heads=64,
    query_groups=8,
    head_size=64,
    top_k=4,
)
DEEPSEEK = Architecture(
    *("mla", 4096, 61, 7168, 129280, 18432, 128),
    top_k=8,
    expert_ffn_size=2048,
    shared_ffn_size=2048,
    dense_layers=3,
    q_rank=1536,
    kv_rank=512,
    qk_head_size=128,
    rope_size=64,
    v_head_size=128,
)
NANO = Architecture(
    *("hybrid", 8192, 52, 2688, 131072, None, 32, 2),
    head_size=128,
    mlp_matrices=2,
    attention_layers=6,
    expert_layers=23,
    expert_ffn_size=1856,
    top_k=6,
    shared_ffn_size=3712,
    mamba_state_size=128,
    mamba_groups=8,
    mamba_heads=64,
)


@pytest.mark.parametrize(
    ("architecture", "gflop"),
    [
        (replace(LLAMA_8B, formula="dense"), 51.470),
        (replace(LLAMA_70B, formula="dense", sequence_length=4096), 433.12),
        (replace(QWEN, expert_ffn_size=768), 23.006),
        (
            replace(
                GPT_OSS, expert_ffn_size=2880, mlp_matrices=2, sequence_length=8192
            ),
            30.788,
        ),
        (DEEPSEEK, 249.81),
        (replace(DEEPSEEK, mtp_layers=1), 259.99),
        (
            replace(
                DEEPSEEK, attention_heads=64, dense_layers=1, vocabulary_size=163840
            ),
            204.477,
        ),
        (NANO, 22.3),
    ],
)
def test_flops_per_token_match_the_tables(
    architecture: Architecture, gflop: float
) -> None:
    """GFLOP per token = TFLOP/s x step time x GPUs / tokens per step in
    Megatron-Bridge's tables."""
    decimals = len(str(gflop).partition(".")[2])
    assert round(sum(count_flops_per_token(architecture)) / 1e9, decimals) == gflop


def test_expert_latent_size_reduces_flops() -> None:
    fewer = sum(count_flops_per_token(NANO)) - sum(
        count_flops_per_token(replace(NANO, expert_latent_size=1024))
    )
    assert fewer == 23 * 12 * ((2688 - 1024) * 1856 * 6 - 2688 * 1024)


def test_hybrid_flops_formula_refuses_too_many_layers() -> None:
    with pytest.raises(BaselineError, match="expected at most the 20 layers"):
        count_model_flops(replace(NANO, layers=20))


def test_unknown_formula_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        BaselineError, match=r"found 'lama', expected .*did you mean 'llama'"
    ):
        count_model_flops(replace(LLAMA_8B, formula="lama"))


@pytest.mark.parametrize(
    "name", ["ffn_size", "attention_heads", "query_groups", "top_k"]
)
def test_flops_formula_names_the_missing_model_size(name: str) -> None:
    with pytest.raises(BaselineError, match=f"needs {name}"):
        count_model_flops(Architecture(**{**asdict(GROK), name: None}))
