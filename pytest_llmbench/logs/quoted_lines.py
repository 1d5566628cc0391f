"""Lines of a file that are quoted as they stand: those with a marker, wherever they
are, and the last ones."""

from __future__ import annotations

from pathlib import Path

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import Quote
from pytest_llmbench.logs.sources.files import File

LAST_BYTES = 8192  # the end of a file, in which its last lines are looked for
LINE_LENGTH = 200  # characters that are shown

# What the driver of a GPU writes into the kernel's log, and some sites into that of the
# job.
DRIVER_ERROR = b"NVRM: Xid"


def find_lines(path: Path, marker: bytes, most: int) -> list[tuple[int, Quote]]:
    """Return the last `most` lines with a marker, with their numbers; none where the
    file cannot be read."""
    lines: list[tuple[int, Quote]] = []
    number, rest = 0, b""
    try:
        with File(path) as file:
            for block in file.blocks():
                *whole, rest = (rest + block).split(b"\n")
                lines += [
                    (number + at, _quote(line))
                    for at, line in enumerate(whole, 1)
                    if marker in line
                ]
                lines, number = lines[-most:], number + len(whole)
    except LogError:
        return []
    return [*lines, *([(number + 1, _quote(rest))] if marker in rest else [])][-most:]


def read_last_lines(path: Path, count: int) -> list[Quote]:
    """Return the last lines of a file that are not empty; none where it cannot be
    read."""
    try:
        with File(path) as file:
            end = file.read(max(0, file.size - LAST_BYTES), file.size)
    except LogError:
        return []
    return [_quote(line) for line in end.splitlines() if line.strip()][-count:]


def _quote(line: bytes) -> Quote:
    return Quote(formatting.escape(line.decode(errors="replace").strip())[:LINE_LENGTH])
