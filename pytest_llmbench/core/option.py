"""Declaration, lookup and conversion of options.

The first half defines an option (one row of the table in `core.options`) and the record
class whose fields are options. The second half holds the option values as written,
their origin, and the converters that the rows use. Pytest imports this module in every
session, even if the plugin is idle. Therefore it loads only modules that pytest loads
as well, and functions import what they need.
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
"""Minutes in each unit of an age."""

LARGEST_SEQUENCE = 3
"""The largest supported number of repeats.

The interim analyses are calibrated for one run and for three: see docs/explanation/statistics.md.
"""

NODES = r"[A-Za-z0-9][A-Za-z0-9_.,\[\]-]*"
"""Regular expression for a list of nodes in Slurm's notation."""

EXPECTED_NODES = "nodes as Slurm writes them, such as n7 or n[1-4]"

SUITES = (".yaml", ".yml")
"""Suffixes of suite files; a configuration pattern never ends in one."""


class Option:
    """A command line option with an optional ini key."""

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

        `shown` is the default in words. Texts follow argparse: `%%` is a percent sign.
        """
        self.flag, _, self.metavar = usage.partition("=")
        self.has_flag = usage.startswith("--")
        self.dest = name_destination(self.flag)
        """Name under which pytest stores the value, which is also the ini key."""
        self.meaning = meaning
        self.default = default
        """Default as a user would write it, or ""."""
        usual_default = "none" if self.metavar else "no"
        self.shown = shown or default.replace("%", "%%") or usual_default
        """Default in words, for help texts."""
        self.help = f"{meaning} (default: {self.shown})."
        self.is_flag = not self.metavar
        if repeats:
            unset = ()
        elif self.is_flag:
            unset = False
        self.unset = unset
        """Value of the field if there is no option, no ini key and no default."""
        self.repeats = repeats
        self.choices = choices
        self.ini = ini
        """Pytest's type of the ini key, or "" if the option has no ini key."""
        self.alone = alone
        """Value of an option that is given without a value."""
        self.parse = parse
        """Converts one text. Raises ValueError if the text is invalid."""
        self.find = find
        """Converts a value that needs more than one text, such as a path.

        It is called with all values, this option and the folder of relative paths.
        Raises SettingsError.
        """
        self.more = more
        """Page in docs/ with details."""

    def make_default(self) -> Any:
        """Return the value of the field if the option is not given."""
        return self.convert(self.default) if self.default else self.unset

    def convert(self, text: str) -> Any:
        """Convert a text. Raises ValueError with the expected value."""
        if self.choices and text not in self.choices:
            from pytest_llmbench.core.errors import did_you_mean

            *choices, last_choice = self.choices
            allowed = f"{', '.join(choices)} or {last_choice}"
            nearest = did_you_mean(text, self.choices)
            raise ValueError(f"expected {allowed}{nearest}")
        return self.parse(text) if self.parse else text


def name_destination(flag: str) -> str:
    """Return the name under which pytest stores the value of an option."""
    return flag.removeprefix("--").replace("-", "_")


def declare(usage: str, meaning: str, **properties: Any) -> Any:
    """Declare a field of an `OptionRecord` as an option.

    Returns Any, so that the field can be annotated with the type of its value.
    """
    return Option(usage, meaning, **properties)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class OptionRecord:  # noqa: PLW1641 (never used as a dictionary key)
    """A frozen record whose fields are options or annotated class attributes.

    It is not a dataclass: for these fields, a dataclass would execute 27 million
    instructions in every pytest session, 50 % more than the rest of the plugin in an
    idle session.
    """

    def __init__(self, **values: Any) -> None:
        """Set the fields; missing values get their default."""
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
        fields = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        return f"{type(self).__name__}({fields})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")


def list_defaults(kind: type[OptionRecord]) -> Mapping[str, Any]:
    """Return the default of each field of a record, in declaration order."""
    bases = [base for base in reversed(kind.__mro__) if issubclass(base, OptionRecord)]
    # The value of a declared field is an option or, without an option, its default.
    declared = {
        name: getattr(kind, name) for base in bases for name in base.__annotations__
    }
    return {
        name: value.make_default() if isinstance(value, Option) else value
        for name, value in declared.items()
    }


