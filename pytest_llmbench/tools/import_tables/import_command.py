"""`llmbench baselines import`: draft baseline files from the tables of a document."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.tools.command_line import WIDTH, Output, Subparsers

if TYPE_CHECKING:
    from pytest_llmbench.baseline.draft_files import WrittenDraft
    from pytest_llmbench.tools.import_tables.imported_documents import ImportedDocument

DEFAULTS = (
    (
        "--recipe",
        "NAME",
        "Recipe of the baselines, if the titles do not name it or use another name",
    ),
    ("--size", "SIZE", "Model size, if the tables do not state it"),
    ("--gpu", "TYPE", "GPU type, if the tables do not state it"),
    ("--dtype", "TYPE", "Precision, if the tables do not state it"),
)
"""Options for values that a document omits: flag, metavar and meaning."""


def add(actions: Subparsers) -> None:
    """Add the parser of `llmbench baselines import`."""
    parser = actions.add_parser(
        "import", help="Draft baseline files from the tables of a recipe document."
    )
    parser.set_defaults(command=run_import)
    parser.add_argument(
        "document",
        metavar="DOCUMENT",
        type=Path,
        help="The document: Markdown or text copied from a page, or a table as CSV, YAML or JSON.",
    )
    parser.add_argument(
        "--release",
        metavar="RELEASE",
        required=True,
        help="Release of the document, such as 25.05.",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE|DIR",
        type=Path,
        help="Write the drafts to this file or folder (default: standard output).",
    )
    parser.add_argument(
        "--mapping",
        metavar="FILE",
        type=Path,
        help="Mapping file with further headers, units and words of the document (default: none).",
    )
    for flag, metavar, meaning in DEFAULTS:
        parser.add_argument(
            flag,
            metavar=metavar,
            type=str.lower,
            default="",
            help=f"{meaning} (default: none).",
        )
    parser.add_argument(
        "--force",
        action="store_true",
        help="Replace existing files with other content.",
    )


def run_import(arguments: argparse.Namespace) -> Output:
    """Print or write the drafts.

    The exit code is 1 if a cell was not read or an existing file was kept. Raises
    BaselineError if the document contains no configuration.
    """
    from pytest_llmbench.baseline.draft_files import DraftFate
    from pytest_llmbench.tools.import_tables.imported_documents import (
        import_document,
        read_document,
        write_drafts,
    )
    from pytest_llmbench.tools.import_tables.mappings import KEY_COLUMNS, load_mapping

    stated = {
        name: value
        for name in (*KEY_COLUMNS[:3], "recipe")
        if (value := getattr(arguments, name))
    }
    mapping = load_mapping(arguments.mapping).add_stated(stated)
    path = arguments.document
    imported = import_document(
        read_document(path, mapping), path.name, arguments.release, mapping
    )
    if not imported.drafts:
        details = (
            "\n".join(format_report(imported, ()))
            if imported.unread
            else "the document contains no table"
        )
        message = f"{path.name}: found no configuration, expected a table with numbers of GPUs"
        raise BaselineError(f"{message}\n{details}")
    if arguments.output is None:
        text = "\n".join(draft.text for draft in imported.drafts).rstrip("\n")
        return Output(
            text,
            0 if imported.is_complete else 1,
            "\n".join(format_report(imported, ())),
        )
    written = write_drafts(imported, arguments.output, force=arguments.force)
    is_done = imported.is_complete and all(
        file.fate != DraftFate.KEPT for file in written
    )
    return Output("\n".join(format_report(imported, written)), 0 if is_done else 1)


def format_report(
    imported: ImportedDocument, written: Sequence[WrittenDraft]
) -> Iterator[str]:
    """Yield the report: drafts, files, values to fill in, and all unread cells."""
    from pytest_llmbench.baseline.draft_files import DraftFate
    from pytest_llmbench.core.formatting import count_noun

    for draft in imported.drafts:
        counts = f"{count_noun(draft.configurations, 'configuration')}, {count_noun(draft.cells, 'cell')}"
        yield f"{draft.recipe} {draft.release}: {counts}"
    for file in written:
        if file.difference:
            yield file.difference
        kept = "another file exists and was kept; give --force to replace it"
        yield f"{file.path}: {kept if file.fate == DraftFate.KEPT else file.fate}"
    for draft in imported.drafts:
        for line, name in draft.fill_in:
            yield from _wrap(f"to fill in, {draft.recipe} line {line}: {name}")
        if draft.assumed:
            texts = [f"line {line} {value}" for line, value in draft.assumed]
            yield from _wrap(f"not stated, {draft.recipe}: {'; '.join(texts)}")
    texts_by_line_and_reason: dict[tuple[int, str], list[str]] = {}
    for cell in imported.unread:
        key = (cell.line, cell.reason)
        texts_by_line_and_reason.setdefault(key, []).append(repr(cell.text))
    for (line, reason), texts in texts_by_line_and_reason.items():
        yield from _wrap(
            f"not read, line {line} of {imported.document}: {', '.join(texts)}: {reason}"
        )
    yield f"{count_noun(len(imported.unread), 'cell')} not read"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
