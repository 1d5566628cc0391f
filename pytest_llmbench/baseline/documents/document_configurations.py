"""The configurations of all tables of a document: measured rows with what configuration tables say of them, each with
a key of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.baseline.documents.labels import ABSENT, KEY, parse_dtypes, parse_metric_label
from pytest_llmbench.baseline.documents.markdown import MarkdownTable, MarkdownTables
from pytest_llmbench.baseline.documents.table_configurations import (
    DocumentConfiguration,
    UnreadCell,
    is_about_peaks,
    read_table,
    refuse_rows,
)

ConfigurationKey = tuple[str, ...]
DescribedRow = tuple[DocumentConfiguration, Sequence[tuple[str, object]]]
"""A row of a configuration table, and what it says of the key."""

MOST_APART = 1.3
"""What is printed with one digit may be a quarter off its exact value; a factor beyond this is another value."""

MOST_OFF = 3.0
"""Documents have computed tokens/s with half of the batch; milliseconds or a value per GPU are further off."""

BATCHES = (("gbs",), ("sequence_length",), ("gbs", "sequence_length"))
"""What a step is, by which variants are called: gbs128, seq4096, gbs128_seq4096."""

APART = ("task", "variant")
"""What tells rows apart that are the same in size, GPU type, precision and number of GPUs."""

STRAY = (
    "it stands in no Markdown table: in HTML, in a comment, without a line of dashes below a header, or in a huge line"
)
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
    timed = any(_has_metric(table) for table in tables.tables if not is_about_peaks(table))
    chosen = [entry for entry in entries if entry.cells] if timed else entries
    described = [entry for entry in entries if not entry.cells] if timed else []
    recipes = {entry.recipe for entry in chosen}
    used: set[int] = set()  # of the rows' values: those that one row was parted into share them
    # A row without a number of GPUs would lend its columns to every size of the model.
    sized = [(row, [(name, row.facts[name]) for name in KEY if name in row.facts]) for row in described]
    sized = [(row, keys) for row, keys in sized if row.facts.get("gpus")]
    whole = [_add_described(entry, _select_described(entry, sized, recipes), used, unread) for entry in chosen]
    if timed:
        unread += [cell for entry in described if id(entry.values) not in used for cell in _refuse(entry, UNMEASURED)]
    return DocumentConfigurations(*_check_complete(whole, defaults, unread, timed=timed))


def _has_metric(table: MarkdownTable) -> bool:
    return any(parse_metric_label(label) for label in (*table.header.cells, *(row.cells[0] for row in table.rows)))


def _split_by_dtype(entry: DocumentConfiguration) -> Iterator[DocumentConfiguration]:
    stated = entry.facts.get("dtype")
    for dtype in parse_dtypes(str(stated)) if stated else ():
        yield replace(entry, facts={**entry.facts, "dtype": dtype})
    if not stated:
        yield entry


def _select_described(
    entry: DocumentConfiguration, described: Sequence[DescribedRow], recipes: Collection[str]
) -> Sequence[DescribedRow]:
    """Return the rows of configuration tables that may be about what was measured: none names another recipe, task or
    other part of the key; where rows differ by their batch, those of its batch."""
    chosen = [
        (row, keys)
        for row, keys in described
        if (row.recipe == entry.recipe or row.recipe not in recipes or not entry.recipe)
        and ("task" not in row.facts or row.facts["task"] == entry.facts.get("task"))
        and all(entry.facts.get(name, value) == value for name, value in keys)
    ]
    # Of strong scaling and of weak scaling, say.
    batches = {row.facts.get("gbs") for row, _ in chosen}
    batch = entry.facts.get("gbs", "")
    return [each for each in chosen if each[0].facts.get("gbs", batch) == batch] if batch in batches else chosen


def _add_described(
    entry: DocumentConfiguration,
    described: Sequence[DescribedRow],
    used: set[int],
    unread: list[UnreadCell],
) -> DocumentConfiguration:
    """Return a measured configuration with the columns of the rows that are about it."""
    facts, values, proxy = dict(entry.facts), [*entry.values], entry.proxy
    for row, keys in described:
        # A row above may have said of its size, say, what this one contradicts.
        if any(facts.get(name, value) != value for name, value in keys):
            continue
        used.add(id(row.values))
        values += row.values
        proxy = proxy or row.proxy
        for name, value in row.facts.items():
            stated = facts.setdefault(name, value)
            if stated != value:  # which of two counts nobody knows: both are listed, and none is taken
                why = f"line {entry.line} says {stated or 'several values'} of it"
                unread.append(UnreadCell(row.line, f"{name} {value}", why))
                facts[name] = ""
    facts = {name: value for name, value in facts.items() if value != "" or name in (*KEY, "task")}
    return replace(entry, facts=facts, values=tuple(values), proxy=proxy)


def _check_complete(
    entries: Sequence[DocumentConfiguration], defaults: ImportDefaults, unread: list[UnreadCell], *, timed: bool
) -> tuple[tuple[DocumentConfiguration, ...], tuple[UnreadCell, ...]]:
    """Return the things that have a key of their own and a step time, and what is wrong with the others."""
    names = {entry.recipe for entry in entries if entry.recipe}
    alone = next(iter(names)) if len(names) == 1 else ""
    complete: dict[ConfigurationKey, DocumentConfiguration] = {}
    twice: dict[ConfigurationKey, list[DocumentConfiguration]] = {}
    stated = {name: value for name in KEY[:3] if (value := getattr(defaults, name))}
    # The sizes of several models alone would not tell, in one recipe, which is which.
    by_name = defaults.recipe and len({entry.recipe for entry in entries if entry.model}) > 1
    completed = []
    for entry in entries:
        facts = {**stated, **entry.facts, **({"size": entry.model} if by_name and entry.model else {})}
        recipe = defaults.recipe or entry.recipe or alone or entry.unsized
        completed.append(replace(entry, recipe=recipe, facts=facts))
    for whole in _tell_batches_apart(completed):
        key = _make_key(whole)
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


def _make_key(entry: DocumentConfiguration) -> ConfigurationKey:
    return (entry.recipe, *(str(entry.facts.get(name, "")) for name in (*KEY, *APART)))


def _tell_batches_apart(entries: Sequence[DocumentConfiguration]) -> Iterator[DocumentConfiguration]:
    """Yield configurations; those that are the same but for batch or sequence length are variants of each other."""
    several: dict[ConfigurationKey, list[DocumentConfiguration]] = {}
    for entry in entries:
        several.setdefault(_make_key(entry), []).append(entry)
    names = {key: _choose_batch_names(same) for key, same in several.items()}
    for entry in entries:
        variant = _name_variant(entry, names[_make_key(entry)])
        yield replace(entry, facts={**entry.facts, "variant": variant}) if variant else entry


def _choose_batch_names(same: Sequence[DocumentConfiguration]) -> Sequence[str]:
    """Return what tells several configurations of one key apart; nothing where that is not stated of each."""
    if len(same) < 2:
        return ()
    names = next((names for names in BATCHES if len({_name_variant(each, names) for each in same}) == len(same)), ())
    return names if all(each.facts.get(name) for each in same for name in names) else ()


def _name_variant(entry: DocumentConfiguration, names: Sequence[str]) -> str:
    return "_".join(f"{name[:3]}{entry.facts.get(name, '')}" for name in names)


def _find_missing(entry: DocumentConfiguration, *, timed: bool) -> str:
    missing = [name for name in KEY if not entry.facts.get(name)]
    words = {"size": "model size", "gpu": "GPU type", "dtype": "precision", "gpus": "number of GPUs"}
    if missing:
        is_contradictory, hint = missing[0] in entry.facts, "" if missing[0] == "gpus" else f"; give --{missing[0]}"
        what = f"{words[missing[0]]} is stated for it"
        return f"more than one {what}" if is_contradictory else f"no {what}{hint}"
    if entry.facts.get("task") == "":
        return "more than one task is stated for it, or none that can be read"
    if not entry.recipe:
        return "its title names no recipe; give --recipe"
    if timed and not _has_step_time(entry):
        rates = "tokens_per_second_per_gpu" in entry.cells
        return f"no step time {'follows from it without GBS and sequence length' if rates else 'stands beside it'}"
    # Either metric alone would pass: only the two together tell that a row has moved by a cell.
    apart = "its tokens/s and its days to 1T tokens contradict each other: a row may be shifted by a cell"
    if _find_factor(entry.cells, "days_to_1t", 1e12 / 86_400) > MOST_APART:
        return apart
    tokens = math.prod(int(entry.facts.get(name, 0)) for name in ("sequence_length", "gbs"))
    off = "its tokens/s are not those of its step time, sequence length and GBS: one may be in another unit"
    return off if tokens and _find_factor(entry.cells, "step_time", tokens) > MOST_OFF else ""


def _has_step_time(entry: DocumentConfiguration) -> bool:
    """Whether a step time is printed, or follows from a rate and what a step is."""
    rates = {"tokens_per_second_per_gpu": ("gbs", "sequence_length"), "tflops_per_gpu": ("logged_tflop",)}
    followed = any(name in entry.cells and all(map(entry.facts.get, needed)) for name, needed in rates.items())
    return followed or "step_time" in entry.cells


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
