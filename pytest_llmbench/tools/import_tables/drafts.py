"""Render drafts of baseline files from the tables and text of a document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from pytest_llmbench.baseline.schema import COLUMNS, FORMULA_NEEDS, NO_PEAK, SHAPE
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.gpus import find_peak
from pytest_llmbench.tools.import_tables.mappings import METRICS, DocumentMapping
from pytest_llmbench.tools.import_tables.prose import Prose, ProseValue, ProseValues
from pytest_llmbench.tools.import_tables.table_configurations import (
    DocumentConfiguration,
)

FILL_IN = "# fill in:"
"""Comment of a line that needs a value before the file is valid."""

NOT_STATED = "# not stated"
"""Comment of a line whose value the document does not state."""

USUAL = f"{NOT_STATED}: the usual"
USUAL_WINDOW = f"window: {{statistic: mean, first: 11, last: 44}}   {USUAL}"
WORKED_SUMS = ("attention", "mlp", "embedding")
MODEL_KEYS = (
    "hidden_size",
    "attention_heads",
    "query_groups",
    "ffn_size",
    "top_k",
    "vocabulary_size",
    "printed_flops",
)
FILL_IN_HINTS = {
    "dialect": ", that of the log: nemo1, nemo2, maxtext, megatron, torchtitan, ..."
}


class BaselineDraft(Struct, frozen=True):
    """The draft of a baseline file of one recipe.

    The file is valid once every line of `missing_keys` has a value.
    """

    recipe: str
    release: str
    text: str
    configurations: int
    cells: int

    @property
    def missing_keys(self) -> tuple[tuple[int, str], ...]:
        """The keys without a value: (1-based line number, key)."""
        return tuple((line, text) for line, _, text in self._split_lines(FILL_IN))

    @property
    def assumed_values(self) -> tuple[tuple[int, str], ...]:
        """The values that the document does not state: (1-based line number, text)."""
        return tuple((line, text) for line, text, _ in self._split_lines(NOT_STATED))

    def _split_lines(self, marker: str) -> Iterator[tuple[int, str, str]]:
        """Yield (line number, text before `marker`, text after) of lines with `marker`.

        Line numbers are 1-based.
        """
        for number, line in enumerate(self.text.splitlines(), 1):
            if marker in line:
                before, _, after = line.partition(marker)
                yield number, before.strip(), after.strip()


def make_draft(
    mapping: DocumentMapping,
    entries: Sequence[DocumentConfiguration],
    prose: Prose,
    document: str,
    release: str,
) -> BaselineDraft:
    """Render the draft of one recipe; `entries` are its configurations.

    `document` is the name of the document.
    """
    recipe = entries[0].recipe
    cells = sum(len(entry.cells) for entry in entries)
    # Without duplicates, in the order of the document.
    sizes = tuple(dict.fromkeys(str(entry.facts["size"]) for entry in entries))
    models = {
        size: _select_model(prose, size, is_only_size=len(sizes) == 1) for size in sizes
    }
    has_metrics = cells > 0
    lines = list(
        _render_head(mapping, recipe, release, document, prose, has_metrics=has_metrics)
    )
    lines += _render_peaks(entries, prose)
    if any(models.values()):
        lines += ["", "models:"]
        for size in sizes:
            lines += _render_model(size, models[size])
    lines += ["", "configurations:"]
    last_source = None
    for entry in entries:
        # One comment for all configurations of a row, such as those of `BF16/FP8`.
        source = (entry.table, entry.line)
        if source != last_source:
            last_source = source
            lines.append(
                f"  # {escape(entry.table)} (line {entry.line} of the document)"
            )
        lines += _render_row(entry, models[str(entry.facts["size"])])
    return BaselineDraft(recipe, release, "\n".join(lines) + "\n", len(entries), cells)


def _render_head(
    mapping: DocumentMapping,
    recipe: str,
    release: str,
    document: str,
    prose: Prose,
    *,
    has_metrics: bool,
) -> Iterator[str]:
    """Yield the lines before the peaks: names, source, window and steps.

    Without metrics, the file is of the kind `recipe`, which needs no steps.
    """
    about = prose.select("about")
    yield f"# Drafted from {escape(document)} by llmbench baselines import; docs/reference/baseline-files.md explains the keys."
    yield "schema: 1"
    yield f"kind: {'published' if has_metrics else 'recipe'}"
    yield f"recipe: {_quote(recipe)}"
    yield f"release: {json.dumps(release)}"
    yield f"title: {_quote(f'{recipe} {release}')}"
    yield _render_framework(mapping, about)
    yield f"names: [{_quote(recipe)}]"
    yield _render_value("dialect", about.get("dialect"))
    yield f"source: {{document: {_quote(document)}}}"
    yield ""
    if has_metrics or "timed" in about:
        yield _render_usual("timed", about, "mean")
    if "first" in about:
        first, last = about["first"], about["last"]
        yield f"window: {{statistic: mean, first: {first.value}, last: {last.value}}}   # {first.source}"
    else:
        yield USUAL_WINDOW
    if has_metrics or "steps" in about:
        yield _render_usual("steps", about, "50")


def _render_framework(mapping: DocumentMapping, about: ProseValues) -> str:
    """Render the stated framework, else the framework of the dialect, else `unknown`."""
    if "framework" in about:
        return _render_value("framework", about["framework"])
    dialect = about.get("dialect")
    if dialect is None or dialect.value not in mapping.frameworks:
        return f"framework: unknown   {NOT_STATED}"
    return f"framework: {mapping.frameworks[dialect.value]}   # by the log of {dialect.source}"


def _render_usual(name: str, about: ProseValues, usual: str) -> str:
    """Render the stated value of a key, else the usual value with a comment."""
    if name in about:
        return _render_value(name, about[name])
    return f"{name}: {usual}   {USUAL}"


def _render_value(
    name: str, stated: ProseValue | None, indent: str = "", yaml_value: str = ""
) -> str:
    """Render a key with its value and source, or a key to fill in if `stated` is None.

    `yaml_value` is the value in YAML, if it differs from the stated value (quotes).
    """
    # The schema refuses `null`, so an incomplete draft cannot judge runs.
    if stated is None:
        return f"{indent}{name}: null   {FILL_IN} {name}{FILL_IN_HINTS.get(name, '')}"
    return f"{indent}{name}: {yaml_value or stated.value}   # {stated.source}"


def _render_quoted(name: str, stated: ProseValue, indent: str) -> str:
    """Render a key with its value in quotes, which keep all digits of a number."""
    return _render_value(name, stated, indent, yaml_value=json.dumps(stated.value))


def _render_peaks(
    entries: Sequence[DocumentConfiguration], prose: Prose
) -> Iterator[str]:
    """Yield the peaks of all GPU types and precisions of the configurations.

    A peak that the document does not state is the vendor's, if known.
    """
    yield "peak_tflops:"
    dtypes_by_gpu: dict[str, list[str]] = {}
    for entry in entries:
        dtypes = dtypes_by_gpu.setdefault(str(entry.facts["gpu"]), [])
        dtypes.append(str(entry.facts["dtype"]))
    for gpu, dtypes in dtypes_by_gpu.items():
        peaks = prose.select("peak", gpu)
        yield f"  {gpu}:"
        for dtype in dict.fromkeys(dtypes):
            if dtype in peaks:
                yield _render_quoted(dtype, peaks[dtype], "    ")
                continue
            vendor_peak = find_peak(gpu, dtype)
            origin = ": the vendor gives it" if vendor_peak else ""
            yield f'    {dtype}: "{vendor_peak or NO_PEAK}"   {NOT_STATED}{origin}'


def _select_model(prose: Prose, size: str, *, is_only_size: bool) -> ProseValues:
    """Select the values of a model size.

    Values without a size apply only if the document has no other size.
    """
    unsized = prose.select("model") if is_only_size else {}
    return {**unsized, **prose.select("model", size)}


def _render_model(size: str, model: ProseValues) -> Iterator[str]:
    """Yield the lines of a model: formula, dimensions and worked example.

    Without a formula, yields only the stated dimensions. With a formula, yields all
    dimensions that it needs; the missing dimensions are to be filled in.
    """
    yield f"  {_quote(size)}:"
    formula = model.get("formula")
    if formula is None:
        yield f"    formula: none   {NOT_STATED}: docs/explanation/flops.md has formulas for MFU"
        for name in MODEL_KEYS:
            if name not in model:
                continue
            if model[name].value.isdigit():
                yield _render_value(name, model[name], "    ")
            else:
                yield _render_quoted(name, model[name], "    ")
        return
    formula_text = formula.value
    printed_flops = model.get("printed_flops")
    if printed_flops:
        # Documents compute their tables with the rounded printed FLOPs, so append the
        # number of its digits to the formula. `1.3e12`: "1.3" without the point has 2.
        mantissa, _, _ = printed_flops.value.lower().partition("e")
        formula_text += f":{len(mantissa) - 1}"
    yield _render_value("formula", formula, "    ", formula_text)
    for name in ("hidden_size", *FORMULA_NEEDS[formula.value], "vocabulary_size"):
        yield _render_value(name, model.get(name), "    ")
    if printed_flops:
        yield _render_quoted("printed_flops", printed_flops, "    ")
    yield from _render_worked_example(model)


def _render_worked_example(model: ProseValues) -> Iterator[str]:
    """Yield the lines of the worked FLOPs example, if it is complete."""
    shape_keys = ("sequence_length", "layers")
    sum_keys = {f"worked {name}": name for name in WORKED_SUMS}
    # An incomplete example cannot be recomputed.
    if not all(key in model for key in (*shape_keys, *sum_keys)):
        return
    yield "    worked:"
    for name in shape_keys:
        yield _render_value(name, model[name], "      ")
    for key, name in sum_keys.items():
        yield _render_quoted(name, model[key], "      ")
    flops = model.get("worked flops")
    if flops:
        yield _render_quoted("flops", flops, "      ")


def _render_row(entry: DocumentConfiguration, model: ProseValues) -> Iterator[str]:
    """Yield the lines of a configuration: key, columns and printed metrics.

    Columns that the table does not contain come from the text about the model.
    """
    facts = entry.facts
    key_names = ("size", "gpu", "dtype", "task", "variant")
    key = ", ".join(
        f"{name}: {_quote(str(facts[name]))}" for name in key_names if name in facts
    )
    title = f", table: {_quote(entry.table)}" if entry.table else ""
    yield f"  - {{{key}, gpus: {facts['gpus']}{title},"
    # Shape that only the text about the model states.
    from_text = {
        name: model[name]
        for name in ("sequence_length", "layers")
        if name in model and name not in facts
    }
    columns = {
        name: from_text[name].value if name in from_text else facts.get(name)
        for name in COLUMNS
    }
    missing_columns: list[str] = []
    if "formula" in model:  # it needs the shape
        missing_columns = [name for name in SHAPE if columns[name] is None]
    keys = [f"{name}: {value}" for name, value in columns.items() if value is not None]
    keys += [f"{name}: null" for name in missing_columns]
    if "proxy" in facts:
        keys.append("proxy: true")
    if "logged_tflop" in facts:
        keys.append(f"logged_tflop: {facts['logged_tflop']}")
    # Comments at the end of the line: the sources, and the columns to fill in.
    comments = []
    if from_text:
        sources = [f"{name}: {value.source}" for name, value in from_text.items()]
        comments.append(f"   # {', '.join(sources)}")
    if missing_columns:
        comments.append(f"   {FILL_IN} {', '.join(missing_columns)}")
    if keys:
        yield f"     {', '.join(keys)},{''.join(comments)}"
    cells = ", ".join(
        f"{name}: {json.dumps(entry.cells[name])}"
        for name in METRICS
        if name in entry.cells
    )
    yield f"     cells: {{{cells}}}}}" if cells else "    }"


def _quote(text: str) -> str:
    """Quote a text for YAML, unless it is a simple word such as `llama3.1`."""
    # YAML 1.1 reads these as truth values or null.
    reserved = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
    is_simple_word = re.fullmatch(r"[a-z][a-z0-9_.]*", text)
    if is_simple_word and text not in reserved:
        return text
    return json.dumps(escape(text), ensure_ascii=False)
