"""From a table to what it says of one configuration each: its columns, or its rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from pytest_llmbench.baseline.documents.labels import (
    ABSENT,
    DTYPE,
    KEY,
    METRICS,
    PRETRAINING,
    Caption,
    ConfigurationColumns,
    DocumentModel,
    LabelledCell,
    find_unknown_words,
    has_unit_of_another_metric,
    is_known_label,
    is_unit,
    make_recipe_name,
    parse_column_label,
    parse_dtypes,
    parse_metric_label,
    parse_release,
    parse_size,
    parse_task,
    read_caption,
    read_cell,
    read_labelled_model,
)
from pytest_llmbench.baseline.documents.markdown import MarkdownRow, MarkdownTable

SHIFTED = "the last cell of its row is empty, which may be shifted: write NA where there is no value"


_PAIR = re.compile(r"([^\s()]+) \(([^\s()]+)\)")
_REMARK = re.compile(
    rf"^\W*(?:(?:system|hardware|gpu(?: type)?)\s*:\s*(?P<gpu>.+)|(?:precision|data ?type|dtype)\s*:\s*(?P<dtype>.+))"
    rf"|\b(?:results|performance|throughput|benchmarks|measured)\b.*\b(?:at|in|with|using)\s+(?P<named>{DTYPE}\s+precision)\b",
    re.IGNORECASE,
)
_PEAK = re.compile(r"\b(?:peak|theoretical)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UnreadCell:
    """A cell that is in no file, and why."""

    line: int
    text: str
    reason: str
    decisive: bool = True
    """False where its table is about something else."""


@dataclass(frozen=True, slots=True)
class DocumentConfiguration:
    """What one column or row says of one configuration."""

    line: int
    recipe: str
    """The name that its title, or its model, gives."""

    table: str
    """The title itself."""

    facts: ConfigurationColumns
    """Columns by name, with the precision as printed."""

    cells: dict[str, str]
    """The metrics as a baseline file keeps them."""

    values: tuple[LabelledCell, ...]
    """All the cells that were read."""

    proxy: bool = False
    """Whether its size is marked as that of a proxy."""

    model: str = ""
    """The whole name of its model, where a label says that it is one."""

    unsized: str = ""
    """What its title names before the precision, where it may name the recipe: `Deepseek V3 BF16`."""


def read_table(table: MarkdownTable) -> tuple[tuple[DocumentConfiguration, ...], tuple[UnreadCell, ...]]:
    """Return what a table says, and every cell of it that was not read.

    It has its labels in the header (a row for each configuration) or in the first column (a column for each), whichever
    has more that are known. A table without any metric, number of GPUs or other column is about something else.
    """
    header, column = table.header.cells, [row.cells[0] for row in table.rows]
    if is_about_peaks(table):
        reason = "its table is about peaks of GPUs, which no run has reached"
        return (), tuple(refuse_rows((table.header, *table.rows), reason, decisive=False))
    if not _is_about_configurations((*header, *column), header[1:]):
        reason = "its table is not about performance or configurations"
        return (), tuple(refuse_rows((table.header, *table.rows), reason, decisive=False))
    cells = ((row, cell) for row in table.rows for cell in row.cells)
    if unit := next((row for row, cell in cells if is_unit(cell) and not is_known_label(cell)), None):
        reason = f"a unit stands in a cell of its own (line {unit.line}): nobody knows for which values"
        return (), tuple(refuse_rows(table.rows, reason))
    whole = [row for row, why in _check_rows(table) if not why]
    in_header, in_column = (sum(map(is_known_label, labels)) for labels in (header, column))
    by_rows = in_header >= in_column and in_header > 0
    entries, unread = _read_rows(table, whole) if by_rows else _read_columns(table, whole)
    about, model = _read_heading(table), _read_model(table)
    torn = (cell for row, why in _check_rows(table) if why for cell in refuse_rows([row], why))
    stated = [replace(entry, facts=_add_facts(about, entry.facts)) for entry in entries]
    return tuple(_name_model(entry, model) for entry in stated), (*torn, *unread)


def refuse_rows(rows: Sequence[MarkdownRow], reason: str, *, decisive: bool = True) -> Iterator[UnreadCell]:
    """Yield every cell of some rows as not read."""
    yield from (UnreadCell(row.line, cell, reason, decisive) for row in rows for cell in row.cells if cell)


def _read_heading(table: MarkdownTable) -> ConfigurationColumns:
    """Return what the heading says of size, GPU type and precision, and those above it of the GPU type alone; nothing
    where the line above the table says another (`And in BF16:`). The task is that of the innermost that names one."""
    lead = read_caption(table.lead).facts
    stated: ConfigurationColumns = {}
    for text in table.above:
        stated |= {name: value for name, value in read_caption(text).facts.items() if name == "gpu"}
    stated |= read_caption(table.heading).facts
    facts = {name: value if lead.get(name, value) == value else "" for name, value in stated.items() if name in KEY[:3]}
    for text in table.between:
        for name, value in _read_remark(text).items():
            facts[name] = value if facts.get(name, value) == value else ""
    return facts | _read_task(*table.above, table.heading)


def _read_remark(text: str) -> ConfigurationColumns:
    """Return what a line above a table states of GPU type and precision: `System: DGX-H100`, `at FP8 precision`."""
    match = _REMARK.search(text)
    name = "gpu" if match and match["gpu"] else "dtype"
    facts = read_caption(match[match.lastgroup or 0]).facts if match else {}
    return {name: facts[name]} if name in facts else {}


def _read_task(*texts: str) -> ConfigurationColumns:
    """Return the task that the last of some texts names which names one."""
    tasks = [task for task in map(parse_task, texts) if task]
    return {"task": tasks[-1]} if tasks else {}


def _add_facts(about: ConfigurationColumns, facts: ConfigurationColumns) -> ConfigurationColumns:
    """Return what a table says and what stands around it; pre-training is the task of what names none."""
    both = {**about, **facts}
    return {name: value for name, value in both.items() if (name, value) != ("task", PRETRAINING)}


def _read_model(table: MarkdownTable) -> DocumentModel | None:
    """Return the model that the nearest heading with such a label names."""
    return next(filter(None, map(read_labelled_model, reversed((*table.above, table.heading)))), None)


def _name_model(entry: DocumentConfiguration, model: DocumentModel | None) -> DocumentConfiguration:
    if model is None or entry.model:
        return entry
    facts = {**entry.facts, "size": model.size} if entry.facts.get("size", model.size) == model.size else entry.facts
    return replace(entry, facts=facts, recipe=entry.recipe or model.recipe, model=model.name)


def _is_about_configurations(labels: Sequence[str], captions: Iterable[str]) -> bool:
    names = [parse_column_label(label) for label in labels if not parse_metric_label(label)]
    named = len(names) < len(labels) or any(name not in ("", "task", *KEY[:3]) for name in names)
    return named or any("gpus" in read_caption(text).facts for text in captions)


def is_about_peaks(table: MarkdownTable) -> bool:
    """Whether a table states what GPUs could do: it says `peak`, and nothing of a configuration or of other metrics."""
    labels = (*table.header.cells, *(row.cells[0] for row in table.rows))
    metrics = {metric[0] for label in labels if (metric := parse_metric_label(label))}
    columns = {parse_column_label(label) for label in labels}
    named = metrics - {"tflops_per_gpu"} | columns - {"", *KEY[:3]}
    measured = bool(named) or any("gpus" in read_caption(label).facts for label in labels)
    return not measured and any(_PEAK.search(text) for text in (table.heading, table.lead, *labels))


def _check_rows(table: MarkdownTable) -> Iterator[tuple[MarkdownRow, str]]:
    """Yield the rows of a table, without empty cells beyond its header, each with why it is not known where its cells
    belong, or where the last one ends; empty where it is."""
    wide = len(table.header.cells)
    for whole, below in zip_longest(table.rows, table.rows[1:]):
        why, is_padded = "", all(whole.cells[:wide]) and not any(whole.cells[wide:])
        row = replace(whole, cells=whole.cells[:wide]) if is_padded else whole
        # As GFM would fill it, or cut it, values could change their columns in silence.
        if len(row.cells) != wide:
            why = f"its row has {len(row.cells)} cells, the header {wide}: nobody knows where each belongs"
        elif table.header.closed > row.closed and below is not None and len(below.cells) < wide:
            why = f"its row has no pipe at its end, as the header has: line {below.line} may be the rest of it"
        elif parse_metric_label(row.cells[0]) and row.cells[-1] == "" and any(row.cells[1:]):
            why = SHIFTED
        yield row, why


def _read_rows(
    table: MarkdownTable, rows: Sequence[MarkdownRow]
) -> tuple[tuple[DocumentConfiguration, ...], tuple[UnreadCell, ...]]:
    entries: list[DocumentConfiguration] = []
    unread: list[UnreadCell] = []
    labels = table.header.cells
    caption = Caption({}, "", "") if read_labelled_model(table.heading) else read_caption(table.heading)
    inner = next((place for place, row in enumerate(rows) if _is_header(labels, row)), len(rows))
    for row in rows[:inner]:
        values = [LabelledCell(label, text, row.line) for label, text in zip(labels, row.cells, strict=True)]
        if row.cells[-1] == "" and is_known_label(labels[-1]):
            unread += refuse_rows([row], SHIFTED)
            continue
        for part in _split_pairs(values):
            entry, problems = _make_configuration(row.line, table.heading, caption, (), part)
            entries.append(entry)
            unread += problems
    return tuple(entries), (*unread, *_refuse_below(rows[inner:]))


def _split_pairs(values: Sequence[LabelledCell]) -> Iterator[Sequence[LabelledCell]]:
    """Yield the cells of a row, or of the two that it holds where its precision is a pair: `FP8-CS (FP8-MX)`."""
    # The second values are of the second precision; what is no pair holds for both.
    pairs = [_PAIR.fullmatch(value.text) for value in values]
    stated = [
        pair for pair, value in zip(pairs, values, strict=True) if pair and parse_column_label(value.label) == "dtype"
    ]
    if not any(parse_dtypes(pair[1]) and parse_dtypes(pair[2]) for pair in stated):
        yield values
        return
    for number in (1, 2):
        yield [value._replace(text=pair[number]) if pair else value for pair, value in zip(pairs, values, strict=True)]


def _is_header(labels: Sequence[str], row: MarkdownRow) -> bool:
    """Whether a row is the header of another table or a second line of the header: labels, or `FP8` below a metric."""
    metrics = (cell for label, cell in zip(labels, row.cells, strict=True) if parse_metric_label(label))
    return any(map(is_known_label, row.cells)) or any(_is_caption(cell) for cell in metrics)


def _names_columns(row: MarkdownRow) -> bool:
    """Whether a row is the header of another table with a column for each configuration: `8x H100 GPUs`."""
    return not is_known_label(row.cells[0]) and any("gpus" in read_caption(cell).facts for cell in row.cells[1:])


def _is_caption(text: str) -> bool:
    caption = read_caption(text)
    return bool(caption.facts.keys() & set(KEY)) and not caption.rest


def _refuse_below(rows: Sequence[MarkdownRow]) -> Iterator[UnreadCell]:
    if rows:
        reason = f"line {rows[0].line} looks like a header: nobody knows what it says of the rows below"
        yield from refuse_rows(rows, reason)


def _read_columns(
    table: MarkdownTable, rows: Sequence[MarkdownRow]
) -> tuple[tuple[DocumentConfiguration, ...], tuple[UnreadCell, ...]]:
    header, title = table.header, read_caption(table.header.cells[0])
    inner = next((place for place, row in enumerate(rows) if _names_columns(row)), len(rows))
    rows, below = rows[:inner], rows[inner:]
    entries, unread = [], [*_refuse_title(header.line, table.header.cells[0], title), *_refuse_below(below)]
    odd_labels = (row for row in rows if not is_known_label(row.cells[0]) and any(map(str.isdigit, row.cells[0])))
    unread += [UnreadCell(row.line, row.cells[0], "it stands where a label is expected") for row in odd_labels]
    by_rows = {parse_column_label(row.cells[0]) for row in rows}
    for number, text in enumerate(header.cells[1:], 1):
        column = read_caption(text)
        values = [LabelledCell(row.cells[0], row.cells[number], row.line) for row in rows]
        # A title is about all columns: a row that gives a value for each of them says more, `n/a` too.
        by_title = {name: value for name, value in title.facts.items() if name in KEY or name not in by_rows}
        by_title |= {} if "task" in by_rows else _read_task(header.cells[0], text)
        if odd := find_unknown_words(column):
            reason = f"the header of its column, {text!r}, is not understood: {odd!r}"
            unread.append(UnreadCell(header.line, text, f"{odd!r} in it is not understood"))
            unread += [UnreadCell(value.line, value.text, reason) for value in values if value.text not in ABSENT]
            continue
        entry, problems = _make_configuration(header.line, header.cells[0], title, (by_title, column.facts), values)
        entries.append(entry)
        unread += problems
    return tuple(entries), tuple(unread)


def _refuse_title(line: int, text: str, title: Caption) -> Iterator[UnreadCell]:
    """Yield a title with a number that is neither in a fact nor in the name of the recipe, or with contradictions."""
    rest = title.rest.removeprefix(" ".join(title.before.split())).strip()
    rest = " ".join(word for word in rest.split() if not parse_release([word]))  # of its container, say
    if any(sign.isdigit() for sign in rest):
        yield UnreadCell(line, text, f"{rest!r} in this title is not understood")
    for name in (name for name, value in title.facts.items() if value == ""):
        yield UnreadCell(line, text, f"this title states several values of {name}")


def _make_configuration(
    line: int, title: str, caption: Caption, captions: Sequence[ConfigurationColumns], values: Sequence[LabelledCell]
) -> tuple[DocumentConfiguration, tuple[UnreadCell, ...]]:
    """Return what a title, a header and labelled cells say of one configuration.

    Of what stands in several of them with different values nothing is known, and all of these cells are unread.
    """
    read, unread, lost = _read_cells(values)
    values_of: dict[str, set[int | str]] = {name: {""} for name in lost}
    statements = [*captions, *(stated for _, stated in read)]
    for stated in statements:
        for name, value in stated.items():
            values_of.setdefault(name, set()).add(_drop_proxy_mark(name, value))
    odd = {name: several for name, several in values_of.items() if len(several) > 1 or "" in several}
    single = {name: next(iter(several)) for name, several in values_of.items() if name not in odd}
    entry = DocumentConfiguration(
        line=line,
        recipe=str(single.get("recipe", "")) or (make_recipe_name(caption.before) if caption.facts.get("size") else ""),
        table=title,
        facts={name: value for name, value in single.items() if name not in (*METRICS, "recipe", "name")}
        | dict.fromkeys(odd.keys() & {*KEY, "task"}, ""),
        cells={name: str(value) for name, value in single.items() if name in METRICS},
        values=tuple(value for value, stated in read if not odd.keys() & stated.keys()),
        proxy=any(map(_is_proxy, statements)),
        model=str(single.get("name", "")),
        unsized=make_recipe_name(caption.before) if caption.facts.get("dtype") else "",
    )
    return entry, (*unread, *_find_contradictory_cells(entry, captions, read, odd))


def _read_cells(
    values: Sequence[LabelledCell],
) -> tuple[list[tuple[LabelledCell, ConfigurationColumns]], list[UnreadCell], set[str]]:
    """Return what cells state, those that state nothing, and the parts of the key that stand in one of these.

    Where one has the unit of another metric all may stand in the wrong place, and none is read.
    """
    read: list[tuple[LabelledCell, ConfigurationColumns]] = []
    unread: list[UnreadCell] = []
    lost: set[str] = set()
    # All cells of a row may have moved by one, and none of them says so.
    if shifted := next(filter(_is_shifted, values), None):
        why = f"{shifted.text!r} has the unit of another metric than {shifted.label!r}: who knows where each belongs"
        return read, [UnreadCell(cell.line, cell.text, why) for cell in values if cell.text not in ABSENT], lost
    for value in values:
        if value.text == "":  # merged with the cell above, perhaps
            lost |= {parse_column_label(value.label)} & {*KEY[:3], "task"}
        try:
            read.append((value, read_cell(value)))
        except ValueError as error:
            unread.append(UnreadCell(value.line, value.text, f"{value.label!r}: {error}"))
            lost |= {parse_column_label(value.label)} & {*KEY, "task"}
            lost |= read_caption(value.text).facts.keys() & set(KEY) if _is_caption(value.text) else set()
    return read, unread, lost


def _is_shifted(value: LabelledCell) -> bool:
    metric = parse_metric_label(value.label)
    return metric is not None and has_unit_of_another_metric(metric[0], value.text)


def _find_contradictory_cells(
    entry: DocumentConfiguration,
    captions: Sequence[ConfigurationColumns],
    read: Sequence[tuple[LabelledCell, ConfigurationColumns]],
    odd: Mapping[str, set[int | str]],
) -> Iterator[UnreadCell]:
    """Yield the cells of what has several values, and the title or header where it is one of them."""
    for name, several in odd.items():
        reason = f"several values stand for it: {', '.join(sorted(map(str, several - {''})))}"
        if any(name in caption for caption in captions) and several != {""}:
            yield UnreadCell(entry.line, entry.table, f"{name}: {reason}")
        for value, stated in read:
            if name in stated:
                yield UnreadCell(value.line, value.text, f"{value.label!r}: {reason}")


def _drop_proxy_mark(name: str, value: int | str) -> int | str:
    size = parse_size(str(value)) if name == "size" else None
    return size[0] if size else value


def _is_proxy(caption: ConfigurationColumns) -> bool:
    size = parse_size(str(caption.get("size", "")))
    return size is not None and size[1]
