"""From a recipe document to drafts of baseline files: the configurations of all its tables, and where drafts go."""

from __future__ import annotations

import difflib
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from pytest_llmbench.baseline.documents.document_configurations import ImportDefaults, collect_configurations
from pytest_llmbench.baseline.documents.drafts import BaselineDraft, make_draft, read_prose
from pytest_llmbench.baseline.documents.labels import parse_release
from pytest_llmbench.baseline.documents.markdown import MarkdownTables, read_tables
from pytest_llmbench.baseline.documents.table_configurations import UnreadCell, is_about_peaks
from pytest_llmbench.baseline.key_definition import NAME
from pytest_llmbench.baseline.read import holds_recorded
from pytest_llmbench.baseline.write import write_beside
from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.userfile import is_there, read_text

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

    Raises BaselineError for a document in which there is no configuration at all, with what was found in it, and for a
    release or names that no file can have.
    """
    for flag, value in (("release", release), ("recipe", defaults.recipe), ("size", defaults.size)):
        if value and not re.fullmatch(NAME.pattern, value):
            raise BaselineError(f"--{flag} {value}: expected {NAME.expected}")
    tables = read_tables(text)
    collected = collect_configurations(select_release(tables, name, release), defaults)
    prose = read_prose(text, filter(is_about_peaks, tables.tables))
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
    """Write drafts without secrets below a folder, as <recipe>/<release>.yaml, or the only one to a file (`*.yaml`).

    A file that is there and is another one is kept unless `force`; its difference is returned either way. Raises
    BaselineError where a place cannot be written, where something was recorded there (with it would go what was
    accepted), and for several recipes and one file.
    """
    is_file = output.suffix in (".yaml", ".yml") and not output.is_dir()
    if is_file and len(imported.drafts) > 1:
        names = ", ".join(draft.recipe for draft in imported.drafts)
        raise BaselineError(f"{output}: found {len(imported.drafts)} recipes ({names}), expected one; give a folder")
    return tuple(
        write_draft(path, redact_text(draft.text), force=force)
        for draft in imported.drafts
        for path in (output if is_file else output / draft.recipe / f"{draft.release}.yaml",)
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
        if draft.assumed:
            texts = [f"line {line} {what}" for line, what in draft.assumed]
            yield from _wrap(f"not stated, {draft.recipe}: {'; '.join(texts)}")
    grouped: dict[tuple[int, str], list[str]] = {}
    for cell in imported.unread:
        grouped.setdefault((cell.line, cell.reason), []).append(repr(cell.text))
    for (line, reason), texts in grouped.items():
        yield from _wrap(f"not read, line {line} of {imported.document}: {', '.join(texts)}: {reason}")
    yield f"{formatting.count_noun(len(imported.unread), 'cell')} not read"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
