"""Read NCCL traces (`NCCL_DEBUG=INFO`, subsystem COLL) and saved summaries of them.

Large files are read in several processes. `nccl_records` counts the records,
`nccl_changes` compares two traces.
"""

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
    """Number of records of one kind, and the bytes of all their buffers."""

    kind: Kind
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The summary of a trace."""

    rows: tuple[TraceRow, ...]
    damaged: tuple[tuple[str, int], ...]
    """Number of incomplete records by operation; no row contains them."""

    communicators: tuple[tuple[int, int], ...]
    """(size, number) of communicators, counted once per member rank."""

    ranks: int
    hosts: int
    limited: bool
    """True if there are more ranks or communicators than are counted (MEMBERS)."""

    unnamed: int
    """Records that name no process."""

    calls: int
    """NCCL CALL records, which repeat the same operations."""

    from_calls: bool
    """True if the trace has only NCCL CALL records, so that `rows` count these."""

    files: int
    traced: int
    """Files that contain records."""

    bytes: int
    """Size of the text of all files."""

    cut: int
    """Compressed files that are truncated."""

    @property
    def records(self) -> int:
        """Number of complete records."""
        return sum(row.records for row in self.rows)

    @property
    def begun(self) -> int:
        """Number of all records, complete or damaged."""
        return self.records + sum(number for _, number in self.damaged)

    @property
    def damage(self) -> float:
        """Fraction of the records that are damaged."""
        return 1 - self.records / self.begun if self.begun else 0.0


def sum_counts(counts: Counts) -> Trace:
    """Build the summary of a trace from its counts."""
    # NCCL CALL records repeat the others, so they count only in a trace without others.
    from_calls = not counts.whole.records and not counts.damaged
    counted = counts.calls if from_calls else counts.whole
    ranks = _drop_unnamed(counts.ranks)
    communicators = _drop_unnamed(counts.communicators)
    number_by_size = Counter(counts.communicators[key] for key in communicators)
    return Trace(
        rows=tuple(
            TraceRow(kind, counted.records[kind], counted.volume[kind])
            for kind in sorted(counted.records)
        ),
        damaged=tuple(sorted(counts.damaged.items())),
        communicators=tuple(sorted(number_by_size.items())),
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
    """Drop keys without a process, if other keys have one, and damaged host names.

    A host name is damaged if it is another host name with text before it: `0stone:7 0`
    if there is `stone:7 0`.
    """
    # A key without a process begins with the blank before its GPU.
    named_keys = {key for key in keys if not key.startswith(b" ")} or set(keys)

    def is_damaged(key: bytes) -> bool:
        """True if the key without its first characters is another key."""
        host_end = key.find(b":")
        return any(key[start:] in named_keys for start in range(1, host_end))

    return [key for key in named_keys if not is_damaged(key)]


LARGE = 1 << 25
"""Bytes from which several processes read faster than one."""

PROCESSES = 8
"""Limit of reading processes.

