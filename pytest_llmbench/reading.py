"""The texts of found runs, each read once: files where they are asked for, archives in one pass before that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_llmbench.errors import LogError
from pytest_llmbench.files.compressed import Stream
from pytest_llmbench.files.stores import Stores
from pytest_llmbench.models import Ending, FoundRun, ParsedLog, RegexDialect

Found = TypeVar("Found")


class Reading:
    """Reads the logs of runs, with the dialects that baseline files define."""

    def __init__(self, stores: Stores, runs: Iterable[FoundRun], definitions: Sequence[RegexDialect] = ()) -> None:
        """Read what of the runs lies in archives."""
        self._stores = stores
        self._definitions = tuple(definitions)
        files = [attempt for run in runs for attempt in run.attempts]
        logs = [one.log for one in files]
        errors = [one.err for one in files if one.err]
        self._logs: dict[Path, ParsedLog | LogError] = {}
        self._endings: dict[Path, Ending | LogError | None] = {}
        as_log = set(logs)
        for path, text in stores.read_packed([*logs, *errors]):
            if path in as_log:
                self._logs[path] = self._read_log(text)
            else:
                self._endings[path] = self._read_ending(text)

    def log(self, path: Path) -> ParsedLog:
        """Return what a log says; LogError if it cannot be read."""
        return _or_raise(self._logs[path] if path in self._logs else self._read_log(self._stores.stream(path)))

    def ending(self, path: Path) -> Ending | None:
        """Return how a standard error says that the job ended, or None; LogError if it cannot be read."""
        known = path in self._endings
        found = self._endings[path] if known else self._read_ending(self._stores.stream(path))
        return _or_raise(found)

    def _read_log(self, text: Stream | LogError) -> ParsedLog | LogError:
        from pytest_llmbench.parse.read import read_log

        try:
            return read_log(_or_raise(text), self._definitions)
        except LogError as error:
            return error

    def _read_ending(self, text: Stream | LogError) -> Ending | LogError | None:
        from pytest_llmbench.parse.read import read_ending

        try:
            return read_ending(_or_raise(text))
        except LogError as error:
            return error


def _or_raise(found: Found | LogError) -> Found:
    if isinstance(found, LogError):
        raise found
    return found
