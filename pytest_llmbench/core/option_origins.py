"""Where the value of an option was written: on the command line, in PYTEST_ADDOPTS, in
pytest's configuration file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_llmbench.core.option import name_destination


class Written(StrEnum):
    """Where a value was written."""

    TYPED = "typed"
    ENVIRONMENT = "PYTEST_ADDOPTS"
    ADDOPTS = "addopts"
    ELSEWHERE = "elsewhere"  # in a file of arguments (`@FILE`), or set by a conftest
    INI = "ini"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the value of an option was written; `name` is the option or the ini key,
    `file` the configuration file."""

    written: Written
    name: str
    file: str = ""

    @property
    def typed(self) -> bool:
        """Whether somebody typed it for this session."""
        return self.written is Written.TYPED

    def __str__(self) -> str:
        place = {
            Written.TYPED: "",
            Written.ENVIRONMENT: " in PYTEST_ADDOPTS",
            Written.ADDOPTS: f" in addopts of {self.file}"
            if self.file
            else " in addopts",
            Written.ELSEWHERE: " of a conftest or an @file",
            Written.INI: f" in {self.file or 'the ini file'}",
        }
        return f"{self.name}{place[self.written]}"


Origins = Mapping[str, Origin]
"""By option (`--llmb-tolerance`) and by ini key (`llmb_tolerance`) where each that was
given was written."""

NO_ORIGINS: Origins = {}


def find_option_origins(
    flags: Sequence[str], arguments: Mapping[Written, Sequence[str]], file: str
) -> Origins:
    """Return where the options that were given were written.

    `arguments` are those of each place, that which counts before all others first;
    `file` is pytest's configuration.
    """
    by_place = {
        place: {argument.partition("=")[0] for argument in there}
        for place, there in arguments.items()
    }

    def place_of(flag: str) -> Written:
        return next(
            (place for place, there in by_place.items() if flag in there),
            Written.ELSEWHERE,
        )

    return {flag: Origin(place_of(flag), flag, file) for flag in flags}


def find_ini_origins(
    keys: Sequence[str], overrides: Sequence[str], typed: Sequence[str], file: str
) -> Origins:
    """Return where ini keys were written: the `keys` in the file, `overrides`
    (`llmb_trend=fail`) behind `-o`."""
    origins = {key: Origin(Written.INI, key, file) for key in keys}
    for override in overrides:
        key = override.partition("=")[0]
        at = (
            Written.TYPED
            if any(override in argument for argument in typed)
            else Written.ADDOPTS
        )
        origins[key] = Origin(at, f"-o {key}", file)
    return origins


def find_origin(origins: Origins, flag: str) -> Origin | None:
    """Return where the value of an option that counts was written; None where nothing
    says it."""
    return origins.get(flag) or origins.get(name_destination(flag))


def format_value(origins: Origins, flag: str, value: object) -> str:
    """Return a value as it was written, with the place where that is not the command
    line, for messages: `pytest.ini: llmb_tolerance = 4x`."""
    origin = find_origin(origins, flag)
    if origin is None or origin.typed:
        name = origin.name if origin else flag
        return f"{name}={value}"
    if origin.written is Written.INI:
        return f"{origin.file or 'ini file'}: {origin.name} = {value}"
    return f"{origin.file + ': addopts' if origin.written is Written.ADDOPTS else origin.written}: {origin.name}={value}"
