"""Reading a trace, of any size and in any number of files, on as many cores as there are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import is_remote
from pytest_llmbench.ingest.nccl.records import Counts, count_records, cut_pieces
from pytest_llmbench.ingest.nccl.trace import Trace, sum_counts
from pytest_llmbench.ingest.sources.compressed import Stream
from pytest_llmbench.ingest.sources.stores import STANDARD_INPUT, Stores

# Bytes from which on it pays to start other processes.
LARGE = 1 << 25

# Each reads all bytes and searches its share, so more than these wait for the memory.
PROCESSES = 8


def read_trace(paths: Sequence[Path]) -> Trace:
    """Return what the NCCL records in files, folders and archives say in sum; LogError where there is none.

    Below a folder every file counts but copies of a launcher's output (`sbatch_*`) and hidden ones; a file that is
    given twice counts once.
    """
    counts = _count_all(paths)
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


def _iterate_share(stream: Stream, counts: Counts, share: int, shares: int) -> Iterator[bytes]:
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
            begun = [others.submit(count_share, paths, share, shares) for share in range(1, shares)]
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
    """Return how many processes read: one where little is read, or what can only be read once."""
    if any(is_remote(path) or path == STANDARD_INPUT for path in paths):
        return 1
    size = sum(path.stat().st_size for path in _list_files(Stores(), paths))
    return min(len(os.sched_getaffinity(0)), PROCESSES) if size >= LARGE else 1


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
            absolute = stores.absolute(path)
            below = _walk_folder(stores, absolute) if S_ISDIR(stores.stat(absolute).st_mode) else iter([absolute])
            for file in below:
                status = stores.stat(file)
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    yield file
        except OSError as error:
            raise LogError(f"cannot read {error.filename or path}: {error.strerror or error}") from error


def _walk_folder(stores: Stores, folder: Path) -> Iterator[Path]:
    for entry in stores.scan(folder):
        if entry.is_dir():
            if not entry.is_symlink():
                yield from _walk_folder(stores, Path(entry.path))
        elif not entry.name.startswith((".", "sbatch_")) and S_ISREG(entry.stat().st_mode):
            yield Path(entry.path)


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
    return f"{files} empty; {wanted}" if not counts.size else f"no NCCL trace in it; {wanted}"
