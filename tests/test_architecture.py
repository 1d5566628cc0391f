"""Import rules of the package, and the cost of an idle session."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import pytest_llmbench
from pytest_llmbench.logs.reading.cache import PARSER_PACKAGES

PACKAGE = Path(pytest_llmbench.__file__).parent
LAYERS = (
    ("core",),
    ("logs",),
    ("runs", "judge", "baseline", "history", "report"),
    ("session",),
    ("launch", "comparison"),
    ("tools",),
    ("plugin", "suite", "cli"),
)
"""From bottom to top, as in docs/explanation/architecture.md. A module imports from lower layers
and from its own package only."""

LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}

EXAMPLES = Path(__file__).parents[1] / "examples" / "experiments"

ENTRY_PACKAGES = {
    "pytest": ("plugin", "suite"),
    "_pytest": (),
    "argparse": ("cli", "tools"),
}
"""The packages that may import each command-line library."""

FILE_READERS = ("logs/sources/", "logs/reading/cache.py", "core/userfile.py")
"""Modules that read users' files, and the cache of parsed logs."""
FILE_OWNERS = ("report/", "baseline/", "history/", "launch/", "tools/probe/")
"""Packages that write files and read them back."""
FILE_CALLS = {
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "mkdir",
    "mkstemp",
    "scandir",
}

HEAVY = {
    "yaml",
    "numpy",
    "pandas",
    "scipy",
    "junit_xml",
    "msgspec",
    "jinja2",
    "multiprocessing",
    "backports.zstd",
    "fsspec",
    "re2",
    "ahocorasick_rs",
    "hyperscan",
    "sqlalchemy",
    "psycopg",
    "pyarrow",
    "sqlite3",
    "argcomplete",
    "markdown_it",
}


class Module(NamedTuple):
    """A module of the package, parsed once for all tests."""

    path: str
    """Relative to the package, with slashes."""
    assignments: tuple[ast.Assign, ...]
    """Top-level assignments."""
    calls: tuple[ast.Call, ...]
    imports: tuple[str, ...]
    """`a.b` for `import a.b`, `a.b.c` for `from a.b import c`."""
    relative_imports: int

    @property
    def package(self) -> str:
        """The folder under the package, or the file name for a module at the root."""
        return self.path.partition("/")[0]

    @property
    def name(self) -> str:
        """The dotted module name, without a trailing `__init__`."""
        return (
            f"pytest_llmbench/{self.path}".removesuffix(".py")
            .replace("/", ".")
            .removesuffix(".__init__")
        )

    @property
    def packages(self) -> set[str]:
        """The subpackages of `pytest_llmbench` that the module imports from."""
        names = (
            name.split(".")
            for name in self.imports
            if name.startswith("pytest_llmbench.")
        )
        return {name[1] for name in names} - {"__version__"}


