"""Find the tables of a Markdown document, with the headings and text above them.

markdown-it-py parses headings, lists, code and the markup of cells. This module finds
the end of each table, because GitHub's rule does not fit: it pads short rows and cuts
long rows, which hides shifted rows. It also reads too many rows in text copied from
rendered pages, where tables have no outer pipes and touch each other or the prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.tools.import_tables.labels import Cell, UnreadCell, parse_cell
from pytest_llmbench.tools.import_tables.mappings import (
    SHARED_COLUMNS,
    DocumentMapping,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.token import Token

LONGEST_LINE = 10_000
"""Limit of characters in a line; longer lines (embedded images) are skipped."""

LONGEST_REMARK = 1000
"""Limit of characters in a line above a table that is searched for facts."""

BOLD_LEVEL = 7
"""Heading level of bold text and of `<summary>`: below all real headings."""

# not the escaped `\|`
_PIPE = compile_on_use(r"(?<!\\)\|")
# `| --- | :---: |`
_DASHES = compile_on_use(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?")
_PEAK = compile_on_use(r"\b(?:peak|theoretical)\b", re.IGNORECASE)
# `7.325` or `85,459 41.5 %`
_NUMBERS = compile_on_use(r"[.,%\s]*+\d[\d.,%\s]*+", re.ASCII)
# `> ` or `> > `
_QUOTE = compile_on_use(r"(?:\s*>)+ ?")
# `[^1]`
_FOOTNOTE = compile_on_use(r"\[\^[^\]]{0,200}\]")
# `1` or `(1)`
_LINKED_NUMBER = compile_on_use(r"[^\]\w]{0,20}\d{1,9}[^\]\w]{0,20}")
# `<td>` or `</tr>`
_HTML_CELL = compile_on_use(r"</?t[dhr]\b[^<>]*>", re.IGNORECASE)
# `**Performance**:` or `<h3>Performance</h3>`
_LOOKS_LIKE_HEADING = compile_on_use(
    r"(?P<bold>\*\*.+?\*\*|__.+?__)\s*:?|(?:<[a-z]++[^<>]*+>\s*+)*"
    r"<(?P<tag>h[1-6]|summary|b|strong)\b[^<>]*>(?P<tagged>.*?)</(?P=tag)>"
    r"\s*:?(?:\s*</[a-z]+>)*",
    re.IGNORECASE,
)
_HIDDEN = (
    (compile_on_use(r"<!--.*?-->", re.DOTALL), "-->"),
    (compile_on_use(r"<table\b.*?</table>", re.DOTALL | re.IGNORECASE), "</table>"),
)
"""Patterns of comments and HTML tables, each with its closing text."""

_STRUCK_TAGS = ("del", "s", "strike")
"""HTML tags of text that is struck out."""


class TableRow(NamedTuple):
    """A row of a table, with the markup of its cells removed."""

    line: int
    """Line number, 1-based."""

    cells: tuple[Cell, ...]
    """The cells, at least one."""

    ends_with_pipe: bool = True
    """True if a pipe follows the last cell."""


def make_row(mapping: DocumentMapping, line: int, texts: Iterable[str]) -> TableRow:
    """Make a row, and parse its cells with the words of a mapping."""
    return TableRow(line, tuple(parse_cell(mapping, text, line) for text in texts))


def refuse_rows(
    rows: Iterable[TableRow], reason: str, *, decisive: bool = True
) -> Iterator[UnreadCell]:
    """Convert the non-empty cells of `rows` to unread cells; see `Cell.refuse`."""
    for row in rows:
        for cell in row.cells:
            if cell.text:
                yield cell.refuse(reason, decisive=decisive)


class DocumentTable(Struct, frozen=True):
    """A table with the headings and text above it."""

    headings: tuple[str, ...]
    """The headings above the table, outermost first; ("",) if there is none."""

    header: TableRow
    rows: tuple[TableRow, ...]
    between: tuple[str, ...] = ()
    """The lines of text between the heading and the table, without very long lines."""

    @property
    def lead(self) -> str:
        """The last line of text above the table."""
        return self.between[-1] if self.between else ""

    @property
    def heading(self) -> str:
        """The innermost heading."""
        return self.headings[-1]

    @property
    def labels(self) -> tuple[Cell, ...]:
        """The cells of the header and of the first column."""
        return (*self.header.cells, *(row.cells[0] for row in self.rows))

    @property
    def is_about_peaks(self) -> bool:
        """True if the table lists peak FLOPS of GPUs instead of measurements."""
        labels = self.labels
        texts = (self.heading, self.lead, *(label.text for label in labels))
        if not any(_PEAK.search(text) for text in texts):
            return False
        # A column of measurements other than TFLOP/s, or of settings, means measurements.
        metrics = {label.metric.name for label in labels if label.metric}
        columns = {label.column for label in labels}
        if metrics - {"tflops_per_gpu"} or columns - {"", *SHARED_COLUMNS}:
            return False
        return not any("gpus" in label.facts for label in labels)

    @property
    def has_measurements(self) -> bool:
        """True if the table contains a measured metric."""
        return any(label.metric for label in self.labels) and not self.is_about_peaks


class DocumentTables(Struct, frozen=True):
    """The tables of a document, in order."""

    tables: tuple[DocumentTable, ...]
    outside: tuple[TableRow, ...] = ()
    """Lines outside of tables that look like rows, also in comments and HTML tables."""

    lines: tuple[str, ...] = ()
    """The document without comments, HTML tables and very long lines."""


class _Block(NamedTuple):
    """The lines of a heading or a table, `start` to `end` (exclusive, 0-based)."""

    start: int
    end: int
    level: int = 0
    """The level of a heading; 0 for a table."""

    title: str = ""
    """The text of a heading."""

    @property
    def is_table(self) -> bool:
        """True for a table, False for a heading."""
        return self.level == 0


def read_markdown(text: str, mapping: DocumentMapping) -> DocumentTables:
    """Read all tables of a document, and the lines outside that look like rows."""
    # Without a byte order mark, and with Unix line ends.
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    visible_lines = [_blank_long(line) for line in _blank_hidden(text).split("\n")]
    lines = [_unquote(line) for line in visible_lines]
    blocks = list(_find_blocks(lines))
    # Line numbers are 0-based here, as in `blocks`.
    table_line_numbers: set[int] = set()
    for block in blocks:
        if block.is_table:
            table_line_numbers.update(range(block.start, block.end))
    outside: list[TableRow] = []
    for number, line in enumerate(text.split("\n")):
        if number in table_line_numbers:
            continue
        is_hidden = line != visible_lines[number]
        texts = _split_unmatched(line, is_hidden=is_hidden)
        if texts:
            outside.append(make_row(mapping, number + 1, texts))
    tables = tuple(_make_tables(mapping, lines, blocks))
    return DocumentTables(tables, tuple(outside), tuple(visible_lines))


def _blank_hidden(text: str) -> str:
    """Replace comments and HTML tables by as many empty lines."""
    for pattern, closing in _HIDDEN:
        # After the last closing text no opening can match: skip the costly search.
        end = text.lower().rfind(closing) + len(closing)
        searched, remainder = text[:end], text[end:]
        blanked = pattern.sub(lambda match: "\n" * match[0].count("\n"), searched)
        text = blanked + remainder
    return text


def _unquote(line: str) -> str:
    """Remove the marker of a quotation, and the indent of a possible row.

    Markdown would join an indented row to the text line before it.
    """
    quote = _QUOTE.match(line)
    text = line[quote.end() :] if quote else line
    return text.lstrip() if "|" in text else text


def _blank_long(line: str) -> str:
    """Blank a line that is too long; a long heading becomes `# ...`.

    The heading then still ends the section before it.
    """
    if len(line) <= LONGEST_LINE:
        return line
    return "# ..." if line.lstrip().lower().startswith(("#", "<h")) else ""


# --- blocks ---------------------------------------------------------------------------


@cache
def _make_parser() -> MarkdownIt:
    """Make the Markdown parser, with `_parse_table` instead of GitHub's table rule."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("strikethrough")
    # Read lines of HTML as paragraphs, so that a table below them is still a table.
    parser.disable(["html_block", "reference"])
    parser.block.ruler.at("table", _parse_table, {"alt": ["paragraph"]})
    return parser.enable("table")


