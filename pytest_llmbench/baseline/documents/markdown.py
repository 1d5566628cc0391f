"""The tables of a Markdown document, with the lines on which they stand."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# A Markdown parser does not see these tables. Pages that were rendered to text have tables without outer pipes, one
# right below the other and below prose: of the 24 tables (104 rows) of the five documents markdown-it-py makes 11 (226
# rows, prose among them). As GFM says it also fills a row that is too short and cuts one that is too long, so that
# nobody could tell a shifted row. So a table is what stands around a line of dashes, and ends with the pipes.
_PIPE = re.compile(r"(?<!\\)\|")
_DASHES = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?")
_HEADING = re.compile(
    r"(?P<marks>#{1,6})\s+(?P<marked>.*?)\s*#*|(?P<bold>\*\*.+?\*\*|__.+?__)\s*:?"
    r"|(?:<[a-z]++[^<>]*+>\s*+)*<(?P<tag>h[1-6]|summary|b|strong)\b[^<>]*>(?P<tagged>.*?)</(?P=tag)>\s*:?(?:\s*</[a-z]+>)*",
    re.IGNORECASE,
)
LONGEST_LINE = 10_000
"""Characters of the longest line that is read; an image inside of a document is one of many more."""

LONGEST_REMARK = 1000
"""Characters of a line that may state something of a table; to take a longer one apart could take for ever."""

_INNERMOST = 7
"""The level of a heading that is one by its look: bold text, a summary."""

_UNDERLINE = re.compile(r" {0,3}(?:=+|-{2,})\s*")
_OPENING = re.compile(r"<(?:!--|table\b)", re.IGNORECASE)
_CLOSINGS = {"<!--": re.compile("-->"), "<table": re.compile("</table>", re.IGNORECASE)}
"""What closes a comment, and a table in HTML."""

_HTML_CELL = re.compile(r"</?t[dhr]\b[^<>]*>", re.IGNORECASE)
_NUMBERS = re.compile(r"[.,%\s]*+\d[\d.,%\s]*+", re.ASCII)
_QUOTED = re.compile(r"(\s*>)+ ?")
_MARKUP = (
    (re.compile(r"\\([|*_`~\\])"), r"\1"),
    (re.compile(r"<sup>.{0,200}?</sup>|\[\^[^\]]{0,200}\]", re.IGNORECASE), ""),
    (re.compile(r"</?(?:del|s|strike)>", re.IGNORECASE), "~~"),
    (re.compile(r"</?[a-zA-Z][^<>]*>"), " "),
    (re.compile(r"\[([^\]\w]{0,20}\d{1,9}[^\]\w]{0,20})\]\((?:[^()]|\([^()]*\))*\)"), r" \1 "),
    (re.compile(r"!?\[([^\]]{0,500})\]\((?:[^()]|\([^()]*\))*\)"), r"\1"),
    (re.compile(r"(\*\*|__|`{1,3})(?=\S)(.{1,500}?)(?<=\S)\1"), r"\2"),
    (re.compile(r"(?<![\w*])([*_])(?=[^\s*_])([^*_]+?)(?<=\S)\1(?![\w*])"), r"\2"),
)
"""What is taken out of a cell, in this order: escapes, footnotes, tags, links, emphasis.

What was struck out is no value and keeps its tildes. A link that is a number alone may be a footnote: it never joins
the digits beside it."""


@dataclass(frozen=True, slots=True)
class MarkdownRow:
    """The cells of one line, at least one, without their markup."""

    line: int
    """1-based."""

    cells: tuple[str, ...]
    closed: bool = True
    """Whether a pipe stands behind the last cell."""


@dataclass(frozen=True, slots=True)
class MarkdownTable:
    """A table with what stands above it, empty where there is nothing."""

    heading: str
    header: MarkdownRow
    rows: tuple[MarkdownRow, ...]
    lead: str = ""
    """The last line of text between the heading and the table."""

    above: tuple[str, ...] = ()
    """The headings that the heading stands below, the outermost first."""

    between: tuple[str, ...] = ()
    """The lines of text between the heading and the table, but for very long ones."""


@dataclass(frozen=True, slots=True)
class MarkdownTables:
    """The tables of a document in its order."""

    tables: tuple[MarkdownTable, ...]
    stray: tuple[MarkdownRow, ...]
    """The lines that look like rows and belong to no table: also those of comments and of tables in HTML."""


def _normalize_lines(text: str) -> str:
    """Return a document with the lines that an editor counts, whatever ends them."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def list_shown_lines(text: str) -> list[str]:
    """Return the lines of a document, empty where they are in a comment or a table in HTML."""
    # Lines keep their numbers, so that a message names the place in the document.
    text, place, shown = _normalize_lines(text), 0, []
    for start, end in _find_hidden(text):
        shown += [text[place:start], "\n" * text.count("\n", start, end)]
        place = end
    return [_replace_long(line) for line in "".join([*shown, text[place:]]).split("\n")]


def _replace_long(line: str) -> str:
    """Return a line, empty where it is too long to be read; of a heading one that says nothing of what is below it."""
    if len(line) <= LONGEST_LINE:
        return line
    return "# ..." if line.lstrip().lower().startswith(("#", "<h")) else ""


def _find_hidden(text: str) -> Iterator[tuple[int, int]]:
    """Yield where comments and tables in HTML begin and end; one that nothing closes is none."""
    place = 0
    last = {
        kind: max((match.start() for match in closing.finditer(text)), default=-1)
        for kind, closing in _CLOSINGS.items()
    }
    for opening in _OPENING.finditer(text):
        kind = opening[0].lower()
        if opening.start() < place or opening.end() > last[kind]:
            continue
        closing = _CLOSINGS[kind].search(text, opening.end())
        if closing is not None:
            place = closing.end()
            yield opening.start(), place


