"""Read as a session does, in a separate process.

python benchmarks/speed/ingest_reading.py HOW PATH...
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import numpy as np

from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.runtime import count_processors, pause_garbage_collection
from pytest_llmbench.logs.log_collector import LogCollector
from pytest_llmbench.logs.log_reader import BLOCK, parse_blocks, read_log
from pytest_llmbench.logs.reading.cache import LogCache
from pytest_llmbench.logs.reading.run_reader import Reading, start_reading_ahead
from pytest_llmbench.logs.scan import MarkerSearch
from pytest_llmbench.logs.sources.files import File
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover.discovery import find_runs

CACHE = "--cache="
LARGEST = 1 << 62
"""A place in a log behind all that is stated at its beginning."""


def one(paths: Sequence[Path], _cache: Path | None) -> list[ParsedLog]:
    """Read one log."""
    return [read_log(path) for path in paths]


def tree(paths: Sequence[Path], cache: Path | None) -> list[ParsedLog]:
    """Find the runs in folders, and read their logs."""
    stores = Stores()
    log_cache = LogCache(cache, paths, ()) if cache else None
    ahead = start_reading_ahead((), log_cache)
    with pause_garbage_collection(), closing(ahead) if ahead else nullcontext():
        runs = find_runs(paths, stores, ahead.add_log if ahead else None).runs
        reading = Reading(stores, runs, cache=log_cache, ahead=ahead)
        return [
            reading.get_log(attempt.log_text)
            for run in runs
            for attempt in run.attempts
        ]


def find(paths: Sequence[Path], _cache: Path | None) -> list[ParsedLog]:
    """Find the runs in folders without reading their logs."""
    with pause_garbage_collection():
        find_runs(paths, Stores())
    return []


def least(paths: Sequence[Path], _cache: Path | None) -> list[ParsedLog]:
    """Read large files, search them and count their line feeds as `one` does, and
    nothing else."""
    search = LogCollector().choose_markers(LARGEST)
    search.prepare()
    threads = count_processors()
    for path in paths:
        with File(path) as file, ThreadPoolExecutor(threads) as pool:
            list(
                pool.map(
                    partial(_pass_over, file, search, threads * BLOCK),
                    range(0, threads * BLOCK, BLOCK),
                )
            )
    return []


def _pass_over(file: File, search: MarkerSearch, stride: int, first: int) -> int:
    line_feeds = 0
    for begin in range(first, file.size, stride):
        text = file.read(begin, min(begin + BLOCK, file.size))
        search.find_matches(text, 0, len(text))
        line_feeds += int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n")))
    return line_feeds


def idle(_paths: Sequence[Path], _cache: Path | None) -> list[ParsedLog]:
    """Read nothing, to measure the imports alone."""
    return []


HOW: dict[str, Callable[[Sequence[Path], Path | None], list[ParsedLog]]] = {
    "one": one,
    "tree": tree,
    "find": find,
    "least": least,
    "idle": idle,
}


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(
        int(line.split()[1]) * 1024
        for line in status.splitlines()
        if line.startswith("VmHWM")
    )


def main() -> None:
    """Print the time of reading without imports, the results and the peak memory."""
    mode, *rest = sys.argv[1:]
    cache = next(
        (Path(one.removeprefix(CACHE)) for one in rest if one.startswith(CACHE)), None
    )
    parse_blocks(
        [
            b"Training epoch 0, iteration 0/1 | global_step: 0 | train_step_timing in s: 1.5\n"
        ]
    )  # imports
    begin = time.perf_counter()
    logs = HOW[mode]([Path(one) for one in rest if not one.startswith(CACHE)], cache)
    seconds = time.perf_counter() - begin
    steps = sum(len(part.steps) for log in logs for part in log.segments)
    mean = float(
        np.mean(
            [part.steps.seconds.mean() for log in logs for part in log.segments]
            or [0.0]
        )
    )
    print(
        json.dumps(
            {
                "seconds": seconds,
                "peak": peak_bytes(),
                "logs": len(logs),
                "steps": steps,
                "mean": mean,
            }
        )
    )


if __name__ == "__main__":
    main()
