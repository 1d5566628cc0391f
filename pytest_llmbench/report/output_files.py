"""Output files: which existing files may be replaced, and atomic replacement."""

from __future__ import annotations

import errno
import os
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.userfile import find_descriptor, is_stream, path_exists

END_BYTES = 1 << 18
"""Bytes at each end of a file that identify its kind: Parquet has its columns at the
end."""


class FileKind(NamedTuple):
    """A kind of output file, which may replace existing files of the same kind only."""

    name: str
    pattern: re.Pattern[bytes]
    """Matches the concatenated ends of such a file, also of earlier versions."""


# Each pattern below has an example of the text that it matches.
JUNIT = FileKind(  # `<?xml version="1.0"?><testsuites `
    "JUnit report",
    compile_on_use(
        rb"\A\s*+(?:<\?xml[^>]*\?>\s*+)?(?:<!--(?:(?!-->).)*-->\s*+)*<testsuites?[\s>/]",
        re.DOTALL,
    ),
)
HTML = FileKind(  # `<!DOCTYPE html>...<title>Nightly - llmbench</title>`
    "HTML report of llmbench",
    compile_on_use(
        rb"\A\s*<!DOCTYPE html>.*?<title>[^<]* - llmbench</title>", re.DOTALL
    ),
)
JSON = FileKind(  # `{"schema": 1, "version":`
    "JSON document of llmbench",
    compile_on_use(rb'\A\s*\{\s*"schema"\s*:\s*\d+,\s*"version"\s*:'),
)
# CSV: `number,...`, or without rows `""`; JSON: `[{"number"`, or without rows `[]`;
# Parquet: `PAR1...number...log_fingerprints`, or without rows `PAR1..."columns": []`.
EXPORT = FileKind(
    "export of a history",
    compile_on_use(
        rb'\A(?:number,|(?:"")?\s*\Z|\[\s*\]\s*\Z|(?:\[\s*)?\{\s*"number"'
        rb'|PAR1(?:(?=.*number).*log_fingerprints|.*"columns": \[\]))',
        re.DOTALL,
    ),
)
TRACE = FileKind("saved NCCL trace", compile_on_use(rb'\A\s*\{\s*"llmbench_nccl"\s*:'))
NEW = FileKind("new file", compile_on_use(rb"(?!)"))
"""A file that must not replace any existing file."""

REPORTS = {"--llmb-junit": JUNIT, "--llmb-json": JSON, "--llmb-html": HTML}


def find_obstacle(path: Path, kind: FileKind) -> str:
    """Return the reason not to write to `path`, or "" if it is allowed.

    Links and other files of the user must not be replaced. An empty file may be
    replaced (`mktemp` creates an empty file); a device or pipe is written to. Raises
    OSError if the existing file cannot be read.
    """
    if not path_exists(path) or is_stream(path) or not path.is_file():
        return ""
    if path.is_symlink():
        return f"a link to the file {os.path.realpath(path)}: use the path of the file itself"
    with path.open("rb") as file:
        ends = file.read(END_BYTES)
        # In a small file the two ends must not overlap.
        file.seek(max(len(ends), path.stat().st_size - END_BYTES))
        ends += file.read(END_BYTES)
    if not ends.strip() or kind.pattern.match(ends):
        return ""
    return f"an existing file of another kind (expected: {kind.name}) is not replaced: use another name, or remove it"


def make_void(path: Path, kind: FileKind) -> None:
    """Empty the report of an earlier session, or remove it if that fails.

    So nobody mistakes it for the report of a session that fails to write one. Neither
    action needs disk space. A file of another kind is not touched. Raises OSError if
    the report can be neither emptied nor removed.
    """
    is_report = path.is_file() and not is_stream(path)
    if not is_report or find_obstacle(path, kind):
        return
    try:
        os.truncate(path, 0)
    except OSError:  # no write permission, or a full copy-on-write file system
        path.unlink()


def write_atomically(
    path: Path, content: bytes, kind: FileKind, *, make_folders: bool = True
) -> None:
    """Write a temporary file next to `path`, then rename it to `path`.

    Raises OSError if that fails or if a file of another kind would be replaced; the
    existing file is then unchanged.
    """
    with open_atomically(path, kind, make_folders=make_folders) as file:
        file.write(content)


@contextmanager
def open_atomically(
    path: Path, kind: FileKind, *, make_folders: bool
) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing; rename it to `path` on success.

    Like `write_atomically`, for content that is written in several steps. A device, a
    pipe or an open descriptor such as /dev/stdout is written to directly.
    """
    if obstacle := find_obstacle(path, kind):
        raise FileExistsError(errno.EEXIST, obstacle, str(path))
    if make_folders:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = find_descriptor(path)
    if descriptor is not None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # keep the order of the output
        with open(os.dup(descriptor), "wb") as file:
            yield file
        return
    if is_stream(path):
        # A device or pipe must not be replaced by a file.
        with path.open("wb") as file:
            yield file
        return
    # A dangling link is kept; Path.resolve would raise for a link to itself.
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".llmb-{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):  # report the first error, not this one
            temporary.unlink(missing_ok=True)
        raise


def write_first(folders: Iterable[Path], name: str, content: bytes) -> Path:
    """Write and sync a file in the first folder in which that succeeds.

    Returns the path. Raises the OSError of the last folder if all fail.
    """
    last_error: OSError | None = None
    for folder in folders:
        path = folder / name
        try:
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            last_error = error
            with suppress(OSError):  # the disk may be gone; try the next folder
                path.unlink(missing_ok=True)
        else:
            return path
    raise last_error or FileNotFoundError("no folder")
