"""How options are declared, found and converted.

Above: one row of the table of options, and records whose fields are rows. Below: the
values as they were written, with their origin, and the converters that rows name. An
idle session of pytest imports this module: it loads nothing but what pytest loads
anyway, and the functions import what they need.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, dataclass_transform

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Tolerance
    from pytest_llmbench.core.job_records import PreflightCheck
    from pytest_llmbench.core.stall_limits import StallLimits

MINUTES = {"m": 1, "h": 60, "d": 24 * 60, "w": 7 * 24 * 60}
"""The units of an age, in minutes."""

LARGEST_SEQUENCE = 3
"""The sequence of looks is calibrated for one run, and three: docs/statistics.md."""

NODES = r"[A-Za-z0-9][A-Za-z0-9_.,\[\]-]*"
"""The pattern of nodes as Slurm writes them."""

EXPECTED_NODES = "nodes as Slurm writes them, such as n7 or n[1-4]"

SUITES = (".yaml", ".yml")
"""The suffixes of suite files; no pattern ends in them."""


class Option:
    """One row: a command line option, and its ini key if a repository may set it."""

    def __init__(
        self,
        usage: str,
        meaning: str,
        *,
        default: str = "",
        shown: str = "",
        unset: Any = None,
        repeats: bool = False,
        ini: str = "",
        choices: tuple[str, ...] = (),
        alone: str = "",
        parse: Callable[[str], Any] | None = None,
        find: Callable[..., Any] | None = None,
        more: str = "",
    ) -> None:
        """`usage` begins with the flag, or with the ini key if there is no flag.

        Texts follow argparse: `%%` is a percent sign.
        """
        self.flag, _, self.metavar = usage.partition("=")
        self.has_flag = usage.startswith("--")
        self.dest = name_destination(self.flag)
        """The name under which pytest stores the value; its ini key is the same."""
        self.meaning = meaning
        self.default = default
        """As a user would write it, or empty."""
        self.shown = shown or default.replace("%", "%%")
        """The default in words."""
        self.shown = self.shown or ("none" if self.metavar else "no")
        self.help = f"{meaning} (default: {self.shown})."
        self.is_flag = not self.metavar
        self.unset = () if repeats else False if self.is_flag else unset
        """The value of the field without an option, an ini key and a default."""
        self.repeats = repeats
        self.choices = choices
        self.ini = ini
        """The type of its ini key for pytest; empty for a command line option only."""
        self.alone = alone
        """The value of an option that is typed without a value."""
        self.parse = parse
        """Converts a text; raises ValueError for an invalid one."""
        self.find = find
        """Converts what needs more than one text, such as a path; raises SettingsError.

        It is called with all values, this row and the folder of relative paths.
        """
        self.more = more
        """The page of docs/ with details."""

    def make_default(self) -> Any:
        """Return the value of the field if the option is not given."""
        return self.convert(self.default) if self.default else self.unset

    def convert(self, text: str) -> Any:
        """Convert a text; ValueError states what was expected."""
        if self.choices and text not in self.choices:
            from pytest_llmbench.core.errors import did_you_mean

            allowed = f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
            nearest = did_you_mean(text, self.choices)
            raise ValueError(f"expected {allowed}{nearest}")
        return self.parse(text) if self.parse else text


def name_destination(flag: str) -> str:
    """Return the name under which pytest stores the value of an option."""
    return flag.removeprefix("--").replace("-", "_")


def declare(usage: str, meaning: str, **properties: Any) -> Any:
    """Declare a field of `OptionRecord` by its row; Any, since the field has its
    type."""
    return Option(usage, meaning, **properties)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class OptionRecord:  # noqa: PLW1641 (no key of a dictionary)
    """A frozen record whose fields are options, or annotated class attributes.

    A dataclass would compile code in every session of everybody's pytest: with the
    fields of this module 27 million instructions, half as much again as the whole
    plugin needs in an idle session.
    """

    def __init__(self, **values: Any) -> None:
        """Set the fields; those without a value get their default."""
        defaults = list_defaults(type(self))
        if unknown := values.keys() - defaults.keys():
            raise TypeError(f"{type(self).__name__} has no field {min(unknown)}")
        self.__dict__.update(defaults, **values)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed fields."""
        return type(self)(**{**self.__dict__, **changes})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __repr__(self) -> str:
        defaults = list_defaults(type(self))
        changed = {
            name: value
            for name, value in self.__dict__.items()
            if value != defaults[name]
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")


def list_defaults(kind: type[OptionRecord]) -> Mapping[str, Any]:
    """Return the default of each field of a record, in the order of declaration."""
    bases = [base for base in reversed(kind.__mro__) if issubclass(base, OptionRecord)]
    declared = {
        name: getattr(kind, name) for base in bases for name in base.__annotations__
    }
    return {
        name: value.make_default() if isinstance(value, Option) else value
        for name, value in declared.items()
    }


def list_rows(kind: type[OptionRecord]) -> dict[str, Option]:
    """Return the rows of a record by the name of the field."""
    bases = [vars(base) for base in reversed(kind.__mro__)]
    return {
        name: row
        for base in bases
        for name, row in base.items()
        if isinstance(row, Option)
    }


# --- where a value was written --------------------------------------------------------


class Written:
    """Where a value was written: constants, since an enum would cost every idle
    session."""

    TYPED = "typed"
    ENVIRONMENT = "PYTEST_ADDOPTS"
    ADDOPTS = "addopts"
    ELSEWHERE = "elsewhere"  # in a file of arguments (`@FILE`), or set by a conftest
    INI = "ini"


class Origin:
    """The place of a value: `name` is the option or the ini key, `file` the
    configuration file."""

    def __init__(self, written: str, name: str, file: str = "") -> None:
        self.written = written
        self.name = name
        self.file = file

    @property
    def typed(self) -> bool:
        """Whether somebody typed it for this session."""
        return self.written == Written.TYPED

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
    flags: Sequence[str], arguments: dict[str, Sequence[str]], file: str
) -> Origins:
    """Return the origin of each of the given options.

    `arguments` are by place, the decisive place first; `file` is pytest's
    configuration.
    """
    places: dict[str, str] = {}
    for place, there in reversed(arguments.items()):
        typed = (argument.partition("=")[0] for argument in there)
        places |= dict.fromkeys(typed, place)
    return {
        flag: Origin(places.get(flag, Written.ELSEWHERE), flag, file) for flag in flags
    }


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
    if origin.written == Written.INI:
        return f"{origin.file or 'ini file'}: {origin.name} = {value}"
    return f"{origin.file + ': addopts' if origin.written == Written.ADDOPTS else origin.written}: {origin.name}={value}"


