"""Values that cost something and that hardly anybody looks at: of thousands of older runs, the notes and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, overload

Value = TypeVar("Value")


class Later(Sequence[Value]):
    """A tuple that is made when somebody first looks at it; equal to that tuple, and pickled as it."""

    __slots__ = ("_make", "_values")

    def __init__(self, make: Callable[[], Iterable[Value]]) -> None:
        """Take what makes the values; it is called once at most, and dropped then."""
        self._make: Callable[[], Iterable[Value]] | None = make
        self._values: tuple[Value, ...] = ()

    def _make_values(self) -> tuple[Value, ...]:
        if self._make is not None:
            self._values = tuple(self._make())
            self._make = None
        return self._values

    @overload
    def __getitem__(self, place: int) -> Value: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Value, ...]: ...
    def __getitem__(self, place: int | slice) -> Value | tuple[Value, ...]:
        """Return a value, or a tuple of some."""
        return self._make_values()[place]

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._make_values())

    def __eq__(self, other: object) -> bool:
        """Whether the other holds the same values."""
        return self._make_values() == (other._make_values() if isinstance(other, Later) else other)

    def __hash__(self) -> int:
        """Return the hash of the tuple."""
        return hash(self._make_values())

    def __repr__(self) -> str:
        """Return that of the tuple."""
        return repr(self._make_values())

    def __reduce__(self) -> tuple[type, tuple[tuple[Value, ...]]]:
        """Return what another process makes of it: a plain tuple."""
        return tuple, (self._make_values(),)
