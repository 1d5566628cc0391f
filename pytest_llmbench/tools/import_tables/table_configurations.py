"""Read the configurations of one table, one for each row or each column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.patterns import compile_on_use
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
    SHARED_COLUMNS,
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

# `FP8-CS (FP8-MX)`
_PAIR = compile_on_use(r"([^\s()]+) \(([^\s()]+)\)")


class DocumentConfiguration(Struct, frozen=True):
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


class ReadCells(NamedTuple):
    """The cells of a row or column after reading."""

    cells_with_facts: list[tuple[LabelledCell, Facts]]

    unread: list[UnreadCell]
    unknown_keys: set[str]
    """The key columns that the unread cells leave unknown."""


def read_table(mapping: DocumentMapping, table: DocumentTable) -> Iterator[Finding]:
    """Yield the configurations of a table, and its unread cells.

    The labels are in the header (one configuration per row) or in the first column (one
    configuration per column), whichever has more known labels.
    """
    # The cells of a table about another subject are unread, but not decisive.
    about_peaks = table.is_about_peaks
    if about_peaks or not _is_about_configurations(table):
        reason = PEAK_TABLE if about_peaks else OTHER_SUBJECT
        yield from refuse_rows((table.header, *table.rows), reason, decisive=False)
        return
    # A unit in a cell of its own: which values have this unit is unknown.
    unit_line = _find_unit_line(mapping, table)
    if unit_line:
        reason = f"a cell in line {unit_line} contains only a unit: the values of this unit are unknown"
        yield from refuse_rows(table.rows, reason)
        return
    # Rows with a missing or superfluous cell.
    complete: list[TableRow] = []
    for row, problem in _check_rows(table):
        if problem:
            yield from refuse_rows([row], problem)
        else:
            complete.append(row)
    # The direction of the table.
    labels_in_header = sum(label.is_label for label in table.header.cells)
    labels_in_column = sum(row.cells[0].is_label for row in table.rows)
    # A tie means rows, because most tables have one configuration in each row.
    has_row_each = labels_in_header >= labels_in_column and labels_in_header > 0
    read_configurations = _read_rows if has_row_each else _read_columns
    for finding in read_configurations(mapping, table, complete):
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
    # Size, GPU type, precision and task alone also head tables of other subjects.
    if {label.column for label in labels} - {"", "task", *SHARED_COLUMNS}:
        return True
    _, *column_headers = table.header.cells
    return any("gpus" in header.facts for header in column_headers)


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
    next_rows = table.rows[1:]
    for row, next_row in zip_longest(table.rows, next_rows):
        texts = [cell.text for cell in row.cells]
        is_padded = all(texts[:width]) and not any(texts[width:])
        cells = row.cells[:width] if is_padded else row.cells
        lacks_pipe = table.header.ends_with_pipe and not row.ends_with_pipe
        label, last_cell = cells[0], cells[-1]
        problem = ""
        if len(cells) != width:
            problem = f"the row has {len(cells)} cells, but the header has {width}: the row may be shifted"
        elif lacks_pipe and next_row is not None and len(next_row.cells) < width:
            problem = f"the row does not end with a pipe, but the header does: line {next_row.line} may continue the row"
        # A row that is empty except for its label is not shifted.
        elif label.metric and any(texts[1:]) and not last_cell.text:
            problem = SHIFTED_ROW
        yield row._replace(cells=cells), problem


def _refuse_below(rows: Sequence[TableRow]) -> Iterator[UnreadCell]:
    """Yield the cells from a second header on as unread.

    `rows` are this header and the rows below it, or empty.
    """
    if rows:
        second_header = rows[0]
        reason = f"line {second_header.line} looks like another header: the meaning of the rows below it is unknown"
        yield from refuse_rows(rows, reason)


# --- text above a table ---------------------------------------------------------------


def _add_headings(
    mapping: DocumentMapping, table: DocumentTable, entry: DocumentConfiguration
) -> DocumentConfiguration:
    """Complete a configuration with the facts of the text above its table."""
    # The innermost heading that names a model, else no facts.
    model: Facts = {}
    for heading in reversed(table.headings):
        model = model or read_labelled_model(mapping, heading)
    # The facts of the table take precedence over the text above it.
    facts = {**model, **_read_above(mapping, table), **entry.facts}
    if facts.get("task") == PRETRAINING:
        del facts["task"]
    return replace(entry, facts=facts)


def _read_above(mapping: DocumentMapping, table: DocumentTable) -> Facts:
    """Read size, GPU type, precision and task from the text above a table.

    Outer headings give the GPU type only. A fact becomes "" if the line directly above
    the table contradicts it (`And in BF16:`).
    """
    in_headings: Facts = {}
    *outer_headings, heading = table.headings
    for text in outer_headings:
        in_headings |= _select_facts(read_caption(mapping, text).facts, ["gpu"])
    heading_facts = read_caption(mapping, heading).facts
    in_headings |= _select_facts(heading_facts, [*SHARED_COLUMNS, "proxy"])
    # Only facts that the headings state, too: other facts of prose may not be about the
    # table.
    in_lead = _select_facts(read_caption(mapping, table.lead).facts, in_headings)
    in_remarks = (_read_remark(mapping, text) for text in table.between)
    joined = join_facts([in_headings, in_lead, *in_remarks])
    return joined | _read_task(mapping, *table.headings)


def _select_facts(facts: Facts, names: Iterable[str]) -> Facts:
    """Select the facts with these names; missing facts are left out."""
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
    facts: Facts = {}
    for text in texts:
        task = parse_task(mapping, text)
        if task:
            facts["task"] = task
    return facts


# --- a row for each configuration -----------------------------------------------------


def _read_rows(
    mapping: DocumentMapping, table: DocumentTable, rows: Sequence[TableRow]
) -> Iterator[Finding]:
    """Yield a configuration for each row up to a second header, and the unread cells."""
    labels, heading = table.header.cells, table.heading
    title_facts: Facts = {}
    # A heading such as `Model: LLAMA3_70B` is read by `_add_headings`.
    if not read_labelled_model(mapping, heading):
        title_facts = _name_recipe(mapping, read_caption(mapping, heading))
    second_header = _find_first_true([_is_header(labels, row) for row in rows])
    for row in rows[:second_header]:
        if row.cells[-1].text == "" and labels[-1].is_label:
            yield from refuse_rows([row], SHIFTED_ROW)
            continue
        labelled_cells = list(map(LabelledCell, labels, row.cells))
        for cells in _split_pairs(mapping, labelled_cells):
            title_entry = DocumentConfiguration(row.line, heading, title_facts)
            yield from _make_configuration(
                mapping, title_entry, captions=(), cells=cells
            )
    yield from _refuse_below(rows[second_header:])


def _find_first_true(matches: Sequence[bool]) -> int:
    """Return the index of the first True, or the length if there is none."""
    return matches.index(True) if True in matches else len(matches)


def _split_pairs(
    mapping: DocumentMapping, cells: Sequence[LabelledCell]
) -> Iterator[Sequence[LabelledCell]]:
    """Yield the cells of a row, or of two rows if its cells are pairs.

    A row has pairs if its precision is a pair: `FP8-CS (FP8-MX)`.
    """
    matches = [
        _PAIR.fullmatch(cell.text) for label, cell in cells if label.column == "dtype"
    ]
    has_dtype_pair = any(
        match and all(parse_dtypes(mapping, text) for text in match.groups())
        for match in matches
    )
    if not has_dtype_pair:
        yield cells
        return
    for number in (1, 2):  # the first and the second value of each pair
        row_cells: list[LabelledCell] = []
        for label, cell in cells:
            pair = _PAIR.fullmatch(cell.text)
            # A cell that is not a pair applies to both rows.
            value = parse_cell(mapping, pair[number], cell.line) if pair else cell
            row_cells.append(LabelledCell(label, value))
        yield row_cells


def _is_header(labels: Sequence[Cell], row: TableRow) -> bool:
    """True if a row is the header of another table, or a second line of the header."""
    for label, cell in zip(labels, row.cells, strict=True):
        if cell.is_label:
            return True
        if label.metric and _is_caption(cell):  # `8x H100` instead of a number
            return True
    return False


def _is_caption(cell: Cell) -> bool:
    """True if a cell contains only facts, such as `8x H100`, and one of a key column."""
    has_key_column = not cell.facts.keys().isdisjoint(KEY_COLUMNS)
    return has_key_column and not cell.caption.rest


# --- a column for each configuration --------------------------------------------------


def _read_columns(
    mapping: DocumentMapping, table: DocumentTable, rows: Sequence[TableRow]
) -> Iterator[Finding]:
    """Yield a configuration for each column up to a second header, and unread cells.

    The first cell of the header is the title of all columns.
    """
    title, *columns = table.header.cells
    title_entry = DocumentConfiguration(
        title.line, title.text, _name_recipe(mapping, title.caption)
    )
    second_header = _find_first_true([_names_columns(row) for row in rows])
    yield from _refuse_title(mapping, title)
    yield from _refuse_below(rows[second_header:])
    rows = rows[:second_header]
    labels = [row.cells[0] for row in rows]
    # A number in the first column may be a value in a shifted row.
    for label in labels:
        if any(map(str.isdigit, label.text)) and not label.is_label:
            yield label.refuse(
                "the first column contains this cell, but a label is expected"
            )
    stated_by_rows = {label.column for label in labels}
    # A row with a value for each column replaces a fact of the title. A key column in
    # both may reveal a contradiction, so keep it.
    title_facts = {
        name: value
        for name, value in title.facts.items()
        if name in KEY_COLUMNS or name not in stated_by_rows
    }
    for number, column in enumerate(columns, 1):
        cells = [row.cells[number] for row in rows]
        # `8x H100 (previous release)`: another measurement than those of the document.
        unknown = find_unknown_words(mapping, column.caption)
        if unknown:
            reason = f"{unknown!r} in the header of the column, {column.text!r}, is not understood"
            yield column.refuse(f"{unknown!r} is not understood")
            yield from (cell.refuse(reason) for cell in cells if not cell.is_absent)
            continue
        task: Facts = {}
        if "task" not in stated_by_rows:
            task = _read_task(mapping, title.text, column.text)
        labelled_cells = list(map(LabelledCell, labels, cells))
        captions = (title_facts | task, column.facts)
        yield from _make_configuration(mapping, title_entry, captions, labelled_cells)


def _names_columns(row: TableRow) -> bool:
    """True if a row is the header of another table, with `8x H100 GPUs` over a column."""
    if row.cells[0].is_label:
        return False
    return any("gpus" in cell.facts for cell in row.cells[1:])


def _refuse_title(mapping: DocumentMapping, title: Cell) -> Iterator[UnreadCell]:
    """Yield the title as an unread cell if it has an unknown number or contradictions.

    A recipe name before the first fact, and a release, may contain numbers.
    """
    # In `Grok 1 314b on 3 nodes`, `Grok 1` may be a recipe, but `3 nodes` is unknown.
    words_before_facts = " ".join(title.caption.before.split())
    words_without_facts = title.caption.rest
    words = words_without_facts.removeprefix(words_before_facts).split()
    unknown = " ".join(word for word in words if not parse_release(mapping, [word]))
    if any(map(str.isdigit, unknown)):
        yield title.refuse(f"{unknown!r} in this title is not understood")
    for name, value in title.facts.items():
        if value == "":  # the title states several values
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
    title_entry: DocumentConfiguration,
    captions: Sequence[Facts],
    cells: Sequence[LabelledCell],
) -> Iterator[Finding]:
    """Complete a configuration with the facts of captions and cells.

    `title_entry` is the configuration with only the facts of its title. A fact with
    several values is not used, and all cells that state it are unread.
    """
    cells_with_facts, unread, unknown_keys = _read_cells(mapping, cells)
    yield from unread
    facts_of_cells = [facts for _, facts in cells_with_facts]
    unknown_facts: Facts = dict.fromkeys(unknown_keys, "")
    facts = join_facts([*captions, *facts_of_cells, unknown_facts])
    ambiguous = [name for name, value in facts.items() if value == ""]
    # An ambiguous key column stays "", so that no text above the table replaces it.
    kept = {
        name: value
        for name, value in facts.items()
        if value != "" or name in (*KEY_COLUMNS, "task")
    }
    values = tuple(
        cell
        for cell, facts_of_cell in cells_with_facts
        if facts_of_cell.keys().isdisjoint(ambiguous)
    )
    entry = replace(title_entry, facts=title_entry.facts | kept, values=values)
    for name in ambiguous:
        yield from _refuse_contradictory(entry, name, captions, cells_with_facts)
    yield entry


def _read_cells(mapping: DocumentMapping, cells: Sequence[LabelledCell]) -> ReadCells:
    """Read the cells of a row or column.

    If a cell has the unit of another metric, the row may be shifted, so no cell is
    read. `unknown_keys` of the result are the keys that a cell should state, but that
    could not be read.
    """
    for label, cell in cells:
        if is_shifted(mapping, LabelledCell(label, cell)):
            reason = f"cell {cell.text!r} has the unit of another metric than {label.text!r}: the row may be shifted"
            given = [cell for _, cell in cells if not cell.is_absent]
            refused = [cell.refuse(reason) for cell in given]
            return ReadCells(cells_with_facts=[], unread=refused, unknown_keys=set())
    cells_with_facts: list[tuple[LabelledCell, Facts]] = []
    unread: list[UnreadCell] = []
    unknown_keys: set[str] = set()
    for labelled in cells:
        column, cell = labelled.label.column, labelled.cell
        # An empty cell may be merged with the cell above.
        if cell.text == "" and column in (*SHARED_COLUMNS, "task"):
            unknown_keys.add(column)
        try:
            cells_with_facts.append((labelled, read_value(mapping, labelled)))
        except ValueError as error:
            unread.append(labelled.refuse(str(error)))
            if column in (*KEY_COLUMNS, "task"):
                unknown_keys.add(column)
            if _is_caption(cell):  # `8x H100` in another column
                unknown_keys |= cell.facts.keys() & set(KEY_COLUMNS)
    return ReadCells(cells_with_facts, unread, unknown_keys)


def _refuse_contradictory(
    entry: DocumentConfiguration,
    name: str,
    captions: Sequence[Facts],
    cells_with_facts: Sequence[tuple[LabelledCell, Facts]],
) -> Iterator[UnreadCell]:
    """Yield the cells that contradict each other, and the title if it is involved.

    `name` is the contradictory fact.
    """
    in_captions = {str(caption[name]) for caption in captions if name in caption}
    in_cells = {str(facts[name]) for _, facts in cells_with_facts if name in facts}
    values = (in_captions | in_cells) - {""}
    reason = f"found several values: {', '.join(sorted(values))}"
    if in_captions and values:
        yield UnreadCell(entry.line, entry.table, f"{name}: {reason}")
    for labelled, facts in cells_with_facts:
        if name in facts:
            yield labelled.refuse(reason)
