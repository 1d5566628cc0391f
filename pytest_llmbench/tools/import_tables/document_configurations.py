"""Join the tables of a document into configurations with unique keys.

Rows with measurements are completed with the rows that describe their configurations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.tools.import_tables.labels import (
    ABSENT,
    Facts,
    UnreadCell,
    parse_dtypes,
)
from pytest_llmbench.tools.import_tables.mappings import KEY, DocumentMapping
from pytest_llmbench.tools.import_tables.markdown_tables import (
    DocumentTables,
    refuse_rows,
)
from pytest_llmbench.tools.import_tables.table_configurations import (
    DocumentConfiguration,
    Finding,
    read_table,
)

ConfigurationKey = tuple[str, ...]

MOST_APART = 1.3
"""Largest factor between tokens/s and days to 1T tokens that rounding explains.

A value of one digit may be a quarter off the exact value.
"""

MOST_OFF = 3.0
"""Largest factor between tokens/s and step time that is accepted.

Some documents compute tokens/s with half of the batch (a factor of 2); another unit,
such as milliseconds, gives larger factors.
"""

BATCHES = (("gbs",), ("sequence_length",), ("gbs", "sequence_length"))
"""Combinations of columns that name variants: gbs128, seq4096, gbs128_seq4096."""

OUTSIDE = "it is outside of Markdown tables: in HTML, in a comment, without a line of dashes below a header, or in a huge line"
UNMEASURED = "its configuration has no measurement"
APART = "its tokens/s and its days to 1T tokens contradict each other: a row may be shifted by a cell"
OFF = "its tokens/s do not match its step time, sequence length and GBS: one may be in another unit"

NAMES = ("recipe", "model", "unsized")
"""The facts of a configuration row that are not copied to measured rows."""

_WORDS = {
    "size": "model size",
    "gpu": "GPU type",
    "dtype": "precision",
    "gpus": "number of GPUs",
}
_STEP_TIME_FROM = {
    "step_time": (),
    "tokens_per_second_per_gpu": ("gbs", "sequence_length"),
    "tflops_per_gpu": ("logged_tflop",),
}
"""The metrics that determine a step time, with the columns needed to compute it."""


@dataclass(frozen=True, slots=True)
class DocumentConfigurations:
    """The configurations of a document, and the cells that no configuration uses.

    The configurations are in the order of the document, the cells sorted by line.
    """

    configurations: tuple[DocumentConfiguration, ...]
    unread: tuple[UnreadCell, ...]


def collect_configurations(
    tables: DocumentTables, mapping: DocumentMapping
) -> DocumentConfigurations:
    """Collect the configurations of a document.

    A row with measurements gets the columns of every configuration row that does not
    contradict its size, GPU type, precision and number of GPUs. If no table has a
    metric, the configuration rows themselves are the configurations.
    """
    unread = list(refuse_rows(tables.outside, OUTSIDE))
    entries: list[DocumentConfiguration] = []
    for table in tables.tables:
        for entry in _set_aside(read_table(mapping, table), unread):
            entries += _split_by_dtype(mapping, entry)
    timed = any(table.is_timed for table in tables.tables)
    if timed:
        measured = [entry for entry in entries if entry.cells]
        described = [entry for entry in entries if not entry.cells]
        entries = list(_set_aside(_join_described(measured, described), unread))
    keyed = list(_complete_keys(entries, mapping))
    complete = list(_set_aside(_select_complete(keyed, timed=timed), unread))
    ordered = sorted(dict.fromkeys(unread), key=lambda cell: cell.line)
    return DocumentConfigurations(tuple(_mark_proxies(complete)), tuple(ordered))


def _set_aside(
    findings: Iterable[Finding], unread: list[UnreadCell]
) -> Iterator[DocumentConfiguration]:
    """Yield the configurations of `findings`, and append the unread cells to `unread`."""
    for finding in findings:
        if isinstance(finding, UnreadCell):
            unread.append(finding)
        else:
            yield finding


def _split_by_dtype(
    mapping: DocumentMapping, entry: DocumentConfiguration
) -> list[DocumentConfiguration]:
    dtypes = parse_dtypes(mapping, str(entry.facts.get("dtype", "")))
    return [
        replace(entry, facts={**entry.facts, "dtype": dtype}) for dtype in dtypes
    ] or [entry]


# --- configuration rows ---------------------------------------------------------------


def _join_described(
    measured: Sequence[DocumentConfiguration],
    described: Sequence[DocumentConfiguration],
) -> Iterator[Finding]:
    """Complete measured rows with the columns of their configuration rows.

    Also yields the unread cells: contradictions, and configuration rows that describe
    no measured row.
    """
    recipes = {entry.recipe for entry in measured}
    # A row without a number of GPUs would describe every size of the model.
    sized = [row for row in described if row.facts.get("gpus")]
    used: set[int] = (
        set()
    )  # ids of `values` tuples, which configurations from one row share
    for entry in measured:
        rows = [row for row in sized if _may_describe(row, entry, recipes)]
        # Strong and weak scaling differ by their batch.
        batch = entry.facts.get("gbs", "")
        if any(row.facts.get("gbs") == batch for row in rows):
            rows = [row for row in rows if row.facts.get("gbs", batch) == batch]
        yield from _add_columns(entry, rows, used)
    for row in described:
        if id(row.values) not in used:
            yield from _refuse(row, UNMEASURED)


def _may_describe(
    row: DocumentConfiguration, entry: DocumentConfiguration, recipes: Collection[str]
) -> bool:
    if entry.recipe and row.recipe != entry.recipe and row.recipe in recipes:
        return False
    if row.facts.get("task", entry.facts.get("task")) != entry.facts.get("task"):
        return False
    return _agree(row, entry.facts)


def _agree(row: DocumentConfiguration, facts: Facts) -> bool:
    return all(
        facts.get(name, row.facts[name]) == row.facts[name]
        for name in KEY
        if name in row.facts
    )


def _add_columns(
    entry: DocumentConfiguration, rows: Sequence[DocumentConfiguration], used: set[int]
) -> Iterator[Finding]:
    """Add the columns of configuration rows to a measured row.

    Also yields contradictory columns as unread cells. Adds the ids of the used rows to
    `used`.
    """
    facts, values = dict(entry.facts), entry.values
    for row in rows:
        # An earlier row may have stated a size that this row contradicts.
        if not _agree(row, facts):
            continue
        used.add(id(row.values))
        values += row.values
        for name, value in row.facts.items():
            stated = value if name in NAMES else facts.setdefault(name, value)
            if stated != value:
                reason = f"line {entry.line} states {stated or 'several values'}"
                yield UnreadCell(row.line, f"{name} {value}", reason)
                facts[name] = ""
    facts = {
        name: value
        for name, value in facts.items()
        if value != "" or name in (*KEY, "task")
    }
    yield replace(entry, facts=facts, values=values)


# --- keys -----------------------------------------------------------------------------


def _complete_keys(
    entries: Sequence[DocumentConfiguration], mapping: DocumentMapping
) -> Iterator[DocumentConfiguration]:
    """Complete the keys with the mapping's stated values, and apply its renames."""
    stated = mapping.stated.get("recipe")
    names = {entry.recipe for entry in entries} - {""}
    only = next(iter(names)) if len(names) == 1 else ""
    # In one recipe, the sizes alone would not distinguish several models.
    by_name = (
        stated
        and len({entry.recipe for entry in entries if "model" in entry.facts}) > 1
    )
    for entry in entries:
        recipe = stated or entry.recipe or only or entry.facts.get("unsized", "")
        facts = {**mapping.stated, **entry.facts, "recipe": recipe}
        if by_name and "model" in facts:
            facts["size"] = facts["model"]
        for name, values in mapping.values.items():
            facts |= values.get(str(facts.get(name)), {})
        yield replace(entry, facts=facts)


