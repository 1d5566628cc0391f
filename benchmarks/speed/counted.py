"""Run one job: `valgrind --tool=callgrind ... python counted.py FOLDER JOB run|base
CLIENT`.

CLIENT is the compiled `client.c`, through which the process switches callgrind's
counting on and off. Without valgrind the same command does the same work uncounted: it
compiles the modules and warms the caches for the counted run.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path
from typing import Self

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / name) for name in ("tests", "benchmarks")
)

from speed.jobs import JOBS


class Counting:
    """Context manager that switches callgrind's counting on."""

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
    """Run the job and print its summary."""
    folder, name, part, client = sys.argv[1:]
    job = JOBS[name]
    run = job.base if part == "base" and job.base else job.run
    done = run(Path(folder), Counting(client))
    print(done, file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