def _parse_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a table: a block rule for markdown-it-py that replaces GitHub's rule."""
    stop = _find_table_end(state.env["lines"][:end], start)
    if stop and not silent:
        token = state.push("table", "table", 0)
        token.map = [start, stop]
        state.line = stop
    return stop > 0


def _find_blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Yield the headings and tables of a document, in order."""
    tokens = _make_parser().parse("\n".join(lines), {"lines": lines})
    for number, token in enumerate(tokens):
        start, end = token.map or (0, 0)
        if token.type == "table":
            yield _Block(start, end)
        elif token.type in ("fence", "code_block"):
            yield from _find_tables_in_code(lines, start, end)
        elif token.type == "heading_open":
            # The token after the opening contains the text, whose last line is the title:
            # a heading underlined with dashes includes the text lines above it.
            _, _, last_line = tokens[number + 1].content.rpartition("\n")
            level = int(token.tag.removeprefix("h"))
            yield _Block(start, end, level, strip_markup(last_line))
        elif token.type == "paragraph_open":
            yield from _find_bold_headings(lines, start, end)


def _find_tables_in_code(
    lines: Sequence[str], start: int, end: int
) -> Iterator[_Block]:
    """Yield the tables in a code block, which many documents use for plain tables."""
    while start < end:
        table_end = _find_table_end(lines[:end], start)
        if table_end:
            yield _Block(start, table_end)
            start = table_end
        else:
            start += 1


def _find_bold_headings(lines: Sequence[str], start: int, end: int) -> Iterator[_Block]:
    """Yield the lines of a paragraph that are headings: bold text, or an HTML heading."""
    for number in range(start, end):
        match = _LOOKS_LIKE_HEADING.fullmatch(lines[number].strip())
        if match:
            tag = match["tag"] or ""
            digit = tag[1:]  # `3` of h3, but also `ummary` of summary
            level = int(digit) if digit.isdigit() else BOLD_LEVEL
            title = strip_markup(match["bold"] or match["tagged"])
            yield _Block(number, number + 1, level, title)


def _make_tables(
    mapping: DocumentMapping, lines: Sequence[str], blocks: Sequence[_Block]
) -> Iterator[DocumentTable]:
    """Yield each table with its headings, and the lines since the block before it."""
    headings: list[_Block] = []
    end_of_last_block = 0
    for block in blocks:
        if block.title:
            headings = [outer for outer in headings if outer.level < block.level]
            headings.append(block)
        if block.is_table:
            between = [
                line
                for line in lines[end_of_last_block : block.start]
                if line.strip() and len(line) <= LONGEST_REMARK
            ]
            yield DocumentTable(
                headings=tuple(heading.title for heading in headings) or ("",),
                header=_read_row(mapping, lines, block.start),
                rows=tuple(
                    _read_row(mapping, lines, number)
                    # The second line of a table consists of dashes.
                    for number in range(block.start + 2, block.end)
                ),
                between=tuple(strip_markup(line) for line in between),
            )
        end_of_last_block = block.end


# --- rows -----------------------------------------------------------------------------


def _find_table_end(lines: Sequence[str], start: int) -> int:
    """Return the index of the line after a table that starts at `start`.

    Returns 0 if no table starts there.
    """
    if not _is_header(lines, start, min_dashes=1):
        return 0
    stop = start + 2
    while stop < len(lines):
        # A line of only numbers continues the row before, which was wrapped.
        if not _PIPE.search(lines[stop]) and not _NUMBERS.fullmatch(lines[stop]):
            break
        # `| - | - |` is a row of missing values; longer dashes belong to a new header.
        if _is_header(lines, stop, min_dashes=3):
            break
        stop += 1
    return stop


def _is_header(lines: Sequence[str], start: int, min_dashes: int) -> bool:
    """True if line `start` is the header of a table.

    A header contains a pipe, and the next line consists of dashes, at least `min_dashes`
    in each cell.
    """
    if start + 1 >= len(lines):
        return False
    header, dashes = lines[start], lines[start + 1]
    if not _PIPE.search(header) or _is_dashes(header):
        return False
    if "|" not in dashes or not _is_dashes(dashes):
        return False
    return all(cell.count("-") >= min_dashes for cell in _split_cells(dashes))


def _is_dashes(line: str) -> bool:
    return "-" in line and _DASHES.fullmatch(line.strip()) is not None


def _split_cells(line: str) -> list[str]:
    """Split a line at its pipes; the outer pipes are optional."""
    cells = _PIPE.split(line.strip())
    if len(cells) > 1 and not cells[0].strip():
        del cells[0]
    if len(cells) > 1 and not cells[-1].strip():
        del cells[-1]
    return cells


def _strip_cells(line: str) -> list[str]:
    return [strip_markup(cell) for cell in _split_cells(line)]


def _read_row(mapping: DocumentMapping, lines: Sequence[str], number: int) -> TableRow:
    """Read the row in the line with the 0-based index `number`."""
    line = lines[number]
    row = make_row(mapping, number + 1, _strip_cells(line))
    return row._replace(ends_with_pipe=line.rstrip().endswith("|"))


def _split_unmatched(line: str, *, is_hidden: bool) -> list[str]:
    """Split a line outside of tables that looks like a row; [] for other lines.

    A line looks like a row if it has a number between pipes, tabs or HTML tags, or if it
    is hidden (in a comment or HTML table) and contains only numbers. A very long line
    with a pipe becomes one cell with its first characters.
    """
    if len(line) > LONGEST_LINE:
        return [f"{line[:40]}..."] if "|" in line else []
    row = _HTML_CELL.sub("|", _unquote(line).strip().replace("\t", "|"))
    # In an HTML table, the text of a cell may have its own line without tags.
    is_hidden_number = is_hidden and _NUMBERS.fullmatch(row)
    if not _PIPE.search(row) and not is_hidden_number:
        return []
    if _is_dashes(row):
        return []
    texts = _strip_cells(row)
    has_number = any(map(_NUMBERS.fullmatch, texts))
    return texts if has_number else []


# --- cells ----------------------------------------------------------------------------


def strip_markup(cell: str) -> str:
    """Return the visible text of a cell; text that is struck out keeps its tildes."""
    (inline,) = _make_parser().parseInline(cell.strip().replace("\\|", "|"))
    text = "".join(_list_texts(inline.children or []))
    return " ".join(_FOOTNOTE.sub("", text).split())


def _read_tag(token: Token) -> str | None:
    """Return the tag name of HTML: `sup` for `<sup>` and `</sup>`, "" for a comment.

    Returns None for a token that is not HTML.
    """
    if token.type != "html_inline":
        return None
    match = re.match(r"</?([a-z]*)", token.content.lower())
    return match[1] if match else None


def _list_texts(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the texts of a cell without superscripts; `~~` surrounds struck text."""
    is_superscript = False
    for number, token in enumerate(tokens):
        tag = _read_tag(token)
        if tag == "sup":
            is_superscript = not token.content.startswith("</")
        elif is_superscript:
            continue
        elif tag is not None:
            if tag in _STRUCK_TAGS:
                yield "~~"
            elif tag:  # not an HTML comment
                yield " "
        elif token.type in ("s_open", "s_close"):
            yield "~~"
        elif token.type in ("softbreak", "hardbreak"):
            yield " "
        elif token.type in ("link_open", "link_close"):
            # The first text of the link at its opening, the last text at its closing.
            inside = number + 1 if token.type == "link_open" else number - 1
            # Keep the number of a footnote apart from adjacent digits.
            is_number = _LINKED_NUMBER.fullmatch(tokens[inside].content)
            yield " " if is_number else ""
        else:
            yield token.content
