"""What a log says at the place where its run died without a word about it: its last line."""

from __future__ import annotations

from pathlib import Path

from pytest_llmbench.core.formatting import printable

LINE_LENGTH = 200
LAST_BYTES = 8192


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty; an empty text where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            lines = file.read(LAST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((printable(text.strip())[:LINE_LENGTH] for text in reversed(lines) if text.strip()), "")
