"""Read the configurations of one table, one for each row or each column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from pytest_llmbench.tools.import_tables.labels import (
    PRETRAINING,
    Caption,
    Cell,
    Facts,
    LabelledCell,
    UnreadCell,
    find_unknown_words,
    is_shifted,
    is_unit,
    join_facts,
    make_recipe_name,
    parse_cell,
    parse_dtypes,
    parse_release,
    parse_task,
    read_caption,
    read_labelled_model,
    read_value,
)
from pytest_llmbench.tools.import_tables.mappings import (
    KEY_COLUMNS,
    METRICS,
    DocumentMapping,
)
from pytest_llmbench.tools.import_tables.markdown_tables import (
    DocumentTable,
    TableRow,
    refuse_rows,
)

SHIFTED_ROW = "the last cell of the row is empty, so the row may be shifted: write NA for a missing value"
PEAK_TABLE = "the table of the cell is about peak FLOPS of GPUs, not about measurements"
OTHER_SUBJECT = "the table of the cell is not about performance or configurations"

_PAIR = re.compile(r"([^\s()]+) \(([^\s()]+)\)")


@dataclass(frozen=True, slots=True)
class DocumentConfiguration:
    """A configuration as one column or row of a table states it."""

    line: int
    table: str
    """The title of the table."""

    facts: Facts
    """The facts, with the precision as printed.

    `unsized` is a possible recipe: the words before the precision in a title without a
    size, such as `Deepseek V3 BF16`.
    """

    values: tuple[LabelledCell, ...] = ()
    """The cells that the facts were read from."""

    @property
    def recipe(self) -> str:
        """The recipe named by the title or the model, or ""."""
        return str(self.facts.get("recipe", ""))

    @property
    def cells(self) -> dict[str, str]:
        """The metrics in the form of a baseline file."""
        return {name: str(self.facts[name]) for name in METRICS if name in self.facts}


Finding = DocumentConfiguration | UnreadCell
"""A configuration of a table, or an unread cell."""


def read_table(mapping: DocumentMapping, table: DocumentTable) -> Iterator[Finding]:
    """Yield the configurations of a table, and its unread cells.

    The labels are in the header (one configuration per row) or in the first column (one
    configuration per column), whichever has more known labels.
    """
    about_peaks = table.is_about_peaks
    if about_peaks or not _is_about_configurations(table):
        reason = PEAK_TABLE if about_peaks else OTHER_SUBJECT
        yield from refuse_rows((table.header, *table.rows), reason, decisive=False)
        return
    unit_line = _find_unit_line(mapping, table)
    if unit_line:
        reason = f"a cell in line {unit_line} contains only a unit: the values of this unit are unknown"
        yield from refuse_rows(table.rows, reason)
        return
    complete: list[TableRow] = []
    for row, problem in _check_rows(table):
        if problem:
            yield from refuse_rows([row], problem)
        else:
            complete.append(row)
    in_header = sum(label.is_label for label in table.header.cells)
    in_column = sum(row.cells[0].is_label for row in table.rows)
    # A tie means rows, because most tables have one configuration in each row.
    read = _read_rows if in_header >= in_column and in_header > 0 else _read_columns
    for finding in read(mapping, table, complete):
        if isinstance(finding, UnreadCell):
            yield finding
        else:
            yield _add_headings(mapping, table, finding)


# --- the subject of a table, and its damage -------------------------------------------


def _is_about_configurations(table: DocumentTable) -> bool:
    """True if a label is a metric or a setting, or if a column header counts GPUs."""
    labels = table.labels
    if any(label.metric for label in labels):
        return True
    if {label.column for label in labels} - {"", "task", *KEY_COLUMNS[:3]}:
        return True
    return any("gpus" in cell.facts for cell in table.header.cells[1:])


def _find_unit_line(mapping: DocumentMapping, table: DocumentTable) -> int:
    """Return the line of a cell that is only a unit, or 0."""
    for row in table.rows:
        if any(is_unit(mapping, cell.text) and not cell.is_label for cell in row.cells):
            return row.line
    return 0


def _check_rows(table: DocumentTable) -> Iterator[tuple[TableRow, str]]:
    """Yield each row with the reason not to read it, or "".

    A row must have as many cells as the header. Empty cells after a full row are
    dropped. Unlike on GitHub, no other row is padded or cut, because that would move
    values to other columns.
    """
    width = len(table.header.cells)
    for row, following in zip_longest(table.rows, table.rows[1:]):
        texts = [cell.text for cell in row.cells]
        is_padded = all(texts[:width]) and not any(texts[width:])
        cells = row.cells[:width] if is_padded else row.cells
        lacks_pipe = table.header.ends_with_pipe and not row.ends_with_pipe
        problem = ""
        if len(cells) != width:
            problem = f"the row has {len(cells)} cells, but the header has {width}: the row may be shifted"
        elif lacks_pipe and following is not None and len(following.cells) < width:
            problem = f"the row does not end with a pipe, but the header does: line {following.line} may continue the row"
        elif cells[0].metric and any(texts[1:]) and not cells[-1].text:
            problem = SHIFTED_ROW
        yield row._replace(cells=cells), problem


def _refuse_below(rows: Sequence[TableRow]) -> Iterator[UnreadCell]:
    """Yield the cells from a second header on, of which `rows[0]` is the header."""
    if rows:
        reason = f"line {rows[0].line} looks like another header: the meaning of the rows below it is unknown"
        yield from refuse_rows(rows, reason)


# --- text above a table ---------------------------------------------------------------


def _add_headings(
    mapping: DocumentMapping, table: DocumentTable, entry: DocumentConfiguration
) -> DocumentConfiguration:
    """Complete a configuration with the facts of the text above its table."""
    models = (
        read_labelled_model(mapping, heading) for heading in reversed(table.headings)
    )
    model = next(filter(None, models), {})
    facts = {**model, **_read_above(mapping, table), **entry.facts}
    if facts.get("task") == PRETRAINING:
        del facts["task"]
    return replace(entry, facts=facts)


def _read_above(mapping: DocumentMapping, table: DocumentTable) -> Facts:
    """Read size, GPU type, precision and task from the text above a table.

    Outer headings give the GPU type only. A fact becomes "" if the line directly above
    the table contradicts it (`And in BF16:`).
    """
    stated: Facts = {}
    for text in table.headings[:-1]:
        stated |= _select_facts(read_caption(mapping, text).facts, ["gpu"])
    stated |= _select_facts(
        read_caption(mapping, table.heading).facts, [*KEY_COLUMNS[:3], "proxy"]
    )
    lead = _select_facts(read_caption(mapping, table.lead).facts, stated)
    remarks = (_read_remark(mapping, text) for text in table.between)
    return join_facts([stated, lead, *remarks]) | _read_task(mapping, *table.headings)


def _select_facts(facts: Facts, names: Iterable[str]) -> Facts:
    return {name: facts[name] for name in names if name in facts}


def _read_remark(mapping: DocumentMapping, text: str) -> Facts:
    """Read GPU type and precision from a line such as `System: DGX-H100`."""
    facts: Facts = {}
    for name, pattern in mapping.above:
        match = pattern.search(text)
        if match:
            facts |= _select_facts(read_caption(mapping, match[name]).facts, [name])
    return facts


def _read_task(mapping: DocumentMapping, *texts: str) -> Facts:
    """Read the task from the last text that names a task."""
    tasks = [task for task in (parse_task(mapping, text) for text in texts) if task]
    return {"task": tasks[-1]} if tasks else {}


# --- a row for each configuration -----------------------------------------------------


def _read_rows(
    mapping: DocumentMapping, table: DocumentTable, rows: Sequence[TableRow]
) -> Iterator[Finding]:
    """Yield a configuration for each row up to a second header, and the unread cells."""
    labels, heading = table.header.cells, table.heading
    names: Facts = {}
    if not read_labelled_model(mapping, heading):
        names = _name_recipe(mapping, read_caption(mapping, heading))
    second_header = _find_first([_is_header(labels, row) for row in rows])
    for row in rows[:second_header]:
        if row.cells[-1].text == "" and labels[-1].is_label:
            yield from refuse_rows([row], SHIFTED_ROW)
            continue
        cells = list(map(LabelledCell, labels, row.cells))
        for row_cells in _split_pairs(mapping, cells):
            titled = DocumentConfiguration(row.line, heading, names)
            yield from _make_configuration(mapping, titled, (), row_cells)
    yield from _refuse_below(rows[second_header:])


def _find_first(matches: Sequence[bool]) -> int:
    """Return the index of the first True, or the length if there is none."""
    return (*matches, True).index(True)


def _split_pairs(
    mapping: DocumentMapping, cells: Sequence[LabelledCell]
) -> Iterator[Sequence[LabelledCell]]:
    """Yield the cells of a row, or of two rows if its cells are pairs.

    A row has pairs if its precision is a pair: `FP8-CS (FP8-MX)`.
    """
    pairs = [_PAIR.fullmatch(labelled.cell.text) for labelled in cells]
    if not any(
        labelled.label.column == "dtype"
        and pair
        and all(parse_dtypes(mapping, text) for text in pair.groups())
        for labelled, pair in zip(cells, pairs, strict=True)
    ):
        yield cells
        return
    for number in (1, 2):
        # A cell that is not a pair applies to both rows.
        yield [
            LabelledCell(label, parse_cell(mapping, pair[number], cell.line))
            if pair
            else LabelledCell(label, cell)
            for (label, cell), pair in zip(cells, pairs, strict=True)
        ]


def _is_header(labels: Sequence[Cell], row: TableRow) -> bool:
    """True if a row is the header of another table, or a second line of the header."""
    return any(
        cell.is_label or (label.metric and _is_caption(cell))
        for label, cell in zip(labels, row.cells, strict=True)
    )


def _is_caption(cell: Cell) -> bool:
    """True if a cell contains only facts, such as `8x H100`, and one of a key column."""
    return bool(cell.facts.keys() & set(KEY_COLUMNS)) and not cell.caption.rest


# --- a column for each configuration --------------------------------------------------


def _read_columns(
    mapping: DocumentMapping, table: DocumentTable, rows: Sequence[TableRow]
) -> Iterator[Finding]:
    """Yield a configuration for each column up to a second header, and unread cells.

    The first cell of the header is the title of all columns.
    """
    title = table.header.cells[0]
    titled = DocumentConfiguration(
        title.line, title.text, _name_recipe(mapping, title.caption)
    )
    second_header = _find_first([_names_columns(row) for row in rows])
    yield from _refuse_title(mapping, title)
    yield from _refuse_below(rows[second_header:])
    rows = rows[:second_header]
    labels = [row.cells[0] for row in rows]
    for label in labels:
        if any(map(str.isdigit, label.text)) and not label.is_label:
            yield label.refuse(
                "the first column contains this cell, but a label is expected"
            )
    stated_by_rows = {label.column for label in labels}
    # A row with a value for each column states more than the title of all columns.
    title_facts = {
        name: value
        for name, value in title.facts.items()
        if name in KEY_COLUMNS or name not in stated_by_rows
    }
    for number, column in enumerate(table.header.cells[1:], 1):
        cells = [row.cells[number] for row in rows]
        unknown = find_unknown_words(mapping, column.caption)
        if unknown:
            reason = f"{unknown!r} in the header of the column, {column.text!r}, is not understood"
            yield column.refuse(f"{unknown!r} is not understood")
            yield from (cell.refuse(reason) for cell in cells if not cell.is_absent)
            continue
        task: Facts = {}
        if "task" not in stated_by_rows:
            task = _read_task(mapping, title.text, column.text)
        labelled = list(map(LabelledCell, labels, cells))
        captions = (title_facts | task, column.facts)
        yield from _make_configuration(mapping, titled, captions, labelled)


def _names_columns(row: TableRow) -> bool:
    """True if a row is the header of another table, with `8x H100 GPUs` over a column."""
    if row.cells[0].is_label:
        return False
    return any("gpus" in cell.facts for cell in row.cells[1:])


def _refuse_title(mapping: DocumentMapping, title: Cell) -> Iterator[UnreadCell]:
    """Yield the title as an unread cell if it has an unknown number or contradictions.

    A recipe name before the first fact, and a release, may contain numbers.
    """
    _, before, rest = title.caption
    words = rest.removeprefix(" ".join(before.split())).split()
    rest = " ".join(word for word in words if not parse_release(mapping, [word]))
    if any(map(str.isdigit, rest)):
        yield title.refuse(f"{rest!r} in this title is not understood")
    for name, value in title.facts.items():
        if value == "":
            yield title.refuse(f"this title states several values of {name}")


# --- one configuration ----------------------------------------------------------------


def _name_recipe(mapping: DocumentMapping, title: Caption) -> Facts:
    """Read the recipe that a title names before its size or precision.

    Returns `recipe` if the title states a size, and `unsized` (a possible recipe) if it
    states a precision.
    """
    name = make_recipe_name(mapping, title.before)
    facts: Facts = {}
    if name and title.facts.get("size"):
        facts["recipe"] = name
    if name and title.facts.get("dtype"):
        facts["unsized"] = name
    return facts


def _make_configuration(
    mapping: DocumentMapping,
    titled: DocumentConfiguration,
    captions: Sequence[Facts],
    cells: Sequence[LabelledCell],
) -> Iterator[Finding]:
    """Complete a configuration with the facts of captions and cells.

    `titled` is the configuration with only the facts of its title. A fact with several
    values is not used, and all cells that state it are unread.
    """
    read, unread, lost = _read_cells(mapping, cells)
    yield from unread
    facts = join_facts(
        [*captions, *(stated for _, stated in read), dict.fromkeys(lost, "")]
    )
    ambiguous = [name for name, value in facts.items() if value == ""]
    kept = {
        name: value
        for name, value in facts.items()
        if value != "" or name in (*KEY_COLUMNS, "task")
    }
    values = tuple(cell for cell, stated in read if stated.keys().isdisjoint(ambiguous))
    entry = replace(titled, facts=titled.facts | kept, values=values)
    for name in ambiguous:
        yield from _refuse_contradictory(entry, name, captions, read)
    yield entry


def _read_cells(
    mapping: DocumentMapping, cells: Sequence[LabelledCell]
) -> tuple[list[tuple[LabelledCell, Facts]], list[UnreadCell], set[str]]:
    """Read the cells of a row or column.

    Returns the cells with their facts, the unread cells, and the key columns that the
    unread cells leave unknown. If a cell has the unit of another metric, the row may be
    shifted, so no cell is read.
    """
    for label, cell in cells:
        if is_shifted(mapping, LabelledCell(label, cell)):
            reason = f"cell {cell.text!r} has the unit of another metric than {label.text!r}: the row may be shifted"
            given = [cell for _, cell in cells if not cell.is_absent]
            return [], [cell.refuse(reason) for cell in given], set()
    read: list[tuple[LabelledCell, Facts]] = []
    unread: list[UnreadCell] = []
    lost: set[str] = set()
    for labelled in cells:
        column, cell = {labelled.label.column}, labelled.cell
        if cell.text == "":  # possibly merged with the cell above
            lost |= column & {*KEY_COLUMNS[:3], "task"}
        try:
            read.append((labelled, read_value(mapping, labelled)))
        except ValueError as error:
            unread.append(labelled.refuse(str(error)))
            lost |= column & {*KEY_COLUMNS, "task"}
            if _is_caption(cell):
                lost |= cell.facts.keys() & set(KEY_COLUMNS)
    return read, unread, lost


def _refuse_contradictory(
    entry: DocumentConfiguration,
    name: str,
    captions: Sequence[Facts],
    read: Sequence[tuple[LabelledCell, Facts]],
) -> Iterator[UnreadCell]:
    """Yield the cells that contradict each other, and the title if it is involved."""
    in_captions = {str(caption[name]) for caption in captions if name in caption}
    in_cells = {str(stated[name]) for _, stated in read if name in stated}
    values = (in_captions | in_cells) - {""}
    reason = f"found several values: {', '.join(sorted(values))}"
    if in_captions and values:
        yield UnreadCell(entry.line, entry.table, f"{name}: {reason}")
    for labelled, stated in read:
        if name in stated:
            yield labelled.refuse(reason)
