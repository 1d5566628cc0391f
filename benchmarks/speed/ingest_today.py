"""Today's alternatives, without this project: shell tools, and a loop in Python.

    python benchmarks/speed/ingest_today.py [--least] [--dialect NAME] FOLDER

Runs the loop over all logs of a folder. With --least it reads the fields of each step
and nothing else, close to the fastest possible in Python.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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

PATTERNS = {
    "nemo2": (
        r"global_step: (\d+)",
        r"train_step_timing in s: (\S+)",
        r"TFLOPS_per_GPU: (\S+)",
    ),
    "nemo1": (
        r"global_step=(\d+)",
        r"train_step_timing in s=([\d.]+)",
        r"reduced_train_loss=([\d.]+)",
    ),
    "maxtext": (
        r"completed step: (\d+)",
        r"seconds: ([\d.]+)",
        r"TFLOP/s/device: ([\d.]+)",
    ),
    "megatron": (
        r"iteration +(\d+)/",
        r"elapsed time per iteration \(ms\): ([\d.]+)",
        r"throughput per GPU \(TFLOP/s/GPU\): ([\d.]+)",
    ),
}
"""Patterns of a step's number, its time (Megatron: in milliseconds) and its TFLOP/s
(NeMo 1: its loss), by dialect."""


def read(path: Path, dialect: str = "nemo2") -> list[tuple[int, float, float]]:
    """Return the three numbers of each step of a log, as `PATTERNS` finds them."""
    number, time_of_step, value = map(re.compile, PATTERNS[dialect])
    found: list[tuple[int, float, float]] = []
    with path.open(encoding="utf-8", errors="replace") as log:
        for line in log:
            step, seconds, tflops = (
                number.search(line),
                time_of_step.search(line),
                value.search(line),
            )
            if step and seconds:
                if found and found[-1][0] == int(step[1]):
                    found.pop()  # NeMo 1 prints each step twice
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(LEAST, action="store_true")
    parser.add_argument("--dialect", choices=PATTERNS, default="nemo2")
    parser.add_argument("folders", nargs="+", help="or logs")
    options = parser.parse_args()
    folders = options.folders
    begin = time.perf_counter()
    if options.least:
        paths = [
            f"{place}/{name}"
            for folder in folders
            for place, _, names in os.walk(folder)
            for name in names
        ]
        logs = [len(read_least(path)[0]) for path in paths if path.endswith(".out")]
    else:
        logs = [
            len(read(path, options.dialect))
            for folder in map(Path, folders)
            for path in ([folder] if folder.is_file() else folder.rglob("log-*.out"))
        ]
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "logs": len(logs), "steps": sum(logs)}))


if __name__ == "__main__":
    main()
