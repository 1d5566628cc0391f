"""From a recipe document to drafts of baseline files: the configurations of all its tables, and where drafts go."""

from __future__ import annotations

import difflib
import math
import os
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from pytest_llmbench.baseline.documents.drafts import BaselineDraft, make_draft, read_prose
from pytest_llmbench.baseline.documents.labels import (
    ABSENT,
    KEY,
    parse_dtypes,
    parse_metric_label,
    parse_release,
)
from pytest_llmbench.baseline.documents.markdown import MarkdownTable, MarkdownTables, read_tables
from pytest_llmbench.baseline.documents.table_configurations import (
    DocumentConfiguration,
    UnreadCell,
    read_table,
    refuse_rows,
)
from pytest_llmbench.baseline.read import holds_recorded
from pytest_llmbench.baseline.write import write_beside
from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.userfile import is_there, read_text

LARGEST_BYTES = 16 << 20
WIDTH = 79


ConfigurationKey = tuple[str, ...]

MOST_APART = 1.3
"""What is printed with one digit may be a quarter off its exact value; a factor beyond this is another value."""

MOST_OFF = 3.0
"""Documents have computed tokens/s with half of the batch; milliseconds or a value per GPU are further off."""

TIMING = ("step_time", "tokens_per_second_per_gpu", "tflops_per_gpu")
"""The metrics of which each says how fast a step is."""

APART = ("task", "variant")
"""What tells rows apart that are the same in size, GPU type, precision and number of GPUs."""

STRAY = "it stands in no Markdown table: in HTML, in a comment, or without a line of dashes below a header"
UNMEASURED = "nothing was measured of its configuration"


@dataclass(frozen=True, slots=True)
class ImportDefaults:
    """What the document cannot say, or does not in its tables; empty for nothing."""

    recipe: str = ""
    size: str = ""
    gpu: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class DocumentConfigurations:
    """The configurations in the order of the document, each with its full key, and every cell that is in none."""

    configurations: tuple[DocumentConfiguration, ...]
    unread: tuple[UnreadCell, ...]


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
    collected = collect_configurations(select_release(read_tables(text), name, release), defaults)
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


def select_release(tables: MarkdownTables, name: str, release: str) -> MarkdownTables:
    """Return the tables of one release, where headings say which release tables are of; all where none does."""
    stated = [parse_release((*table.above, table.heading)) for table in tables.tables]
    releases = list(dict.fromkeys(filter(None, stated)))
    if releases and release not in releases:
        raise BaselineError(
            f"{name}: found tables of {', '.join(releases)}, expected {release}: give one of these as --release"
        )
    chosen = [table for table, other in zip(tables.tables, stated, strict=True) if other in ("", release)]
    return replace(tables, tables=tuple(chosen))


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
        write_draft(output if is_file else output / draft.recipe / f"{draft.release}.yaml", draft.text, force=force)
        for draft in imported.drafts
    )


def write_draft(path: Path, text: str, *, force: bool) -> WrittenDraft:
    """Write a draft, unless another file is there and nobody said `force`; return what became of it."""
    if path.is_symlink() and path.exists():
        raise BaselineError(f"{path}: a link to the file {os.path.realpath(path)}: give the name of the file itself")
    try:
        before = (path.read_text(encoding="utf-8") or None) if is_there(path, follow_links=False) else None
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


# --- the configurations of all tables --------------------------------------------------------------------


