"""Text in columns of a terminal: wrapped by what its signs take there, with a colour for its first words."""

from __future__ import annotations

import re
import textwrap
import unicodedata

WIDTH = 79
"""Columns of a line: a terminal of 80 without wrapping."""

FILLER = "\ue000"
"""Stands behind a wide sign while a text is wrapped. It prints nothing, so no text that is reported holds it."""

GLUE = "\ue001"
"""Stands for the blank between a number and its unit while a text is wrapped: they stay on one line."""

COMMAND = re.compile(r"^ ?(?= *::)|(?<=#)(?=#\[)", re.MULTILINE)
"""Where GitHub Actions, which reads the output, would take what follows for a command: `::error::`, `##[error]`."""


class TerminalLine(str):
    """A line of the terminal. Its first `marked` signs have the colour: red, yellow, green, or none."""

    __slots__ = ("colour", "marked")
    colour: str
    marked: int

    def __new__(cls, text: str, colour: str = "", marked: int | None = None) -> TerminalLine:
        """Return the line; without `marked` all of it has the colour."""
        line = super().__new__(cls, escape_commands(text))
        line.colour = colour
        line.marked = len(line) if marked is None else marked
        return line


def count_columns(text: str) -> int:
    """Return how many columns a text takes: two for each wide sign (UAX 11), none for one that is put on another."""
    return len(text) if text.isascii() else sum(map(_count_sign_columns, text))


def wrap(text: str, indent: str = "", *, first: str = "") -> list[str]:
    """Return the text in lines of `WIDTH` columns, those after the first indented; words are broken where they must."""
    # textwrap counts signs; a Chinese one takes two columns.
    filled = text if text.isascii() else "".join(sign + FILLER * (_count_sign_columns(sign) - 1) for sign in text)
    # `7.3` at the end of a line and `s` at the beginning of the next is read as two things.
    glued = re.sub(r"(?<=\d) (?=[%s](?!\w))", GLUE, filled)
    lines = textwrap.wrap(glued, WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(FILLER, "").replace(GLUE, " ") for line in lines]


def escape_commands(text: str) -> str:
    """Return lines with a backslash where what a log says would be a command to the CI server that reads them; it takes
    the place of a blank where there is one."""
    return COMMAND.sub(r"\\", text)


def _count_sign_columns(sign: str) -> int:
    if unicodedata.east_asian_width(sign) in "WF":
        return 2
    return 0 if unicodedata.combining(sign) else 1
