"""Read the text of any file in blocks, decompressed.

The first bytes determine the compression; the name does not matter.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Protocol

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.sources.files import BLOCK, RATIO, UNSUSPECTED, slice_blocks
from pytest_llmbench.logs.sources.metric_files import (
    EVENTS_HEAD,
    FIRST_LINE,
    Renderer,
    choose_renderer,
    needs_first_line,
)

# Compressed bytes per call of gzip: they make at most 4 MiB of text.
SLICE = 4096

# Bytes of text per call of the other decoders, which can make gigabytes of a slice:
# bzip2 makes 4 GiB of 3 kB. (gzip would need the unused input of a slice again.)
LARGEST_PART = 1 << 20

# A compressed file may contain at most 256 GiB of text.
LARGEST = 1 << 38

# Memory limit of a decoder, in bytes: enough for xz at any level and for zstd without
# `--long=28` or more.
WINDOW_LOG = 27
WINDOW = 1 << WINDOW_LOG

# Number of first bytes that determine the compression or type of a file.
HEAD = EVENTS_HEAD

# One group per compression, named after it.
MAGIC = compile_on_use(
    rb"(?P<gzip>\x1f\x8b)"
    # a frame, or a skippable frame, with which pzstd begins
    rb"|(?P<zstd>\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"
    rb"|(?P<xz>\xfd7zXZ\x00)"
    rb"|(?P<bzip2>BZh[1-9](?:1AY&SY|\x17rE8P\x90))"
    # not supported, but must not be read as another format
    rb"|(?P<zip>PK\x03\x04)"
)


class Decoder(Protocol):
    """Decoder of one member, frame or stream."""

    @property
    def eof(self) -> bool:
        """True if the end was reached."""

    @property
    def unused_data(self) -> bytes:
        """The data after the end."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return at most `max_length` bytes of text. Call it with b"" to continue."""


class Stream:
    """The text of a file in blocks, to be read once.

    After reading, `method` is the compression ("" without), and `is_truncated` is True
    if the compressed data are truncated. Iterating raises LogError for damaged data.
    """

    def __init__(self, blocks: Iterable[bytes], path: Path) -> None:
        """`blocks` are the bytes of the file. `path` is used in messages."""
        self._blocks = blocks
        self.path = path
        self.method = ""
        self.is_truncated = False

    def __iter__(self) -> Iterator[bytes]:
        """Return an iterator over the text, chosen by the name and the first bytes."""
        blocks = iter(self._blocks)
        head = b""
        while not is_head_sufficient(self.path.name, head):
            block = next(blocks, b"")
            if not block:
                break
            head += block
        self.method = find_compression(head)
        if self.method == "zip":
            raise LogError(
                f"{self.path} is a zip archive, which is not supported: unpack it and give its folder"
            )
        all_blocks = chain([head] if head else [], blocks)
        if self.method:
            return _join_blocks(self._decompress(all_blocks))
        renderer = choose_renderer(self.path.name, head)
        if renderer:
            return _join_blocks(self._render(renderer, all_blocks))
        return all_blocks

    def _render(self, renderer: Renderer, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the lines made from a file of metrics."""
        try:
            for block in blocks:
                yield renderer.render(block)
        except ValueError as error:
            raise LogError(
                f"the events of {self.path} are damaged: {error}; copy the file again"
            ) from error
        yield renderer.finish()
        self.method, self.is_truncated = "event", renderer.unfinished

    def _decompress(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the text of all members. Zeros between members are padding."""
        consumed = produced = 0
        decoder: Decoder | None = None
        for piece in slice_blocks(blocks, SLICE):
            consumed += len(piece)
            unused = piece
            while unused:
                if decoder is None:
                    unused = unused.lstrip(b"\0")
                    if not unused:
                        break
                    decoder = _DECODERS[self.method]()
                for text in self._iterate_parts(decoder, unused, produced):
                    produced += len(text)
                    self._refuse_bomb(consumed, produced)
                    yield text
                unused = b""
                if decoder.eof:
                    unused = decoder.unused_data
                    decoder = None
        # A decoder that has not reached the end of its member remains.
        self.is_truncated = decoder is not None

    def _iterate_parts(
        self, decoder: Decoder, data: bytes, offset: int
    ) -> Iterator[bytes]:
        """Yield the text of `data`, the next compressed bytes.

        `offset` is the length of the text so far.
        """
        text = self._decompress_part(decoder, data, offset)
        # gzip has returned all text; the others return LARGEST_PART bytes at most
        while text and self.method != "gzip" and not decoder.eof:
            yield text
            offset += len(text)
            text = self._decompress_part(decoder, b"", offset)
        yield text

    def _decompress_part(self, decoder: Decoder, data: bytes, offset: int) -> bytes:
        """Decompress one part. Raises LogError, with `offset`, for damaged data."""
        try:
            # 0 is no limit: gzip returns all text of its SLICE at once.
            most_bytes = 0 if self.method == "gzip" else LARGEST_PART
            return decoder.decompress(data, most_bytes)
        except _list_decoder_errors() as error:
            raise LogError(
                f"the {self.method} data of {self.path} are damaged after {offset} bytes of text: {error}; "
                "copy or compress it again"
            ) from error
        except MemoryError as error:
            raise LogError(
                f"the {self.method} data of {self.path} need more memory than is available, after {offset} bytes of text"
            ) from error

    def _refuse_bomb(self, consumed: int, produced: int) -> None:
        """Raise LogError if a file has too much text for its compressed bytes.

        `consumed` are the compressed bytes so far, `produced` the bytes of text.
        """
        is_bomb = produced > UNSUSPECTED and produced > RATIO * consumed
        if is_bomb or produced > LARGEST:
            raise LogError(
                f"{self.path}: {consumed} compressed bytes contain {produced} bytes of text or more; no log compresses like that (the "
                f"limit is {RATIO} times the compressed bytes or {UNSUSPECTED} bytes, and {LARGEST} bytes in any case)"
            )


def find_compression(head: bytes) -> str:
    """Return the compression of data with these first bytes, "" if uncompressed."""
    match = MAGIC.match(head)
    return (match.lastgroup or "") if match else ""


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


def _list_decoder_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that decoders raise for invalid data."""
    import lzma

    from pytest_llmbench.logs.sources.zstd import zstd

    return zlib.error, lzma.LZMAError, zstd.ZstdError, OSError, EOFError, ValueError


def _join_blocks(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks large enough to be searched efficiently."""
    pieces: list[bytes] = []
    size = 0
    for text in texts:
        pieces.append(text)
        size += len(text)
        if size >= BLOCK:
            yield b"".join(pieces)
            pieces, size = [], 0
    if size:
        yield b"".join(pieces)


def is_head_sufficient(name: str, head: bytes) -> bool:
    """True if these first bytes suffice to decide how the file is read."""
    if len(head) < HEAD:
        return False
    return not needs_first_line(name) or b"\n" in head or len(head) >= FIRST_LINE


def is_converted(name: str, head: bytes) -> bool:
    """True if a file with these first bytes is compressed or a file of metrics.

    Its text then differs from its bytes.
    """
    return bool(find_compression(head)) or choose_renderer(name, head) is not None


def is_compressed(path: str) -> bool:
    """True if a file of this machine is compressed or a file of metrics.

    False if it cannot be opened.
    """
    name = os.path.basename(path)
    head_size = FIRST_LINE if needs_first_line(name) else HEAD
    try:
        with open(path, "rb") as file:
            return is_converted(name, file.read(head_size))
    except OSError:
        return False
