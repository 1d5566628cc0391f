"""Read the configurations of one table: its columns, or its rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple

from pytest_llmbench.tools.import_tables.labels import (
    ABSENT,
    PRETRAINING,
    Caption,
    Facts,
    LabelledCell,
    find_unknown_words,
    is_known_label,
    is_shifted,
    is_unit,
    join_facts,
    make_recipe_name,
    parse_column_label,
    parse_dtypes,
    parse_metric_label,
    parse_release,
    parse_task,
    read_caption,
    read_cell,
    read_labelled_model,
)
from pytest_llmbench.tools.import_tables.mappings import KEY, METRICS, DocumentMapping
from pytest_llmbench.tools.import_tables.markdown_tables import DocumentTable, TableRow

SHIFTED = "the last cell of its row is empty, which may be shifted: write NA where there is no value"
PEAKS = "its table is about peaks of GPUs, which no run has reached"
OTHER_SUBJECT = "its table is not about performance or configurations"

_PAIR = re.compile(r"([^\s()]+) \(([^\s()]+)\)")
_PEAK = re.compile(r"\b(?:peak|theoretical)\b", re.IGNORECASE)


class UnreadCell(NamedTuple):
    """A cell that is in no draft, and the reason."""

    line: int
    text: str
    reason: str
    decisive: bool = True
    """False if its table has another subject."""


@dataclass(frozen=True, slots=True)
class DocumentConfiguration:
    """Everything that one column or row states of one configuration."""

    line: int
    table: str
    """The title."""

    facts: Facts
    """With the precision as printed; `unsized` are the words before the precision of a
    title, a possible recipe: `Deepseek V3 BF16`."""

    values: tuple[LabelledCell, ...] = ()
    """All cells that were read."""

    @property
    def recipe(self) -> str:
        """The recipe that its title or its model names, or ""."""
        return str(self.facts.get("recipe", ""))

    @property
    def cells(self) -> dict[str, str]:
        """The metrics as a baseline file keeps them."""
        return {name: str(self.facts[name]) for name in METRICS if name in self.facts}


class TableContent(NamedTuple):
    """The configurations of a table, and its cells that were not read."""

    entries: tuple[DocumentConfiguration, ...] = ()
    unread: tuple[UnreadCell, ...] = ()


def read_table(mapping: DocumentMapping, table: DocumentTable) -> TableContent:
    """Return the configurations of a table, and every cell that was not read.

    Labels are in the header (a row for each configuration) or in the first column (a
    column for each), whichever has more known labels.
    """
    header, column = table.header.cells, [row.cells[0] for row in table.rows]
    about_peaks = is_about_peaks(mapping, table)
    if about_peaks or not _is_about_configurations(
        mapping, (*header, *column), header[1:]
    ):
        reason = PEAKS if about_peaks else OTHER_SUBJECT
        return TableContent(
            (), tuple(refuse_rows((table.header, *table.rows), reason, decisive=False))
        )
    unit_line = _find_unit_line(mapping, table)
    if unit_line:
        reason = f"a unit stands in a cell of its own (line {unit_line}): nobody knows for which values"
        return TableContent((), tuple(refuse_rows(table.rows, reason)))
    checked = list(_check_rows(mapping, table))
    whole = [row for row, why in checked if not why]
    wrong = (cell for row, why in checked if why for cell in refuse_rows([row], why))
    in_header, in_column = (
        sum(is_known_label(mapping, label) for label in labels)
        for labels in (header, column)
    )
    read = _read_rows if in_header >= in_column and in_header > 0 else _read_columns
    content = read(mapping, table, whole)
    entries = tuple(_add_headings(mapping, table, entry) for entry in content.entries)
    return TableContent(entries, (*wrong, *content.unread))


def refuse_rows(
    rows: Iterable[TableRow], reason: str, *, decisive: bool = True
) -> Iterator[UnreadCell]:
    """Yield every cell of some rows as not read."""
    for row in rows:
        yield from (
            UnreadCell(row.line, cell, reason, decisive) for cell in row.cells if cell
        )


# --- the subject of a table, and its damage -------------------------------------------


def is_about_peaks(mapping: DocumentMapping, table: DocumentTable) -> bool:
    """Return True if a table lists peaks of GPUs: no configuration, no other metric."""
    labels = (*table.header.cells, *(row.cells[0] for row in table.rows))
    texts = (table.heading, table.lead, *labels)
    if not any(_PEAK.search(text) for text in texts):
        return False
    metrics = {
        metric.name
        for label in labels
        if (metric := parse_metric_label(mapping, label))
    }
    columns = {parse_column_label(mapping, label) for label in labels}
    if metrics - {"tflops_per_gpu"} or columns - {"", *KEY[:3]}:
        return False
    return not any("gpus" in read_caption(mapping, label).facts for label in labels)


def _is_about_configurations(
    mapping: DocumentMapping, labels: Sequence[str], captions: Iterable[str]
) -> bool:
    if any(parse_metric_label(mapping, label) for label in labels):
        return True
    names = {parse_column_label(mapping, label) for label in labels}
    return bool(names - {"", "task", *KEY[:3]}) or any(
        "gpus" in read_caption(mapping, text).facts for text in captions
    )


def _find_unit_line(mapping: DocumentMapping, table: DocumentTable) -> int:
    """Return the line of a cell that is only a unit, 0 for none."""
    for row in table.rows:
        if any(
            is_unit(mapping, cell) and not is_known_label(mapping, cell)
            for cell in row.cells
        ):
            return row.line
    return 0


def _check_rows(
    mapping: DocumentMapping, table: DocumentTable
) -> Iterator[tuple[TableRow, str]]:
    """Yield rows without empty cells beyond the header, and the reason not to read
    them.

    Padded or cut as GitHub does, their values could change columns unnoticed.
    """
    wide = len(table.header.cells)
    for whole, below in zip_longest(table.rows, table.rows[1:]):
        is_padded = all(whole.cells[:wide]) and not any(whole.cells[wide:])
        row = whole._replace(cells=whole.cells[:wide]) if is_padded else whole
        cells, why = row.cells, ""
        if len(cells) != wide:
            why = f"its row has {len(cells)} cells, the header {wide}: nobody knows where each belongs"
        elif (
            table.header.closed > row.closed
            and below is not None
            and len(below.cells) < wide
        ):
            why = f"its row has no pipe at its end, as the header has: line {below.line} may be the rest of it"
        elif (
            cells[-1] == "" and any(cells[1:]) and parse_metric_label(mapping, cells[0])
        ):
            why = SHIFTED
        yield row, why


def _refuse_below(rows: Sequence[TableRow]) -> Iterator[UnreadCell]:
    if rows:
        reason = f"line {rows[0].line} looks like a header: nobody knows what it says of the rows below"
        yield from refuse_rows(rows, reason)


# --- text above a table ---------------------------------------------------------------


def _add_headings(
    mapping: DocumentMapping, table: DocumentTable, entry: DocumentConfiguration
) -> DocumentConfiguration:
    """Complete a configuration with the facts of the headings and lines above its
    table."""
    models = (
        read_labelled_model(mapping, heading) for heading in reversed(table.headings)
    )
    model = next(filter(None, models), {})
    facts = {**model, **_read_above(mapping, table), **entry.facts}
    if facts.get("task") == PRETRAINING:
        del facts["task"]
    return replace(entry, facts=facts)


def _read_above(mapping: DocumentMapping, table: DocumentTable) -> Facts:
    """Return size, GPU type, precision and task from the text above a table.

    Outer headings state the GPU type only. A fact that the line above the table
    contradicts (`And in BF16:`) is "".
    """
    stated: Facts = {}
    for text in table.headings[:-1]:
        stated |= _select_facts(read_caption(mapping, text).facts, ["gpu"])
    stated |= _select_facts(
        read_caption(mapping, table.heading).facts, [*KEY[:3], "proxy"]
    )
    lead = _select_facts(read_caption(mapping, table.lead).facts, stated)
    remarks = (_read_remark(mapping, text) for text in table.between)
    return join_facts([stated, lead, *remarks]) | _read_task(mapping, *table.headings)


def _select_facts(facts: Facts, names: Iterable[str]) -> Facts:
    return {name: facts[name] for name in names if name in facts}


def _read_remark(mapping: DocumentMapping, text: str) -> Facts:
    """Return GPU type and precision of a line such as `System: DGX-H100`."""
    facts: Facts = {}
    for name, pattern in mapping.above:
        match = pattern.search(text)
        if match:
            facts |= _select_facts(read_caption(mapping, match[name]).facts, [name])
    return facts


def _read_task(mapping: DocumentMapping, *texts: str) -> Facts:
    """Return the task of the last text that names a task."""
    tasks = [task for task in (parse_task(mapping, text) for text in texts) if task]
    return {"task": tasks[-1]} if tasks else {}


# --- a row for each configuration -----------------------------------------------------


def _read_rows(
    mapping: DocumentMapping, table: DocumentTable, rows: Sequence[TableRow]
) -> TableContent:
    entries: list[DocumentConfiguration] = []
    unread: list[UnreadCell] = []
    labels = table.header.cells
    names: Facts = {}
    if not read_labelled_model(mapping, table.heading):
        names = _name_recipe(mapping, read_caption(mapping, table.heading))
    inner = next(
        (number for number, row in enumerate(rows) if _is_header(mapping, labels, row)),
        len(rows),
    )
    for row in rows[:inner]:
        if row.cells[-1] == "" and is_known_label(mapping, labels[-1]):
            unread += refuse_rows([row], SHIFTED)
            continue
        cells = [
            LabelledCell(label, text, row.line)
            for label, text in zip(labels, row.cells, strict=True)
        ]
        for part in _split_pairs(mapping, cells):
            titled = DocumentConfiguration(row.line, table.heading, names)
            content = _make_configuration(mapping, titled, (), part)
            entries += content.entries
            unread += content.unread
    return TableContent(tuple(entries), (*unread, *_refuse_below(rows[inner:])))


def _split_pairs(
    mapping: DocumentMapping, cells: Sequence[LabelledCell]
) -> Iterator[Sequence[LabelledCell]]:
    """Yield the cells of a row, twice if its precision is a pair: `FP8-CS (FP8-MX)`."""
    pairs = [_PAIR.fullmatch(cell.text) for cell in cells]
    stated = [
        pair
        for pair, cell in zip(pairs, cells, strict=True)
        if pair and parse_column_label(mapping, cell.label) == "dtype"
    ]
    if not any(
        parse_dtypes(mapping, pair[1]) and parse_dtypes(mapping, pair[2])
        for pair in stated
    ):
        yield cells
        return
    for number in (1, 2):
        # A cell without a pair applies to both.
        yield [
            cell._replace(text=pair[number]) if pair else cell
            for pair, cell in zip(pairs, cells, strict=True)
        ]


def _is_header(mapping: DocumentMapping, labels: Sequence[str], row: TableRow) -> bool:
    """Return True for the header of another table, or a second line of the header."""
    if any(is_known_label(mapping, cell) for cell in row.cells):
        return True
    metrics = (
        cell
        for label, cell in zip(labels, row.cells, strict=True)
        if parse_metric_label(mapping, label)
    )
    return any(_is_caption(mapping, cell) for cell in metrics)


def _is_caption(mapping: DocumentMapping, text: str) -> bool:
    caption = read_caption(mapping, text)
    return bool(caption.facts.keys() & set(KEY)) and not caption.rest


# --- a column for each configuration --------------------------------------------------


def _read_columns(
    mapping: DocumentMapping, table: DocumentTable, rows: Sequence[TableRow]
) -> TableContent:
    header = table.header
    title = read_caption(mapping, header.cells[0])
    titled = DocumentConfiguration(
        header.line, header.cells[0], _name_recipe(mapping, title)
    )
    inner = next(
        (number for number, row in enumerate(rows) if _names_columns(mapping, row)),
        len(rows),
    )
    rows, below = rows[:inner], rows[inner:]
    entries: list[DocumentConfiguration] = []
    unread = [
        *_refuse_title(mapping, header.line, header.cells[0], title),
        *_refuse_below(below),
    ]
    for row in rows:
        if any(map(str.isdigit, row.cells[0])) and not is_known_label(
            mapping, row.cells[0]
        ):
            unread.append(
                UnreadCell(
                    row.line, row.cells[0], "it stands where a label is expected"
                )
            )
    stated_by_rows = {parse_column_label(mapping, row.cells[0]) for row in rows}
    for number, text in enumerate(header.cells[1:], 1):
        cells = [
            LabelledCell(row.cells[0], row.cells[number], row.line) for row in rows
        ]
        column = read_caption(mapping, text)
        unknown = find_unknown_words(mapping, column)
        if unknown:
            reason = (
                f"the header of its column, {text!r}, is not understood: {unknown!r}"
            )
            unread.append(
                UnreadCell(header.line, text, f"{unknown!r} in it is not understood")
            )
            unread += [
                UnreadCell(cell.line, cell.text, reason)
                for cell in cells
                if cell.text not in ABSENT
            ]
            continue
        # A row with a value for each column states more than the title of all columns.
        about = {
            name: value
            for name, value in title.facts.items()
            if name in KEY or name not in stated_by_rows
        }
        if "task" not in stated_by_rows:
            about |= _read_task(mapping, header.cells[0], text)
        content = _make_configuration(mapping, titled, (about, column.facts), cells)
        entries += content.entries
        unread += content.unread
    return TableContent(tuple(entries), tuple(unread))


def _names_columns(mapping: DocumentMapping, row: TableRow) -> bool:
    """Return True for the header of another table: `8x H100 GPUs` in a column."""
    if is_known_label(mapping, row.cells[0]):
        return False
    return any("gpus" in read_caption(mapping, cell).facts for cell in row.cells[1:])


def _refuse_title(
    mapping: DocumentMapping, line: int, text: str, title: Caption
) -> Iterator[UnreadCell]:
    """Yield a title with a number of unknown meaning, or with contradictions."""
    rest = title.rest.removeprefix(" ".join(title.before.split())).strip()
    rest = " ".join(word for word in rest.split() if not parse_release(mapping, [word]))
    if any(map(str.isdigit, rest)):
        yield UnreadCell(line, text, f"{rest!r} in this title is not understood")
    for name, value in title.facts.items():
        if value == "":
            yield UnreadCell(line, text, f"this title states several values of {name}")


# --- one configuration ----------------------------------------------------------------


def _name_recipe(mapping: DocumentMapping, title: Caption) -> Facts:
    """Return the recipe that a title names before its size or precision."""
    name = make_recipe_name(mapping, title.before)
    sources = {"recipe": "size", "unsized": "dtype"}
    return {
        key: name for key, source in sources.items() if name and title.facts.get(source)
    }


def _make_configuration(
    mapping: DocumentMapping,
    titled: DocumentConfiguration,
    captions: Sequence[Facts],
    cells: Sequence[LabelledCell],
) -> TableContent:
    """Add the facts of captions and cells to a configuration that has only its title.

    A fact with several values is not used, and all cells that state it are unread.
    """
    read, unread, lost = _read_cells(mapping, cells)
    facts = join_facts(
        [*captions, *(stated for _, stated in read), dict.fromkeys(lost, "")]
    )
    odd = [name for name, value in facts.items() if value == ""]
    kept = {
        name: value
        for name, value in facts.items()
        if value != "" or name in (*KEY, "task")
    }
    values = tuple(cell for cell, stated in read if not stated.keys() & set(odd))
    entry = replace(titled, facts=titled.facts | kept, values=values)
    contradictory = (
        cell
        for name in odd
        for cell in _refuse_contradictory(entry, name, captions, read)
    )
    return TableContent((entry,), (*unread, *contradictory))


def _read_cells(
    mapping: DocumentMapping, cells: Sequence[LabelledCell]
) -> tuple[list[tuple[LabelledCell, Facts]], list[UnreadCell], set[str]]:
    """Return cells with their facts, cells that were not read, and parts of the key
    lost with them.

    If one has the unit of another metric, the row may be shifted, and no cell is read.
    """
    shifted = next((cell for cell in cells if is_shifted(mapping, cell)), None)
    if shifted:
        why = f"{shifted.text!r} has the unit of another metric than {shifted.label!r}: who knows where each belongs"
        return (
            [],
            [
                UnreadCell(cell.line, cell.text, why)
                for cell in cells
                if cell.text not in ABSENT
            ],
            set(),
        )
    read: list[tuple[LabelledCell, Facts]] = []
    unread: list[UnreadCell] = []
    lost: set[str] = set()
    for cell in cells:
        column = {parse_column_label(mapping, cell.label)}
        if cell.text == "":  # perhaps merged with the cell above
            lost |= column & {*KEY[:3], "task"}
        try:
            read.append((cell, read_cell(mapping, cell)))
        except ValueError as error:
            unread.append(UnreadCell(cell.line, cell.text, f"{cell.label!r}: {error}"))
            lost |= column & {*KEY, "task"}
            if _is_caption(mapping, cell.text):
                lost |= read_caption(mapping, cell.text).facts.keys() & set(KEY)
    return read, unread, lost


def _refuse_contradictory(
    entry: DocumentConfiguration,
    name: str,
    captions: Sequence[Facts],
    read: Sequence[tuple[LabelledCell, Facts]],
) -> Iterator[UnreadCell]:
    """Yield the cells with one of several values, and the title if it states one."""
    in_captions = {str(caption[name]) for caption in captions if name in caption}
    in_cells = {str(stated[name]) for _, stated in read if name in stated}
    values = (in_captions | in_cells) - {""}
    reason = f"several values stand for it: {', '.join(sorted(values))}"
    if in_captions and values:
        yield UnreadCell(entry.line, entry.table, f"{name}: {reason}")
    for cell, stated in read:
        if name in stated:
            yield UnreadCell(cell.line, cell.text, f"{cell.label!r}: {reason}")
