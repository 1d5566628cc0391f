"""From the texts of options to their values: the functions that the table of options names, and their messages."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.baseline_records import ToleranceSource
from pytest_llmbench.core.errors import HistoryError, SettingsError, did_you_mean
from pytest_llmbench.core.option import Option, name_destination
from pytest_llmbench.core.option_origins import NO_ORIGINS, Origin, Origins, Written, format_value
from pytest_llmbench.core.options import GOING_ON, OPTIONS
from pytest_llmbench.core.tolerance import merge_tolerances, parse_tolerances
from pytest_llmbench.core.userfile import expand_home, read_text_if_file
from pytest_llmbench.report.output_files import is_stream
from pytest_llmbench.session import option_parsers

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Tolerance
    from pytest_llmbench.history.store import StoreLocation

SUITES = (".yaml", ".yml")
"""The names of suite files, which no pattern ends in."""


class OptionValues(ChainMap[str, Any]):
    """The values of options by `dest`: those that were given as options, and behind them those of ini keys."""

    def __init__(self, typed: Mapping[str, Any], ini: Mapping[str, Any], origins: Origins = NO_ORIGINS) -> None:
        """Take both layers, and where each value was written."""
        super().__init__(dict(typed), dict(ini))
        self.origins = origins


def find_origins(values: Mapping[str, Any]) -> Origins:
    """Return where the values were written; of other mappings than `OptionValues` only which ones are ini keys'."""
    if isinstance(values, OptionValues):
        return values.origins
    ini = values.maps[1] if isinstance(values, ChainMap) and len(values.maps) > 1 else {}
    return {name: Origin(Written.INI, name) for name, value in ini.items() if value}


def split_layers(values: Mapping[str, Any]) -> tuple[OptionValues, OptionValues]:
    """Return what was given as options, and what ini keys say."""
    typed, ini = (*values.maps, {})[:2] if isinstance(values, ChainMap) else (values, {})
    origins = find_origins(values)
    keys = {name: origin for name, origin in origins.items() if name in ini}
    return OptionValues(typed, {}, origins), OptionValues({}, ini, keys)


def state_value(values: Mapping[str, Any], flag: str, value: object) -> str:
    """Return a value as it was written, for messages: `--llmb-trend=fial`, or `pytest.ini: llmb_trend = fial`."""
    return format_value(find_origins(values), flag, value)


def get_text(values: Mapping[str, Any], flag: str) -> str | None:
    """Return what was given for an option, None for nothing or empty text."""
    value = values.get(name_destination(flag))
    return None if value is None or value == "" else str(value).strip()


def parse_stated(values: Mapping[str, Any], flag: str, text: str, parse: Callable[[str], Any]) -> Any:
    """Return what a function makes of a text; SettingsError, with the text as it was written, where it raises."""
    try:
        return parse(text)
    except OverflowError:
        raise SettingsError(f"{state_value(values, flag, text)}: found a number that is too large") from None
    except ValueError as error:
        raise SettingsError(f"{state_value(values, flag, text)}: {error}") from None


def refuse_blank(values: Mapping[str, Any]) -> None:
    """Refuse an option without a value, or with blanks for one: who wrote it meant some. Raises SettingsError."""
    for option in OPTIONS:
        value = values.get(option.dest)
        if isinstance(value, str) and not value.strip():
            raise SettingsError(f"{option.flag}= is empty: give a value, or leave the option out")


# --- fields of settings: their defaults and values follow from the table of options ----------------------


def declare_option(flag: str, unset: Any = None) -> Any:
    """Declare a field of settings as the value of an option; `unset` is its value where nothing says one."""
    option = get_option(flag)
    default: Any = () if option.repeats else False if option.is_flag else _read(option, option.default, unset)
    return field(default=default, metadata={"flag": flag, "unset": unset})


