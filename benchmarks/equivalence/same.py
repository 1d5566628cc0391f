"""Whether this tree reads logs as another commit does, to the last bit.

    python -m benchmarks.equivalence.same --against COMMIT [--damaged 10000]

Both read the same files, each in a process of its own, and all that they say is
compared: steps with every column, what was dropped, endings, checkpoints, other
readings, errors. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.extend(str(ROOT / name) for name in ("tests", "benchmarks/equivalence"))

import same_inputs  # noqa: E402
from support.shared_data import SHARED  # noqa: E402

READ = ROOT / "benchmarks" / "equivalence" / "same_reading.py"
SHOWN, WIDTH = 10, 160
WHOLE = 900

Inputs = dict[Path, str]
"""Files, and of which kind each is."""


def inputs(folder: Path, damaged: int) -> Inputs:
    """Write what is to be read below a folder; real logs are read where they are."""
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


def unpack(commit: str, folder: Path, *others: str) -> Path:
    """Write the package, and `others`, as they were at a commit; the checkout and its
    list of worktrees stay as they are."""
    paths = ("pytest_llmbench", *others)
    command = ["git", "-C", str(ROOT), "archive", commit, *paths]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def start(tree: Path, paths: Path, out: Path) -> subprocess.Popen[bytes]:
    """Begin to read the paths that a file lists with the package of a tree."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    return subprocess.Popen([sys.executable, READ, paths, out], env=environment)


def said(tree: Path, out: Path) -> Iterator[str]:
    """Yield what a tree's package said of each path; RuntimeError where another package
    was read with."""
    with out.open(encoding="utf-8") as lines:
        package = next(lines).rstrip()
        if Path(package).parent.parent != tree.resolve():
            raise RuntimeError(
                f"{package} was imported instead of the package of {tree}"
            )
        yield from lines


def differences(
    one: Any, other: Any, place: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield where two JSON values differ, and both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            yield from differences(
                one.get(name, "(absent)"),
                other.get(name, "(absent)"),
                f"{place}/{name}",
            )
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}/{number}")
    elif json.dumps(one) != json.dumps(other):
        yield place, one, other


def compare(
    found: Inputs,
    before: Iterable[str],
    after: Iterable[str],
    *,
    without: Collection[str] = (),
) -> dict[Path, list[tuple[str, Any, Any]]]:
    """Return what differs of each path of which anything does, but for the fields that
    are left out."""
    pairs = zip(found, before, after, strict=True)
    told = (
        (path, differences(json.loads(old), json.loads(new)))
        for path, old, new in pairs
        if old != new
    )
    counted = {
        path: [one for one in found if field_of(one[0]) not in without]
        for path, found in told
    }
    return {path: places for path, places in counted.items() if places}


def steps(result: Any) -> int:
    """Return how many steps a result holds, to tell that something was compared."""
    if isinstance(result, dict) and "segments" in result:
        return sum(len(one["steps"]["index"]["values"]) for one in result["segments"])
    return sum(map(steps, result.values())) if isinstance(result, dict) else 0


def main() -> int:
    """Read with both trees, print counts and the first differences; exit code 1 where
    there are any."""
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
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = inputs(folder / "logs", given.damaged)
        (folder / "paths").write_text(
            "".join(f"{path}\n" for path in found), encoding="utf-8"
        )
        trees = [unpack(given.against, folder / "before"), given.tree]
        outs = [folder / "before.json", folder / "after.json"]
        running = [
            start(tree, folder / "paths", out)
            for tree, out in zip(trees, outs, strict=True)
        ]
        if max(process.wait() for process in running):
            return 2
        different = compare(found, *map(said, trees, outs), without=given.without)
        counted = sum(steps(json.loads(line)) for line in said(trees[1], outs[1]))
        print(
            f"{len(found)} files, {counted} steps read from them in three ways, against {given.against}:"
        )
        for kind, count in Counter(found.values()).items():
            print(
                f"  {kind}: {count} files, {sum(found[path] == kind for path in different)} differ"
            )
        report(different, folder / "logs")
    return bool(different)


def report(different: dict[Path, list[tuple[str, Any, Any]]], folder: Path) -> None:
    """Print the first differences, and of how many files each field differs."""
    for path, places in islice(different.items(), SHOWN):
        print(
            f"{path.relative_to(folder) if path.is_relative_to(folder) else path}: {len(places)} differences"
        )
        for place, old, new in places[:3]:
            print(
                f"    {place}\n      before: {str(old)[:WIDTH]}\n      after:  {str(new)[:WIDTH]}"
            )
    counts = Counter(
        field
        for places in different.values()
        for field in {field_of(place) for place, _, _ in places}
    )
    for field, count in counts.most_common(SHOWN):
        print(f"  {field}: differs in {count} files")


def field_of(place: str) -> str:
    """Return the name of a column or field from its place in a result."""
    return next(
        part
        for part in reversed(place.split("/"))
        if part not in ("values", "type") and not part.isdigit()
    )


if __name__ == "__main__":
    sys.exit(main())
