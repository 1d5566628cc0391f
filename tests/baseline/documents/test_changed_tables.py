"""A table in another spelling gives the same cells."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest
from shared_data import shared

from pytest_llmbench.baseline.documents.document_configurations import (
    DocumentConfigurations,
    ImportDefaults,
    collect_configurations,
)
from pytest_llmbench.baseline.documents.markdown import read_tables

DOCUMENTS = ("001_74aabd83c4a30565.txt", "002_e4d1b25d7aef7166.txt")
DASHES = re.compile(r"\|?(\s*:?-+:?\s*\|)+(\s*:?-+:?\s*)?")
Lines = list[str]


def tables_of(name: str) -> Lines:
    """Return the lines of the performance and configuration tables of a document, and the headings between them."""
    kept = []
    for line in shared(f"recipes/{name}").read_text().split("\n"):
        is_log = "lr:" in line or "[" in line or "grep" in line
        if (line.count("|") > 2 and not is_log) or line.startswith(("#", "**")):
            kept.append(line)
    checkpoints = next((number for number, line in enumerate(kept) if line.startswith("Model | Checkpoint")), len(kept))
    return kept[:checkpoints]


@cache
def read_document(name: str) -> DocumentConfigurations:
    """Return the configurations of an undamaged document."""
    return read(tables_of(name))


def read(lines: Lines | str) -> DocumentConfigurations:
    return collect_configurations(read_tables(lines if isinstance(lines, str) else "\n".join(lines)), ImportDefaults())


def said(found: DocumentConfigurations) -> set[tuple[object, ...]]:
    """Return every configuration with all that is known of it."""
    return {
        (thing.recipe, thing.proxy, *sorted(thing.facts.items(), key=str), *sorted(thing.cells.items()))
        for thing in found.configurations
    }


def is_header(lines: Lines, number: int) -> bool:
    return number + 1 < len(lines) and DASHES.fullmatch(lines[number + 1].strip()) is not None


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


SPELLINGS: dict[str, Callable[[Lines], str]] = {
    "crlf": "\r\n".join,
    "bom": lambda lines: "\ufeff" + "\n".join(lines),
    "outer pipes": lambda lines: "\n".join(f"| {line.strip().strip('|')} |" if "|" in line else line for line in lines),
    "no outer pipes": lambda lines: "\n".join(line.strip().strip("|") if "|" in line else line for line in lines),
    "quoted": lambda lines: "\n".join(f"> {line}" if "|" in line else line for line in lines),
    "apart": lambda lines: "\n".join(f"\n{line}" if is_header(lines, n) else line for n, line in enumerate(lines)),
    "prose below": lambda lines: "\n".join(lines) + "\nIn all of this < 512 GPUs are proxies.",
    "centred": lambda lines: "\n".join(
        re.sub(":?-+:?", ":---:", line) if DASHES.fullmatch(line.strip()) else line for line in lines
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_another_spelling_gives_the_same_cells(name: str, spelling: str) -> None:
    found = read(SPELLINGS[spelling](tables_of(name)))
    assert found.unread == ()
    assert said(found) == said(read_document(name))
