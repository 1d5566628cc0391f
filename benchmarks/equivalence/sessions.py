"""Compare what two versions of the package print and write for recorded sessions.

    python -m benchmarks.equivalence.sessions --against COMMIT [--only NAME] [--show 40]
    python -m benchmarks.equivalence.sessions --against COMMIT --codes

Each session and command runs once with the checkout and once with the package of
COMMIT, in an empty folder of the same path, on the runs of examples/ and
../shared/logs. Compared are the exit code, both streams and every file that was written
(JSON, JUnit, HTML, baselines, CSV), without durations, times of writing and identifiers
of sessions. Exit code 1 if anything differs. With `--codes` sentences may differ: of
streams only exit codes, counts and node ids are compared, of documents all values
without a space.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from source_trees import ROOT, unpack

SHARED = ROOT.parent / "shared"
EXAMPLES = "examples"
"""A link to the examples' runs, so that both versions print the same paths."""

REPORTS = "--llmb-json=s.json --llmb-junit=l.xml --junitxml=j.xml --llmb-html=p.html"
HISTORY = "--llmb-history=sqlite:///h.db"
GATE = f"pytest --llmb-logs={EXAMPLES}"
RECORD = "pytest --llmb-logs=logs --llmb-record=own"

SESSIONS: dict[str, tuple[str, ...]] = {
    "idle": ("pytest -q",),
    "examples": (f"{GATE} {REPORTS}",),
    "verbose": (f"{GATE} -vv -rA",),
    "quiet": (f"{GATE} -q",),
    "workers": (f"{GATE} -n 2",),
    "selection": (f"{GATE} -k grok1 {REPORTS}",),
    "certify": (f"{GATE} --llmb-certify --llmb-tolerance=1% {REPORTS}",),
    "published": (
        f"{GATE} --llmb-against=published --llmb-scaling=fail --llmb-trend=fail",
    ),
    "selftest": (f"{GATE} --llmb-selftest",),
    "require": (f"{GATE} --llmb-require=all",),
    "collected": (f"{GATE} --collect-only -q",),
    "history": (
        f"{GATE} {HISTORY} {REPORTS}",
        f"{GATE} {HISTORY} --llmb-json=s2.json",
        "llmbench history list --history sqlite:///h.db",
        "llmbench history export --history sqlite:///h.db -o h.csv",
        "llmbench site --history sqlite:///h.db -o site",
        "llmbench nodes --history sqlite:///h.db",
    ),
    "bad-history": (f"{GATE} --llmb-history=sqlite:////proc/none/h.db",),
    "chat": (
        f"{GATE} -q --llmb-json=s.json",
        "llmbench chat s.json",
        "llmbench chat s.json --format slack",
    ),
    "summary": (
        f"llmbench summary {EXAMPLES}",
        f"llmbench summary {EXAMPLES} --format csv",
        f"llmbench summary {EXAMPLES} --format json",
    ),
    "summary-logs": (
        "llmbench summary logs --format json",
        "llmbench summary fresh_logs",
    ),
    "logs": (f"pytest --llmb-logs=logs {REPORTS}", "pytest --llmb-logs=fresh_logs -q"),
    "record": (RECORD, f"pytest --llmb-logs=logs --llmb-baselines=own {REPORTS}"),
    "record-examples": (
        f"{GATE} --llmb-record=own",
        f"{GATE} --llmb-baselines=own {REPORTS}",
        "llmbench baselines diff own own",
    ),
    "compare": (
        f"llmbench compare {EXAMPLES} {EXAMPLES} --json c.json --html c.html",
        f"llmbench compare {EXAMPLES} {EXAMPLES} --strict",
    ),
    "replay": (f"llmbench replay {EXAMPLES} --tolerance 1% --certify",),
    "baselines": (
        "llmbench baselines list",
        "llmbench baselines lint",
        "llmbench baselines show grok1_314b-25.05-gb200-bf16-128",
        "llmbench baselines draft logs -o drafts",
    ),
    "usage": (
        "pytest --llmb-logs=none",
        "pytest --llmb-logs=examples --llmb-tolerance=abc",
        "pytest --llmb-launch --llmb-dry-run -k grok1",
        "llmbench summary none",
    ),
    "help": (
        "pytest --help",
        "llmbench --help",
        "llmbench summary --help",
        "llmbench replay --help",
    ),
}

VARYING = (
    (r"\bin \d+(\.\d+)?s( \(\d+:\d\d:\d\d\))?", "in T"),
    (r'\b(time|timestamp|hostname)="[^"]*"', r"\1=X"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+\d\d:?\d\d|Z| UTC)?", "TIME"),
    (r"\b[0-9a-f]{12,64}\b", "HASH"),
    (r"\b\d+ (seconds?|minutes?|min|s) ago", "AGO"),
    (r"(started|duration|seconds_of_session|elapsed)\S*: [\d.]+", r"\1: T"),
    (r"\b\d{8}-\d{4,6}\b", "STAMP"),
    (r"\b\d+m\b", "AGE"),
)


