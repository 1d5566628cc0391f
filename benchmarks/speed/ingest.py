"""Speed and memory of finding and reading logs, compared with today's shell tools.

    python -m benchmarks.speed.ingest [--cases small large trace many]
        [--folder DIR] [--repetitions 5] [--scale 0.01]

Compared commands alternate, on files that were read once before. Ratios are medians
over the rounds. Exit code 1 if a limit is exceeded; at another scale than 1, limits are
only printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from speed import ingest_today as today
from speed.environment import ENVIRONMENT

HERE = Path(__file__).resolve().parent
GIB, MIB = 1 << 30, 1 << 20
MOST_BYTES = 100_000_000
"""Of memory beside an idle process, for a log of any size."""

OURS = "this project"
LEAST = "to read, search and count lines, and nothing else"
FIRST, SECOND = "this project, first", "this project, second (cache)"
ONE_CPU = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))


class Measured(NamedTuple):
    """Resources of a command: seconds and the largest process's peak memory in bytes.

    A command may report its own time. `said` is the last JSON that it printed, empty
    without.
    """

    seconds: float
    peak: int
    said: Mapping[str, float]


class Promise(NamedTuple):
    """A promised limit, with the measured value."""

    text: str
    measured: float
    most: float


Contenders = Mapping[str, Callable[[], Measured]]
Rounds = Mapping[str, Sequence[Measured]]
Outcome = Iterator[Promise]


def measured(command: Sequence[str | Path]) -> Measured:
    """Run a command. Raises RuntimeError with its output if it fails; pytest may return
    1."""
    with (
        tempfile.TemporaryDirectory() as folder,
        (Path(folder) / "out").open("w+b") as out,
    ):
        begin = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=ENVIRONMENT | {"LC_ALL": "C"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode(errors="replace")
    if process.returncode not in ((0, 1) if "pytest" in command else (0,)):
        raise RuntimeError(
            f"{command} ended with {process.returncode}:\n{text[-2000:]}"
        )
    last = text.rstrip().rpartition("\n")[2]
    output = json.loads(last) if last.startswith("{") else {}
    return Measured(
        output.get("seconds", seconds),
        int(output.get("peak", usage.ru_maxrss * 1024)),
        output,
    )


def shell(script: str, *arguments: Path) -> Callable[[], Measured]:
    """Return the command for a script. Its output goes to a pipe, since grep stops
    early without a reader."""
    return lambda: measured(
        ["bash", "-c", f"set -e -o pipefail\n{{ {script}\n}} | cat", "bash", *arguments]
    )


def reading(
    how: str, *arguments: Path | str, before: Sequence[str] = ()
) -> Callable[[], Measured]:
    """Return the command that reads with this project in its own process, optionally
    under another command."""
    return lambda: measured(
        [*before, sys.executable, HERE / "ingest_reading.py", how, *arguments]
    )


def session(*folders: Path) -> Callable[[], Measured]:
    """Return the command that judges all runs in folders, without cache, and writes a
    JUnit report."""
    logs = [f"--llmb-logs={folder}" for folder in folders]
    plain = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--junitxml=junit.xml",
        "--llmb-no-cache",
    ]
    return lambda: measured([*plain, *logs])


def in_turns(contenders: Contenders, repetitions: int) -> Rounds:
    """Return this number of results of each command; every round runs all of them."""
    rounds: dict[str, list[Measured]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, run in contenders.items():
            rounds[name].append(run())
    return rounds


def ratio(rounds: Rounds, one: str, other: str) -> float:
    """Return the median ratio of two commands' times over the rounds."""
    return median(
        a.seconds / b.seconds for a, b in zip(rounds[one], rounds[other], strict=True)
    )


def show(title: str, rounds: Rounds, of: str, size: int) -> None:
    """Print a table: time as a ratio first, then bytes per second, seconds and memory."""
    print(
        f"\n{title}\n\n| | time, of `{of}` | GB/s | seconds | peak MiB |\n|---|---|---|---|---|"
    )
    for name, results in rounds.items():
        seconds, peak = (
            median(one.seconds for one in results),
            max(one.peak for one in results),
        )
        rate, share = size / 1e9 / seconds, ratio(rounds, name, of)
        print(
            f"| {name} | {share:.3g} | {rate:.3g} | {seconds:.3g} | {peak / MIB:.0f} |",
            flush=True,
        )


