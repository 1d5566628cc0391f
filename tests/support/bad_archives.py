"""Truncated, damaged and fake archives and compressed files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable

from pytest_llmbench.logs.sources.zstd import zstd
from support.bad_files import (
    GZ,
    LINES,
    LOG,
    STEPS,
    Write,
    empty_folder,
    fifo,
    file,
    link,
    patch,
    sparse,
)
from support.written_archives import END, archive, make_member

NEST = f"run_3/{LOG}"


def seal(data: bytes) -> bytes:
    """Correct the checksum of an archive's first header."""
    header = data[:148] + b" " * 8 + data[156:512]
    return patch(data, 148, b"%06o\0 " % sum(header))


def change(**values: object) -> Callable[[tarfile.TarInfo], None]:
    def apply(member: tarfile.TarInfo) -> None:
        for name, value in values.items():
            setattr(member, name, value)

    return apply


def pax(records: bytes, size: int | None = None) -> bytes:
    """Build a pax header with `records`, to be placed before a log."""
    head = make_member(
        "pax",
        change(type=b"x", size=len(records) if size is None else size),
        tarfile.USTAR_FORMAT,
    )
    return head + records + bytes(-len(records) % 512)


def record(key: bytes, value: bytes) -> bytes:
    """Build one pax record, including its length prefix."""
    size = len(key) + len(value) + 3
    while len(b"%d %s=%s\n" % (size, key, value)) != size:
        size += 1
    return b"%d %s=%s\n" % (size, key, value)


