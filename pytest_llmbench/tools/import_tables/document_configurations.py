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
from pytest_llmbench.tools.import_tables.mappings import KEY_COLUMNS, DocumentMapping
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

LARGEST_TOKENS_FACTOR = 1.3
"""Largest factor between tokens/s and days to 1T tokens that rounding explains.

A value of one digit may be a quarter off the exact value.
"""

LARGEST_STEP_TIME_FACTOR = 3.0
"""Largest factor between tokens/s and step time that is accepted.

Some documents compute tokens/s with half of the batch (a factor of 2); another unit,
such as milliseconds, gives larger factors.
"""

VARIANT_COLUMNS = (("gbs",), ("sequence_length",), ("gbs", "sequence_length"))
"""Combinations of columns that name variants: gbs128, seq4096, gbs128_seq4096."""

OUTSIDE = "the cell is outside of Markdown tables: in HTML, in a comment, without a line of dashes below a header, or in a huge line"
UNMEASURED = "the configuration has no measurement"
CONTRADICTORY_DAYS = "tokens/s and days to 1T tokens contradict each other: the row may be shifted by a cell"
CONTRADICTORY_STEP_TIME = "tokens/s does not match step time, sequence length and GBS: one of the values may be in another unit"

UNCOPIED_FACTS = ("recipe", "model", "unsized")
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
    has_measurements = any(table.has_measurements for table in tables.tables)
    if has_measurements:
        measured = [entry for entry in entries if entry.cells]
        settings = [entry for entry in entries if not entry.cells]
        entries = list(_set_aside(_join_settings(measured, settings), unread))
    keyed = list(_complete_keys(entries, mapping))
    findings = _select_complete(keyed, needs_step_time=has_measurements)
    complete = list(_set_aside(findings, unread))
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


def _join_settings(
    measured: Sequence[DocumentConfiguration],
    configuration_rows: Sequence[DocumentConfiguration],
) -> Iterator[Finding]:
    """Complete measured rows with the columns of their configuration rows.

    Also yields the unread cells: contradictions, and configuration rows that match no
    measured row. A row without a number of GPUs matches no row.
    """
    recipes = {entry.recipe for entry in measured}
    # A row without a number of GPUs would describe every size of the model.
    candidates = [row for row in configuration_rows if row.facts.get("gpus")]
    # The ids of `values` tuples, which all configurations from one row share.
    used: set[int] = set()
    for entry in measured:
        rows = [row for row in candidates if _may_describe(row, entry, recipes)]
        # Strong and weak scaling differ by their batch, so prefer rows with equal GBS.
        batch = entry.facts.get("gbs", "")
        if any(row.facts.get("gbs") == batch for row in rows):
            rows = [row for row in rows if row.facts.get("gbs", batch) == batch]
        yield from _add_columns(entry, rows, used)
    for row in configuration_rows:
        if id(row.values) not in used:
            yield from _refuse(row, UNMEASURED)


def _may_describe(
    row: DocumentConfiguration, entry: DocumentConfiguration, recipes: Collection[str]
) -> bool:
    """True if a configuration row may describe a measured row.

    `recipes` are the recipes of all measured rows. A configuration row with another
    recipe is possible only if no measured row has that recipe.
    """
    if entry.recipe and row.recipe != entry.recipe and row.recipe in recipes:
        return False
    if row.facts.get("task", entry.facts.get("task")) != entry.facts.get("task"):
        return False
    return _has_same_key(row, entry.facts)


