"""From a recipe document to drafts of baseline files, and where they are written."""

from __future__ import annotations

import difflib
import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pytest_llmbench.baseline.documents.document_configurations import ImportDefaults, collect_configurations
from pytest_llmbench.baseline.documents.labels import METRICS
from pytest_llmbench.baseline.documents.markdown import read_tables
from pytest_llmbench.baseline.documents.prose import Prose, ProseValue, ProseValues, read_prose
from pytest_llmbench.baseline.documents.table_configurations import DocumentConfiguration, UnreadCell
from pytest_llmbench.baseline.read import holds_recorded
from pytest_llmbench.baseline.schema import COLUMNS, FORMULA_NEEDS
from pytest_llmbench.baseline.write import write_beside
from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.yamlfile import read_text

LARGEST_BYTES = 16 << 20
WIDTH = 79


@dataclass(frozen=True, slots=True)
class ImportedDocument:
    """A draft for each recipe of a document, and every cell of its tables that is in none of them."""

    document: str
    drafts: tuple[BaselineDraft, ...]
    unread: tuple[UnreadCell, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every cell of performance and configuration was read."""
        return not any(cell.decisive for cell in self.unread)


class DraftFate(StrEnum):
    """What became of the file of a draft."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    REPLACED = "replaced"
    KEPT = "kept"
    """Another file is there, and nobody said `--force`."""


@dataclass(frozen=True, slots=True)
class WrittenDraft:
    """A file, what became of it, and how the draft differs from what was there."""

    path: Path
    fate: DraftFate
    difference: str = ""


def import_document(text: str, name: str, release: str, defaults: ImportDefaults) -> ImportedDocument:
    """Return what a document says of its configurations; `name` is what the drafts call it.

    Raises BaselineError for a document in which there is no configuration at all, with what was found in it.
    """
    collected = collect_configurations(read_tables(text), defaults)
    prose = read_prose(text)
    recipes = dict.fromkeys(entry.recipe for entry in collected.configurations)
    drafts = tuple(
        make_draft([entry for entry in collected.configurations if entry.recipe == recipe], prose, name, release)
        for recipe in recipes
    )
    imported = ImportedDocument(name, drafts, (*collected.unread, *prose.unread))
    if not drafts:
        cells = "\n".join(format_report(imported, ())) if collected.unread else "there is no table in it"
        raise BaselineError(f"{name}: found no configuration, expected a table with numbers of GPUs\n{cells}")
    return imported


def read_document(path: Path) -> str:
    """Return the text of a document; BaselineError where it cannot be read."""
    return read_text(path, "Markdown document", LARGEST_BYTES, BaselineError)


def write_drafts(imported: ImportedDocument, output: Path, *, force: bool) -> tuple[WrittenDraft, ...]:
    """Write drafts below a folder, as <recipe>/<release>.yaml, or the only one to a file (`*.yaml`, `*.yml`).

    A file that is there and is another one is kept unless `force`; its difference is returned either way. Raises
    BaselineError where a place cannot be written, where something was recorded there (with it would go what was
    accepted), and for several recipes and one file.
    """
    is_file = output.suffix in (".yaml", ".yml") and not output.is_dir()
    if is_file and len(imported.drafts) > 1:
        names = ", ".join(draft.recipe for draft in imported.drafts)
        raise BaselineError(f"{output}: found {len(imported.drafts)} recipes ({names}), expected one; give a folder")
    return tuple(
        _write_draft(output if is_file else output / draft.recipe / f"{draft.release}.yaml", draft.text, force=force)
        for draft in imported.drafts
    )


def _write_draft(path: Path, text: str, *, force: bool) -> WrittenDraft:
    try:
        before = path.read_text(encoding="utf-8") if os.path.lexists(path) else None
        if before == text:
            return WrittenDraft(path, DraftFate.UNCHANGED)
        if before is not None and holds_recorded(path):
            raise BaselineError(
                f"{path}: found recorded baselines, which a document does not replace; move the file or write elsewhere"
            )
        if before is not None and not force:
            return WrittenDraft(path, DraftFate.KEPT, _diff(path, before, text))
        write_beside(path, text)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise BaselineError(f"{path}: {why or error}, expected a place that can be written") from error
    if before is None:
        return WrittenDraft(path, DraftFate.CREATED)
    return WrittenDraft(path, DraftFate.REPLACED, _diff(path, before, text))


def _diff(path: Path, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), f"{path} (import)", lineterm="")
    return "\n".join(lines)