def collect_configurations(tables: MarkdownTables, defaults: ImportDefaults) -> DocumentConfigurations:
    """Return the configurations of a document.

    The columns of a configuration come from its performance table and from every row of a configuration table that says
    nothing else of size, GPU type, precision and number of GPUs. Where no table has a metric, the rows of configuration
    tables are the configurations.
    """
    unread = list(refuse_rows(tables.stray, STRAY))
    entries: list[DocumentConfiguration] = []
    for table in tables.tables:
        of_table, problems = read_table(table)
        entries += [each for entry in of_table for each in _split_by_dtype(entry)]
        unread += problems
    # A document without a single time is that of a recipe: its rows are all there is.
    timed = any(map(_has_metric, tables.tables))
    chosen = [entry for entry in entries if entry.cells] if timed else entries
    described = [entry for entry in entries if not entry.cells] if timed else []
    recipes = {entry.recipe for entry in chosen}
    used: set[int] = set()  # of the rows' values: those that one row was parted into share them
    # A row without a number of GPUs would lend its columns to every size of the model.
    sized = [(row, [(name, row.facts[name]) for name in KEY if name in row.facts]) for row in described]
    sized = [(row, keys) for row, keys in sized if row.facts.get("gpus")]
    whole = [
        _add_described(entry, [each for each in sized if _may_be_of(each[0], entry, recipes)], used, unread)
        for entry in chosen
    ]
    if timed:
        unread += [cell for entry in described if id(entry.values) not in used for cell in _refuse(entry, UNMEASURED)]
    return DocumentConfigurations(*_check_complete(whole, defaults, unread, timed=timed))


def _has_metric(table: MarkdownTable) -> bool:
    return any(parse_metric_label(label) for label in (*table.header.cells, *(row.cells[0] for row in table.rows)))


def _split_by_dtype(entry: DocumentConfiguration) -> Iterator[DocumentConfiguration]:
    stated = entry.facts.get("dtype")
    for dtype in parse_dtypes(str(stated)) if stated else ():
        yield replace(entry, facts={**entry.facts, "dtype": dtype})
    if not stated:
        yield entry


def _may_be_of(row: DocumentConfiguration, entry: DocumentConfiguration, recipes: Collection[str]) -> bool:
    """Whether a row of a configuration table may be about what was measured: its title names no other recipe of it."""
    return row.recipe == entry.recipe or row.recipe not in recipes or not entry.recipe


def _add_described(
    entry: DocumentConfiguration,
    described: Sequence[tuple[DocumentConfiguration, Sequence[tuple[str, object]]]],
    used: set[int],
    unread: list[UnreadCell],
) -> DocumentConfiguration:
    """Return a measured configuration with the columns of those rows, each with what tells it apart, that are about
    it."""
    facts, values, proxy = dict(entry.facts), [*entry.values], entry.proxy
    for row, keys in described:
        if any(facts.get(name, value) != value for name, value in keys):
            continue
        used.add(id(row.values))
        values += row.values
        proxy = proxy or row.proxy
        for name, value in row.facts.items():
            stated = facts.setdefault(name, value)
            if stated != value:  # which of two counts nobody knows: both are listed, and none is taken
                why = f"line {entry.line} says {stated or 'several values'} of it"
                unread.append(UnreadCell(row.line, f"{name} {value}", why))
                facts[name] = ""
    facts = {name: value for name, value in facts.items() if value != "" or name in KEY}
    return replace(entry, facts=facts, values=tuple(values), proxy=proxy)


def _check_complete(
    entries: Sequence[DocumentConfiguration], defaults: ImportDefaults, unread: list[UnreadCell], *, timed: bool
) -> tuple[tuple[DocumentConfiguration, ...], tuple[UnreadCell, ...]]:
    """Return the things that have a key of their own and a step time, and what is wrong with the others."""
    names = {entry.recipe for entry in entries if entry.recipe}
    alone = next(iter(names)) if len(names) == 1 else ""
    complete: dict[ConfigurationKey, DocumentConfiguration] = {}
    twice: dict[ConfigurationKey, list[DocumentConfiguration]] = {}
    stated = {name: value for name in KEY[:3] if (value := getattr(defaults, name))}
    # The sizes of several models alone would not tell, in one recipe, which is which.
    by_name = defaults.recipe and len({entry.recipe for entry in entries if entry.model}) > 1
    completed = []
    for entry in entries:
        facts = {**stated, **entry.facts, **({"size": entry.model} if by_name and entry.model else {})}
        completed.append(replace(entry, recipe=defaults.recipe or entry.recipe or alone, facts=facts))
    for whole in _tell_batches_apart(completed):
        key = _make_key(whole)
        why = _find_missing(whole, timed=timed)
        # What says the same twice does no harm.
        first = complete.setdefault(key, whole) if not why else whole
        if first is not whole and (first.cells, first.facts) != (whole.cells, whole.facts):
            twice.setdefault(key, [first]).append(whole)
        if why:
            unread += _refuse(whole, why)
    # Two columns of one number of GPUs: one of them is another measurement, and nothing says which.
    for key, several in twice.items():
        lines = ", ".join(str(whole.line) for whole in several)
        del complete[key]
        unread += [cell for whole in several for cell in _refuse(whole, f"lines {lines} give several values of one")]
    ordered = sorted(dict.fromkeys(unread), key=lambda cell: cell.line)
    return tuple(_mark_proxies(list(complete.values()))), tuple(ordered)