# --- values as they were written, and the fields made from them -----------------------


class OptionValues(dict[str, Any]):
    """Values by `dest`: options come before ini keys. None and "" are not given."""

    def __init__(
        self,
        typed: Mapping[str, Any],
        ini: Mapping[str, Any],
        origins: Origins | None = None,
    ) -> None:
        """`origins` has the place of each value; without it ini keys are from "the ini
        file"."""
        super().__init__({**ini, **typed})
        self.layers = typed, ini
        stated = {
            name: Origin(Written.INI, name) for name, value in ini.items() if value
        }
        self.origins = stated if origins is None else origins

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> OptionValues:
        """Return values that may have no layers and no origins."""
        return values if isinstance(values, cls) else cls(values, {})

    def split_layers(self) -> tuple[OptionValues, OptionValues]:
        """Return the options alone and the ini keys alone."""
        typed, ini = self.layers
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
            problem = "found a number that is too large"
        except ValueError as error:
            problem = str(error)
        return _refuse(f"{self.state(flag, text)}: {problem}")


def refuse_blank(values: Mapping[str, Any]) -> None:
    """Raise SettingsError for an option whose value is blank; `values` are by
    `dest`."""
    for name, value in values.items():
        if isinstance(value, str) and not value.strip():
            flag = f"--{name.replace('_', '-')}"
            _refuse(f"{flag}= is empty: give a value, or leave the option out")


def resolve_fields(
    kind: type[OptionRecord], values: OptionValues, directory: Path
) -> dict[str, Any]:
    """Return the values of the fields that are options, by name; paths are relative to
    `directory`.

    Raises SettingsError for the first invalid value.
    """
    return {
        name: _resolve_option(option, values, directory)
        for name, option in list_rows(kind).items()
    }


def _resolve_option(option: Option, values: OptionValues, directory: Path) -> Any:
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
    return values.parse(option.flag, text, option.convert)


# --- one text: raises ValueError with what was expected -------------------------------


def parse_age(text: str) -> timedelta:
    """Read `90m`, `36h`, `1.5d` or `2w`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdw])", text)
    if not match or float(match[1]) == 0:
        raise ValueError(
            "expected a number above 0 with m, h, d or w (m: minutes), such as 36h"
        )
    return timedelta(minutes=float(match[1]) * MINUTES[match[2]])


def parse_stall_limit(text: str) -> StallLimits:
    """Read `auto`, `none` or an age."""
    from pytest_llmbench.core.stall_limits import StallLimits

    if text in ("auto", "none"):
        return StallLimits(cancels=text == "auto")
    try:
        return StallLimits(parse_age(text).total_seconds())
    except ValueError:
        raise ValueError("expected auto, none, or a time such as 45m or 2h") from None


def parse_window(text: str) -> timedelta | None:
    """Read an age, or None from `0` (`0h`)."""
    return None if re.fullmatch(r"0+\s*[mhdw]?", text, re.ASCII) else parse_age(text)


def parse_timestamp(text: str) -> datetime:
    """Read an ISO date or time; without a zone it is local time."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        expected = "a date such as 2025-11-20 or a time such as 2025-11-20T06:00"
        raise ValueError(f"expected {expected}") from None


