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
        "The recipe, where titles do not name it, or name it another way",
    ),
    ("--size", "SIZE", "The model size, where the tables do not say it"),
    ("--gpu", "TYPE", "The GPU type, where the tables do not say it"),
    ("--dtype", "TYPE", "The precision, where the tables do not say it"),
)


def add(actions: Subparsers) -> None:
    """Declare `llmbench baselines import`."""
    parser = actions.add_parser(
        "import", help="Draft a baseline file from the tables of a recipe document."
    )
    parser.set_defaults(command=run_import)
    parser.add_argument(
        "document",
        metavar="DOCUMENT",
        type=Path,
        help="Markdown, or its text; or a table as CSV, YAML or JSON.",
    )
    parser.add_argument(
        "--release",
        metavar="RELEASE",
        required=True,
        help="Its release, such as 25.05.",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE|DIR",
        type=Path,
        help="Where it is written (default: standard output).",
    )
    parser.add_argument(
        "--mapping",
        metavar="FILE",
        type=Path,
        help="Headers and words of this family of documents (default: none).",
    )
    for flag, metavar, what in DEFAULTS:
        parser.add_argument(
            flag,
            metavar=metavar,
            type=str.lower,
            default="",
            help=f"{what} (default: none).",
        )
    parser.add_argument(
        "--force",
        action="store_true",
        help="Replace a file that is there and is another one.",
    )


def run_import(arguments: argparse.Namespace) -> Output:
    """Print the drafts, or write them; the exit code is 1 if a cell was not read."""
    from pytest_llmbench.baseline.draft_files import DraftFate
    from pytest_llmbench.tools.import_tables.imported_documents import (
        import_document,
        read_document,
        write_drafts,
    )
    from pytest_llmbench.tools.import_tables.mappings import KEY, load_mapping

    stated = {
        name: value
        for name in (*KEY[:3], "recipe")
        if (value := getattr(arguments, name))
    }
    mapping = load_mapping(arguments.mapping).add_stated(stated)
    path = arguments.document
    imported = import_document(
        read_document(path, mapping), path.name, arguments.release, mapping
    )
    if not imported.drafts:
        cells = (
            "\n".join(format_report(imported, ()))
            if imported.unread
            else "there is no table in it"
        )
        message = f"{path.name}: found no configuration, expected a table with numbers of GPUs"
        raise BaselineError(f"{message}\n{cells}")
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
    """Yield the drafts, the files, the values to fill in, and every cell that was not
    read."""
    from pytest_llmbench.baseline.draft_files import DraftFate
    from pytest_llmbench.core.formatting import count_noun

    for draft in imported.drafts:
        counts = f"{count_noun(draft.configurations, 'configuration')}, {count_noun(draft.cells, 'cell')}"
        yield f"{draft.recipe} {draft.release}: {counts}"
    for file in written:
        if file.difference:
            yield file.difference
        kept = "is another file and was kept; --force replaces it"
        yield f"{file.path}: {kept if file.fate == DraftFate.KEPT else file.fate}"
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
        yield from _wrap(
            f"not read, line {line} of {imported.document}: {', '.join(texts)}: {reason}"
        )
    yield f"{count_noun(len(imported.unread), 'cell')} not read"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
