"""What headers and titles of tables state: `64x H100 GPUs (FSDP=64 GBS=128)`, `Llama 3.1 70b FP8`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_llmbench.baseline.document import printed

GPU = r"(?:GB|B|H|A|L|V|MI)\d{2,4}[A-Za-z]?"
DTYPE = r"(?:BF16|FP8|FP16|FP32|TF32|FP4|NVFP4|MXFP8|MXFP4|INT8)"
_SIZE = r"\d+(?:x\d+)?(?:\.\d+)?[bBmM](?:[-_][aA]\d+[bB])?"
_GIVEN = re.compile(
    r"\b(sequence length|seq len|global batch size|micro batch size|gradient accumulation|[a-z_]+)"
    r"\s*[=:]\s*(\d{1,9})(?![\d.,]*\d)",
    re.IGNORECASE | re.ASCII,
)
_GPUS = re.compile(
    rf"(?<![\w.,])(\d{{1,3}}(?:,\d{{3}})+|\d{{1,9}})\s*(?:[x\u00d7]\s*({GPU})\b(?:\s*GPUs?\b)?|[x\u00d7]?\s*({GPU})?\s*GPUs?\b)",
    re.IGNORECASE | re.ASCII,
)
_WORDS = (
    ("dtype", re.compile(rf"\b{DTYPE}(?:\s*[/,&]\s*{DTYPE})*\b", re.IGNORECASE | re.ASCII)),
    ("gpu", re.compile(rf"\b{GPU}\b", re.ASCII)),
    ("size", re.compile(rf"\b{_SIZE}\b(?:[-_ ]?proxy\b)?", re.IGNORECASE | re.ASCII)),
)

FILLERS = frozenset({"throughput", "performance", "on", "with", "for", "at", "nvidia", "dgx", "hgx"})
"""The words in the header of a column that say nothing of its configuration."""

Facts = dict[str, int | str]
"""Configuration columns by name: numbers, and the texts of size, dtype and gpu; empty where there are several."""


@dataclass(frozen=True, slots=True)
class Caption:
    """What a header states, the words before the first fact, and everything that was not understood."""

    facts: Facts
    before: str
    rest: str


def read_caption(text: str) -> Caption:
    """Return the facts of a header or title; of a fact with two different values nothing is known."""
    facts: Facts = {}
    rest, starts = text, [len(text)]
    for name, value, found in _found(text):
        facts[name] = value if facts.get(name, value) == value else ""
        start, end = found.span()
        rest = rest[:start] + " " * (end - start) + rest[end:]
        starts.append(start)
    return Caption(facts, text[: min(starts)].strip(" (|,-"), " ".join(rest.split()))


def not_understood(column: Caption) -> str:
    """Return what the header of a column says beyond its facts; empty where that is nothing but fillers.

    It may be what makes it another configuration, or another measurement: `(previous release)`.
    """
    words = re.findall(r"\w+|~~", column.rest)
    contradictory = [name for name, value in column.facts.items() if value == ""]
    return " ".join([*(word for word in words if word.lower() not in FILLERS), *contradictory])


def recipe_name(before: str) -> str:
    """Return how a baseline file would call what stands before the size: `Llama 3.1` is llama3.1, `Maxtext LLama2`
    maxtext_llama2; empty where that is no name."""
    words = re.sub(r"\s+(?=\d)", "", before.lower())
    name = re.sub(r"[^a-z0-9.]+", "_", words).strip("_.")
    return name if re.fullmatch(r"[a-z0-9][a-z0-9._]{0,99}", name) else ""


def dtypes(text: str) -> tuple[str, ...]:
    """Return the precisions of `BF16/FP8`, in lower case."""
    found = re.fullmatch(rf"{DTYPE}(?:\s*[/,&]\s*{DTYPE})*", text, re.IGNORECASE | re.ASCII)
    return tuple(re.findall(DTYPE, text.lower(), re.IGNORECASE)) if found else ()


def size(text: str) -> tuple[str, bool] | None:
    """Return a model size in lower case, and whether it is marked as a proxy: `405b-Proxy`."""
    found = re.fullmatch(rf"(?:.*[\s_-])?({_SIZE})([-_ ]?proxy)?", text, re.IGNORECASE | re.ASCII)
    return (found[1].lower(), bool(found[2])) if found else None


def _found(text: str) -> list[tuple[str, int | str, re.Match[str]]]:
    found: list[tuple[str, int | str, re.Match[str]]] = []
    for match in _GIVEN.finditer(text):
        name = printed.field(match[1].strip())
        if name and name not in ("size", "dtype", "gpu"):
            found.append((name, int(match[2]), match))
    for match in _GPUS.finditer(text):
        found.append(("gpus", int(match[1].replace(",", "")), match))
        if gpu := match[2] or match[3]:
            found.append(("gpu", gpu.lower(), match))
    for name, pattern in _WORDS:
        found += [(name, match[0].lower(), match) for match in pattern.finditer(text)]
    return found
