"""Who may import whom, and what an idle session costs."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_llmbench

PACKAGE = Path(pytest_llmbench.__file__).parent
STAGES = {"baseline", "discover", "parse", "measure", "judge", "report", "launch", "history"}
SHARED = {
    "ci",
    "models",
    "errors",
    "wording",
    "tolerance",
    "acceptance",
    "robust",
    "quantities",
    "jobs",
    "yamlfile",
    "dialects",
    "patterns",
    "files",
}
KNOW_PYTEST = {
    "plugin.py",
    "starting.py",
    "hooks.py",
    "stash.py",
    "collection.py",
    "selection.py",
    "launch_session.py",
    "fixtures.py",
    "suite",
}
HEAVY = {
    "yaml",
    "numpy",
    "pandas",
    "scipy",
    "junit_xml",
    "jinja2",
    "leather",
    "multiprocessing",
    "zstandard",
    "fsspec",
    "re2",
    "ahocorasick_rs",
    "sqlalchemy",
    "psycopg",
    "pyarrow",
    "sqlite3",
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_stages_share_models_and_errors_and_never_import_each_other(path: Path) -> None:
    stage = path.relative_to(PACKAGE).parts[0]
    ours = [name.split(".") for name in imports(path) if name.startswith("pytest_llmbench.")]
    if stage in STAGES:
        assert {parts[1] for parts in ours} <= {stage} | SHARED
    if stage not in KNOW_PYTEST:
        assert not [name for name in imports(path) if name.split(".")[0] in ("pytest", "_pytest")]
    assert not [name for name in imports(path) if name.split(".")[0] == "_pytest"]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_constant_is_assigned_once(path: Path) -> None:
    """The second one would take the place of the first without a word, as it once did."""
    assigned = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    names = [ast.unparse(target) for node in assigned for target in node.targets]
    assert len(names) == len(set(names))


def test_the_rule_looks_at_every_stage() -> None:
    assert {path.parent.name for path in modules()} >= STAGES


PROBE = """
import json, os, sys, threading
from pathlib import Path
import pytest

@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    names = (name for name in sys.modules if name.split(".")[0] in {heavy!r} | {{"pytest_llmbench"}})
    facts = {{"modules": sorted(names), "threads": threading.active_count(), "files": sorted(os.listdir("."))}}
    Path(os.environ["PROBE"]).write_text(json.dumps(facts))
"""


def test_an_idle_session_loads_no_stage_starts_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    """Looked at from the very end of the session: whatever was loaded by then counts."""
    project, facts = tmp_path / "project", tmp_path / "facts.json"
    project.mkdir()
    (project / "conftest.py").write_text(PROBE.format(heavy=HEAVY))
    (project / "test_one.py").write_text("def test_one():\n    pass\n")
    command = [
        sys.executable,
        "-IBm",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:hypothesispytest",
    ]
    environment = {**os.environ, "PROBE": str(facts)}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(facts.read_text())
    assert seen["modules"] == [
        "pytest_llmbench",
        "pytest_llmbench.core",
        "pytest_llmbench.core.options",
        "pytest_llmbench.plugin",
        "pytest_llmbench.plugin.fixtures",
    ]
    assert seen["threads"] == 1
    assert seen["files"] == ["conftest.py", "test_one.py"]


def test_the_tests_run_against_what_they_claim() -> None:
    """With LLMB_INSTALLED the package comes from its wheel, not from the checkout."""
    checkout = Path(__file__).resolve().parents[1]
    assert PACKAGE.is_relative_to(checkout) is not bool(os.environ.get("LLMB_INSTALLED"))


def test_no_group_is_possessive() -> None:
    """Before Python 3.11.5 one keeps what its failed try took (python/cpython#106052): `12.` was read as a number."""
    possessive = re.compile(r"\)(?:[?*+]|\{[\d,]+\})\+")
    texts = {path: path.read_text(encoding="utf-8") for path in modules()}
    assert [str(path) for path, text in texts.items() if possessive.search(text)] == []
