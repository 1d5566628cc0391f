"""Files that people write: their bytes and text, of regular files alone and no more
than they may hold."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from errno import ELOOP
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from typing import Any

from pytest_llmbench.core.errors import LlmbenchError

LARGEST_TEXT_BYTES = 1 << 24  # of a file that people write by hand

DEEPEST_JSON = 64
"""Levels of nesting in a JSON document: ours have fewer, and functions that call
themselves for each level end."""


def read_bytes(
    path: Path, what: str, most_bytes: int, raises: type[LlmbenchError]
) -> bytes:
    """Return the bytes of a file; `what` it is called in messages.

    Raises `raises` for what cannot be read, is no regular file, or is larger than
    `most_bytes`, a number of MiB.
    """
    try:
        data = _read_regular(path, most_bytes + 1)  # one more tells a larger file
    except OSError as error:
        raise raises(
            f"{path}: {error.strerror or error}, expected a readable {what}"
        ) from error
    except MemoryError as error:
        raise raises(f"{path}: more than memory holds, expected a {what}") from error
    if data is None:
        raise raises(
            f"{path}: found something that is no regular file, expected a {what}"
        )
    if len(data) > most_bytes:
        raise raises(
            f"{path}: found more than {most_bytes >> 20} MiB, expected a {what}"
        )
    return data


def _read_regular(path: Path, most_bytes: int) -> bytes | None:
    """Return the first bytes of a file, None for what is no regular one: a FIFO has no
    writer, a device no end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not S_ISREG(os.fstat(handle).st_mode):
            return None
        with open(handle, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        os.close(handle)


def read_text(
    path: Path, what: str, most_bytes: int, raises: type[LlmbenchError]
) -> str:
    """Return the text of a file, without a byte order mark, as `read_bytes`; `raises`
    also for what is not UTF-8."""
    data = read_bytes(path, what, most_bytes, raises)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise raises(
            f"{path}:{line}: found byte 0x{byte:02x}, expected UTF-8 text"
        ) from error


def parse_json(data: bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a JSON document; ValueError for other text, and for one
    nested deeper than DEEPEST_JSON.

    `parse_constant` converts NaN and infinities, as in `json.loads`.
    """
    import json

    try:
        document = json.loads(data, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    except MemoryError as error:
        raise ValueError("more than memory holds") from error
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(
        DEEPEST_JSON
    ):  # a loop: the document may be as deep as the parser takes
        parts = chain.from_iterable(
            value.values() if isinstance(value, dict) else value for value in level
        )
        level = [part for part in parts if isinstance(part, dict | list)]
    if level:
        raise ValueError(f"more than {DEEPEST_JSON} levels of nesting")
    return document


def read_text_if_file(path: Path, what: str, raises: type[LlmbenchError]) -> str | None:
    """Return the text of a file that a user may have meant; None where there is no file
    of that name.

    Raises `raises` where there is one that may not be read, or that is no text; `what`
    names it in the message.
    """
    expected = "expected a file of configurations, one a line"
    try:
        if path.is_dir():
            return None
        data = _read_regular(path, LARGEST_TEXT_BYTES + 1)
        if data is None:
            why = "no regular file"
        elif len(data) > LARGEST_TEXT_BYTES:
            why = f"more than {LARGEST_TEXT_BYTES >> 20} MiB"
        else:
            return data.decode("utf-8-sig")
    except PermissionError as error:
        why = str(error.strerror)
    except UnicodeDecodeError:
        why = "not UTF-8"
    except OSError:  # no file, or longer than a name may be
        return None
    raise raises(f"{what}: {why}, {expected}")


def is_there(path: Path, *, follow_links: bool = True) -> bool:
    """Whether something stands at a path; OSError where that cannot be told.

    `exists` of os.path, and of Path from Python 3.14 on, says no then: what is there
    would be written anew.
    """
    try:
        os.stat(path, follow_symlinks=follow_links)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == ELOOP:  # a link to itself leads nowhere
            return False
        raise
    return True


def walk_folders(
    top: str | Path, on_error: Callable[[OSError], None] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield folders with the names in them, as `os.walk`, which calls itself for each
    level before Python 3.12."""
    waiting = [os.fspath(top)]
    while waiting:
        for folder, folders, names in os.walk(waiting.pop(), onerror=on_error):
            yield folder, folders, names
            below = (os.path.join(folder, name) for name in reversed(folders))
            waiting += [path for path in below if not os.path.islink(path)]
            folders.clear()


def expand_home(text: str) -> Path:
    """Return a path with the home folder in the place of its `~`; that of a user whom
    nobody knows stays, as in a shell."""
    try:
        return Path(os.path.expanduser(text))
    except ValueError:  # no user has a name with a NUL in it, nor has any file
        return Path(text)


def leads_up(link: str | Path) -> bool:
    """Whether a link to a folder leads to one that holds the link itself: all of that
    would be read, and it again."""
    target, home = os.path.realpath(link), os.path.realpath(os.path.dirname(link))
    return os.path.commonpath((target, home)) == target


def is_stream(path: Path) -> bool:
    """Whether a path is a standard output, a device or a pipe: what is written there
    replaces nothing."""
    return find_descriptor(path) is not None or (
        os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    )


def find_descriptor(path: Path) -> int | None:
    """Return the descriptor of this process that a name such as /dev/stdout is; None
    for any other."""
    # Opened by its name, a standard output that goes to a file would be written from
    # its beginning.
    for _ in range(8):
        match = re.fullmatch(r"(?:/dev|/proc/(?:self|\d+))/fd/(\d+)", str(path))
        if match:
            return int(match[1])
        if str(path.parent) != "/dev" or not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    return None
