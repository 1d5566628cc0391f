"""Join the tables of a document into configurations with unique keys.

Rows with measurements are completed with the rows that describe their configurations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

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

SECONDS_PER_DAY = 86_400

OUTSIDE = "the cell is outside of Markdown tables: in HTML, in a comment, without a line of dashes below a header, or in a huge line"
UNMEASURED = "the configuration has no measurement"
CONTRADICTORY_DAYS = "tokens/s and days to 1T tokens contradict each other: the row may be shifted by a cell"
CONTRADICTORY_STEP_TIME = "tokens/s does not match step time, sequence length and GBS: one of the values may be in another unit"

UNCOPIED_FACTS = ("recipe", "model", "unsized")
"""The facts of a configuration row that are not copied to measured rows."""

_KEY_COLUMN_WORDS = {
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


class DocumentConfigurations(Struct, frozen=True):
    """The configurations of a document, and the cells that no configuration uses.

    The configurations are in the order of the document, the cells sorted by line.
    """

    configurations: tuple[DocumentConfiguration, ...]
    unread: tuple[UnreadCell, ...]


def collect_configurations(
    tables: DocumentTables, mapping: DocumentMapping
) -> DocumentConfigurations:
    """Collect the configurations of a document.

    A measured row has metrics, such as a step time. A configuration row has only
    settings, such as TP and GBS. A measured row gets the settings of every
    configuration row that does not contradict its size, GPU type, precision and number
    of GPUs. If no table has a metric, the configuration rows themselves are the
    configurations.
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
    """Return one configuration for each precision of a cell such as `BF16/FP8`.

    Returns the unchanged configuration if its precision is unknown.
    """
    dtypes = parse_dtypes(mapping, str(entry.facts.get("dtype", "")))
    if not dtypes:
        return [entry]
    return [replace(entry, facts={**entry.facts, "dtype": dtype}) for dtype in dtypes]


# --- configuration rows ---------------------------------------------------------------


def _join_settings(
    measured: Sequence[DocumentConfiguration],
    configuration_rows: Sequence[DocumentConfiguration],
) -> Iterator[Finding]:
    """Complete measured rows with the columns of their configuration rows.

    Also yields the unread cells: contradictions, and configuration rows that match no
    measured row.
    """
    recipes = {entry.recipe for entry in measured}
    # A row without a number of GPUs would match runs of every number of GPUs.
    rows_with_gpus = [row for row in configuration_rows if row.facts.get("gpus")]
    # The ids of `values` tuples. All configurations that `_split_by_dtype` made from one
    # row share its tuple, so the row counts as used if one of them is.
    used_ids: set[int] = set()
    for entry in measured:
        rows = [row for row in rows_with_gpus if _may_describe(row, entry, recipes)]
        # Strong and weak scaling differ by their batch, so prefer rows with equal GBS.
        batch = entry.facts.get("gbs", "")
        if any(row.facts.get("gbs") == batch for row in rows):
            # Rows without a GBS stay.
            rows = [row for row in rows if row.facts.get("gbs", batch) == batch]
        yield from _add_columns(entry, rows, used_ids)
    for row in configuration_rows:
        if id(row.values) not in used_ids:
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
    task = entry.facts.get("task")
    # A row that names no task applies to every task.
    if row.facts.get("task", task) != task:
        return False
    return _has_same_key(row, entry.facts)


def _has_same_key(row: DocumentConfiguration, facts: Facts) -> bool:
    """True if no key column of a row contradicts `facts`; missing values never do."""
    stated_by_both = [
        name for name in KEY_COLUMNS if name in row.facts and name in facts
    ]
    return all(row.facts[name] == facts[name] for name in stated_by_both)


