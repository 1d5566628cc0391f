"""Recursive functions have a bounded depth.

Python's stack ends at 1,000 calls. Data of users and jobs may be nested deeper, so no
function recurses once per level of it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import pytest_llmbench

PACKAGE = Path(pytest_llmbench.__file__).parent

BOUNDED = {
    "baseline.lint._replace_field": "the fields in a path that the code names",
    "baseline.read._to_tuples": "`core.yamlfile.DEEPEST`",
    "baseline.write._to_yaml_types": "the schema of baseline files",
    "core.formatting.escape_values": "the documents that a session makes",
    "core.log_records.change_ending": "an ending and the one next to it",
    "core.redaction.Redactor.redact_values.change": "`core.userfile.DEEPEST_JSON`",
    "core.redaction.Redactor.redact_values.change_items": "`core.userfile.DEEPEST_JSON`",
    "history.session_record.refuse_unstorable": "`history.session_record.DEEPEST`",
    "runs.layouts.metadata._build_node": "`runs.layouts.metadata.DEPTH_LIMIT`",
    "runs.layouts.metadata._flatten": "`runs.layouts.metadata.DEPTH_LIMIT`",
    "logs.endings.set_file_name": "an ending and the one next to it",
    "logs.reading.codec.compress_log": "the other readings of a log, which have none",
    "logs.reading.codec._from_json": "the types of records",
    "logs.reading.codec._decode_union": "the types of records",
    "logs.reading.codec._to_json": "the types of records",
    "logs.reading.consistency._can_be_result_of": "a log and its readings",
    "judge.change_points._find_cuts": "the days of a year, in parts",
    "judge.distributions.compute_t_upper_tail": "one call, with the other sign",
    "launch.policies.search_policy._search": "the builds, in halves",
    "launch.policies.search_policy._search_both_sides": "the builds, in halves",
    "report.document._replace_non_finite": "the documents that a session makes",
    **dict.fromkeys(
        (
            f"tools.import_tables.machine_tables.{name}"
            for name in (
                "_find_records",
                "_is_plain",
                "_list_record_lists",
                "_list_scalars",
                "_read_plain",
            )
        ),
        "`core.yamlfile.DEEPEST`",
    ),
    "tools.import_tables.mappings._refuse_unknown_names": "one call, for the shipped mappings",
    "tools.import_tables.mappings.load_mapping": "one call, for the shipped mappings",
}
"""The allowed recursive functions, and the limit of each recursion depth."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _list_functions(tree: ast.AST, name: str = "") -> Iterator[tuple[str, Function]]:
    """Yield (dotted name, node) for every function of a module."""
    pending = [(tree, name)]
    while pending:
        node, scope = pending.pop()
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, Function | ast.ClassDef):
                inner = f"{scope}.{child.name}".lstrip(".")
            if isinstance(child, Function):
                yield inner, child
            pending.append((child, inner))


def _find_called(
    name: str, function: Function, functions: Collection[str]
) -> Iterator[str]:
    """Yield the module's functions that `function` calls or passes as arguments.

    Resolves plain names and methods of `self` or `cls`.
    """
    scopes = name.split(".")
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        for node in (
            call.func,
            *call.args,
            *(keyword.value for keyword in call.keywords),
        ):
            if isinstance(node, ast.Name):
                outer = [
                    ".".join(scopes[:depth]) for depth in range(len(scopes), 0, -1)
                ]
                visible = (
                    *(f"{scope}.{node.id}" for scope in outer if scope in functions),
                    node.id,
                )
                yield from [
                    candidate for candidate in visible if candidate in functions
                ][:1]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in (
                "self",
                "cls",
            ):
                classes = [".".join(scopes[:depth]) for depth in range(1, len(scopes))]
                yield from {
                    f"{scope}.{node.attr}"
                    for scope in classes
                    if scope not in functions
                } & {*functions}


def find_recursive(text: str) -> set[str]:
    """Return the names of all directly or indirectly recursive functions of a
    module."""
    functions = dict(_list_functions(ast.parse(text)))
    calls = {
        name: set(_find_called(name, function, functions))
        for name, function in functions.items()
    }
    while (
        further := {
            name: called.union(*map(calls.get, called))  # type: ignore[arg-type]
            for name, called in calls.items()
        }
    ) != calls:
        calls = further
    return {name for name, called in calls.items() if name in called}


@pytest.mark.slow
def test_recursive_functions_are_bounded() -> None:
    recursive = {
        f"{'.'.join(path.relative_to(PACKAGE).with_suffix('').parts)}.{name}".replace(
            ".__init__.", "."
        )
        for path in PACKAGE.rglob("*.py")
        for name in find_recursive(path.read_text(encoding="utf-8"))
    }
    assert recursive == set(BOUNDED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x): return f(x[0])", {"f"}),
        (
            "def f(x): return g(x)\ndef g(x): return map(f, x)\ndef h(x): return f(x)",
            {"f", "g"},
        ),
        (
            "class A:\n def f(self): self.g()\n def g(self): self.f()\n def h(self): f()",
            {"A.f", "A.g"},
        ),
        ("def f():\n def g(x): return g(x)\n return g", {"f.g"}),
        ("def f(x): return x\nclass A:\n def f(self): return 1", set()),
    ],
)
def test_direct_and_mutual_recursion_in_source_code_is_detected(
    text: str, expected: set[str]
) -> None:
    assert find_recursive(text) == expected
