"""The configuration file of pytest: its keys of this plugin, and those that do
nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import SettingsError, did_you_mean
from pytest_llmbench.core.options import OPTIONS, TYPED_OPTIONS, describe_removed

CONFIGURATIONS = (
    "pytest.toml",
    ".pytest.toml",
    "pytest.ini",
    ".pytest.ini",
    "pyproject.toml",
    "tox.ini",
    "setup.cfg",
)
"""The files in which pytest looks for its configuration; the first one of a folder that
has some counts alone."""

TABLES = ("pytest", "tool.pytest", "tool.pytest.ini_options")
"""The tables of a TOML file that hold pytest's configuration."""

# how like one of ours a key has to be, of 1, to be taken for it where it does not begin
# with `llmb`
ALIKE = 0.9


def read_file_keys(path: Path) -> dict[str, object]:
    """Return what a configuration file of pytest sets; empty for one that holds nothing
    for pytest. Raises ValueError for a file that cannot be read as what it is."""
    tables = read_tables(path)
    return {
        name: value
        for table in list_read_tables(path)
        for name, value in tables.get(table, {}).items()
    }


def find_file_value(key: str, directory: Path) -> tuple[str, Path] | None:
    """Return what the configuration file says of a key that pytest reads when it is
    started in a folder, and the file; None where it says nothing. SettingsError for a
    file that cannot be read."""
    for folder in (directory, *directory.parents):
        for path in filter(Path.is_file, (folder / name for name in CONFIGURATIONS)):
            try:
                if _is_read(path):  # files further up count for nothing then
                    value = read_file_keys(path).get(key)
                    return (str(value), path) if value else None
            except ValueError as error:
                raise SettingsError(f"{path}: {error}") from None
    return None


def _is_read(path: Path) -> bool:
    """Whether pytest takes a file for its own: one of another program has to have a
    table of pytest."""
    return path.stem.lstrip(".") == "pytest" or not read_tables(path).keys().isdisjoint(
        list_read_tables(path)
    )


def list_read_tables(path: Path) -> tuple[str, ...]:
    """Return the tables of a file that pytest reads."""
    if path.suffix != ".toml":
        return ("tool:pytest",) if path.suffix == ".cfg" else ("pytest",)
    of_name = {
        "pytest.toml": TABLES[:1],
        ".pytest.toml": TABLES[:1],
        "pyproject.toml": TABLES[1:],
    }
    return of_name.get(path.name, TABLES)


def read_tables(path: Path) -> dict[str, dict[str, object]]:
    """Return every table of a TOML file, by its dotted name, or every section of
    another."""
    from pytest_llmbench.core.userfile import LARGEST_TEXT_BYTES, read_text

    text = read_text(path, "configuration file", LARGEST_TEXT_BYTES, SettingsError)
    if path.suffix == ".toml":
        import tomllib

        try:
            return dict(_list_tables(tomllib.loads(text)))
        except RecursionError as error:
            raise ValueError(str(error)) from None
    import iniconfig  # pytest reads its files with it

    try:
        return {
            name: dict(section)
            for name, section in iniconfig.IniConfig(
                str(path), data=text
            ).sections.items()
        }
    except iniconfig.ParseError as error:
        raise ValueError(str(error)) from None


def _list_tables(root: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, object]]]:
    waiting = [("", root)]
    while waiting:
        name, table = waiting.pop()
        named = {key: f"{name}.{key}".lstrip(".") for key in table}
        yield (
            name,
            {key: value for key, value in table.items() if named[key] not in TABLES},
        )
        waiting += [
            (named[key], value)
            for key, value in reversed([*table.items()])
            if isinstance(value, dict)
        ]


def refuse_misplaced(path: Path, file: str) -> None:
    """Refuse keys of ours in a table of the configuration file that pytest does not
    read, where they do nothing."""
    read = list_read_tables(path)
    for table, keys in read_tables(path).items():
        strange = [key for key in keys if key in INI_KEYS and table not in read]
        if strange:
            raise SettingsError(
                f"{file}: {strange[0]} stands in [{table}], which pytest does not read: [{read[-1]}]"
            )


def refuse_unknown(unknown: Sequence[str], file: str) -> None:
    """Refuse keys that nobody declared and that were meant for this plugin: what they
    should do would not be done."""
    flags = {option.dest: option.flag for option in TYPED_OPTIONS}
    for key in unknown:
        if removed := describe_removed(_normalize(key)):
            raise SettingsError(f"{file}: {removed}")
        flag = flags.get(_normalize(key))
        if flag and _normalize(key) not in INI_KEYS:
            raise SettingsError(
                f"{file}: {key} is no ini key; write {flag} into addopts"
            )
        if _normalize(key).startswith("llmb") or _is_alike(key):
            nearest = did_you_mean(key, INI_KEYS)
            raise SettingsError(
                f"{file}: there is no ini key {key}{nearest}; see pytest --help"
            )


def refuse_empty(keys: Mapping[str, object], file: str) -> None:
    """Refuse keys of ours without a value: who wrote one meant some."""
    for key, value in keys.items():
        if key in INI_KEYS and isinstance(value, str) and not value.strip():
            raise SettingsError(
                f"{file}: {key} is empty: give a value, or leave the key out"
            )


def find_shadowed_keys(path: Path) -> dict[str, list[str]]:
    """Return our keys in the configuration files beside the one that pytest reads,
    which count for nothing there."""
    shadowed: dict[str, list[str]] = {}
    for name in CONFIGURATIONS:
        beside = path.with_name(name)
        if beside == path or not beside.is_file():
            continue
        try:
            keys = read_file_keys(beside)
        except (SettingsError, OSError, ValueError):  # nobody reads it here
            continue
        ours = [key for key in keys if key in INI_KEYS]
        if ours:
            shadowed[name] = ours
    return shadowed


INI_KEYS = tuple(option.dest for option in OPTIONS if option.ini)
"""The keys that a configuration file may decide."""


def _normalize(key: str) -> str:
    return key.lower().replace("-", "_").replace(".", "_")


def _is_alike(key: str) -> bool:
    return bool(difflib.get_close_matches(_normalize(key), INI_KEYS, n=1, cutoff=ALIKE))
