"""Check that this tree and another commit read logs identically, to the last bit.

    python -m benchmarks.equivalence.same --against COMMIT [--damaged 10000]

Each tree reads the same files in its own process, and all results are compared: steps
with every column, dropped records, endings, checkpoints, other readings and errors.
Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from source_trees import ROOT, check_package, unpack

sys.path.append(str(ROOT / "tests"))

import same_inputs
from support.shared_data import SHARED

READ = ROOT / "benchmarks" / "equivalence" / "same_reading.py"
SHOWN, WIDTH = 10, 160
WHOLE = 900

Inputs = dict[Path, str]
"""Files, and of which kind each is."""


def inputs(folder: Path, damaged: int) -> Inputs:
    """Write the inputs to a folder. Real logs are read in place."""
    real = same_inputs.real(SHARED / "logs")
    found: Inputs = dict.fromkeys(real, "real")
    outs = [path for path in real if path.suffix == ".out"]
    found |= dict.fromkeys(
        same_inputs.compressed(real, SHARED / "logs", folder / "compressed"),
        "compressed, archives",
    )
    examples = same_inputs.examples(folder / "examples")
    found |= dict.fromkeys(examples, "examples of the generator")
    whole = list(same_inputs.whole(folder / "whole", WHOLE))
    found |= dict.fromkeys(whole, "all dialects")
    broken = list(same_inputs.damaged(folder / "damaged", damaged))
    found |= dict.fromkeys(broken, "damaged")
    found |= dict.fromkeys(
        same_inputs.mixed(outs, folder / "mixed") if outs else (),
        "mixed from real ones",
    )
    found |= dict.fromkeys(same_inputs.soups(folder / "soups"), "soups")
    found |= dict.fromkeys(same_inputs.ends(folder / "ends"), "ends")
    found |= dict.fromkeys(
        same_inputs.long(outs, [*outs, *whole, *broken], folder / "long"), "long"
    )
    return found


def start(tree: Path, paths: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start reading the paths in a file with the package of a tree."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    return subprocess.Popen([sys.executable, READ, paths, out], env=environment)


def read_results(tree: Path, out: Path) -> Iterator[str]:
    """Yield a tree's results for each path. Raises RuntimeError if another package was
    used."""
    with out.open(encoding="utf-8") as lines:
        check_package(next(lines).rstrip(), tree)
        yield from lines


def differences(one: Any, other: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the key (a path of names) of each difference between two JSON values, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            yield from differences(
                one.get(name, "(absent)"),
                other.get(name, "(absent)"),
                f"{key}/{name}",
            )
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{key}/{number}")
    elif json.dumps(one) != json.dumps(other):
        yield key, one, other


def compare(
    found: Inputs,
    before: Iterable[str],
    after: Iterable[str],
    *,
    without: Collection[str] = (),
) -> dict[Path, list[tuple[str, Any, Any]]]:
    """Return the differences of each path with differences, except in ignored fields."""
    pairs = zip(found, before, after, strict=True)
    results = (
        (path, differences(json.loads(old), json.loads(new)))
        for path, old, new in pairs
        if old != new
    )
    counted = {
        path: [one for one in found if field_of(one[0]) not in without]
        for path, found in results
    }
    return {path: places for path, places in counted.items() if places}


def steps(result: Any) -> int:
    """Return the number of steps in a result, to prove that something was compared."""
    if isinstance(result, dict) and "segments" in result:
        return sum(len(one["steps"]["index"]["values"]) for one in result["segments"])
    return sum(map(steps, result.values())) if isinstance(result, dict) else 0


def main() -> int:
    """Read with both trees; print counts and the first differences. Exit code 1 with
    differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--against", metavar="COMMIT", required=True, help="the commit to compare with"
    )
    parser.add_argument(
        "--tree",
        metavar="DIR",
        type=Path,
        default=ROOT,
        help="the tree to compare (default: this one)",
    )
    parser.add_argument(
        "--damaged",
        metavar="N",
        type=int,
        default=10_000,
        help="damaged logs (default: 10000)",
    )
    parser.add_argument(
        "--without",
        metavar="FIELD",
        nargs="*",
        default=(),
        help="fields of a log that the commit does not know yet",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = inputs(folder / "logs", options.damaged)
        (folder / "paths").write_text(
            "".join(f"{path}\n" for path in found), encoding="utf-8"
        )
        trees = [unpack(options.against, folder / "before"), options.tree]
        outs = [folder / "before.json", folder / "after.json"]
        running = [
            start(tree, folder / "paths", out)
            for tree, out in zip(trees, outs, strict=True)
        ]
        if max(process.wait() for process in running):
            return 2
        different = compare(
            found, *map(read_results, trees, outs), without=options.without
        )
        counted = sum(
            steps(json.loads(line)) for line in read_results(trees[1], outs[1])
        )
        print(
            f"{len(found)} files, {counted} steps read from them in three ways, against {options.against}:"
        )
        for kind, count in Counter(found.values()).items():
            print(
                f"  {kind}: {count} files, {sum(found[path] == kind for path in different)} differ"
            )
        report(different, folder / "logs")
    return bool(different)


def report(different: dict[Path, list[tuple[str, Any, Any]]], folder: Path) -> None:
    """Print the first differences, and the number of differing files per field."""
    for path, places in islice(different.items(), SHOWN):
        print(
            f"{path.relative_to(folder) if path.is_relative_to(folder) else path}: {len(places)} differences"
        )
        for key, old, new in places[:3]:
            print(
                f"    {key}\n      before: {str(old)[:WIDTH]}\n      after:  {str(new)[:WIDTH]}"
            )
    counts = Counter(
        field
        for places in different.values()
        for field in {field_of(key) for key, _, _ in places}
    )
    for field, count in counts.most_common(SHOWN):
        print(f"  {field}: differs in {count} files")


def field_of(key: str) -> str:
    """Return the column or field name of a key in a result."""
    return next(
        part
        for part in reversed(key.split("/"))
        if part not in ("values", "type") and not part.isdigit()
    )


if __name__ == "__main__":
    sys.exit(main())
