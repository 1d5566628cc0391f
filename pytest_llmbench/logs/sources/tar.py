"""A tar archive, old, POSIX, GNU or pax, read as it streams by: its members one after
another, nothing on disk.

Nothing here trusts a number: what a header says of its size is bounded before it is
read.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_llmbench.core.errors import LogError

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
# Members without data, whatever size their header says.
DATALESS = frozenset({HARD_LINK, LINK, "device", FOLDER, "FIFO", "label"})

_RECORD = re.compile(rb"(\d{1,9}) ([^=]{1,255})=")


@dataclass(frozen=True, slots=True)
class Header:
    """What one header says."""

    name: bytes
    # its type: one of KINDS, or of a header that only speaks of the next member
    flag: bytes
    size: int
    modified: float
    target: bytes
    extended: bool = False

    @property
    def kind(self) -> str:
        """What the member is, in words."""
        if KINDS.get(self.flag) == FILE and self.name.endswith(b"/"):
            return FOLDER  # as the first tar wrote them
        return KINDS.get(self.flag, f"member of type {self.flag.decode('latin-1')!r}")

    @property
    def path(self) -> str:
        """The name as Python names files: bytes that are no UTF-8 are kept."""
        return os.fsdecode(self.name)


def read_header(block: bytes) -> Header:
    """Read a header of 512 bytes; LogError where it is none, by its checksum."""
    if not is_header(block):
        raise LogError("no header of a member where one has to stand")
    name, size, modified = (
        _read_text(block[:100]),
        _read_number(block[124:136]),
        _read_number(block[136:148]),
    )
    if block[257:263] == b"ustar\0" and (prefix := _read_text(block[345:500])):
        name = prefix + b"/" + name
    if size < 0:
        raise LogError(f"a member of {size} bytes")
    flag = block[156:157]
    extended = flag == b"S" and block[482:483] not in (b"\0", b"0")
    return Header(
        name, flag, size, float(modified), _read_text(block[157:257]), extended
    )


def is_header(block: bytes) -> bool:
    """Whether 512 bytes are a header: they hold the sum of themselves."""
    if len(block) < BLOCK or not block[:1].strip(b"\0"):
        return False
    try:
        checksum = _read_number(block[148:156])
    except LogError:
        return False
    rest = block[:148] + b" " * 8 + block[156:BLOCK]
    return checksum == sum(rest) or checksum == sum(
        struct.unpack(f"{BLOCK}b", rest)
    )  # signed, as some old systems wrote it


def read_pax(data: bytes) -> dict[str, bytes]:
    """Read the records `length key=value` of a pax header; LogError for anything
    else."""
    values: dict[str, bytes] = {}
    place = 0
    while place < len(data) and data[place : place + 1] != b"\0":
        record = _RECORD.match(data, place)
        end = place + int(record[1]) if record else 0
        if (
            record is None
            or end <= record.end()
            or end > len(data)
            or data[end - 1 : end] != b"\n"
        ):
            raise LogError("a pax header that cannot be read")
        values[record[2].decode("utf-8", "replace")] = data[record.end() : end - 1]
        place = end
    return values


def apply_pax(header: Header, values: Mapping[str, bytes]) -> Header:
    """Return a header with what pax headers before it say of its member, which
    counts."""
    if not values:
        return header
    sparse = any(key.startswith("GNU.sparse.") for key in values)
    name = values.get("GNU.sparse.name") or values.get("path") or header.name
    return replace(
        header,
        name=name.rstrip(b"\0"),
        flag=b"S" if sparse and header.kind == FILE else header.flag,
        size=int(_read_decimal(values["size"])) if values.get("size") else header.size,
        modified=_read_decimal(values["mtime"])
        if values.get("mtime")
        else header.modified,
        target=values.get("linkpath") or header.target,
    )


def _read_text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _read_number(field: bytes) -> int:
    """Read a number: octal digits, or with the first bit set its own bytes."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (
            256 ** (len(field) - 1) if field[0] == 0xFF else 0
        )
    digits = field.partition(b"\0")[0].strip() or b"0"
    if not re.fullmatch(rb"[0-7]+", digits):
        raise LogError(f"a header with {digits!r} where a number has to stand")
    return int(digits, 8)


def _read_decimal(value: bytes) -> float:
    """Read the decimal number of a pax header."""
    if not re.fullmatch(rb"-?\d{1,18}(?:\.\d*)?", value):
        raise LogError(f"a pax header with {value[:40]!r} where a number has to stand")
    number = float(value)
    return number if math.isfinite(number) else 0.0


# Bytes of a long name or a pax header; Linux takes no name of more than 4096.
LARGEST_HEADER = 1 << 20

# Members that an archive may have.
MEMBERS = 1_000_000

# Bytes that the names of all members may have together.
NAMES = 1 << 27