def _add_columns(
    entry: DocumentConfiguration,
    rows: Sequence[DocumentConfiguration],
    used_ids: set[int],
) -> Iterator[Finding]:
    """Add the columns of configuration rows to a measured row.

    Also yields contradictory columns as unread cells. Adds the id of the `values` of
    each used row to `used_ids`.
    """
    facts, values = dict(entry.facts), entry.values
    for row in rows:
        # An earlier row may have stated a size that this row contradicts.
        if not _has_same_key(row, facts):
            continue
        used_ids.add(id(row.values))
        values += row.values
        for name, value in row.facts.items():
            if name in UNCOPIED_FACTS:
                continue
            stated = facts.setdefault(name, value)
            if stated != value:
                reason = f"line {entry.line} states {stated or 'several values'}"
                yield UnreadCell(row.line, f"{name} {value}", reason)
                facts[name] = ""  # neither value is used
    # Drop contradictory columns. Contradictory keys stay "", because `_find_problem`
    # names these in the reason.
    agreed = {
        name: value
        for name, value in facts.items()
        if value != "" or name in (*KEY_COLUMNS, "task")
    }
    yield replace(entry, facts=agreed, values=values)


# --- keys -----------------------------------------------------------------------------


def _complete_keys(
    entries: Sequence[DocumentConfiguration], mapping: DocumentMapping
) -> Iterator[DocumentConfiguration]:
    """Complete the keys of configurations with the options and the mapping file.

    The recipe is the stated recipe (--recipe), else the recipe of the configuration,
    else the only recipe of the document, if there is exactly one, else the possible
    recipe in the title (`unsized`). Texts in the section `values` of the mapping are
    then replaced.
    """
    stated_recipe = mapping.stated.get("recipe")
    recipes = {entry.recipe for entry in entries} - {""}
    only_recipe = next(iter(recipes)) if len(recipes) == 1 else ""
    recipes_with_model = {entry.recipe for entry in entries if "model" in entry.facts}
    # --recipe merges several recipes into one. The sizes alone would then not
    # distinguish their models, so the model's name replaces the size.
    size_is_model = stated_recipe and len(recipes_with_model) > 1
    for entry in entries:
        unsized_title = entry.facts.get("unsized", "")
        recipe = stated_recipe or entry.recipe or only_recipe or unsized_title
        facts = {**mapping.stated, **entry.facts, "recipe": recipe}
        if size_is_model and "model" in facts:
            facts["size"] = facts["model"]
        for name, replacements in mapping.values.items():
            facts |= replacements.get(str(facts.get(name)), {})
        yield replace(entry, facts=facts)


def _make_key(entry: DocumentConfiguration) -> ConfigurationKey:
    names = (*KEY_COLUMNS, "task", "variant")
    return (entry.recipe, *(str(entry.facts.get(name, "")) for name in names))


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
        # A row that repeats the first row exactly is ignored.
        if first.facts != entry.facts:
            ambiguous.setdefault(key, [first]).append(entry)
    # Several rows of one key: any of them may be another measurement, so import none.
    for key, duplicates in ambiguous.items():
        lines = ", ".join(str(entry.line) for entry in duplicates)
        reason = f"lines {lines} give different values for one configuration"
        del complete[key]
        for entry in duplicates:
            yield from _refuse(entry, reason)
    yield from complete.values()


def _name_variants(
    entries: Sequence[DocumentConfiguration],
) -> Iterator[DocumentConfiguration]:
    """Add a variant to configurations with equal keys, such as `gbs128`.

    The variant names the columns that distinguish these: batch, sequence length or
    both.
    """
    groups: dict[ConfigurationKey, list[DocumentConfiguration]] = {}
    for entry in entries:
        groups.setdefault(_make_key(entry), []).append(entry)
    columns_by_key = {
        key: _choose_batch_columns(group) for key, group in groups.items()
    }
    for entry in entries:
        variant = _name_variant(entry, columns_by_key[_make_key(entry)])
        if variant:
            yield replace(entry, facts={**entry.facts, "variant": variant})
        else:
            yield entry


