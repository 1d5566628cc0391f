"""Lines of a file that a report quotes: those around a line, those with a marker, and
the last ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import Quote
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.sources.archive import find_archive, read_unlisted
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.logs.sources.files import File

# Lines before and after it: what led there says more than what followed.
BEFORE, AFTER = 27, 12

WIDEST = 400
"""Characters that are kept of a line."""

LARGEST = 8 << 20
"""Bytes that are looked at for the lines; lines beyond them are left out."""

MOST = 1 << 29  # about a second, and 20 of bzip2
"""Bytes of an archive that are passed for the lines of all its logs; of a larger one
none is shown."""

Place = tuple[Path, int]
"""A log and the number of a line of it, from 1."""


class Excerpt(NamedTuple):
    """Lines of a log, and the number of the first."""

    first_line: int
    lines: list[str]


def read_excerpts(places: Iterable[Place]) -> dict[Place, Excerpt]:
    """Return at most 40 lines around each place, and the number of the first; each
    archive is passed once.

    A place is left out where there is nothing to be read: a log of another machine, or
    gone since it was judged.
    """
    by_place: dict[Place, Excerpt | None] = {}
    packed: dict[Path, dict[Path, int]] = defaultdict(dict)
    for log, line in places:
        archive = find_archive(log)
        if archive is None:
            by_place[log, line] = _cut_excerpt(
                Stream(files.read_blocks(log), log), line
            )
        else:
            packed[archive][log] = line
    for archive, lines in packed.items():
        by_place |= {
            (log, lines[log]): excerpt
            for log, excerpt in _read_packed(archive, lines).items()
        }
    return {place: excerpt for place, excerpt in by_place.items() if excerpt}


def _read_packed(
    archive: Path, lines: Mapping[Path, int]
) -> dict[Path, Excerpt | None]:
    """Return what stands around a line of each log in an archive; nothing where it is
    too large to be passed."""
    passed = 0

    def read_within(blocks: Iterable[bytes]) -> Iterator[bytes]:
        nonlocal passed
        for block in blocks:
            passed += len(block)
            if passed > MOST:
                return
            yield block

    by_log: dict[Path, Excerpt | None] = {}
    try:
        for log, data in read_unlisted(
            archive, read_within(Stream(files.read_blocks(archive), archive)), lines
        ):
            by_log[log] = _cut_excerpt(read_within(Stream(data, log)), lines[log])
    except LogError:
        pass  # what was whole before that was judged, too
    return by_log if passed <= MOST else {}


def _cut_excerpt(blocks: Iterable[bytes], line: int) -> Excerpt | None:
    """Return the lines of a text around one of them, None where it does not have it or
    cannot be read."""
    first = max(line - BEFORE, 1)
    try:
        data, skipped = _take_around(blocks, first, line + AFTER)
    except LogError:
        return None  # it was read when it was judged, and reports say nothing new of it
    texts = data.split(b"\n")[first - 1 - skipped :][: line + AFTER - first + 1]
    lines = [_show(text) for text in texts]
    if lines and not lines[-1]:
        lines.pop()  # what stands behind the last line break
    return Excerpt(first, lines) if lines else None


def _take_around(blocks: Iterable[bytes], first: int, last: int) -> tuple[bytes, int]:
    """Return the text of the blocks that hold these lines, and how many line breaks
    stand before it."""
    pieces, size, passed, skipped = list[bytes](), 0, 0, 0
    for block in files.slice_blocks(blocks, LARGEST):
        breaks = block.count(b"\n")
        if passed + breaks >= first - 1:
            skipped = skipped if pieces else passed
            pieces.append(block)
            size += len(block)
        passed += breaks
        if passed >= last or size > LARGEST:
            break
    return b"".join(pieces), skipped


def _show(line: bytes) -> str:
    """Return a line as text: tabs as spaces, what cannot be printed escaped, the rest
    of a long one left out."""
    text = line[: 4 * WIDEST].decode("utf-8", "replace").rstrip("\r").expandtabs(8)
    return formatting.escape(
        text
        if len(text) <= WIDEST and len(line) <= 4 * WIDEST
        else f"{text[: WIDEST - 3]}..."
    )


# --- lines with a marker, and the last ones --------------------------------------------

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