Each process reads all bytes and searches a share of them, so memory bandwidth limits
more processes.
"""


def read_trace(paths: Sequence[Path]) -> Trace:
    """Read the NCCL records of files, folders and archives.

    In folders, hidden files and duplicates of a launcher's output (`sbatch_*`) are
    skipped. A file that is given twice counts once. Raises LogError if there is no
    record.
    """
    try:
        counts = _count_all(paths)
    except MemoryError as error:
        raise LogError(
            f"{_format_paths(paths)}: not enough memory: give fewer or smaller files"
        ) from error
    trace = sum_counts(counts)
    if not trace.begun:
        raise LogError(f"{_format_paths(paths)}: {_explain_nothing(counts)}")
    return trace


def count_share(paths: Sequence[Path], share: int, shares: int) -> Counts:
    """Count the records of every `shares`-th piece, beginning with piece `share`."""
    counts = Counts()
    for stream in _open_streams(paths):
        counts.files += 1
        count_records(_iterate_share(stream, counts, share, shares), counts)
        counts.cut += stream.is_truncated
    return counts


def _iterate_share(
    stream: Stream, counts: Counts, share: int, shares: int
) -> Iterator[bytes]:
    """Yield the pieces of a share, and add the bytes of all pieces to `counts.size`."""
    # Starts at the number of the file, so that small files spread over all processes.
    for number, piece in enumerate(cut_pieces(stream), counts.files):
        counts.size += len(piece)
        if number % shares == share:
            yield piece


def _count_all(paths: Sequence[Path]) -> Counts:
    """Count the records of all files, with several processes for large traces.

    Counts in this process if a process is killed or a file grows meanwhile.
    """
    shares = _choose_shares(paths)
    if shares == 1:
        return count_share(paths, 0, 1)
    from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
    from multiprocessing import get_context

    try:
        with ProcessPoolExecutor(shares - 1, get_context("spawn")) as pool:
            futures = [
                pool.submit(count_share, paths, share, shares)
                for share in range(1, shares)
            ]
            counts = count_share(paths, 0, shares)
            results = [future.result() for future in futures]
    except (BrokenExecutor, OSError):  # a process was killed or could not start
        return count_share(paths, 0, 1)
    # Every process reads all bytes, so other sizes mean that a file grew meanwhile.
    has_grown = any(
        (result.files, result.size) != (counts.files, counts.size) for result in results
    )
    if has_grown:
        return count_share(paths, 0, 1)
    for result in results:
        counts.merge(result)
    return counts


def _choose_shares(paths: Sequence[Path]) -> int:
    """Return the number of reading processes.

    It is 1 for little text, and for standard input and URLs, which are read only once.
    """
    if any(is_remote(path) or path == STANDARD_INPUT for path in paths):
        return 1
    size = sum(path.stat().st_size for path in _list_files(Stores(), paths))
    return min(count_processors(), PROCESSES) if size >= LARGE else 1


def _open_streams(paths: Sequence[Path]) -> Iterator[Stream]:
    """Yield a stream for each file, also for the files in archives. Raises LogError."""
    stores = Stores()
    for path in _list_files(stores, paths):
        if not stores.is_archive(path):
            yield stores.stream(path)
            continue
        archive, top = stores.open_archive(path, lambda _: True)
        for path_in_archive, reason in archive.unreadable:
            raise LogError(f"{path_in_archive}: {reason}")
        for _, stream in stores.read_from_archives(list(_walk_folder(stores, top))):
            if isinstance(stream, LogError):
                raise stream
            yield stream


def _list_files(stores: Stores, paths: Iterable[Path]) -> Iterator[Path]:
    """Yield every file once. Raises LogError for an unreadable path."""
    listed = set()
    for path in paths:
        try:
            absolute = stores.resolve_path(path)
            files: Iterable[Path] = [absolute]
            if S_ISDIR(stores.stat(absolute).st_mode):
                files = _walk_folder(stores, absolute)
            for file in files:
                status = stores.stat(file)
                inode = (status.st_dev, status.st_ino)
                if inode not in listed:
                    listed.add(inode)
                    yield file
        except OSError as error:
            raise LogError(
                f"cannot read {error.filename or path}: {error.strerror or error}"
            ) from error


def _walk_folder(stores: Stores, folder: Path) -> Iterator[Path]:
    """Yield the regular files under a folder; each folder is visited once."""
    pending = [folder]
    visited = set()
    while pending:
        current = pending.pop()
        status = stores.stat(current)
        inode = (status.st_dev, status.st_ino)
        if inode in visited:
            continue
        visited.add(inode)
        subfolders = []
        for entry in stores.scan(current):
            if entry.is_dir():
                if not (entry.is_symlink() and links_to_ancestor(entry.path)):
                    subfolders.append(Path(entry.path))
                continue
            # Hidden files, and duplicates of the launcher's output.
            is_skipped = entry.name.startswith((".", "sbatch_"))
            if not is_skipped and S_ISREG(entry.stat().st_mode):
                yield Path(entry.path)
        # Reversed, because the last folder is visited first.
        pending += reversed(subfolders)


def _format_paths(paths: Sequence[Path]) -> str:
    """Format paths: `first.log and 7 more`."""
    first, *others = paths
    return f"{first} and {len(others)} more" if others else str(first)


def _explain_nothing(counts: Counts) -> str:
    """Explain that a trace has no record: no file, empty files or other text."""
    expected = (
        "expected lines such as `NCCL INFO AllReduce: opCount 2 ...`: run with NCCL_DEBUG=INFO and "
        "NCCL_DEBUG_SUBSYS=COLL (pytest --llmb-nccl-trace), and give the log or the files of NCCL_DEBUG_FILE"
    )
    if not counts.files:
        return f"it contains no file; {expected}"
    files = "the file is" if counts.files == 1 else f"all {counts.files} files are"
    problem = "it contains no NCCL trace" if counts.size else f"{files} empty"
    return f"{problem}; {expected}"


SCHEMA = 1
LARGEST = 1 << 25
"""Limit of bytes in a saved trace; KINDS rows need less."""

LARGEST_NUMBER = 1 << 256
"""Limit of counts in a saved trace, so that ratios of counts fit into a float."""

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


def read_saved_or_logs(paths: Sequence[Path]) -> Trace:
    """Read a saved trace or, if `paths` is not one, the records of log files.

    Raises LogError.
    """
    if len(paths) == 1 and paths[0].is_file():
        stores = Stores()
        if _HEAD.match(stores.read_small(paths[0], 64)):
            return _parse_trace(paths[0], stores.read_small(paths[0], LARGEST))
    return read_trace(paths)


def _parse_trace(path: Path, text: bytes) -> Trace:
    """Parse a saved trace. Refuses a text of another form or version."""
    try:
        values = parse_json(text)
    except ValueError as error:
        _refuse(path, f"no complete JSON text ({error})")
    if values["llmbench_nccl"] != SCHEMA:
        _refuse(
            path,
            f"schema {values['llmbench_nccl']!r:.40}, but this version reads {SCHEMA}",
        )
    try:
        return Trace(
            rows=tuple(map(_parse_row, values["rows"])),
            damaged=tuple(
                (_check_type(str, name), _check_type(int, number))
                for name, number in values["damaged"]
            ),
            communicators=tuple(
                (_check_type(int, nranks), _check_type(int, number))
                for nranks, number in values["communicators"]
            ),
            **{
                name: _check_type(type_, values[name])
                for name, type_ in _SCALARS.items()
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        _refuse(
            path,
            f"a value is missing or has another type ({type(error).__name__}: {error})",
        )


def _parse_row(row: Any) -> TraceRow:
    """Parse a row of a saved trace. Raises KeyError, TypeError or ValueError."""
    kind = Kind(
        *(_check_type(type_, row[name], least=-1) for name, type_ in _KIND.items())
    )
    records = _check_type(int, row["records"], least=1)
    return TraceRow(kind, records, _check_type(int, row["bytes"]))


def _check_type(type_: type[Any], value: object, least: int = 0) -> Any:
    """Return a value of exactly this type; a number must be at least `least`.

    Raises TypeError or ValueError.
    """
    if type(value) is not type_:  # not isinstance: True is an int
        raise TypeError(f"found {str(value)[:40]!r}, expected {type_.__name__}")
    if isinstance(value, int) and not least <= value <= LARGEST_NUMBER:
        raise ValueError(f"found {str(value)[:40]}, expected a number >= {least}")
    return value


def _refuse(path: Path, reason: str) -> NoReturn:
    """Raise LogError: `path` is not a saved trace."""
    raise LogError(
        f"{path} is not a saved trace: {reason}; save it again with `llmbench nccl LOG --save {path.name}`"
    )
