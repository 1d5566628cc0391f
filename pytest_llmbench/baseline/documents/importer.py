"""From a recipe document to drafts of baseline files, and where they are written."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pytest_llmbench.baseline.documents.document_configurations import ImportDefaults, collect_configurations
from pytest_llmbench.baseline.documents.draft import BaselineDraft, make_draft
from pytest_llmbench.baseline.documents.markdown import read_tables
from pytest_llmbench.baseline.documents.prose import read_prose
from pytest_llmbench.baseline.documents.table_configurations import UnreadCell
from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.yamlfile import read_text

LARGEST_BYTES = 16 << 20
WIDTH = 79

_RECORDED = re.compile(r"""^kind:\s*['"]?recorded\b""", re.MULTILINE)


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
        if before is not None and _RECORDED.search(before):
            raise BaselineError(
                f"{path}: found recorded baselines, which a document does not replace; move the file or write elsewhere"
            )
        if before is not None and not force:
            return WrittenDraft(path, DraftFate.KEPT, _diff(path, before, text))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
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
