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
FLOORS = {"core": 1, "pipeline": 4} | dict.fromkeys(("plugin", "suite", "cli"), 5)
FLOORS |= dict.fromkeys(("ingest", "measure", "judge", "launch", "history", "baseline", "report"), 3)
"""docs/architecture.md draws them: an import goes to a lower floor or stays in its room."""

EXAMPLES = Path(__file__).parents[1] / "examples" / "experiments"

FACES = {"pytest": ("plugin", "suite"), "_pytest": (), "argparse": ("cli",)}
"""Which rooms know a program that people start."""

OPENS = ("ingest/sources/", "ingest/reading/cache.py", "core/userfile.py")
"""What reads files of users, and the cache of what was read."""
KEEPS = ("report/", "baseline/", "history/", "launch/")
"""What keeps files of its own, and reads them back."""
FILE_CALLS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "mkstemp", "scandir"}

HEAVY = {
    "yaml",
    "numpy",
    "pandas",
    "scipy",
    "junit_xml",
    "jinja2",
    "multiprocessing",
    "zstandard",
    "fsspec",
    "re2",
    "ahocorasick_rs",
    "hyperscan",
    "sqlalchemy",
    "psycopg",
    "pyarrow",
    "sqlite3",
    "argcomplete",
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


EVERY_MODULE = pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())


@EVERY_MODULE
def test_an_import_goes_to_a_lower_floor_or_stays_in_its_room(path: Path) -> None:
    names = [name.split(".") for name in imports(path) if name.startswith("pytest_llmbench.")]
    if path.parent == PACKAGE:
        assert path.name == "__init__.py"
        assert names == []
        return
    room = path.relative_to(PACKAGE).parts[0]
    others = {name[1] for name in names} - {room, "__version__"}
    assert {other for other in others if FLOORS[other] >= FLOORS[room]} == set()


RUNS = {
    "subprocess": (
        "launch/slurm/__init__.py",
        "launch/submit/setup.py",
        "launch/submit/candidate.py",
        "ingest/reading/file_reader.py",
    ),
    "posix_spawn": ("launch/submit/process.py",),
    "multiprocessing": ("ingest/nccl/__init__.py",),
    "pickle": ("plugin/session.py", "ingest/reading/file_reader.py"),
    "import_module": ("plugin/configure.py", "plugin/collection.py", "ingest/parse/dialect_reader.py"),
}
"""What starts programs, or makes code of bytes or names, and the modules that use it: on no file of a user."""

NEVER = {"eval", "exec", "compile", "__import__", "system", "popen", "fork", "marshal", "shelve", "runpy"}
METHODS = {"re.compile", "re2.compile", "database.compile", "platform.system"}


@EVERY_MODULE
def test_what_is_read_is_never_run(path: Path) -> None:
    place = path.relative_to(PACKAGE).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {part for name in imports(path) for part in name.split(".")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in METHODS:
            used.add(ast.unparse(node.func).rpartition(".")[2])
    assert not used & NEVER
    assert {name for name in used & set(RUNS) if place not in RUNS[name]} == set()


@EVERY_MODULE
def test_a_program_that_people_start_is_known_to_its_face_alone(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    known = {name.split(".")[0] for name in imports(path)}
    assert {name for name, rooms in FACES.items() if name in known and room not in rooms} == set()


@EVERY_MODULE
def test_files_are_opened_in_few_places(path: Path) -> None:
    if path.relative_to(PACKAGE).as_posix().startswith(OPENS + KEEPS):
        return
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    texts = {ast.unparse(call) for call in calls if _method(call) in FILE_CALLS}
    assert {text for text in texts if "os.devnull" not in text} == set()


def _method(call: ast.Call) -> str:
    """Return the name of the method that is called; also `open` as a function."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return "open" if isinstance(call.func, ast.Name) and call.func.id == "open" else ""


def test_every_room_stands_on_a_floor() -> None:
    assert {path.relative_to(PACKAGE).parts[0] for path in modules() if path.parent != PACKAGE} == FLOORS.keys()


def test_a_session_that_judges_loads_no_library_that_it_does_not_use() -> None:
    """What a command line or a report needs is loaded where it is used."""
    rooms = ("plugin.configure", "plugin.hooks", "pipeline.evaluate", "pipeline.launch.launch_session", "cli.main")
    loads = "; ".join(f"import pytest_llmbench.{room}" for room in rooms)
    unused = HEAVY - {"numpy", "sqlite3", "ahocorasick_rs", "multiprocessing"}
    code = f"import sys; {loads}; print(sorted({unused!r} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@EVERY_MODULE
def test_a_constant_is_assigned_once(path: Path) -> None:
    """The second one would take the place of the first without a word, as it once did."""
    assigned = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    names = [ast.unparse(target) for node in assigned for target in node.targets]
    assert len(names) == len(set(names))


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
        "pytest_llmbench.core.option",
        "pytest_llmbench.core.options",
        "pytest_llmbench.plugin",
        "pytest_llmbench.plugin.fixtures",
    ]
    assert seen["threads"] == 1
    assert seen["files"] == ["conftest.py", "test_one.py"]


JUDGE = """
import gc, json, sys
import pytest

code = int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest", *sys.argv[1:]]))
names = [name for name in sys.modules if name.startswith("pytest_llmbench.")]
facts = {{
    "code": code,
    "heavy": sorted({heavy!r} & sys.modules.keys()),
    "rewritten": [name for name in names if type(sys.modules[name].__spec__.loader).__module__.startswith("_pytest")],
    "finders": [type(finder).__name__ for finder in sys.meta_path],
    "frozen": gc.get_freeze_count(),
}}
print(json.dumps(facts))
"""


def test_a_session_that_judges_loads_little_and_leaves_imports_and_collector_as_they_were(tmp_path: Path) -> None:
    """Whoever calls pytest within a program goes on with it; and no library is loaded for what another night needs."""
    code = JUDGE.format(heavy=HEAVY | {"pytest_llmbench.core.models.trials"})
    command = [sys.executable, "-c", code, f"--llmb-logs={EXAMPLES}", "--llmb-no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["code"] == 1, done.stdout + done.stderr
    assert seen["heavy"] == ["ahocorasick_rs", "numpy", "yaml"]
    # What an idle session loads comes before any option is known, and the tests of the suite are pytest's.
    idle = ("plugin", "plugin.fixtures", "core", "core.option", "core.options", "core.runtime")
    expected = {f"pytest_llmbench.{name}" for name in idle}
    assert {name for name in seen["rewritten"] if not name.startswith("pytest_llmbench.suite")} == expected
    assert "PlainImports" not in seen["finders"]
    assert seen["frozen"] == 0


def test_the_tests_run_against_what_they_claim() -> None:
    """With LLMB_INSTALLED the package comes from its wheel, not from the checkout."""
    checkout = Path(__file__).resolve().parents[1]
    assert PACKAGE.is_relative_to(checkout) is not bool(os.environ.get("LLMB_INSTALLED"))


def test_no_group_is_possessive() -> None:
    """Before Python 3.11.5 one keeps what its failed try took (python/cpython#106052): `12.` was read as a number."""
    possessive = re.compile(r"\)(?:[?*+]|\{[\d,]+\})\+")
    texts = {path: path.read_text(encoding="utf-8") for path in modules()}
    assert [str(path) for path, text in texts.items() if possessive.search(text)] == []