def format_report(imported: ImportedDocument, written: Sequence[WrittenDraft]) -> Iterator[str]:
    """Yield what was read, what became of the files, what is to be filled in, and every cell that was not read."""
    for draft in imported.drafts:
        configurations = formatting.count_noun(draft.configurations, "configuration")
        yield f"{draft.recipe} {draft.release}: {configurations}, {formatting.count_noun(draft.cells, 'cell')}"
    for file in written:
        outcome = "is another file and was kept; --force replaces it" if file.fate == DraftFate.KEPT else file.fate
        yield from filter(None, (file.difference, f"{file.path}: {outcome}"))
    for draft in imported.drafts:
        for line, what in draft.fill_in:
            yield from _wrap(f"to fill in, {draft.recipe} line {line}: {what}")
    grouped: dict[tuple[int, str], list[str]] = {}
    for cell in imported.unread:
        grouped.setdefault((cell.line, cell.reason), []).append(repr(cell.text))
    for (line, reason), texts in grouped.items():
        yield from _wrap(f"not read, line {line} of {imported.document}: {', '.join(texts)}: {reason}")
    yield f"{formatting.count_noun(len(imported.unread), 'cell')} not read"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


FILL_IN = "# fill in:"


USUAL_WINDOW = "{statistic: mean, first: 11, last: 44}"


SUMS = ("attention", "mlp", "embedding")


HINTS = {
    "framework": "such as NeMo-Run",
    "dialect": "that of the log: nemo1, nemo2, maxtext, megatron, torchtitan, ...",
    "timed": "last_step or mean",
    "steps": "of a run",
    "formula": "grok, llama or nemotron, and the digits to which the document rounds, as in llama:3 (docs/flops.md)",
}


@dataclass(frozen=True, slots=True)
class BaselineDraft:
    """A baseline file of one recipe, which can be read once every line of `fill_in` is complete."""

    recipe: str
    release: str
    text: str
    configurations: int
    cells: int

    @property
    def fill_in(self) -> tuple[tuple[int, str], ...]:
        """The lines to complete, 1-based, and what is missing there."""
        lines = enumerate(self.text.splitlines(), 1)
        return tuple((number, line.partition(FILL_IN)[2].strip()) for number, line in lines if FILL_IN in line)


def make_draft(entries: Sequence[DocumentConfiguration], prose: Prose, document: str, release: str) -> BaselineDraft:
    """Return the file of the configurations of one recipe; `document` is the name of what they were read from."""
    recipe, cells = entries[0].recipe, sum(len(entry.cells) for entry in entries)
    lines = [*_render_head(recipe, release, document, prose, timed=cells > 0), *_render_peaks(entries, prose)]
    sizes = tuple(dict.fromkeys(str(entry.facts["size"]) for entry in entries))
    models = {size: _select_model(prose, size, alone=len(sizes) == 1) for size in sizes}
    lines += ["", "models:", *(line for size in sizes for line in _render_model(size, models[size]))]
    lines += ["", "configurations:"]
    for number, entry in enumerate(entries):
        if number == 0 or (entry.table, entry.line) != (entries[number - 1].table, entries[number - 1].line):
            lines.append(f"  # {escape(entry.table)} (line {entry.line} of the document)")
        lines += _render_row(entry, models[str(entry.facts["size"])])
    return BaselineDraft(recipe, release, "\n".join(lines) + "\n", len(entries), cells)


def _render_head(recipe: str, release: str, document: str, prose: Prose, *, timed: bool) -> Iterator[str]:
    yield f"# Drafted from {escape(document)} by llmbench baselines import; docs/baselines.md explains the keys."
    yield "schema: 1"
    yield f"kind: {'published' if timed else 'recipe'}"
    yield f"recipe: {_quote(recipe)}"
    yield f"release: {json.dumps(release)}"
    yield f"title: {_quote(f'{recipe} {release}')}"
    yield _render_value("framework", None)
    yield f"names: [{_quote(recipe)}]"
    yield _render_value("dialect", prose.about.get("dialect"))
    yield f"source: {{document: {_quote(document)}}}"
    yield ""
    about = prose.about
    if timed or "timed" in about:
        yield _render_value("timed", about.get("timed"))
    if "first" in about:
        first, last = about["first"], about["last"]
        yield f"window: {{statistic: mean, first: {first.value}, last: {last.value}}}   # line {first.line}"
    else:
        yield f"window: {USUAL_WINDOW}   # the usual one, the document names none"
    if timed or "steps" in about:
        yield _render_value("steps", about.get("steps"))