def list_rows(kind: type[OptionRecord]) -> dict[str, Option]:
    """Return the options of a record by field name."""
    rows: dict[str, Option] = {}
    for base in reversed(kind.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Option):
                rows[name] = value
    return rows


# --- the origin of a value ------------------------------------------------------------


class Written:
    """The sources of option values.

    These are plain constants because an enum would slow down every idle session.
    """

    TYPED = "typed"
    ENVIRONMENT = "PYTEST_ADDOPTS"
    ADDOPTS = "addopts"
    ELSEWHERE = "elsewhere"  # in an argument file (`@FILE`), or set by a conftest
    INI = "ini"


class Origin:
    """The source of an option value.

    `written` is a constant of `Written`, `name` the option or ini key, and `file`
    pytest's configuration file.
    """

    def __init__(self, written: str, name: str, file: str = "") -> None:
        self.written = written
        self.name = name
        self.file = file

    @property
    def typed(self) -> bool:
        """True if the user typed the value for this session."""
        return self.written == Written.TYPED

    def __str__(self) -> str:
        """Format for messages: `--llmb-trend in addopts of pytest.ini`."""
        of_file = f" of {self.file}" if self.file else ""
        suffixes = {
            Written.TYPED: "",
            Written.ENVIRONMENT: " in PYTEST_ADDOPTS",
            Written.ADDOPTS: f" in addopts{of_file}",
            Written.ELSEWHERE: " from a conftest or an @file",
            Written.INI: f" in {self.file or 'the ini file'}",
        }
        return f"{self.name}{suffixes[self.written]}"


Origins = Mapping[str, Origin]
"""Origin of each given value, by option (`--llmb-tolerance`) or ini key
(`llmb_tolerance`)."""

NO_ORIGINS: Origins = {}


def find_option_origins(
    flags: Sequence[str], arguments: dict[str, Sequence[str]], file: str
) -> Origins:
    """Return the origin of each given option.

    `flags` are the given options. `arguments` maps each place (a constant of `Written`)
    to its arguments, the place with the highest precedence first. `file` is pytest's
    configuration file.
    """
    place_by_flag: dict[str, str] = {}
    # A later place replaces an earlier one, so the lowest precedence comes first.
    for place, texts in reversed(arguments.items()):
        given_flags = [argument.partition("=")[0] for argument in texts]
        place_by_flag |= dict.fromkeys(given_flags, place)
    return {
        flag: Origin(place_by_flag.get(flag, Written.ELSEWHERE), flag, file)
        for flag in flags
    }


def find_ini_origins(
    keys: Sequence[str], overrides: Sequence[str], typed: Sequence[str], file: str
) -> Origins:
    """Return the origin of each ini key.

    `keys` are in the file; `overrides` such as `llmb_trend=fail` were given with `-o`.
    `typed` are the arguments of the command line.
    """
    origins = {key: Origin(Written.INI, key, file) for key in keys}
    for override in overrides:
        key, _, _ = override.partition("=")
        # "llmb_trend=fail" may be typed as "-ollmb_trend=fail".
        is_typed = any(override in argument for argument in typed)
        place = Written.TYPED if is_typed else Written.ADDOPTS
        origins[key] = Origin(place, f"-o {key}", file)
    return origins


def find_origin(origins: Origins, flag: str) -> Origin | None:
    """Return the origin of an option's effective value, or None if it is not given."""
    # The origin of an ini key is stored under the key, such as `llmb_trend`.
    return origins.get(flag) or origins.get(name_destination(flag))


def format_value(origins: Origins, flag: str, value: object) -> str:
    """Format a value as it was written, for messages: `pytest.ini: llmb_tolerance =
    4x`.

    The file or variable is included unless the value was typed.
    """
    origin = find_origin(origins, flag)
    if origin is None or origin.typed:
        name = origin.name if origin else flag
        return f"{name}={value}"
    if origin.written == Written.INI:
        return f"{origin.file or 'ini file'}: {origin.name} = {value}"
    place = origin.written
    if origin.written == Written.ADDOPTS:
        place = f"{origin.file}: addopts"
    return f"{place}: {origin.name}={value}"


# --- values as written, and the fields made from them ----------------------------------


