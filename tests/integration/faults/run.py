"""`python tests/integration/faults/run.py SESSION` makes every call of a session fail
once.

See tests/fuzz/README.md. Requires a C compiler. The exit status is 1 if a session ended in a
forbidden way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [
    str(ROOT),
    *(str(ROOT / name) for name in ("tests", "tests/integration")),
]

from faults.injector import (  # noqa: E402
    ALLOCATIONS,
    ERRORS,
    FROM,
    HALF,
    ONCE,
    WRITING,
    Call,
    Fault,
    build_library,
)
from faults.nights import SESSIONS  # noqa: E402


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="tests/integration/faults/run.py", description=__doc__
    )
    parser.add_argument("session", choices=SESSIONS, help="what is run")
    parser.add_argument(
        "--from-there-on",
        action="store_true",
        help="all calls from the failed one on fail, too",
    )
    parser.add_argument(
        "--half",
        action="store_true",
        help="reads and writes give half of what was asked for",
    )
    parser.add_argument(
        "--all-errors",
        action="store_true",
        help="each call fails in every way that it can",
    )
    parser.add_argument(
        "--allocations",
        metavar="N",
        type=int,
        default=0,
        help="so many allocations instead of calls",
    )
    parser.add_argument(
        "--points", default="", help="only these, as a finding names them: 17,230"
    )
    parser.add_argument(
        "--only",
        metavar="TEXT",
        action="append",
        help="only calls such as 'stat state/s.json'",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes side by side",
    )
    parser.add_argument(
        "--most", metavar="N", type=int, help="so many points, spread over all"
    )
    parser.add_argument(
        "--show", action="store_true", help="keep what every session said"
    )
    parser.add_argument("--inside", metavar="N/M", help=argparse.SUPPRESS)
    return parser


def plan_faults(
    calls: Sequence[Call], allocations: int, options: argparse.Namespace
) -> Iterator[Fault]:
    """Yield the faults of a sweep from the calls of the undisturbed session."""
    if options.allocations:
        yield from (
            Fault(at, ONCE, "ENOMEM", ALLOCATIONS)
            for at in sample_allocations(allocations, options)
        )
        return
    only = {int(number) for number in options.points.split(",") if number}
    for at, call in enumerate(calls, 1):
        if only and at not in only:
            continue
        if options.only and not any(
            text in f"{call.kind} {call.place}" for text in options.only
        ):
            continue
        errors = ERRORS[call.kind][: None if options.all_errors else 1]
        if options.half:
            if call.kind in ("read", "write"):
                yield Fault(at, HALF, "short")
        elif options.from_there_on:
            yield Fault(at, FROM, "EIO")
        else:
            yield from (Fault(at, ONCE, error) for error in errors)
    if options.from_there_on:
        writes = [call for call in calls if call.kind in WRITING]
        yield from (
            Fault(at, FROM, "ENOSPC", WRITING)
            for at in range(1, len(writes) + 1)
            if not only
        )


def sample_allocations(count: int, options: argparse.Namespace) -> list[int]:
    """Sample allocation numbers: half evenly on a logarithmic scale, half at random."""
    numbers = random.Random(1)
    half = options.allocations // 2
    spread = {round(count ** (index / half)) for index in range(half)}
    while len(spread) < min(options.allocations, count):
        spread.add(numbers.randint(1, count))
    return sorted(spread)


def sweep(options: argparse.Namespace, work: Path) -> Iterator[dict[str, object]]:
    """Yield the result of each fault, from several processes."""
    # not below /dev/shm, from which containers load no code
    built = tempfile.TemporaryDirectory(prefix="llmb-faults-")
    library = build_library(Path(built.name))
    if library is None:
        raise SystemExit(
            "tests/integration/faults/run.py: no C compiler (cc or gcc) was found"
        )
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_"))},
        "LD_PRELOAD": str(library), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **({"PYTHONMALLOC": "malloc"} if options.allocations else {}),
    }  # fmt: skip
    outputs = [work / f"{number}.jsonl" for number in range(options.jobs)]
    children = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                *sys.argv[1:],
                "--inside",
                f"{number}/{options.jobs}",
            ],
            env={
                **environment,
                "LLMB_FAULTS_FOLDER": str(work / str(number)),
                "LLMB_FAULTS_OUTPUT": str(output),
            },
        )
        for number, output in enumerate(outputs)
    ]
    for child in children:
        if child.wait():
            raise SystemExit(
                f"tests/integration/faults/run.py: a process ended with {child.returncode}"
            )
    built.cleanup()
    for output in outputs:
        yield from map(json.loads, output.read_text().splitlines())


def summarize(results: Iterable[dict[str, object]]) -> int:
    """Print the counts by kind and the failures; return the number of failures."""
    counts: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for result in sorted(results, key=lambda result: str(result["fault"])):
        kind = str(result["kind"])
        counts[kind] += 1
        if result["wrong"]:
            wrong[kind] += 1
            print(f"{result['fault']}: {result['wrong']}")
        if result["memory"]:
            counts["ended by MemoryError"] += 1
    for kind, count in sorted(counts.items()):
        print(f"{kind}: {count} points, {wrong[kind]} wrong")
    points = sum(
        count for kind, count in counts.items() if kind != "ended by MemoryError"
    )
    print(f"{points} points, {wrong.total()} wrong")
    return wrong.total()


def main() -> int:
    """Run the command line."""
    options = make_parser().parse_args()
    if options.inside:
        from faults.server import serve

        serve(options, plan_faults)
        return 0
    work = Path(
        tempfile.mkdtemp(
            prefix="llmb-faults-",
            dir="/dev/shm" if os.path.isdir("/dev/shm") else None,  # noqa: S108
        )
    )
    try:
        results = list(sweep(options, work))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return int(summarize(results) > 0)


if __name__ == "__main__":
    sys.exit(main())
