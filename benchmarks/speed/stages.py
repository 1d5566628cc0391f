"""Instructions of reading one small log of each dialect, by stage.

    python -m benchmarks.speed.stages [--dialects NAME ...] [--against COMMIT]

Prints a table of million instructions per log of 50 steps, without imports. A stage is
a library's work, or Python's own: so the stages of two commits can be compared. Needs
valgrind. A minute for each dialect and commit.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / name)
    for name in ("tests", "benchmarks", "benchmarks/equivalence")
)

from generator import lines
from source_trees import prepare_trees
from speed import ingest_logs
from speed.environment import use_package

STEPS = 50
FEW, MANY = 20, 60
"""Numbers of logs that a process reads: the difference of two is without imports."""

LOOP = Path(__file__).with_name("ingest_today.py")

STAGES = {
    "finding markers": "aho_corasick|hyperscan|memchr",
    "regular expressions": "_sre|/sre",
    "columns": "numpy",
    "Python": "",
}
"""Patterns of the functions and libraries of each stage; the last one is the rest."""

COST = re.compile(r"^ *([\d,]+) \([ .\d]+%\)  (.*)$", re.MULTILINE)

Step = Callable[[int], str]
"""Returns the lines of a step, counted from 1."""


def _moment(step: int) -> datetime:
    return ingest_logs.START + timedelta(seconds=7.3 * step)


def _bridge(step: int) -> str:
    line = lines.megatron_line(
        _moment(step), step, STEPS, 7.3, batch=128, tflops=None, loss=12.0 - step / 50
    )
    return f"{lines.step_time_line(7.3, 611.9)}\n{line}"


def _torchtitan(step: int) -> str:
    return lines.torchtitan_line(
        _moment(step), step, loss=12.0 - step / 50, tokens_per_second=5110, tflops=299.8
    )


def _metrics(step: int) -> str:
    values = {"train_step_timing in s": 7.3, "reduced_train_loss": 12.0 - step / 50}
    return "\n".join(
        lines.metric_line(_moment(step), step, STEPS, value, name)
        for name, value in values.items()
    )


STEP_LINES: dict[str, Step] = {
    "megatron-bridge": _bridge,
    "torchtitan": _torchtitan,
    "mlperf": lambda step: lines.mlperf_step(step - 1, 7.3, 12.0 - step / 50, 128),
    "paxml": lambda _: lines.paxml_line(7.3),
    "trainer": lambda step: lines.trainer_record(step, STEPS, 7.3 * step, 1.5),
    "metrics": _metrics,
}
"""Step lines of the dialects that `ingest_logs` does not write."""


def write_logs(dialect: str, folder: Path) -> list[Path]:
    """Write MANY logs of a dialect. Returns their paths."""
    if dialect in ingest_logs.SMALL:
        ingest_logs.SMALL[dialect](folder, MANY)
    else:
        folder.mkdir()
        for number in range(MANY):
            random = Random(number)
            texts = [
                random.choice(ingest_logs.ORDINARY)(random)
                for _ in range(ingest_logs.PREAMBLE_LINES)
            ]
            texts += map(STEP_LINES[dialect], range(1, STEPS + 1))
            (folder / f"{number}.out").write_text("\n".join([*texts, ""]))
    logs = [path for path in folder.rglob("*.out") if path.stat().st_size > 1000]
    return sorted(logs)


def count_costs(command: Sequence[str | Path], tree: Path) -> Counter[str]:
    """Return the instructions of a command by stage."""
    with tempfile.TemporaryDirectory() as name:
        counted = Path(name) / "counted"
        valgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={counted}")
        environment = use_package(tree) | {"PYTHONHASHSEED": "0"}
        subprocess.run(
            [*valgrind, *command],
            check=True,
            capture_output=True,
            cwd=name,
            env=environment,
        )
        table = subprocess.check_output(
            ["callgrind_annotate", "--threshold=100", "--auto=no", counted], text=True
        )
    costs: Counter[str] = Counter()
    for instructions, function in COST.findall(table):
        if function != "PROGRAM TOTALS":
            costs[_find_stage(function)] += int(instructions.replace(",", ""))
    return costs


def _find_stage(function: str) -> str:
    return next(stage for stage, part in STAGES.items() if re.search(part, function))


def count_per_log(
    command: Sequence[str | Path], logs: Sequence[Path], tree: Path
) -> dict[str, float]:
    """Return the million instructions of a command per log, by stage."""
    few_logs = logs[:FEW]
    subprocess.run(
        [*command, *few_logs],
        check=True,
        env=use_package(tree),
        stdout=subprocess.DEVNULL,
    )  # compiles the modules
    few, many = (count_costs([*command, *some], tree) for some in (few_logs, logs))
    logs_more = (len(logs) - FEW) * 1e6
    return {stage: (many[stage] - few[stage]) / logs_more for stage in STAGES}


def show_dialect(dialect: str, trees: Mapping[str, Path], folder: Path) -> None:
    """Print a row of the table for each tree."""
    logs = write_logs(dialect, folder / dialect)
    for name, tree in trees.items():
        (script,) = tree.glob("benchmarks/**/ingest_reading.py")
        reading: list[str | Path] = [sys.executable, script, "one"]
        _show(f"{dialect}, {name}", reading, logs, tree)
    if dialect in ingest_logs.SMALL:
        loop: list[str | Path] = [sys.executable, LOOP, f"--dialect={dialect}"]
        _show(f"{dialect}, a loop with three patterns", loop, logs, Path(__file__))


def _show(
    name: str, command: Sequence[str | Path], logs: Sequence[Path], tree: Path
) -> None:
    costs = count_per_log(command, logs, tree)
    cells = [f"{value:.2f}" for value in (*costs.values(), sum(costs.values()))]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    dialects = (*ingest_logs.SMALL, *STEP_LINES)
    parser.add_argument("--dialects", nargs="+", choices=dialects, default=dialects)
    parser.add_argument("--against", action="append", default=[], metavar="COMMIT")
    options = parser.parse_args()
    print(f"| dialect | {' | '.join(STAGES)} | all |\n|{'---|' * (len(STAGES) + 2)}")
    with tempfile.TemporaryDirectory() as name:
        trees = prepare_trees(options.against, Path(name) / "trees")
        for dialect in options.dialects:
            show_dialect(dialect, trees, Path(name))


if __name__ == "__main__":
    main()
