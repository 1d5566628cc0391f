"""Read a tar archive (old, POSIX, GNU or pax) as a stream.

Nothing is written to disk. Sizes in headers are not trusted: they are checked against
limits before anything is read.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.patterns import compile_on_use

BLOCK = 512
FILE, FOLDER, HARD_LINK, LINK = "file", "folder", "hard link", "symbolic link"
SPARSE = "file with holes"

KINDS = {
    b"0": FILE,
    b"\0": FILE,
    b"7": FILE,
    b"1": HARD_LINK,
    b"2": LINK,
    b"3": "device",
    b"4": "device",
    b"5": FOLDER,
    b"6": "FIFO",
    b"S": SPARSE,
    b"D": "folder of an incremental archive",
    b"M": "rest of a file in another volume",
    b"V": "label",
}
# Members without data, whatever their headers state as size.
DATALESS = frozenset({HARD_LINK, LINK, "device", FOLDER, "FIFO", "label"})

# "30 mtime=1774532589.123456789\n", up to the value
_RECORD = compile_on_use(rb"(\d{1,9}) ([^=]{1,255})=")
_OCTAL = compile_on_use(rb"[0-7]+")


class Header(Struct, frozen=True):
    """The contents of one header."""

    name: bytes
    # type: one of KINDS, or of a header that describes the next member
    flag: bytes
    size: int
    modified: float
    target: bytes  # of a link
    # the map of a sparse file continues after the header
    is_map_continued: bool = False

    @property
    def kind(self) -> str:
        """The type in words."""
        if KINDS.get(self.flag) == FILE and self.name.endswith(b"/"):
            return FOLDER  # folders of the first tar
        return KINDS.get(self.flag, f"member of type {self.flag.decode('latin-1')!r}")

    @property
    def path(self) -> str:
        """The name as `str`, with bytes that are not UTF-8 preserved."""
        return os.fsdecode(self.name)


def read_header(block: bytes) -> Header:
    """Parse a header of 512 bytes. Raises LogError if its checksum is wrong."""
    if not is_header(block):
        raise LogError("no member header where one is expected")
    # The offsets of the fields are those of the POSIX and GNU formats.
    name = _read_text(block[:100])
    size = _read_number(block[124:136])
    modified = _read_number(block[136:148])
    is_posix = block[257:263] == b"ustar\0"
    prefix = _read_text(block[345:500]) if is_posix else b""
    if prefix:
        name = prefix + b"/" + name
    if size < 0:
        raise LogError(f"found a member of {size} bytes, expected a size of 0 or more")
    flag = block[156:157]
    is_map_continued = flag == b"S" and block[482:483] not in (b"\0", b"0")
    return Header(
        name,
        flag,
        size,
        float(modified),
        target=_read_text(block[157:257]),
        is_map_continued=is_map_continued,
    )


def is_header(block: bytes) -> bool:
    """True if 512 bytes have the checksum of a header."""
    if len(block) < BLOCK or not block[:1].strip(b"\0"):
        return False
    try:
        checksum = _read_number(block[148:156])
    except LogError:
        return False
    # The checksum counts its own field as blanks. Some old systems summed signed bytes.
    summed = block[:148] + b" " * 8 + block[156:BLOCK]
    if checksum == sum(summed):
        return True
    signed_bytes: tuple[int, ...] = struct.unpack(f"{BLOCK}b", summed)
    return checksum == sum(signed_bytes)


def read_pax(data: bytes) -> dict[str, bytes]:
    """Parse the records `length key=value` of a pax header. Raises LogError for other
    data."""
    values: dict[str, bytes] = {}
    offset = 0
    while offset < len(data) and data[offset : offset + 1] != b"\0":
        record = _RECORD.match(data, offset)
        if record is None:
            raise LogError("an invalid pax header")
        length, key = record.groups()
        end = offset + int(length)
        is_complete = record.end() < end <= len(data) and data[end - 1 : end] == b"\n"
        if not is_complete:
            raise LogError("an invalid pax header")
        values[key.decode("utf-8", "replace")] = data[record.end() : end - 1]
        offset = end
    return values


def apply_pax(header: Header, values: Mapping[str, bytes]) -> Header:
    """Override the fields of a header with the pax headers before it."""
    if not values:
        return header
    flag, size, modified = header.flag, header.size, header.modified
    is_sparse = any(key.startswith("GNU.sparse.") for key in values)
    if is_sparse and header.kind == FILE:
        flag = b"S"
    if values.get("size"):
        size = int(_read_decimal(values["size"]))
    if values.get("mtime"):
        modified = _read_decimal(values["mtime"])
    name = values.get("GNU.sparse.name") or values.get("path") or header.name
    target = values.get("linkpath") or header.target
    return replace(
        header,
        name=name.rstrip(b"\0"),
        flag=flag,
        size=size,
        modified=modified,
        target=target,
    )


def _read_text(field: bytes) -> bytes:
    """Return the text of a field, which a zero byte ends."""
    return field.partition(b"\0")[0]


def _read_number(field: bytes) -> int:
    """Parse a number: octal digits, or binary after the byte 0x80 (negative: 0xFF).

    Raises LogError for other bytes.
    """
    first_byte = field[0]
    if first_byte in (0x80, 0xFF):
        is_negative = first_byte == 0xFF  # in two's complement
        return int.from_bytes(field[1:], "big") - (
            256 ** (len(field) - 1) if is_negative else 0
        )
    digits = field.partition(b"\0")[0].strip() or b"0"
    if not _OCTAL.fullmatch(digits):
        raise LogError(f"a header with {digits!r} instead of a number")
    return int(digits, 8)


def _read_decimal(value: bytes) -> float:
    """Parse a decimal number of a pax header."""
    if not re.fullmatch(rb"-?\d{1,18}(?:\.\d*)?", value):
        raise LogError(f"a pax header with {value[:40]!r} instead of a number")
    number = float(value)
    return number if math.isfinite(number) else 0.0


# Size limit of a long name or pax header; Linux has no names of more than 4096 bytes.
LARGEST_HEADER = 1 << 20

# Maximum number of members.
MEMBERS = 1_000_000

# Maximum size of all names together, in bytes.
NAMES = 1 << 27

_LONG_NAME, _LONG_TARGET, _PAX, _SOLARIS, _GLOBAL = b"L", b"K", b"x", b"X", b"g"


class ArchiveMember(Struct, frozen=True):
    """A member of an archive, as its headers describe it."""

    number: int
    name: str
    kind: str
    size: int  # of the data that follow
    modified: float
    target: str = ""

    @property
    def is_file(self) -> bool:
        """True for a regular file."""
        return self.kind == FILE


# Not the standard library's tarfile, even as a stream with a strict TarInfo: it ignores
# the truncation of an archive, reads as much into memory as a header states, and
# accepts invalid pax headers (of the eight in test_archive.py Python 3.11 rejects one).
# Its code for pax headers is private and differs between versions of Python.
class TarReader:
    """Reader of an archive, once, from its first byte to its last.

    `read_members()` yields each member; `read_data()` then yields the bytes of the last
    member. Raises LogError if the archive is truncated or invalid.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        """`blocks` are the decompressed bytes of the archive."""
        self._blocks = iter(blocks)
        self._buffer = memoryview(b"")
        self._remaining = 0
        self._padding = 0
        self._global_values: dict[str, bytes] = {}
        self._names_size = 0
        self.has_trailing_data = False

    def read_members(self) -> Iterator[ArchiveMember]:
        """Yield the members in archive order.

        Afterwards `has_trailing_data` is True if data follow the end of the archive.
        """
        for number in range(MEMBERS + 1):
            header = self._read_member_header()
            if header is None:
                self.has_trailing_data = any(
                    block.strip(b"\0") for block in self._read_rest()
                )
                return
            self._names_size += len(header.name) + len(header.target)
            if number == MEMBERS or self._names_size > NAMES:
                raise LogError(
                    f"more than {MEMBERS} members or {NAMES} bytes of names, which no archive of runs has"
                )
            target = os.fsdecode(header.target)
            yield ArchiveMember(
                number, header.path, header.kind, header.size, header.modified, target
            )
            self._skip()

    def read_data(self) -> Iterator[bytes]:
        """Yield the bytes of the last yielded member, once. Raises LogError if
        truncated."""
        while self._remaining:
            block = self._read_some(self._remaining)
            self._remaining -= len(block)
            yield block

    def _read_member_header(self) -> Header | None:
        """Return the next member's header, with the headers before it applied.

        Returns None at the end of the archive.
        """
        pax: dict[str, bytes] = {}
        while True:
            block = self._read_exactly(BLOCK)
            if not block.strip(b"\0"):
                return None
            header = read_header(block)
            values = self._read_values(header)
            if values is None:  # the member's own header
                all_values = {**self._global_values, **pax}
                return self._begin_member(apply_pax(header, all_values))
            if header.flag == _GLOBAL:
                self._global_values |= values
                if sum(map(len, self._global_values.values())) > LARGEST_HEADER:
                    raise LogError(f"pax headers of more than {LARGEST_HEADER} bytes")
            else:
                pax |= values

    def _read_values(self, header: Header) -> Mapping[str, bytes] | None:
        """Return the values of a header that describes the next member.

        Returns None for a member's own header.
        """
        if header.flag not in (_LONG_NAME, _LONG_TARGET, _PAX, _SOLARIS, _GLOBAL):
            return None
        if header.size > LARGEST_HEADER:
            raise LogError(
                f"a name or pax header of {header.size} bytes: expected at most {LARGEST_HEADER}"
            )
        data = self._read_exactly(header.size + -header.size % BLOCK)[: header.size]
        if header.flag == _LONG_NAME:
            return {"path": _read_text(data)}
        if header.flag == _LONG_TARGET:
            return {"linkpath": _read_text(data)}
        return read_pax(data)

    def _begin_member(self, header: Header) -> Header:
        """Prepare to read the data of a member. Returns the header unchanged."""
        # The map of a sparse file's holes is not needed.
        is_map_continued = header.is_map_continued
        while is_map_continued:
            map_block = self._read_exactly(BLOCK)
            is_map_continued = map_block[504:505] not in (b"\0", b"0")
        self._remaining = 0 if header.kind in DATALESS else header.size
        self._padding = -self._remaining % BLOCK
        return header

    def _skip(self) -> None:
        """Skip the remaining data of a member, and the padding after it."""
        self._remaining += self._padding
        self._padding = 0
        for _ in self.read_data():
            pass

    def _read_exactly(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises LogError if there are fewer."""
        pieces = []
        while size:
            piece = self._read_some(size)
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _read_some(self, limit: int) -> bytes:
        """Return between 1 and `limit` bytes. Raises LogError if there are no more."""
        while not self._buffer:
            block = next(self._blocks, None)
            if block is None:
                raise LogError("the data end too early")
            self._buffer = memoryview(block)
        data, self._buffer = bytes(self._buffer[:limit]), self._buffer[limit:]
        return data

    def _read_rest(self) -> Iterator[bytes]:
        """Yield all bytes that were not read yet."""
        yield bytes(self._buffer)
        yield from self._blocks


def is_archive(head: bytes) -> bool:
    """True if data with these first bytes are a tar archive with a member."""
    return is_header(head[:BLOCK])
