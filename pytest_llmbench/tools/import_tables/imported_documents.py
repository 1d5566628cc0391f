"""Convert a document to drafts of baseline files, one for each recipe."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.baseline.draft_files import WrittenDraft, write_draft
from pytest_llmbench.baseline.schema import NAME
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.userfile import read_text
from pytest_llmbench.tools.import_tables.document_configurations import (
    collect_configurations,
)
from pytest_llmbench.tools.import_tables.drafts import BaselineDraft, make_draft
from pytest_llmbench.tools.import_tables.labels import UnreadCell, parse_release
from pytest_llmbench.tools.import_tables.machine_tables import READERS
from pytest_llmbench.tools.import_tables.mappings import DocumentMapping
from pytest_llmbench.tools.import_tables.markdown_tables import (
    DocumentTables,
    read_markdown,
)
from pytest_llmbench.tools.import_tables.prose import read_prose

LARGEST_BYTES = 16 << 20


class ImportedDocument(Struct, frozen=True):
    """The drafts made from a document, and the cells that no draft contains."""

    document: str
    drafts: tuple[BaselineDraft, ...]
    unread: tuple[UnreadCell, ...]

    @property
    def is_complete(self) -> bool:
        """True if all cells about performance or configurations were read."""
        return not any(cell.decisive for cell in self.unread)


def read_document(path: Path, mapping: DocumentMapping) -> DocumentTables:
    """Read the tables of a CSV, TSV, YAML, JSON or Markdown file.

    The suffix determines the format; unknown suffixes are read as Markdown. Raises
    BaselineError.
    """
    reader = READERS.get(path.suffix.lower())
    if reader:
        return reader(path, mapping)
    if find_spec("markdown_it") is None:
        raise BaselineError(
            f"{path}: needs the package markdown-it-py: pip install 'pytest-llmbench[import]'"
        )
    text = read_text(path, "Markdown document", LARGEST_BYTES, BaselineError)
    return read_markdown(text, mapping)


def import_document(
    tables: DocumentTables, name: str, release: str, mapping: DocumentMapping
) -> ImportedDocument:
    """Make the drafts of a document; `name` is the name of the document in the drafts.

    Raises BaselineError for an invalid release, recipe or size.
    """
    for key, value in (("release", release), *mapping.stated.items()):
        is_name = key in ("release", "recipe", "size")
        if is_name and not re.fullmatch(NAME.pattern, str(value)):
            raise BaselineError(f"--{key} {value}: expected {NAME.expected}")
    tables_of_release = select_release(mapping, tables, name, release)
    collected = collect_configurations(tables_of_release, mapping)
    peak_tables = [table for table in tables.tables if table.is_about_peaks]
    prose = read_prose(mapping, tables.lines, peak_tables)
    drafts = []
    for recipe in dict.fromkeys(entry.recipe for entry in collected.configurations):
        entries = [
            entry for entry in collected.configurations if entry.recipe == recipe
        ]
        drafts.append(make_draft(mapping, entries, prose, name, release))
    return ImportedDocument(name, tuple(drafts), (*collected.unread, *prose.unread))


def select_release(
    mapping: DocumentMapping, tables: DocumentTables, name: str, release: str
) -> DocumentTables:
    """Select the tables of one release if headings name releases, else all tables.

    Raises BaselineError if the document has tables of other releases only.
    """
    # The release of each table; "" for a table without one, which fits every release.
    table_releases = [parse_release(mapping, table.headings) for table in tables.tables]
    releases = list(dict.fromkeys(filter(None, table_releases)))
    if releases and release not in releases:
        raise BaselineError(
            f"{name}: found tables of {', '.join(releases)}, but not of {release}: give one of these releases as --release"
        )
    chosen = [
        table
        for table, table_release in zip(tables.tables, table_releases, strict=True)
        if table_release in ("", release)
    ]
    return replace(tables, tables=tuple(chosen))


def write_drafts(
    imported: ImportedDocument, output: Path, *, force: bool
) -> tuple[WrittenDraft, ...]:
    """Write redacted drafts to `output`.

    If `output` is a folder, writes <recipe>/<release>.yaml in it. If it is a YAML file,
    writes the only draft. Raises BaselineError as `write_draft` does, and if `output` is a
    file but there are several recipes.
    """
    is_file = output.suffix in (".yaml", ".yml") and not output.is_dir()
    if is_file and len(imported.drafts) > 1:
        names = ", ".join(draft.recipe for draft in imported.drafts)
        raise BaselineError(
            f"{output}: found {len(imported.drafts)} recipes ({names}), expected one; give a folder"
        )
    written = []
    for draft in imported.drafts:
        path = output if is_file else output / draft.recipe / f"{draft.release}.yaml"
        written.append(write_draft(path, redact_text(draft.text), force=force))
    return tuple(written)