def parse_percentage(text: str) -> float:
    """Read `1%` or `0.01` as a fraction."""
    from pytest_llmbench.core.tolerance import parse_fraction

    return parse_fraction(text, expected="a percentage such as 1% or 0.5%")


def parse_count(text: str, smallest: int = 1, largest: int = 10**6) -> int:
    """Read a whole number between two bounds, both included."""
    if not (text.isascii() and text.isdecimal() and smallest <= int(text) <= largest):
        raise ValueError(f"expected a whole number from {smallest} to {largest}")
    return int(text)


def parse_repeats(text: str) -> int:
    """Read the number of runs that may count for a verdict."""
    return parse_count(text, largest=LARGEST_SEQUENCE)


def parse_retries(text: str) -> int:
    """Read the number of times that a job is started again."""
    return parse_count(text, smallest=0, largest=10)


def parse_hours(text: str) -> float:
    """Read a number of GPU-hours."""
    is_number = text.replace(".", "", 1).isdecimal() and text.isascii()
    number = float(text) if is_number else 0.0
    if not 0 < number < 1e9:
        raise ValueError("expected a number of GPU-hours above 0, such as 200")
    return number


def parse_nodes(text: str) -> str:
    """Read nodes as Slurm writes them, such as `n7,n[12-14]`."""
    if not re.fullmatch(NODES, text):
        raise ValueError(f"expected {EXPECTED_NODES}")
    return text


def parse_checks(text: str) -> tuple[PreflightCheck, ...]:
    """Read names of checks that may be ignored, separated by commas."""
    from pytest_llmbench.core.errors import did_you_mean
    from pytest_llmbench.core.job_records import NEVER_IGNORED, PreflightCheck

    names = [name.strip() for name in text.split(",")]
    allowed = [check.value for check in PreflightCheck if check not in NEVER_IGNORED]
    for name in names:
        if name in NEVER_IGNORED:
            reason = NEVER_IGNORED[PreflightCheck(name)]
            raise ValueError(f"{name} cannot be overruled: {reason}")
        if name not in allowed:
            expected = f"expected some of {', '.join(allowed)}"
            raise ValueError(
                f"no check {name!r}{did_you_mean(name, allowed)}: {expected}"
            )
    return tuple(PreflightCheck(name) for name in dict.fromkeys(names))


# --- more than one text: raises SettingsError with the value as it was written --------


def list_folders(
    values: OptionValues, option: Option, directory: Path
) -> tuple[Path, ...]:
    """Return folders that exist."""
    paths = values.get(option.dest) or ()
    return tuple(
        _find_folder(values.state(option.flag, path), path, directory) for path in paths
    )


def list_tolerances(
    values: OptionValues, option: Option, _directory: Path
) -> tuple[Tolerance, ...]:
    """Merge the tolerances of the command line with those of the ini file."""
    from pytest_llmbench.core.baseline_records import ToleranceSource
    from pytest_llmbench.core.tolerance import merge_tolerances, parse_tolerances

    typed, ini = values.split_layers()
    layers: list[tuple[Tolerance, ...]] = []
    for layer, source in ((ini, ToleranceSource.INI), (typed, ToleranceSource.OPTION)):
        text = layer.get_text(option.flag)
        if text is not None:
            parse = partial(parse_tolerances, source=source)
            layers.append(layer.parse(option.flag, text, parse))
    return merge_tolerances(*layers)


def list_patterns(
    values: OptionValues, option: Option, directory: Path
) -> tuple[str, ...]:
    """Expand files of patterns, one a line, `#` starts a comment; skip suite files."""
    patterns: list[str] = []
    for pattern in map(str, values.get(option.dest) or ()):
        if Path(pattern).suffix.lower() in SUITES:
            continue
        stated = values.state(option.flag, pattern)
        patterns += _read_patterns(stated, pattern, directory)
        if not patterns[-1]:
            _refuse(f"{stated} is empty: give an id, a pattern, a file or all")
    return tuple(patterns)


def _read_patterns(stated: str, pattern: str, directory: Path) -> list[str]:
    """Return the patterns in a file of this name, or the pattern itself."""
    from pytest_llmbench.core.errors import SettingsError
    from pytest_llmbench.core.userfile import expand_home, read_text_if_file

    text = read_text_if_file(directory / expand_home(pattern), stated, SettingsError)
    if text is None:
        return [pattern.strip()]
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if not any(lines):
        _refuse(f"{stated}: the file names no configuration")
    return [line for line in lines if line]


