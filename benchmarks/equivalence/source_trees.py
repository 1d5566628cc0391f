"""Trees of other commits, whose package runs beside that of this checkout."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = "this project"


def unpack(commit: str, folder: Path, *others: str) -> Path:
    """Write the package and `others` as of a commit. The checkout and its worktrees
    stay unchanged."""
    paths = ("pytest_llmbench", *others)
    command = ["git", "-C", str(ROOT), "archive", commit, *paths]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def check_package(package: str | Path, tree: Path) -> None:
    """Raise RuntimeError if an imported package is not that of a tree."""
    if Path(package).parent.parent != tree.resolve():
        raise RuntimeError(f"{package} was imported instead of the package of {tree}")


def prepare_trees(commits: Sequence[str], folder: Path) -> Mapping[str, Path]:
    """Unpack and compile commits; return this checkout and their trees by name."""
    trees = {OURS: ROOT}
    for number, commit in enumerate(commits):
        others = ("baselines", "benchmarks", "pyproject.toml")
        tree = unpack(commit, folder / f"tree-{number}", *others)
        compiling = [sys.executable, "-m", "compileall", "-q", "pytest_llmbench"]
        subprocess.run(compiling, cwd=tree, check=True)
        trees[commit] = tree
    for tree in trees.values():
        code = "import pytest_llmbench; print(pytest_llmbench.__file__)"
        command = [sys.executable, "-P", "-c", code]
        package = subprocess.check_output(
            command, env={"PYTHONPATH": str(tree)}, text=True
        )
        check_package(package.rstrip(), tree)
    return trees
