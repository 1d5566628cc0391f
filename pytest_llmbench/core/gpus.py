"""GPU types: their names, peaks and memory sizes."""

from __future__ import annotations

import re

from pytest_llmbench.core.patterns import compile_on_use

PEAK_TFLOPS = {
    "h100": {"bf16": 989, "fp8": 1979},
    "h100pcie": {"bf16": 756, "fp8": 1513},
    "h100nvl": {"bf16": 835, "fp8": 1671},
    "h200": {"bf16": 989, "fp8": 1979},
    "h200nvl": {"bf16": 835, "fp8": 1671},
}
"""Dense TFLOP/s of one GPU by precision; docs/explanation/flops.md lists the sources.

`h100` and `h200` are the SXM variants.
"""

BLACKWELL = {
    "b200": {"bf16": 2250, "fp8": 4500, "nvfp4": 9000},
    "b300": {"bf16": 2250, "fp8": 4500, "nvfp4": 13500},
    "gb200": {"bf16": 2450, "fp8": 4900, "nvfp4": 9800},
    "gb300": {"bf16": 2450, "fp8": 4900, "nvfp4": 14700},
}
"""Dense TFLOP/s of one Blackwell GPU.

Sources differ by a few percent, so baseline files may state other peaks.
"""

LARGEST_MEMORY_GB = {
    "v100": 32,
    "a100": 80,
    "a800": 80,
    "h100": 96,
    "h100pcie": 96,
    "h100nvl": 96,
    "h800": 80,
    "h200": 141,
    "h200nvl": 141,
    "b200": 192,
    "gb200": 192,
}
"""The largest memory of a GPU type, as rounded by vendors.

H100: 94 GB for NVL, 96 GB for GH200.
"""

KNOWN = compile_on_use(r"\b(g?[abhlv]\d{2,3}s?)\b")
"""A GPU type in a product name, such as h100, gb200 or l40s."""

_FORM_FACTOR = compile_on_use(r"\b(pcie|nvl)\b")


def read_gpu_type(name: str) -> str:
    """Return the GPU type for a product name.

    `h100` for `NVIDIA H100 80GB HBM3` and `h100pcie` for `NVIDIA H100 PCIe`. A PCIe or
    NVL variant is distinguished only if its peak differs. An unknown name is joined to
    one word.
    """
    lower = name.lower()
    type_match = KNOWN.search(lower)
    form_match = _FORM_FACTOR.search(lower)
    if type_match is None:
        return re.sub(r"[^a-z0-9]+", "", lower.removeprefix("nvidia")) or "gpu"
    gpu_type = type_match[1]
    variant = f"{gpu_type}{form_match[1]}" if form_match else ""
    return variant if variant in PEAK_TFLOPS else gpu_type


def find_peak(gpu: str, dtype: str) -> int | None:
    """Return the dense TFLOP/s of a GPU type in a precision, or None if unlisted."""
    peaks = (PEAK_TFLOPS | BLACKWELL).get(read_gpu_type(gpu), {})
    precision = "fp8" if "fp8" in dtype else dtype  # "fp8_cs" and "fp8_mx"
    return peaks.get(precision)
