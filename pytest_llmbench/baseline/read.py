"""Read baseline files into recipes.

Every key is checked. A problem names its file and line, the value found and the value
expected.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISLNK
from typing import Any

from msgspec import Struct

from pytest_llmbench.baseline.checks import check_file, count_decimals, derive_step_time
from pytest_llmbench.baseline.schema import (
    CONFIGURATION,
    FILE,
    KINDS,
    MODEL,
    NO_PEAK,
    SCHEMA,
    KeyDefinition,
    add_defaults,
    get_file_fields,
)
from pytest_llmbench.core.baseline_records import (
    AcceptedValue,
    Architecture,
    Baseline,
    BaselineKind,
    Budget,
    Configuration,
    Erratum,
    Key,
    Parallelism,
    Recipe,
    Recording,
    RegexDialect,
    RunMatch,
    Source,
    TimesOf,
    Tolerance,
    Window,
)
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.tolerance import merge_tolerances
from pytest_llmbench.core.userfile import links_to_ancestor, path_exists, walk_folders
from pytest_llmbench.core.yamlfile import Report, YamlMapping, read_document, read_entry
from pytest_llmbench.logs.dialect_table import REGEX, name_regex_dialect


def read_recipe(path: Path) -> Recipe:
    """Read the recipe of one file.

    Raises BaselineError with file, line, found and expected values.
    """
    return read_file(path).recipe


def read_recipes(directories: Sequence[Path]) -> tuple[Recipe, ...]:
    """Read the recipes of every *.yaml and *.yml under the directories.

    Ordered by path. Raises BaselineError for the first bad file, a directory without
    files, a duplicate key within one kind, and a dialect that two files define
    differently.
    """
    recipes = tuple(read_recipe(path) for path in find_baseline_files(directories))
    # Two baselines of one kind are ambiguous. A recorded and a published one are not:
    # both gate.
    first_by_key: dict[tuple[str, str], Baseline] = {}
    baselines = [baseline for recipe in recipes for baseline in recipe.baselines]
    for baseline in baselines:
        first = first_by_key.setdefault((baseline.kind, baseline.key.id), baseline)
        if first is not baseline:
            raise BaselineError(
                f"{_format_location(baseline)}: found a second {baseline.kind} baseline of {baseline.key.id} "
                f"(first at {_format_location(first)}), expected one; distinguish the two by task, scaling or variant"
            )
    _check_dialects(recipes)
    return recipes


def _check_dialects(recipes: Sequence[Recipe]) -> None:
    """Raise BaselineError if two files define the same dialect differently."""
    first_by_dialect: dict[str, Recipe] = {}
    for recipe in recipes:
        if not recipe.log:
            continue
        first = first_by_dialect.setdefault(recipe.dialect, recipe)
        if first.log != recipe.log:
            raise BaselineError(
                f"{recipe.path}: found another 'log' of {recipe.name} {recipe.release} than in {first.path}, "
                "expected the same definition in both files"
            )


def find_baseline_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """List the baseline files at or under the given paths, each once.

    Raises BaselineError for a folder without baseline files.
    """
    files_by_real_path: dict[Path, Path] = {}
    for path in paths:
        yaml_files = sorted(_find_yaml_files(path)) if os.path.isdir(path) else [path]
        if not yaml_files:
            raise BaselineError(
                f"{path}: found no *.yaml or *.yml in it, expected baseline files"
            )
        # A file given twice, or through a link, would duplicate its configurations.
        for file in yaml_files:
            files_by_real_path.setdefault(file.resolve(), file)
    return tuple(files_by_real_path.values())


def read_file(path: Path) -> RecipeFile:
    """Read one file with everything it states.

    Raises BaselineError with up to ten problems and their lines.
    """
    root = read_document(path)
    kind = _read_kind(path, root)

    def check(entry: YamlMapping, report: Report) -> None:
        """Report the contradictions within the file."""
        ids = [_make_key(entry, row).id for row in entry["configurations"]]
        check_file(entry, ids, report)

    entry = read_entry(
        path, root, get_file_fields(kind), complete=add_defaults, check=check
    )
    return make_recipe_file(path, kind, entry)


def _find_yaml_files(directory: Path) -> Iterator[Path]:
    """Yield the *.yaml and *.yml files under a folder.

    Follows links to folders, and visits each folder once. Raises BaselineError for an unreadable folder.
    """

    def fail(error: OSError) -> None:
        """Raise BaselineError for a folder or link that cannot be read."""
        raise BaselineError(
            f"{error.filename}: {error.strerror}, expected a readable folder"
        ) from error

    visited = set()
    unvisited_roots = [directory]
    while unvisited_roots:
        for folder, folders, names in walk_folders(unvisited_roots.pop(0), fail):
            real_folder = Path(folder).resolve()
            if real_folder in visited:
                # The walk does not enter the subfolders that this list lacks.
                folders.clear()
                continue
            visited.add(real_folder)
            yaml_names = [name for name in names if name.endswith((".yaml", ".yml"))]
            # A walk may report a link to a folder as a file. Its baselines must not be
            # missing.
            other_names = [name for name in names if name not in yaml_names]
            for link in _find_links(folder, [*folders, *other_names], fail):
                if not links_to_ancestor(link):
                    unvisited_roots.append(Path(os.path.realpath(link)))
            yield from (Path(folder, name) for name in yaml_names)


def _find_links(
    folder: str, names: Iterable[str], fail: Callable[[OSError], None]
) -> Iterator[str]:
    """Yield the links to folders among `names`.

    Calls `fail` for a path that cannot be examined.
    """
    for name in names:
        path = os.path.join(folder, name)
        try:
            is_link = S_ISLNK(os.lstat(path).st_mode)
            if is_link and path_exists(Path(path)) and S_ISDIR(os.stat(path).st_mode):
                yield path
        except OSError as error:
            fail(error)


def contains_recorded(path: Path) -> bool:
    """True if a file contains recorded baselines of any schema version.

    If the file is not valid YAML, its text is searched.
    """
    try:
        kind = _find_values(read_document(path)).get("kind")
    except BaselineError:
        # Every accepted value would be lost with the file, so assume the worst.
        return str(BaselineKind.RECORDED) in path.read_text(encoding="utf-8")
    return kind is not None and kind.value == BaselineKind.RECORDED


def _find_values(root: Any) -> dict[str, Any]:
    """Return the value nodes of a YAML mapping node, by their scalar keys."""
    return {key.value: value for key, value in root.value if key.id == "scalar"}


def _read_kind(path: Path, root: Any) -> BaselineKind:
    """Return the kind of a file, the first of KINDS if missing or invalid.

    Raises BaselineError for another schema version.
    """
    values = _find_values(root)
    version = values.get("schema")
    if version is None or version.value != SCHEMA:
        stated = "no 'schema'" if version is None else f"schema {version.value!r}"
        line = (version or root).start_mark.line + 1
        raise BaselineError(
            f"{path}:{line}: found {stated}, expected schema: {SCHEMA}, the only version that this release reads"
        )
    # Every kind has its own keys, so other keys cannot be checked without the kind.
    kind = values.get("kind")
    if kind is None or kind.value not in KINDS:
        return BaselineKind(KINDS[0])
    return BaselineKind(kind.value)


def _format_location(baseline: Baseline) -> str:
    return f"{baseline.source.file}:{baseline.source.line}"


PACKAGE = Path(__file__).resolve().parents[1]


def find_shipped_baselines(package: Path = PACKAGE) -> Path:
    """Return the folder of the shipped files.

    It is inside the package (wheel) or next to it (checkout, editable install). Raises
    BaselineError if there is none: an installation without its data must not pass.
    """
    inside, next_to_package = package / "baselines", package.parent / "baselines"
    if inside.is_dir():
        return inside
    # The parent of an installed package is site-packages, where a folder of this name
    # would belong to another package.
    if next_to_package.is_dir() and (package.parent / "pyproject.toml").is_file():
        return next_to_package
    raise BaselineError(
        f"{inside}: no such folder, expected the shipped baseline files; install pytest-llmbench again"
    )


def find_shipped_tables() -> Path:
    """Return the folder of the shipped files whose configurations are optional.

    They become items only if requested.
    """
    return find_shipped_baselines() / "megatron_bridge"


def list_shipped_baselines() -> list[Path]:
    """List the shipped files whose configurations always become items.

    Raises BaselineError if there are none.
    """
    root, tables = find_shipped_baselines(), find_shipped_tables()
    files = [
        path for path in find_baseline_files([root]) if not path.is_relative_to(tables)
    ]
    if not files:
        raise BaselineError(
            f"{root}: expected the shipped baseline files; install pytest-llmbench again"
        )
    return files


class StatedModel(Struct, frozen=True):
    """Printed FLOPs of a model, and the sums of its worked example."""

    printed_flops: str = ""
    worked: tuple[tuple[str, Any], ...] = ()


class RecipeFile(Struct, frozen=True):
    """A recipe with the facts that only lint and recording need.

    The limits apply to the whole file.
    """

    recipe: Recipe
    models: tuple[tuple[str, StatedModel], ...]
    tolerances: tuple[Tolerance, ...] = ()
    budgets: tuple[Budget, ...] = ()
    drift_budget: float | None = None


def make_recipe_file(path: Path, kind: BaselineKind, entry: YamlMapping) -> RecipeFile:
    """Build the records of one file.

    `entry` has passed the schema and the checks.
    """
    resolutions = _find_resolutions(entry) if kind is BaselineKind.PUBLISHED else {}
    recipe = Recipe(
        name=entry["recipe"],
        release=entry["release"],
        kind=kind,
        title=entry.get("title", ""),
        framework=entry.get("framework", ""),
        dialect=_name_dialect(entry),
        # Without names, runs are named like the recipe.
        names=entry.get("names", (entry["recipe"],)),
        layout=entry.get("layout", ""),
        baselines=tuple(
            _make_baseline(path, kind, entry, row, resolutions)
            for row in entry["configurations"]
        ),
        errata=tuple(_make_errata(entry)),
        launch=_to_tuples(entry.get("launch")),
        path=path,
        log=_make_log_dialect(entry),
        dp_excludes_ep=bool(entry.get("dp_excludes_ep")),
    )
    models = tuple(
        (size, _make_stated_model(model))
        for size, model in entry["models"].values.items()
    )
    return RecipeFile(
        recipe,
        models,
        tolerances=entry.get("tolerance", ()),
        budgets=merge_budgets(_read_budgets(path, entry)),
        drift_budget=entry.get("drift_budget"),
    )


def _make_stated_model(model: YamlMapping) -> StatedModel:
    return StatedModel(
        printed_flops=model.get("printed_flops", ""),
        worked=_to_tuples(model.get("worked")),
    )


def merge_budgets(*layers: Iterable[Budget]) -> tuple[Budget, ...]:
    """Return one budget per metric, sorted by metric.

    A later layer overrides earlier ones.
    """
    by_metric = {budget.metric: budget for layer in layers for budget in layer}
    return tuple(by_metric[metric] for metric in sorted(by_metric))


def _read_budgets(path: Path, entry: YamlMapping) -> Iterator[Budget]:
    """Yield the budgets of a file or row, each with its file name and line."""
    budgets = entry.get("budgets")
    if budgets is None:
        return
    for metric, largest in budgets.values.items():
        yield Budget(metric, float(largest), f"{path.name}:{budgets.lines[metric]}")


def _find_resolutions(entry: YamlMapping) -> dict[str, float]:
    """Return the resolution of the printed step times of each table, in seconds.

    For example 0.01 if the step time with the most decimals is printed as 12.39.
    """
    # The cell with the most decimals decides: a spreadsheet prints 10.00 s as `10`.
    most_decimals: dict[str, int] = defaultdict(int)
    for row in entry["configurations"]:
        if "step_time" in row["cells"].values:
            table = row.get("table", "")
            decimals = count_decimals(row["cells"]["step_time"])
            most_decimals[table] = max(most_decimals[table], decimals)
    return {table: float(f"1e-{decimals}") for table, decimals in most_decimals.items()}


def _make_baseline(
    path: Path,
    kind: BaselineKind,
    entry: YamlMapping,
    row: YamlMapping,
    resolutions: Mapping[str, float],
) -> Baseline:
    """Build the baseline of one configuration row.

    `resolutions` are one unit in the last place of the printed step times, by table.
    """
    window = Window(**entry["window"].values)
    timed_window = None
    if "timed_window" in entry.values:
        timed_window = Window(**entry["timed_window"].values)
    recording = None
    if kind is BaselineKind.RECORDED:
        recording = _make_recording(row["recorded"])
    cells = row.get("cells")
    table = row.get("table", "")
    resolution = resolutions.get(table, 0.0)
    has_step_time = cells is not None and "step_time" in cells.values
    if recording is None and cells is not None and not has_step_time:
        # The document prints only a throughput.
        step_seconds, resolution = derive_step_time(row)
    else:
        step_seconds = _find_step_seconds(recording, cells, window)
    # Keys without a dotted field are stored in the baseline itself.
    file_values = _group_by_record(FILE, entry)[""]
    values = {
        **file_values,
        "configuration": _make_configuration(entry, row),
        "kind": kind,
        "step_seconds": step_seconds,
        "cells": tuple(cells.values.items()) if cells else (),
        "window": window,
        "timed_window": timed_window,
        "dialect": _name_dialect(entry),
        # An unknown peak is NaN, not zero: MFU is then unknown instead of infinite.
        "peak_tflops": _parse_peak(entry["peak_tflops"][row["gpu"]][row["dtype"]]),
        "source": Source(
            entry["source"]["document"], table, file=str(path), line=row.line
        ),
        "tolerances": merge_tolerances(
            entry.get("tolerance", ()), row.get("tolerance", ())
        ),
        "recording": recording,
        "resolution_seconds": resolution,
        "budgets": merge_budgets(_read_budgets(path, entry), _read_budgets(path, row)),
        "log": _make_log_dialect(entry),
        "match": _make_match(row.get("match")),
    }
    return Baseline(**values)


def _make_recording(entry: YamlMapping) -> Recording:
    """Build the recording of one row from its `recorded` mapping."""
    earlier = tuple(
        AcceptedValue(**accepted.values) for accepted in entry.get("earlier", ())
    )
    converted = {
        "environment": _to_tuples(entry.get("environment")),
        "observed": _to_tuples(entry.get("observed")),
        "earlier": earlier,
    }
    return Recording(**{**entry.values, **converted})


def _make_match(entry: YamlMapping | None) -> RunMatch | None:
    """Build the match of one row from its `match` mapping, None if there is none."""
    if entry is None:
        return None
    return RunMatch(entry["path"], tuple(sorted(entry["says"].values.items())))


def _name_dialect(entry: YamlMapping) -> str:
    """Return the name of the dialect; a custom dialect is named after the recipe."""
    if entry["dialect"] == REGEX:
        return name_regex_dialect(entry["recipe"], entry["release"])
    return str(entry["dialect"])


def _make_log_dialect(entry: YamlMapping) -> RegexDialect | None:
    """Build the custom dialect that a file defines, or None."""
    log = entry.get("log")
    if log is None:
        return None
    times_of = TimesOf(log.get("averages", TimesOf.SINGLE))
    return RegexDialect(_name_dialect(entry), **{**log.values, "averages": times_of})


def _parse_peak(text: str) -> float:
    """Return a peak in TFLOP/s, NaN if the device has none."""
    return math.nan if text == NO_PEAK else float(text)


def _find_step_seconds(
    recording: Recording | None, cells: YamlMapping | None, window: Window
) -> float:
    """Return the recorded or printed step time in seconds; NaN if there is none."""
    if recording is not None and window.statistic == "trimmed_mean":
        return recording.trimmed_mean_seconds
    if recording is not None:
        return recording.mean_seconds
    return math.nan if cells is None else float(cells["step_time"])


def _make_configuration(entry: YamlMapping, row: YamlMapping) -> Configuration:
    """Build the configuration of one row, with the sizes of its model."""
    model = entry["models"][row["size"]]
    model_sizes = _group_by_record(MODEL, model)["configuration.architecture"]
    row_values = _group_by_record(CONFIGURATION, row)
    formula = model["formula"]
    # A document rounds the FLOPs of its full model. FLOPs of a proxy follow from the
    # formula without rounding: "llama" instead of "llama:3".
    if row.get("proxy"):
        formula, _, _ = formula.partition(":")
    configuration_values = {
        **row_values["configuration"],
        "arguments": _to_tuples(row.get("arguments")),
    }
    return Configuration(
        key=_make_key(entry, row),
        architecture=Architecture(
            formula=formula,
            **model_sizes,
            **row_values["configuration.architecture"],
        ),
        parallelism=Parallelism(**row_values["configuration.parallelism"]),
        **configuration_values,
    )


def _make_key(entry: YamlMapping, row: YamlMapping) -> Key:
    """Build the key of one configuration row."""
    return Key(
        recipe=entry["recipe"],
        release=entry["release"],
        **_group_by_record(CONFIGURATION, row)["key"],
    )


def _group_by_record(
    keys: Iterable[KeyDefinition], entry: YamlMapping
) -> dict[str, dict[str, Any]]:
    """Return the values of a mapping, grouped by record and field.

    The value of the key with the field `configuration.parallelism.dp` is at
    `["configuration.parallelism"]["dp"]`. A missing record is an empty dict.
    """
    records: dict[str, dict[str, Any]] = defaultdict(dict)
    for key in keys:
        if key.field and key.name in entry.values:
            record, _, field = key.field.rpartition(".")
            records[record][field] = entry[key.name]
    return records


def _make_errata(entry: YamlMapping) -> Iterator[Erratum]:
    """Yield the errata of a file; an erratum of cells becomes one per configuration."""
    for erratum in entry.get("errata", ()):
        location, reason = erratum["where"], erratum["reason"]
        cells = erratum.get("cells")
        if cells is None:
            yield Erratum(location, erratum["printed"], erratum["corrected"], reason)
        else:
            for row_id, correction in cells.values.items():
                yield Erratum(
                    location,
                    correction["printed"],
                    correction["corrected"],
                    reason,
                    configuration=row_id,
                    cell=erratum["cell"],
                )


def _to_tuples(entry: YamlMapping | None) -> tuple[tuple[str, Any], ...]:
    """Return a mapping as nested (key, value) pairs, () for None."""
    if entry is None:
        return ()
    pairs = []
    for key, value in entry.values.items():
        if isinstance(value, YamlMapping):
            pairs.append((key, _to_tuples(value)))
        else:
            pairs.append((key, value))
    return tuple(pairs)