def parse_module(path: Path) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    imported = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = [
        alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    names += [
        f"{node.module}.{alias.name}" for node in imported for alias in node.names
    ]
    return Module(
        path=path.relative_to(PACKAGE).as_posix(),
        assignments=tuple(node for node in tree.body if isinstance(node, ast.Assign)),
        calls=tuple(node for node in nodes if isinstance(node, ast.Call)),
        imports=tuple(names),
        relative_imports=sum(node.level > 0 for node in imported),
    )


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    """Parse every module of the package, including the root's `__init__`."""
    parsed = [parse_module(path) for path in sorted(PACKAGE.rglob("*.py"))]
    assert {"__init__.py", "core/errors.py", "plugin/hooks.py"} <= {
        module.path for module in parsed
    }
    return parsed


@pytest.mark.slow
def test_no_import_is_relative(modules: list[Module]) -> None:
    assert [module.path for module in modules if module.relative_imports] == []


def test_package_root_contains_only_an_init_without_imports(
    modules: list[Module],
) -> None:
    (root,) = (module for module in modules if "/" not in module.path)
    assert root.path == "__init__.py"
    assert [name for name in root.imports if name.startswith("pytest_llmbench.")] == []


def test_every_package_imports_only_packages_of_lower_layers(
    modules: list[Module],
) -> None:
    upward = [
        (module.path, other)
        for module in modules
        for other in module.packages - {module.package}
        if module.package in LEVELS and LEVELS[other] >= LEVELS[module.package]
    ]
    assert upward == []


def test_tools_do_not_import_each_other(modules: list[Module]) -> None:
    wrong = []
    for module in modules:
        parts = module.path.split("/")
        if parts[0] != "tools":
            continue
        allowed = {parts[1]} if len(parts) > 2 else set()
        shared = {
            Path(other.path).stem
            for other in modules
            if other.path.startswith("tools/") and other.path.count("/") == 1
        }
        used = {
            name.split(".")[2]
            for name in module.imports
            if name.startswith("pytest_llmbench.tools.")
        }
        wrong += [(module.path, name) for name in used - allowed - shared]
    assert wrong == []


def test_cache_version_covers_all_imports_of_the_parser(modules: list[Module]) -> None:
    """A change in any of these packages may change the result of parsing a log."""
    imported = {
        name
        for module in modules
        if module.package == "logs"
        for name in module.packages
    }
    assert imported == set(PARSER_PACKAGES)


def test_module_names_are_unique(modules: list[Module]) -> None:
    stems = Counter(Path(module.path).stem for module in modules)
    assert [
        name for name, count in stems.items() if count > 1 and name != "__init__"
    ] == []


def test_imports_form_no_cycle(modules: list[Module]) -> None:
    """Imports within functions and under TYPE_CHECKING count."""
    graph: dict[str, set[str]] = {module.name: set() for module in modules}
    for module in modules:
        for name in module.imports:
            target = name if name in graph else name.rpartition(".")[0]
            if target in graph and target != module.name:
                graph[module.name].add(target)
    order = TopologicalSorter(graph)
    order.prepare()  # raises CycleError with the modules of a cycle


ALLOWED_USERS = {
    "subprocess": (
        "core/commands.py",
        "launch/jobs/setup_step.py",
        "tools/probe/candidate.py",
        "logs/reading/file_reader.py",
    ),
    "posix_spawn": ("launch/schedulers/process.py",),
    "multiprocessing": ("tools/nccl/nccl_trace.py",),
    "pickle": ("plugin/session_state.py", "logs/reading/file_reader.py"),
    "import_module": (
        "plugin/configure.py",
        "plugin/collection.py",
        "logs/dialect_reader.py",
        "launch/schedulers/registry.py",
    ),
}
"""Modules that may start programs, or turn bytes or names into code. None of them does
so with a user's file."""

FORBIDDEN = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "system",
    "popen",
    "fork",
    "marshal",
    "shelve",
    "runpy",
}
HARMLESS_CALLS = {"re.compile", "re2.compile", "database.compile", "platform.system"}


@pytest.mark.slow
def test_input_is_never_executed(modules: list[Module]) -> None:
    wrong = []
    for module in modules:
        used = {part for name in module.imports for part in name.split(".")}
        called = {
            ast.unparse(call.func)
            for call in module.calls
            if _name(call) in FORBIDDEN | ALLOWED_USERS.keys()
        }
        used |= {name.rpartition(".")[2] for name in called - HARMLESS_CALLS}
        wrong += [(module.path, name) for name in used & FORBIDDEN]
        wrong += [
            (module.path, name)
            for name in used & ALLOWED_USERS.keys()
            if module.path not in ALLOWED_USERS[name]
        ]
    assert wrong == []


def test_only_plugin_and_command_line_packages_import_pytest_or_argparse(
    modules: list[Module],
) -> None:
    wrong = []
    for module in modules:
        known = {name.split(".")[0] for name in module.imports}
        wrong += [
            (module.path, name)
            for name, packages in ENTRY_PACKAGES.items()
            if name in known and module.package not in packages
        ]
    assert wrong == []


@pytest.mark.slow
def test_only_listed_modules_open_files(modules: list[Module]) -> None:
    others = (
        module
        for module in modules
        if not module.path.startswith(FILE_READERS + FILE_OWNERS)
    )
    texts = [
        (module.path, ast.unparse(call))
        for module in others
        for call in module.calls
        if _opens_file(call)
    ]
    assert [(path, text) for path, text in texts if "os.devnull" not in text] == []