def find_file(values: OptionValues, option: Option, directory: Path) -> Path | None:
    """Return a file that exists, or None if the option is not given."""
    value = _get_single(values, option)
    if not value:
        return None
    return find_existing(values.state(option.flag, value), value, directory)


def find_journal(values: OptionValues, option: Option, directory: Path) -> Path | None:
    """Return the folder of the journal, or None if the option is not given.

    It has to exist for a session that continues an earlier one; a new session makes it.
    """
    value = _get_single(values, option)
    if value is None:
        return None
    stated = values.state(option.flag, value)
    path = make_path(stated, value, directory)
    if values.get("llmb_collect") or values.get("llmb_resume"):
        return _find_folder(stated, value, directory)
    _require_writable(stated, path, folder=True)
    return path


def find_cluster(values: OptionValues, option: Option, directory: Path) -> Path | None:
    """Return the given cluster file, or `cluster.yaml` if there is one."""
    if values.get(option.dest):
        return find_file(values, option, directory)
    default = directory / "cluster.yaml"
    if default.exists() or default.is_symlink():  # a broken link is an error
        return find_existing(f"{option.flag}={default}", default, directory)
    return None


def find_output(values: OptionValues, option: Option, directory: Path) -> Path | None:
    """Return the path of a file, or for --llmb-record of a folder, that can be
    written."""
    text = values.get_text(option.flag)
    if text is None:
        return None
    stated = f"{option.flag}={text}"
    path = make_path(stated, text, directory)
    _require_writable(stated, path, folder=option.flag == "--llmb-record")
    return path


def find_page(values: OptionValues, option: Option, directory: Path) -> Path | None:
    """Return the path of an HTML page, if the package that makes it is installed."""
    import importlib.util

    path = find_output(values, option, directory)
    if path is not None and importlib.util.find_spec("jinja2") is None:
        remedy = "pip install 'pytest-llmbench[html]'"
        _refuse(
            f"{option.flag}={path} needs the package jinja2, which is not installed: {remedy}"
        )
    return path


# --- paths ----------------------------------------------------------------------------


def _refuse(problem: str) -> NoReturn:
    from pytest_llmbench.core.errors import SettingsError

    raise SettingsError(problem)


def _get_single(values: OptionValues, option: Option) -> object:
    """Return the only path that was given, or None."""
    value = values.get(option.dest)
    # Pytest's only type for one path is a list, relative to the configuration file.
    paths = value if isinstance(value, list) else [value] if value is not None else []
    if len(paths) > 1:
        stated = values.state(option.flag, " ".join(map(str, paths)))
        _refuse(f"{stated}: found {len(paths)} paths, expected one")
    return next(iter(paths), None)


def make_path(stated: str, value: object, directory: Path) -> Path:
    """Return a path relative to `directory`; `stated` is the option as it was
    written."""
    from pytest_llmbench.core.userfile import expand_home

    if not str(value).strip():
        _refuse(f"{stated} is empty: give a path")
    return directory / expand_home(str(value))


def find_existing(stated: str, value: object, directory: Path) -> Path:
    """Return a path that exists; the error names its first missing folder."""
    from pytest_llmbench.core.errors import did_you_mean

    path = make_path(stated, value, directory)
    try:
        if path.exists():
            return path
    except OSError as error:  # no permission, a name that is too long
        _refuse(f"{stated}: {error.strerror}, expected a path that can be looked at")
    if path.is_symlink():
        _refuse(f"{stated}: a broken link, to {os.readlink(path)}")
    parent = next(parent for parent in path.parents if parent.exists())
    missing = path.relative_to(parent).parts[0]
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    hint = did_you_mean(missing, names)
    _refuse(f"{stated} does not exist: {parent} has no {missing!r}{hint}")


def _find_folder(stated: str, value: object, directory: Path) -> Path:
    path = find_existing(stated, value, directory)
    if not path.is_dir():
        _refuse(f"{stated}: {path} is a file; give the folder that holds it")
    return path


def _require_writable(stated: str, path: Path, *, folder: bool) -> None:
    """Refuse a file, or a folder, that cannot be written."""
    from pytest_llmbench.core.userfile import is_stream

    # os.path.exists, since Path.exists raises PermissionError in a closed folder.
    if os.path.exists(path) and path.is_dir() is not folder:
        _refuse(f"{stated}: {path} is a {'file' if folder else 'folder'}")
    if not folder and os.path.exists(path) and is_stream(path):
        return
    above = (path, *path.parents)
    parent = next(
        place for place in above if os.path.exists(place) and (place != path or folder)
    )
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        remedy = "give another place, or ask for permission"
        _refuse(f"{stated}: cannot write below {parent}; {remedy}")
