"""The files that users name for reports: what may stand there, and how one is put in
the place of an older one."""

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

from pytest_llmbench.core.userfile import find_descriptor, is_stream, is_there

LOOKED_AT = 1 << 18
"""Bytes at either end of a file that tell what it is: Parquet names its columns at the
end."""


class FileKind(NamedTuple):
    """What a command or an option writes: a file of the same kind may be replaced, and
    no other."""

    name: str
    pattern: re.Pattern[bytes]
    """Found at both ends of each such file, also of those that earlier versions
    wrote."""


JUNIT = FileKind(
    "JUnit report",
    re.compile(
        rb"\A\s*+(?:<\?xml[^>]*\?>\s*+)?(?:<!--(?:(?!-->).)*-->\s*+)*<testsuites?[\s>/]",
        re.DOTALL,
    ),
)
HTML = FileKind(
    "HTML report of llmbench",
    re.compile(rb"\A\s*<!DOCTYPE html>.*?<title>[^<]* - llmbench</title>", re.DOTALL),
)
JSON = FileKind(
    "JSON document of llmbench",
    re.compile(rb'\A\s*\{\s*"schema"\s*:\s*\d+,\s*"version"\s*:'),
)
EXPORT = FileKind(
    "export of a history",
    re.compile(
        rb'\A(?:number,|(?:"")?\s*\Z|\[\s*\]\s*\Z|(?:\[\s*)?\{\s*"number"'
        rb'|PAR1(?:(?=.*number).*log_fingerprints|.*"columns": \[\]))',
        re.DOTALL,
    ),
)
TRACE = FileKind("saved NCCL trace", re.compile(rb'\A\s*\{\s*"llmbench_nccl"\s*:'))
NEW = FileKind("new file", re.compile(rb"(?!)"))
"""For what replaces nothing."""

REPORTS = {"--llmb-junit": JUNIT, "--llmb-json": JSON, "--llmb-html": HTML}


def find_obstacle(path: Path, kind: FileKind) -> str:
    """Return why a file may not be written there, as it would replace something of the
    user's; empty where it may.

    An empty file may be replaced (`mktemp` makes one), a device or pipe is written to.
    OSError for what cannot be looked at.
    """
    if not is_there(path) or is_stream(path) or not path.is_file():
        return ""
    if path.is_symlink():
        return f"a link to the file {os.path.realpath(path)}: give the name of the file itself"
    with path.open("rb") as file:
        ends = file.read(LOOKED_AT)
        file.seek(max(len(ends), path.stat().st_size - LOOKED_AT))
        ends += file.read(LOOKED_AT)
    if not ends.strip() or kind.pattern.match(ends):
        return ""
    return f"a file that is no {kind.name}, and is not replaced: give another name, or remove it"


def make_void(path: Path, kind: FileKind) -> None:
    """Empty the report of an earlier session in its place, or remove it; neither needs
    room on the disk.

    A file of another kind is left alone. OSError if the report can be neither emptied
    nor removed.
    """
    if not path.is_file() or is_stream(path) or find_obstacle(path, kind):
        return
    try:
        os.truncate(path, 0)
    except (
        OSError
    ):  # not our file to write, or a file system that writes anew what it changes
        path.unlink()


def write_atomically(
    path: Path, content: bytes, kind: FileKind, *, make_folders: bool = True
) -> None:
    """Write a file beside its place and move it there.

    Raises OSError where that is impossible, or where something of the user's would be
    replaced; what stood at `path` is then still there.
    """
    with open_atomically(path, kind, make_folders=make_folders) as file:
        file.write(content)


@contextmanager
def open_atomically(
    path: Path, kind: FileKind, *, make_folders: bool
) -> Iterator[IO[bytes]]:
    """Like `write_atomically`, for content in parts: open a file beside its place, and move
    it there at the end."""
    if obstacle := find_obstacle(path, kind):
        raise FileExistsError(errno.EEXIST, obstacle, str(path))
    if make_folders:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = find_descriptor(path)
    if descriptor is not None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # what was said before stands before it
        with open(os.dup(descriptor), "wb") as file:
            yield file
        return
    if is_stream(path):
        with path.open(
            "wb"
        ) as file:  # /dev/null or a pipe: must not be replaced by a file
            yield file
        return
    target = Path(
        os.path.realpath(path)
    )  # a link to nothing stays one; Path.resolve raises for one to itself
    temporary = target.with_name(f".llmb-{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(target)
    except BaseException:
        with suppress(
            OSError
        ):  # it stays, where the disk is gone; what failed before is told
            temporary.unlink(missing_ok=True)
        raise


def write_first(folders: Iterable[Path], name: str, content: bytes) -> Path:
    """Write a file to the first folder that takes it, whole and on disk; OSError of the
    last if no folder does."""
    problem: OSError | None = None
    for folder in folders:
        path = folder / name
        try:
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            problem = error
            # A disk that is gone does not keep the next folder from being tried.
            with suppress(OSError):
                path.unlink(missing_ok=True)
        else:
            return path
    raise problem or FileNotFoundError("no folder")