def read_tables(text: str) -> MarkdownTables:
    """Return every table of a document, and what looks like a row of a table that lost its line of dashes."""
    text = _normalize_lines(text)
    shown = list_shown_lines(text)
    lines = [_QUOTED.sub("", line, count=1) if line.lstrip().startswith(">") else line for line in shown]
    tables: list[MarkdownTable] = []
    stray = [*_find_hidden_rows(text), *_find_long_rows(text)]
    headings: list[tuple[int, str]] = []
    between: list[str] = []
    place = 0
    while place < len(lines):
        if place + 1 < len(lines) and _is_header(lines, place, 1):
            end = _find_end(lines, place + 2)
            rows = tuple(_make_row(lines[number], number) for number in range(place + 2, end))
            *above, heading = [title for _, title in headings] or [""]
            header = _make_row(lines[place], place)
            texts = tuple(strip_markup(line) for line in between if len(line) <= LONGEST_REMARK)
            lead = strip_markup(between[-1]) if between else ""
            tables.append(MarkdownTable(heading, header, rows, lead, tuple(above), texts))
            place, between = end, []
            continue
        level, title = _read_heading(lines, place)
        if title:
            headings = [*(outer for outer in headings if outer[0] < level), (level, title)]
            between = []
        elif lines[place].strip():
            between.append(lines[place].strip())
        stray += _find_stray_rows(lines[place], place)
        place += 1
    return MarkdownTables(tuple(tables), tuple(sorted(stray, key=lambda row: row.line)))


def strip_markup(cell: str) -> str:
    """Return the text of a cell as a reader sees it: no emphasis, links, footnotes or tags, entities resolved."""
    for pattern, replacement in _MARKUP:
        cell = pattern.sub(replacement, cell)
    return " ".join(html.unescape(cell).split())


def _read_heading(lines: Sequence[str], place: int) -> tuple[int, str]:
    """Return the level of the heading that a line is, 1 for the outermost, and its text; empty for any other line."""
    line = lines[place].strip()
    match = _HEADING.fullmatch(line)
    if match:
        tag = match["tag"] or ""
        level = len(match["marks"] or "") or int(tag[1:] if tag[1:].isdigit() else _INNERMOST)
        return level, strip_markup(match["marked"] or match["bold"] or match["tagged"] or "")
    underlined = place + 1 < len(lines) and _UNDERLINE.fullmatch(lines[place + 1]) is not None
    if not underlined or _UNDERLINE.fullmatch(line):
        return 0, ""
    return 1 if "=" in lines[place + 1] else 2, strip_markup(line)


def _is_header(lines: Sequence[str], place: int, least: int) -> bool:
    """Whether this line is the header of a table: a line of dashes, at least so many in a cell, stands below it."""
    dashes = lines[place + 1].strip()
    if "|" not in dashes or not _PIPE.search(lines[place]) or _is_dashes(lines[place]):
        return False
    return _is_dashes(dashes) and all(cell.count("-") >= least for cell in _split_cells(dashes))


def _is_dashes(line: str) -> bool:
    return "-" in line and _DASHES.fullmatch(line.strip()) is not None


def _find_end(lines: Sequence[str], place: int) -> int:
    """Return where the rows end: at a line without a pipe, or at the header of the next table."""
    while place < len(lines):
        # A line of nothing but numbers is the rest of a row that was torn.
        if not _PIPE.search(lines[place]) and not _NUMBERS.fullmatch(lines[place]):
            break
        # A row of single dashes says that nothing was measured; within a table only longer ones begin another.
        if place + 1 < len(lines) and _is_header(lines, place, 3):
            break
        place += 1
    return place


def _make_row(line: str, place: int) -> MarkdownRow:
    return MarkdownRow(place + 1, tuple(map(strip_markup, _split_cells(line))) or ("",), line.rstrip().endswith("|"))


def _split_cells(line: str) -> list[str]:
    """Return the texts between the pipes; the outer ones may be left out."""
    cells = _PIPE.split(line.strip())
    first = 1 if len(cells) > 1 and not cells[0].strip() else 0
    last = len(cells) - 1 if len(cells) > 1 and not cells[-1].strip() else len(cells)
    return cells[first:last]


def _find_stray_rows(line: str, place: int) -> Iterator[MarkdownRow]:
    """Yield what looks like a row, between pipes, tabs or tags."""
    line = _HTML_CELL.sub("|", line.strip().replace("\t", "|"))
    if len(_PIPE.findall(line)) > 0 and not _is_dashes(line):
        row = _make_row(line, place)
        if any(_NUMBERS.fullmatch(cell) for cell in row.cells):
            yield row


def _find_hidden_rows(text: str) -> Iterator[MarkdownRow]:
    """Yield what looks like a row, or like a cell with a number, in comments and in tables in HTML."""
    for start, end in _find_hidden(text):
        for place, line in enumerate(text[start:end].split("\n"), text.count("\n", 0, start)):
            if len(line) > LONGEST_LINE:
                continue
            if _NUMBERS.fullmatch(line):
                yield _make_row(line, place)
            yield from _find_stray_rows(line, place)


def _find_long_rows(text: str) -> Iterator[MarkdownRow]:
    """Yield the beginning of each line with a pipe that is too long to be read."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LONGEST_LINE and "|" in line:
            yield MarkdownRow(number, (f"{line[:40]}...",))
