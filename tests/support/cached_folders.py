"""A folder of runs that is read through a cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.logs.reading.cache import LogCache
from pytest_llmbench.logs.reading.codec import FileReading
from support.exact_comparison import to_bits
from support.log_folders import read_runs, write_runs


class CachedFolder:
    """A folder of runs and its cache folder."""

    def __init__(self, root: Path) -> None:
        self.runs = root / "runs"
        self.folder = root / "caches" / "pytest-llmbench"
        self.logs = write_runs(self.runs, 3)
        self.read: list[Path] = []

    def cache(self, definitions: tuple[RegexDialect, ...] = ()) -> LogCache:
        return LogCache(self.folder, [self.runs], definitions)

    def again(self, definitions: tuple[RegexDialect, ...] = ()) -> list[Path]:
        """Read all runs through the cache and return the files that were actually read.

        Fails if the cached results differ from an uncached reading.
        """
        self.read.clear()
        readings = read_runs(self.runs, definitions, cache=self.cache(definitions))
        read = sorted(self.read)
        fresh = read_runs(self.runs, definitions)
        for path in self.logs:
            if path.exists():
                assert to_bits(readings.get_log(path)) == to_bits(fresh.get_log(path))
        return read

    @property
    def file(self) -> Path:
        (path,) = self.folder.glob("*.logs")
        return path

    def forge(self, readings: Sequence[FileReading]) -> None:
        """Write a correctly signed cache file with invented readings."""
        self.cache().keep(readings)