class OptionValues(dict[str, Any]):
    """Values by `dest`; options take precedence over ini keys.

    A value of None or "" counts as not given.
    """

    def __init__(
        self,
        typed: Mapping[str, Any],
        ini: Mapping[str, Any],
        origins: Origins | None = None,
    ) -> None:
        """`origins` holds the origin of each value; by default, ini keys have no file
        name."""
        super().__init__({**ini, **typed})
        self.layers = typed, ini
        if origins is None:
            origins = {
                name: Origin(Written.INI, name) for name, value in ini.items() if value
            }
        self.origins = origins

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> OptionValues:
        """Wrap plain values, which have no layers and no origins."""
        return values if isinstance(values, cls) else cls(values, {})

    def split_layers(self) -> tuple[OptionValues, OptionValues]:
        """Return the values of the command line alone and of the ini keys alone."""
        typed, ini = self.layers
        ini_origins = {
            name: origin for name, origin in self.origins.items() if name in ini
        }
        command_line_values = OptionValues(typed, {}, self.origins)
        ini_values = OptionValues({}, ini, ini_origins)
        return command_line_values, ini_values

    def get_text(self, flag: str) -> str | None:
        """Return the text of an option, or None if it is not given."""
        value = self.get(name_destination(flag))
        if value is None or value == "":
            return None
        return str(value).strip()

    def state(self, flag: str, value: object) -> str:
        """Format a value as it was written: `--llmb-trend=fial` or `pytest.ini:
        llmb_trend = fial`."""
        return format_value(self.origins, flag, value)

    def parse(self, flag: str, text: str, parse: Callable[[str], Any]) -> Any:
        """Convert a text with `parse`, which raises ValueError for an invalid text.

        Raises SettingsError with the text as it was written.
        """
        try:
            return parse(text)
        except OverflowError:
            problem = "the number is too large"
        except ValueError as error:
            problem = str(error)
        return _refuse(f"{self.state(flag, text)}: {problem}")


def refuse_blank(values: Mapping[str, Any]) -> None:
    """Raise SettingsError if the value of an option is blank.

    `values` are by `dest`.
    """
    for name, value in values.items():
        if isinstance(value, str) and not value.strip():
            flag = f"--{name.replace('_', '-')}"
            _refuse(f"{flag}= is empty: give a value, or leave the option out")


def resolve_fields(
    kind: type[OptionRecord], values: OptionValues, directory: Path
) -> dict[str, Any]:
    """Return the value of each option field by its name.

    Paths are relative to `directory`. Raises SettingsError for the first invalid value.
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


# --- converters of one text; they raise ValueError with the expected value -------------


def parse_age(text: str) -> timedelta:
    """Parse `90m`, `36h`, `1.5d` or `2w`."""
    match = re.fullmatch(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[mhdw])", text)
    if not match or float(match["number"]) == 0:
        raise ValueError(
            "expected a number above 0 with a unit (m: minutes, h, d or w), such as 36h"
        )
    return timedelta(minutes=float(match["number"]) * MINUTES[match["unit"]])


def parse_stall_limit(text: str) -> StallLimits:
    """Parse `auto`, `none` or an age."""
    from pytest_llmbench.core.stall_limits import StallLimits

    if text in ("auto", "none"):
        return StallLimits(cancels=text == "auto")
    try:
        return StallLimits(parse_age(text).total_seconds())
    except ValueError:
        raise ValueError("expected auto, none, or a time such as 45m or 2h") from None


def parse_window(text: str) -> timedelta | None:
    """Parse an age, or return None for `0` (or `0h`)."""
    return None if re.fullmatch(r"0+\s*[mhdw]?", text, re.ASCII) else parse_age(text)


def parse_timestamp(text: str) -> datetime:
    """Parse an ISO date or time; without a time zone it is local time."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        expected = "a date such as 2025-11-20 or a time such as 2025-11-20T06:00"
        raise ValueError(f"expected {expected}") from None


def parse_percentage(text: str) -> float:
    """Parse `1%` or `0.01` as a fraction."""
    from pytest_llmbench.core.tolerance import parse_fraction

    return parse_fraction(text, expected="a percentage such as 1% or 0.5%")


def parse_count(text: str, smallest: int = 1, largest: int = 10**6) -> int:
    """Parse a whole number from `smallest` to `largest`, both included."""
    is_number = text.isascii() and text.isdecimal()
    if not is_number or not smallest <= int(text) <= largest:
        raise ValueError(f"expected a whole number from {smallest} to {largest}")
    return int(text)


