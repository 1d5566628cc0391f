"""Read mapping files, which describe the headers, units and words of documents.

The shipped files in `families/` are read together. A user's file (`--mapping FILE`) is
added and takes precedence.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.baseline.schema import GROUPS
from pytest_llmbench.core.errors import BaselineError, did_you_mean
from pytest_llmbench.core.userfile import read_text

FAMILIES = ("common", "recipe_documents", "nemo")

IGNORED = "ignore"
"""The key of a header whose cells are not imported."""

KEY_COLUMNS = ("size", "gpu", "dtype", "gpus")
"""The columns that every configuration must have."""

SHARED_COLUMNS = ("size", "gpu", "dtype")
"""The key columns that a text or an option may state for a whole table.

The number of GPUs differs within a table.
"""

METRICS = (
    "step_time",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "days_to_1t",
)
"""The metrics of a baseline file, in the order of the file."""

TEXT_COLUMNS = ("recipe", "release", "variant")
"""Columns that are read only if a mapping file names their headers."""

LARGEST_MAPPING_BYTES = 1 << 20

_SECTIONS = (
    "terms",
    "metrics",
    "columns",
    "headers",
    "values",
    "stated",
    "document",
    "tasks",
    "headings",
    "above",
    "words",
    "frameworks",
    "peaks",
    "about",
    "model",
    "records",
)
_ASCII = re.IGNORECASE | re.ASCII

Compile = Callable[[str, re.RegexFlag], re.Pattern[str]]


class MetricLabels(Struct, frozen=True):
    """The labels of a metric without their unit, and its units as powers of ten."""

    pattern: re.Pattern[str]
    units: Mapping[str, int]


class TextPattern(Struct, frozen=True):
    """A pattern for the text around tables; its groups and `stated` give values."""

    pattern: re.Pattern[str]
    stated: Mapping[str, str]
    has_size: bool = False
    """True if the same line names the size of the model."""


class DocumentMapping(Struct, frozen=True):
    """The compiled content of all mapping files."""

    metrics: Mapping[str, MetricLabels]
    columns: Mapping[str, re.Pattern[str]]
    headers: Mapping[str, str]
    """Literal header in lower case -> key, or metric and unit (`step_time ms`)."""

    values: Mapping[str, Mapping[str, Mapping[str, str | int]]]
    """Column -> literal text in lower case -> the columns to use instead."""

    stated: Mapping[str, str | int]
    """Default columns and recipe, for configurations that do not state them."""

    document: Mapping[str, str]
    """Values of the measurement, such as `dialect`; they override the text."""

    source: str
    """The name of the user's file, which defines `document`."""

    records: str
    """The dotted path of the records in a YAML or JSON file; "" for all records."""

    tasks: Mapping[str, re.Pattern[str]]
    """Patterns of tasks; the task "" is the matched text itself."""

    headings: Mapping[str, re.Pattern[str]]
    """Patterns of a `release` and of a labelled `model` in headings."""

    above: tuple[tuple[str, re.Pattern[str]], ...]
    """(column, pattern) of facts in the text above a table: `System: DGX-H100`."""

    fillers: frozenset[str]
    """Words in headers that may be ignored."""

    frameworks: Mapping[str, str]
    """Dialect -> name of its framework."""

    peaks: re.Pattern[str]
    """A GPU type, or a peak of the GPU type before it, in a line of text."""

    about: tuple[TextPattern, ...]
    """Patterns of the measurement (window, timed steps) in a line of text."""

    models: tuple[TextPattern, ...]
    """Patterns of model sizes and FLOPs formulas, for whole lines of text."""

    words: tuple[tuple[str, re.Pattern[str]], ...]
    """Patterns of size, GPU type and precision within a text."""

    counts: re.Pattern[str]
    """A number of GPUs within a text, with an optional type: `8x H100 GPUs`."""

    dtypes: re.Pattern[str]
    """One or several precisions: `BF16/FP8`."""

    dtype: re.Pattern[str]
    gpu: re.Pattern[str]
    proxy: re.Pattern[str]
    """The suffix `proxy` after a model size."""

    size_cell: re.Pattern[str]
    """A cell that ends with a model size, such as `Llama 70B`."""

    def add_stated(self, stated: Mapping[str, str | int]) -> DocumentMapping:
        """Return a copy with further stated values; these override the existing values."""
        return replace(self, stated={**self.stated, **stated})