def copy_checkout(folder: Path) -> Path:
    """Copy the package and baselines of this checkout to a folder, and return the
    folder."""
    for name in ("pytest_llmbench", "baselines"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def normalise(text: str, tree: Path) -> list[str]:
    """Return the lines of a text without durations, times, identifiers and the tree's
    path."""
    text = text.replace(f"../{tree.name}/", "TREE/").replace(str(tree), "TREE")
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    lines = (re.sub("={3,}|_{3,}", "", line).strip() for line in text.splitlines())
    return [line for line in lines if not line.startswith("llmbench: read ")]


def prepare(folder: Path) -> None:
    """Make a folder with links to the runs and an empty pytest configuration."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    links = {EXAMPLES: ROOT / "examples" / "experiments"}
    links |= {name: SHARED / name for name in ("logs", "fresh_logs")}
    for name, target in links.items():
        if target.exists():
            (folder / name).symlink_to(target)


def run_command(command: str, folder: Path, tree: Path) -> list[str]:
    """Run one command with the package of a tree; return its exit code and streams as
    lines."""
    program, *arguments = command.split()
    module = {"pytest": "pytest", "llmbench": "pytest_llmbench.cli.main"}[program]
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "COLUMNS": "100",
        "PYTHONHASHSEED": "0",
        "XDG_CACHE_HOME": str(folder / ".cache"),
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.remove(''); sys.argv[0] = {program!r}; "
            f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=False)",
            *arguments,
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=600,
    )
    lines = [f"$ {command}", f"exit {done.returncode}", *normalise(done.stdout, tree)]
    return [*lines, "--- standard error", *normalise(done.stderr, tree)]


def read_files(
    folder: Path, tree: Path, codes: bool
) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and normalised lines of each text file that a session wrote."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if (
            hidden
            or path.is_symlink()
            or not path.is_file()
            or path.suffix in {".db", ".ini"}
        ):
            continue
        if (folder / parts[0]).is_symlink():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if codes and path.suffix == ".json":
            text = "\n".join(list_values("", json.loads(text)))
        elif path.suffix in {".json", ".html", ".xml"}:
            text = re.sub(r"(?<=[,>])(?=\S)", "\n", text)
        yield "/".join(parts), normalise(text, tree)


SHOWN_IN_CODES = re.compile(
    r"\$ |exit \d|FAILED |\d+ (green|red|failed|passed|skipped)"
)
"""Lines of a stream that contain no sentence."""


def keep_codes(name: str, lines: list[str]) -> list[str]:
    """Reduce a text to exit codes, counts, ids and values, without its sentences."""
    if name == "streams":
        return [line for line in lines if SHOWN_IN_CODES.match(line)]
    match name.rpartition(".")[2]:
        case "xml":
            tags = re.findall(
                r"<(?:testcase|failure|skipped|error)\b[^>]*", "\n".join(lines)
            )
            return [re.sub(r' message="[^"]*"', "", tag) for tag in tags]
        case "html":
            return []
        case "csv":
            cells = (cell for line in lines for cell in line.split(","))
            return [cell for cell in cells if " " not in cell]
        case "json":
            return lines
        case _:
            return [line.partition("#")[0] for line in lines]


def list_values(path: str, value: Any) -> Iterator[str]:
    """Yield the values of a document with their paths; sentences are left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from list_values(f"{path}.{key}", inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from list_values(f"{path}[{index}]", inner)
    elif not (isinstance(value, str) and " " in value):
        yield f"{path}: {value}"


def record(name: str, folder: Path, tree: Path, codes: bool) -> dict[str, list[str]]:
    """Run the commands of one session; return streams and files by name."""
    prepare(folder)
    streams = [
        line
        for command in SESSIONS[name]
        for line in run_command(command, folder, tree)
    ]
    return {"streams": streams} | dict(read_files(folder, tree, codes))


def drop_order(lines: list[str]) -> dict[str, list[str]]:
    """Sort the lines of a session with workers, without progress and names of
    workers."""
    kept = (line for line in lines if not re.match(r"[.sFE]+ +\[|\[gw\d\]", line))
    return {"streams": sorted(kept)}


def compare(
    name: str, folder: Path, trees: tuple[Path, Path], show: int, codes: bool
) -> tuple[str, bool]:
    """Record a session with both trees; return a report and True if nothing differs."""
    place = folder / name
    before, after = (record(name, place, tree, codes) for tree in trees)
    if name == "workers":  # workers finish in any order
        before, after = (drop_order(texts["streams"]) for texts in (before, after))
    if codes:
        before, after = (
            {file: keep_codes(file, lines) for file, lines in texts.items()}
            for texts in (before, after)
        )
    report = []
    for file in sorted(before.keys() | after.keys()):
        old, new = before.get(file, []), after.get(file, [])
        if old != new:
            difference = list(
                difflib.unified_diff(old, new, "before", "after", lineterm="", n=1)
            )
            report.append(f"{name}: {file}: {len(difference)} lines of difference")
            report += [f"    {line[:220]}" for line in difference[:show]]
    lines = sum(len(text) for text in before.values())
    return "\n".join(
        report
    ) or f"{name}: equal ({len(before)} texts, {lines:,} lines)", not report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", required=True, metavar="COMMIT")
    parser.add_argument("--only", metavar="NAME", action="append", choices=SESSIONS)
    parser.add_argument(
        "--show",
        type=int,
        default=20,
        metavar="LINES",
        help="Lines of each difference.",
    )
    parser.add_argument("--codes", action="store_true", help="Sentences may differ.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trees = (
            unpack(arguments.against, folder / "before", "baselines", "pyproject.toml"),
            copy_checkout(folder / "after"),
        )
        with ThreadPoolExecutor(2) as pool:
            reports = pool.map(
                lambda session: compare(
                    session, folder, trees, arguments.show, arguments.codes
                ),
                arguments.only or SESSIONS,
            )
            equal = []
            for report, same in reports:
                print(report, flush=True)
                equal.append(same)
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
