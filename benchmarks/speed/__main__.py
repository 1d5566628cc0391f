"""Gate on this project's speed: count the instructions of jobs that users wait for.

    python -m benchmarks.speed [JOB...] [--lower | --record]

Compares the counts with values.yaml.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from speed import gate
from speed.counting import (
    Count,
    CountingError,
    compile_client,
    count,
    describe_environment,
)
from speed.jobs import JOBS

HERE = Path(__file__).resolve().parent
VALUES = HERE / "values.yaml"


def count_jobs(names: Sequence[str]) -> dict[str, Count]:
    """Count jobs, one at a time on each processor."""
    processors: SimpleQueue[int] = SimpleQueue()
    for processor in sorted(os.sched_getaffinity(0)):
        processors.put(processor)

    def count_one(name: str) -> Count:
        processor = processors.get()
        try:
            return count(name, client, processor)
        finally:
            processors.put(processor)

    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(processors.qsize()) as pool,
    ):
        client = compile_client(Path(folder))
        return dict(zip(names, pool.map(count_one, names), strict=True))


def describe_differences(
    recorded: Mapping[str, str], present: Mapping[str, str]
) -> list[str]:
    """Return a line for each difference from the recorded environment."""
    return [
        f"{name}: {present.get(name)} here, the values were recorded with {recorded.get(name)}"
        for name in sorted({*recorded, *present})
        if recorded.get(name) != present.get(name)
    ]


def describe_commit() -> str:
    """Return the short hash and subject of the current commit, or "this commit" outside
    git."""
    command = ["git", "-C", str(HERE), "log", "-1", "--format=%h (%s)"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stdout.strip() or "this commit"


def main() -> int:
    """Print a table; exit code 1 if a job is slower than allowed, 2 if jobs could not
    be counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "jobs", nargs="*", metavar="JOB", help=f"Default: all of {', '.join(JOBS)}."
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--lower",
        action="store_true",
        help="Write the values of jobs that became faster.",
    )
    mode.add_argument(
        "--record",
        action="store_true",
        help="Write all values: a new job, or another environment.",
    )
    options = parser.parse_args()
    if unknown := [name for name in options.jobs if name not in JOBS]:
        parser.error(f"no job is named {unknown[0]!r}; there are {', '.join(JOBS)}")
    try:
        values, environment = gate.read_values(VALUES), describe_environment()
        counts = count_jobs(options.jobs or list(JOBS))
        # In one of ten runs a job executes up to 3 % more, such as another collection of
        # garbage: the lower of two counts decides whether it became slower.
        slow_jobs = gate.list_slow_jobs(values, counts)
        if slow_jobs:
            counts = gate.keep_lower(counts, count_jobs(slow_jobs))
    except (CountingError, gate.ValuesError) as error:
        print(f"benchmarks.speed: {error}", file=sys.stderr)
        return 2
    if options.record:
        gate.write_values(
            VALUES, gate.Values(environment, {**values.jobs, **counts}, values.accepted)
        )
        values = gate.read_values(VALUES)
    report = gate.compare(values, counts)
    print(f"{'job':16}{'instructions':>15}{'value':>15}{'change':>10}{'accepted':>10}")
    print("\n".join(report.rows))
    if report.lower:
        print(
            f"{describe_commit()} may lower {', '.join(report.lower)}: python -m benchmarks.speed --lower"
        )
    if options.lower:
        gate.write_values(VALUES, gate.lower_values(values, counts))
    for fault in report.faults:
        print(f"FAILED {fault}")
    if report.faults:
        for difference in describe_differences(values.environment, environment):
            print(difference)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
