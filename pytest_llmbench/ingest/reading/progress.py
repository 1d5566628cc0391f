"""How far a long reading is: one line that is rewritten on a terminal, and a line now and then in a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

# A shorter reading tells nothing.
FIRST_SECONDS = 2.0
REWRITE_SECONDS = 0.5
# Where nothing can be rewritten the second line comes so long after the first, and each later one twice as late.
LINE_SECONDS, LONGEST_SECONDS = 10.0, 300.0

_UNITS = ("kB", "MB", "GB", "TB")


class ReadCounts(NamedTuple):
    """How many files were read, and how many bytes of them, of all that have to be."""

    files: int
    of_files: int
    size: int
    of_size: int


class Terminal(Protocol):
    """What pytest's terminal reporter can do."""

    @property
    def isatty(self) -> bool:
        """Whether a line can be rewritten."""

    def rewrite(self, line: str, /, *, erase: bool) -> None:
        """Write a line over the last one."""

    def write_line(self, line: str, /) -> None:
        """Write a line."""

    def flush(self) -> None:
        """Let what was written be seen."""


class ReadingProgress:
    """Tells how far reading is, and at its end what it took."""

    def __init__(self, terminal: Callable[[], Terminal | None], clock: Callable[[], float]) -> None:
        """Take where it is told, None for nowhere, and a clock in seconds."""
        self._terminal = terminal
        self._clock = clock
        self._began: float | None = None
        self._next = 0.0
        self._pause = LINE_SECONDS
        self._written = False

    def __call__(self, done: ReadCounts) -> None:
        """Tell it, if it is time; the first call is the beginning."""
        now = self._clock()
        if self._began is None:
            self._began = now
            self._next = now + FIRST_SECONDS
        ended = done.files == done.of_files
        terminal = self._terminal()
        if terminal is None or not (self._written if ended else now >= self._next):
            return
        self._written = True
        line = f"llmbench: {describe_progress(done, now - self._began)}"
        if terminal.isatty:
            terminal.rewrite(line, erase=True)
            self._next = now + REWRITE_SECONDS
        if ended or not terminal.isatty:
            terminal.write_line("" if terminal.isatty else line)
            self._next = now + self._pause
            self._pause = min(self._pause * 2, LONGEST_SECONDS)
        terminal.flush()


def describe_progress(done: ReadCounts, seconds: float) -> str:
    """Return `read 120 of 5000 logs, 1.2 GB of 30 GB, about 40 s left`."""
    if done.files == done.of_files:
        return f"read {done.files} logs, {format_size(done.size)}, in {_format_duration(seconds)}"
    part, whole = (done.size, done.of_size) if done.size else (done.files, done.of_files)
    left = f", about {_format_duration(seconds * (whole - part) / part)} left" if part else ""
    return f"read {done.files} of {done.of_files} logs, {format_size(done.size)} of {format_size(done.of_size)}{left}"


def format_size(count: float) -> str:
    """Return a number of bytes with a unit: `1.2 GB`."""
    for unit in _UNITS[:-1]:
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} {_UNITS[-1]}"


def _format_duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