def resolve_fields(kind: type[Any], values: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the fields of a class of settings that are values of options, in their order.

    Raises SettingsError for the first value that cannot be used.
    """
    metadata = {each.name: each.metadata for each in fields(kind) if "flag" in each.metadata}
    return {name: _resolve(values, marks["flag"], marks["unset"], directory) for name, marks in metadata.items()}


def get_option(flag: str) -> Option:
    """Return what is declared of an option."""
    return next(option for option in OPTIONS if option.flag == flag)


def choose(values: Mapping[str, Any], flag: str) -> str:
    """Return which of an option's choices was given, or its default; SettingsError for anything else."""
    option = get_option(flag)
    value = get_text(values, flag) or option.default
    if value and value not in option.choices:
        expected = f"{', '.join(option.choices[:-1])} or {option.choices[-1]}{did_you_mean(value, option.choices)}"
        raise SettingsError(f"{state_value(values, flag, value)}: expected {expected}")
    return value


def _resolve(values: Mapping[str, Any], flag: str, unset: Any, directory: Path) -> Any:
    option = get_option(flag)
    if option.is_flag:
        return bool(values.get(option.dest))
    if option.resolve:
        return _get_converter(option.resolve)(values, flag, directory)
    if option.choices:
        return choose(values, flag)
    text = get_text(values, flag)
    if text is None:
        return _read(option, option.default, unset)
    return parse_stated(values, flag, text, _get_parser(option.parse)) if option.parse else text


def _read(option: Option, text: str, unset: Any) -> Any:
    if not text:
        return unset
    return _get_parser(option.parse)(text) if option.parse else text


def _get_parser(name: str) -> Callable[[str], Any]:
    parser: Callable[[str], Any] = getattr(option_parsers, name)
    return parser


def _get_converter(name: str) -> Callable[..., Any]:
    """Return a function below that the table of options names."""
    converter: Callable[..., Any] = globals()[name]
    return converter


# --- values that a text is not enough for: what `resolve` of the table names -------------------------------


def list_logs(values: Mapping[str, Any], flag: str, directory: Path) -> tuple[Path, ...]:
    """Return where logs are read from."""
    return tuple(find_readable(flag, path, directory) for path in values.get(name_destination(flag)) or ())


def list_folders(values: Mapping[str, Any], flag: str, directory: Path) -> tuple[Path, ...]:
    """Return folders that exist."""
    paths = values.get(name_destination(flag)) or ()
    return tuple(_find_folder(state_value(values, flag, path), path, directory) for path in paths)


def list_tolerances(values: Mapping[str, Any], flag: str, _directory: Path) -> tuple[Tolerance, ...]:
    """Return the tolerances of the command line and, where it says none of the same, of the ini file."""
    typed, ini = split_layers(values)
    layers = []
    for layer, source in ((ini, ToleranceSource.INI), (typed, ToleranceSource.OPTION)):
        text = get_text(layer, flag)
        layers.append(
            parse_stated(layer, flag, text, partial(parse_tolerances, source=source)) if text is not None else ()
        )
    return merge_tolerances(*layers)


def list_patterns(values: Mapping[str, Any], flag: str, directory: Path) -> tuple[str, ...]:
    """Expand files of patterns, one a line, `#` starts a comment; suite files are left to the catalogue."""
    patterns: list[str] = []
    for pattern in map(str, values.get(name_destination(flag)) or ()):
        what = state_value(values, flag, pattern)
        path = directory / expand_home(pattern)
        if path.suffix.lower() in SUITES:
            continue
        if (text := read_text_if_file(path, what, SettingsError)) is not None:
            lines = [line for line in (line.partition("#")[0].strip() for line in text.splitlines()) if line]
            if not lines:
                raise SettingsError(f"{what}: the file names no configuration")
            patterns += lines
        else:
            patterns.append(pattern.strip())
        if not patterns[-1]:
            raise SettingsError(f"{what} is empty: give an id, a pattern, a file or all")
    return tuple(patterns)


def list_suites(values: Mapping[str, Any], flag: str, directory: Path) -> tuple[Path, ...]:
    """Return the suite files among what is required."""
    suites = [path for path in values.get(name_destination(flag)) or () if Path(str(path)).suffix.lower() in SUITES]
    return tuple(find_existing(state_value(values, flag, path), path, directory) for path in suites)


def list_recipes(values: Mapping[str, Any], flag: str, directory: Path) -> tuple[tuple[str, Path], ...]:
    """Return the names of recipes with their folders."""
    recipes = []
    for value in values.get(name_destination(flag)) or ():
        name, equals, folder = str(value).partition("=")
        if not (name and equals and folder):
            raise SettingsError(f"{flag}={value}: expected NAME=DIR, such as grok1-25.05=/lustre/recipes/grok1")
        recipes.append((name, _make_path(f"{flag}={value}", folder, directory)))
    return tuple(recipes)


def find_file(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return a file that exists, None where none was given."""
    value = _get_single(values, flag)
    return find_existing(state_value(values, flag, value), value, directory) if value else None


def _get_single(values: Mapping[str, Any], flag: str) -> Any:
    """Return the one path that was given, None for none; SettingsError for several."""
    value = values.get(name_destination(flag))
    # Pytest's only type for one path is a list of them, which are relative to the configuration file.
    paths = value if isinstance(value, list) else [value] if value is not None else []
    if len(paths) > 1:
        stated = state_value(values, flag, " ".join(map(str, paths)))
        raise SettingsError(f"{stated}: found {len(paths)} paths, expected one")
    return next(iter(paths), None)


def find_journal(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return the folder of the journal, None where none was given. A new session makes it; one that goes on with an
    earlier session needs one that is there."""
    value = _get_single(values, flag)
    if value is None:
        return None
    what = state_value(values, flag, value)
    path = _make_path(what, value, directory)
    if any(values.get(name_destination(going_on)) for going_on in GOING_ON):
        return _find_folder(what, value, directory)
    _require_writable(what, path, folder=True)
    return path


def find_cluster(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return the file of the cluster: what was given, or cluster.yaml where there is one."""
    if values.get(name_destination(flag)):
        return find_file(values, flag, directory)
    default = directory / "cluster.yaml"
    # A link to nothing is a mistake, and told.
    there = default.exists() or default.is_symlink()
    return find_existing(f"{flag}={default}", default, directory) if there else None


def find_output(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return where a file, or for --llmb-record a folder, will be written; SettingsError where it cannot."""
    text = get_text(values, flag)
    if text is None:
        return None
    path = _make_path(f"{flag}={text}", text, directory)
    _require_writable(f"{flag}={text}", path, folder=flag == "--llmb-record")
    return path


def _require_writable(what: str, path: Path, *, folder: bool) -> None:
    """Raise SettingsError where no such file, or folder, can be written; `what` was given as it was written."""
    # os.path.exists, since Path.exists raises PermissionError for what may not be looked at.
    if os.path.exists(path) and path.is_dir() is not folder:
        raise SettingsError(f"{what}: {path} is a {'file' if folder else 'folder'}")
    if not folder and os.path.exists(path) and is_stream(path):
        return
    above = (path, *path.parents)
    parent = next(place for place in above if os.path.exists(place) and (place != path or folder))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise SettingsError(f"{what}: cannot write below {parent}; give another place, or ask for permission")


def find_page(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return where the page will be written; SettingsError also where the package that makes it is not installed."""
    path = find_output(values, flag, directory)
    if path is not None and importlib.util.find_spec("jinja2") is None:
        raise SettingsError(
            f"{flag}={path} needs the package jinja2, which is not installed: pip install 'pytest-llmbench[html]'"
        )
    return path


def find_history(values: Mapping[str, Any], flag: str, directory: Path) -> StoreLocation | None:
    """Return where the history is, None where none is asked for or nothing is judged; SettingsError where it cannot be
    used."""
    text = None if values.get("llmb_record") else get_text(values, flag)
    if not text:
        return None
    from pytest_llmbench.history.store import locate_store

    try:
        return locate_store(text, directory)
    except HistoryError as error:
        raise SettingsError(state_value(values, flag, error)) from None


def find_readable(flag: str, path: object, directory: Path) -> Path:
    """Return where logs are read from: a path that exists, a URL as a path, or `<stdin>` for `-`.

    SettingsError for what cannot be read as such: no package for a protocol, a standard input that nothing is piped to.
    """
    from pytest_llmbench.core.formatting import is_url
    from pytest_llmbench.logs.sources import remote, stores

    if str(path).strip() == "-":
        return stores.check_input(flag, sys.stdin)
    url = is_url(str(path))
    return remote.check_url(flag, str(path)) if url else find_existing(f"{flag}={path}", path, directory)


def find_existing(what: str, value: object, directory: Path) -> Path:
    """Return a path that exists; SettingsError names the part that does not, and the nearest name."""
    path = _make_path(what, value, directory)
    try:
        if path.exists():
            return path
    except OSError as error:  # no permission, a name that is too long
        raise SettingsError(f"{what}: {error.strerror}, expected a path that can be looked at") from error
    if path.is_symlink():
        raise SettingsError(f"{what}: a broken link, to {os.readlink(path)}")
    parent = next(parent for parent in path.parents if parent.exists())
    missing = path.relative_to(parent).parts[0]
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    raise SettingsError(f"{what} does not exist: {parent} has no {missing!r}{did_you_mean(missing, names)}")


def _make_path(what: str, value: object, directory: Path) -> Path:
    """Return a path below `directory`; SettingsError for an empty one, with `what` was given as it was written."""
    if not str(value).strip():
        raise SettingsError(f"{what} is empty: give a path")
    return directory / expand_home(str(value))


def _find_folder(what: str, value: object, directory: Path) -> Path:
    path = find_existing(what, value, directory)
    if not path.is_dir():
        raise SettingsError(f"{what}: {path} is a file; give the folder that holds it")
    return path
