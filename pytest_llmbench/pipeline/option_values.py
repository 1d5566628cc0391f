"""From the text of an option to its value, with a message for what it cannot be."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_llmbench.core.errors import HistoryError, SettingsError, did_you_mean
from pytest_llmbench.core.option_origins import NO_ORIGINS, Origin, Origins, Written, stated
from pytest_llmbench.core.options import OPTIONS, destination

if TYPE_CHECKING:
    from pytest_llmbench.history.location import StoreLocation

Converted = TypeVar("Converted")

DAYS = {
    **dict.fromkeys(("d", "day", "days"), 1),
    **dict.fromkeys(("w", "week", "weeks"), 7),
    **dict.fromkeys(("mo", "month", "months"), 31),
    **dict.fromkeys(("y", "year", "years"), 366),
}
"""The units in which it is said how long something is kept, in days: rather too many than too few."""

MINUTES_OR_HOURS = ("m", "min", "minute", "minutes", "h", "hour", "hours", "s", "second", "seconds")


class OptionValues(ChainMap[str, Any]):
    """The values of options by `dest`: those that were given as options, and behind them those of ini keys."""

    def __init__(self, given: Mapping[str, Any], ini: Mapping[str, Any], origins: Origins = NO_ORIGINS) -> None:
        """Take both layers, and where each value was written."""
        super().__init__(dict(given), dict(ini))
        self.origins = origins


def origins_of(values: Mapping[str, Any]) -> Origins:
    """Return where the values were written; of other mappings than `OptionValues` only which ones are ini keys'."""
    if isinstance(values, OptionValues):
        return values.origins
    ini = values.maps[1] if isinstance(values, ChainMap) and len(values.maps) > 1 else {}
    return {name: Origin(Written.INI, name) for name, given in ini.items() if given}


def layers(values: Mapping[str, Any]) -> tuple[OptionValues, OptionValues]:
    """Return what was given as options, and what ini keys say."""
    given, ini = (*values.maps, {})[:2] if isinstance(values, ChainMap) else (values, {})
    origins = origins_of(values)
    keys = {name: origin for name, origin in origins.items() if name in ini}
    return OptionValues(given, {}, origins), OptionValues({}, ini, keys)


def stated_in(values: Mapping[str, Any], flag: str, given: object) -> str:
    """Return a value as it was written, for messages: `--llmb-trend=fial`, or `pytest.ini: llmb_trend = fial`."""
    return stated(origins_of(values), flag, given)


def value(values: Mapping[str, Any], flag: str) -> str | None:
    """Return what was given for an option, None for nothing or empty text."""
    given = values.get(destination(flag))
    return None if given is None or given == "" else str(given).strip()


def text(values: Mapping[str, Any], flag: str) -> str:
    """Return what was given for an option, empty for nothing."""
    return value(values, flag) or ""


def chosen(values: Mapping[str, Any], flag: str, default: str) -> str:
    """Return which of an option's choices was given; SettingsError for anything else."""
    choices = next(option.choices for option in OPTIONS if option.flag == flag)
    given = value(values, flag) or default
    if given not in choices:
        expected = f"{', '.join(choices[:-1])} or {choices[-1]}{did_you_mean(given, choices)}"
        raise SettingsError(f"{stated_in(values, flag, given)}: expected {expected}")
    return given


def converted(values: Mapping[str, Any], flag: str, convert: Callable[[str], Converted]) -> Converted | None:
    """Return what was given through a function that raises ValueError; None for nothing."""
    given = value(values, flag)
    if given is None:
        return None
    try:
        return convert(given)
    except OverflowError:
        raise SettingsError(f"{stated_in(values, flag, given)}: found a number that is too large") from None
    except ValueError as error:
        raise SettingsError(f"{stated_in(values, flag, given)}: {error}") from None


def path_of(what: str, given: object, directory: Path) -> Path:
    """Return a path below `directory`; SettingsError for an empty one, with `what` was given as it was written."""
    if not str(given).strip():
        raise SettingsError(f"{what} is empty: give a path")
    return directory / Path(str(given)).expanduser()


def existing(what: str, given: object, directory: Path) -> Path:
    """Return a path that exists; SettingsError names the part that does not, and the nearest name."""
    path = path_of(what, given, directory)
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


def readable(flag: str, given: object, directory: Path) -> Path:
    """Return where logs are read from: a path that exists, a URL as a path, or `<stdin>` for `-`.

    SettingsError for what cannot be read as such: no package for a protocol, a standard input that nothing is piped to.
    """
    from pytest_llmbench.core.urls import is_url
    from pytest_llmbench.ingest.sources import remote, standard_input

    if str(given).strip() == "-":
        return standard_input.check_input(flag, sys.stdin)
    url = is_url(str(given))
    return remote.check_url(flag, str(given)) if url else existing(f"{flag}={given}", given, directory)


