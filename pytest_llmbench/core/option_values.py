"""The values of options as they were written, and the fields that follow from them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import SettingsError, did_you_mean
from pytest_llmbench.core.option import (
    Option,
    OptionRecord,
    list_rows,
    name_destination,
)
from pytest_llmbench.core.option_origins import Origin, Origins, Written, format_value


class OptionValues(ChainMap[str, Any]):
    """Values by `dest`: options come before ini keys. None and "" are not given."""

    def __init__(
        self,
        typed: Mapping[str, Any],
        ini: Mapping[str, Any],
        origins: Origins | None = None,
    ) -> None:
        """`origins` has the place of each value; without it ini keys are from "the ini
        file"."""
        super().__init__(dict(typed), dict(ini))
        stated = {
            name: Origin(Written.INI, name) for name, value in ini.items() if value
        }
        self.origins = stated if origins is None else origins

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> OptionValues:
        """Return values that may have no layers and no origins."""
        if isinstance(values, cls):
            return values
        layers = values.maps if isinstance(values, ChainMap) else [values]
        return cls(*(*layers, {})[:2])

    def split_layers(self) -> tuple[OptionValues, OptionValues]:
        """Return the options alone and the ini keys alone."""
        typed, ini = self.maps[:2]
        keys = {name: origin for name, origin in self.origins.items() if name in ini}
        return OptionValues(typed, {}, self.origins), OptionValues({}, ini, keys)

    def get_text(self, flag: str) -> str | None:
        """Return the text of an option, or None if it is not given."""
        value = self.get(name_destination(flag))
        return None if value is None or value == "" else str(value).strip()

    def state(self, flag: str, value: object) -> str:
        """Return a value as it was written: `--llmb-trend=fial`, or `pytest.ini:
        llmb_trend = fial`."""
        return format_value(self.origins, flag, value)

    def parse(self, flag: str, text: str, parse: Callable[[str], Any]) -> Any:
        """Convert a text; SettingsError shows it as it was written."""
        try:
            return parse(text)
        except OverflowError:
            raise SettingsError(
                f"{self.state(flag, text)}: found a number that is too large"
            ) from None
        except ValueError as error:
            raise SettingsError(f"{self.state(flag, text)}: {error}") from None


def refuse_blank(values: Mapping[str, Any]) -> None:
    """Raise SettingsError for an option whose value is blank; `values` are by
    `dest`."""
    for name, value in values.items():
        if isinstance(value, str) and not value.strip():
            flag = f"--{name.replace('_', '-')}"
            raise SettingsError(
                f"{flag}= is empty: give a value, or leave the option out"
            )


def resolve_fields(
    kind: type[OptionRecord], values: OptionValues, directory: Path
) -> dict[str, Any]:
    """Return the values of the fields that are options, by name; paths are relative to
    `directory`.

    Raises SettingsError for the first invalid value.
    """
    return {
        name: resolve_option(option, values, directory)
        for name, option in list_rows(kind).items()
    }


def resolve_option(option: Option, values: OptionValues, directory: Path) -> Any:
    """Return the value of one option. Raises SettingsError."""
    if option.find:
        return option.find(values, option, directory)
    if option.is_flag:
        return bool(values.get(option.dest))
    if option.repeats:
        return tuple(map(str, values.get(option.dest) or ()))
    text = values.get_text(option.flag)
    if text is None:
        return option.make_default()
    if option.choices:
        return _choose(option, text, values)
    return values.parse(option.flag, text, option.parse) if option.parse else text


def _choose(option: Option, value: str, values: OptionValues) -> str:
    if value not in option.choices:
        expected = f"{', '.join(option.choices[:-1])} or {option.choices[-1]}{did_you_mean(value, option.choices)}"
        raise SettingsError(f"{values.state(option.flag, value)}: expected {expected}")
    return value