def _render_value(name: str, stated: ProseValue | None, indent: str = "", text: str = "") -> str:
    """Return a key with its value and where it stands, or one to fill in."""
    # `null` is refused by the schema, so nobody judges against what the document does not complete.
    if stated is None:
        return f"{indent}{name}: null   {FILL_IN} {name}{f', {HINTS[name]}' if name in HINTS else ''}"
    return f"{indent}{name}: {text or stated.value}   # line {stated.line}"


def _render_peaks(entries: Sequence[DocumentConfiguration], prose: Prose) -> Iterator[str]:
    yield "peak_tflops:"
    pairs = dict.fromkeys((str(entry.facts["gpu"]), str(entry.facts["dtype"])) for entry in entries)
    for gpu in dict.fromkeys(gpu for gpu, _ in pairs):
        yield f"  {gpu}:"
        for dtype in (dtype for other, dtype in pairs if other == gpu):
            peak = prose.peaks.get((gpu, dtype))
            if peak is None:
                yield f'    {dtype}: null   {FILL_IN} peak TFLOP/s of {gpu} in {dtype}, or "NA"'
            else:
                yield _render_value(dtype, peak, "    ", json.dumps(peak.value))


def _select_model(prose: Prose, size: str, *, alone: bool) -> ProseValues:
    """Return what is stated of a model; what names no size is about the only one, where it is alone."""
    # Beside a second model nobody knows which of them such a line is about.
    unnamed = prose.models.get("", {}) if alone else {}
    return {**unnamed, **prose.models.get(size, {})}


def _render_model(size: str, model: ProseValues) -> Iterator[str]:
    formula, constant = model.get("formula"), model.get("printed_flops")
    yield f"  {_quote(size)}:"
    # A document rounds its constant before it multiplies; with all digits its own tables would not reproduce.
    digits = f":{len(constant.value.lower().partition('e')[0]) - 1}" if constant else ""
    yield _render_value("formula", formula, "    ", f"{formula.value}{digits}" if formula else "")
    needed = FORMULA_NEEDS[formula.value] if formula else ("attention_heads", "query_groups", "ffn_size")
    for name in ("hidden_size", *needed, "vocabulary_size"):
        yield _render_value(name, model.get(name), "    ")
    if constant:
        yield _render_value("printed_flops", constant, "    ", json.dumps(constant.value))
    yield from _render_worked_example(model)


def _render_worked_example(model: ProseValues) -> Iterator[str]:
    sums = [model.get(f"worked {name}") for name in SUMS]
    shape = [model.get(name) for name in ("sequence_length", "layers")]
    # Half an example cannot be computed again.
    if None in sums or None in shape:
        return
    yield "    worked:"
    for name, stated in zip(("sequence_length", "layers", *SUMS), (*shape, *sums), strict=True):
        if stated is not None:
            yield _render_value(name, stated, "      ", json.dumps(stated.value) if name in SUMS else "")
    if flops := model.get("worked flops"):
        yield _render_value("flops", flops, "      ", json.dumps(flops.value))


def _render_row(entry: DocumentConfiguration, model: ProseValues) -> Iterator[str]:
    key = ", ".join(f"{name}: {_quote(str(entry.facts[name]))}" for name in ("size", "gpu", "dtype"))
    title = f", table: {_quote(entry.table)}" if entry.table else ""
    yield f"  - {{{key}, gpus: {entry.facts['gpus']}{title},"
    worked = {name: model[name].value for name in ("sequence_length", "layers") if name in model}
    columns = {name: entry.facts.get(name, worked.get(name)) for name in COLUMNS}
    needed = [name for name in ("sequence_length", "layers", "gbs") if columns[name] is None]
    keys = [f"{name}: {value}" for name, value in columns.items() if value is not None]
    keys += [f"{name}: null" for name in needed] + ["proxy: true"] * entry.proxy
    cells = ", ".join(f"{name}: {json.dumps(entry.cells[name])}" for name in METRICS if name in entry.cells)
    places = [f"{name}: line {model[name].line}" for name in worked if name not in entry.facts]
    notes = [*([f"# {', '.join(places)}"] if places else []), *([f"{FILL_IN} {', '.join(needed)}"] if needed else [])]
    end = "".join(f"   {note}" for note in notes)
    yield f"     {', '.join(keys)}{',' if cells else '}'}{end}"
    if cells:
        yield f"     cells: {{{cells}}}}}"


def _quote(text: str) -> str:
    """Return a text as YAML reads it back: plain where it is a simple word."""
    # YAML 1.1 reads these as truth values or nothing, `no` and `on` too.
    words = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
    if re.fullmatch(r"[a-z][a-z0-9_.]*", text) and text not in words:
        return text
    return json.dumps(escape(text), ensure_ascii=False)
