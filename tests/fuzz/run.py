"""`python tests/fuzz/run.py TARGET --seconds N` fuzzes one target, guided by coverage; see docs/fuzzing.md.

It needs atheris. Inputs that end in an exception, take longer than ten seconds or more memory than the limit are
left in the folder of --keep, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_SECONDS = 10
MEMORY_MEBIBYTES = 2048
LONGEST_INPUT = 12 * 1024
GRACE_SECONDS = 120


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="tests/fuzz/run.py", description=__doc__)
    line.add_argument("target", metavar="TARGET", help="log, metadata, baseline or archive")
    line.add_argument("--seconds", metavar="N", type=int, default=60, help="how long (default: 60)")
    line.add_argument("--keep", metavar="DIR", type=Path, help="where inputs that break are left (default: a new one)")
    line.add_argument("--corpus", metavar="DIR", type=Path, help="inputs of earlier runs, added to (default: none)")
    line.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return line


def dictionary(words: Sequence[bytes]) -> str:
    """Return words in the form that libFuzzer reads: one in quotes on each line, strange bytes as hexadecimal."""
    plain = set(range(32, 127)) - set(b'"\\')
    texts = ("".join(chr(one) if one in plain else f"\\x{one:02x}" for one in word) for word in words if word)
    return "".join(f'"{text}"\n' for text in texts)


def libfuzzer(work: Path, keep: Path, corpus: Path, seconds: int) -> list[str]:
    """Return the options of libFuzzer for one run."""
    return [
        f"-max_total_time={seconds}",
        f"-timeout={LONGEST_SECONDS}",
        f"-rss_limit_mb={MEMORY_MEBIBYTES}",
        f"-max_len={LONGEST_INPUT}",
        f"-dict={work / 'words.txt'}",
        f"-artifact_prefix={keep}{os.sep}",
        "-print_final_stats=1",
        str(corpus),
        str(work / "seeds"),
    ]


def summary(target: str, output: str, kept: Sequence[Path]) -> str:
    """Return what a run came to in one line."""
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", output))
    tried, peak = stats.get("number_of_executed_units", "?"), stats.get("peak_rss_mb", "?")
    found = ", ".join(str(path) for path in kept) or "none"
    return f"{target}: {tried} inputs tried, peak memory {peak} MiB, {len(kept)} findings: {found}"


def outside(arguments: argparse.Namespace) -> int:
    """Fuzz in a process of its own, which a finding ends, and say what it came to."""
    from fuzz import seeds

    keep = arguments.keep or Path(tempfile.mkdtemp(prefix=f"fuzz-{arguments.target}-"))
    keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "seeds").mkdir()
        (work / "corpus").mkdir()
        for number, data in enumerate(seeds.seeds(arguments.target)):
            (work / "seeds" / str(number)).write_bytes(data)
        (work / "words.txt").write_text(dictionary(seeds.words(arguments.target)), encoding="ascii")
        corpus = arguments.corpus or work / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, arguments.target, "--inside"]
        done = subprocess.run(
            [*command, *libfuzzer(work, keep, corpus, arguments.seconds)],
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=arguments.seconds + GRACE_SECONDS,
            check=False,
        )
    kept = sorted(keep.iterdir())
    if done.returncode:
        print(done.stderr[-6000:], file=sys.stderr)
    print(summary(arguments.target, done.stderr, kept))
    return 1 if kept or done.returncode else 0


def inside(target: str, options: Sequence[str]) -> None:
    """Run libFuzzer in this process; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["pytest_llmbench"]):
        from fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *options], TARGETS[target])
    atheris.Fuzz()


def main() -> int:
    """Run the command and return its exit status: 0, 1 with findings, 2 where it cannot run."""
    sys.path[:0] = [str(ROOT / name) for name in (".", "tests/support", "tests", "examples")]
    arguments, options = parser().parse_known_args()
    if find_spec("atheris") is None:
        print("fuzzing needs atheris: `pip install --group fuzz`, with Python 3.11 to 3.13 on Linux", file=sys.stderr)
        return 2
    if arguments.inside:
        inside(arguments.target, options)
        return 0
    return outside(arguments)


if __name__ == "__main__":
    sys.exit(main())
