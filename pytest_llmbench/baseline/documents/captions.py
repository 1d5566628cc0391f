"""What headers, titles and labelled cells state: `64x H100 GPUs (FSDP=64 GBS=128)`, `Llama 3.1 70b FP8`, `MBS | 2`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from pytest_llmbench.baseline.documents.labels import (
    ABSENT,
    parse_column_label,
    parse_metric_cell,
    parse_metric_label,
    parse_whole_number,
)

GPU = r"(?:GB|B|H|A|L|V|MI)\d{2,4}[A-Za-z]?"
DTYPE = r"(?:BF16|FP8|FP16|FP32|TF32|FP4|NVFP4|MXFP8|MXFP4|INT8)"
_SIZE = r"\d+(?:x\d+)?(?:\.\d+)?[bBmM](?:[-_][aA]\d+[bB])?"
_NAMED_NUMBER = re.compile(
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

ConfigurationColumns = dict[str, int | str]
"""Configuration columns by name: numbers, and the texts of size, dtype and gpu; empty where there are several."""


@dataclass(frozen=True, slots=True)
class Caption:
    """What a header states, the words before the first fact, and everything that was not understood."""

    facts: ConfigurationColumns
    before: str
    rest: str


def read_caption(text: str) -> Caption:
    """Return the facts of a header or title; of a fact with two different values nothing is known."""
    facts: ConfigurationColumns = {}
    rest, starts = text, [len(text)]
    for name, value, match in _find_facts(text):
        facts[name] = value if facts.get(name, value) == value else ""
        start, end = match.span()
        rest = rest[:start] + " " * (end - start) + rest[end:]
        starts.append(start)
    return Caption(facts, text[: min(starts)].strip(" (|,-"), " ".join(rest.split()))


def find_unknown_words(column: Caption) -> str:
    """Return what the header of a column says beyond its facts; empty where that is nothing but fillers.

    It may be what makes it another configuration, or another measurement: `(previous release)`.
    """
    words = re.findall(r"\w+|~~", column.rest)
    contradictory = [name for name, value in column.facts.items() if value == ""]
    return " ".join([*(word for word in words if word.lower() not in FILLERS), *contradictory])


def make_recipe_name(before: str) -> str:
    """Return how a baseline file would call what stands before the size: `Llama 3.1` is llama3.1, `Maxtext LLama2`
    maxtext_llama2; empty where that is no name."""
    words = re.sub(r"\s+(?=\d)", "", before.lower())
    name = re.sub(r"[^a-z0-9.]+", "_", words).strip("_.")
    return name if re.fullmatch(r"[a-z0-9][a-z0-9._]{0,99}", name) else ""


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Return the precisions of `BF16/FP8`, in lower case."""
    match = re.fullmatch(rf"{DTYPE}(?:\s*[/,&]\s*{DTYPE})*", text, re.IGNORECASE | re.ASCII)
    return tuple(re.findall(DTYPE, text.lower(), re.IGNORECASE)) if match else ()


def parse_size(text: str) -> tuple[str, bool] | None:
    """Return a model size in lower case, and whether it is marked as a proxy: `405b-Proxy`."""
    match = re.fullmatch(rf"(?:.*[\s_-])?({_SIZE})([-_ ]?proxy)?", text, re.IGNORECASE | re.ASCII)
    return (match[1].lower(), bool(match[2])) if match else None


def _find_facts(text: str) -> list[tuple[str, int | str, re.Match[str]]]:
    facts: list[tuple[str, int | str, re.Match[str]]] = []
    for match in _NAMED_NUMBER.finditer(text):
        name = parse_column_label(match[1].strip())
        if name and name not in ("size", "dtype", "gpu"):
            facts.append((name, int(match[2]), match))
    for match in _GPUS.finditer(text):
        facts.append(("gpus", int(match[1].replace(",", "")), match))
        if gpu := match[2] or match[3]:
            facts.append(("gpu", gpu.lower(), match))
    for name, pattern in _WORDS:
        facts += [(name, match[0].lower(), match) for match in pattern.finditer(text)]
    return facts


KEY = ("size", "gpu", "dtype", "gpus")


class LabelledCell(NamedTuple):
    """A cell with its label and its line."""

    label: str
    text: str
    line: int


class CellContent(NamedTuple):
    """What one cell states: a metric or configuration columns; nothing where the document gives no value."""

    metric: str = ""
    text: str = ""
    """Of the metric, as a baseline file keeps it."""

    facts: ConfigurationColumns = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    is_proxy: bool = False
    """Whether it marks its model size as that of a proxy."""


def is_known_label(label: str) -> bool:
    """Whether a label names a metric or a column of a configuration."""
    return bool(parse_column_label(label) or parse_metric_label(label))


def read_cell(value: LabelledCell) -> CellContent:
    """Return what a cell states; ValueError, with the reason, where a baseline file has no place for it."""
    metric, field = parse_metric_label(value.label), parse_column_label(value.label)
    if metric is not None:
        return CellContent(metric=metric[0], text=parse_metric_cell(*metric, value.label, value.text))
    if value.text in ABSENT:
        return CellContent()
    if not field:
        raise ValueError("no such row or column is known")
    if field == "size":
        return _read_size(value.text)
    return CellContent(facts=_read_dtype(value.text) if field == "dtype" else _read_number(field, value.text))


def _read_size(text: str) -> CellContent:
    size = parse_size(text)
    if size is None:
        raise ValueError("it is no model size such as 70b")
    return CellContent(facts={"size": size[0]}, is_proxy=size[1])


def _read_dtype(text: str) -> ConfigurationColumns:
    if not parse_dtypes(text):
        raise ValueError("it is no precision such as BF16 or BF16/FP8")
    return {"dtype": "/".join(parse_dtypes(text))}


def _read_number(field: str, text: str) -> ConfigurationColumns:
    """Return the number of a column, the GPU type, or both of `8x H100`."""
    caption = read_caption(text)
    if field == "gpu" or (field == "gpus" and "gpus" in caption.facts):
        facts = {name: value for name, value in caption.facts.items() if name in ("gpu", "gpus") and value}
        if field not in facts or facts != caption.facts or caption.rest:
            raise ValueError("it is no GPU type such as H100" if field == "gpu" else "it is no number of GPUs")
        return facts
    number = parse_whole_number(text)
    return {} if number is None else {field: number}
