"""Speed and memory of finding and reading logs, compared with today's shell tools.

    python -m benchmarks.speed.ingest [--cases small large trace many crowd]
        [--folder DIR] [--repetitions 5] [--scale 0.01] [--against COMMIT]

Compared commands alternate, on files that were read once before. Ratios are medians
over the rounds, with their range. With `--against` the cases `small` and `large` run
with the package of other commits too, in the same rounds. Exit code 1 if a limit is
exceeded; at another scale than 1, limits are only printed.
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / name)
    for name in ("benchmarks", "benchmarks/equivalence")
)

from source_trees import OURS, ROOT, prepare_trees
from speed import ingest_today as today
from speed.environment import use_package

HERE = Path(__file__).resolve().parent
GIB, MIB = 1 << 30, 1 << 20
MOST_BYTES = 100_000_000
"""Of memory beside an idle process, for a log of any size."""

LEAST = "to read, search and count lines, and nothing else"
FIRST, SECOND = "this project, first", "this project, second (cache)"
NO_TESTS = 5
"""How pytest ends if there is nothing to collect."""

ONE_CPU = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))


class Measured(NamedTuple):
    """Resources of a command: seconds, CPU seconds with all its processes, and the
    largest process's peak memory in bytes.

    A command may report its own time, without imports. `said` is the last JSON that it
    printed, empty without.
    """

    seconds: float
    cpu: float
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


def measured(
    command: Sequence[str | Path], tree: Path = ROOT, codes: Collection[int] = (0,)
) -> Measured:
    """Run a command with the package of a tree. Raises RuntimeError with its output if
    it ends with another exit code."""
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
            env=use_package(tree) | {"LC_ALL": "C"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode(errors="replace")
    if process.returncode not in codes:
        raise RuntimeError(
            f"{command} ended with {process.returncode}:\n{text[-2000:]}"
        )
    last = text.rstrip().rpartition("\n")[2]
    output = json.loads(last) if last.startswith("{") else {}
    return Measured(
        output.get("seconds", seconds),
        usage.ru_utime + usage.ru_stime,
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
    how: str,
    *arguments: Path | str,
    before: Sequence[str] = (),
    tree: Path = ROOT,
) -> Callable[[], Measured]:
    """Return the command that reads with the package of a tree in its own process,
    optionally under another command.

    Each commit has its own script for this: names and places of functions changed.
    """
    (script,) = tree.glob("benchmarks/**/ingest_reading.py")
    return lambda: measured([*before, sys.executable, script, how, *arguments], tree)


def session(*folders: Path, tree: Path = ROOT) -> Callable[[], Measured]:
    """Return the command that judges all runs in folders, without cache, and writes a
    JUnit report; without folders, the command of an empty session."""
    logs = [f"--llmb-logs={folder}" for folder in folders]
    options, codes = (["--llmb-no-cache"], (0, 1)) if logs else ([], (NO_TESTS,))
    plain = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--junitxml=junit.xml",
    ]
    return lambda: measured([*plain, *options, *logs], tree, codes)


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


def format_ratios(shares: Sequence[float]) -> str:
    """Return the median and the range of ratios."""
    return f"{median(shares):.3g} ({min(shares):.3g} to {max(shares):.3g})"


def show(title: str, rounds: Rounds, of: str, size: int | None) -> None:
    """Print a table: time and CPU as ratios first, then bytes per second (if all read
    the same bytes), seconds and memory."""
    print(
        f"\n{title}\n\n| | time, of `{of}` | CPU with imports, of `{of}` | GB/s | seconds | peak MiB |"
        "\n|---|---|---|---|---|---|"
    )
    for name, results in rounds.items():
        pairs = list(zip(results, rounds[of], strict=True))
        times = format_ratios([one.seconds / other.seconds for one, other in pairs])
        loads = format_ratios([one.cpu / other.cpu for one, other in pairs])
        seconds = median(one.seconds for one in results)
        rate = "" if size is None else f"{size / 1e9 / seconds:.3g}"
        peak = max(one.peak for one in results)
        print(
            f"| {name} | {times} | {loads} | {rate} | {seconds:.3g} | {peak / MIB:.0f} |",
            flush=True,
        )


@dataclass(frozen=True)
class Data:
    """The input files: written if missing, of full size times `scale`; and the trees
    whose packages read them, by name."""

    folder: Path
    scale: float
    repetitions: int
    trees: Mapping[str, Path] = field(default_factory=lambda: {OURS: ROOT})

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
        return path, sum(map(_read, _list_files(path)))


def _list_files(path: Path) -> Iterator[str]:
    """Yield a file, or all files in a folder.

    In little memory: the peak of a started process includes that of this one.
    """
    if path.is_file():
        yield str(path)
    for folder, _, names in os.walk(path):
        yield from (os.path.join(folder, name) for name in names)


def _read(path: str) -> int:
    """Read a file, so that it is in memory. Returns its size."""
    with open(path, "rb") as file:
        while file.read(MIB):
            pass
        return file.tell()


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
    """Many small logs: finding and reading, whole sessions, and a second session; and
    other dialects."""
    parts = [data("small", 5000, f"small{number}") for number in range(4)]
    first, size = parts[0]
    loops = {
        "loop": _loop(first),
        "every field, and nothing else": _loop(today.LEAST, first),
    }
    readers = _readers(data, "tree", first)
    rounds = in_turns({**readers, **loops, **searches(first)}, data.repetitions)
    for name in (*readers, *loops):
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
        3.7,
    )
    yield from _sessions(data, [path for path, _ in parts], count, size)
    yield from _second(data, first, size)
    for dialect in today.PATTERNS:
        _show_dialect(data, dialect)


def _readers(
    data: Data, how: str, path: Path, before: Sequence[str] = (), more: str = ""
) -> Contenders:
    """Return the commands that read with each tree."""
    return {
        f"{name}{more}": reading(how, path, before=before, tree=tree)
        for name, tree in data.trees.items()
    }


def _show_dialect(data: Data, dialect: str) -> None:
    """Print the time of finding and reading small logs of a dialect."""
    path, size = data(f"small-{dialect}", 5000)
    readers = _readers(data, "tree", path)
    contenders = {**readers, "loop": _loop(f"--dialect={dialect}", path)}
    rounds = in_turns(contenders, data.repetitions)
    for name in contenders:
        _check_same(rounds, OURS, name)
    count = int(rounds[OURS][0].said["logs"])
    show(f"{count} logs of {dialect}: finding and reading", rounds, "loop", size)


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
        **{
            f"session, {name}": session(folders[0], tree=tree)
            for name, tree in data.trees.items()
            if name != OURS
        },
        "session, twice as many logs": session(*folders[:2]),
        "session, 4 times": session(*folders),
    }
    rounds = in_turns(contenders, data.repetitions)
    show(f"{count} logs, judged, with a JUnit report", rounds, "grep and awk", size)
    a_run = median(one.seconds for one in rounds["session"]) * 1000 / count
    yield Promise("a session of small logs, ms a run", a_run, 1.0)
    yield Promise(
        "a session, of grep and awk", ratio(rounds, "session", "grep and awk"), 0.5
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
            0.2,
        )


def large(data: Data) -> Outcome:
    """One large log with few steps, on one processor and on all."""
    path, size = data("large", 2 * GIB)
    contenders = {
        **_readers(data, "one", path),
        **_readers(data, "one", path, ONE_CPU, ", one processor"),
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
    yield Promise("a large log, of grep -c", ratio(rounds, OURS, "grep -c"), 0.85)
    yield Promise(
        "the same on one processor",
        ratio(rounds, f"{OURS}, one processor", "grep -c"),
        1.4,
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


def crowd(data: Data) -> Outcome:
    """20,000 and 100,000 small logs: the memory of a session beside an empty one."""
    empty = "empty session"
    contenders, counts = {empty: session()}, {}
    for whole in (20_000, 100_000):
        path, _ = data("small", whole)
        counts[path.name] = round(whole * data.scale)
        contenders[path.name] = session(path)
    rounds = in_turns(contenders, data.repetitions)
    show("sessions of many runs", rounds, empty, None)
    for name, count in counts.items():
        extra = max(one.peak for one in rounds[name]) - rounds[empty][0].peak
        print(f"\n{name}: {extra / MIB:.0f} MiB, {extra / 1e3 / count:.3g} kB a run")
    yield from ()


CASES: dict[str, Callable[[Data], Outcome]] = {
    "small": small,
    "large": large,
    "trace": trace,
    "many": many,
    "crowd": crowd,
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
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        action="append",
        default=[],
        help="a commit to measure too in the cases small and large (repeatable)",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = (options.folder or Path(name)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        trees = prepare_trees(options.against, Path(name))
        data = Data(folder, options.scale, options.repetitions, trees)
        promises = [promise for case in options.cases for promise in CASES[case](data)]
    print("\n| promised | measured | at most | |\n|---|---|---|---|")
    for text, value, most in promises:
        print(
            f"| {text} | {value:.3g} | {most:.3g} | {'kept' if value <= most else 'BROKEN'} |"
        )
    return int(options.scale == 1 and any(value > most for _, value, most in promises))


if __name__ == "__main__":
    sys.exit(main())
