"""Render drafts of baseline files from the tables and text of a document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class BaselineDraft:
    """The draft of a baseline file of one recipe.

    The file is valid once every line of `fill_in` has a value.
    """

    recipe: str
    release: str
    text: str
    configurations: int
    cells: int

    @property
    def fill_in(self) -> tuple[tuple[int, str], ...]:
        """The incomplete lines: (1-based line number, missing key)."""
        return tuple((line, text) for line, _, text in self._split_lines(FILL_IN))

    @property
    def assumed(self) -> tuple[tuple[int, str], ...]:
        """The lines with values that the document does not state: (number, text)."""
        return tuple((line, text) for line, text, _ in self._split_lines(NOT_STATED))

    def _split_lines(self, marker: str) -> Iterator[tuple[int, str, str]]:
        """Yield (1-based line number, text before `marker`, text after) of matching lines."""
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
    recipe, cells = entries[0].recipe, sum(len(entry.cells) for entry in entries)
    sizes = tuple(dict.fromkeys(str(entry.facts["size"]) for entry in entries))
    models = {
        size: _select_model(prose, size, is_only_size=len(sizes) == 1) for size in sizes
    }
    lines = [
        *_render_head(mapping, recipe, release, document, prose, has_metrics=cells > 0)
    ]
    lines += _render_peaks(entries, prose)
    if any(models.values()):
        lines += [
            "",
            "models:",
            *(line for size in sizes for line in _render_model(size, models[size])),
        ]
    lines += ["", "configurations:"]
    last_source = None
    for entry in entries:
        if last_source != (entry.table, entry.line):
            last_source = entry.table, entry.line
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
    return (
        _render_value(name, about[name])
        if name in about
        else f"{name}: {usual}   {USUAL}"
    )


def _render_value(
    name: str, stated: ProseValue | None, indent: str = "", text: str = ""
) -> str:
    """Render a key with its value and source, or a key to fill in if `stated` is None.

    `text` is the value in YAML, if it differs from the stated value.
    """
    # The schema refuses `null`, so an incomplete draft cannot judge runs.
    if stated is None:
        return f"{indent}{name}: null   {FILL_IN} {name}{FILL_IN_HINTS.get(name, '')}"
    return f"{indent}{name}: {text or stated.value}   # {stated.source}"


def _render_peaks(
    entries: Sequence[DocumentConfiguration], prose: Prose
) -> Iterator[str]:
    """Yield the peaks of all GPU types and precisions of the configurations.

    A peak that the document does not state is the vendor's, if known.
    """
    yield "peak_tflops:"
    pairs = dict.fromkeys(
        (str(entry.facts["gpu"]), str(entry.facts["dtype"])) for entry in entries
    )
    for gpu in dict.fromkeys(gpu for gpu, _ in pairs):
        peaks = prose.select("peak", gpu)
        yield f"  {gpu}:"
        for dtype in (dtype for pair_gpu, dtype in pairs if pair_gpu == gpu):
            if dtype in peaks:
                yield _render_value(
                    dtype, peaks[dtype], "    ", json.dumps(peaks[dtype].value)
                )
            else:
                peak = find_peak(gpu, dtype)
                yield f'    {dtype}: "{peak or NO_PEAK}"   {NOT_STATED}{": the vendor gives it" if peak else ""}'


def _select_model(prose: Prose, size: str, *, is_only_size: bool) -> ProseValues:
    """Select the values of a model size.

    Values without a size apply only if the document has no other size.
    """
    unsized = prose.select("model") if is_only_size else {}
    return {**unsized, **prose.select("model", size)}


def _render_model(size: str, model: ProseValues) -> Iterator[str]:
    """Yield the lines of a model: formula, dimensions and worked example."""
    formula, constant = model.get("formula"), model.get("printed_flops")
    yield f"  {_quote(size)}:"
    if formula is None:
        yield f"    formula: none   {NOT_STATED}: docs/explanation/flops.md has formulas for MFU"
        for name in (name for name in MODEL_KEYS if name in model):
            text = model[name].value
            yield _render_value(
                name, model[name], "    ", text if text.isdigit() else json.dumps(text)
            )
        return
    # Documents compute their tables with the rounded constant, so append the number of
    # its digits to the formula: `1.3e12` has 3 characters before the exponent, 2 digits.
    digits = f":{len(constant.value.lower().partition('e')[0]) - 1}" if constant else ""
    yield _render_value("formula", formula, "    ", f"{formula.value}{digits}")
    for name in ("hidden_size", *FORMULA_NEEDS[formula.value], "vocabulary_size"):
        yield _render_value(name, model.get(name), "    ")
    if constant:
        yield _render_value(
            "printed_flops", constant, "    ", json.dumps(constant.value)
        )
    yield from _render_worked_example(model)


def _render_worked_example(model: ProseValues) -> Iterator[str]:
    """Yield the lines of the worked FLOPs example, if it is complete."""
    sums = [model.get(f"worked {name}") for name in WORKED_SUMS]
    shape = [model.get(name) for name in ("sequence_length", "layers")]
    # An incomplete example cannot be recomputed.
    if None in sums or None in shape:
        return
    yield "    worked:"
    for name, stated in zip(
        ("sequence_length", "layers", *WORKED_SUMS), (*shape, *sums), strict=True
    ):
        if stated is not None:
            yield _render_value(
                name,
                stated,
                "      ",
                json.dumps(stated.value) if name in WORKED_SUMS else "",
            )
    if flops := model.get("worked flops"):
        yield _render_value("flops", flops, "      ", json.dumps(flops.value))


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
    from_text = {
        name: model[name]
        for name in ("sequence_length", "layers")
        if name in model and name not in facts
    }
    columns = {
        name: from_text[name].value if name in from_text else facts.get(name)
        for name in COLUMNS
    }
    needed = [name for name in SHAPE if columns[name] is None and "formula" in model]
    keys = [f"{name}: {value}" for name, value in columns.items() if value is not None]
    keys += [f"{name}: null" for name in needed]
    if "proxy" in facts:
        keys.append("proxy: true")
    if "logged_tflop" in facts:
        keys.append(f"logged_tflop: {facts['logged_tflop']}")
    notes = []
    if from_text:
        sources = [f"{name}: {value.source}" for name, value in from_text.items()]
        notes.append(f"   # {', '.join(sources)}")
    if needed:
        notes.append(f"   {FILL_IN} {', '.join(needed)}")
    if keys:
        yield f"     {', '.join(keys)},{''.join(notes)}"
    cells = ", ".join(
        f"{name}: {json.dumps(entry.cells[name])}"
        for name in METRICS
        if name in entry.cells
    )
    yield f"     cells: {{{cells}}}}}" if cells else "    }"


def _quote(text: str) -> str:
    """Quote a text for YAML, unless it is a simple word."""
    # YAML 1.1 reads these as truth values or null.
    words = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
    if re.fullmatch(r"[a-z][a-z0-9_.]*", text) and text not in words:
        return text
    return json.dumps(escape(text), ensure_ascii=False)
