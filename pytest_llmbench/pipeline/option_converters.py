"""From the texts of options to their values: the functions that the table of options names."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import HistoryError, SettingsError, did_you_mean
from pytest_llmbench.core.options import destination
from pytest_llmbench.core.tolerance import merge_tolerances, parse_fraction, parse_tolerances
from pytest_llmbench.core.yamlfile import read_text_if_file
from pytest_llmbench.pipeline.option_values import get_text, parse_stated, split_layers, state_value

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Tolerance
    from pytest_llmbench.history.location import StoreLocation

DAYS = {
    **dict.fromkeys(("d", "day", "days"), 1),
    **dict.fromkeys(("w", "week", "weeks"), 7),
    **dict.fromkeys(("mo", "month", "months"), 31),
    **dict.fromkeys(("y", "year", "years"), 366),
}
"""The units in which it is said how long something is kept, in days: rather too many than too few."""

SUITES = (".yaml", ".yml")
"""The names of suite files, which no pattern ends in."""

LARGEST_SEQUENCE = 3
"""The sequence of looks is calibrated for one run, and three: docs/statistics.md."""

MINUTES_OR_HOURS = ("m", "min", "minute", "minutes", "h", "hour", "hours", "s", "second", "seconds")


# --- values that a text is not enough for: what `resolve` of the table names -------------------------------


def list_logs(values: Mapping[str, Any], flag: str, directory: Path) -> tuple[Path, ...]:
    """Return where logs are read from."""
    return tuple(find_readable(flag, path, directory) for path in values.get(destination(flag)) or ())


def list_folders(values: Mapping[str, Any], flag: str, directory: Path) -> tuple[Path, ...]:
    """Return folders that exist."""
    paths = values.get(destination(flag)) or ()
    return tuple(_find_folder(state_value(values, flag, path), path, directory) for path in paths)


def list_tolerances(values: Mapping[str, Any], flag: str, _directory: Path) -> tuple[Tolerance, ...]:
    """Return the tolerances of the command line and, where it says none of the same, of the ini file."""
    typed, ini = split_layers(values)
    layers = []
    for layer, source in ((ini, "ini"), (typed, flag)):
        text = get_text(layer, flag)
        layers.append(
            parse_stated(layer, flag, text, partial(parse_tolerances, source=source)) if text is not None else ()
        )
    return merge_tolerances(*layers)


def list_patterns(values: Mapping[str, Any], flag: str, directory: Path) -> tuple[str, ...]:
    """Expand files of patterns, one a line, `#` starts a comment; suite files are left to the catalogue."""
    patterns: list[str] = []
    for pattern in map(str, values.get(destination(flag)) or ()):
        what = state_value(values, flag, pattern)
        path = directory / Path(pattern).expanduser()
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
    suites = [path for path in values.get(destination(flag)) or () if Path(str(path)).suffix.lower() in SUITES]
    return tuple(find_existing(state_value(values, flag, path), path, directory) for path in suites)


def list_recipes(values: Mapping[str, Any], flag: str, directory: Path) -> tuple[tuple[str, Path], ...]:
    """Return the names of recipes with their folders."""
    recipes = []
    for value in values.get(destination(flag)) or ():
        name, equals, folder = str(value).partition("=")
        if not (name and equals and folder):
            raise SettingsError(f"{flag}={value}: expected NAME=DIR, such as grok1-25.05=/lustre/recipes/grok1")
        recipes.append((name, _make_path(f"{flag}={value}", folder, directory)))
    return tuple(recipes)


def find_file(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return a file that exists, None where none was given; an ini file may name one."""
    value = values.get(destination(flag))
    paths = value if isinstance(value, list) else [value] if value else []
    if len(paths) > 1:
        stated = state_value(values, flag, " ".join(map(str, paths)))
        raise SettingsError(f"{stated}: found {len(paths)} paths, expected one")
    return find_existing(state_value(values, flag, paths[0]), paths[0], directory) if paths else None


