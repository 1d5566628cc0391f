"""A file of this machine that others may be writing, as it was when it was opened; and the text of any file in blocks,
decompressed while it is read. The first bytes of a file say how it is compressed; its name says nothing."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pytest_llmbench.core.errors import LogError

if TYPE_CHECKING:
    from bz2 import BZ2Decompressor
    from lzma import LZMADecompressor

BLOCK = 1 << 20

# Files of more bytes are not compared whole: to hash one takes longer than to search it for steps with several threads.
COMPARED_WHOLE = 8 << 20

# What is written through `mmap` into a page that is still to be written back moves no time: measured on ext4, after
# 36 s it did again, the 30 s of `vm.dirty_expire_centisecs` and the 5 s of its timer. Laptops keep pages for 10
# minutes, clients of NFS the times of a file for one. A file that changed longer ago than this has no such page.
LATE_WRITES_NS = 3600 * 10**9

# Nothing is written back there, so no time moves after the first writing, however late the next one is.
IN_MEMORY = frozenset(("tmpfs", "ramfs"))
MOUNTS = "/proc/self/mountinfo"  # which file systems there are


class FileState(NamedTuple):
    """What has to be the same for a file to count as unchanged."""

    size: int
    digest: str  # of all its bytes; of a file of more than COMPARED_WHOLE, of samples
    # of such a file its inode, device, and times of the last writing and of the last change of anything (ns)
    numbers: tuple[int, ...] = ()


# How many bytes the samples of a large file have.
SAMPLES = 4096

_CHANGED = "changed while it was read ({what}): read it again when nobody writes it"


class File:
    """A regular file as it was when it was opened: what is appended later is left out. Several threads may read it.

    LogError where it is no regular file (nothing else is ever opened to wait for a writer) or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        """Open it; to be used with `with`."""
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _make_error(path, error) from error
        try:
            self._opened = os.fstat(self._handle)
        except OSError as error:
            self._close()
            raise _make_error(path, error) from error
        self.size = self._opened.st_size
        self.identity = self._opened.st_dev, self._opened.st_ino
        self.modified = self._opened.st_mtime  # seconds since 1970, by the clock of its file system
        if not S_ISREG(self._opened.st_mode):
            self._close()
            raise LogError(f"cannot read {path}: not a regular file")
        if self.size > UNSUSPECTED and not _holds_data(self._handle, self.size // RATIO):
            self._close()
            raise LogError(
                f"{path} has {self.size} bytes, of which less than a {RATIO}th were ever written: the rest are holes, "
                f"and a log of more than {UNSUSPECTED} has none like that"
            )

    def __enter__(self) -> File:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        with suppress(OSError):  # all was read by then, and checked
            os.close(self._handle)

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes of a part; LogError where they are not there any more."""
        data = b""
        while len(data) < end - begin:
            try:
                more = os.pread(self._handle, end - begin - len(data), begin + len(data))
            except OSError as error:
                raise _make_error(self.path, error) from error
            if not more:
                self._refuse_short(begin + len(data))
            data = data + more if data else more
        return data

    def blocks(self) -> Iterator[bytes]:
        """Yield all of it; LogError, too, where it changed meanwhile other than by growing."""
        head = b""
        for begin in range(0, self.size, BLOCK):
            block = self.read(begin, min(begin + BLOCK, self.size))
            head = head or block
            yield block
        self.refuse_changed(head)

    def refuse_changed(self, head: bytes) -> None:
        """LogError where it was shortened, replaced, deleted or written anew; `head` is what was read at its begin."""
        try:
            change = self._find_change(head)
        except OSError as error:
            raise _make_error(self.path, error) from error
        if change:
            raise LogError(f"{self.path}: {_CHANGED.format(what=change)}")

    def _find_change(self, head: bytes) -> str:
        """Return what became of the file since it was opened, empty where it is the same or has only grown."""
        try:
            named = self.path.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return "it was deleted or moved"
            raise
        if (named.st_dev, named.st_ino) != self.identity:
            return "another file has its name"
        if os.fstat(self._handle).st_size < self.size:
            return "it was shortened"
        if os.pread(self._handle, len(head), 0) != head:  # shortened and written beyond its old size again
            return "it begins otherwise"
        return ""

    def _refuse_short(self, place: int) -> None:
        missing = f"it is {self.size - place} bytes shorter than at its opening"
        raise LogError(f"{self.path}: {_CHANGED.format(what=missing)}")


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes that a file had when it was opened, which is when the first block is asked for.

    LogError where it cannot be read, or changed meanwhile other than by growing.
    """
    with File(path) as file:
        yield from file.blocks()


def _make_error(path: Path, error: OSError) -> LogError:
    return LogError(f"cannot read {path}: {error.strerror or error}")


def _holds_data(handle: int, least: int) -> bool:
    """Whether so many bytes of a file were written: a hole of terabytes takes no room on a disk, and hours to read."""
    if not hasattr(os, "SEEK_DATA"):
        return True
    place = written = 0
    try:
        while written < least:
            place = os.lseek(handle, place, os.SEEK_DATA)
            end = os.lseek(handle, place, os.SEEK_HOLE)
            written, place = written + end - place, end
    except OSError as error:
        return error.errno != errno.ENXIO  # which says that only a hole follows; else it cannot be told
    return True


def read_state(path: str, now_ns: int, like: FileState | None = None) -> FileState | None:
    """Return the state of a file; None where it has none that says that it did not change, or one of another size than
    `like` has: it cannot be read, or it is large and was changed lately, in the future, or where no time tells."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            size = status.st_size
            if not S_ISREG(status.st_mode) or (like is not None and like.size != size):
                return None
            if size <= COMPARED_WHOLE:
                return FileState(size, hashlib.sha256(os.pread(handle, size, 0)).hexdigest())
            if now_ns - max(status.st_mtime_ns, status.st_ctime_ns) < LATE_WRITES_NS or lies_in_memory(status):
                return None
            places = (0, size // 3, size * 2 // 3, size - SAMPLES)
            digest = hashlib.sha256(b"".join(os.pread(handle, SAMPLES, place) for place in places))
        finally:
            os.close(handle)
    except OSError:
        return None
    numbers = status.st_ino, status.st_dev, status.st_mtime_ns, status.st_ctime_ns
    return FileState(size, digest.hexdigest(), numbers)


def lies_in_memory(status: os.stat_result) -> bool:
    """Whether a file is on a file system that writes nothing back; so it is where that cannot be told."""
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    with open(MOUNTS, encoding="utf-8", errors="replace") as mounts:
        fields = (line.split() for line in mounts)
        return any(mount[2] == device and mount[mount.index("-") + 1] in IN_MEMORY for mount in fields)


class WholeFile:
    """The bytes of a file, to be read once as `read_blocks` yields them, and then the state that the file had."""

    def __init__(self, path: Path) -> None:
        """Take its path: it is opened when it is iterated."""
        self._path = path
        self._digest = hashlib.sha256()
        self._size = 0

    def __iter__(self) -> Iterator[bytes]:
        for block in read_blocks(self._path):
            self._digest.update(block)
            self._size += len(block)
            yield block

    @property
    def state(self) -> FileState:
        """The state of the bytes that were read."""
        return FileState(self._size, self._digest.hexdigest())


# --- compressed data ---------------------------------------------------------------------------------------

# Compressed bytes that are decompressed at once: of them gzip makes at most 4 MiB of text, and zstd 32 MiB.
SLICE = 4096
ZSTD_SLICE = 1024

# Bytes of text that xz and bzip2 give at once. They can make any number of a slice: of 3 kB bzip2 makes 4 GiB.
LARGEST_PART = 1 << 20

# Bytes that may come out of a file at any ratio.
UNSUSPECTED = 1 << 30

# Beyond UNSUSPECTED, more bytes of text than this for one compressed byte are no log's but a bomb's.
RATIO = 500

# No more than 256 GiB come out of a compressed file.
LARGEST = 1 << 38

# Bytes of memory that the data may ask for: what zstd without `--long=28` or more and xz at any level need.
WINDOW = 1 << 27

# Bytes that tell how a file is compressed.
HEAD = 10

MAGIC = {
    "gzip": rb"\x1f\x8b",
    "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",  # a frame, or one to be skipped, with which pzstd begins
    "xz": rb"\xfd7zXZ\x00",
    "bzip2": rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)",
}


class Decoder(Protocol):
    """What decompresses one member, frame or stream."""

    @property
    def eof(self) -> bool:
        """Whether the end was reached."""

    @property
    def unused_data(self) -> bytes:
        """What stands behind the end."""

    def decompress(self, data: bytes, /) -> bytes:
        """Return the text of more data."""


class LimitedDecoder:
    """A decoder of bzip2 or xz that gives its text in parts: what is left of it comes for no more data."""

    def __init__(self, decoder: BZ2Decompressor | LZMADecompressor) -> None:
        self._decoder = decoder

    @property
    def eof(self) -> bool:
        """Whether the end was reached."""
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        """What stands behind the end."""
        return self._decoder.unused_data

    def decompress(self, data: bytes, /) -> bytes:
        """Return the next part of the text."""
        return self._decoder.decompress(data, LARGEST_PART)


class Stream:
    """The text of a file in blocks, to be read once. After that `method` says how the file was compressed (empty: it
    was not), and `cut` whether its compressed data end before their end. Iterating raises LogError for damaged data.
    """

    def __init__(self, blocks: Iterable[bytes], path: Path) -> None:
        """Take the bytes of a file, and its path for messages."""
        self._blocks = blocks
        self.path = path
        self.method = ""
        self.cut = False

    def __iter__(self) -> Iterator[bytes]:
        blocks = iter(self._blocks)
        head = b""
        while len(head) < HEAD and (block := next(blocks, b"")):
            head += block
        self.method = find_method(head)
        whole = chain([head] if head else [], blocks)
        return _gather(self._decompress(whole)) if self.method else whole

    def _decompress(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the text of every member of the data; zeros between members are padding."""
        taken = produced = 0
        decoder: Decoder | None = None
        for piece in _slice_blocks(blocks, ZSTD_SLICE if self.method == "zstd" else SLICE):
            taken += len(piece)
            rest = piece
            while rest := rest if decoder else rest.lstrip(b"\0"):
                decoder = decoder or _make_decoder(self.method)
                for text in self._iterate_parts(decoder, rest, produced):
                    produced += len(text)
                    self._refuse_bomb(taken, produced)
                    yield text
                rest = decoder.unused_data if decoder.eof else b""
                decoder = None if decoder.eof else decoder
        self.cut = decoder is not None

    def _iterate_parts(self, decoder: Decoder, data: bytes, place: int) -> Iterator[bytes]:
        """Yield the text of more data, which begins at a place of the whole text."""
        text = self._decompress_part(decoder, data, place)
        while text and isinstance(decoder, LimitedDecoder) and not decoder.eof:
            yield text
            place += len(text)
            text = self._decompress_part(decoder, b"", place)
        yield text

    def _decompress_part(self, decoder: Decoder, data: bytes, place: int) -> bytes:
        try:
            return decoder.decompress(data)
        except _list_errors() as error:
            raise LogError(
                f"the {self.method} data of {self.path} are damaged after {place} bytes of text: {error}; "
                "copy or compress it again"
            ) from error
        except MemoryError as error:
            raise LogError(
                f"the {self.method} data of {self.path} ask for more memory than there is, after {place} bytes of text"
            ) from error

    def _refuse_bomb(self, taken: int, produced: int) -> None:
        if produced > LARGEST or (produced > UNSUSPECTED and produced > RATIO * taken):
            raise LogError(
                f"{taken} bytes of {self.path} make {produced} bytes of text or more: expected at most {RATIO} times "
                f"as many as it has, or {UNSUSPECTED}, and never more than {LARGEST}; no log is compressed like that"
            )


def find_method(head: bytes) -> str:
    """Return how data that begin so are compressed, empty if they are not."""
    return next((method for method, magic in MAGIC.items() if re.match(magic, head, re.DOTALL)), "")


def _make_decoder(method: str) -> Decoder:
    return _DECODERS[method]()


def _make_gzip() -> Decoder:
    return zlib.decompressobj(wbits=31)


def _make_zstd() -> Decoder:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=WINDOW).decompressobj()


def _make_xz() -> Decoder:
    import lzma

    return LimitedDecoder(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=WINDOW))


def _make_bzip2() -> Decoder:
    import bz2

    return LimitedDecoder(bz2.BZ2Decompressor())


_DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": _make_gzip,
    "zstd": _make_zstd,
    "xz": _make_xz,
    "bzip2": _make_bzip2,
}


def _list_errors() -> tuple[type[Exception], ...]:
    """Return what the decoders raise for data that are none."""
    import lzma

    import zstandard

    return zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError, ValueError


def _slice_blocks(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    return (block[begin : begin + size] for block in blocks for begin in range(0, len(block), size))


def _gather(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of a size that is worth searching."""
    pieces: list[bytes] = []
    size = 0
    for part in parts:
        pieces.append(part)
        size += len(part)
        if size >= BLOCK:
            yield b"".join(pieces)
            pieces, size = [], 0
    if size:
        yield b"".join(pieces)


def is_compressed(path: str) -> bool:
    """Whether a file of this machine begins like a compressed one; not so where it cannot be opened."""
    try:
        with open(path, "rb") as file:
            return bool(find_method(file.read(HEAD)))
    except OSError:
        return False
