"""Read the logs of found runs, each once, and report progress on the terminal.

Unchanged logs come from the cache, small files are read by several processes, and each
archive in one pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import Ending, ParsedLog
from pytest_llmbench.core.run_records import RunFiles
from pytest_llmbench.core.runtime import count_processors
from pytest_llmbench.logs.reading.cache import LogCache
from pytest_llmbench.logs.reading.codec import FileReading, FileToRead, ReadResult
from pytest_llmbench.logs.reading.file_reader import (
    WorkerPool,
    parse,
    read_file,
    read_size,
)
from pytest_llmbench.logs.sources.compressed import Stream, is_compressed
from pytest_llmbench.logs.sources.stores import Stores

# Limits of one batch for a worker. A reply costs some milliseconds, since this process
# is busy when it arrives.
BATCH_FILES, BATCH_BYTES = 256, 4 << 20
# Later batches contain less: an eighth of the files that are left, but at least 16.
BATCHES_LEFT, SMALL_BATCH = 8, 16

# Batches that may wait for workers while runs are searched for.
MOST_WAITING = 64

# Approximate time to read a small file, and additional time per byte.
FILE_SECONDS, BYTE_SECONDS = 7e-4, 2e-9

# Approximate time to start a worker. One worker is started for each multiple of this
# time in estimated work.
WORKER_SECONDS = 0.25

# With more workers this process would do nothing but receive replies.
MOST_WORKERS = 8


class ReadCounts(NamedTuple):
    """Files and bytes read so far, and in total."""

    files: int
    total_files: int
    size: int
    total_size: int


class ReadAhead:
    """Worker processes that read logs while runs are still being searched for.

    Must be closed, so that no worker remains.
    """

    def __init__(
        self, definitions: Sequence[RegexDialect] = (), *, with_state: bool = False
    ) -> None:
        """Results contain the states of the files if `with_state` is True."""
        self._pool = WorkerPool(definitions, with_state=with_state)
        self._added: set[FileToRead] = set()
        self._batch: list[FileToRead] = []
        self._batch_bytes = 0
        self._seconds = 0.0  # estimated work

    def add_log(self, path: str, size: int) -> None:
        """Add a log of this machine that a run may contain. `size` is in bytes.

        Ignores large logs (several threads read them later), and all logs while
        MOST_WAITING batches wait.
        """
        from pytest_llmbench.logs.log_reader import LARGE

        if size >= LARGE or self._pool.count_waiting() >= MOST_WAITING:
            return
        file = FileToRead(path, True)
        self._added.add(file)
        self._batch.append(file)
        self._batch_bytes += size
        self._seconds += FILE_SECONDS + BYTE_SECONDS * size
        if len(self._batch) == BATCH_FILES or self._batch_bytes >= BATCH_BYTES:
            self._pool.add_batch(self._batch)
            self._pool.start_workers(_limit_workers(self._seconds))
            self._batch, self._batch_bytes = [], 0

    def read(self, sizes: Mapping[FileToRead, int]) -> Iterator[Sequence[FileReading]]:
        """Yield the results of the files with these sizes, in any order.

        This process also reads files that no worker has started.
        """
        begun = self._added.difference(self._batch, self._pool.take_unread())
        batches = list(
            make_batches({file: sizes[file] for file in sizes if file not in begun})
        )
        for batch in batches:
            self._pool.add_batch(batch)
        self._pool.start_workers(count_workers(sizes, len(batches)))
        for readings in self._pool.read_all():
            yield [reading for reading in readings if reading.file in sizes]

    def close(self) -> None:
        """Stop the workers."""
        self._pool.close()


def start_reading_ahead(
    definitions: Sequence[RegexDialect], cache: LogCache | None
) -> ReadAhead | None:
    """Return a ReadAhead, or None if the cache may contain the logs."""
    if cache and cache.exists():
        return None
    return ReadAhead(definitions, with_state=cache is not None)


class Reading:
    """Reader of the logs of runs, with the dialects that baseline files define."""

    def __init__(
        self,
        stores: Stores,
        runs: Iterable[RunFiles],
        definitions: Sequence[RegexDialect] = (),
        *,
        cache: LogCache | None = None,
        report: Callable[[ReadCounts], None] | None = None,
        ahead: ReadAhead | None = None,
    ) -> None:
        """Read all files in archives and on this machine.

        Remote files are read on request. `ahead` contains logs that workers are already
        reading; the caller closes it.
        """
        self._stores = stores
        self._definitions = tuple(definitions)
        self._report = report
        self._ahead = ahead or ReadAhead(definitions, with_state=cache is not None)
        attempts = [attempt for run in runs for attempt in run.attempts]
        logs = [FileToRead(attempt.log_text, True) for attempt in attempts]
        errors = [
            FileToRead(attempt.err_text, False)
            for attempt in attempts
            if attempt.err_name
        ]
        requested = dict.fromkeys((*logs, *errors))
        self._results: dict[FileToRead, ReadResult] = {}
        paths = (Path(file.path) for file in requested)
        for path, text in stores.read_from_archives(paths):
            is_log = FileToRead(str(path), True) in requested
            file = FileToRead(str(path), is_log)
            self._results[file] = self._parse(text, is_log=is_log)
        local_files = [
            file
            for file in requested
            if file not in self._results and os.path.isabs(file.path)
        ]
        self._read_here(local_files, cache)

    def get_log(self, path: Path | str) -> ParsedLog:
        """Return a parsed log. Raises LogError if it cannot be read."""
        return cast("ParsedLog", self._get_result(path, is_log=True))

    def get_ending(self, path: Path | str) -> Ending | None:
        """Return how a run ended, according to the file of its standard error.

        Returns None if the file does not state it. Raises LogError if the file cannot
        be read.
        """
        return cast("Ending | None", self._get_result(path, is_log=False))

    def _get_result(
        self, path: Path | str, *, is_log: bool
    ) -> ParsedLog | Ending | None:
        """Return the result of a file, which is read now if it is remote.

        Raises LogError if the file cannot be read.
        """
        file = FileToRead(os.fspath(path), is_log)
        if file in self._results:
            result = self._results[file]
        else:
            result = self._parse(self._stores.stream(Path(path)), is_log=is_log)
        if isinstance(result, LogError):
            raise result
        return result

    def _parse(self, text: Stream | LogError, *, is_log: bool) -> ReadResult:
        """Parse the text of a file; an error is returned unchanged."""
        if isinstance(text, LogError):
            return text
        return parse(text, self._definitions, is_log=is_log)

    def _read_here(
        self, requested: Sequence[FileToRead], cache: LogCache | None
    ) -> None:
        """Read files on this machine, taking unchanged files from the cache."""
        if cache:
            self._results |= cache.find_unchanged(requested)
        sizes = {
            file: read_size(file.path)
            for file in requested
            if file not in self._results
        }
        if sizes:
            self._read_new(sizes, cache)
        elif self._report:
            self._report(ReadCounts(0, 0, 0, 0))

    def _read_new(self, sizes: dict[FileToRead, int], cache: LogCache | None) -> None:
        """Read the files with these sizes, and add their results to the cache.

        Large logs are read one after the other, all other files by several processes.
        """
        from pytest_llmbench.logs.log_reader import LARGE

        large_logs = {
            file
            for file, size in sizes.items()
            if file.is_log and size >= LARGE and not is_compressed(file.path)
        }
        other_sizes = {
            file: size for file, size in sizes.items() if file not in large_logs
        }
        new_readings: list[FileReading] = []
        done = ReadCounts(0, len(sizes), 0, sum(sizes.values()))

        def add_results(readings: Sequence[FileReading]) -> None:
            """Add the results of readings, and report the progress."""
            nonlocal done
            self._results |= {reading.file: reading.result for reading in readings}
            if cache:
                new_readings.extend(readings)
            size = sum(sizes[reading.file] for reading in readings)
            done = done._replace(
                files=done.files + len(readings), size=done.size + size
            )
            if self._report:
                self._report(done)

        add_results([])  # reports the beginning
        # Closed here: the traceback of an interrupted session would keep the workers
        # alive.
        with closing(self._ahead):
            for readings in self._ahead.read(other_sizes):
                add_results(readings)
        for file in sorted(large_logs):  # Several threads search each of these files.
            add_results(
                [read_file(file, self._definitions, with_state=cache is not None)]
            )
        if cache:
            cache.keep(new_readings)


def count_workers(sizes: Mapping[FileToRead, int], batches: int) -> int:
    """Return the number of workers worth starting, 0 for few or small files."""
    seconds = FILE_SECONDS * len(sizes) + BYTE_SECONDS * sum(sizes.values())
    return min(_limit_workers(seconds), batches - 1)


def _limit_workers(seconds: float) -> int:
    """Return the number of workers worth starting for this amount of work."""
    return min(int(seconds / WORKER_SECONDS), count_processors() - 1, MOST_WORKERS)


def make_batches(sizes: Mapping[FileToRead, int]) -> Iterator[list[FileToRead]]:
    """Yield files in batches, the largest files first and the smallest batches last.

    The last batches are then short, so all processes end at about the same time.
    """
    waiting = sorted(sizes, key=lambda file: sizes[file])
    while waiting:
        most_files = min(BATCH_FILES, max(SMALL_BATCH, len(waiting) // BATCHES_LEFT))
        batch = [waiting.pop()]
        remaining = BATCH_BYTES - sizes[batch[0]]
        while waiting and len(batch) < most_files and sizes[waiting[-1]] <= remaining:
            remaining -= sizes[waiting[-1]]
            batch.append(waiting.pop())
        yield batch


# --- how far a long reading is --------------------------------------------------------

# Faster reads print no progress.
FIRST_SECONDS = 2.0
REWRITE_SECONDS = 0.5
# If the terminal cannot rewrite a line, the second line follows after LINE_SECONDS. The
# pause then doubles with each line, up to LONGEST_SECONDS.
LINE_SECONDS, LONGEST_SECONDS = 10.0, 300.0

_UNITS = ("kB", "MB", "GB", "TB")


class Terminal(Protocol):
    """The methods of pytest's terminal reporter used here."""

    @property
    def isatty(self) -> bool:
        """True if a line can be rewritten."""

    def rewrite(self, line: str, /, *, erase: bool) -> None:
        """Overwrite the last line."""

    def write_line(self, line: str, /) -> None:
        """Write a line."""

    def flush(self) -> None:
        """Flush the output."""


