"""Text in columns: its width, and its lines."""

from __future__ import annotations

import unicodedata

WIDTH = 79
"""Columns of a line, unless a terminal is as wide as its window."""

FILLER = "\ue000"
"""Fills the second column of a wide character while lines are broken: for private use,
in no text."""


GLUE = "\ue001"
"""A blank at which no line is broken, as between a number and its unit."""


def count_columns(text: str) -> int:
    """Return the columns of a text: two for a wide character (UAX 11), none for a
    combining one."""
    # Almost every text is ASCII: the table of Unicode is asked for the others only.
    return len(text) if text.isascii() else sum(map(_count_character_columns, text))


def wrap(
    text: str,
    width: int = WIDTH,
    *,
    first: str = "",
    rest: str = "",
    whole_words: bool = False,
) -> list[str]:
    """Return a text in lines, the first after `first` and the others after `rest`.

    No word is broken at its hyphens: an id is there to be copied. With `whole_words`
    none is broken at all.
    """
    import textwrap

    # textwrap counts characters.
    narrow = text.replace(GLUE, "").isascii()
    filled = text if narrow else "".join(map(_fill, text))
    lines = textwrap.wrap(
        filled,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=not whole_words,
    )
    return [line.replace(FILLER, "").replace(GLUE, " ") for line in lines]


def _fill(character: str) -> str:
    return character + FILLER * (_count_character_columns(character) - 1)


def _count_character_columns(character: str) -> int:
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 0 if unicodedata.combining(character) else 1
