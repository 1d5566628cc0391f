"""A table in another spelling gives the same cells; one that lost or gained something
is told, and nothing guessed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from support.imported_tables import read
from support.shared_data import shared

from pytest_llmbench.tools.import_tables.document_configurations import (
    DocumentConfigurations,
)

DOCUMENTS = (
    "000_e0e04c4c085ed8d6.txt",
    "001_74aabd83c4a30565.txt",
    "002_e4d1b25d7aef7166.txt",
    "003_6c8318a40332ad32.txt",
    "004_a73f50c75f1f041c.txt",
)
DASHES = re.compile(r"\|?(\s*:?-+:?\s*\|)+(\s*:?-+:?\s*)?")
Lines = list[str]


def tables_of(name: str) -> Lines:
    """Return the lines of the performance and configuration tables of a document, and
    the headings between them."""
    kept = []
    for line in shared(f"recipes/{name}").read_text().split("\n"):
        is_log = "lr:" in line or "[" in line or "grep" in line
        if (line.count("|") > 2 and not is_log) or line.startswith(("#", "**")):
            kept.append(line)
    checkpoints = next(
        (
            number
            for number, line in enumerate(kept)
            if line.startswith("Model | Checkpoint")
        ),
        len(kept),
    )
    return kept[:checkpoints]


@cache
def read_document(name: str) -> DocumentConfigurations:
    """Return the configurations of an undamaged document."""
    return read("\n".join(tables_of(name)))


def list_facts(found: DocumentConfigurations) -> set[tuple[object, ...]]:
    """Return every configuration with all its facts."""
    return {tuple(sorted(entry.facts.items())) for entry in found.configurations}


def is_row(lines: Lines, number: int) -> bool:
    return (
        "|" in lines[number]
        and not is_header(lines, number)
        and not DASHES.fullmatch(lines[number].strip())
    )


def is_header(lines: Lines, number: int) -> bool:
    return (
        number + 1 < len(lines)
        and DASHES.fullmatch(lines[number + 1].strip()) is not None
    )


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def in_cells(change: Callable[[str], str]) -> Callable[[Lines], str]:
    """Change every cell of the rows, and no header."""

    def changed(lines: Lines) -> str:
        rows = [
            " | ".join(change(cell) if cell else cell for cell in cells(line))
            if is_row(lines, number)
            else line
            for number, line in enumerate(lines)
        ]
        return "\n".join(rows)

    return changed


def thousands(cell: str) -> str:
    return f"{int(cell):,}" if re.fullmatch(r"\d{4,}", cell) else cell


SPELLINGS: dict[str, Callable[[Lines], str]] = {
    "crlf": "\r\n".join,
    "bom": lambda lines: "\ufeff" + "\n".join(lines),
    "outer pipes": lambda lines: "\n".join(
        f"| {line.strip().strip('|')} |" if "|" in line else line for line in lines
    ),
    "no outer pipes": lambda lines: "\n".join(
        line.strip().strip("|") if "|" in line else line for line in lines
    ),
    "tabs": lambda lines: "\n".join(line.replace("|", "\t|\t") for line in lines),
    "indented": lambda lines: "\n".join(
        f"  {line}" if "|" in line else line for line in lines
    ),
    "quoted": lambda lines: "\n".join(
        f"> {line}" if "|" in line else line for line in lines
    ),
    "apart": lambda lines: "\n".join(
        f"\n{line}" if is_header(lines, n) else line for n, line in enumerate(lines)
    ),
    "prose below": lambda lines: (
        "\n".join(lines) + "\nIn all of this < 512 GPUs are proxies."
    ),
    "centred": lambda lines: "\n".join(
        re.sub(":?-+:?", ":---:", line) if DASHES.fullmatch(line.strip()) else line
        for line in lines
    ),
    "bold": in_cells(lambda cell: f"**{cell}**"),
    "italics": in_cells(lambda cell: f"*{cell}*"),
    "code": in_cells(lambda cell: f"`{cell}`"),
    "links": in_cells(
        lambda cell: (
            f"[{cell}](https://example.com/a_(b)?c=1)"
            if cell.isdigit()
            else f"[{cell}](#x)"
        )
    ),
    "footnotes": in_cells(lambda cell: f"{cell}[^1]"),
    "superscript": in_cells(lambda cell: f"{cell}<sup>1</sup>"),
    "line breaks": in_cells(lambda cell: f"{cell}<br/>"),
    "entities": in_cells(
        lambda cell: cell.replace("%", "&#37;").replace(" ", "&nbsp;") + "&nbsp;"
    ),
    "thousands": in_cells(thousands),
    "dagger": in_cells(
        lambda cell: f"{cell}\u2020" if re.fullmatch(r"[\d.]+\.\d+%?", cell) else cell
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_other_spelling_gives_the_same_cells(name: str, spelling: str) -> None:
    found = read(SPELLINGS[spelling](tables_of(name)))
    assert found.unread == ()
    assert list_facts(found) == list_facts(read_document(name))


# --- damage ---------------------------------------------------------------------------


def at_each(lines: Lines, wanted: Callable[[Lines, int], bool]) -> Iterator[int]:
    return (number for number in range(len(lines)) if wanted(lines, number))


def replaced(lines: Lines, number: int, *new: str) -> Lines:
    return [*lines[:number], *new, *lines[number + 1 :]]


def lost_cell(lines: Lines) -> Iterator[Lines]:
    for number in at_each(lines, is_row):
        row = cells(lines[number])
        for place in (1, len(row) - 1):
            yield replaced(
                lines, number, " | ".join(row[:place] + row[place + 1 :]) + " |"
            )


def torn_row(lines: Lines) -> Iterator[Lines]:
    for number in at_each(lines, is_row):
        row = cells(lines[number])
        for place in range(1, len(row)):
            yield replaced(
                lines, number, " | ".join(row[:place]) + " |", " | ".join(row[place:])
            )


def doubled_cell(lines: Lines) -> Iterator[Lines]:
    for number in at_each(lines, is_row):
        row = cells(lines[number])
        yield replaced(lines, number, " | ".join([*row[:2], *row[1:]]) + " |")


def no_dashes(lines: Lines) -> Iterator[Lines]:
    for number in at_each(lines, is_header):
        yield replaced(lines, number + 1)


def renamed_label(lines: Lines) -> Iterator[Lines]:
    for number in at_each(lines, is_row):
        yield replaced(
            lines, number, " | ".join(["How long it takes", *cells(lines[number])[1:]])
        )


def renamed_header(lines: Lines) -> Iterator[Lines]:
    for number in at_each(lines, is_header):
        row = cells(lines[number])
        for place in range(1, len(row)):
            if cells(lines[number + 2])[place] != "NA":  # or nothing is lost
                yield replaced(
                    lines,
                    number,
                    " | ".join([*row[:place], f"run {place}", *row[place + 1 :]])
                    + " |",
                )


def another_header(lines: Lines) -> Iterator[Lines]:
    """Two columns of one number of GPUs: one of them is another measurement."""
    for number in at_each(lines, is_header):
        row = cells(lines[number])
        if len(row) > 2 and "GPUs" in row[2]:
            yield replaced(lines, number, " | ".join([row[0], row[2], *row[2:]]) + " |")


def further_column(lines: Lines) -> Iterator[Lines]:
    for number in at_each(lines, is_header):
        changed, place = list(lines), number
        while (
            place < len(lines)
            and "|" in lines[place]
            and (place <= number + 1 or is_row(lines, place))
        ):
            extra = (
                "Before"
                if place == number
                else "---"
                if place == number + 1
                else f"{place}.5"
            )
            changed[place] = lines[place].strip().rstrip("|") + f"| {extra} |"
            place += 1
        yield changed


def another_unit(lines: Lines) -> Iterator[Lines]:
    for number in at_each(lines, is_row):
        if "seconds per step" in lines[number]:
            yield replaced(
                lines,
                number,
                lines[number].replace("seconds per step", "minutes per step"),
            )


def second_row(lines: Lines) -> Iterator[Lines]:
    """The same label twice, with other numbers."""
    for number in at_each(lines, is_row):
        if cells(lines[number])[0][:1].isalpha() and "step time" in lines[number]:
            yield replaced(
                lines,
                number,
                lines[number],
                re.sub(r"\| (\d)", r"| 9\1", lines[number]),
            )


DAMAGES = {
    one.__name__: one
    for one in (
        lost_cell,
        torn_row,
        doubled_cell,
        no_dashes,
        renamed_label,
        renamed_header,
        another_header,
        further_column,
        another_unit,
        second_row,
    )
}


MOST = 8
"""Of the places where one damage can strike a document."""


def numbers(lines: Lines) -> Counter[tuple[int, str]]:
    """Return every number in a row, with its line."""
    return Counter(
        (number + 1, cell)
        for number, line in enumerate(lines)
        if "|" in line and not is_header(lines, number)
        for cell in cells(line)
        if re.fullmatch(r"[\d.,%]+", cell)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_listed_and_changes_no_other_cell(name: str, damage: str) -> None:
    """Every number is in a configuration or in the list, and no configuration gets
    another one's."""
    lines = tables_of(name)
    expected = {
        tuple(map(thing.facts.get, ("size", "gpu", "dtype", "gpus"))): thing
        for thing in read_document(name).configurations
    }
    every = list(DAMAGES[damage](lines))
    for changed in every[:: 1 + len(every) // MOST]:
        found = read("\n".join(changed))
        assert any(one.decisive for one in found.unread), "\n".join(changed)
        for thing in found.configurations:
            original = expected[
                tuple(map(thing.facts.get, ("size", "gpu", "dtype", "gpus")))
            ]
            assert thing.facts.items() <= original.facts.items()
        read_cells = {
            (value.cell.line, value.cell.text)
            for thing in found.configurations
            for value in thing.values
        }
        listed = {(one.line, one.text) for one in found.unread}
        assert not set(numbers(changed)) - read_cells - listed
    assert every