@dataclass(frozen=True)
class Data:
    """The input files: written if missing, of full size times `scale`."""

    folder: Path
    scale: float
    repetitions: int

    def __call__(self, kind: str, size: float, name: str = "") -> tuple[Path, int]:
        """Return a file or folder of one kind with its size in bytes, after reading it
        once."""
        count = max(1, round(size * self.scale))
        path = self.folder / f"{name or kind}-{count}"
        if not path.exists():
            part = path.with_name(f"{path.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            subprocess.run(
                [sys.executable, HERE / "ingest_logs.py", kind, part, str(count)],
                check=True,
            )
            part.rename(path)
        files = (
            [path]
            if path.is_file()
            else [one for one in path.rglob("*") if one.is_file()]
        )
        for one in files:
            with one.open("rb") as file:
                while file.read(MIB):
                    pass
        return path, sum(one.stat().st_size for one in files)


# --- cases ----------------------------------------------------------------------------


def searches(
    *paths: Path, needle: str = today.NEEDLE
) -> dict[str, Callable[[], Measured]]:
    """Return commands of grep and, if installed, ripgrep that count the lines with a
    text."""
    found = {"grep -c": shell(f"grep -rc '{needle}' \"$@\"", *paths)}
    if shutil.which("rg"):
        found["rg -c"] = shell(f"rg --no-ignore -c '{needle}' \"$@\"", *paths)
    else:
        print("rg is not installed: left out")
    return found


def small(data: Data) -> Outcome:
    """Many small logs: finding and reading, whole sessions, and a second session."""
    parts = [data("small", 5000, f"small{number}") for number in range(4)]
    first, size = parts[0]
    loops = {
        "loop": _loop(first),
        "every field, and nothing else": _loop(today.LEAST, first),
    }
    rounds = in_turns(
        {OURS: reading("tree", first), **loops, **searches(first)}, data.repetitions
    )
    for name in loops:
        _check_same(rounds, OURS, name)
    count = int(rounds[OURS][0].said["logs"])
    show(
        f"{count} logs of 50 steps: finding, and reading every field",
        rounds,
        "loop",
        size,
    )
    yield Promise(
        f"finding and reading {count} small logs, of the loop",
        ratio(rounds, OURS, "loop"),
        1.4,
    )
    yield from _sessions(data, [path for path, _ in parts], count, size)
    yield from _second(data, first, size)


def _loop(*arguments: Path | str) -> Callable[[], Measured]:
    return lambda: measured([sys.executable, HERE / "ingest_today.py", *arguments])


def _check_same(rounds: Rounds, one: str, other: str) -> None:
    """Raise RuntimeError if two readers found different numbers of steps."""
    if (steps := rounds[one][0].said["steps"]) != rounds[other][0].said["steps"]:
        raise RuntimeError(
            f"{one} found {steps} steps, {other} {rounds[other][0].said['steps']}"
        )


def _sessions(data: Data, folders: Sequence[Path], count: int, size: int) -> Outcome:
    contenders = {
        "grep and awk": shell(today.PIPELINE, folders[0]),
        "session": session(folders[0]),
        "session, twice as many logs": session(*folders[:2]),
        "session, 4 times": session(*folders),
    }
    rounds = in_turns(contenders, data.repetitions)
    show(f"{count} logs, judged, with a JUnit report", rounds, "grep and awk", size)
    a_run = median(one.seconds for one in rounds["session"]) * 1000 / count
    yield Promise("a session of small logs, ms a run", a_run, 0.55)
    yield Promise(
        "a session, of grep and awk", ratio(rounds, "session", "grep and awk"), 1 / 20
    )
    yield Promise(
        "a session of 4 times as many logs",
        ratio(rounds, "session, 4 times", "session"),
        4.4,
    )


def _second(data: Data, folder: Path, size: int) -> Outcome:
    """Read unchanged logs again; the cache is empty at the beginning of each round."""
    with tempfile.TemporaryDirectory() as name:
        caches = Path(name)

        def first() -> Measured:
            shutil.rmtree(caches / "cache", ignore_errors=True)
            return reading("tree", folder, f"--cache={caches / 'cache'}")()

        again = reading("tree", folder, f"--cache={caches / 'cache'}")
        found = {"finding": reading("find", folder), FIRST: first, SECOND: again}
        rounds = in_turns(found, data.repetitions)
        show("the same logs, read again", rounds, FIRST, size)
        _check_same(rounds, FIRST, SECOND)
        alone = {
            name: [
                one.seconds - find.seconds
                for one, find in zip(rounds[name], rounds["finding"], strict=True)
            ]
            for name in (FIRST, SECOND)
        }
        shares = [
            late / early
            for early, late in zip(alone[FIRST], alone[SECOND], strict=True)
        ]
        yield Promise(
            "reading again what has not changed, without finding it",
            median(shares),
            0.1,
        )


