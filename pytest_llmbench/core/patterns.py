"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, AnyStr, cast

_METHODS = (
    *("search", "match", "fullmatch", "finditer", "findall", "split", "sub", "subn"),
)


def compile_on_use(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression, which is compiled when it is first used.

    For the patterns of modules: a session uses a third of them, and compiling all takes
    a third of the import of the log reader. The result has the methods and attributes
    of a compiled pattern, but functions of `re` do not accept it.
    """
    return cast("re.Pattern[AnyStr]", LazyPattern(pattern, flags))


class LazyPattern:
    """A regular expression with the attributes of a compiled one, and its _METHODS."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags

    @cached_property
    def _compiled(self) -> re.Pattern[Any]:
        """The compiled pattern. Its methods replace those of the class."""
        compiled = re.compile(self.pattern, self._flags)
        for name in _METHODS:
            setattr(self, name, getattr(compiled, name))
        return compiled

    @cached_property
    def flags(self) -> int:
        """The flags of the compiled pattern."""
        return self._compiled.flags

    @cached_property
    def groups(self) -> int:
        """The number of groups."""
        return self._compiled.groups

    @cached_property
    def groupindex(self) -> Any:
        """The numbers of the named groups."""
        return self._compiled.groupindex


def _make_method(name: str) -> Callable[..., Any]:
    """Return a method that compiles the pattern and calls its method `name`."""

    def call(self: LazyPattern, *arguments: Any, **options: Any) -> Any:
        return getattr(self._compiled, name)(*arguments, **options)

    return call


for _name in _METHODS:
    setattr(LazyPattern, _name, _make_method(_name))
