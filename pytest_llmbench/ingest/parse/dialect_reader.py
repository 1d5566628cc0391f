"""What reads the records of a dialect, and says of the steps what only their neighbours tell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from pytest_llmbench.core.dialects import DIALECTS, Dialect
from pytest_llmbench.ingest.parse.dropped import Tally
from pytest_llmbench.ingest.parse.records import RecordOrigin, StepRecord, Torn, Unmatched
from pytest_llmbench.ingest.parse.scan import Hit
from pytest_llmbench.ingest.parse.uniform import ColumnReader

Records = Sequence[StepRecord]


class DialectReader(ABC):
    """Reads one dialect: its records one by one, and then what they are together.

    `read_columns` reads all records of a log at once where they are alike; None for a dialect that has no such reader.
    """

    read_columns: ColumnReader | None = None

    def __init__(self, dialect: Dialect) -> None:
        """Take the row of the dialect."""
        self.dialect = dialect

    @abstractmethod
    def read_records(self, hit: Hit, rank: str) -> Sequence[StepRecord | Torn | Unmatched]:
        """Return what belongs to a marker, with the rank of its line; several records where they were glued."""

    def join(self, records: Records, tally: Tally) -> list[StepRecord]:
        """Return one record for several of a step, in the order of the log, before ranks are told apart."""
        return list(records)

    def settle(self, records: Records, tally: Tally) -> list[StepRecord]:
        """Return the steps of one rank, those certain now that only their neighbours tell."""
        return list(records)

    def time_steps(self, records: Records) -> list[StepRecord]:
        """Return the steps of one attempt, each once and in order, with what only the others tell of their times."""
        return list(records)


class ModuleReader(DialectReader):
    """Reads a built-in dialect with the functions of its module: `read_step`, and which of the others it has."""

    def __init__(self, name: str) -> None:
        """Load the module of this name."""
        super().__init__(DIALECTS[name])
        module = import_module(f"pytest_llmbench.ingest.parse.dialects.{name}")
        self._read_step: Callable[[bytes, int, int, RecordOrigin], StepRecord | Torn | None] = module.read_step
        self._join = getattr(module, "join", super().join)
        self._settle = getattr(module, "settle", super().settle)
        self._time_steps = getattr(module, "time_steps", super().time_steps)
        self.read_columns = getattr(module, "read_columns", None)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleReader:
        """Return itself: it never changes."""
        return self

    def read_records(self, hit: Hit, rank: str) -> Sequence[StepRecord | Torn]:
        """Return the record that begins at a marker, if one does."""
        record = self._read_step(hit.text, hit.start, hit.end, RecordOrigin(hit.offset, hit.line, rank))
        return () if record is None else (record,)

    def join(self, records: Records, tally: Tally) -> list[StepRecord]:
        """Return what the module's function does, or the records as they are."""
        joined: list[StepRecord] = self._join(records, tally)
        return joined

    def settle(self, records: Records, tally: Tally) -> list[StepRecord]:
        """Return what the module's function does, or the records as they are."""
        settled: list[StepRecord] = self._settle(records, tally)
        return settled

    def time_steps(self, records: Records) -> list[StepRecord]:
        """Return what the module's function does, or the records as they are."""
        timed: list[StepRecord] = self._time_steps(records)
        return timed


@cache
def load_reader(name: str) -> ModuleReader:
    """Return the reader of a built-in dialect; its module is loaded with the first log that has a marker of it."""
    return ModuleReader(name)
