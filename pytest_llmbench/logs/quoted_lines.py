"""Lines of files that reports quote: around a line, with a marker, and last lines."""

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

# Lines before and after the line. The lines before it are more informative.
BEFORE, AFTER = 27, 12

MAX_CHARACTERS = 400
"""Characters kept of a line."""

MAX_BYTES = 8 << 20
"""Bytes that are read for an excerpt; later lines are left out."""

MAX_ARCHIVE_BYTES = 1 << 29  # about a second, 20 seconds for bzip2
"""Bytes of an archive that are read for its logs; larger archives give no excerpt."""

Location = tuple[Path, int]
"""A log, and a 1-based line number in it."""


class Excerpt(NamedTuple):
    """Lines of a log, and the number of the first line."""

    first_line: int
    lines: list[str]


def read_excerpts(locations: Iterable[Location]) -> dict[Location, Excerpt]:
    """Read up to 40 lines around each location.

    Each archive is read once. A location is left out if its log cannot be read, for
    example because it was deleted or is on another machine.
    """
    by_location: dict[Location, Excerpt | None] = {}
    # archive to its logs, each with the line number
    packed: dict[Path, dict[Path, int]] = defaultdict(dict)
    for log, line in locations:
        archive = find_archive(log)
        if archive is None:
            by_location[log, line] = _cut_excerpt(
                Stream(files.read_blocks(log), log), line
            )
        else:
            packed[archive][log] = line
    for archive, lines in packed.items():
        by_location |= {
            (log, lines[log]): excerpt
            for log, excerpt in _read_packed(archive, lines).items()
        }
    return {location: excerpt for location, excerpt in by_location.items() if excerpt}


def _read_packed(
    archive: Path, lines: Mapping[Path, int]
) -> dict[Path, Excerpt | None]:
    """Read the excerpts of the logs in an archive.

    Returns {} if the archive is larger than MAX_ARCHIVE_BYTES.
    """
    bytes_read = 0

    def read_up_to_limit(blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield blocks until MAX_ARCHIVE_BYTES are read, by all calls together."""
        nonlocal bytes_read
        for block in blocks:
            bytes_read += len(block)
            if bytes_read > MAX_ARCHIVE_BYTES:
                return
            yield block

    by_log: dict[Path, Excerpt | None] = {}
    try:
        archive_blocks = read_up_to_limit(Stream(files.read_blocks(archive), archive))
        for log, data in read_unlisted(archive, archive_blocks, lines):
            log_blocks = read_up_to_limit(Stream(data, log))
            by_log[log] = _cut_excerpt(log_blocks, lines[log])
    except LogError:
        pass  # earlier logs of a damaged archive are complete
    return by_log if bytes_read <= MAX_ARCHIVE_BYTES else {}


def _cut_excerpt(blocks: Iterable[bytes], line: int) -> Excerpt | None:
    """Return the lines around `line`.

    Returns None if the text does not have that line or cannot be read.
    """
    first = max(line - BEFORE, 1)
    try:
        data, skipped = _read_around(blocks, first, line + AFTER)
    except LogError:
        return None  # the log was readable when it was judged: not worth a message
    last = line + AFTER
    begin = first - 1 - skipped  # index of the line `first`
    texts = data.split(b"\n")[begin : begin + last - first + 1]
    lines = [_format_line(text) for text in texts]
    if lines and not lines[-1]:
        lines.pop()  # the empty text after the last line break
    return Excerpt(first, lines) if lines else None


def _read_around(blocks: Iterable[bytes], first: int, last: int) -> tuple[bytes, int]:
    """Return the blocks that contain the lines from `first` to `last`.

    Also returns the number of line breaks before them.
    """
    pieces: list[bytes] = []
    size = breaks_read = skipped = 0
    for block in files.slice_blocks(blocks, MAX_BYTES):
        breaks = block.count(b"\n")
        if breaks_read + breaks >= first - 1:
            if not pieces:
                skipped = breaks_read
            pieces.append(block)
            size += len(block)
        breaks_read += breaks
        if breaks_read >= last or size > MAX_BYTES:
            break
    return b"".join(pieces), skipped


def _format_line(line: bytes) -> str:
    """Return a line as printable text of at most MAX_CHARACTERS.

    Tabs become spaces, and unprintable characters are escaped.
    """
    most_bytes = 4 * MAX_CHARACTERS  # a character has up to four bytes
    decoded = line[:most_bytes].decode("utf-8", "replace")
    text = decoded.rstrip("\r").expandtabs(8)
    if len(text) > MAX_CHARACTERS or len(line) > most_bytes:
        text = f"{text[: MAX_CHARACTERS - 3]}..."
    return formatting.escape(text)


# --- lines with a marker, and the last ones --------------------------------------------

LAST_BYTES = 8192  # bytes at the end of a file that are searched for its last lines
LINE_LENGTH = 200  # characters shown

# The prefix of GPU driver errors in the kernel log; some sites copy it to the log of
# the job.
DRIVER_ERROR = b"NVRM: Xid"


def find_lines(path: Path, marker: bytes, most: int) -> list[tuple[int, Quote]]:
    """Return the last `most` lines with a marker, and their numbers.

    Empty if the file cannot be read.
    """
    lines: list[tuple[int, Quote]] = []
    number, unfinished = 0, b""
    try:
        with File(path) as file:
            for block in file.blocks():
                *complete, unfinished = (unfinished + block).split(b"\n")
                lines += [
                    (number + index, _quote(line))
                    for index, line in enumerate(complete, 1)
                    if marker in line
                ]
                lines, number = lines[-most:], number + len(complete)
    except LogError:
        return []
    if marker in unfinished:  # the last line has no line break
        lines.append((number + 1, _quote(unfinished)))
    return lines[-most:]


def read_last_lines(path: Path, count: int) -> list[Quote]:
    """Return the last `count` lines of a file that are not blank.

    Empty if the file cannot be read.
    """
    try:
        with File(path) as file:
            end = file.read(max(0, file.size - LAST_BYTES), file.size)
    except LogError:
        return []
    return [_quote(line) for line in end.splitlines() if line.strip()][-count:]


def _quote(line: bytes) -> Quote:
    """Return the first LINE_LENGTH characters of a line, control characters escaped."""
    return Quote(formatting.escape(line.decode(errors="replace").strip())[:LINE_LENGTH])