def parse_repeats(text: str) -> int:
    """Parse the number of runs that may count for one verdict."""
    return parse_count(text, largest=LARGEST_SEQUENCE)


def parse_retries(text: str) -> int:
    """Parse the number of restarts of a job."""
    return parse_count(text, smallest=0, largest=10)


def parse_hours(text: str) -> float:
    """Parse a number of GPU-hours."""
    # Digits with at most one decimal point.
    is_number = text.replace(".", "", 1).isdecimal() and text.isascii()
    number = float(text) if is_number else 0.0
    if not 0 < number < 1e9:
        raise ValueError("expected a number of GPU-hours above 0, such as 200")
    return number


def parse_nodes(text: str) -> str:
    """Validate a list of nodes in Slurm's notation, such as `n7,n[12-14]`."""
    if not re.fullmatch(NODES, text):
        raise ValueError(f"expected {EXPECTED_NODES}")
    return text


def parse_checks(text: str) -> tuple[PreflightCheck, ...]:
    """Parse the names of preflight checks to ignore, separated by commas."""
    from pytest_llmbench.core.errors import did_you_mean
    from pytest_llmbench.core.job_records import NEVER_IGNORED, PreflightCheck

    names = [name.strip() for name in text.split(",")]
    allowed = [check.value for check in PreflightCheck if check not in NEVER_IGNORED]
    for name in names:
        if name in NEVER_IGNORED:
            reason = NEVER_IGNORED[PreflightCheck(name)]
            raise ValueError(f"{name} cannot be ignored: {reason}")
        if name not in allowed:
            expected = f"expected one or more of {', '.join(allowed)}"
            raise ValueError(
                f"there is no check {name!r}{did_you_mean(name, allowed)}: {expected}"
            )
    return tuple(PreflightCheck(name) for name in dict.fromkeys(names))


# --- converters of other values; they raise SettingsError with the value as written ----


def list_folders(
    values: OptionValues, option: Option, directory: Path
) -> tuple[Path, ...]:
    """Return the folders of an option.

    Raises SettingsError if a folder does not exist.
    """
    folders = []
    for path in values.get(option.dest) or ():
        stated = values.state(option.flag, path)
        folders.append(_find_folder(stated, path, directory))
    return tuple(folders)


def list_tolerances(
    values: OptionValues, option: Option, _directory: Path
) -> tuple[Tolerance, ...]:
    """Merge the tolerances of the ini file and of the command line."""
    from pytest_llmbench.core.baseline_records import ToleranceSource
    from pytest_llmbench.core.tolerance import merge_tolerances, parse_tolerances

    typed, ini = values.split_layers()
    # The command line is last: its tolerances take precedence.
    sources = ((ini, ToleranceSource.INI), (typed, ToleranceSource.OPTION))
    layers: list[tuple[Tolerance, ...]] = []
    for layer, source in sources:
        text = layer.get_text(option.flag)
        if text is not None:
            parse = partial(parse_tolerances, source=source)
            layers.append(layer.parse(option.flag, text, parse))
    return merge_tolerances(*layers)


def list_patterns(
    values: OptionValues, option: Option, directory: Path
) -> tuple[str, ...]:
    """Return the given patterns, replacing a file by the patterns in it.

    A file has one pattern per line; `#` starts a comment. Suite files are skipped.
    """
    patterns: list[str] = []
    for pattern in map(str, values.get(option.dest) or ()):
        if Path(pattern).suffix.lower() in SUITES:
            continue
        stated = values.state(option.flag, pattern)
        read_patterns = _read_patterns(stated, pattern, directory)
        if not all(read_patterns):
            _refuse(f"{stated} is empty: give an id, a pattern, a file, or `all`")
        patterns += read_patterns
    return tuple(patterns)


def _read_patterns(stated: str, pattern: str, directory: Path) -> list[str]:
    """Return the patterns in the file with this name, or the pattern itself.

    `stated` is the option as it was written, for messages.
    """
    from pytest_llmbench.core.errors import SettingsError
    from pytest_llmbench.core.userfile import expand_home, read_text_if_file

    text = read_text_if_file(directory / expand_home(pattern), stated, SettingsError)
    if text is None:
        return [pattern.strip()]
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if not any(lines):
        _refuse(f"{stated}: the file contains no configuration")
    return [line for line in lines if line]


