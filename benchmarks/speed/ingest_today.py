"""Today's alternatives, without this project: shell tools, and a loop in Python.

    python benchmarks/speed/ingest_today.py FOLDER

Runs the loop over all logs of a folder. With --least it reads the fields of each step
and nothing else, close to the fastest possible in Python.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

LEAST = "--least"
NEEDLE = "train_step_timing in s"

PIPELINE = r"""
for log in $(find "$@" -name 'log-*.out'); do
    grep 'train_step_timing in s' "$log" | awk -F 'train_step_timing in s: ' -v name="$log" '
        NR >= 12 && NR <= 45 { split($2, value, " "); sum += value[1]; squares += value[1] ^ 2; n++ }
        END { mean = sum / n; print name, mean, sqrt((squares - n * mean ^ 2) / (n - 1)) }'
done
"""
"""Mean and standard deviation of iterations 11 to 44 of each log, one pipeline for
each."""

COUNTING = r"""
grep ' opCount ' "$1" | awk '{ count[$5]++; elements[$5] += $13 }
    END { for (name in count) print name, count[name], elements[name] }'
"""
"""Operations of a trace by type, and how many elements they had."""

STEP = re.compile(r"global_step: (\d+)")
SECONDS = re.compile(r"train_step_timing in s: (\S+)")
TFLOPS = re.compile(r"TFLOPS_per_GPU: (\S+)")


def read(path: Path) -> list[tuple[int, float, float]]:
    """Return step, seconds and TFLOP/s of each step of a log."""
    found = []
    with path.open(encoding="utf-8", errors="replace") as log:
        for line in log:
            step, seconds, tflops = (
                STEP.search(line),
                SECONDS.search(line),
                TFLOPS.search(line),
            )
            if step and seconds:
                found.append(
                    (
                        int(step[1]),
                        float(seconds[1]),
                        float(tflops[1]) if tflops else 0.0,
                    )
                )
    return found


def read_least(path: str) -> list[list[float]]:
    """Return the columns of a log, including the step number. The first step lacks the
    last column."""
    with open(path, "rb") as log:
        rows = [
            line.split(b" | ")
            for line in log.read().split(b"\n")
            if b"train_step_timing in s: " in line
        ]
    columns = list(zip(*rows, strict=False))[1:]
    return [
        [float(field.partition(b": ")[2]) for field in column] for column in columns
    ]


def main() -> None:
    """Read all logs in the folders; print the time and the number of steps."""
    least = LEAST in sys.argv
    folders = [argument for argument in sys.argv[1:] if argument != LEAST]
    begin = time.perf_counter()
    if least:
        paths = [
            f"{place}/{name}"
            for folder in folders
            for place, _, names in os.walk(folder)
            for name in names
        ]
        logs = [len(read_least(path)[0]) for path in paths if path.endswith(".out")]
    else:
        logs = [
            len(read(path))
            for folder in folders
            for path in Path(folder).rglob("log-*.out")
        ]
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "logs": len(logs), "steps": sum(logs)}))


if __name__ == "__main__":
    main()