def _make_key(entry: DocumentConfiguration) -> ConfigurationKey:
    return (entry.recipe, *(str(entry.facts.get(name, "")) for name in (*KEY, *APART)))


def _tell_batches_apart(entries: Sequence[DocumentConfiguration]) -> Iterator[DocumentConfiguration]:
    """Yield configurations; those that are the same but for the batch of each are variants of it."""
    batches: dict[ConfigurationKey, list[int | str]] = {}
    for entry in entries:
        batches.setdefault(_make_key(entry), []).append(entry.facts.get("gbs", ""))
    for entry in entries:
        several = batches[_make_key(entry)]
        is_apart = len(several) == len(set(several)) > 1 and "" not in several
        yield replace(entry, facts={**entry.facts, "variant": f"gbs{entry.facts['gbs']}"}) if is_apart else entry


def _find_missing(entry: DocumentConfiguration, *, timed: bool) -> str:
    missing = [name for name in KEY if not entry.facts.get(name)]
    words = {"size": "model size", "gpu": "GPU type", "dtype": "precision", "gpus": "number of GPUs"}
    if missing:
        several = missing[0] in entry.facts
        return f"{'more than one' if several else 'no'} {words[missing[0]]} is stated for it"
    if not entry.recipe:
        return "its title names no recipe; give --recipe"
    if timed and not any(name in entry.cells for name in TIMING):
        return "no step time stands beside it"
    # Either metric alone would pass: only the two together tell that a row has moved by a cell.
    apart = "its tokens/s and its days to 1T tokens contradict each other: a row may be shifted by a cell"
    if _find_factor(entry.cells, "days_to_1t", 1e12 / 86_400) > MOST_APART:
        return apart
    tokens = math.prod(int(entry.facts.get(name, 0)) for name in ("sequence_length", "gbs"))
    off = "its tokens/s are not those of its step time, sequence length and GBS: one may be in another unit"
    return off if tokens and _find_factor(entry.cells, "step_time", tokens) > MOST_OFF else ""


def _find_factor(cells: Mapping[str, str], name: str, product: float) -> float:
    """Return how far a metric times tokens/s is from what it should be, as a factor of 1 or more; 1 without one."""
    texts = [cells.get(each, "NA") for each in ("tokens_per_second", name)]
    if any(text in ABSENT for text in texts):
        return 1.0
    factor = math.prod(map(float, texts)) / product
    return max(factor, 1 / factor)


def _refuse(entry: DocumentConfiguration, why: str) -> Iterator[UnreadCell]:
    for value in entry.values:
        if value.text not in ABSENT:
            yield UnreadCell(value.line, value.text, f"{value.label!r}: {why}")


def _mark_proxies(entries: Sequence[DocumentConfiguration]) -> Iterator[DocumentConfiguration]:
    """Yield configurations, marked as proxies where another one of their size has more layers."""
    most: dict[tuple[str, int | str], int] = {}
    for entry in entries:
        model = entry.recipe, entry.facts["size"]
        most[model] = max(most.get(model, 0), int(entry.facts.get("layers", 0)))
    for entry in entries:
        fewer = 0 < int(entry.facts.get("layers", 0)) < most[entry.recipe, entry.facts["size"]]
        yield replace(entry, proxy=entry.proxy or fewer)
