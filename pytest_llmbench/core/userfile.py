"""Safe reading of files written by users: regular files only, with a size limit."""

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

LARGEST_TEXT_BYTES = 1 << 24  # for a file that users write manually

MOST_LINKS = 8  # consecutive links from a name in /dev to a file descriptor

DEEPEST_JSON = 64
"""Maximum nesting of a JSON document.

Documents of this package are less deep, and recursive functions need a limit.
"""


def read_bytes(
    path: Path, what: str, most_bytes: int, raises: type[LlmbenchError]
) -> bytes:
    """Return the bytes of a file; `what` is its description in messages.

    Raises `raises` if the file cannot be read, is not a regular file, or is larger than
    `most_bytes`, a whole number of MiB.
    """
    try:
        data = _read_regular(path, most_bytes + 1)  # one more detects a larger file
    except OSError as error:
        raise raises(
            f"{path}: {error.strerror or error}, expected a readable {what}"
        ) from error
    except MemoryError as error:
        raise raises(f"{path}: does not fit in memory, expected a {what}") from error
    if data is None:
        raise raises(f"{path}: not a regular file, expected a {what}")
    if len(data) > most_bytes:
        raise raises(
            f"{path}: found more than {most_bytes >> 20} MiB, expected a {what}"
        )
    return data


def _read_regular(path: Path, most_bytes: int) -> bytes | None:
    """Return the first bytes of a file, or None unless it is a regular file.

    Reading a FIFO could block, and a device may be endless.
    """
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
    """Return the text of a file without a byte order mark, like `read_bytes`.

    Also raises `raises` if the text is not UTF-8.
    """
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
    """Parse a JSON document.

    `parse_constant` converts NaN and infinities, as in `json.loads`. Raises ValueError
    for other texts and for documents nested deeper than DEEPEST_JSON.
    """
    import json

    try:
        document = json.loads(data, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    except MemoryError as error:
        raise ValueError("does not fit in memory") from error
    # Not recursive, because the document may be very deep. Each pass replaces the
    # dictionaries and lists of one level by those inside them.
    containers = [document] if isinstance(document, dict | list) else []
    for _ in range(DEEPEST_JSON):
        children = chain.from_iterable(
            value.values() if isinstance(value, dict) else value for value in containers
        )
        containers = [child for child in children if isinstance(child, dict | list)]
    if containers:
        raise ValueError(f"more than {DEEPEST_JSON} levels of nesting")
    return document


def read_text_if_file(path: Path, what: str, raises: type[LlmbenchError]) -> str | None:
    """Return the text of a file that a value may refer to, or None if there is no such
    file.

    `what` is the description in messages. Raises `raises` if the file exists but cannot
    be read or is not text.
    """
    expected = "expected a file of configurations, one a line"
    try:
        if path.is_dir():
            return None
        data = _read_regular(path, LARGEST_TEXT_BYTES + 1)
        if data is None:
            reason = "not a regular file"
        elif len(data) > LARGEST_TEXT_BYTES:
            reason = f"more than {LARGEST_TEXT_BYTES >> 20} MiB"
        else:
            return data.decode("utf-8-sig")
    except PermissionError as error:
        reason = str(error.strerror)
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except OSError:  # no such file, or the value is too long for a file name
        return None
    raise raises(f"{what}: {reason}, {expected}")


def path_exists(path: Path, *, follow_links: bool = True) -> bool:
    """True if a path exists; raises OSError if this cannot be determined.

    `os.path.exists` (and `Path.exists` from Python 3.14) would return False in that
    case, and an existing file could be overwritten.
    """
    try:
        os.stat(path, follow_symlinks=follow_links)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == ELOOP:  # a link to itself
            return False
        raise
    return True


def walk_folders(
    top: str | Path, on_error: Callable[[OSError], None] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder like `os.walk`, without recursion.

    `os.walk` recurses for each level before Python 3.12, and fails in deep folders.
    """
    pending = [os.fspath(top)]
    while pending:
        for folder, folders, names in os.walk(pending.pop(), onerror=on_error):
            yield folder, folders, names
            paths = (os.path.join(folder, name) for name in reversed(folders))
            pending += [path for path in paths if not os.path.islink(path)]
            folders.clear()  # os.walk then does not descend


def expand_home(text: str) -> Path:
    """Expand `~` in a path; an unknown user is not expanded, as in a shell."""
    try:
        return Path(os.path.expanduser(text))
    except ValueError:  # names of users and files contain no NUL
        return Path(text)


def links_to_ancestor(link: str | Path) -> bool:
    """True if a link leads to a folder that contains the link itself.

    Following such a link would read the whole folder again and again.
    """
    target = os.path.realpath(link)
    parent = os.path.realpath(os.path.dirname(link))
    return os.path.commonpath((target, parent)) == target


def is_stream(path: Path) -> bool:
    """True for standard output, a device or a pipe, where writing replaces no file."""
    if find_descriptor(path) is not None:
        return True
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def find_descriptor(path: Path) -> int | None:
    """Return the file descriptor for a name such as /dev/stdout, else None."""
    # Opening a redirected standard output by name would overwrite the file from its
    # beginning.
    for _ in range(MOST_LINKS):  # /dev/stdout -> /proc/self/fd/1
        match = re.fullmatch(r"(?:/dev|/proc/(?:self|\d+))/fd/(\d+)", str(path))
        if match:
            return int(match[1])
        if str(path.parent) != "/dev" or not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    return None
