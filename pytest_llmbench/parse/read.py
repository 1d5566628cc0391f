"""Read a log: bytes in, columns of steps out, with what was dropped and how it ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pytest_llmbench.errors import LogError
from pytest_llmbench.models import Ending, ParsedLog
from pytest_llmbench.parse.collect import Collector
from pytest_llmbench.parse.endings import NEEDLES, Endings
from pytest_llmbench.parse.scan import find, windows

BLOCK = 1 << 20

COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""The first bytes of what has to be decompressed before it can be read."""


def parse_blocks(blocks: Iterable[bytes]) -> ParsedLog:
    """Return what a log says, from its bytes in blocks of any size; sha256 and size_bytes are left empty.

    No content is an error: what cannot be read as a step is no step, and is in `dropped` if it looks like one. A
    compressed log is not decompressed; its ending, "compressed", says so.
    """
    collector = Collector()
    head = b""
    for window in windows(blocks):
        head = head if window.offset else window.text[:4]
        collector.take(window)
    method = next((name for magic, name in COMPRESSED.items() if head.startswith(magic)), None)
    if method is None:
        return collector.result()
    return ParsedLog(None, (), ending=Ending("compressed", f"compressed ({method}) log: decompress it first", 1))


def read_log(path: Path) -> ParsedLog:
    """Return what the log at `path` says, with the sha256 and size of what was read; LogError if it cannot be read."""
    digest = hashlib.sha256()
    size = 0

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for block in _blocks(path):
            digest.update(block)
            size += len(block)
            yield block

    return replace(parse_blocks(hashed()), sha256=digest.hexdigest(), size_bytes=size)


def read_ending(path: Path) -> Ending | None:
    """Return how the standard error at `path` says that the job ended, or None; LogError if it cannot be read."""
    found = Endings()
    for window in windows(_blocks(path)):
        for hit in find(window, NEEDLES):
            found.add(hit)
    return found.result()


def _blocks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                yield block
    except OSError as error:
        raise LogError(f"cannot read the log {path}: {error.strerror or error}") from error