def pack_zip(name: str = LOG, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as packed:
        packed.writestr(name, LINES)
    return buffer.getvalue()


TAR = archive([(NEST, STEPS)])
TWO = archive([(NEST, STEPS), (NEST.replace("7", "8"), STEPS)])
ZST = zstd.compress(STEPS, options={zstd.CompressionParameter.checksum_flag: 1})
DICTIONARY = zstd.ZstdDict(STEPS[:1000], is_raw=True)

ARCHIVES: dict[str, Write] = {
    "tar-sparse": sparse("e.tar", 2 << 30),
    "tgz-sparse": sparse("e.tar.gz", 2 << 30),
    "tar-sparse-tail": sparse("e.tar", 2 << 30, TAR),
    "tar-empty": file("e.tar", b""),
    "tgz-empty": file("e.tgz", b""),
    "tar-zeros": file("e.tar", bytes(10240)),
    "tar-text": file("e.tar", LINES),
    "tar-cut-in-header": file("e.tar", TAR[:300]),
    "tar-cut-in-data": file("e.tar", TAR[:2000]),
    "tar-cut-in-second": file("e.tar", TWO[: len(TWO) // 2 + 300]),
    "tar-bad-checksum": file("e.tar", patch(TAR, 100, b"777")),
    "tar-second-bad": file("e.tar", patch(TWO, TWO.rindex(b"run_3"), b"xyz")),
    "tar-negative-size": file("e.tar", seal(patch(TAR, 124, b"\xff" * 12))),
    "tar-endless-size": file("e.tar", seal(patch(TAR, 124, b"\x80" + b"\x7f" * 11))),
    "tar-text-for-size": file("e.tar", seal(patch(TAR, 124, b"hello world "))),
    "tar-negative-time": file("e.tar", seal(patch(TAR, 136, b"\xff" * 12))),
    "tar-endless-time": file("e.tar", seal(patch(TAR, 136, b"\x80" + b"\x7f" * 11))),
    "tar-absolute-name": file("e.tar", archive([(f"/{NEST}", STEPS)])),
    "tar-parent-name": file("e.tar", archive([(f"../{NEST}", STEPS)])),
    "tar-twice": file("e.tar", archive([(NEST, STEPS), (NEST, STEPS)])),
    "tar-file-and-folder": file(
        "e.tar", archive([(NEST, STEPS), (f"{NEST}/{LOG}", STEPS)])
    ),
    "tar-folder-then-file": file(
        "e.tar", archive([(f"{NEST}/{LOG}", STEPS), (NEST, STEPS)])
    ),
    "tar-log-is-folder": file(
        "e.tar", make_member(f"{NEST}/", change(type=tarfile.DIRTYPE)) + END
    ),
    "tar-hard-links": file(
        "e.tar",
        make_member(NEST, change(type=tarfile.LNKTYPE, linkname="b.out"))
        + make_member("b.out", change(type=tarfile.LNKTYPE, linkname=NEST))
        + END,
    ),
    "tar-link": file(
        "e.tar",
        make_member(NEST, change(type=tarfile.SYMTYPE, linkname="/etc/passwd")) + END,
    ),
    "tar-device": file("e.tar", make_member(NEST, change(type=tarfile.CHRTYPE)) + END),
    "tar-unknown-type": file("e.tar", make_member(NEST, change(type=b"Z")) + END),
    "tar-gnu-holes": file("e.tar", seal(patch(TAR, 156, b"S"))),
    "tar-pax-holes": file("e.tar", pax(record(b"GNU.sparse.major", b"1")) + TAR),
    "tar-pax-nul-name": file("e.tar", pax(record(b"path", b"run_3/a\0b.out")) + TAR),
    "tar-pax-bytes-name": file(
        "e.tar", pax(record(b"path", b"run_3/log-\xff\xfe_3_7_0.out")) + TAR
    ),
    "tar-pax-newline-name": file(
        "e.tar", pax(record(b"path", b"run_3/log-a\n::error::b_3_7_0.out")) + TAR
    ),
    "tar-pax-long-name": file(
        "e.tar", pax(record(b"path", b"a/" * 3000 + LOG.encode())) + TAR
    ),
    "tar-pax-giant": file("e.tar", pax(b"", 1 << 32)),
    "tar-pax-wrong-length": file("e.tar", pax(b"999 path=x\n") + TAR),
    "tar-pax-endless-size": file("e.tar", pax(record(b"size", b"9" * 18)) + TAR),
    "tar-pax-text-for-size": file("e.tar", pax(record(b"size", b"many")) + TAR),
    "tar-pax-size-nan": file("e.tar", pax(record(b"size", b"nan")) + TAR),
    "tar-pax-only": file("e.tar", pax(record(b"path", NEST.encode())) + END),
    "tar-deep": file("e.tar", archive([("d/" * 90 + LOG, STEPS)])),
    "tar-in-tar": file("e.tar", archive([("inner.tar", TAR)])),
    "tar-cpio": file("e.tar", b"070701" + b"0" * 104 + STEPS),
    "tgz-cut": file("e.tgz", gzip.compress(TAR)[:-40]),
    "tgz-crc": file(
        "e.tgz", patch(gzip.compress(TAR), len(gzip.compress(TAR)) - 8, b"\0\0\0\0")
    ),
    "tgz-trailing-garbage": file("e.tgz", gzip.compress(TAR) + b"garbage" * 9),
    "tgz-empty-contents": file("e.tgz", gzip.compress(b"")),
    "tgz-header-only": file("e.tgz", GZ[:10]),
    "tgz-is-zip": file("e.tgz", pack_zip()),
    "tzst-dictionary": file("e.tar.zst", zstd.compress(TAR, zstd_dict=DICTIONARY)),
    "tzst-skippable": file("e.tar.zst", b"\x50\x2a\x4d\x18\x04\0\0\0abcd"),
    "tzst-cut": file("e.tar.zst", zstd.compress(TAR)[:-30]),
    "txz-cut": file("e.tar.xz", lzma.compress(TAR)[:-30]),
    "tbz-damaged": file("e.tar.bz2", patch(bz2.compress(TAR), 40, b"\0\0\0\0")),
    "tar-zeros-packed": file("e.tar.gz", gzip.compress(bytes(1 << 20))),
    "zip": file("runs.zip", pack_zip()),
    "zip-crc": file("runs.zip", patch(pack_zip(), 14, b"\1\2\3\4")),
    "zip-sizes": file("runs.zip", patch(pack_zip(), 18, b"\xff\xff\xff\x7f")),
    "zip-cut": file("runs.zip", pack_zip()[:99]),
    "zip-encrypted": file("runs.zip", patch(pack_zip(), 6, b"\1\0")),
    "zip-unknown-method": file("runs.zip", patch(pack_zip(), 8, b"\x63\0")),
    "zip-empty": file("runs.zip", b"PK\5\6" + bytes(18)),
    "zip-as-log": file(LOG, pack_zip()),
    "tar-as-log": file(LOG, TAR),
    "tar-folder": empty_folder("e.tar"),
    "tar-fifo": fifo("e.tar"),
    "tar-link-to-zero": link("e.tar", "/dev/zero"),
    "tar-link-to-itself": link("e.tar", "e.tar"),
    "7z": file("runs.tar.7z", b"7z\xbc\xaf\x27\x1c" + bytes(100)),
}

COMPRESSED: dict[str, Write] = {
    "gz-empty-file": file(LOG + ".gz", b""),
    "gz-empty-contents": file(LOG + ".gz", gzip.compress(b"")),
    "gz-header-only": file(LOG + ".gz", GZ[:10]),
    "gz-second-cut": file(LOG + ".gz", GZ + GZ[:50]),
    "gz-crc": file(LOG + ".gz", patch(GZ, len(GZ) - 8, b"\0\0\0\0")),
    "gz-length": file(LOG + ".gz", patch(GZ, len(GZ) - 4, b"\0\0\0\0")),
    "gz-trailing-garbage": file(LOG + ".gz", GZ + b"garbage" * 9),
    "gz-trailing-zeros": file(LOG + ".gz", GZ + bytes(5000)),
    "gz-is-text": file(LOG + ".gz", STEPS),
    "gz-of-gz": file(LOG + ".gz", gzip.compress(GZ)),
    "gz-reserved-flags": file(LOG + ".gz", patch(GZ, 3, b"\xe0")),
    "gz-holes": sparse(LOG + ".gz", 2 << 30, GZ),
    "zst-dictionary": file(LOG + ".zst", zstd.compress(STEPS, zstd_dict=DICTIONARY)),
    "zst-skippable": file(LOG + ".zst", b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + ZST),
    "zst-cut": file(LOG + ".zst", ZST[:-9]),
    "zst-checksum": file(LOG + ".zst", ZST[:-4] + b"abcd"),
    "xz-cut": file(LOG + ".xz", lzma.compress(STEPS)[:-9]),
    "xz-check": file(LOG + ".xz", patch(lzma.compress(STEPS), 60, b"\0\0\0\0")),
    "lzma-format": file(LOG + ".lzma", lzma.compress(STEPS, lzma.FORMAT_ALONE)),
    "bz2-cut": file(LOG + ".bz2", bz2.compress(STEPS)[:-9]),
    "lz4": file(LOG + ".lz4", b"\x04\x22\x4d\x18" + STEPS),
    "text-after-magic": file(LOG, b"\x1f\x8b" + STEPS),
}

PACKED = {**ARCHIVES, **COMPRESSED}
