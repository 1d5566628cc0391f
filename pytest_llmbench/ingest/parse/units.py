"""What the letters behind a number make of it: a multiple, a unit, or a number that nobody can be sure of."""

from __future__ import annotations

import re
from functools import lru_cache

from pytest_llmbench.core.dialects import RATE

MULTIPLES = {b"K": 1e3, b"k": 1e3, b"M": 1e6, b"G": 1e9}
"""How frameworks shorten large numbers: `4.71K`."""

COUNTED = frozenset(("step", "total", "batch"))
"""Groups whose numbers are exact: a shortened one is rounded."""

UNITS = {
    "s": re.compile(rb"(?i)s(?:ecs?|econds?)?(?:/[a-z]+)?"),
    "ms": re.compile(rb"(?i)m(?:s|secs?|illis(?:econds?)?|illiseconds?)(?:/[a-z]+)?"),
    "us": re.compile("(?i)(?:u|\u00b5|\u03bc)s(?:ecs?)?(?:/[a-z]+)?|microseconds?".encode()),
    "min": re.compile(rb"(?i)m(?:ins?|inutes?)?(?:/[a-z]+)?"),
    RATE: re.compile(rb"(?i)(?:it(?:er(?:ation)?)?s?|steps?|batch(?:es)?|updates?)(?:/s(?:ec(?:onds?)?)?|ps)|hz"),
}
"""The words of each unit of time, as `dialects.UNITS` names them; those of a rate are of steps."""

BYTES = re.compile(rb"([KMGT])(i?)B")
FLOPS = re.compile(rb"([GTP])(?:(?i:flops?)(?:/s)?)?")
TERA = {b"G": 1e-3, b"T": 1.0, b"P": 1e3}

WORD = re.compile(rb"(?:[A-Za-z]|\xc2\xb5|\xce\xbc)+(?:/[A-Za-z]+)?")
SPACED_WORD = re.compile(rb" ?(%b)" % WORD.pattern)


def read_letters(text: bytes) -> bytes:
    """Return the letters that a text begins with, with those behind a slash."""
    word = WORD.match(text)
    return word[0] if word else b""


def get_scale(group: str, letters: bytes, unit: str, *, expected: bool) -> float | None:
    """Return what a number with these letters glued to it has to be multiplied with; None where that is not certain.

    `unit` is that of the group `seconds`. `expected`: the pattern names the letter, so that somebody meant it.
    """
    if not letters:
        return 1.0
    if group == "tflops" and (flops := FLOPS.fullmatch(letters)):
        return TERA[flops[1]]
    if group == "memory_bytes" and (size := BYTES.fullmatch(letters)):
        return (1024.0 if size[2] else 1000.0) ** (b"KMGT".index(size[1]) + 1)
    if letters in MULTIPLES:
        return None if group in COUNTED else MULTIPLES[letters]
    if expected or group in COUNTED:
        return 1.0
    return 1.0 if group == "seconds" and UNITS[unit].fullmatch(letters) else None


@lru_cache(maxsize=256)
def read_unit(text: bytes) -> str:
    """Return the unit of time that a text begins with, after a blank perhaps; an empty text where there is none."""
    word = SPACED_WORD.match(text)
    return next((unit for unit, words in UNITS.items() if word and words.fullmatch(word[1])), "")