_LONG_NAME, _LONG_TARGET, _PAX, _SOLARIS, _GLOBAL = b"L", b"K", b"x", b"X", b"g"


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One member: its place in the archive, and what its headers say."""

    number: int
    name: str
    kind: str
    size: int  # of the bytes that follow
    modified: float
    target: str = ""

    @property
    def is_file(self) -> bool:
        """Whether it is an ordinary file, whose data are its text."""
        return self.kind == FILE


# Why not the standard library's tarfile, even as a stream with a strict TarInfo: it
# ends a damaged archive without a word, reads as much into memory as a header asks for,
# and takes pax headers that lie (of the eight in test_archive.py Python 3.11 tells
# one). What reads pax headers there is private and differs between versions of Python.
class Reel:
    """An archive that is read once, from its first byte to its last.

    `read_members()` yields each member; `read_data()` then yields the bytes of the last
    one, as far as they are wanted. LogError says where the archive ends early or what
    in it is no archive.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        """Take the archive's bytes, decompressed."""
        self._blocks = iter(blocks)
        self._held = memoryview(b"")
        self._left = 0
        self._padding = 0
        self._shared: dict[str, bytes] = {}
        self._names = 0
        self.trailing = False

    def read_members(self) -> Iterator[ArchiveMember]:
        """Yield the members in their order; after the last one `trailing` says whether
        anything stands behind them."""
        for number in range(MEMBERS + 1):
            header = self._read_member_header()
            if header is None:
                self.trailing = any(block.strip(b"\0") for block in self._read_rest())
                return
            self._names += len(header.name) + len(header.target)
            if number == MEMBERS or self._names > NAMES:
                raise LogError(
                    f"more than {MEMBERS} members, or {NAMES} bytes of names: no archive of runs has that"
                )
            target = os.fsdecode(header.target)
            yield ArchiveMember(
                number, header.path, header.kind, header.size, header.modified, target
            )
            self._skip()

    def read_data(self) -> Iterator[bytes]:
        """Yield the bytes of the member that was yielded last, once; LogError where
        they end early."""
        while self._left:
            block = self._read_some(self._left)
            self._left -= len(block)
            yield block

    def _read_member_header(self) -> Header | None:
        """Return the next member's header with all that headers before it say, None at
        the end of the archive."""
        pax: dict[str, bytes] = {}
        while True:
            block = self._read_exactly(BLOCK)
            if not block.strip(b"\0"):
                return None
            header = read_header(block)
            values = self._read_values(header)
            if values is None:
                return self._begin_member(apply_pax(header, {**self._shared, **pax}))
            if header.flag == _GLOBAL:
                self._shared |= values
                if sum(map(len, self._shared.values())) > LARGEST_HEADER:
                    raise LogError(f"pax headers of more than {LARGEST_HEADER} bytes")
            else:
                pax |= values

    def _read_values(self, header: Header) -> Mapping[str, bytes] | None:
        """Return what a header says that only speaks of the next member, None for a
        member's own."""
        if header.flag not in (_LONG_NAME, _LONG_TARGET, _PAX, _SOLARIS, _GLOBAL):
            return None
        if header.size > LARGEST_HEADER:
            raise LogError(
                f"a name or pax header of {header.size} bytes: expected at most {LARGEST_HEADER}"
            )
        data = self._read_exactly(header.size + -header.size % BLOCK)[: header.size]
        if header.flag in (_LONG_NAME, _LONG_TARGET):
            return {
                "path" if header.flag == _LONG_NAME else "linkpath": data.partition(
                    b"\0"
                )[0]
            }
        return read_pax(data)

    def _begin_member(self, header: Header) -> Header:
        """Get ready for the data of a member."""
        more = header.extended
        while more:  # where the holes of a sparse file are, which nobody asks
            more = self._read_exactly(BLOCK)[504:505] not in (b"\0", b"0")
        self._left = 0 if header.kind in DATALESS else header.size
        self._padding = -self._left % BLOCK
        return header

    def _skip(self) -> None:
        """Pass over what is left of a member."""
        self._left += self._padding
        self._padding = 0
        for _ in self.read_data():
            pass

    def _read_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            parts.append(self._read_some(size))
            size -= len(parts[-1])
        return b"".join(parts)

    def _read_some(self, most: int) -> bytes:
        """Return up to so many bytes, at least one."""
        while not self._held:
            block = next(self._blocks, None)
            if block is None:
                raise LogError("it ends before its end")
            self._held = memoryview(block)
        part, self._held = bytes(self._held[:most]), self._held[most:]
        return part

    def _read_rest(self) -> Iterator[bytes]:
        yield bytes(self._held)
        yield from self._blocks


def is_archive(head: bytes) -> bool:
    """Whether data that begin so are a tar archive that has a member."""
    return is_header(head[:BLOCK])