def find_cluster(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return the file of the cluster: what was given, or cluster.yaml where there is one."""
    value = values.get(destination(flag))
    if isinstance(value, Sequence) and not isinstance(value, str):  # an ini value is a list of paths
        value = value[-1] if value else None
    if value:
        return find_existing(state_value(values, flag, value), value, directory)
    default = directory / "cluster.yaml"
    there = default.exists() or default.is_symlink()  # a link to nothing is a mistake, and told
    return find_existing(f"{flag}={default}", default, directory) if there else None


def find_output(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return where a file, or for --llmb-record a folder, will be written; SettingsError where it cannot."""
    text = get_text(values, flag)
    if text is None:
        return None
    path = _make_path(f"{flag}={text}", text, directory)
    folder_wanted = flag == "--llmb-record"
    if os.path.exists(path) and path.is_dir() is not folder_wanted:  # one that may not be looked at is not there
        raise SettingsError(f"{flag}={text}: {path} is a {'file' if folder_wanted else 'folder'}")
    above = (path, *path.parents)
    parent = next(place for place in above if os.path.exists(place) and (place != path or folder_wanted))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise SettingsError(f"{flag}={text}: cannot write below {parent}; give another place, or ask for permission")
    return path


def find_page(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return where the page will be written; SettingsError also where a package that makes it is not installed."""
    path = find_output(values, flag, directory)
    missing = [name for name in ("jinja2", "leather") if path is not None and importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"{flag}={path} needs the package {missing[0]}, which is not installed: pip install 'pytest-llmbench[html]'"
        )
    return path


def find_history(values: Mapping[str, Any], flag: str, directory: Path) -> StoreLocation | None:
    """Return where the history is, None where none is asked for or nothing is judged; SettingsError where it cannot be
    used."""
    from pytest_llmbench.history.location import locate_store

    text = None if values.get("llmb_record") else get_text(values, flag)
    try:
        return locate_store(text, directory) if text else None
    except HistoryError as error:
        raise SettingsError(state_value(values, flag, error)) from None


def find_readable(flag: str, path: object, directory: Path) -> Path:
    """Return where logs are read from: a path that exists, a URL as a path, or `<stdin>` for `-`.

    SettingsError for what cannot be read as such: no package for a protocol, a standard input that nothing is piped to.
    """
    from pytest_llmbench.core.formatting import is_url
    from pytest_llmbench.ingest.sources import remote, standard_input

    if str(path).strip() == "-":
        return standard_input.check_input(flag, sys.stdin)
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
    return directory / Path(str(value)).expanduser()


def _find_folder(what: str, value: object, directory: Path) -> Path:
    path = find_existing(what, value, directory)
    if not path.is_dir():
        raise SettingsError(f"{what}: {path} is a file; give the folder that holds it")
    return path


def parse_age(text: str) -> timedelta:
    """Read `90m`, `36h`, `1.5d` or `2w`; ValueError otherwise."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdw])", text)
    if not match or float(match[1]) == 0:
        raise ValueError("expected a number above 0 with m, h, d or w (m: minutes), such as 36h")
    return (
        float(match[1])
        * {
            "m": timedelta(minutes=1),
            "h": timedelta(hours=1),
            "d": timedelta(days=1),
            "w": timedelta(weeks=1),
        }[match[2]]
    )


def parse_days(text: str) -> timedelta:
    """Read how long something is kept: `400d`, `8w`, `6mo` (or months) of 31 days, `2y` of 366; ValueError otherwise.

    Elsewhere `m` is minutes and to many people it is months: what removes things takes neither.
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([a-z]+)", text, re.ASCII)
    unit = match[2] if match else ""
    if unit in MINUTES_OR_HOURS:
        raise ValueError(f"{unit!r} is no unit of a day or more: write 30d, 4w, 1mo (a month) or 1y")
    if not match or unit not in DAYS or float(match[1]) == 0:
        raise ValueError("expected a number above 0 with d, w, mo (months) or y, such as 400d")
    return float(match[1]) * timedelta(days=DAYS[unit])


def parse_window(text: str) -> timedelta | None:
    """Read an age as `parse_age` does, and `0` (`0h`) as None; ValueError otherwise."""
    return None if re.fullmatch(r"0+\s*[mhdw]?", text, re.ASCII) else parse_age(text)


def parse_moment(text: str) -> datetime:
    """Read an ISO date or time; without a zone it is local time. ValueError otherwise."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ValueError("expected a date such as 2025-11-20 or a time such as 2025-11-20T06:00") from None


def parse_percentage(text: str) -> float:
    """Read `1%` or `0.01` as a fraction; ValueError otherwise."""
    return parse_fraction(text, expected="a percentage such as 1% or 0.5%")


def parse_lower(text: str) -> str:
    """Read a name whose letters may be of any case."""
    return text.lower()


def parse_count(text: str, smallest: int = 1, largest: int = 10**6) -> int:
    """Read a whole number between two bounds, both included; ValueError otherwise."""
    if not (text.isascii() and text.isdecimal() and smallest <= int(text) <= largest):
        raise ValueError(f"expected a whole number from {smallest} to {largest}")
    return int(text)


def parse_repeats(text: str) -> int:
    """Read how many runs may count for a verdict; ValueError otherwise."""
    return parse_count(text, largest=LARGEST_SEQUENCE)


def parse_retries(text: str) -> int:
    """Read how often a job is started again; ValueError otherwise."""
    return parse_count(text, smallest=0, largest=10)


def parse_hours(text: str) -> float:
    """Read a number of GPU-hours; ValueError otherwise."""
    number = float(text) if text.replace(".", "", 1).isdecimal() and text.isascii() else 0.0
    if not 0 < number < 1e9:
        raise ValueError("expected a number of GPU-hours above 0, such as 200")
    return number


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return where this user's caches are: in $XDG_CACHE_HOME or ~/.cache; None where there is neither."""
    stated = environment.get("XDG_CACHE_HOME", "")
    home = environment.get("HOME", "")
    above = stated if os.path.isabs(stated) else os.path.join(home, ".cache")
    return Path(above) / "pytest-llmbench" if os.path.isabs(above) else None
