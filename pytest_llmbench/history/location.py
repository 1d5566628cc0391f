"""Where a history is: from the text of an option to a place that was looked at."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from pytest_llmbench.core.errors import HistoryError, did_you_mean

EXPECTED = "expected a file such as history.db, sqlite:///history.db, or postgresql://user@host/database"
SQLITE_HEADER = b"SQLite format 3\x00"


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A store: a `file` of SQLite or else the `url` of a server; `shown` may be printed, it holds no password."""

    shown: str
    file: Path | None = None
    url: str = field(default="", repr=False)


def locate_store(text: str, directory: Path, *, writes: bool = True) -> StoreLocation:
    """Return the place that a text names; a relative path is below `directory`.

    HistoryError for a text that names none, a package that is missing, and what can be seen to be in the way of
    reading, or of writing where `writes`: no folder, another kind of file, no permission.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        if re.match(r"(sqlite|postgres)\w*:", text):
            raise HistoryError(f"{hide_passwords(text)}: no scheme with ://; {EXPECTED}")
        return _locate_file(directory / Path(text).expanduser(), text, writes)
    if scheme == "sqlite":
        return _locate_file(directory / _parse_sqlite_path(text, rest), text, writes)
    if scheme in ("postgresql", "postgresql+psycopg"):
        return _locate_server(text, rest)
    hint = did_you_mean(scheme, ("sqlite", "postgresql"))
    raise HistoryError(f"{hide_passwords(text)}: found the scheme {scheme!r}{hint}; {EXPECTED}")


def hide_passwords(text: str) -> str:
    """Return a text with the passwords of URLs in it as `***`, also those among their parameters."""
    text = re.sub(r"(://[^/?#\s@:]*):[^\s/]*@", r"\1:***@", text)
    text = re.sub(r"(://[^/?#\s@:]*):\S*@", r"\1:***@", text)  # a password with a slash in it
    return re.sub(r"([?&][^=&\s]*pass[^=&\s]*=)[^&\s]*", r"\1***", text, flags=re.IGNORECASE)


def _parse_sqlite_path(text: str, rest: str) -> str:
    if not rest.startswith("/"):
        raise HistoryError(f"{text}: found two slashes; write sqlite:///history.db, and sqlite:////tmp/history.db")
    path = rest[1:]
    if path in ("", ":memory:"):
        raise HistoryError(f"{text}: found no file; a history in memory would be forgotten; {EXPECTED}")
    if "?" in path:
        raise HistoryError(f"{text}: found options behind '?'; a file has none here; {EXPECTED}")
    return path


def _locate_file(path: Path, text: str, writes: bool) -> StoreLocation:
    _require("sqlalchemy", "history", text)
    try:
        _check_file(path, text, writes)
    except OSError as error:
        raise HistoryError(f"{text}: {error.filename or path}: {error.strerror}") from None
    return StoreLocation(text, path)


def _check_file(path: Path, text: str, writes: bool) -> None:
    if not path.parent.is_dir():
        raise HistoryError(f"{text}: the folder {path.parent} does not exist: make it, or give another one")
    if not path.exists():
        if not writes:
            raise HistoryError(f"{text}: there is no such file; `pytest --llmb-history=...` makes one")
    elif not path.is_file():
        raise HistoryError(f"{text}: found something that is no file: give the name of a file in it, or of another")
    else:
        with path.open("rb") as file:
            if file.read(len(SQLITE_HEADER)) not in (b"", SQLITE_HEADER):
                raise HistoryError(f"{text}: the file is not a database: give another name")
    needed = [path.parent, *([path] if path.exists() else [])]  # SQLite keeps its journal beside the file
    for path_needed in needed if writes else ():
        if not os.access(path_needed, os.W_OK):
            raise HistoryError(
                f"{text}: {path_needed} cannot be written: change its permissions, or give another place"
            )


def _locate_server(text: str, rest: str) -> StoreLocation:
    _require("sqlalchemy", "postgresql", text)
    _require("psycopg", "postgresql", text)
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(f"postgresql+psycopg://{rest}")
    except (ArgumentError, ValueError):
        raise HistoryError(f"{hide_passwords(text)}: not a URL; {EXPECTED}") from None
    if not url.database:
        raise HistoryError(f"{hide_passwords(text)}: names no database; {EXPECTED}")
    open_query = {name: value for name, value in url.query.items() if "pass" not in name.lower()}
    shown = URL.create(
        "postgresql", url.username, None, url.host, url.port, url.database, open_query
    ).render_as_string()
    return StoreLocation(shown, url=url.render_as_string(hide_password=False))


def _require(package: str, extra: str, text: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise HistoryError(f"{hide_passwords(text)}: needs {package}: pip install 'pytest-llmbench[{extra}]'")
