"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_ATTRIBUTES = (
    *("search", "match", "fullmatch", "finditer", "findall", "split", "sub", "subn"),
    *("scanner", "flags", "groups", "groupindex"),
)


def compile_on_use(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression, which is compiled when it is first used.

    For the patterns of modules: a session uses a third of them, and compiling all takes
    a third of the import of the log reader. The result has the methods and attributes
    of a compiled pattern, but functions of `re` do not accept it.
    """
    return cast("re.Pattern[AnyStr]", _Pattern(pattern, flags))


class _Pattern:
    """A regular expression with the attributes of a compiled one."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        """Compile the expression. Called for attributes that are not set: once."""
        if name not in _ATTRIBUTES:
            raise AttributeError(f"a pattern has no attribute {name!r}")
        compiled = re.compile(self.pattern, self._flags)
        for attribute in _ATTRIBUTES:
            setattr(self, attribute, getattr(compiled, attribute))
        return getattr(compiled, name)