def find_file(values: OptionValues, option: Option, directory: Path) -> Path | None:
    """Return a file that exists, or None if the option is not given."""
    value = _get_single(values, option)
    if not value:
        return None
    return find_existing(values.state(option.flag, value), value, directory)


def find_journal(values: OptionValues, option: Option, directory: Path) -> Path | None:
    """Return the folder of the journal, or None if the option is not given.

    It must exist if the session continues an earlier one; a new session creates it.
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
    """Return the given cluster file, else `cluster.yaml` if it exists, else None."""
    if values.get(option.dest):
        return find_file(values, option, directory)
    default = directory / "cluster.yaml"
    if default.exists() or default.is_symlink():  # a dangling link is an error
        return find_existing(f"{option.flag}={default}", default, directory)
    return None


def find_output(values: OptionValues, option: Option, directory: Path) -> Path | None:
    """Return the path of a writable file, or of a writable folder for --llmb-record."""
    text = values.get_text(option.flag)
    if text is None:
        return None
    stated = f"{option.flag}={text}"
    path = make_path(stated, text, directory)
    _require_writable(stated, path, folder=option.flag == "--llmb-record")
    return path


def find_page(values: OptionValues, option: Option, directory: Path) -> Path | None:
    """Return the path of the HTML page. Raises SettingsError if jinja2 is not
    installed."""
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
    """Raise SettingsError, which this module imports only when it is needed."""
    from pytest_llmbench.core.errors import SettingsError

    raise SettingsError(problem)


def _get_single(values: OptionValues, option: Option) -> object:
    """Return the given path, or None. Raises SettingsError for several paths."""
    value = values.get(option.dest)
    # Pytest has no ini type for a single path, so that an ini key is a list of paths.
    if not isinstance(value, list):
        return value
    paths = value
    if len(paths) > 1:
        stated = values.state(option.flag, " ".join(map(str, paths)))
        _refuse(f"{stated}: found {len(paths)} paths, expected one")
    return next(iter(paths), None)


def make_path(stated: str, value: object, directory: Path) -> Path:
    """Resolve a path against `directory`; `stated` is the option as it was written."""
    from pytest_llmbench.core.userfile import expand_home

    if not str(value).strip():
        _refuse(f"{stated} is empty: give a path")
    return directory / expand_home(str(value))


def find_existing(stated: str, value: object, directory: Path) -> Path:
    """Return a path that exists. Raises SettingsError that names the first missing
    folder."""
    from pytest_llmbench.core.errors import did_you_mean

    path = make_path(stated, value, directory)
    try:
        if path.exists():
            return path
    except OSError as error:  # no permission, a name that is too long
        _refuse(f"{stated}: {error.strerror}; give a path that can be accessed")
    if path.is_symlink():
        _refuse(f"{stated}: a broken link to {os.readlink(path)}")
    # In "/lustre/runz/llama3" the folder /lustre has no 'runz'.
    parent = next(parent for parent in path.parents if parent.exists())
    missing, *_ = path.relative_to(parent).parts
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    hint = did_you_mean(missing, names)
    _refuse(f"{stated} does not exist: {parent} has no {missing!r}{hint}")


def _find_folder(stated: str, value: object, directory: Path) -> Path:
    """Return a folder that exists. Raises SettingsError otherwise."""
    path = find_existing(stated, value, directory)
    if not path.is_dir():
        _refuse(f"{stated}: {path} is a file; give the folder that contains it")
    return path


def _require_writable(stated: str, path: Path, *, folder: bool) -> None:
    """Raise SettingsError unless the file or folder can be written."""
    from pytest_llmbench.core.userfile import is_stream

    # os.path.exists, since Path.exists raises PermissionError in a closed folder.
    exists = os.path.exists(path)
    if exists and path.is_dir() is not folder:
        _refuse(f"{stated}: {path} is a {'file' if folder else 'folder'}")
    if not folder and exists and is_stream(path):  # such as /dev/stdout
        return
    # A file is written into its folder, and missing folders are created.
    candidates = (path, *path.parents) if folder else path.parents
    parent = next(candidate for candidate in candidates if os.path.exists(candidate))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        remedy = "give another path, or ask for write permission"
        _refuse(f"{stated}: cannot write in {parent}; {remedy}")
