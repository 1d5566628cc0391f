"""The texts of found runs, each read once: unchanged ones come from the cache, small files are read by several
processes, archives in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.models import Ending, ParsedLog, RegexDialect, RunFiles
from pytest_llmbench.ingest.reading.file_reading import Said, Wanted, read_file
from pytest_llmbench.ingest.sources.compressed import Stream, is_compressed
from pytest_llmbench.ingest.sources.local import State
from pytest_llmbench.ingest.sources.stores import Stores

if TYPE_CHECKING:
    from pytest_llmbench.ingest.reading.cache import LogCache

Found = TypeVar("Found")

BATCH_FILES, BATCH_BYTES = 64, 4 << 20
"""What a worker reads at once: enough to be worth an answer, and little enough to be shared evenly."""

FILE_SECONDS, BYTE_SECONDS = 7e-4, 2e-9
"""About what it takes to read a small file, and each byte of it."""

WORKER_SECONDS = 0.25
"""About what it takes to start a worker: there is one for each time as much work, beside this process."""

MOST_WORKERS = 8
"""With more of them this process would only take answers."""


class Done(NamedTuple):
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
        tell: Callable[[Done], None] | None = None,
    ) -> None:
        """Read what of the runs lies in archives or on this machine."""
        self._stores = stores
        self._definitions = tuple(definitions)
        self._tell = tell
        files = [attempt for run in runs for attempt in run.attempts]
        logs = {_wanted(one.log, is_log=True): one.log for one in files}
        errors = {_wanted(one.err, is_log=False): one.err for one in files if one.err}
        self._said: dict[Wanted, Said] = {}
        for path, text in stores.read_packed([*logs.values(), *errors.values()]):
            is_log = _wanted(path, is_log=True) in logs
            self._said[_wanted(path, is_log=is_log)] = self._read(text, is_log=is_log)
        here = [one for one in (*logs, *errors) if one not in self._said and one.path.startswith(os.sep)]
        self._read_here(here, cache)

    def log(self, path: Path) -> ParsedLog:
        """Return what a log says; LogError if it cannot be read."""
        return cast("ParsedLog", _or_raise(self._of(path, is_log=True)))

    def ending(self, path: Path) -> Ending | None:
        """Return how a standard error says that the job ended, or None; LogError if it cannot be read."""
        return cast("Ending | None", _or_raise(self._of(path, is_log=False)))

    def _of(self, path: Path, *, is_log: bool) -> Said:
        wanted = _wanted(path, is_log=is_log)
        return self._said[wanted] if wanted in self._said else self._read(self._stores.stream(path), is_log=is_log)

    def _read(self, text: Stream | LogError, *, is_log: bool) -> Said:
        from pytest_llmbench.ingest.parse.read import read_ending, read_log

        try:
            return read_log(_or_raise(text), self._definitions) if is_log else read_ending(_or_raise(text))
        except LogError as error:
            return error

    def _read_here(self, wanted: Sequence[Wanted], cache: LogCache | None) -> None:
        """Read files of this machine, but for those that the cache knows."""
        self._said |= cache.known(wanted) if cache else {}
        sizes = {one: _size(one.path) for one in wanted if one not in self._said}
        if sizes:
            self._read_new(sizes, cache)
        elif self._tell:
            self._tell(Done(0, 0, 0, 0))

    def _read_new(self, sizes: dict[Wanted, int], cache: LogCache | None) -> None:
        from pytest_llmbench.ingest.parse.read import LARGE
        from pytest_llmbench.ingest.reading.worker_pool import read_batches

        alone = {one for one, size in sizes.items() if one.is_log and size >= LARGE and not is_compressed(one.path)}
        shared = {one: size for one, size in sizes.items() if one not in alone}
        kept: dict[Wanted, tuple[State, Said]] = {}
        done = Done(0, len(sizes), 0, sum(sizes.values()))

        def take(files: Sequence[Wanted], answers: Sequence[tuple[Said, State | None]]) -> None:
            nonlocal done
            for one, (said, state) in zip(files, answers, strict=True):
                self._said[one] = said
                if state is not None:
                    kept[one] = state, said
            size = sum(sizes[one] for one in files)
            done = done._replace(files=done.files + len(files), size=done.size + size)
            if self._tell:
                self._tell(done)

        take([], [])
        batches = list(_batches(shared))
        read_batches(batches, self._definitions, _workers(shared, len(batches)), take, keep=cache is not None)
        for one in sorted(alone):  # several threads search each of them
            take([one], [read_file(one, self._definitions, keep=cache is not None)])
        if cache:
            cache.keep(kept)


def _workers(sizes: dict[Wanted, int], batches: int) -> int:
    """Return how many workers are worth their start: none for few or small files."""
    seconds = FILE_SECONDS * len(sizes) + BYTE_SECONDS * sum(sizes.values())
    processors = len(os.sched_getaffinity(0))
    return min(int(seconds / WORKER_SECONDS), processors - 1, batches - 1, MOST_WORKERS)


def _batches(sizes: dict[Wanted, int]) -> Iterator[list[Wanted]]:
    """Yield files in batches, the largest first: the last ones to be read are short, and all processes end together."""
    batch: list[Wanted] = []
    left = BATCH_BYTES
    for one in sorted(sizes, key=lambda one: -sizes[one]):
        if batch and (left < sizes[one] or len(batch) == BATCH_FILES):
            yield batch
            batch, left = [], BATCH_BYTES
        batch.append(one)
        left -= sizes[one]
    if batch:
        yield batch


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # reading it says why
        return 0


def _wanted(path: Path, *, is_log: bool) -> Wanted:
    return Wanted(os.fspath(path), is_log)


def _or_raise(found: Found | LogError) -> Found:
    if isinstance(found, LogError):
        raise found
    return found
