"""Decompression while reading: all methods, members, slices, truncation, damage and
bombs."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.logs.log_reader import read_log
from pytest_llmbench.logs.sources import compressed
from pytest_llmbench.logs.sources.compressed import SLICE, Stream
from pytest_llmbench.logs.sources.zstd import zstd

TEXT = b"".join(b"step %d of 15000, loss 4.2\n" % number for number in range(15_000))
CHECKSUM: dict[int, int] = {
    zstd.CompressionParameter.checksum_flag: 1
}  # as the command `zstd` writes
METHODS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": partial(zstd.compress, options=CHECKSUM),
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}
SKIPPED = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
"""A frame that zstd skips: pzstd begins with one."""


def stream(data: bytes, size: int = 1 << 20) -> Stream:
    return Stream(
        (data[index : index + size] for index in range(0, len(data), size)),
        Path("x.log"),
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, SLICE + 1, 1 << 20])
def test_decompression_does_not_depend_on_block_size(method: str, size: int) -> None:
    text = TEXT[:20_000]
    result = stream(METHODS[method](text), size)
    assert b"".join(result) == text
    assert (result.method, result.is_truncated) == (method, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "between"),
    [("gzip", b"\0" * 512), ("zstd", SKIPPED), ("xz", b"\0" * 8), ("bzip2", b"")],
)
def test_all_compressed_members_of_a_file_are_read(method: str, between: bytes) -> None:
    pack = METHODS[method]
    result = stream(
        pack(TEXT[:1000]) + between + pack(b"") + pack(TEXT[1000:]) + between
    )
    assert b"".join(result) == TEXT
    assert not result.is_truncated


@pytest.mark.parametrize("data", [b"", b"BZhello, a log", b"\xfd7zXZ", TEXT])
def test_uncompressed_text_is_unchanged(data: bytes) -> None:
    result = stream(data, 3)
    assert b"".join(result) == data
    assert (result.method, result.is_truncated) == ("", False)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_truncated_data_give_their_text_and_are_flagged(method: str) -> None:
    data = METHODS[method](TEXT)
    for end in (len(data) - 1, len(data) // 2, 12):
        result = stream(data[:end])
        assert TEXT.startswith(b"".join(result))
        assert result.is_truncated, end


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_text_after_the_last_member_is_damage(method: str) -> None:
    with pytest.raises(
        LogError,
        match=rf"the {method} data of x\.log are damaged after {len(TEXT)} bytes of text",
    ):
        b"".join(stream(METHODS[method](TEXT) + b"step 7 of 15000, loss 4.2\n"))


def test_text_after_damage_is_never_returned() -> None:
    data = bytearray(gzip.compress(TEXT))
    data[-6] ^= 1  # in the checksum
    with pytest.raises(
        LogError, match="incorrect data check; copy or compress it again"
    ):
        b"".join(stream(bytes(data)))


def test_frame_with_too_large_window_is_refused() -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 29})
    data = (
        packer.compress(TEXT) + packer.flush()
    )  # in one call it would state the size of the text
    with pytest.raises(LogError, match="requires too much memory"):
        b"".join(stream(data))


def zeros(size: int) -> Iterator[bytes]:
    """Yield the gzip data of `count` zeros."""
    packer = zlib.compressobj(9, wbits=31)
    for _ in range(size >> 20):
        yield packer.compress(bytes(1 << 20))
    yield packer.flush()


@pytest.mark.slow
def test_decompression_bomb_is_refused_by_its_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compressed, "UNSUSPECTED", 1 << 22)
    assert sum(map(len, Stream(zeros(1 << 22), Path("x")))) == 1 << 22
    with pytest.raises(LogError, match="no log compresses like that"):
        sum(map(len, Stream(zeros(1 << 24), Path("x"))))


def test_text_beyond_the_size_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compressed, "LARGEST", 1 << 18)
    with pytest.raises(LogError, match="and 262144 bytes in any case"):
        b"".join(stream(gzip.compress(TEXT)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "most"),
    [("gzip", 1 << 23), ("zstd", 1 << 25), ("xz", 1 << 21), ("bzip2", 1 << 21)],
)
def test_decompressed_pieces_are_small(method: str, most: int) -> None:
    """The maximum per slice: zstd blocks that repeat one byte. bzip2 makes any number
    of bytes from one."""
    total = 4 * most
    blocks = [len(block) for block in stream(METHODS[method](bytes(total)))]
    assert max(blocks) <= most
    assert sum(blocks) == total


@pytest.mark.slow
@pytest.mark.parametrize("method", ["xz", "bzip2"])
@pytest.mark.parametrize("missing", [0, 5])
def test_truncated_data_give_all_available_text(method: str, missing: int) -> None:
    """A few bytes make many pieces of text, the last of which without further data."""
    data = METHODS[method](bytes(1 << 23))
    result = stream(data[: len(data) - missing])
    assert sum(map(len, result)) == 1 << 23
    assert result.is_truncated is (missing > 0)


def test_exhausted_memory_of_a_decoder_raises_log_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Greedy:
        eof, unused_data = False, b""

        def decompress(self, data: bytes, most: int, /) -> bytes:
            raise MemoryError

    monkeypatch.setitem(compressed._DECODERS, "bzip2", Greedy)
    with pytest.raises(
        LogError, match=r"the bzip2 data of x\.log need more memory than is available"
    ):
        b"".join(stream(bz2.compress(TEXT)))


def test_zip_archive_is_refused_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.out", TEXT)
        archive.writestr("more", b"." * (9 << 20))  # large enough for several threads
    with pytest.raises(
        LogError,
        match=r"train\.log is a zip archive, which is not supported: unpack it and give its folder",
    ):
        read_log(path)
