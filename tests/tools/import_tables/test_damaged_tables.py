"""Tables in other spellings are read alike, and damaged tables are reported."""

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
    """Return the table lines and headings of a document, without checkpoint tables."""
    table_lines = []
    for line in shared(f"recipes/{name}").read_text().split("\n"):
        is_log = "lr:" in line or "[" in line or "grep" in line
        if (line.count("|") > 2 and not is_log) or line.startswith(("#", "**")):
            table_lines.append(line)
    checkpoints = next(
        (
            number
            for number, line in enumerate(table_lines)
            if line.startswith("Model | Checkpoint")
        ),
        len(table_lines),
    )
    return table_lines[:checkpoints]


@cache
def read_document(name: str) -> DocumentConfigurations:
    """Return the configurations of an undamaged document."""
    return read("\n".join(tables_of(name)))


def list_facts(result: DocumentConfigurations) -> set[tuple[object, ...]]:
    """Return the facts of every configuration."""
    return {tuple(sorted(entry.facts.items())) for entry in result.configurations}


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


def change_cells(change: Callable[[str], str]) -> Callable[[Lines], str]:
    """Make a function that changes every cell except headers."""

    def damaged(lines: Lines) -> str:
        rows = [
            " | ".join(change(cell) if cell else cell for cell in cells(line))
            if is_row(lines, number)
            else line
            for number, line in enumerate(lines)
        ]
        return "\n".join(rows)

    return damaged


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
    "bold": change_cells(lambda cell: f"**{cell}**"),
    "italics": change_cells(lambda cell: f"*{cell}*"),
    "code": change_cells(lambda cell: f"`{cell}`"),
    "links": change_cells(
        lambda cell: (
            f"[{cell}](https://example.com/a_(b)?c=1)"
            if cell.isdigit()
            else f"[{cell}](#x)"
        )
    ),
    "footnotes": change_cells(lambda cell: f"{cell}[^1]"),
    "superscript": change_cells(lambda cell: f"{cell}<sup>1</sup>"),
    "line breaks": change_cells(lambda cell: f"{cell}<br/>"),
    "entities": change_cells(
        lambda cell: cell.replace("%", "&#37;").replace(" ", "&nbsp;") + "&nbsp;"
    ),
    "thousands": change_cells(thousands),
    "dagger": change_cells(
        lambda cell: f"{cell}\u2020" if re.fullmatch(r"[\d.]+\.\d+%?", cell) else cell
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_equivalent_markdown_spelling_changes_no_imported_cell(
    name: str, spelling: str
) -> None:
    result = read(SPELLINGS[spelling](tables_of(name)))
    assert result.unread == ()
    assert list_facts(result) == list_facts(read_document(name))


# --- damage ---------------------------------------------------------------------------


def find_lines(lines: Lines, matches: Callable[[Lines, int], bool]) -> Iterator[int]:
    return (number for number in range(len(lines)) if matches(lines, number))


def replace_line(lines: Lines, number: int, *new: str) -> Lines:
    return [*lines[:number], *new, *lines[number + 1 :]]


def drop_cell(lines: Lines) -> Iterator[Lines]:
    for number in find_lines(lines, is_row):
        row = cells(lines[number])
        for index in (1, len(row) - 1):
            yield replace_line(
                lines, number, " | ".join(row[:index] + row[index + 1 :]) + " |"
            )


def split_row(lines: Lines) -> Iterator[Lines]:
    for number in find_lines(lines, is_row):
        row = cells(lines[number])
        for index in range(1, len(row)):
            yield replace_line(
                lines, number, " | ".join(row[:index]) + " |", " | ".join(row[index:])
            )


def repeat_cell(lines: Lines) -> Iterator[Lines]:
    for number in find_lines(lines, is_row):
        row = cells(lines[number])
        yield replace_line(lines, number, " | ".join([*row[:2], *row[1:]]) + " |")


def drop_dashes(lines: Lines) -> Iterator[Lines]:
    for number in find_lines(lines, is_header):
        yield replace_line(lines, number + 1)


def rename_label(lines: Lines) -> Iterator[Lines]:
    for number in find_lines(lines, is_row):
        yield replace_line(
            lines, number, " | ".join(["How long it takes", *cells(lines[number])[1:]])
        )


def rename_header(lines: Lines) -> Iterator[Lines]:
    for number in find_lines(lines, is_header):
        row = cells(lines[number])
        for index in range(1, len(row)):
            if cells(lines[number + 2])[index] != "NA":  # else no value is lost
                yield replace_line(
                    lines,
                    number,
                    " | ".join([*row[:index], f"run {index}", *row[index + 1 :]])
                    + " |",
                )


def repeat_header(lines: Lines) -> Iterator[Lines]:
    """Give two columns the same number of GPUs, as if one were another measurement."""
    for number in find_lines(lines, is_header):
        row = cells(lines[number])
        if len(row) > 2 and "GPUs" in row[2]:
            yield replace_line(
                lines, number, " | ".join([row[0], row[2], *row[2:]]) + " |"
            )


def add_column(lines: Lines) -> Iterator[Lines]:
    for number in find_lines(lines, is_header):
        damaged, index = list(lines), number
        while (
            index < len(lines)
            and "|" in lines[index]
            and (index <= number + 1 or is_row(lines, index))
        ):
            extra = (
                "Before"
                if index == number
                else "---"
                if index == number + 1
                else f"{index}.5"
            )
            damaged[index] = lines[index].strip().rstrip("|") + f"| {extra} |"
            index += 1
        yield damaged


def change_unit(lines: Lines) -> Iterator[Lines]:
    for number in find_lines(lines, is_row):
        if "seconds per step" in lines[number]:
            yield replace_line(
                lines,
                number,
                lines[number].replace("seconds per step", "minutes per step"),
            )


def repeat_row(lines: Lines) -> Iterator[Lines]:
    """Repeat a row with the same label and other numbers."""
    for number in find_lines(lines, is_row):
        if cells(lines[number])[0][:1].isalpha() and "step time" in lines[number]:
            yield replace_line(
                lines,
                number,
                lines[number],
                re.sub(r"\| (\d)", r"| 9\1", lines[number]),
            )


DAMAGES = {
    cell.__name__: cell
    for cell in (
        drop_cell,
        split_row,
        repeat_cell,
        drop_dashes,
        rename_label,
        rename_header,
        repeat_header,
        add_column,
        change_unit,
        repeat_row,
    )
}


MOST_DAMAGES = 8
"""Limit of tested positions for each kind of damage."""


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
def test_damaged_table_cell_is_listed_as_unread_and_changes_no_other_cell(
    name: str, damage: str
) -> None:
    """Every number is imported or listed, and no configuration gets a wrong number."""
    lines = tables_of(name)
    expected = {
        tuple(
            map(configuration.facts.get, ("size", "gpu", "dtype", "gpus"))
        ): configuration
        for configuration in read_document(name).configurations
    }
    every = list(DAMAGES[damage](lines))
    for damaged in every[:: 1 + len(every) // MOST_DAMAGES]:
        result = read("\n".join(damaged))
        assert any(cell.decisive for cell in result.unread), "\n".join(damaged)
        for configuration in result.configurations:
            original = expected[
                tuple(map(configuration.facts.get, ("size", "gpu", "dtype", "gpus")))
            ]
            assert configuration.facts.items() <= original.facts.items()
        read_cells = {
            (value.cell.line, value.cell.text)
            for configuration in result.configurations
            for value in configuration.values
        }
        listed = {(cell.line, cell.text) for cell in result.unread}
        assert not set(numbers(damaged)) - read_cells - listed
    assert every
