"""Cache of parsed logs: an unchanged log is not parsed again.

The cache folder belongs to the user. It contains one file for each set of paths that
are read together, with the results of all files found under these paths.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from stat import S_ISREG

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.log_records import Ending, ParsedLog, Quote, change_ending
from pytest_llmbench.core.redaction import make_redactor
from pytest_llmbench.logs.reading.codec import (
    FileReading,
    FileToRead,
    ReadResult,
    pack,
    unpack,
)
from pytest_llmbench.logs.reading.consistency import is_consistent
from pytest_llmbench.logs.sources.files import read_state

MAGIC = b"llmbench log cache 5\n"
# The magic bytes, and the signature of the cache file's identity and data.
_HEADER = struct.Struct(f"={len(MAGIC)}s32s")

SUFFIX = ".logs"
# Name and size of the file with the signing key. A cache file that was changed or
# written elsewhere is not trusted. Whoever can read the key is this user, and could
# change this program as well.
KEY, KEY_BYTES = "key", 32
# New results are written to the cache only if they come from this many files or bytes:
# below that, reading the files again is faster than writing a cache file.
WORTH_FILES, WORTH_BYTES = 50, 8 << 20
# Total size of all cache files, in bytes.
LARGEST = 512 << 20
# Largest decompressed size of a cache file, in bytes: a compressed column of zeros
# could demand any amount of memory.
UNPACKED = 2 << 30
# The packages that a parser may import. A change of any file in them may change how a
# log is read.
PARSER_PACKAGES = ("logs", "core")
# The libraries used to search, decompress and store logs.
LIBRARIES = ("ahocorasick_rs", "hyperscan", "numpy")
# Cache files that were unused for this long are removed.
OLDEST_SECONDS = 30 * 86400


class LogCache:
    """Cache file for one set of paths and dialect definitions."""

    def __init__(
        self, folder: Path, paths: Sequence[Path], definitions: Sequence[RegexDialect]
    ) -> None:
        """`folder` contains all cache files and need not exist."""
        self._folder = folder
        identity = (
            sorted(map(os.fspath, paths)),
            list(definitions),
            _get_parser_hash(with_definitions=bool(definitions)),
        )
        identity_bytes = repr(identity).encode("utf-8", "surrogatepass")
        self._identity = hashlib.sha256(identity_bytes).digest()
        self._file = folder / f"{self._identity.hex()[:32]}{SUFFIX}"
        # The cached results that were requested, and the new results.
        self._used: list[FileReading] = []

    def exists(self) -> bool:
        """True if an earlier session wrote the cache file. False if that is unknown."""
        # `Path.exists` raises for a folder that this user cannot examine
        return os.path.exists(self._file)

    def find_unchanged(
        self, files: Sequence[FileToRead]
    ) -> dict[FileToRead, ReadResult]:
        """Return the cached results of the files that are unchanged.

        A damaged cache counts as empty.
        """
        now = time.time_ns()
        cached = {reading.file: reading for reading in self._load()}
        unchanged = [
            reading
            for reading in map(cached.get, files)
            if reading
            and is_consistent(reading)
            and reading.state == read_state(reading.file.path, now, reading.state)
        ]
        self._used += unchanged
        return {reading.file: reading.result for reading in unchanged}

    def keep(self, new: Sequence[FileReading]) -> None:
        """Write the cache file: the new results, and the cached results that were used.

        Cached results that `find_unchanged` did not return are dropped. Does nothing if
        there are only few new results, or the folder is not writable.
        """
        new = [reading for reading in new if reading.state]
        size = sum(reading.state.size for reading in new if reading.state)
        if len(new) < WORTH_FILES and size < WORTH_BYTES:
            return
        from pytest_llmbench.logs.sources.zstd import zstd

        with contextlib.suppress(OSError, MemoryError):
            # Most columns of steps repeat one value, so compression saves 97 % of the
            # bytes, which matters if the home directory is on NFS.
            packed = pack([*self._used, *_hide_secrets(new)])
            data = zstd.compress(packed, level=1)
            if len(packed) > UNPACKED or len(data) > LARGEST // 2:
                return
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_ours(os.stat(self._folder)):
                signature = self._sign(data, self._make_key())
                self._write(self._file, _HEADER.pack(MAGIC, signature) + data)
                self._used += new
                self._remove_unused_files()

    def _load(self) -> Sequence[FileReading]:
        """Return the contents of the cache file.

        Empty if the file is missing, damaged, of another version or not trusted.
        """
        from pytest_llmbench.logs.sources.zstd import zstd

        try:
            data = self._read_signed()
            size = zstd.get_frame_info(data).decompressed_size if data else None
            if size is None or size > UNPACKED:
                return ()
            return unpack(zstd.ZstdDecompressor().decompress(data, UNPACKED))
        except (OSError, MemoryError, ValueError, struct.error, zstd.ZstdError):
            return ()

    def _read_signed(self) -> bytes:
        """Return the data after the header, or b"" if they are not trusted."""
        if not _is_ours(os.stat(self._folder)):
            return b""
        content = _read_trusted(self._file, LARGEST)
        magic, signature = _HEADER.unpack_from(content)
        data = content[_HEADER.size :]
        key = _read_trusted(self._folder / KEY, KEY_BYTES)
        is_signed = hmac.compare_digest(signature, self._sign(data, key))
        return data if magic == MAGIC and is_signed else b""

    def _sign(self, data: bytes, key: bytes) -> bytes:
        """Return the signature of the cache file's identity and `data`.

        Raises ValueError if the key has the wrong length.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(
                f"found a cache key of {len(key)} bytes, expected {KEY_BYTES}"
            )
        return hmac.digest(key, self._identity + data, "sha256")

    def _make_key(self) -> bytes:
        """Return the signing key of the folder, creating the key if it is missing.

        Cache files that were signed with another key are ignored.
        """
        with contextlib.suppress(OSError):
            key = _read_trusted(self._folder / KEY, KEY_BYTES)
            if len(key) == KEY_BYTES:
                return key
        key = os.urandom(KEY_BYTES)
        self._write(self._folder / KEY, key)
        return key

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file of the cache folder, or replace it in one step."""
        # Written completely and then renamed, so a concurrent session never sees half a
        # file, on any file system. The last writer wins; results of the others are read
        # again.
        handle, name = tempfile.mkstemp(dir=self._folder, suffix=SUFFIX)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _remove_unused_files(self) -> None:
        """Remove cache files not used for OLDEST_SECONDS, and the least recently used.

        The remaining files have at most LARGEST bytes.
        """
        files = sorted(_list_files(self._folder), reverse=True)
        # The time of the file that was just written: a file server has its own clock.
        now = self._file.stat().st_mtime
        remaining = LARGEST
        for last_use, size, path in files:
            remaining -= size
            if remaining < 0 or now - last_use > OLDEST_SECONDS:
                path.unlink(missing_ok=True)


def _read_trusted(path: Path, limit: int) -> bytes:
    """Return the contents of a file that only this user can write, and mark it as used.

    Empty if others can write the file or it is larger than `limit` bytes. Raises
    OSError if it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if (
            not S_ISREG(status.st_mode)
            or not _is_ours(status)
            or status.st_size > limit
        ):
            return b""
        data = file.read(limit)
        with contextlib.suppress(OSError):
            os.utime(handle)  # `_remove_unused_files` keeps recently used files
    return data


