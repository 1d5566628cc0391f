"""The regular expressions of baseline files: in time linear in the text, whatever somebody writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

REQUIRED = ("step", "seconds")
GROUPS = (*REQUIRED, "tflops", "loss", "grad_norm", "tokens", "total", "batch", "memory_bytes")
"""The groups of a pattern: what a line says of a step."""

RATE = "1/s"
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
"""The seconds in each unit of time; RATE is that of a printed rate."""

_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]|\(\?P?<(?P<name>\w+)>|\(|\)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """A named group of a pattern, with the characters of the pattern that stand directly before and after it."""

    name: str
    before: str
    after: str
    up_to: str = ""
    """The pattern as far as the group goes, with what is open closed."""


def compile_pattern(pattern: str) -> Any:
    """Return a pattern over bytes; ValueError says what RE2 refuses, or that it is not installed."""
    try:
        import re2
    except ImportError:
        raise ValueError(
            "found a pattern, expected the package google-re2, which is not installed: "
            "pip install 'pytest-llmbench[regex]'"
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(
            f"found a pattern that cannot be read ({_decode_message(error)}), expected the syntax of RE2, "
            "which has no backreferences and no lookaround"
        ) from None


def find_named_groups(pattern: str) -> Iterator[NamedGroup]:
    """Yield the named groups of a pattern that compiles, in the order in which they end."""
    begun: list[tuple[str | None, int]] = []
    for token in _TOKEN.finditer(pattern):
        if token[0] == ")" and begun:
            name, place = begun.pop()
            if name is not None:
                after = pattern[token.end() :].removeprefix("\\")
                up_to = pattern[: token.end()] + ")" * len(begun)
                yield NamedGroup(name, pattern[place - 1 : place] if place else "", after[:1], up_to)
        elif token[0].startswith("("):
            begun.append((token["name"], token.start()))


def _decode_message(error: Exception) -> str:
    text = error.args[0] if error.args else ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
