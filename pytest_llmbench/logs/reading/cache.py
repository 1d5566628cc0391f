"""What logs said when they were last read, in a file of this user: an unchanged log is
not read again.

There is one file for each set of places that are read together, with everything that
was found below them.
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
# Magic, and the signature of what it is of and of the rest.
_HEADER = struct.Struct(f"={len(MAGIC)}s32s")

SUFFIX = ".logs"
# The file with which cache files are signed: what did not come from here, or was
# changed, is not trusted. Whoever can read it is this user, and could change this
# program as well.
KEY, KEY_BYTES = "key", 32
# Fewer new files with fewer bytes are read again sooner than a cache file is written.
WORTH_FILES, WORTH_BYTES = 50, 8 << 20
# Bytes of all cache files together.
LARGEST = 512 << 20
# Bytes that may come out of one: a compressed column of zeros could ask for any memory.
UNPACKED = 2 << 30
# All that a parser may import: a change of any file there may change what a log says.
PARSER_PACKAGES = ("logs", "core")
# What finds, decompresses and holds what a log says.
LIBRARIES = ("ahocorasick_rs", "hyperscan", "numpy")
# A cache file that was not used for so long is removed.
OLDEST_SECONDS = 30 * 86400


class LogCache:
    """The cache file of some places, as those who read them with these definitions
    share it."""

    def __init__(
        self, folder: Path, places: Sequence[Path], definitions: Sequence[RegexDialect]
    ) -> None:
        """Take the folder of all cache files, which need not exist, and what is
        read."""
        self._folder = folder
        self._of = hashlib.sha256(
            repr(
                (
                    sorted(map(os.fspath, places)),
                    list(definitions),
                    hash_parser(definitions),
                )
            ).encode("utf-8", "surrogatepass")
        ).digest()
        self._file = folder / f"{self._of.hex()[:32]}{SUFFIX}"
        self._used: list[FileReading] = []

    def find_unchanged(
        self, files: Sequence[FileToRead]
    ) -> dict[FileToRead, ReadResult]:
        """Return what those of the files say that have not changed since they were
        read; damage is no error."""
        now = time.time_ns()
        cached = {reading.file: reading for reading in self._load()}
        used = [
            reading
            for reading in map(cached.get, files)
            if reading
            and is_consistent(reading)
            and reading.state == read_state(reading.file.path, now, reading.state)
        ]
        self._used += used
        return {reading.file: reading.result for reading in used}

    def keep(self, new: Sequence[FileReading]) -> None:
        """Add what was read now, and drop what was not asked for; a folder that cannot
        be written is no error."""
        new = [reading for reading in new if reading.state]
        if (
            len(new) < WORTH_FILES
            and sum(reading.state.size for reading in new if reading.state)
            < WORTH_BYTES
        ):
            return
        from pytest_llmbench.logs.sources.zstd import zstd

        with contextlib.suppress(OSError, MemoryError):
            # Most columns of steps repeat one value: a thirtieth of the bytes, and of
            # what a home on NFS has to carry.
            packed = pack([*self._used, *_hide_secrets(new)])
            data = zstd.compress(packed, level=1)
            if len(packed) > UNPACKED or len(data) > LARGEST // 2:
                return
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_ours(os.stat(self._folder)):
                self._write(
                    self._file,
                    _HEADER.pack(MAGIC, self._sign(data, self._make_key())) + data,
                )
                self._used += new
                self._tidy()

    def _load(self) -> Sequence[FileReading]:
        """Return what the cache file holds: nothing where it is absent, damaged, of
        another version or of others."""
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
        """Return what is behind the header of the cache file, empty where it is not to
        be trusted."""
        if not _is_ours(os.stat(self._folder)):
            return b""
        content = _read_own(self._file, LARGEST)
        magic, signature = _HEADER.unpack_from(content)
        data = content[_HEADER.size :]
        signed = hmac.compare_digest(
            signature, self._sign(data, _read_own(self._folder / KEY, KEY_BYTES))
        )
        return data if magic == MAGIC and signed else b""

    def _sign(self, data: bytes, key: bytes) -> bytes:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes")
        return hmac.digest(key, self._of + data, "sha256")

    def _make_key(self) -> bytes:
        """Return the key of this folder, a new one where there is none: what was signed
        with another counts as none."""
        with contextlib.suppress(OSError):
            if len(key := _read_own(self._folder / KEY, KEY_BYTES)) == KEY_BYTES:
                return key
        key = os.urandom(KEY_BYTES)
        self._write(self._folder / KEY, key)
        return key

    def _write(self, path: Path, data: bytes) -> None:
        # Written as a whole and renamed: sessions side by side, on any file system,
        # never see half of one. The last of them counts; what another one had read is
        # read again.
        handle, name = tempfile.mkstemp(dir=self._folder, suffix=SUFFIX)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _tidy(self) -> None:
        """Remove the cache files that were not used for long, and of the others the
        last used beyond LARGEST."""
        files = sorted(_list_files(self._folder), reverse=True)
        now = (
            self._file.stat().st_mtime
        )  # written just now; a file server has a clock of its own
        left = LARGEST
        for used, size, path in files:
            left -= size
            if left < 0 or now - used > OLDEST_SECONDS:
                path.unlink(missing_ok=True)


def _read_own(path: Path, most: int) -> bytes:
    """Return what is in a file of this user, empty where others may write it or it is
    larger; OSError if none can."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not S_ISREG(status.st_mode) or not _is_ours(status) or status.st_size > most:
            return b""
        data = file.read(most)
        with contextlib.suppress(OSError):
            os.utime(handle)  # those used last are kept longest
    return data


def _hide_secrets(readings: Sequence[FileReading]) -> Iterator[FileReading]:
    """Yield what is kept: no secret of this process stands in it, where a log quotes
    one."""
    redactor = make_redactor()

    def hide(quote: Quote) -> Quote:
        return Quote(redactor.redact(quote))

    for reading in readings:
        result = reading.result
        if isinstance(result, ParsedLog):
            result = result.with_quotes(hide)
        elif isinstance(result, Ending):
            result = change_ending(result, hide)
        yield reading._replace(result=result)


def hash_parser(definitions: Sequence[RegexDialect]) -> str:
    """Return what changes whenever a log might be read otherwise: the code, the
    interpreter, and the packages that read, that of regular expressions where
    definitions use it."""
    code = hashlib.sha256(f"{sys.version}{sys.byteorder}".encode())
    package = Path(__file__).parents[2]
    parsers = sorted(
        path for name in PARSER_PACKAGES for path in (package / name).glob("**/*.py")
    )
    for path in parsers:
        code.update(path.read_bytes())
    if (
        not parsers
    ):  # installed without its source: nothing tells one version from another
        code.update(os.urandom(32))
    from importlib.metadata import PackageNotFoundError, version

    for library in (*LIBRARIES, *(("google-re2",) if definitions else ())):
        with contextlib.suppress(PackageNotFoundError):
            code.update(f"{library} {version(library)}".encode())
    return code.hexdigest()


def _list_files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield when each cache file was used last, how large it is, and its path."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                yield status.st_mtime, status.st_size, Path(entry.path)


def _is_ours(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and nobody else may write it."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
