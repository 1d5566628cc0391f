"""Documents with tables, imported with the shipped mapping files."""

from __future__ import annotations

from pytest_llmbench.tools.import_tables.document_configurations import (
    DocumentConfigurations,
    collect_configurations,
)
from pytest_llmbench.tools.import_tables.imported_documents import (
    ImportedDocument,
    import_document,
)
from pytest_llmbench.tools.import_tables.mappings import load_mapping
from pytest_llmbench.tools.import_tables.markdown_tables import read_markdown


def read(text: str, **stated: str) -> DocumentConfigurations:
    """Parse the configurations of a Markdown document."""
    mapping = load_mapping().add_stated(stated)
    return collect_configurations(read_markdown(text, mapping), mapping)


def draft(
    text: str, release: str = "25.05", name: str = "README.md", **stated: str
) -> ImportedDocument:
    """Draft baselines from a Markdown document."""
    mapping = load_mapping().add_stated(stated)
    return import_document(read_markdown(text, mapping), name, release, mapping)


def list_unread(document: DocumentConfigurations | ImportedDocument) -> list[str]:
    """List the unread cells as `LINE TEXT: REASON`."""
    return [f"{cell.line} {cell.text}: {cell.reason}" for cell in document.unread]
