"""GPU types, and other accelerators: their names, peaks and memory sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import NamedTuple

from pytest_llmbench.core.patterns import compile_on_use


class Peak(NamedTuple):
    """A peak of one chip, without sparsity."""

    tflops: float
    source: str  # who states it


class GpuType(NamedTuple):
    """A type of GPU or other accelerator."""

    name: str  # in baseline files and folder names
    title: str
    memory_gb: tuple[int, ...]  # the sizes sold, as vendors round them
    peaks: Mapping[str, tuple[Peak, ...]]  # by precision; the first one is used
    written: str = ""
    """A pattern of the names by which software and schedulers call it, in lower case
    with blanks as separators. Empty if they contain `name`."""
    devices: int = 1
    """Number of devices that one chip appears as; frameworks count each as a GPU."""
    chip: str = ""
    """The chip, if several types have it: their peaks are easily confused."""
    in_paths: bool = True
    """True if names of folders and runs may state this type. `v100` may be a version
    there, `trn1` a training."""


_AMD = "AMD, product page"
_AUTOMODEL = "NeMo AutoModel 36044ad, mfu.py"
_AWS = "AWS, Neuron documentation"
_BRIEF = "NVIDIA, Blackwell technical brief"
_DGXC = "NVIDIA/dgxc-benchmarking 26.06.01, README"
_GOOGLE = "Google, TPU documentation"
_INTEL = "Intel, white paper 817486"
_MINDSTUDIO = "Huawei MindStudio, device profiles"
_NVIDIA = "NVIDIA, data sheet"
_RESELLERS = "tables of resellers"
_ROCM = "ROCm, documentation of the architecture"
_TORCHTITAN = "torchtitan b5bcd76, tools/utils.py"
_VERL = "verl 1dda039, flops_counter.py"

_AMPERE = {"bf16": (Peak(312, _NVIDIA),)}
_HOPPER = {"bf16": (Peak(989, _NVIDIA),), "fp8": (Peak(1979, _NVIDIA),)}
_HOPPER_NVL = {"bf16": (Peak(835, _NVIDIA),), "fp8": (Peak(1671, _NVIDIA),)}
_BLACKWELL = {
    "bf16": (Peak(2250, _DGXC), Peak(2500, _RESELLERS)),
    "fp8": (Peak(4500, _DGXC), Peak(5000, _RESELLERS)),
}


def _name_instinct(name: str) -> str:
    """Return the pattern of the names of an AMD Instinct: also `mi300` for `mi300x`."""
    return f"(?:amd ?instinct ?)?{name}?(?: ?oam)?"


GPU_TYPES = (
    GpuType("v100", "V100", (16, 32), {}, in_paths=False),
    GpuType("a100", "A100", (40, 80), _AMPERE),
    GpuType("a800", "A800", (40, 80), _AMPERE),
    GpuType(
        "l40s",
        "L40S",
        (48,),
        {
            "bf16": (Peak(362.05, _NVIDIA), Peak(362, _TORCHTITAN)),
            "fp8": (Peak(733, _NVIDIA),),
        },
    ),
    GpuType(
        "h20",
        "H20",
        (96, 141),
        {
            "bf16": (Peak(148, _TORCHTITAN),),
            "fp8": (Peak(296, "tile-ai/TileOPs, pull request 1658"),),
        },
    ),
    # 94 GB: an SXM module that is called "NVIDIA H100" and nothing else
    GpuType("h100", "H100 SXM", (80, 94), _HOPPER, chip="GH100"),
    GpuType(
        "h100pcie",
        "H100 PCIe",
        (80,),
        {"bf16": (Peak(756, _NVIDIA),), "fp8": (Peak(1513, _NVIDIA),)},
        r"h100(?:\b.*\b)?pcie",
        chip="GH100",
    ),
    GpuType(
        "h100nvl", "H100 NVL", (94,), _HOPPER_NVL, r"h100(?:\b.*\b)?nvl", chip="GH100"
    ),
    GpuType("h800", "H800 SXM", (80,), _HOPPER, chip="GH100"),
    GpuType(
        "h800pcie", "H800 PCIe", (80,), {}, r"h800(?:\b.*\b)?pcie", chip="GH100"
    ),
    GpuType("h200", "H200 SXM", (141,), _HOPPER, chip="GH100"),
    GpuType(
        "h200nvl", "H200 NVL", (141,), _HOPPER_NVL, r"h200(?:\b.*\b)?nvl", chip="GH100"
    ),
    # "GH200 480GB" names the memory of the CPU
    GpuType("gh200", "GH200", (96, 144), _HOPPER, chip="GH100"),
    GpuType("b100", "B100", (192,), {}),
    GpuType(
        "b200", "B200", (180, 192), _BLACKWELL | {"fp4": (Peak(9000, f"{_DGXC}, NVFP4"), Peak(10000, _RESELLERS))}
    ),
    GpuType(
        "b300",
        "B300",
        (270, 288),
        _BLACKWELL | {"fp4": (Peak(13500, f"{_DGXC}, NVFP4"), Peak(15000, _RESELLERS))},
    ),
    GpuType(
        "gb200",
        "GB200, one GPU",
        (186, 192),
        # NVIDIA's recipes divide by 2450; its figures of a rack are 2500 for each GPU.
        {
            "bf16": (Peak(2450, _DGXC), Peak(2500, _BRIEF), Peak(2500, _TORCHTITAN)),
            "fp8": (Peak(4900, _DGXC), Peak(5000, _BRIEF)),
            "fp4": (Peak(9800, f"{_DGXC}, NVFP4"), Peak(10000, _BRIEF)),
        },
    ),
    GpuType(
        "gb300",
        "GB300, one GPU",
        (279, 288),
        {
            "bf16": (Peak(2450, _DGXC), Peak(2500, _TORCHTITAN)),
            "fp8": (Peak(4900, _DGXC),),
            "fp4": (
                Peak(14700, f"{_DGXC}, NVFP4"),
                Peak(15000, "NVIDIA, blog on Blackwell Ultra, NVFP4"),
            ),
        },
    ),
    GpuType(
        "rtxpro6000",
        "RTX PRO 6000 Blackwell",
        (96,),
        {"bf16": (Peak(503.8, f"{_AUTOMODEL}, Workstation Edition"),)},
        "rtx ?pro ?6000(?!.*max ?q)(?: ?blackwell)?(?: ?(?:server|workstation) ?edition)?",
        chip="GB202",
    ),
    GpuType(
        "rtxpro6000maxq",
        "RTX PRO 6000 Blackwell Max-Q",
        (96,),
        {"bf16": (Peak(438.9, _AUTOMODEL),)},
        "rtx ?pro ?6000 ?(?:blackwell ?)?max ?q(?: ?workstation ?edition)?",
        chip="GB202",
    ),
    # Both print "AMD Instinct MI250X / MI250".
    GpuType(
        "mi250x",
        "MI250X, MI250",
        (128,),
        {
            "bf16": (
                Peak(383, f"{_TORCHTITAN}: 191.5 for each of its two devices"),
                Peak(362.1, f"{_ROCM}, MI250"),
            )
        },
        "(?:amd ?instinct ?)?mi250x?(?: ?mi250)?",
        devices=2,
    ),
    GpuType(
        "mi300x",
        "MI300X",
        (192,),
        {
            "bf16": (
                Peak(1307.4, _ROCM),
                Peak(1300, _TORCHTITAN),
                Peak(1336, _AUTOMODEL),
            ),
            "fp8": (Peak(2614.9, _ROCM),),
        },
        _name_instinct("mi300x"),
    ),
    GpuType(
        "mi325x",
        "MI325X",
        (256,),
        {
            "bf16": (Peak(1307.4, _AMD), Peak(1300, _TORCHTITAN)),
            "fp8": (Peak(2614.9, _AMD),),
        },
        _name_instinct("mi325x"),
    ),
    GpuType(
        "mi350x",
        "MI350X",
        (288,),
        {
            "bf16": (Peak(2300, _AMD),),
            "fp8": (Peak(4600, _AMD),),
            "fp4": (Peak(9200, f"{_AMD}, MXFP4"),),
        },
        _name_instinct("mi350x"),
    ),
    GpuType(
        "mi355x",
        "MI355X",
        (288,),
        {
            "bf16": (Peak(2500, _AMD),),
            "fp8": (Peak(5000, _AMD),),
            "fp4": (Peak(10100, f"{_AMD}, MXFP4"),),
        },
        _name_instinct("mi355x"),
    ),
    GpuType("tpuv4", "TPU v4", (32,), {"bf16": (Peak(275, _GOOGLE),)}, "tpu ?v4(?! lite)"),
    GpuType(
        "tpuv5e",
        "TPU v5e",
        (16,),
        {"bf16": (Peak(197, _GOOGLE),)},
        "tpu ?v5 ?(?:e|lite)(?:pod)?|v5e|v5litepod",
    ),
    GpuType(
        "tpuv5p",
        "TPU v5p",
        (95,),
        {"bf16": (Peak(459, _GOOGLE),)},
        "tpu ?v5p?|v5p",
    ),
    GpuType(
        "tpuv6e",
        "TPU v6e (Trillium)",
        (32,),
        {"bf16": (Peak(918, _GOOGLE), Peak(920, "JAX cec06d1, tpu_info.py"))},
        "tpu ?v6 ?(?:e|lite)|v6e|trillium",
    ),
    GpuType(
        "tpu7x",
        "TPU7x (Ironwood)",
        (192,),
        {"bf16": (Peak(2307, _GOOGLE),), "fp8": (Peak(4614, _GOOGLE),)},
        "tpu ?v?7x?|ironwood",
        devices=2,
    ),
    GpuType(
        "trn1",
        "Trainium 1",
        (32,),
        {"bf16": (Peak(190, _AWS),), "fp8": (Peak(190, _AWS),)},
        "trn1n?|trainium ?1",
        devices=2,
        in_paths=False,
    ),
    GpuType(
        "trn2",
        "Trainium 2",
        (96,),
        {
            "bf16": (Peak(667, _AWS), Peak(655, f"{_AWS}, earlier")),
            "fp8": (Peak(1299, _AWS), Peak(1287, f"{_AWS}, earlier")),
        },
        "trn2|trainium ?2",
        devices=4,
        in_paths=False,
    ),
    GpuType(
        "trn3",
        "Trainium 3",
        (144,),
        {
            "bf16": (Peak(671, _AWS),),
            "fp8": (Peak(2517, f"{_AWS}, MXFP8"),),
            "fp4": (Peak(2517, f"{_AWS}, MXFP4"),),
        },
        "trn3|trainium ?3",
        devices=4,
        in_paths=False,
    ),
    GpuType(
        "gaudi2",
        "Gaudi 2",
        (96,),
        {"bf16": (Peak(432, _INTEL),), "fp8": (Peak(865, _INTEL),)},
        "gaudi ?2|hl 225[a-z]?",
    ),
    GpuType(
        "gaudi3",
        "Gaudi 3",
        (128,),
        {
            "bf16": (
                Peak(1835, "Intel, at the launch"),
                Peak(1678, "Intel, later white paper"),
            ),
            "fp8": (Peak(1835, "Intel, at the launch"),),
        },
        "gaudi ?3|hl 325[a-z]?",
    ),
    GpuType(
        "ascend910b",
        "Ascend 910B",
        (32, 64),
        {
            "bf16": (
                Peak(354, f"{_VERL}, for each 910B"),
                Peak(353.9, f"{_MINDSTUDIO}, 910B2"),
                Peak(294.9, f"{_MINDSTUDIO}, 910B3"),
                Peak(245.8, f"{_MINDSTUDIO}, 910B4"),
            )
        },
        "(?:ascend ?)?910b(?:[1-4]c?)?",
    ),
)  # fmt: skip
"""All known types. `docs/reference/gpus.md` shows them as a table."""

BY_NAME = {gpu.name: gpu for gpu in GPU_TYPES}

UNKNOWN = "unknown"
"""The GPU type of recordings whose runs state none."""

READ_LATER = frozenset(
    name for name in BY_NAME if name.startswith(("mi", "rtxpro", "tpu"))
)
"""Types for which logs were not searched in the past. Recordings from then have the
type UNKNOWN."""

# Sources of a peak differ by at most this fraction.
MOST_DISAGREEMENT = 0.1

# Sizes of the memories of one GPU as vendors print them, in GB.
NOMINAL_MEMORIES = (
    *(8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 120, 128, 141, 144, 192, 256, 288),
)

# The other types of NVIDIA's data centre GPUs, such as A10 or L40.
_OTHER_TYPE = compile_on_use(r"\bg?[abhlv]\d{2,3}s?\b")
_SEPARATOR = compile_on_use(r"[\s_/-]+")


@cache
def _compile_types() -> re.Pattern[str]:
    """Compile one pattern with a group for each type; long names come first."""
    alternatives = sorted(
        ((gpu.written or gpu.name, gpu.name) for gpu in GPU_TYPES),
        key=lambda alternative: -len(alternative[0]),
    )
    groups = "|".join(f"(?P<{name}>{written})" for written, name in alternatives)
    return re.compile(rf"\b(?:{groups})\b")


@lru_cache(256)  # the names come from logs
def find_gpu_type(name: str) -> str:
    """Return the GPU type in a product name, or "" for other names.

    `h100` for `NVIDIA H100 80GB HBM3`, `h100pcie` for `NVIDIA H100 PCIe`, `a10` for
    `NVIDIA A10`.
    """
    words = _SEPARATOR.sub(" ", name.lower())
    match = _compile_types().search(words)
    if match:
        return match.lastgroup or ""
    other_match = _OTHER_TYPE.search(words)
    return other_match[0] if other_match else ""


def read_gpu_type(name: str) -> str:
    """Return the GPU type for a product name. An unknown name is joined to one word."""
    joined = re.sub(r"[^a-z0-9]+", "", name.lower().removeprefix("nvidia"))
    return find_gpu_type(name) or joined or "gpu"


def list_peaks(gpu: str, dtype: str) -> tuple[Peak, ...]:
    """Return the dense peaks of one device of a GPU type, as different sources state
    them.

    `dtype` is a precision such as `bf16`, `fp8_mx` or `nvfp4`. Empty if unlisted.
    """
    gpu_type = BY_NAME.get(read_gpu_type(gpu))
    if gpu_type is None:
        return ()
    families = (family for family in ("fp8", "fp4") if family in dtype)
    peaks = gpu_type.peaks.get(next(families, dtype), ())
    if gpu_type.devices == 1:
        return peaks
    return tuple(peak._replace(tflops=peak.tflops / gpu_type.devices) for peak in peaks)


def find_peak(gpu: str, dtype: str) -> float | None:
    """Return the dense TFLOP/s of one device of a GPU type, or None if unlisted."""
    return next((peak.tflops for peak in list_peaks(gpu, dtype)), None)


def find_other_gpu(gpu: str, dtype: str, tflops: float) -> str:
    """Return the other GPU type that has this peak, or "" if the peak may be right.

    A peak near the GPU's own peak may be right, because sources differ, unless it is
    exactly the peak of another type with the same chip.
    """
    gpu_type = BY_NAME.get(read_gpu_type(gpu))
    own_peaks = [peak.tflops for peak in list_peaks(gpu, dtype)]
    if gpu_type is None or not own_peaks or tflops in own_peaks:
        return ""
    others = (
        other
        for other in GPU_TYPES
        if not is_near(tflops, own_peaks)
        or (other.chip and other.chip == gpu_type.chip)
    )
    return _find_by_peak(others, dtype, tflops)


def is_near(tflops: float, peaks: Iterable[float]) -> bool:
    """True if a peak is within MOST_DISAGREEMENT of one of `peaks`."""
    return any(abs(tflops / peak - 1) <= MOST_DISAGREEMENT for peak in peaks)


def find_gpu_by_peak(dtype: str, tflops: float) -> str:
    """Return the first GPU type with a peak, or ""."""
    return _find_by_peak(GPU_TYPES, dtype, tflops)


def _find_by_peak(gpus: Iterable[GpuType], dtype: str, tflops: float) -> str:
    matching = (
        gpu.name
        for gpu in gpus
        for peak in list_peaks(gpu.name, dtype)
        if peak.tflops == tflops
    )
    return next(matching, "")


def find_largest_memory(gpu: str) -> int | None:
    """Return the largest nominal memory in GB that a GPU type has, None if unlisted."""
    gpu_type = BY_NAME.get(read_gpu_type(gpu))
    if gpu_type is None:
        return None
    largest = max(gpu_type.memory_gb)
    return min(nominal for nominal in NOMINAL_MEMORIES if nominal >= largest)


def round_memory(gibibytes: float) -> int:
    """Return the nominal size of a memory in GB.

    Vendors call a memory of 79.1 GiB 80 GB, but one of 268.6 GiB (288e9 bytes) 288 GB.
    """
    gigabytes = gibibytes * 2**30 / 1e9
    return min(
        NOMINAL_MEMORIES,
        key=lambda nominal: (
            min(abs(nominal - gibibytes), abs(nominal - gigabytes)) / nominal
        ),
    )