@cache
def load_mapping(path: Path | None = None) -> DocumentMapping:
    """Load the shipped mapping files and, if `path` is given, the user's file.

    Raises BaselineError with the file name if the user's file is invalid.
    """
    shipped = [
        pkgutil.get_data(__name__, f"families/{name}.toml") or b"" for name in FAMILIES
    ]
    sections = [tomllib.loads(content.decode()) for content in shipped]
    if path is None:
        return _compile(sections, "")
    text = read_text(path, "mapping file", LARGEST_MAPPING_BYTES, BaselineError)
    try:
        custom = tomllib.loads(text)
        _refuse_unknown_names(custom)
        return _compile([custom, *sections], path.name)
    except tomllib.TOMLDecodeError as error:
        raise BaselineError(f"{path}: {error}, expected TOML") from error
    except re.error as error:
        raise BaselineError(
            f"{path}: {error.pattern!r} is not a pattern: {error}"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BaselineError(
            f"{path}: {error}; docs/reference/baseline-files.md describes mapping files"
        ) from error


def _refuse_unknown_names(custom: Mapping[str, Any]) -> None:
    """Raise ValueError for an unknown section, key or unit of a user's file."""
    shipped = load_mapping()
    columns = {*shipped.columns, *TEXT_COLUMNS}
    metrics_with_unit = {
        f"{name} {unit}"  # `step_time ms`
        for name, metric in shipped.metrics.items()
        for unit in metric.units
    }
    header_targets = {*columns, *shipped.metrics, *metrics_with_unit, IGNORED}
    used_columns = (
        *custom.get("columns", {}),
        *custom.get("stated", {}),
        *custom.get("values", {}),
    )
    for names, allowed in (
        (custom, _SECTIONS),
        (custom.get("headers", {}).values(), header_targets),
        (custom.get("metrics", {}), shipped.metrics),
        (used_columns, columns),
    ):
        for name in names:
            if name not in allowed:
                raise ValueError(
                    f"found {name!r}, expected one of {', '.join(allowed)}{did_you_mean(name, allowed)}"
                )


def _compile(sections: Iterable[Mapping[str, Any]], source: str) -> DocumentMapping:
    """Merge the contents of mapping files and compile their patterns.

    The first file takes precedence. `source` is the name of the user's file, or "".
    """
    merged = _merge(sections)
    # `{dtype}` in a pattern stands for `(?:BF16|FP8|...)`.
    alternatives_by_placeholder = {
        f"{{{name}}}": f"(?:{'|'.join(patterns)})"
        for name, patterns in merged["terms"].items()
    }

    def compile_pattern(
        pattern: str, flags: re.RegexFlag = re.IGNORECASE
    ) -> re.Pattern[str]:
        """Compile a pattern after replacing its placeholders."""
        for placeholder, alternatives in alternatives_by_placeholder.items():
            pattern = pattern.replace(placeholder, alternatives)
        return re.compile(pattern, flags)

    columns = {
        name: compile_pattern("|".join(labels))
        for name, labels in merged["columns"].items()
    }
    above = [
        (name, pattern)
        for name, patterns in merged["above"].items()
        for pattern in patterns
    ]
    return DocumentMapping(
        metrics={
            name: MetricLabels(
                compile_pattern("|".join(metric["labels"])), metric["units"]
            )
            for name, metric in merged["metrics"].items()
        },
        columns=columns | {name: re.compile(name) for name in GROUPS},
        headers={
            normalize(header): target for header, target in merged["headers"].items()
        },
        values={
            name: _make_replacements(name, values)
            for name, values in merged["values"].items()
        },
        stated=merged["stated"],
        document=merged["document"],
        source=source,
        records=str(merged.get("records", "")),
        tasks={
            name: compile_pattern(pattern, _ASCII)
            for name, pattern in merged["tasks"].items()
        },
        headings={
            name: compile_pattern(pattern)
            for name, pattern in merged["headings"].items()
        },
        above=tuple((name, compile_pattern(pattern)) for name, pattern in above),
        fillers=frozenset(merged["words"]["fillers"]),
        frameworks=merged["frameworks"],
        peaks=compile_pattern(merged["peaks"]["pattern"], re.ASCII),
        about=tuple(
            _compile_text_pattern(compile_pattern, entry) for entry in merged["about"]
        ),
        models=tuple(
            _compile_text_pattern(compile_pattern, entry) for entry in merged["model"]
        ),
        **_compile_fixed_patterns(compile_pattern),
    )


def _compile_text_pattern(
    compile_pattern: Compile, entry: Mapping[str, Any]
) -> TextPattern:
    """Compile an entry of the sections `about` and `model`."""
    stated = {**entry.get("stated", {})}
    if "formula" in entry:
        stated["formula"] = entry["formula"]
    return TextPattern(
        compile_pattern(entry["pattern"], re.ASCII),
        stated,
        has_size=entry.get("named", False),
    )


def _compile_fixed_patterns(compile_pattern: Compile) -> dict[str, Any]:
    """Compile the patterns that mapping files cannot change, except for their terms."""
    dtypes = r"{dtype}(?:\s*[/,&]\s*{dtype})*"  # `BF16/FP8`
    # The type comes first in `8x H100`, second in `8 H100 GPUs`; `8 GPUs` has none.
    counts = (
        r"(?<![\w.,])(?P<count>\d{1,3}(?:,\d{3})+|\d{1,9})\s*(?:[x\u00d7]\s*(?P<first>{gpu})s?\b"
        r"(?:\s*GPUs?\b)?|[x\u00d7]?\s*(?P<second>{gpu})?\s*GPUs?\b)"
    )
    # `70b`, `Llama 70B`, `Grok1 314b-proxy`
    size_cell = r"(?P<before>.*[\s_-])?(?P<size>{size})(?P<proxy>[-_ ]?proxy)?"
    # Also after three letters (`GPT175B`), but not in `a3b`, the active parameters.
    size = r"(?:(?<![^\W_])|(?<=[a-z]{3})){size}\b"
    return {
        "words": (
            ("dtype", compile_pattern(rf"\b{dtypes}\b", _ASCII)),
            ("gpu", compile_pattern(r"\b{gpu}(?=s?\b)", re.ASCII)),
            ("size", compile_pattern(size, _ASCII)),
        ),
        "counts": compile_pattern(counts, _ASCII),
        "dtypes": compile_pattern(dtypes, _ASCII),
        "dtype": compile_pattern("{dtype}", _ASCII),
        "gpu": compile_pattern("{gpu}", _ASCII),
        "proxy": re.compile(r"[-_ ]?proxy\b", _ASCII),
        "size_cell": compile_pattern(size_cell, _ASCII),
    }


def _make_replacements(
    name: str, values: Mapping[str, Any]
) -> dict[str, dict[str, str | int]]:
    """Return the replacements of a column: literal text -> the columns to use instead.

    A replacement that is not a dictionary is a value of the same column.
    """
    return {
        normalize(text): new if isinstance(new, dict) else {name: new}
        for text, new in values.items()
    }


def _merge(sections: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge mapping files key by key: join lists, and keep the first of other values."""
    # Sections that the shipped files lack.
    merged: dict[str, Any] = {
        name: {} for name in ("headers", "values", "stated", "document")
    }
    for section in sections:
        _merge_into(merged, section)
    return merged


def _merge_into(merged: dict[str, Any], section: Mapping[str, Any]) -> None:
    """Add the keys of a mapping file to `merged`; existing values are kept."""
    pending: list[tuple[dict[str, Any], Mapping[str, Any]]] = [(merged, section)]
    # No recursion, because a user's file may nest tables to any depth.
    while pending:
        target, source = pending.pop()
        for name, value in source.items():
            if isinstance(value, dict):
                pending.append((target.setdefault(name, {}), value))
            elif isinstance(value, list):
                target[name] = [*target.get(name, ()), *value]
            else:
                target.setdefault(name, value)


def normalize(text: str) -> str:
    """Convert a text to lower case with single spaces."""
    return " ".join(text.lower().split())
