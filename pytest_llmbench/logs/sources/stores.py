"""Open files of all kinds: on this machine, in archives, remote, and standard input.

The members of an archive have paths under the archive's path, as if it were unpacked
there. Names, ids and reports use these paths.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
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

# The path that represents standard input.
STANDARD_INPUT = Path("<stdin>")
# Bytes per read.
READ_BYTES = 1 << 20
# Bytes that are kept in memory. More bytes go to a temporary file that the system
# removes with the process.
IN_MEMORY = 1 << 26
# Device numbers of the sources other than local files: negative, which no file has. Each
# archive gets its own number, downwards from FIRST_ARCHIVE_DEVICE.
REMOTE_DEVICE, INPUT_DEVICE, FIRST_ARCHIVE_DEVICE = -1, -2, -3

SpooledInput = tempfile.SpooledTemporaryFile[bytes]

# Copies of streams, which cannot be read twice: a session may judge its input twice.
_SPOOLED: WeakKeyDictionary[BinaryIO, SpooledInput | LogError] = WeakKeyDictionary()


def check_input(flag: str, source: object) -> Path:
    """Return STANDARD_INPUT. Raises SettingsError if nothing is piped into standard
    input."""
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
    """Yield all bytes of a stream, by default standard input. May be called repeatedly.

    Raises LogError if the stream cannot be read or stored, also in all later calls: the
    remaining bytes are not a complete log.
    """
    stream = source or getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise LogError("cannot read standard input: there is none")
    if stream not in _SPOOLED:
        _SPOOLED[stream] = _spool(stream)
    stored = _SPOOLED[stream]
    if isinstance(stored, LogError):
        raise stored
    stored.seek(0)
    while block := stored.read(READ_BYTES):
        yield block


def _spool(source: BinaryIO) -> SpooledInput | LogError:
    """Copy all bytes of a stream; return the error if this fails.

    The copy is closed when the stream is deleted.
    """
    spool: SpooledInput = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
    finalize(source, spool.close)
    try:
        while block := source.read(READ_BYTES):
            spool.write(block)
    except (OSError, ValueError) as error:
        spool.close()
        return LogError(f"cannot read standard input: {error}")
    return spool


class FileSource(Protocol):
    """A source that can list folders."""

    def stat(self, path: Path) -> os.stat_result:
        """Return the status of a path. Raises OSError with the reason if it is unknown."""

    def scan(self, path: Path) -> Sequence[FolderEntry]:
        """Return the entries of a folder. Raises OSError with the reason if it cannot
        be listed."""


class LocalFiles:
    """The files of this machine."""

    def stat(self, path: Path | str) -> os.stat_result:
        """Return the status of a path."""
        return os.stat(path)

    def scan(self, path: Path | str) -> list[os.DirEntry[str]]:
        """Return the entries of a folder."""
        with os.scandir(path) as entries:
            return list(entries)


_BY_NAME = attrgetter("name")


class Stores:
    """All sources of files, with the listings of the opened archives."""

    def __init__(self) -> None:
        self._machine = LocalFiles()
        self._remote = Remote(device=REMOTE_DEVICE)
        self._input = Listing(Path(), device=INPUT_DEVICE)
        self._input.add(STANDARD_INPUT, 0.0)
        self._archives: dict[Path, Archive] = {}

    def resolve_path(self, path: Path) -> Path:
        """Return the canonical path: absolute for a file of this machine, else
        unchanged."""
        is_elsewhere = is_remote(path) or path == STANDARD_INPUT
        return path if is_elsewhere else Path(os.path.abspath(path))

    def stat(self, path: Path | str) -> os.stat_result:
        """Return the status of a file or folder. Raises OSError with the reason if it
        is unknown."""
        if self.is_surely_local(path):
            return self._machine.stat(path)
        path = Path(path)
        return self._find_source(path).stat(path)

    def scan(self, path: Path | str) -> list[FolderEntry]:
        """Return the entries of a folder, sorted by name.

        Raises OSError with the reason if the folder cannot be listed.
        """
        if self.is_surely_local(path):
            return sorted(self._machine.scan(path), key=_BY_NAME)
        path = Path(path)
        return sorted(self._find_source(path).scan(path), key=_BY_NAME)

    def find_archive(self, path: Path) -> Archive | None:
        """Return the opened archive at or above a path, or None."""
        if not self._archives:
            return None
        for folder in chain((path,), path.parents):
            if folder in self._archives:
                return self._archives[folder]
        return None

    def is_archive(self, path: Path) -> bool:
        """True if a file has the name or the first bytes of an archive."""
        if self.find_archive(path) is not None or not S_ISREG(self.stat(path).st_mode):
            return False
        if has_archive_name(path.name):
            return True
        try:
            return is_archive(_read_head(self.stream(path), BLOCK))
        except LogError:
            return False  # reading it as a log reports the reason

    def open_archive(
        self,
        path: Path,
        is_wanted: Callable[[str], bool],
        is_sampled: Callable[[str], bool] = lambda _: False,
    ) -> tuple[Archive, Path]:
        """Open an archive and list its files.

        Returns the archive, and the folder under which its files appear.

        Files whose names satisfy `is_wanted` are listed. Files whose names satisfy
        `is_sampled` are listed with samples of their text.
        """
        listing = Listing(path, device=FIRST_ARCHIVE_DEVICE - len(self._archives))
        archive = Archive(
            path, lambda: self._read_blocks(path), listing, is_wanted, is_sampled
        )
        top = archive.list()
        self._archives[path] = archive
        return archive, top

    def stream(self, path: Path) -> Stream:
        """Return the text of a file outside archives. The file is opened on iteration."""
        return Stream(self._read_blocks(path), path)

    def read_small(self, path: Path, limit: int) -> bytes:
        """Return the first `limit` bytes of a file.

        In an archive only metadata files can be read. Raises LogError for other files,
        and if the file cannot be read.
        """
        archive = self.find_archive(path)
        if archive:
            return archive.read_metadata(path, limit)
        return _read_head(self._read_blocks(path), limit)

    def read_samples(self, path: Path) -> tuple[bytes, ...]:
        """Return the beginning, middle and end of a file, each of at most SAMPLE bytes.

        The file must be on this machine or in an archive. Raises LogError if it cannot
        be read.
        """
        archive = self.find_archive(path)
        if archive:
            return archive.read_samples(path)
        return files.read_samples(path, SAMPLE)

    def read_from_archives(
        self, paths: Iterable[Path]
    ) -> Iterator[tuple[Path, Stream | LogError]]:
        """Yield (path, text) of the paths in archives, one pass per archive.

        Texts come in archive order. Read each text before requesting the next. If an
        archive fails, all its remaining paths get the LogError.
        """
        if not self._archives:
            return
        requested_by_archive: dict[Path, list[Path]] = {}
        for path in paths:
            archive = self.find_archive(path)
            if archive:
                requested_by_archive.setdefault(archive.path, []).append(path)
        for root, requested in requested_by_archive.items():
            remaining = dict.fromkeys(requested)
            try:
                for path, stream in self._archives[root].read(requested):
                    del remaining[path]
                    yield path, stream
            except LogError as error:
                yield from ((path, error) for path in remaining)

    def is_surely_local(self, path: Path | str) -> bool:
        """True if a path is on this machine; False if that needs a closer look."""
        return not self._archives and os.path.isabs(path)

    def _find_source(self, path: Path) -> FileSource:
        """Return the source that can list a path."""
        archive = self.find_archive(path)
        if archive:
            return archive.listing
        if is_remote(path):
            return self._remote
        return self._machine if path.is_absolute() else self._input

    def _read_blocks(self, path: Path) -> Iterator[bytes]:
        """Yield the bytes of a file outside archives."""
        if path == STANDARD_INPUT:
            return read_input()
        return self._remote.blocks(path) if is_remote(path) else files.read_blocks(path)


def has_archive_name(name: str) -> bool:
    """True if a file name has the suffix of a tar archive."""
    return NAME.fullmatch(name) is not None


def _read_head(blocks: Iterable[bytes], size: int) -> bytes:
    """Return the first `size` bytes, or all if there are fewer."""
    head = b""
    for block in blocks:
        head += block
        if len(head) >= size:
            break
    return head[:size]
