"""GPU types: variants that share a name but differ in their peak are distinguished."""

from __future__ import annotations

import pytest

from pytest_llmbench.core.gpus import find_peak, read_gpu_type


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100pcie"),
        ("NVIDIA H100 NVL", "h100nvl"),
        ("h100-pcie", "h100pcie"),
        ("h100_nvl", "h100nvl"),
        ("NVIDIA A100 80GB PCIe", "a100"),  # has the peak of the SXM variant
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("mi300x", "mi300x"),
        ("NVIDIA", "gpu"),
    ],
)
def test_gpu_type_is_read_from_a_product_name(name: str, gpu: str) -> None:
    assert read_gpu_type(name) == gpu


@pytest.mark.parametrize(
    ("gpu", "dtype", "peak"),
    [
        ("h100", "bf16", 989),
        ("h100", "fp8", 1979),
        ("h100pcie", "bf16", 756),
        ("h100_pcie", "fp8_cs", 1513),
        ("gb200", "bf16", 2450),
        ("NVIDIA B200", "fp8_mx", 4500),
        ("gb300", "nvfp4", 14700),
        ("mi300x", "bf16", None),
        ("h100", "nvfp4", None),
    ],
)
def test_peak_flops_depend_on_gpu_variant_and_precision(
    gpu: str, dtype: str, peak: int | None
) -> None:
    assert find_peak(gpu, dtype) == peak
