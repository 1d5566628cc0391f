"""Cost of the installed plugin for a session that does not use it.

    python -m benchmarks.speed.idle [--pairs 30] [--judging [--no-cache] [--against COMMIT]]

Runs `pytest --collect-only` in an empty project. With --judging: the cost of a session
that judges a run of each documented configuration, compared with an empty session; with
--against also that of other commits, in the same rounds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / name)
    for name in ("tests", "benchmarks", "benchmarks/equivalence")
)

from generator import write_run
from generator.__main__ import shipped
from source_trees import OURS, ROOT, prepare_trees
from speed.environment import use_package

LIMIT_MILLISECONDS = 5.0
LIMIT_RATIO = 1.2
"""Most CPU time that a session of 82 runs adds, in empty sessions."""

WITHOUT = ("-p", "no:pytest_llmbench")
PYTEST = (sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider")
COMMAND = (*PYTEST, "--collect-only")
NO_TESTS = 5
"""How pytest ends where there is nothing to collect."""


def milliseconds(
    folder: str,
    *more: str,
    command: tuple[str, ...] = COMMAND,
    code: int = NO_TESTS,
    tree: Path = ROOT,
) -> float:
    """Return the CPU time of a session with its children, with the package of a tree.
    Raises RuntimeError if it fails."""
    before = resource.getrusage(
        resource.RUSAGE_CHILDREN
    )  # os.times() counts in hundredths of a second
    ended = subprocess.run(
        [*command, *more],
        cwd=folder,
        env=use_package(tree) | {"XDG_CACHE_HOME": f"{folder}/.cache{tree}"},
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode != code:
        raise RuntimeError(ended.stdout.decode() + ended.stderr.decode())
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def compare_judging(
    folder: str, pairs: int, trees: Mapping[str, Path], *options: str
) -> int:
    """Print medians of alternating empty and judging sessions. Exit code 1 if the
    session of this project costs more than the limit."""
    for number, baseline in enumerate(shipped().values()):
        write_run(Path(folder) / "runs", baseline, job_id=str(1_000_000 + number))
    judge = partial(
        milliseconds,
        folder,
        f"--llmb-logs={folder}/runs",
        *options,
        command=PYTEST,
        code=0,
    )
    for tree in trees.values():
        judge(tree=tree)  # keeps what the logs say, as after any night
    empty: list[float] = []
    judging: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(pairs):
        empty.append(milliseconds(folder, *WITHOUT))
        for name, tree in trees.items():
            judging[name].append(judge(tree=tree))
    print("| a session | CPU ms, median | of an empty one besides it, range |")
    print("|---|---|---|")
    print(f"| empty, without the plugin | {statistics.median(empty):.0f} | |")
    costs = {}
    for name, times in judging.items():
        ratios = [(time - base) / base for time, base in zip(times, empty, strict=True)]
        costs[name] = statistics.median(ratios)
        print(
            f"| that judges {len(shipped())} runs, {name} | {statistics.median(times):.0f} "
            f"| {costs[name]:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    print(
        f"\njudging: {costs[OURS]:.2f} of an empty session besides it (median of {pairs} pairs), at most {LIMIT_RATIO:.2f}"
    )
    return 0 if costs[OURS] < LIMIT_RATIO else 1


def main() -> int:
    """Print medians of alternating sessions. Exit code 1 if the plugin costs more than
    the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--judging", action="store_true")
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        action="append",
        default=[],
        help="with --judging: a commit to measure too (repeatable)",
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="with --judging: read all logs, as on a first night",
    )
    options = parser.parse_args()
    if options.against and not options.judging:
        parser.error("--against needs --judging")
    pairs = options.pairs
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as other,
    ):
        if options.judging:
            trees = prepare_trees(options.against, Path(other))
            plain = ["--llmb-no-cache"] if options.no_cache else []
            return compare_judging(folder, pairs, trees, *plain)
        milliseconds(folder)  # compiles what is not compiled yet
        times = [
            (milliseconds(folder, *WITHOUT), milliseconds(folder)) for _ in range(pairs)
        ]
    without, idle = (statistics.median(column) for column in zip(*times, strict=True))
    cost = statistics.median(second - first for first, second in times)
    print("| pytest --collect-only, empty project | CPU ms, median |")
    print("|---|---|")
    print(f"| without the plugin | {without:.1f} |")
    print(f"| with it, idle | {idle:.1f} |")
    print(
        f"\nthe plugin: {cost:.1f} ms (median of {pairs} pairs), ratio {idle / without:.3f}"
    )
    return 0 if cost < LIMIT_MILLISECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
