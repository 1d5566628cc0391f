"""Types of GPUs: how they are called, and the peaks of those that share a name and not
their speed."""

from __future__ import annotations

import re

PEAK_TFLOPS = {
    "h100": {"bf16": 989, "fp8": 1979},
    "h100pcie": {"bf16": 756, "fp8": 1513},
    "h100nvl": {"bf16": 835, "fp8": 1671},
    "h200": {"bf16": 989, "fp8": 1979},
    "h200nvl": {"bf16": 835, "fp8": 1671},
}
"""Dense TFLOP/s of one GPU; docs/flops.md has the sources. `h100` and `h200` are those
of the SXM socket."""

BLACKWELL = {
    "b200": {"bf16": 2250, "fp8": 4500, "nvfp4": 9000},
    "b300": {"bf16": 2250, "fp8": 4500, "nvfp4": 13500},
    "gb200": {"bf16": 2450, "fp8": 4900, "nvfp4": 9800},
    "gb300": {"bf16": 2450, "fp8": 4900, "nvfp4": 14700},
}
"""The same of Blackwell. Sources differ by a few percent: a file that states another
peak of them is not refused."""

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
"""The largest memory of a GPU type, as vendors round it (H100: 94 GB of NVL, 96 GB of
GH200)."""

KNOWN = re.compile(r"\b(g?[abhlv]\d{2,3}s?)\b")
_FORM = re.compile(r"\b(pcie|nvl)\b")


def read_gpu_type(name: str) -> str:
    """Return `h100` for `NVIDIA H100 80GB HBM3` and `h100pcie` for `NVIDIA H100 PCIe`;
    a name without a known type is joined to one word. A form is told where it has a
    peak of its own."""
    lower = name.lower()
    match, form = KNOWN.search(lower), _FORM.search(lower)
    if match is None:
        return re.sub(r"[^a-z0-9]+", "", lower.removeprefix("nvidia")) or "gpu"
    variant = f"{match[1]}{form[1]}" if form else ""
    return variant if variant in PEAK_TFLOPS else match[1]


def find_peak(gpu: str, dtype: str) -> int | None:
    """Return the dense TFLOP/s of a GPU type in a precision; None where they are not
    listed here."""
    return (
        (PEAK_TFLOPS | BLACKWELL)
        .get(read_gpu_type(gpu), {})
        .get("fp8" if "fp8" in dtype else dtype)
    )