def _make_key(entry: DocumentConfiguration) -> ConfigurationKey:
    return (
        entry.recipe,
        *(str(entry.facts.get(name, "")) for name in (*KEY, "task", "variant")),
    )


def _select_complete(
    entries: Sequence[DocumentConfiguration], *, timed: bool
) -> Iterator[Finding]:
    """Yield the configurations with a unique key and a step time.

    The cells of all other configurations are unread, each with the reason.
    """
    complete: dict[ConfigurationKey, DocumentConfiguration] = {}
    ambiguous: dict[ConfigurationKey, list[DocumentConfiguration]] = {}
    for entry in _name_variants(entries):
        reason = _find_missing(entry, timed=timed)
        if reason:
            yield from _refuse(entry, reason)
            continue
        key = _make_key(entry)
        first = complete.setdefault(key, entry)
        if first.facts != entry.facts:
            ambiguous.setdefault(key, [first]).append(entry)
    # If a key has several values, it is unknown which are another measurement.
    for key, duplicates in ambiguous.items():
        lines = ", ".join(str(entry.line) for entry in duplicates)
        del complete[key]
        for entry in duplicates:
            yield from _refuse(
                entry, f"lines {lines} give several values for one configuration"
            )
    yield from complete.values()


def _name_variants(
    entries: Sequence[DocumentConfiguration],
) -> Iterator[DocumentConfiguration]:
    """Name the configurations that differ in batch or sequence length only as variants."""
    groups: dict[ConfigurationKey, list[DocumentConfiguration]] = {}
    for entry in entries:
        groups.setdefault(_make_key(entry), []).append(entry)
    names = {key: _choose_batch_columns(group) for key, group in groups.items()}
    for entry in entries:
        variant = _name_variant(entry, names[_make_key(entry)])
        yield (
            replace(entry, facts={**entry.facts, "variant": variant})
            if variant
            else entry
        )


