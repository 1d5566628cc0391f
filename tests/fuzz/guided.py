"""Coverage-guided driver: libFuzzer (atheris), each target in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LONGEST_SECONDS = 10
MEMORY_MEBIBYTES = 2048
LONGEST_INPUT = 12 * 1024
GRACE_SECONDS = 120


def dictionary(words: Sequence[bytes]) -> str:
    """Format words for libFuzzer: one quoted word per line, non-ASCII bytes as
    hexadecimal."""
    plain = set(range(32, 127)) - set(b'"\\')
    texts = (
        "".join(chr(sign) if sign in plain else f"\\x{sign:02x}" for sign in word)
        for word in words
        if word
    )
    return "".join(f'"{text}"\n' for text in texts)


def list_options(
    work: Path, keep: Path, corpus: Path, seconds: int, longest: int
) -> list[str]:
    """Return libFuzzer's options for one run."""
    return [
        f"-max_total_time={seconds}",
        f"-timeout={LONGEST_SECONDS}",
        f"-rss_limit_mb={MEMORY_MEBIBYTES}",
        f"-max_len={max(LONGEST_INPUT, longest)}",
        f"-dict={work / 'words.txt'}",
        f"-artifact_prefix={keep}{os.sep}",
        "-print_final_stats=1",
        str(corpus),
        str(work / "seeds"),
    ]


def summary(target: str, output: str, kept: Sequence[Path]) -> str:
    """Summarise a run in one line."""
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", output))
    tried, peak = (
        stats.get("number_of_executed_units", "?"),
        stats.get("peak_rss_mb", "?"),
    )
    result = ", ".join(str(path) for path in kept) or "none"
    return f"{target}: {tried} inputs tried, peak memory {peak} MiB, {len(kept)} findings: {result}"


def run_outside(name: str, seconds: int, keep: Path, corpus: Path | None) -> int:
    """Fuzz a target in another process, which a finding ends. Returns 1 with findings."""
    from fuzz.targets import TARGETS

    target, before = TARGETS[name], set(keep.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "seeds").mkdir()
        for number, data in enumerate(target.seeds):
            (work / "seeds" / str(number)).write_bytes(data)
        (work / "words.txt").write_text(dictionary(target.words), encoding="ascii")
        learned = corpus / name if corpus else work / "corpus"
        learned.mkdir(parents=True, exist_ok=True)
        options = list_options(
            work, keep, learned, seconds, max(map(len, target.seeds))
        )
        done = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("run.py")),
                name,
                "--inside",
                *options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=seconds + GRACE_SECONDS,
            env={**os.environ, "TMPDIR": folder},
            check=False,
        )
    kept = sorted(set(keep.iterdir()) - before)
    if done.returncode:
        print(done.stderr[-6000:], file=sys.stderr)
    print(summary(name, done.stderr, kept))
    return 1 if kept or done.returncode else 0


def run_inside(name: str, options: Sequence[str]) -> None:
    """Run libFuzzer in this process. Does not return."""
    import atheris

    with atheris.instrument_imports(include=["pytest_llmbench"]):
        from fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *options], TARGETS[name].check)
    atheris.Fuzz()
