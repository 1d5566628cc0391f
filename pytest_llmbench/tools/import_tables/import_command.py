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
    from pytest_llmbench.tools.import_tables.mappings import (
        SHARED_COLUMNS,
        load_mapping,
    )

    typed = {name: getattr(arguments, name) for name in (*SHARED_COLUMNS, "recipe")}
    stated = {name: value for name, value in typed.items() if value}
    mapping = load_mapping(arguments.mapping).add_stated(stated)
    path = arguments.document
    tables = read_document(path, mapping)
    imported = import_document(tables, path.name, arguments.release, mapping)
    if not imported.drafts:
        details = "the document contains no table"
        if imported.unread:
            details = "\n".join(format_report(imported, written=()))
        message = f"{path.name}: found no configuration, expected a table with numbers of GPUs"
        raise BaselineError(f"{message}\n{details}")
    if arguments.output is None:
        # Standard output is the drafts alone, so the report goes to standard error.
        text = "\n".join(draft.text for draft in imported.drafts).rstrip("\n")
        report = "\n".join(format_report(imported, written=()))
        return Output(text, code=0 if imported.is_complete else 1, stderr=report)
    written = write_drafts(imported, arguments.output, force=arguments.force)
    is_any_kept = any(file.fate == DraftFate.KEPT for file in written)
    is_done = imported.is_complete and not is_any_kept
    report = "\n".join(format_report(imported, written))
    return Output(report, code=0 if is_done else 1)


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
        fate: str = file.fate
        if file.fate == DraftFate.KEPT:
            fate = "another file exists and was kept; give --force to replace it"
        yield f"{file.path}: {fate}"
    for draft in imported.drafts:
        for line, name in draft.missing_keys:
            yield from _wrap(f"to fill in, {draft.recipe} line {line}: {name}")
        if draft.assumed_values:
            texts = [f"line {line} {value}" for line, value in draft.assumed_values]
            yield from _wrap(f"not stated, {draft.recipe}: {'; '.join(texts)}")
    # One line for all cells of a row with the same reason.
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