def _choose_batch_columns(group: Sequence[DocumentConfiguration]) -> Sequence[str]:
    """Return the columns that distinguish the configurations of one key.

    Returns () if one configuration is enough or if one lacks such a column.
    """
    if len(group) > 1:
        for names in BATCHES:
            if len({_name_variant(entry, names) for entry in group}) == len(group):
                return (
                    names
                    if all(entry.facts.get(name) for entry in group for name in names)
                    else ()
                )
    return ()


def _name_variant(entry: DocumentConfiguration, names: Sequence[str]) -> str:
    return "_".join(f"{name[:3]}{entry.facts.get(name, '')}" for name in names)


# --- checks ---------------------------------------------------------------------------


def _find_missing(entry: DocumentConfiguration, *, timed: bool) -> str:
    """Return the reason not to import a configuration, or ""."""
    name = next((name for name in KEY if not entry.facts.get(name)), "")
    if name:
        hint = "" if name == "gpus" else f"; give --{name}"
        several, missing = f"more than one {_WORDS[name]} is", f"no {_WORDS[name]} is"
        return (
            f"{several} stated for it"
            if name in entry.facts
            else f"{missing} stated for it{hint}"
        )
    if entry.facts.get("task") == "":
        return "more than one task, or an unknown task, is stated for it"
    if not entry.recipe:
        return "its title names no recipe; give --recipe"
    if timed and not _has_step_time(entry):
        rates = "tokens_per_second_per_gpu" in entry.cells
        return f"no step time {'can be computed from it without GBS and sequence length' if rates else 'is in its row'}"
    # Only two metrics together reveal that a row is shifted by a cell.
    if _find_factor(entry.cells, "days_to_1t", 1e12 / 86_400) > MOST_APART:
        return APART
    tokens = math.prod(
        int(entry.facts.get(name, 0)) for name in ("sequence_length", "gbs")
    )
    return (
        OFF
        if tokens and _find_factor(entry.cells, "step_time", tokens) > MOST_OFF
        else ""
    )


def _has_step_time(entry: DocumentConfiguration) -> bool:
    return any(
        name in entry.cells and all(map(entry.facts.get, needed))
        for name, needed in _STEP_TIME_FROM.items()
    )


def _find_factor(cells: Mapping[str, str], name: str, product: float) -> float:
    """Return the factor (>= 1) between `product` and a metric times tokens/s.

    Returns 1 if a value is absent.
    """
    texts = [cells.get("tokens_per_second", "NA"), cells.get(name, "NA")]
    if any(text in ABSENT for text in texts):
        return 1.0
    factor = math.prod(map(float, texts)) / product
    return max(factor, 1 / factor)


def _refuse(entry: DocumentConfiguration, reason: str) -> Iterator[UnreadCell]:
    for labelled in entry.values:
        if not labelled.cell.is_absent:
            yield labelled.refuse(reason)


def _mark_proxies(
    entries: Sequence[DocumentConfiguration],
) -> Iterator[DocumentConfiguration]:
    """Mark configurations as proxies if another of the same size has more layers."""
    most: dict[tuple[str, int | str], int] = {}
    for entry in entries:
        model = entry.recipe, entry.facts["size"]
        most[model] = max(most.get(model, 0), int(entry.facts.get("layers", 0)))
    for entry in entries:
        fewer = (
            0
            < int(entry.facts.get("layers", 0))
            < most[entry.recipe, entry.facts["size"]]
        )
        yield replace(entry, facts={**entry.facts, "proxy": 1}) if fewer else entry
