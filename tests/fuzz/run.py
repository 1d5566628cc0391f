"""`python tests/fuzz/run.py TARGET ...` fuzzes targets, or `all` of them; see
tests/fuzz/README.md.

Inputs that end in an exception, break a law, take longer than ten seconds or more
memory than the limit are left in the folder of --keep, and the exit status is 1. The
same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INPUTS = 10_000


def parser() -> argparse.ArgumentParser:
    """Build the command line parser."""
    line = argparse.ArgumentParser(prog="tests/fuzz/run.py", description=__doc__)
    line.add_argument(
        "targets", metavar="TARGET", nargs="*", help="names of --list, or all"
    )
    line.add_argument("--list", action="store_true", help="list the targets")
    line.add_argument(
        "--inputs",
        metavar="N",
        type=int,
        help=f"of all targets together (default: {INPUTS:,}, or as many as fit)",
    )
    line.add_argument(
        "--minutes",
        metavar="M",
        type=float,
        help="at most so long (default: until all inputs are tried)",
    )
    line.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=1,
        help="processes side by side (default: 1)",
    )
    line.add_argument(
        "--seed", metavar="N", type=int, default=0, help="of the inputs (default: 0)"
    )
    line.add_argument(
        "--keep",
        metavar="DIR",
        type=Path,
        help="where inputs that break are left (default: a new one)",
    )
    line.add_argument(
        "--guided",
        action="store_true",
        help="guided by coverage, with atheris, for --minutes (default: 1)",
    )
    line.add_argument(
        "--corpus",
        metavar="DIR",
        type=Path,
        help="inputs of earlier guided runs, added to (default: none)",
    )
    line.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return line


def main() -> int:
    """Run the command. Returns 0, 1 with findings, or 2 if it cannot run."""
    sys.path[:0] = [str(ROOT / name) for name in (".", "tests")]
    arguments, options = parser().parse_known_args()
    if arguments.inside:
        from fuzz.guided import run_inside

        run_inside(arguments.targets[0], options)
        return 0
    from fuzz.targets import TARGETS

    if arguments.list:
        print(
            "\n".join(f"{target.name:<13}{target.what}" for target in TARGETS.values())
        )
        return 0
    names = list(TARGETS) if arguments.targets == ["all"] else arguments.targets
    if unknown := [*(name for name in names if name not in TARGETS), *options] or (
        [] if names else ["no target"]
    ):
        print(
            f"found {' '.join(unknown)}, expected all or some of: {' '.join(TARGETS)}",
            file=sys.stderr,
        )
        return 2
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="fuzz-findings-"))
    keep.mkdir(parents=True, exist_ok=True)
    return (
        run_guided(arguments, names, keep)
        if arguments.guided
        else run_plain(arguments, names, keep)
    )


def run_plain(arguments: argparse.Namespace, names: list[str], keep: Path) -> int:
    """Fuzz without additional packages, and print the results."""
    from fuzz.plain import fuzz

    inputs = arguments.inputs or (INPUTS if arguments.minutes is None else sys.maxsize)
    seconds = None if arguments.minutes is None else arguments.minutes * 60
    tallies = fuzz(
        names, inputs, seconds, jobs=arguments.jobs, seed=arguments.seed, keep=keep
    )
    for name, tally in tallies.items():
        print(tally.describe(name))
    kept = sorted(
        path.name
        for tally in tallies.values()
        for path in map(keep.joinpath, tally.kept)
    )
    tried = sum(tally.tried for tally in tallies.values())
    print(
        f"{len(tallies)} targets: {tried:,} inputs tried, {len(kept)} findings{f' in {keep}' if kept else ''}"
    )
    for name in kept:
        print(f"  {name}")
    return 1 if kept else 0


def run_guided(arguments: argparse.Namespace, names: list[str], keep: Path) -> int:
    """Fuzz with coverage guidance, one target after the other."""
    from fuzz.guided import run_outside

    if find_spec("atheris") is None:
        print(
            "--guided needs atheris: `pip install --group fuzz`, with Python 3.11 to 3.13 on Linux",
            file=sys.stderr,
        )
        return 2
    seconds = int((arguments.minutes or 1) * 60 / len(names))
    codes = [
        run_outside(name, max(seconds, 1), keep, arguments.corpus) for name in names
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
