"""One baseline of each family, by hand: these tests hold without the shipped baselines."""

from __future__ import annotations

import pytest

from pytest_llmbench.core.models import (
    Architecture,
    Baseline,
    BaselineKind,
    Configuration,
    Key,
    Parallelism,
    Source,
    Window,
)

GROK = Architecture("grok", 8192, 64, 6144, 128256, ffn_size=32768, attention_heads=48, query_groups=8, top_k=2)
LLAMA2 = Architecture("llama", 4096, 80, 8192, 32000, ffn_size=28672, attention_heads=64, query_groups=8)
LLAMA3 = Architecture("llama", 8192, 32, 4096, 128256, ffn_size=14336, attention_heads=32, query_groups=8)
NEMOTRON = Architecture("nemotron", 4096, 96, 18432, 256000)


def one(
    key: Key,
    architecture: Architecture,
    batch: int,
    seconds: float,
    dialect: str,
    *,
    parallelism: Parallelism | None = None,
    factor: float | None = None,
) -> Baseline:
    configuration = Configuration(key, architecture, parallelism or Parallelism(tp=4, pp=8), batch, 1, 16)
    return Baseline(
        configuration,
        kind=BaselineKind.PUBLISHED,
        step_seconds=seconds,
        cells=(),
        window=Window(11, 44),
        timed="last step",
        steps=50,
        dialect=dialect,
        peak_tflops=989.0,
        source=Source("by hand"),
        logged_tflops_factor=factor,
    )


@pytest.fixture
def families() -> dict[str, Baseline]:
    """One baseline of each release and dialect of the documents."""
    return {
        "grok1-24.11": one(Key("grok1", "314b", "24.11", "h100", "bf16", 8), GROK, 1024, 24.03, "nemo1"),
        "maxtext-24.11": one(
            Key("maxtext_llama2", "70b", "24.11", "h100", "bf16", 64),
            LLAMA2,
            128,
            6.999,
            "maxtext",
            parallelism=Parallelism(fsdp=64),
        ),
        "nemotron4-25.01": one(
            Key("nemotron4", "340b", "25.01", "h100", "fp8", 128),
            NEMOTRON,
            32,
            3.16,
            "nemo1",
            parallelism=Parallelism(tp=8, pp=8, vp=12),
        ),
        "llama3.1-25.04": one(Key("llama3.1", "8b", "25.04", "h100", "bf16", 8), LLAMA3, 128, 12.27, "nemo2"),
        "grok1-25.05": one(Key("grok1", "314b", "25.05", "gb200", "bf16", 256), GROK, 512, 7.39, "nemo2", factor=1.03),
    }