def _has_same_key(row: DocumentConfiguration, facts: Facts) -> bool:
    """True if no key column of a row contradicts `facts`."""
    return all(
        facts.get(name, row.facts[name]) == row.facts[name]
        for name in KEY_COLUMNS
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
        if not _has_same_key(row, facts):
            continue
        used.add(id(row.values))
        values += row.values
        for name, value in row.facts.items():
            stated = value if name in UNCOPIED_FACTS else facts.setdefault(name, value)
            if stated != value:
                reason = f"line {entry.line} states {stated or 'several values'}"
                yield UnreadCell(row.line, f"{name} {value}", reason)
                facts[name] = ""
    facts = {
        name: value
        for name, value in facts.items()
        if value != "" or name in (*KEY_COLUMNS, "task")
    }
    yield replace(entry, facts=facts, values=values)


# --- keys -----------------------------------------------------------------------------


def _complete_keys(
    entries: Sequence[DocumentConfiguration], mapping: DocumentMapping
) -> Iterator[DocumentConfiguration]:
    """Complete keys with the stated values of the mapping, and replace its literal texts.

    Without a stated recipe, configurations without a recipe get the only recipe of the
    others, if there is one, else the unsized title.
    """
    stated = mapping.stated.get("recipe")
    names = {entry.recipe for entry in entries} - {""}
    only_recipe = next(iter(names)) if len(names) == 1 else ""
    # In one recipe, the sizes alone would not distinguish several models.
    size_is_model = (
        stated
        and len({entry.recipe for entry in entries if "model" in entry.facts}) > 1
    )
    for entry in entries:
        recipe = stated or entry.recipe or only_recipe or entry.facts.get("unsized", "")
        facts = {**mapping.stated, **entry.facts, "recipe": recipe}
        if size_is_model and "model" in facts:
            facts["size"] = facts["model"]
        for name, values in mapping.values.items():
            facts |= values.get(str(facts.get(name)), {})
        yield replace(entry, facts=facts)


def _make_key(entry: DocumentConfiguration) -> ConfigurationKey:
    return (
        entry.recipe,
        *(str(entry.facts.get(name, "")) for name in (*KEY_COLUMNS, "task", "variant")),
    )


def _select_complete(
    entries: Sequence[DocumentConfiguration], *, needs_step_time: bool
) -> Iterator[Finding]:
    """Yield the complete configurations with a unique key.

    Yields the cells of all other configurations as unread, each with the reason. If
    `needs_step_time`, a configuration without a step time is incomplete.
    """
    complete: dict[ConfigurationKey, DocumentConfiguration] = {}
    ambiguous: dict[ConfigurationKey, list[DocumentConfiguration]] = {}
    for entry in _name_variants(entries):
        reason = _find_problem(entry, needs_step_time=needs_step_time)
        if reason:
            yield from _refuse(entry, reason)
            continue
        key = _make_key(entry)
        first = complete.setdefault(key, entry)
        if first.facts != entry.facts:
            ambiguous.setdefault(key, [first]).append(entry)
    # Several rows of one key: any of them may be another measurement, so import none.
    for key, duplicates in ambiguous.items():
        lines = ", ".join(str(entry.line) for entry in duplicates)
        del complete[key]
        for entry in duplicates:
            yield from _refuse(
                entry, f"lines {lines} give different values for one configuration"
            )
    yield from complete.values()


def _name_variants(
    entries: Sequence[DocumentConfiguration],
) -> Iterator[DocumentConfiguration]:
    """Add a variant to configurations that differ only in batch or sequence length."""
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
    """Return the fewest columns that distinguish the configurations of one key.

    Returns () for a single configuration, if no columns distinguish the configurations,
    or if a configuration lacks one of the columns.
    """
    if len(group) == 1:
        return ()
    for names in VARIANT_COLUMNS:
        if len({_name_variant(entry, names) for entry in group}) == len(group):
            is_stated = all(entry.facts.get(name) for entry in group for name in names)
            return names if is_stated else ()
    return ()


def _name_variant(entry: DocumentConfiguration, names: Sequence[str]) -> str:
    """Return the name of a variant, such as `gbs128_seq4096`; "" without columns."""
    return "_".join(f"{name[:3]}{entry.facts.get(name, '')}" for name in names)


# --- checks ---------------------------------------------------------------------------


def _find_problem(entry: DocumentConfiguration, *, needs_step_time: bool) -> str:
    """Return the reason not to import a configuration, or ""."""
    name = next((name for name in KEY_COLUMNS if not entry.facts.get(name)), "")
    if name:
        hint = "" if name == "gpus" else f"; give --{name}"
        several, missing = f"more than one {_WORDS[name]} is", f"no {_WORDS[name]} is"
        return (
            f"{several} stated for the configuration"
            if name in entry.facts
            else f"{missing} stated for the configuration{hint}"
        )
    if entry.facts.get("task") == "":
        return "more than one task, or an unknown task, is stated for the configuration"
    if not entry.recipe:
        return "the title names no recipe; give --recipe"
    if needs_step_time and not _has_step_time(entry):
        return (
            "a step time cannot be computed from tokens/s per GPU without GBS and sequence length"
            if "tokens_per_second_per_gpu" in entry.cells
            else "the row contains no step time"
        )
    # Only two metrics together reveal that a row is shifted by a cell.
    if _find_factor(entry.cells, "days_to_1t", 1e12 / 86_400) > LARGEST_TOKENS_FACTOR:
        return CONTRADICTORY_DAYS
    # Tokens per step; 0 if the sequence length or the GBS is unknown.
    tokens = math.prod(
        int(entry.facts.get(name, 0)) for name in ("sequence_length", "gbs")
    )
    is_contradictory = (
        tokens > 0
        and _find_factor(entry.cells, "step_time", tokens) > LARGEST_STEP_TIME_FACTOR
    )
    return CONTRADICTORY_STEP_TIME if is_contradictory else ""


def _has_step_time(entry: DocumentConfiguration) -> bool:
    """True if a step time is printed or can be computed from another metric."""
    return any(
        name in entry.cells and all(map(entry.facts.get, needed))
        for name, needed in _STEP_TIME_FROM.items()
    )


def _find_factor(cells: Mapping[str, str], name: str, product: float) -> float:
    """Return the factor (>= 1) between `product` and the metric `name` times tokens/s.

    The factor is 1 if they are equal or a value is absent.
    """
    texts = [cells.get("tokens_per_second", "NA"), cells.get(name, "NA")]
    if any(text in ABSENT for text in texts):
        return 1.0
    factor = math.prod(map(float, texts)) / product
    return max(factor, 1 / factor)


def _refuse(entry: DocumentConfiguration, reason: str) -> Iterator[UnreadCell]:
    """Yield the cells of a configuration, except missing values, as unread."""
    for labelled in entry.values:
        if not labelled.cell.is_absent:
            yield labelled.refuse(reason)


def _mark_proxies(
    entries: Sequence[DocumentConfiguration],
) -> Iterator[DocumentConfiguration]:
    """Mark configurations as proxies if another of the same size has more layers."""
    most_layers: dict[tuple[str, int | str], int] = {}
    for entry in entries:
        model = entry.recipe, entry.facts["size"]
        layers = int(entry.facts.get("layers", 0))
        most_layers[model] = max(most_layers.get(model, 0), layers)
    for entry in entries:
        model = entry.recipe, entry.facts["size"]
        is_proxy = 0 < int(entry.facts.get("layers", 0)) < most_layers[model]
        yield replace(entry, facts={**entry.facts, "proxy": 1}) if is_proxy else entry
