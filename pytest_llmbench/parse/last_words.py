"""What a log says at the place where its run died: the exception of a traceback, or its last line."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from pytest_llmbench.wording import printable

LONGEST_TRACEBACK = 1000
"""Lines after its head in which the exception of a traceback is looked for."""

LINE_LENGTH = 200
LAST_BYTES = 8192
HEAD = "Traceback (most recent call last)"


def exception(log: Path, line: int) -> tuple[str, int] | None:
    """Return the exception of the traceback whose head is on this 1-based line, with its own line.

    Lines of other ranks between (the head's prefix, `[rank0]: `, tells them apart) are passed over. None where the log
    ends before it, cannot be read, or has no traceback there.
    """
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            lines = list(islice(file, max(line - 1, 0), line + LONGEST_TRACEBACK))
    except OSError:
        return None
    prefix = lines[0].partition(HEAD)[0] if lines and HEAD in lines[0] else None
    if prefix is None:
        return None
    for number, text in enumerate(lines[1:], start=line + 1):
        said = text.removeprefix(prefix)
        if text.startswith(prefix) and said.strip() and not said[0].isspace():
            return printable(said.strip())[:LINE_LENGTH], number
    return None


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty; an empty text where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            lines = file.read(LAST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((printable(text.strip())[:LINE_LENGTH] for text in reversed(lines) if text.strip()), "")
