"""The headers of a tar archive, old, POSIX, GNU and pax: 512 bytes and what stands before them, to one member each.

Nothing here trusts a number: what a header says of its size is bounded before it is read.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping
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
    """What one header says. `kind` is empty for one that only speaks of the next (`flag` is its type)."""

    name: bytes
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
    name, size, modified = _read_text(block[:100]), _read_number(block[124:136]), _read_number(block[136:148])
    if block[257:263] == b"ustar\0" and (prefix := _read_text(block[345:500])):
        name = prefix + b"/" + name
    if size < 0:
        raise LogError(f"a member of {size} bytes")
    flag = block[156:157]
    extended = flag == b"S" and block[482:483] not in (b"\0", b"0")
    return Header(name, flag, size, float(modified), _read_text(block[157:257]), extended)


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
    """Read the records `length key=value` of a pax header; LogError for anything else."""
    values: dict[str, bytes] = {}
    place = 0
    while place < len(data) and data[place : place + 1] != b"\0":
        record = _RECORD.match(data, place)
        end = place + int(record[1]) if record else 0
        if record is None or end <= record.end() or end > len(data) or data[end - 1 : end] != b"\n":
            raise LogError("a pax header that cannot be read")
        values[record[2].decode("utf-8", "replace")] = data[record.end() : end - 1]
        place = end
    return values


def apply_pax(header: Header, values: Mapping[str, bytes]) -> Header:
    """Return a header with what pax headers before it say of its member, which counts."""
    if not values:
        return header
    sparse = any(key.startswith("GNU.sparse.") for key in values)
    name = values.get("GNU.sparse.name") or values.get("path") or header.name
    return replace(
        header,
        name=name.rstrip(b"\0"),
        flag=b"S" if sparse and header.kind == FILE else header.flag,
        size=int(_read_decimal(values["size"])) if values.get("size") else header.size,
        modified=_read_decimal(values["mtime"]) if values.get("mtime") else header.modified,
        target=values.get("linkpath") or header.target,
    )


def _read_text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _read_number(field: bytes) -> int:
    """Read a number: octal digits, or with the first bit set its own bytes."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
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