def _choose_batch_columns(group: Sequence[DocumentConfiguration]) -> Sequence[str]:
    """Return the fewest columns that distinguish the configurations of one key.

    Returns () for a single configuration, if no columns distinguish the configurations,
    or if a configuration lacks one of the columns.
    """
    if len(group) == 1:
        return ()
    for columns in VARIANT_COLUMNS:
        variants = {_name_variant(entry, columns) for entry in group}
        if len(variants) == len(group):
            is_stated = all(
                entry.facts.get(column) for entry in group for column in columns
            )
            return columns if is_stated else ()
    return ()


def _name_variant(entry: DocumentConfiguration, columns: Sequence[str]) -> str:
    """Return the name of a variant, such as `gbs128_seq4096`; "" without columns."""
    # The first three letters: `seq` for sequence_length.
    return "_".join(f"{column[:3]}{entry.facts.get(column, '')}" for column in columns)


# --- checks ---------------------------------------------------------------------------


def _find_problem(entry: DocumentConfiguration, *, needs_step_time: bool) -> str:
    """Return the reason not to import a configuration, or ""."""
    key_problem = _find_key_problem(entry)
    if key_problem:
        return key_problem
    if needs_step_time and not _has_step_time(entry):
        if "tokens_per_second_per_gpu" in entry.cells:
            return "a step time cannot be computed from tokens/s per GPU without GBS and sequence length"
        return "the row contains no step time"
    return _find_contradiction(entry)


def _find_key_problem(entry: DocumentConfiguration) -> str:
    """Return the reason that the key of a configuration is incomplete, or ""."""
    for column in KEY_COLUMNS:
        if entry.facts.get(column):
            continue
        word = _KEY_COLUMN_WORDS[column]
        if column in entry.facts:  # "": contradictory values
            return f"more than one {word} is stated for the configuration"
        hint = "" if column == "gpus" else f"; give --{column}"
        return f"no {word} is stated for the configuration{hint}"
    if entry.facts.get("task") == "":
        return "more than one task, or an unknown task, is stated for the configuration"
    if not entry.recipe:
        return "the title names no recipe; give --recipe"
    return ""


def _find_contradiction(entry: DocumentConfiguration) -> str:
    """Return the reason that tokens/s contradicts another metric, or "".

    A row that is shifted by a cell may look valid: only two metrics that contradict
    each other reveal it.
    """
    # tokens/s x days x seconds per day is 1T tokens.
    days_factor = _find_factor(
        entry.cells, "days_to_1t", expected_product=1e12 / SECONDS_PER_DAY
    )
    if days_factor > LARGEST_TOKENS_FACTOR:
        return CONTRADICTORY_DAYS
    # tokens/s x step time is the tokens of one step.
    sequence_length = int(entry.facts.get("sequence_length", 0))
    tokens_per_step = sequence_length * int(entry.facts.get("gbs", 0))
    if tokens_per_step > 0:  # both are known
        step_time_factor = _find_factor(
            entry.cells, "step_time", expected_product=tokens_per_step
        )
        if step_time_factor > LARGEST_STEP_TIME_FACTOR:
            return CONTRADICTORY_STEP_TIME
    return ""


def _has_step_time(entry: DocumentConfiguration) -> bool:
    """True if a step time is printed or can be computed from another metric."""
    return any(
        metric in entry.cells and all(map(entry.facts.get, needed_columns))
        for metric, needed_columns in _STEP_TIME_FROM.items()
    )


def _find_factor(
    cells: Mapping[str, str], metric: str, *, expected_product: float
) -> float:
    """Return the factor (>= 1) between expected and actual product of two metrics.

    The actual product is tokens/s times `metric`. The factor is 1 if both products are
    equal or a value is absent.
    """
    tokens_per_second = cells.get("tokens_per_second", "NA")
    value = cells.get(metric, "NA")
    if tokens_per_second in ABSENT or value in ABSENT:
        return 1.0
    factor = float(tokens_per_second) * float(value) / expected_product
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
        # 0 layers: unknown.
        is_proxy = 0 < int(entry.facts.get("layers", 0)) < most_layers[model]
        yield replace(entry, facts={**entry.facts, "proxy": 1}) if is_proxy else entry