def large(data: Data) -> Outcome:
    """One large log with few steps, on one processor and on all."""
    path, size = data("large", 2 * GIB)
    contenders = {
        OURS: reading("one", path),
        f"{OURS}, one processor": reading("one", path, before=ONE_CPU),
        LEAST: reading("least", path),
        f"{LEAST}, one processor": reading("least", path, before=ONE_CPU),
        **searches(path),
        "idle": reading("idle"),
    }
    rounds = in_turns(contenders, data.repetitions)
    idle = rounds["idle"]
    show(
        f"one log of {size / GIB:.3g} GiB, 50 steps",
        {k: v for k, v in rounds.items() if k != "idle"},
        "grep -c",
        size,
    )
    yield Promise("a large log, of grep -c", ratio(rounds, OURS, "grep -c"), 0.55)
    yield Promise(
        "the same on one processor",
        ratio(rounds, f"{OURS}, one processor", "grep -c"),
        1.0,
    )
    yield _memory("a large log", rounds[OURS], idle)


def _memory(
    what: str, results: Sequence[Measured], idle: Sequence[Measured]
) -> Promise:
    extra = max(one.peak for one in results) - min(one.peak for one in idle)
    return Promise(
        f"memory of reading {what}, MB beside an idle process",
        extra / 1e6,
        MOST_BYTES / 1e6,
    )


def trace(data: Data) -> Outcome:
    """One large NCCL trace: its sums, and reading it as the log of a run."""
    path, size = data("trace", 2 * GIB)
    contenders = {
        "llmbench nccl": lambda: measured(
            [sys.executable, "-m", "pytest_llmbench.cli.main", "nccl", str(path)]
        ),
        "grep and awk": shell(today.COUNTING, path),
        "reading it as a log": reading("one", path),
        **searches(path, needle=" opCount "),
        "idle": reading("idle"),
    }
    rounds = in_turns(contenders, data.repetitions)
    shown = {name: results for name, results in rounds.items() if name != "idle"}
    show(f"one NCCL trace of {size / GIB:.3g} GiB", shown, "grep and awk", size)
    yield Promise(
        "sums of a trace, of grep and awk",
        ratio(rounds, "llmbench nccl", "grep and awk"),
        1.0,
    )
    yield _memory("a trace as a log", rounds["reading it as a log"], rounds["idle"])
    yield _memory("the sums of a trace", rounds["llmbench nccl"], rounds["idle"])


def many(data: Data) -> Outcome:
    """Hundreds of logs of 20 MB each."""
    path, size = data("many", 500)
    contenders = {
        OURS: reading("tree", path),
        "grep and awk": shell(today.PIPELINE, path),
        **searches(path),
    }
    rounds = in_turns({**contenders, "idle": reading("idle")}, data.repetitions)
    shown = {name: rounds[name] for name in contenders}
    show(f"{int(rounds[OURS][0].said['logs'])} logs of 20 MB", shown, "grep -c", size)
    yield _memory("large logs", rounds[OURS], rounds["idle"])


CASES: dict[str, Callable[[Data], Outcome]] = {
    "small": small,
    "large": large,
    "trace": trace,
    "many": many,
}


def main() -> int:
    """Print a table for each case, and the limits. Exit code 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=CASES,
        default=list(CASES),
        help="which (default: all)",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="X",
        help="of the full sizes (default: 1)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where logs are kept for the next time (15 GB)",
    )
    parser.add_argument(
        "--repetitions",
        type=int,
        default=5,
        metavar="N",
        help="rounds of each table (default: 5)",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = (options.folder or Path(name)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        data = Data(folder, options.scale, options.repetitions)
        promises = [promise for case in options.cases for promise in CASES[case](data)]
    print("\n| promised | measured | at most | |\n|---|---|---|---|")
    for text, value, most in promises:
        print(
            f"| {text} | {value:.3g} | {most:.3g} | {'kept' if value <= most else 'BROKEN'} |"
        )
    return int(options.scale == 1 and any(value > most for _, value, most in promises))


if __name__ == "__main__":
    sys.exit(main())