def _hide_secrets(readings: Sequence[FileReading]) -> Iterator[FileReading]:
    """Yield the readings with this process's secrets redacted from quoted lines."""
    redactor = make_redactor()

    def hide(quote: Quote) -> Quote:
        """Redact the secrets in a quoted line."""
        return Quote(redactor.redact(quote))

    for reading in readings:
        result = reading.result
        if isinstance(result, ParsedLog):
            result = result.with_quotes(hide)
        elif isinstance(result, Ending):
            result = change_ending(result, hide)
        yield reading._replace(result=result)


@cache
def _get_parser_hash(*, with_definitions: bool) -> str:
    """Return the hash of the parser of this process, whose code is loaded once."""
    return hash_parser(with_definitions=with_definitions)


def hash_parser(*, with_definitions: bool) -> str:
    """Return a hash of everything that affects how logs are parsed.

    Covers the code, the interpreter and the libraries, with google-re2 if there are
    definitions.
    """
    # faster than SHA-256 on processors without instructions for it
    code = hashlib.blake2b(f"{sys.version}{sys.byteorder}".encode())
    package = Path(__file__).parents[2]
    parsers = sorted(
        path for name in PARSER_PACKAGES for path in (package / name).glob("**/*.py")
    )
    for path in parsers:
        code.update(path.read_bytes())
    if not parsers:  # installed without its source: versions cannot be distinguished
        code.update(os.urandom(32))
    from importlib.metadata import PackageNotFoundError, version

    libraries = [*LIBRARIES, "google-re2"] if with_definitions else LIBRARIES
    for library in libraries:
        with contextlib.suppress(PackageNotFoundError):
            code.update(f"{library} {version(library)}".encode())
    return code.hexdigest()


def _list_files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield (last use, size in bytes, path) of each cache file."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                yield status.st_mtime, status.st_size, Path(entry.path)


def _is_ours(status: os.stat_result) -> bool:
    """True if this user owns the file or folder and nobody else can write it."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
