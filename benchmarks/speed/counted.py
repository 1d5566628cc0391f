"""Run one job with its instructions counted: `valgrind --tool=callgrind ... python counted.py FOLDER JOB run|base CLIENT`.

CLIENT is the compiled `client.c`, through which the process tells callgrind when to count. Without valgrind around it the
same command does the same work uncounted, which compiles and warms what the counted run finds.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path
from typing import Self

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / name) for name in ("examples", "benchmarks", "benchmarks/speed")]

from jobs import JOBS


class Counting:
    """Lets callgrind count while it is entered."""

    def __init__(self, client: str) -> None:
        self._client = ctypes.CDLL(client)

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        self._client.start_counting()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._client.stop_counting()


def main() -> None:
    """Run the job and print what it did."""
    folder, name, part, client = sys.argv[1:]
    job = JOBS[name]
    run = job.base if part == "base" and job.base else job.run
    done = run(Path(folder), Counting(client))
    print(done, file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
