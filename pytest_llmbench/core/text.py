"""Column widths and line breaks of texts."""

from __future__ import annotations

import unicodedata

WIDTH = 79
"""Default line width in columns, if the terminal's width is not used."""

FILLER = "\ue000"
"""Placeholder for the second column of a wide character while lines are broken.

A private-use character that occurs in no text.
"""


GLUE = "\ue001"
"""A space that is never broken, such as between a number and its unit."""


def count_columns(text: str) -> int:
    """Return the width of a text: two columns for a wide character (UAX 11), none for a
    combining one."""
    # Almost every text is ASCII and does not need Unicode's slower width table.
    if text.isascii():
        return len(text)
    return sum(map(_count_character_columns, text))


def wrap(
    text: str,
    width: int = WIDTH,
    *,
    first: str = "",
    rest: str = "",
    whole_words: bool = False,
) -> list[str]:
    """Wrap a text; `first` precedes the first line, `rest` the others.

    Words are not broken at hyphens, so that ids can be copied. With `whole_words`,
    words are not broken at all.
    """
    import textwrap

    # textwrap counts characters, so each wide character is followed by a filler. GLUE,
    # the unbreakable space, is not ASCII but narrow.
    is_narrow = text.replace(GLUE, "").isascii()
    filled = text if is_narrow else "".join(map(_fill, text))
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
    """Return a character, followed by FILLER if it is two columns wide."""
    # A negative count, of a combining character, adds nothing.
    return character + FILLER * (_count_character_columns(character) - 1)


def _count_character_columns(character: str) -> int:
    """Return 2 for a wide or full-width character, 0 for a combining one, else 1."""
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 0 if unicodedata.combining(character) else 1