def folder(what: str, given: object, directory: Path) -> Path:
    """Return a folder that exists."""
    path = existing(what, given, directory)
    if not path.is_dir():
        raise SettingsError(f"{what}: {path} is a file; give the folder that holds it")
    return path


def output(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return where a file, or for --llmb-record a folder, will be written; SettingsError where it cannot."""
    given = value(values, flag)
    if given is None:
        return None
    path = path_of(f"{flag}={given}", given, directory)
    folder_wanted = flag == "--llmb-record"
    if os.path.exists(path) and path.is_dir() is not folder_wanted:  # one that may not be looked at is not there
        raise SettingsError(f"{flag}={given}: {path} is a {'file' if folder_wanted else 'folder'}")
    above = (path, *path.parents)
    parent = next(one for one in above if os.path.exists(one) and (one != path or folder_wanted))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise SettingsError(f"{flag}={given}: cannot write below {parent}; give another place, or ask for permission")
    return path


def refuse_shared(read: Mapping[str, Path | None], written: Mapping[str, Path | None]) -> None:
    """Refuse one file under two options where the session would write it: what is written last replaces the other.

    Devices and pipes may be shared. Both map flags to places, None where one was not given. Raises SettingsError.
    """
    seen = {os.path.realpath(path): flag for flag, path in read.items() if path is not None}
    for flag, path in written.items():
        if path is None or (path.exists() and not path.is_file()):
            continue
        other = seen.setdefault(os.path.realpath(path), flag)  # a loop of links is itself
        if other != flag:
            raise SettingsError(
                f"{flag}={path}: {other} is the same file, one would replace the other: give it another name"
            )


def with_packages(flag: str, given: Path | None, extra: str, packages: Sequence[str]) -> Path | None:
    """Return what was given; SettingsError where a package of the extra that it needs is not installed."""
    missing = [name for name in packages if given is not None and importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"{flag}={given} needs the package {missing[0]}, which is not installed: "
            f"pip install 'pytest-llmbench[{extra}]'"
        )
    return given


def history(values: Mapping[str, Any], directory: Path) -> StoreLocation | None:
    """Return where the history is, None where none is asked for; SettingsError where it cannot be used."""
    from pytest_llmbench.history.location import locate_store

    given = value(values, "--llmb-history")
    try:
        return locate_store(given, directory) if given else None
    except HistoryError as error:
        raise SettingsError(stated_in(values, "--llmb-history", error)) from None


def parse_age(text: str) -> timedelta:
    """Read `90m`, `36h`, `1.5d` or `2w`; ValueError otherwise."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdw])", text)
    if not found or float(found[1]) == 0:
        raise ValueError("expected a number above 0 with m, h, d or w (m: minutes), such as 36h")
    return (
        float(found[1])
        * {
            "m": timedelta(minutes=1),
            "h": timedelta(hours=1),
            "d": timedelta(days=1),
            "w": timedelta(weeks=1),
        }[found[2]]
    )


def parse_days(text: str) -> timedelta:
    """Read how long something is kept: `400d`, `8w`, `6mo` (or months) of 31 days, `2y` of 366; ValueError otherwise.

    Elsewhere `m` is minutes and to many people it is months: what removes things takes neither.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([a-z]+)", text, re.ASCII)
    unit = found[2] if found else ""
    if unit in MINUTES_OR_HOURS:
        raise ValueError(f"{unit!r} is no unit of a day or more: write 30d, 4w, 1mo (a month) or 1y")
    if not found or unit not in DAYS or float(found[1]) == 0:
        raise ValueError("expected a number above 0 with d, w, mo (months) or y, such as 400d")
    return float(found[1]) * timedelta(days=DAYS[unit])


def parse_window(text: str) -> timedelta | None:
    """Read an age as `parse_age` does, and `0` (`0h`) as None; ValueError otherwise."""
    return None if re.fullmatch(r"0+\s*[mhdw]?", text, re.ASCII) else parse_age(text)


def parse_moment(text: str) -> datetime:
    """Read an ISO date or time; without a zone it is local time. ValueError otherwise."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ValueError("expected a date such as 2025-11-20 or a time such as 2025-11-20T06:00") from None


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return where this user's caches are: in $XDG_CACHE_HOME or ~/.cache; None where there is neither."""
    stated = environment.get("XDG_CACHE_HOME", "")
    home = environment.get("HOME", "")
    above = stated if os.path.isabs(stated) else os.path.join(home, ".cache")
    return Path(above) / "pytest-llmbench" if os.path.isabs(above) else None