class ReadingProgress:
    """Progress printer for reading logs."""

    def __init__(
        self, terminal: Callable[[], Terminal | None], clock: Callable[[], float]
    ) -> None:
        """`terminal` returns None to print nothing. `clock` returns seconds."""
        self._terminal = terminal
        self._clock = clock
        self._began: float | None = None
        self._next = 0.0
        self._pause = LINE_SECONDS
        self._is_shown = False

    def __call__(self, done: ReadCounts) -> None:
        """Print progress if the interval has elapsed. The first call starts the clock."""
        now = self._clock()
        if self._began is None:
            self._began = now
            self._next = now + FIRST_SECONDS
        is_ended = done.files == done.total_files
        # The end is printed only if progress was printed before.
        is_due = self._is_shown if is_ended else now >= self._next
        terminal = self._terminal()
        if terminal is None or not is_due:
            return
        self._is_shown = True
        line = f"llmbench: {describe_progress(done, now - self._began)}"
        if terminal.isatty:
            terminal.rewrite(line, erase=True)
            self._next = now + REWRITE_SECONDS
        if is_ended or not terminal.isatty:
            # after a rewritten line, only its end is missing
            terminal.write_line("" if terminal.isatty else line)
            self._next = now + self._pause
            self._pause = min(self._pause * 2, LONGEST_SECONDS)
        terminal.flush()


def describe_progress(done: ReadCounts, seconds: float) -> str:
    """Format progress as `read 120 of 5000 logs, 1.2 GB of 30 GB, about 40 s left`."""
    if done.files == done.total_files:
        return f"read {done.files} logs, {format_size(done.size)}, in {_format_duration(seconds)}"
    if done.size:
        amount, total = done.size, done.total_size
    else:
        amount, total = done.files, done.total_files
    remaining = ""
    if amount:
        remaining_seconds = seconds * (total - amount) / amount
        remaining = f", about {_format_duration(remaining_seconds)} left"
    return f"read {done.files} of {done.total_files} logs, {format_size(done.size)} of {format_size(done.total_size)}{remaining}"


def format_size(count: float) -> str:
    """Format a number of bytes with a unit: `1.2 GB`."""
    *smaller_units, largest_unit = _UNITS
    for unit in smaller_units:
        count /= 1000
        if count < 999.5:  # otherwise `.3g` would print 1e+03
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} {largest_unit}"


def _format_duration(seconds: float) -> str:
    """Format a duration as `40 s`, `12 min` or `2.5 h`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes / 60:.1f} h"
