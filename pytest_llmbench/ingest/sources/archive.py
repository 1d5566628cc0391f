"""Reading a tar archive as it streams by: its members one after another, nothing on disk, memory for one block."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.ingest.sources.headers import (
    BLOCK,
    DATALESS,
    FILE,
    Header,
    apply_pax,
    is_header,
    read_header,
    read_pax,
)

# Bytes of a long name or a pax header; Linux takes no name of more than 4096.
LARGEST_HEADER = 1 << 20

# Members that an archive may have.
MEMBERS = 1_000_000

# Bytes that the names of all members may have together.
NAMES = 1 << 27

_LONG_NAME, _LONG_TARGET, _PAX, _SOLARIS, _GLOBAL = b"L", b"K", b"x", b"X", b"g"


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One member: its place in the archive, and what its headers say. `size` counts the bytes that follow."""

    number: int
    name: str
    kind: str
    size: int
    modified: float
    target: str = ""

    @property
    def is_file(self) -> bool:
        """Whether it is an ordinary file, whose data are its text."""
        return self.kind == FILE


# Why not the standard library's tarfile, even as a stream with a strict TarInfo: it ends a damaged archive without a
# word, reads as much into memory as a header asks for, and takes pax headers that lie (of the eight in test_archive.py
# Python 3.11 tells one). What reads pax headers there is private and differs between versions of Python.
class Reel:
    """An archive that is read once, from its first byte to its last.

    `read_members()` yields each member; `read_data()` then yields the bytes of the last one, as far as they are wanted.
    LogError says where the archive ends early or what in it is no archive.
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
        """Yield the members in their order; after the last one `trailing` says whether anything stands behind them."""
        for number in range(MEMBERS + 1):
            header = self._read_member_header()
            if header is None:
                self.trailing = any(block.strip(b"\0") for block in self._read_rest())
                return
            self._names += len(header.name) + len(header.target)
            if number == MEMBERS or self._names > NAMES:
                raise LogError(f"more than {MEMBERS} members, or {NAMES} bytes of names: no archive of runs has that")
            target = os.fsdecode(header.target)
            yield ArchiveMember(number, header.path, header.kind, header.size, header.modified, target)
            self._skip()

    def read_data(self) -> Iterator[bytes]:
        """Yield the bytes of the member that was yielded last, once; LogError where they end early."""
        while self._left:
            block = self._read_some(self._left)
            self._left -= len(block)
            yield block

    def _read_member_header(self) -> Header | None:
        """Return the next member's header with all that headers before it say, None at the end of the archive."""
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
        """Return what a header says that only speaks of the next member, None for a member's own."""
        if header.flag not in (_LONG_NAME, _LONG_TARGET, _PAX, _SOLARIS, _GLOBAL):
            return None
        if header.size > LARGEST_HEADER:
            raise LogError(f"a name or pax header of {header.size} bytes: expected at most {LARGEST_HEADER}")
        data = self._read_exactly(header.size + -header.size % BLOCK)[: header.size]
        if header.flag in (_LONG_NAME, _LONG_TARGET):
            return {"path" if header.flag == _LONG_NAME else "linkpath": data.partition(b"\0")[0]}
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
