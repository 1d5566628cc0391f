"""NCCL traces (`NCCL_DEBUG=INFO`, sub-system COLL): what one says in sum, read from
files of any size on as many cores as there are, saved and read again. `records` counts,
`changes` compares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, NoReturn

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import is_remote
from pytest_llmbench.core.runtime import count_processors
from pytest_llmbench.core.userfile import links_to_ancestor, parse_json
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.logs.sources.stores import STANDARD_INPUT, Stores
from pytest_llmbench.tools.nccl.nccl_records import (
    MEMBERS,
    Counts,
    Kind,
    count_records,
    cut_pieces,
)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A kind of operation, its records, and the bytes of all their buffers."""

    kind: Kind
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace says in sum."""

    rows: tuple[TraceRow, ...]
    damaged: tuple[
        tuple[str, int], ...
    ]  # records that begin and are not whole, by operation; they are in no row
    communicators: tuple[
        tuple[int, int], ...
    ]  # how many there are of each size, one for each rank in it
    ranks: int
    hosts: int
    limited: bool  # whether there are more ranks or communicators than were told apart
    unnamed: int  # records that name no process
    calls: int  # lines of NCCL CALL, which tell the same operations again
    from_calls: (
        bool  # whether there were no records, so that the rows are made of calls
    )
    files: int
    traced: int  # files that hold records
    bytes: int  # of the text of all files
    cut: int  # compressed files that end early

    @property
    def records(self) -> int:
        """Number of whole records."""
        return sum(row.records for row in self.rows)

    @property
    def begun(self) -> int:
        """Number of records, whole or damaged."""
        return self.records + sum(number for _, number in self.damaged)

    @property
    def damage(self) -> float:
        """Share of the records that are damaged."""
        return 1 - self.records / self.begun if self.begun else 0.0


def sum_counts(counts: Counts) -> Trace:
    """Return what was counted."""
    from_calls = not counts.whole.records and not counts.damaged
    counted = counts.calls if from_calls else counts.whole
    ranks = _drop_unnamed(counts.ranks)
    communicators = _drop_unnamed(counts.communicators)
    return Trace(
        rows=tuple(
            TraceRow(kind, counted.records[kind], counted.volume[kind])
            for kind in sorted(counted.records)
        ),
        damaged=tuple(sorted(counts.damaged.items())),
        communicators=tuple(
            sorted(Counter(counts.communicators[key] for key in communicators).items())
        ),
        ranks=len(ranks),
        hosts=len({rank.partition(b":")[0] for rank in ranks if b":" in rank}),
        limited=max(len(counts.ranks), len(counts.communicators)) > MEMBERS,
        unnamed=counts.unnamed,
        calls=counts.calls.records.total(),
        from_calls=from_calls,
        files=counts.files,
        traced=len(counts.traced),
        bytes=counts.size,
        cut=counts.cut,
    )


def _drop_unnamed(keys: Collection[bytes]) -> list[bytes]:
    """Leave out what names no process beside others that do, and hosts with torn text
    before their names (`0stone:7 0` where there is `stone:7 0`)."""
    named = {key for key in keys if not key.startswith(b" ")} or set(keys)
    return [
        key
        for key in named
        if not any(key[cut:] in named for cut in range(1, key.find(b":")))
    ]


# Bytes from which on it pays to start other processes.
LARGE = 1 << 25

# Each reads all bytes and searches its share, so more than these wait for the memory.
PROCESSES = 8


def read_trace(paths: Sequence[Path]) -> Trace:
    """Return what the NCCL records in files, folders and archives say in sum; LogError
    where there is none.

    Below a folder every file counts but copies of a launcher's output (`sbatch_*`) and
    hidden ones; a file that is given twice counts once.
    """
    try:
        counts = _count_all(paths)
    except MemoryError as error:
        raise LogError(
            f"{_format_paths(paths)}: it takes more memory than there is"
        ) from error
    trace = sum_counts(counts)
    if not trace.begun:
        raise LogError(f"{_format_paths(paths)}: {_explain_nothing(counts)}")
    return trace


def count_share(paths: Sequence[Path], share: int, shares: int) -> Counts:
    """Count every so many-th piece of the files, from the number `share` on."""
    counts = Counts()
    for stream in _open_streams(paths):
        counts.files += 1
        count_records(_iterate_share(stream, counts, share, shares), counts)
        counts.cut += stream.cut
    return counts


def _iterate_share(
    stream: Stream, counts: Counts, share: int, shares: int
) -> Iterator[bytes]:
    for number, piece in enumerate(cut_pieces(stream), counts.files):
        counts.size += len(piece)
        if number % shares == share:
            yield piece


def _count_all(paths: Sequence[Path]) -> Counts:
    shares = _choose_shares(paths)
    if shares == 1:
        return count_share(paths, 0, 1)
    from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
    from multiprocessing import get_context

    try:
        with ProcessPoolExecutor(shares - 1, get_context("spawn")) as others:
            begun = [
                others.submit(count_share, paths, share, shares)
                for share in range(1, shares)
            ]
            counts = count_share(paths, 0, shares)
            rest = [part.result() for part in begun]
    except (BrokenExecutor, OSError):  # one was killed, or none can be started
        return count_share(paths, 0, 1)
    if any((part.files, part.size) != (counts.files, counts.size) for part in rest):
        return count_share(paths, 0, 1)  # a file grew between two openings
    for part in rest:
        counts.merge(part)
    return counts


def _choose_shares(paths: Sequence[Path]) -> int:
    """Return how many processes read: one where little is read, or what can only be
    read once."""
    if any(is_remote(path) or path == STANDARD_INPUT for path in paths):
        return 1
    size = sum(path.stat().st_size for path in _list_files(Stores(), paths))
    return min(count_processors(), PROCESSES) if size >= LARGE else 1


def _open_streams(paths: Sequence[Path]) -> Iterator[Stream]:
    stores = Stores()
    for path in _list_files(stores, paths):
        if not stores.is_archive(path):
            yield stores.stream(path)
            continue
        archive, top = stores.open_archive(path, lambda _: True)
        for place, why in archive.unreadable:
            raise LogError(f"{place}: {why}")
        for _, stream in stores.read_packed(list(_walk_folder(stores, top))):
            if isinstance(stream, LogError):
                raise stream
            yield stream


def _list_files(stores: Stores, paths: Iterable[Path]) -> Iterator[Path]:
    """Yield every file once."""
    seen = set()
    for path in paths:
        try:
            absolute = stores.resolve_path(path)
            below = (
                _walk_folder(stores, absolute)
                if S_ISDIR(stores.stat(absolute).st_mode)
                else iter([absolute])
            )
            for file in below:
                status = stores.stat(file)
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    yield file
        except OSError as error:
            raise LogError(
                f"cannot read {error.filename or path}: {error.strerror or error}"
            ) from error


def _walk_folder(stores: Stores, folder: Path) -> Iterator[Path]:
    waiting = [folder]
    seen = set()
    while waiting:
        below = []
        status = stores.stat(place := waiting.pop())
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in stores.scan(place):
            if entry.is_dir():
                if not (entry.is_symlink() and links_to_ancestor(entry.path)):
                    below.append(Path(entry.path))
            elif not entry.name.startswith((".", "sbatch_")) and S_ISREG(
                entry.stat().st_mode
            ):
                yield Path(entry.path)
        waiting += reversed(below)


def _format_paths(paths: Sequence[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def _explain_nothing(counts: Counts) -> str:
    wanted = (
        "expected lines such as `NCCL INFO AllReduce: opCount 2 ...`: run with NCCL_DEBUG=INFO and "
        "NCCL_DEBUG_SUBSYS=COLL (pytest --llmb-nccl-trace), and give the log or the files of NCCL_DEBUG_FILE"
    )
    if not counts.files:
        return f"no file below it; {wanted}"
    files = "the file is" if counts.files == 1 else f"all {counts.files} files are"
    found = "no NCCL trace in it" if counts.size else f"{files} empty"
    return f"{found}; {wanted}"


SCHEMA = 1
# Bytes of a saved trace: its KINDS rows take less.
LARGEST = 1 << 25

# Larger numbers are no counts, and no float holds a share of them.
LARGEST_NUMBER = 1 << 256

_HEAD = re.compile(rb'\s*\{\s*"llmbench_nccl"')
_KIND = {"operation": str, "nranks": int, "datatype": str, "from_bytes": int}
_SCALARS = {
    "ranks": int,
    "hosts": int,
    "limited": bool,
    "unnamed": int,
    "calls": int,
    "from_calls": bool,
    "files": int,
    "traced": int,
    "bytes": int,
    "cut": int,
}


def read_saved(paths: Sequence[Path]) -> Trace:
    """Return a trace that was saved, or what the files of one say; LogError where there
    is none."""
    if len(paths) == 1 and paths[0].is_file():
        stores = Stores()
        if _HEAD.match(stores.read_small(paths[0], 64)):
            return _parse_trace(paths[0], stores.read_small(paths[0], LARGEST))
    return read_trace(paths)


def _parse_trace(path: Path, text: bytes) -> Trace:
    try:
        values = parse_json(text)
    except ValueError as error:
        _refuse(path, f"no whole JSON text ({error})")
    if values["llmbench_nccl"] != SCHEMA:
        _refuse(
            path,
            f"schema {values['llmbench_nccl']!r:.40}, and this version reads {SCHEMA}",
        )
    try:
        return Trace(
            rows=tuple(
                TraceRow(
                    Kind(
                        *(
                            _check_type(kind, row[name], least=-1)
                            for name, kind in _KIND.items()
                        )
                    ),
                    _check_type(int, row["records"], least=1),
                    _check_type(int, row["bytes"]),
                )
                for row in values["rows"]
            ),
            damaged=tuple(
                (_check_type(str, name), _check_type(int, number))
                for name, number in values["damaged"]
            ),
            communicators=tuple(
                (_check_type(int, nranks), _check_type(int, number))
                for nranks, number in values["communicators"]
            ),
            **{
                name: _check_type(kind, values[name]) for name, kind in _SCALARS.items()
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        _refuse(
            path,
            f"a value that is missing or of another type ({type(error).__name__}: {error})",
        )


def _check_type(kind: type[Any], value: object, least: int = 0) -> Any:
    if type(value) is not kind:  # not isinstance: True is an int
        raise TypeError(f"found {str(value)[:40]!r}, expected {kind.__name__}")
    if isinstance(value, int) and not least <= value <= LARGEST_NUMBER:
        raise ValueError(f"found {str(value)[:40]}, expected a number from {least} on")
    return value


def _refuse(path: Path, why: str) -> NoReturn:
    raise LogError(
        f"{path} is no saved trace: {why}; save it again with `llmbench nccl LOG --save {path.name}`"
    )
