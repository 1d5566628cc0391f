"""What a run ran on, in one line."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from pytest_llmbench.core import formatting

LABELS = {
    "cuda": "CUDA",
    "cuda_driver": "CUDA of the driver",
    "jax": "JAX",
    "nccl": "NCCL",
    "nvidia_release": "NVIDIA Release",
    "pytorch": "PyTorch",
}
"""Names that are written otherwise; the others stand as they are."""

LONGEST = 200
"""Letters of the line: three lines of a message."""


def format_environment(environment: Mapping[str, str]) -> str:
    """Return `driver 570.133.20, framework nemo2 25.04, NCCL 2.26.6`; empty where nothing is known."""
    values = (f"{name_label(name)} {formatting.shorten_setting(name, text)}" for name, text in environment.items())
    return textwrap.shorten(", ".join(values), LONGEST, placeholder=" ...")


def name_label(name: str) -> str:
    """Return a name as people write it."""
    return LABELS.get(name, name.replace("_", " "))
