"""Validation of this plugin's keys in pytest's configuration files."""

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
"""Names of pytest's configuration files; pytest uses the first match of a folder."""

TABLES = ("pytest", "tool.pytest", "tool.pytest.ini_options")
"""Tables of a TOML file that may contain pytest's configuration."""

# similarity (at most 1) from which on an unknown key without the prefix `llmb` is
# assumed to be a misspelled key of this plugin
ALIKE = 0.9


def read_file_keys(path: Path) -> dict[str, object]:
    """Return the pytest settings in a configuration file; empty if there are none.

    Raises ValueError if the file cannot be parsed.
    """
    tables = read_tables(path)
    keys: dict[str, object] = {}
    for table in list_read_tables(path):
        keys |= tables.get(table, {})
    return keys


def find_file_value(key: str, directory: Path) -> tuple[str, Path] | None:
    """Return the configured value of a key and its file, for a session in `directory`.

    Returns None if the key is not set. Raises SettingsError if a file cannot be parsed.
    """
    for folder in (directory, *directory.parents):
        for name in CONFIGURATIONS:
            path = folder / name
            if not path.is_file():
                continue
            try:
                if _is_read(path):  # pytest then ignores files in parent folders
                    value = read_file_keys(path).get(key)
                    return (str(value), path) if value else None
            except ValueError as error:
                raise SettingsError(f"{path}: {error}") from None
    return None


def _is_read(path: Path) -> bool:
    """True if pytest uses the file.

    A file that other programs share must contain a pytest table.
    """
    if path.stem.lstrip(".") == "pytest":
        return True
    pytest_tables = list_read_tables(path)
    return any(table in pytest_tables for table in read_tables(path))


def list_read_tables(path: Path) -> tuple[str, ...]:
    """Return the tables of a file that pytest reads."""
    if path.suffix == ".cfg":
        return ("tool:pytest",)
    if path.suffix != ".toml":
        return ("pytest",)
    # `[pytest]` belongs to pytest alone; `[tool.pytest...]` to a shared file.
    pytest_table, *tool_tables = TABLES
    if path.name in ("pytest.toml", ".pytest.toml"):
        return (pytest_table,)
    if path.name == "pyproject.toml":
        return tuple(tool_tables)
    return TABLES


def read_tables(path: Path) -> dict[str, dict[str, object]]:
    """Return all tables of a TOML file by dotted name, or all sections of an ini file.

    Raises ValueError if the file cannot be parsed.
    """
    from pytest_llmbench.core.userfile import LARGEST_TEXT_BYTES, read_text

    text = read_text(path, "configuration file", LARGEST_TEXT_BYTES, SettingsError)
    if path.suffix == ".toml":
        import tomllib

        try:
            return dict(_list_tables(tomllib.loads(text)))
        except RecursionError as error:
            raise ValueError(str(error)) from None
    import iniconfig  # the parser that pytest uses

    try:
        sections = iniconfig.IniConfig(str(path), data=text).sections
        return {name: dict(section) for name, section in sections.items()}
    except iniconfig.ParseError as error:
        raise ValueError(str(error)) from None


def _list_tables(root: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (dotted name, keys) of each table of a TOML file, outer tables first."""
    pending = [("", root)]
    while pending:
        name, table = pending.pop()
        dotted_names = {key: f"{name}.{key}".lstrip(".") for key in table}
        # `tool.pytest` is yielded as a table, so it is not also a key of `tool`.
        keys = {
            key: value
            for key, value in table.items()
            if dotted_names[key] not in TABLES
        }
        yield name, keys
        inner_tables = [
            (dotted_names[key], value)
            for key, value in table.items()
            if isinstance(value, dict)
        ]
        pending += reversed(inner_tables)  # the last one is taken first


def refuse_misplaced(path: Path, file: str) -> None:
    """Raise SettingsError for keys of this plugin in a table that pytest ignores.

    `file` is the name of the file in the message.
    """
    pytest_tables = list_read_tables(path)
    usual_table = pytest_tables[-1]
    for table, keys in read_tables(path).items():
        if table in pytest_tables:
            continue
        for key in keys:
            if key in INI_KEYS:
                raise SettingsError(
                    f"{file}: {key} is in [{table}], which pytest does not read: move it to [{usual_table}]"
                )


def refuse_unknown(unknown: Sequence[str], file: str) -> None:
    """Raise SettingsError for unknown keys that were meant for this plugin.

    Such a key would silently have no effect.
    """
    flags = {option.dest: option.flag for option in TYPED_OPTIONS}
    for key in unknown:
        normalized = _normalize(key)
        if removed := describe_removed(normalized):
            raise SettingsError(f"{file}: {removed}")
        flag = flags.get(normalized)
        if flag and normalized not in INI_KEYS:
            raise SettingsError(
                f"{file}: {key} is not an ini key; add {flag} to addopts"
            )
        if normalized.startswith("llmb") or _is_alike(key):
            nearest = did_you_mean(key, INI_KEYS)
            raise SettingsError(
                f"{file}: there is no ini key {key}{nearest}; see pytest --help"
            )


def refuse_empty(keys: Mapping[str, object], file: str) -> None:
    """Raise SettingsError for keys of this plugin without a value."""
    for key, value in keys.items():
        is_blank = isinstance(value, str) and not value.strip()
        if key in INI_KEYS and is_blank:
            raise SettingsError(
                f"{file}: {key} is empty: give a value, or leave the key out"
            )


def find_shadowed_keys(path: Path) -> dict[str, list[str]]:
    """Return this plugin's keys in other configuration files of the same folder.

    Pytest reads only `path`, so these keys have no effect. The result is by file name.
    """
    shadowed: dict[str, list[str]] = {}
    for name in CONFIGURATIONS:
        other_file = path.with_name(name)
        if other_file == path or not other_file.is_file():
            continue
        try:
            keys = read_file_keys(other_file)
        except (SettingsError, OSError, ValueError):  # pytest does not read it either
            continue
        plugin_keys = [key for key in keys if key in INI_KEYS]
        if plugin_keys:
            shadowed[name] = plugin_keys
    return shadowed


INI_KEYS = tuple(option.dest for option in OPTIONS if option.ini)
"""All ini keys of this plugin."""


def _normalize(key: str) -> str:
    """Return `llmb_trend` for `LLMB-Trend` and `llmb.trend`."""
    return key.lower().replace("-", "_").replace(".", "_")


def _is_alike(key: str) -> bool:
    """True if an unknown key resembles one of INI_KEYS, such as `lmb_trend`."""
    return bool(difflib.get_close_matches(_normalize(key), INI_KEYS, n=1, cutoff=ALIKE))
