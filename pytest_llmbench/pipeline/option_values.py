"""From the text of an option to its value, with a message for what it cannot be."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import SettingsError, did_you_mean
from pytest_llmbench.core.option_origins import NO_ORIGINS, Origin, Origins, Written, format_value
from pytest_llmbench.core.options import OPTIONS, Option, destination


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
    value = values.get(destination(flag))
    return None if value is None or value == "" else str(value).strip()


# --- fields of settings: their defaults and values follow from the table of options ----------------------


def from_option(flag: str, unset: Any = None) -> Any:
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
        return load_converter(option.resolve)(values, flag, directory)
    if option.choices:
        return choose(values, flag)
    text = get_text(values, flag)
    if text is None:
        return _read(option, option.default, unset)
    return parse_stated(values, flag, text, load_converter(option.parse)) if option.parse else text


def _read(option: Option, text: str, unset: Any) -> Any:
    if not text:
        return unset
    return load_converter(option.parse)(text) if option.parse else text


def load_converter(name: str) -> Callable[..., Any]:
    """Return a function that the table of options names."""
    converter: Callable[..., Any] = getattr(import_module("pytest_llmbench.pipeline.option_converters"), name)
    return converter


def parse_stated(values: Mapping[str, Any], flag: str, text: str, parse: Callable[[str], Any]) -> Any:
    """Return what a function makes of a text; SettingsError, with the text as it was written, where it raises."""
    try:
        return parse(text)
    except OverflowError:
        raise SettingsError(f"{state_value(values, flag, text)}: found a number that is too large") from None
    except ValueError as error:
        raise SettingsError(f"{state_value(values, flag, text)}: {error}") from None


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
