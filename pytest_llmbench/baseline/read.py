"""From baseline files to recipes: everything is checked, and a problem says where, what was found and expected."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_llmbench.baseline.checks import check_file
from pytest_llmbench.baseline.records import RecipeFile, make_recipe_file
from pytest_llmbench.baseline.schema import KINDS, SCHEMA, add_defaults, get_file_fields
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.models import Baseline, BaselineKind, Recipe
from pytest_llmbench.core.yamlfile import read_document, read_entry


def read_recipe(path: Path) -> Recipe:
    """Return the recipe of one file. Raises BaselineError naming file, line, what was found and what was expected."""
    return read_file(path).recipe


def read_recipes(directories: Sequence[Path]) -> tuple[Recipe, ...]:
    """Return the recipes of every *.yaml and *.yml below the directories, in the order of their paths.

    Raises BaselineError for the first bad file, a directory without any, a key that stands twice in one kind, and a
    dialect that two files define in different ways.
    """
    recipes = tuple(read_recipe(path) for path in find_baseline_files(directories))
    first_of: dict[tuple[str, str], Baseline] = {}
    for baseline in (baseline for recipe in recipes for baseline in recipe.baselines):
        first = first_of.setdefault((baseline.kind, baseline.key.id), baseline)
        if first is not baseline:
            raise BaselineError(
                f"{_format_place(baseline)}: found a second {baseline.kind} baseline of {baseline.key.id} "
                f"(first at {_format_place(first)}), expected one; task, scaling or variant tell two apart"
            )
    _check_dialects(recipes)
    return recipes


def _check_dialects(recipes: Sequence[Recipe]) -> None:
    defined: dict[str, Recipe] = {}
    for recipe in (recipe for recipe in recipes if recipe.log):
        first = defined.setdefault(recipe.dialect, recipe)
        if first.log != recipe.log:
            raise BaselineError(
                f"{recipe.path}: found another 'log' of {recipe.name} {recipe.release} than in {first.path}, "
                "expected the same in both: its log is read in one way"
            )


def find_baseline_files(places: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files below the places (a file stands for itself), each once; BaselineError where there is none."""
    files: dict[Path, Path] = {}
    for place in places:
        paths = sorted(_find_yaml_files(place)) if os.path.isdir(place) else [place]
        if not paths:
            raise BaselineError(f"{place}: found no *.yaml or *.yml below it, expected baseline files")
        for path in paths:
            files.setdefault(path.resolve(), path)
    return tuple(files.values())


def read_file(path: Path) -> RecipeFile:
    """Return a file with all that is stated in it; BaselineError lists up to ten problems, each with its line."""
    root = read_document(path)
    kind = _read_kind(path, root)
    entry = read_entry(path, root, get_file_fields(kind), complete=add_defaults, check=check_file)
    return make_recipe_file(path, kind, entry)


def _find_yaml_files(directory: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise BaselineError(f"{error.filename}: {error.strerror}, expected a readable folder") from error

    visited = set()
    for folder, folders, names in os.walk(directory, onerror=fail, followlinks=True):
        # A link to a folder above itself would be followed for ever.
        real = Path(folder).resolve()
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        yield from (Path(folder, name) for name in names if name.endswith((".yaml", ".yml")))


def _read_kind(path: Path, root: Any) -> BaselineKind:
    stated = {key.value: value for key, value in root.value if key.id == "scalar"}
    version = stated.get("schema")
    if version is None or version.value != SCHEMA:
        version_text = "no 'schema'" if version is None else f"schema {version.value!r}"
        line = (version or root).start_mark.line + 1
        raise BaselineError(
            f"{path}:{line}: found {version_text}, expected schema: {SCHEMA}, which is all this release reads"
        )
    kind = stated.get("kind")
    return BaselineKind(kind.value if kind is not None and kind.value in KINDS else KINDS[0])


def _format_place(baseline: Baseline) -> str:
    return f"{baseline.source.file}:{baseline.source.line}"


PACKAGE = Path(__file__).resolve().parents[1]


def find_shipped_baselines(package: Path = PACKAGE) -> Path:
    """Return the folder of the shipped files: inside the package (wheel) or beside it (checkout, editable install).

    Raises BaselineError where neither is there: an installation that lost its data must not judge nothing.
    """
    inside, beside = package / "baselines", package.parent / "baselines"
    if inside.is_dir():
        return inside
    # The parent of an installed package is site-packages, where a folder of that name would be somebody else's.
    if beside.is_dir() and (package.parent / "pyproject.toml").is_file():
        return beside
    raise BaselineError(f"{inside}: no such folder, expected the shipped baseline files; install pytest-llmbench again")
