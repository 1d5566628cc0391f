"""The texts of found runs, each read once: unchanged ones come from the cache, small files are read by several
processes, archives in one pass."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.models import Ending, ParsedLog, RegexDialect, RunFiles
from pytest_llmbench.ingest.sources.compressed import is_compressed
from pytest_llmbench.ingest.sources.local import FileState, read_state, select_numbers

if TYPE_CHECKING:
    # every worker process imports this module: what opens archives and remote places is not for them
    from pytest_llmbench.ingest.reading.cache import LogCache
    from pytest_llmbench.ingest.sources.compressed import Stream
    from pytest_llmbench.ingest.sources.stores import Stores

ReadResult: TypeAlias = ParsedLog | Ending | LogError | None
"""What a file says: a log; a standard error that tells of an ending, or of none; or why it cannot be read."""

# What changed this shortly before it was read may change again and look the same: there are file systems that keep
# times in steps of two seconds.
SETTLED_NS = 2_000_000_000


class FileToRead(NamedTuple):
    """A file to be read: as a log, or as a standard error, of which only the ending counts. The path is a text."""

    path: str
    is_log: bool


def read_file(
    wanted: FileToRead, definitions: Sequence[RegexDialect], *, keep: bool
) -> tuple[ReadResult, FileState | None]:
    """Return what a file says, and where that may be kept its state: it is the same before and after, and settled."""
    began = time.time_ns()
    before = _stat(wanted.path) if keep else None
    result = _parse(wanted, definitions)
    if (
        before is None
        or isinstance(result, LogError)
        or began - max(before.st_mtime_ns, before.st_ctime_ns) < SETTLED_NS
    ):
        return result, None
    state = read_state(wanted.path)
    return result, state if state is not None and state[:-1] == select_numbers(before) else None


def _parse(wanted: FileToRead, definitions: Sequence[RegexDialect]) -> ReadResult:
    from pytest_llmbench.ingest.parse.read import read_ending, read_log

    path = Path(wanted.path)
    try:
        return read_log(path, definitions) if wanted.is_log else read_ending(path)
    except LogError as error:
        return error


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # reading it says why
        return None


Value = TypeVar("Value")

# What a worker reads at once: enough to be worth an answer, and little enough to be shared evenly.
BATCH_FILES, BATCH_BYTES = 64, 4 << 20

# About what it takes to read a small file, and each byte of it.
FILE_SECONDS, BYTE_SECONDS = 7e-4, 2e-9

# About what it takes to start a worker: there is one for each time as much work, beside this process.
WORKER_SECONDS = 0.25

# With more of them this process would only take answers.
MOST_WORKERS = 8


class ReadCounts(NamedTuple):
    """How many files were read, and how many bytes of them, of all that have to be."""

    files: int
    of_files: int
    size: int
    of_size: int


class Reading:
    """Reads the logs of runs, with the dialects that baseline files define."""

    def __init__(
        self,
        stores: Stores,
        runs: Iterable[RunFiles],
        definitions: Sequence[RegexDialect] = (),
        *,
        cache: LogCache | None = None,
        tell: Callable[[ReadCounts], None] | None = None,
    ) -> None:
        """Read what of the runs lies in archives or on this machine."""
        self._stores = stores
        self._definitions = tuple(definitions)
        self._tell = tell
        files = [attempt for run in runs for attempt in run.attempts]
        logs = {_name_file(attempt_files.log, is_log=True): attempt_files.log for attempt_files in files}
        errors = {
            _name_file(attempt_files.err, is_log=False): attempt_files.err
            for attempt_files in files
            if attempt_files.err
        }
        self._results: dict[FileToRead, ReadResult] = {}
        for path, text in stores.read_packed([*logs.values(), *errors.values()]):
            is_log = _name_file(path, is_log=True) in logs
            self._results[_name_file(path, is_log=is_log)] = self._read(text, is_log=is_log)
        here = [
            attempt_files
            for attempt_files in (*logs, *errors)
            if attempt_files not in self._results and attempt_files.path.startswith(os.sep)
        ]
        self._read_here(here, cache)

    def log(self, path: Path) -> ParsedLog:
        """Return what a log says; LogError if it cannot be read."""
        return cast("ParsedLog", _raise_error(self._find(path, is_log=True)))

    def ending(self, path: Path) -> Ending | None:
        """Return how a standard error says that the job ended, or None; LogError if it cannot be read."""
        return cast("Ending | None", _raise_error(self._find(path, is_log=False)))

    def _find(self, path: Path, *, is_log: bool) -> ReadResult:
        wanted = _name_file(path, is_log=is_log)
        return (
            self._results[wanted] if wanted in self._results else self._read(self._stores.stream(path), is_log=is_log)
        )

    def _read(self, text: Stream | LogError, *, is_log: bool) -> ReadResult:
        from pytest_llmbench.ingest.parse.read import read_ending, read_log

        try:
            return read_log(_raise_error(text), self._definitions) if is_log else read_ending(_raise_error(text))
        except LogError as error:
            return error

    def _read_here(self, wanted: Sequence[FileToRead], cache: LogCache | None) -> None:
        """Read files of this machine, but for those that the cache knows."""
        self._results |= cache.find_unchanged(wanted) if cache else {}
        sizes = {file: _read_size(file.path) for file in wanted if file not in self._results}
        if sizes:
            self._read_new(sizes, cache)
        elif self._tell:
            self._tell(ReadCounts(0, 0, 0, 0))

    def _read_new(self, sizes: dict[FileToRead, int], cache: LogCache | None) -> None:
        from pytest_llmbench.ingest.parse.read import LARGE
        from pytest_llmbench.ingest.reading.worker_pool import read_batches

        alone = {file for file, size in sizes.items() if file.is_log and size >= LARGE and not is_compressed(file.path)}
        shared = {file: size for file, size in sizes.items() if file not in alone}
        cacheable: dict[FileToRead, tuple[FileState, ReadResult]] = {}
        done = ReadCounts(0, len(sizes), 0, sum(sizes.values()))

        def take(files: Sequence[FileToRead], answers: Sequence[tuple[ReadResult, FileState | None]]) -> None:
            nonlocal done
            for file, (result, state) in zip(files, answers, strict=True):
                self._results[file] = result
                if state is not None:
                    cacheable[file] = state, result
            size = sum(sizes[file] for file in files)
            done = done._replace(files=done.files + len(files), size=done.size + size)
            if self._tell:
                self._tell(done)

        take([], [])
        batches = list(_make_batches(shared))
        read_batches(batches, self._definitions, _count_workers(shared, len(batches)), take, keep=cache is not None)
        for file in sorted(alone):  # several threads search each of them
            take([file], [read_file(file, self._definitions, keep=cache is not None)])
        if cache:
            cache.keep(cacheable)


def _count_workers(sizes: dict[FileToRead, int], batches: int) -> int:
    """Return how many workers are worth their start: none for few or small files."""
    seconds = FILE_SECONDS * len(sizes) + BYTE_SECONDS * sum(sizes.values())
    processors = len(os.sched_getaffinity(0))
    return min(int(seconds / WORKER_SECONDS), processors - 1, batches - 1, MOST_WORKERS)


def _make_batches(sizes: dict[FileToRead, int]) -> Iterator[list[FileToRead]]:
    """Yield files in batches, the largest first: the last ones to be read are short, and all processes end together."""
    batch: list[FileToRead] = []
    left = BATCH_BYTES
    for file in sorted(sizes, key=lambda file: -sizes[file]):
        if batch and (left < sizes[file] or len(batch) == BATCH_FILES):
            yield batch
            batch, left = [], BATCH_BYTES
        batch.append(file)
        left -= sizes[file]
    if batch:
        yield batch


def _read_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # reading it says why
        return 0


def _name_file(path: Path, *, is_log: bool) -> FileToRead:
    return FileToRead(os.fspath(path), is_log)


def _raise_error(value: Value | LogError) -> Value:
    if isinstance(value, LogError):
        raise value
    return value
