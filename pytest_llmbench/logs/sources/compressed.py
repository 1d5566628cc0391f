"""The text of any file in blocks, decompressed while it is read. Its first bytes say
how it is compressed; its name says nothing."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Protocol

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.logs.sources.files import BLOCK, RATIO, UNSUSPECTED, slice_blocks
from pytest_llmbench.logs.sources.metric_files import (
    EVENTS_HEAD,
    FIRST_LINE,
    Renderer,
    choose_renderer,
    needs_first_line,
)

# Compressed bytes that are decompressed at once: gzip makes at most 4 MiB of text of
# them.
SLICE = 4096

# Bytes of text per call of the other decoders, which can make gigabytes of a slice:
# bzip2 makes 4 GiB of 3 kB. (gzip's would have to be given the rest of a slice again.)
LARGEST_PART = 1 << 20

# No more than 256 GiB come out of a compressed file.
LARGEST = 1 << 38

# Bytes of memory that the data may ask for: what zstd without `--long=28` or more and
# xz at any level need.
WINDOW_LOG = 27
WINDOW = 1 << WINDOW_LOG

# Bytes that tell how a file is compressed, or what else it is.
HEAD = EVENTS_HEAD

MAGIC = {
    "gzip": rb"\x1f\x8b",
    # a frame, or one to be skipped, with which pzstd begins
    "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
    "xz": rb"\xfd7zXZ\x00",
    "bzip2": rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)",
    # an archive that is not read, for which no other reading must stand
    "zip": rb"PK\x03\x04",
}


class Decoder(Protocol):
    """What decompresses one member, frame or stream."""

    @property
    def eof(self) -> bool:
        """Whether the end was reached."""

    @property
    def unused_data(self) -> bytes:
        """What stands behind the end."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return the text of more data, or a part of it: without data the next part."""


class Stream:
    """The text of a file in blocks, to be read once. After that `method` says how the
    file was compressed (empty: it was not), and `cut` whether its compressed data end
    before their end. Iterating raises LogError for damaged data.
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
        while not is_head(self.path.name, head) and (block := next(blocks, b"")):
            head += block
        self.method = find_method(head)
        if self.method == "zip":
            raise LogError(
                f"{self.path} is a zip archive, which is not read: unpack it, and give its folder"
            )
        whole = chain([head] if head else [], blocks)
        renderer = None if self.method else choose_renderer(self.path.name, head)
        if renderer:
            return _gather(self._render(renderer, whole))
        return _gather(self._decompress(whole)) if self.method else whole

    def _render(self, renderer: Renderer, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the lines that a file of metrics makes."""
        try:
            for block in blocks:
                yield renderer.render(block)
        except ValueError as error:
            raise LogError(
                f"the events of {self.path} are damaged: {error}; copy the file again"
            ) from error
        yield renderer.finish()
        self.method, self.cut = "event", renderer.unfinished

    def _decompress(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the text of every member of the data; zeros between members are
        padding."""
        taken = produced = 0
        decoder: Decoder | None = None
        for piece in slice_blocks(blocks, SLICE):
            taken += len(piece)
            rest = piece
            while rest := rest if decoder else rest.lstrip(b"\0"):
                decoder = decoder or _DECODERS[self.method]()
                for text in self._iterate_parts(decoder, rest, produced):
                    produced += len(text)
                    self._refuse_bomb(taken, produced)
                    yield text
                rest = decoder.unused_data if decoder.eof else b""
                decoder = None if decoder.eof else decoder
        self.cut = decoder is not None

    def _iterate_parts(
        self, decoder: Decoder, data: bytes, place: int
    ) -> Iterator[bytes]:
        """Yield the text of more data, which begins at a place of the whole text."""
        text = self._decompress_part(decoder, data, place)
        while text and self.method != "gzip" and not decoder.eof:
            yield text
            place += len(text)
            text = self._decompress_part(decoder, b"", place)
        yield text

    def _decompress_part(self, decoder: Decoder, data: bytes, place: int) -> bytes:
        try:
            return decoder.decompress(
                data, 0 if self.method == "gzip" else LARGEST_PART
            )
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
    return next(
        (method for method, magic in MAGIC.items() if re.match(magic, head, re.DOTALL)),
        "",
    )


def _make_gzip() -> Decoder:
    return zlib.decompressobj(wbits=31)


def _make_zstd() -> Decoder:
    from pytest_llmbench.logs.sources.zstd import zstd

    return zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG}
    )


def _make_xz() -> Decoder:
    import lzma

    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=WINDOW)


def _make_bzip2() -> Decoder:
    import bz2

    return bz2.BZ2Decompressor()


_DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": _make_gzip,
    "zstd": _make_zstd,
    "xz": _make_xz,
    "bzip2": _make_bzip2,
}


def _list_errors() -> tuple[type[Exception], ...]:
    """Return what the decoders raise for data that are none."""
    import lzma

    from pytest_llmbench.logs.sources.zstd import zstd

    return zlib.error, lzma.LZMAError, zstd.ZstdError, OSError, EOFError, ValueError


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


def is_head(name: str, head: bytes) -> bool:
    """Whether the beginning of a file of this name is enough to know how its text is
    read."""
    if len(head) < HEAD:
        return False
    return not needs_first_line(name) or b"\n" in head or len(head) >= FIRST_LINE


def is_made_text(name: str, head: bytes) -> bool:
    """Whether the text of a file that begins so is another one than its bytes."""
    return bool(find_method(head)) or choose_renderer(name, head) is not None


def is_compressed(path: str) -> bool:
    """Whether a file of this machine begins like one whose text is made; not so where
    it cannot be opened."""
    name = os.path.basename(path)
    try:
        with open(path, "rb") as file:
            return is_made_text(
                name, file.read(FIRST_LINE if needs_first_line(name) else HEAD)
            )
    except OSError:
        return False
