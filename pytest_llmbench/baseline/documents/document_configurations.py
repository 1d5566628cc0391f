"""From all tables of a document to configurations: what was measured, with the columns that say how it ran."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.baseline.documents.labels import ABSENT, KEY, LabelledCell, parse_dtypes, parse_metric_label
from pytest_llmbench.baseline.documents.markdown import MarkdownTable, MarkdownTables
from pytest_llmbench.baseline.documents.table_configurations import (
    DocumentConfiguration,
    UnreadCell,
    read_table,
    refuse_rows,
)

ConfigurationKey = tuple[str, ...]

MOST_APART = 1.3
"""What is printed with one digit may be a quarter off its exact value; a factor beyond this is another value."""

MOST_OFF = 3.0
"""Documents have computed tokens/s with half of the batch; milliseconds or a value per GPU are further off."""

STRAY = "it stands in no Markdown table: in HTML, in a comment, or without a line of dashes below a header"
UNMEASURED = "nothing was measured of its configuration"


@dataclass(frozen=True, slots=True)
class ImportDefaults:
    """What the document cannot say, or does not in its tables; empty for nothing."""

    recipe: str = ""
    size: str = ""
    gpu: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class DocumentConfigurations:
    """The configurations in the order of the document, each with its full key, and every cell that is in none."""

    configurations: tuple[DocumentConfiguration, ...]
    unread: tuple[UnreadCell, ...]


def collect_configurations(tables: MarkdownTables, defaults: ImportDefaults) -> DocumentConfigurations:
    """Return the configurations of a document.

    The columns of a configuration come from its performance table and from every row of a configuration table that says
    nothing else of size, GPU type, precision and number of GPUs. Where no table has a metric, the rows of configuration
    tables are the configurations.
    """
    unread = list(refuse_rows(tables.stray, STRAY))
    entries: list[DocumentConfiguration] = []
    for table in tables.tables:
        of_table, problems = read_table(table)
        entries += [each for entry in of_table for each in _split_by_dtype(entry)]
        unread += problems
    # A document without a single time is that of a recipe: its rows are all there is.
    timed = any(map(_has_metric, tables.tables))
    chosen = [entry for entry in entries if entry.cells] if timed else entries
    described = [entry for entry in entries if not entry.cells] if timed else []
    recipes = {entry.recipe for entry in chosen}
    used: set[tuple[LabelledCell, ...]] = set()
    whole = [
        _add_described(entry, [row for row in described if _may_be_of(row, entry, recipes)], used, unread)
        for entry in chosen
    ]
    if timed:
        unread += [cell for entry in described if entry.values not in used for cell in _refuse(entry, UNMEASURED)]
    return DocumentConfigurations(*_check_complete(whole, defaults, unread, timed=timed))


def _has_metric(table: MarkdownTable) -> bool:
    return any(parse_metric_label(label) for label in (*table.header.cells, *(row.cells[0] for row in table.rows)))


def _split_by_dtype(entry: DocumentConfiguration) -> Iterator[DocumentConfiguration]:
    stated = entry.facts.get("dtype")
    for dtype in parse_dtypes(str(stated)) if stated else ():
        yield replace(entry, facts={**entry.facts, "dtype": dtype})
    if not stated:
        yield entry


def _may_be_of(row: DocumentConfiguration, entry: DocumentConfiguration, recipes: Collection[str]) -> bool:
    """Whether a row of a configuration table may be about what was measured: its title names no other recipe of it."""
    return row.recipe == entry.recipe or row.recipe not in recipes or not entry.recipe


def _add_described(
    entry: DocumentConfiguration,
    described: Sequence[DocumentConfiguration],
    used: set[tuple[LabelledCell, ...]],
    unread: list[UnreadCell],
) -> DocumentConfiguration:
    """Return a measured configuration with the columns of those rows that are about it."""
    for row in described:
        keys = {name: value for name, value in row.facts.items() if name in KEY}
        # A row without a number of GPUs would lend its columns to every size of the model.
        if not keys.get("gpus") or any(entry.facts.get(name, value) != value for name, value in keys.items()):
            continue
        used.add(row.values)
        # Which of two values counts nobody knows: both are listed, and none is taken.
        odd = {name: value for name, value in row.facts.items() if entry.facts.get(name, value) != value}
        for name, value in odd.items():
            why = f"line {entry.line} says {entry.facts[name] or 'several values'} of it"
            unread.append(UnreadCell(row.line, f"{name} {value}", why))
        facts = {**row.facts, **entry.facts, **dict.fromkeys(odd, "")}
        entry = replace(entry, facts=facts, values=(*entry.values, *row.values), proxy=entry.proxy or row.proxy)
    return replace(entry, facts={name: value for name, value in entry.facts.items() if value != "" or name in KEY})


def _check_complete(
    entries: Sequence[DocumentConfiguration], defaults: ImportDefaults, unread: list[UnreadCell], *, timed: bool
) -> tuple[tuple[DocumentConfiguration, ...], tuple[UnreadCell, ...]]:
    """Return the things that have a key of their own and a step time, and what is wrong with the others."""
    names = {entry.recipe for entry in entries if entry.recipe}
    alone = next(iter(names)) if len(names) == 1 else ""
    complete: dict[ConfigurationKey, DocumentConfiguration] = {}
    twice: dict[ConfigurationKey, list[DocumentConfiguration]] = {}
    for entry in entries:
        stated = {name: value for name in KEY[:3] if (value := getattr(defaults, name))}
        whole = replace(entry, recipe=defaults.recipe or entry.recipe or alone, facts={**stated, **entry.facts})
        key = (whole.recipe, *(str(whole.facts.get(name, "")) for name in KEY))
        why = _find_missing(whole, timed=timed)
        # What says the same twice does no harm.
        first = complete.setdefault(key, whole) if not why else whole
        if first is not whole and (first.cells, first.facts) != (whole.cells, whole.facts):
            twice.setdefault(key, [first]).append(whole)
        if why:
            unread += _refuse(whole, why)
    # Two columns of one number of GPUs: one of them is another measurement, and nothing says which.
    for key, several in twice.items():
        lines = ", ".join(str(whole.line) for whole in several)
        del complete[key]
        unread += [cell for whole in several for cell in _refuse(whole, f"lines {lines} give several values of one")]
    ordered = sorted(dict.fromkeys(unread), key=lambda cell: cell.line)
    return tuple(_mark_proxies(list(complete.values()))), tuple(ordered)


def _find_missing(entry: DocumentConfiguration, *, timed: bool) -> str:
    missing = [name for name in KEY if not entry.facts.get(name)]
    words = {"size": "model size", "gpu": "GPU type", "dtype": "precision", "gpus": "number of GPUs"}
    if missing:
        several = missing[0] in entry.facts
        return f"{'more than one' if several else 'no'} {words[missing[0]]} is stated for it"
    if not entry.recipe:
        return "its title names no recipe; give --recipe"
    if timed and "step_time" not in entry.cells:
        return "no step time stands beside it"
    # Either metric alone would pass: only the two together tell that a row has moved by a cell.
    apart = "its tokens/s and its days to 1T tokens contradict each other: a row may be shifted by a cell"
    if _find_factor(entry.cells, "days_to_1t", 1e12 / 86_400) > MOST_APART:
        return apart
    tokens = math.prod(int(entry.facts.get(name, 0)) for name in ("sequence_length", "gbs"))
    off = "its tokens/s are not those of its step time, sequence length and GBS: one may be in another unit"
    return off if tokens and _find_factor(entry.cells, "step_time", tokens) > MOST_OFF else ""


def _find_factor(cells: Mapping[str, str], name: str, product: float) -> float:
    """Return how far a metric times tokens/s is from what it should be, as a factor of 1 or more; 1 without one."""
    texts = [cells.get(each, "NA") for each in ("tokens_per_second", name)]
    if any(text in ABSENT for text in texts):
        return 1.0
    factor = math.prod(map(float, texts)) / product
    return max(factor, 1 / factor)


def _refuse(entry: DocumentConfiguration, why: str) -> Iterator[UnreadCell]:
    for value in entry.values:
        if value.text not in ABSENT:
            yield UnreadCell(value.line, value.text, f"{value.label!r}: {why}")


def _mark_proxies(entries: Sequence[DocumentConfiguration]) -> Iterator[DocumentConfiguration]:
    """Yield configurations, marked as proxies where another one of their size has more layers."""
    most: dict[tuple[str, int | str], int] = {}
    for entry in entries:
        model = entry.recipe, entry.facts["size"]
        most[model] = max(most.get(model, 0), int(entry.facts.get("layers", 0)))
    for entry in entries:
        fewer = 0 < int(entry.facts.get("layers", 0)) < most[entry.recipe, entry.facts["size"]]
        yield replace(entry, proxy=entry.proxy or fewer)
