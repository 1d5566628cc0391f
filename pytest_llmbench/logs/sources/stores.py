"""All places that files are read from, behind one face: this machine, archives, remote
places and standard input.

Below an archive's path stand its members, as if it were unpacked there; that is so in
names, ids and reports.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, Protocol
from weakref import WeakKeyDictionary, finalize

from pytest_llmbench.core.errors import LogError, SettingsError
from pytest_llmbench.core.formatting import is_remote
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.sources.archive import NAME, SAMPLE, Archive
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.logs.sources.listing import FolderEntry, Listing
from pytest_llmbench.logs.sources.remote import Remote
from pytest_llmbench.logs.sources.tar import BLOCK, is_archive

# The path under which standard input is known.
STANDARD_INPUT = Path("<stdin>")
# Bytes that are read at once.
READ_BYTES = 1 << 20
# Bytes that are kept in memory; more go to a temporary file that the system removes
# with the process.
IN_MEMORY = 1 << 26

SpooledInput = tempfile.SpooledTemporaryFile[bytes]

# What streams held that cannot be read twice: a session that judges twice reads them
# once.
_READ: WeakKeyDictionary[BinaryIO, SpooledInput | LogError] = WeakKeyDictionary()


def check_input(flag: str, source: object) -> Path:
    """Return STANDARD_INPUT if something is piped into standard input; SettingsError
    where nothing can be."""
    if source is None or not hasattr(source, "buffer"):
        raise SettingsError(
            f"{flag}=- reads standard input, and there is none: pipe a log or an archive into it"
        )
    if getattr(source, "isatty", bool)():
        raise SettingsError(
            f"{flag}=- reads standard input, which is a terminal: pipe a log or an archive into it"
        )
    return STANDARD_INPUT


def read_input(source: BinaryIO | None = None) -> Iterator[bytes]:
    """Yield all bytes of a stream, by default of standard input, however often it is
    asked for them.

    LogError where they cannot be read or kept, then and ever after: what is left of
    them is no log.
    """
    stream = source or getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise LogError("cannot read standard input: there is none")
    if stream not in _READ:
        _READ[stream] = _copy(stream)
    copy = _READ[stream]
    if isinstance(copy, LogError):
        raise copy
    copy.seek(0)
    while block := copy.read(READ_BYTES):
        yield block


def _copy(source: BinaryIO) -> SpooledInput | LogError:
    copy: SpooledInput = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
    finalize(source, copy.close)
    try:
        while block := source.read(READ_BYTES):
            copy.write(block)
    except (OSError, ValueError) as error:
        copy.close()
        return LogError(f"cannot read standard input: {error}")
    return copy


class FileSource(Protocol):
    """Where folders can be listed."""

    def stat(self, path: Path) -> os.stat_result:
        """Return what is known of a path; OSError says why nothing is."""

    def scan(self, path: Path) -> Sequence[FolderEntry]:
        """Return what stands in a folder; OSError says why that cannot be told."""


class LocalFiles:
    """The files of this machine."""

    def stat(self, path: Path | str) -> os.stat_result:
        """Return what the system knows of a path."""
        return os.stat(path)

    def scan(self, path: Path | str) -> list[os.DirEntry[str]]:
        """Return what stands in a folder."""
        with os.scandir(path) as entries:
            return list(entries)


_BY_NAME = attrgetter("name")


class Stores:
    """Opens what is given, and keeps the list of every archive."""

    def __init__(self) -> None:
        """Begin without archives."""
        self._machine = LocalFiles()
        self._remote = Remote(device=-1)
        self._input = Listing(Path(), device=-2)
        self._input.add(STANDARD_INPUT, 0.0)
        self._archives: dict[Path, Archive] = {}

    def resolve_path(self, path: Path) -> Path:
        """Return the path under which a given one is known: of this machine's files the
        absolute one."""
        elsewhere = is_remote(path) or path == STANDARD_INPUT
        return path if elsewhere else Path(os.path.abspath(path))

    def stat(self, path: Path | str) -> os.stat_result:
        """Return what is known of a file or folder; OSError says why nothing is."""
        if self._is_here(path):
            return self._machine.stat(path)
        path = Path(path)
        return self._find_source(path).stat(path)

    def scan(self, path: Path | str) -> list[FolderEntry]:
        """Return what stands in a folder, by name; OSError says why that cannot be
        told."""
        if self._is_here(path):
            return sorted(self._machine.scan(path), key=_BY_NAME)
        path = Path(path)
        return sorted(self._find_source(path).scan(path), key=_BY_NAME)

    def find_archive(self, path: Path) -> Archive | None:
        """Return the opened archive that a path lies in, or is."""
        if not self._archives:
            return None
        return next(
            (
                self._archives[folder]
                for folder in (path, *path.parents)
                if folder in self._archives
            ),
            None,
        )

    def is_archive(self, path: Path) -> bool:
        """Whether a given file holds an archive: it is called so, or begins so."""
        if self.find_archive(path) is not None or not S_ISREG(self.stat(path).st_mode):
            return False
        try:
            return is_called_archive(path.name) or is_archive(
                _read_head(self.stream(path), BLOCK)
            )
        except LogError:
            return False  # reading it as a log says why it cannot be read

    def open_archive(
        self,
        path: Path,
        wanted: Callable[[str], bool],
        sampled: Callable[[str], bool] = lambda _: False,
    ) -> tuple[Archive, Path]:
        """List the files of a `wanted` name in an archive, and those of a `sampled`
        name with samples of their text; return it and the folder that stands for it."""
        listing = Listing(path, device=-3 - len(self._archives))
        archive = Archive(path, lambda: self._blocks(path), listing, wanted, sampled)
        top = archive.list()
        self._archives[path] = archive
        return archive, top

    def stream(self, path: Path) -> Stream:
        """Return the text of a file outside of archives, which is opened when it is
        iterated."""
        return Stream(self._blocks(path), path)

    def read_small(self, path: Path, limit: int) -> bytes:
        """Return the first bytes of a file, at most `limit`; LogError says why it
        cannot be read."""
        archive = self.find_archive(path)
        return (
            archive.read_small(path, limit)
            if archive
            else _read_head(self._blocks(path), limit)
        )

    def read_samples(self, path: Path) -> tuple[bytes, ...]:
        """Return the beginning, the middle and the end of a file on this machine or in
        an archive, each of at most SAMPLE bytes; LogError if it cannot be read."""
        archive = self.find_archive(path)
        return (
            archive.read_samples(path) if archive else files.read_samples(path, SAMPLE)
        )

    def read_packed(
        self, paths: Iterable[Path]
    ) -> Iterator[tuple[Path, Stream | LogError]]:
        """Yield the texts of those of the paths that lie in archives, each archive in
        one pass and in its own order.

        A text has to be read before the next is asked for. Where an archive fails, so
        do all that are left of it.
        """
        of_archive: dict[Path, list[Path]] = {}
        for path in paths:
            if archive := self.find_archive(path):
                of_archive.setdefault(archive.path, []).append(path)
        for root, wanted in of_archive.items():
            left = dict.fromkeys(wanted)
            try:
                for path, stream in self._archives[root].read(wanted):
                    del left[path]
                    yield path, stream
            except LogError as error:
                yield from ((path, error) for path in left)

    def _is_here(self, path: Path | str) -> bool:
        """Whether a path can be nothing else than one of this machine, told without
        taking it apart."""
        return not self._archives and os.path.isabs(path)

    def _find_source(self, path: Path) -> FileSource:
        if archive := self.find_archive(path):
            return archive.listing
        if is_remote(path):
            return self._remote
        return self._machine if path.is_absolute() else self._input

    def _blocks(self, path: Path) -> Iterator[bytes]:
        if path == STANDARD_INPUT:
            return read_input()
        return self._remote.blocks(path) if is_remote(path) else files.read_blocks(path)


def is_called_archive(name: str) -> bool:
    """Whether a name ends as those of tar archives do."""
    return NAME.fullmatch(name) is not None


def _read_head(blocks: Iterable[bytes], size: int) -> bytes:
    head = b""
    for block in blocks:
        head += block
        if len(head) >= size:
            break
    return head[:size]