def _name(call: ast.Call) -> str:
    """Return the name of the called function or method, or "" for a called
    expression."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _opens_file(call: ast.Call) -> bool:
    """Return True for a call of a method in FILE_CALLS or of the function `open`."""
    return (
        _name(call) in FILE_CALLS
        if isinstance(call.func, ast.Attribute)
        else _name(call) == "open"
    )


def test_every_package_has_a_layer(modules: list[Module]) -> None:
    assert {module.package for module in modules if "/" in module.path} == LEVELS.keys()


@pytest.mark.slow
def test_judging_session_loads_no_unused_library() -> None:
    """Libraries of command lines and reports are imported where they are used."""
    entries = (
        "plugin.configure",
        "plugin.hooks",
        "session.evaluate",
        "launch.launch_session",
        "cli.main",
    )
    loads = "; ".join(f"import pytest_llmbench.{name}" for name in entries)
    unused = HEAVY - {
        *("numpy", "msgspec", "sqlite3", "ahocorasick_rs", "multiprocessing")
    }
    code = f"import sys; {loads}; print(sorted({unused!r} & sys.modules.keys()))"
    assert (
        subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    )


@pytest.mark.slow
def test_constants_are_assigned_once(modules: list[Module]) -> None:
    """A second assignment would silently replace the first."""
    wrong = []
    for module in modules:
        counts = Counter(
            ast.unparse(target)
            for node in module.assignments
            for target in node.targets
        )
        wrong += [(module.path, name) for name, count in counts.items() if count > 1]
    assert wrong == []


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


@pytest.mark.slow
def test_pytest_session_without_llmbench_options_loads_only_the_option_modules(
    tmp_path: Path,
) -> None:
    """The probe runs at the very end of the session, so all earlier imports count."""
    project, facts_file = tmp_path / "project", tmp_path / "facts.json"
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
    environment = {**os.environ, "PROBE": str(facts_file)}
    result = subprocess.run(
        command,
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    facts = json.loads(facts_file.read_text())
    assert facts["modules"] == [
        "pytest_llmbench",
        "pytest_llmbench.core",
        "pytest_llmbench.core.option",
        "pytest_llmbench.core.options",
        "pytest_llmbench.plugin",
        "pytest_llmbench.plugin.fixtures",
    ]
    assert facts["threads"] == 1
    assert facts["files"] == ["conftest.py", "test_one.py"]


JUDGE = """
import gc, json, os, sys
import pytest

class NumpyImports:
    patience = []

    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            self.patience.append(os.environ.get("OPENBLAS_THREAD_TIMEOUT"))

sys.meta_path.insert(0, NumpyImports())
code = int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest", *sys.argv[1:]]))
names = [name for name in sys.modules if name.startswith("pytest_llmbench.")]
facts = {{
    "code": code,
    "heavy": sorted({heavy!r} & sys.modules.keys()),
    "rewritten": [name for name in names if type(sys.modules[name].__spec__.loader).__module__.startswith("_pytest")],
    "finders": [type(finder).__name__ for finder in sys.meta_path],
    "frozen": gc.get_freeze_count(),
    "patience": [*NumpyImports.patience, os.environ.get("OPENBLAS_THREAD_TIMEOUT")],
}}
print(json.dumps(facts))
"""


@pytest.mark.slow
def test_judging_session_restores_import_hooks_and_garbage_collector_at_its_end(
    tmp_path: Path,
) -> None:
    """A program that calls `pytest.main` keeps running afterwards. Libraries that the
    session does not need are not loaded."""
    code = JUDGE.format(heavy=HEAVY | {"pytest_llmbench.core.trial_records"})
    command = [sys.executable, "-c", code, f"--llmb-logs={EXAMPLES}", "--llmb-no-cache"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    facts = json.loads(result.stdout.splitlines()[-1])
    assert facts["code"] == 1, result.stdout + result.stderr
    assert facts["heavy"] == ["ahocorasick_rs", "msgspec", "numpy", "yaml"]
    # pytest rewrites the modules that are loaded before options are known, and the tests
    # of the suite.
    idle = (
        "plugin",
        "plugin.fixtures",
        "core",
        "core.option",
        "core.options",
        "core.runtime",
    )
    expected = {f"pytest_llmbench.{name}" for name in idle}
    assert {
        name
        for name in facts["rewritten"]
        if not name.startswith("pytest_llmbench.suite")
    } == expected
    assert "PlainImports" not in facts["finders"]
    assert facts["frozen"] == 0
    # The threads of numpy do not wait actively, and launched jobs inherit no setting.
    assert facts["patience"] == ["20", None]


@pytest.mark.wheel
def test_tests_import_the_wheel_or_the_checkout_as_requested() -> None:
    """LLMB_INSTALLED requires the installed wheel instead of the checkout."""
    checkout = Path(__file__).resolve().parents[1]
    assert PACKAGE.is_relative_to(checkout) is not bool(
        os.environ.get("LLMB_INSTALLED")
    )


@pytest.mark.slow
def test_no_regular_expression_group_is_possessive() -> None:
    """Before Python 3.11.5 a possessive group keeps the match of a failed attempt
    (python/cpython#106052): `12.` was read as a number."""
    possessive = re.compile(r"\)(?:[?*+]|\{[\d,]+\})\+")
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert [str(path) for path, text in texts.items() if possessive.search(text)] == []


def test_architecture_page_names_existing_files() -> None:
    page = (
        Path(__file__).parents[1] / "docs" / "explanation" / "architecture.md"
    ).read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `([a-z_/.]+)` \|$", page, re.MULTILINE)
    assert len(rows) > 30
    assert [path for path in rows if not (PACKAGE / path).exists()] == []
