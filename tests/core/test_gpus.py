"""GPU types: variants that share a name but differ in their peak are distinguished."""

from __future__ import annotations

import pytest

from pytest_llmbench.core.gpus import (
    BY_NAME,
    GPU_TYPES,
    NOMINAL_MEMORIES,
    find_gpu_type,
    find_largest_memory,
    find_other_gpu,
    find_peak,
    list_peaks,
    read_gpu_type,
    round_memory,
)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100pcie"),
        ("NVIDIA H100 NVL", "h100nvl"),
        ("NVIDIA H200 NVL", "h200nvl"),
        ("h100-pcie", "h100pcie"),
        ("h100_nvl", "h100nvl"),
        ("h100nvl", "h100nvl"),
        ("NVIDIA H800 PCIe", "h800pcie"),
        ("NVIDIA A100 80GB PCIe", "a100"),  # has the peak of the SXM variant
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA H20-3e", "h20"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtxpro6000maxq"),
        ("NVIDIA L20X", "l20x"),  # no L20
        ("mi300x", "mi300x"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("amd_instinct_mi300x_oam", "mi300x"),
        ("AMD Instinct MI250X / MI250", "mi250x"),
        ("mi250", "mi250x"),
        ("amdinstinctmi300x", "mi300x"),
        ("rtxpro6000blackwellserveredition", "rtxpro6000"),
        ("Tesla A40", "a40"),
        ("Tesla V100S-PCIE-32GB", "v100s"),
        ("gpu:l40", "l40"),
        ("AMD Instinct MI355X", "mi355x"),
        ("TPU v4", "tpuv4"),
        ("TPU v4 lite", "tpuv4lite"),  # made for inference
        ("TPU v5 lite", "tpuv5e"),
        ("v5litepod-16", "tpuv5e"),
        ("TPU v5", "tpuv5p"),
        ("v5p-128", "tpuv5p"),
        ("TPU v6 lite", "tpuv6e"),
        ("TPU7x", "tpu7x"),
        ("Ironwood", "tpu7x"),
        ("trn2.48xlarge", "trn2"),
        ("Trainium3", "trn3"),
        ("GAUDI2", "gaudi2"),
        ("HL-325L", "gaudi3"),
        ("Ascend910B2", "ascend910b"),
        ("910B4", "ascend910b"),
        ("Ascend910_9391", "ascend9109391"),  # the next generation
        ("NVIDIA", "gpu"),
    ],
)
def test_gpu_type_is_read_from_a_product_name(name: str, gpu: str) -> None:
    assert read_gpu_type(name) == gpu


@pytest.mark.parametrize("name", ["NVIDIA RTX A6000", "NVIDIA", "", "ctx 100", "v4"])
def test_other_names_have_no_type(name: str) -> None:
    assert find_gpu_type(name) == ""


@pytest.mark.parametrize("gpu", GPU_TYPES, ids=lambda gpu: gpu.name)
def test_each_type_is_found_by_its_name_and_its_title(gpu: object) -> None:
    assert isinstance(gpu, type(GPU_TYPES[0]))
    assert find_gpu_type(gpu.name) == gpu.name
    title = gpu.title.removesuffix(" SXM").partition(",")[0]
    assert find_gpu_type(title) == gpu.name
    assert find_gpu_type(f"gpu:{gpu.name}:8") == gpu.name
    assert all(peak.tflops > 0 for peaks in gpu.peaks.values() for peak in peaks)
    assert list(gpu.peaks) == [
        name for name in ("bf16", "fp8", "fp4") if name in gpu.peaks
    ]
    first_peaks = [peaks[0].tflops for peaks in gpu.peaks.values()]
    assert first_peaks == sorted(first_peaks)


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
        ("mi355x", "mxfp4", 10100),
        ("mi300x", "bf16", 1307.4),
        ("h100", "nvfp4", None),
        ("h100", "fp16", None),
        ("cpu", "bf16", None),
        # two devices on one chip
        ("mi250x", "bf16", 191.5),
        ("trn2", "bf16", 166.75),
        ("tpu7x", "fp8", 2307),
    ],
)
def test_peak_flops_depend_on_gpu_variant_and_precision(
    gpu: str, dtype: str, peak: float | None
) -> None:
    assert find_peak(gpu, dtype) == peak


def test_all_sources_of_a_peak_are_known() -> None:
    """NVIDIA's recipes and NVIDIA's brief differ by 2 %."""
    assert [peak.tflops for peak in list_peaks("gb200", "bf16")] == [2450, 2500, 2500]
    assert len({peak.source for peak in list_peaks("gb200", "bf16")}) == 3
    assert list_peaks("a10", "bf16") == ()


@pytest.mark.parametrize(
    ("gpu", "tflops", "other"),
    [
        ("h100", 756, "h100pcie"),
        ("h100pcie", 989, "h100"),
        ("h100nvl", 756, "h100pcie"),  # near, but of the same chip
        ("b200", 2500, ""),  # in use
        ("b200", 989, "h100"),
        ("h100", 1000, ""),  # near its own
        ("gb200", 2565, ""),
        ("gb200", 2250, ""),  # of B200, but sources differ by as much
        ("h100", 123, ""),  # of no type
        ("a10", 989, ""),  # unknown
        ("h100", float("nan"), ""),
    ],
)
def test_peak_of_another_type_is_found(gpu: str, tflops: float, other: str) -> None:
    assert find_other_gpu(gpu, "bf16", tflops) == other


@pytest.mark.parametrize(
    ("gibibytes", "nominal"),
    [
        (39.39, 40),  # A100
        (44.53, 48),  # L40S
        (63.98, 64),  # one device of MI250X
        (79.1, 80),  # H100
        (93.58, 96),  # H100 NVL
        (95.6, 96),  # RTX PRO 6000
        (128.0, 128),  # Gaudi 3
        (139.8, 141),  # H200
        (142.5, 144),  # GH200
        (179.06, 192),  # B200
        (191.98, 192),  # MI300X
        (255.98, 256),  # MI325X
        (268.6, 288),  # B300
        (277.5, 288),  # GB300
        (287.98, 288),  # MI355X
    ],
)
def test_memory_is_named_as_vendors_name_it(gibibytes: float, nominal: int) -> None:
    assert round_memory(gibibytes) == nominal


def test_largest_memory_is_a_nominal_size() -> None:
    largest = {gpu: find_largest_memory(gpu) for gpu in BY_NAME}
    assert set(largest.values()) <= set(NOMINAL_MEMORIES)
    assert (largest["h100"], largest["a100"], largest["gb200"]) == (96, 80, 192)
    assert largest["gh200"] == 144
    assert find_largest_memory("a10") is None
