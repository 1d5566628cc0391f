"""The lowest versions of what is needed, and those that users may pin, are what
pyproject.toml admits."""

from __future__ import annotations

import ast
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pytest_llmbench

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
NEEDED = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
EXTRAS = [
    Requirement(text)
    for name, texts in PROJECT["project"]["optional-dependencies"].items()
    for text in texts
    if name != "tiny"
]
TESTS = [Requirement(text) for text in PROJECT["dependency-groups"]["test"]]

MODULES = {
    "yaml": "pyyaml",
    "re2": "google-re2",
    "markdown_it": "markdown-it-py",
    **dict.fromkeys(("backports", "compression"), "backports.zstd"),
}
BROUGHT = {"markupsafe": "jinja2", "iniconfig": "pytest"}
"""Modules that come with the package of another one, which uses them itself."""


def read_script() -> dict[str, Any]:
    return runpy.run_path(str(CHECKOUT / "scripts" / "constraints"))


def test_lowest_tested_versions_equal_the_bounds_in_pyproject() -> None:
    lowest = dict(line.split("==") for line in read_script()["list_lowest"]())
    assert set(lowest) == {
        requirement.name for requirement in (*NEEDED, *EXTRAS, *TESTS)
    }
    for requirement in (*NEEDED, *EXTRAS, *TESTS):
        assert f">={lowest[requirement.name]}" in str(requirement.specifier)


def test_user_constraints_pin_every_dependency() -> None:
    """`scripts/constraints renew` writes them anew."""
    pins = [
        Requirement(line)
        for line in (CHECKOUT / "docs" / "constraints.txt")
        .read_text(encoding="utf-8")
        .splitlines()
        if not line.startswith("#")
    ]
    for minor in range(11, 15):
        python = {
            "python_version": f"3.{minor}",
            "python_full_version": f"3.{minor}.0",
            "sys_platform": "linux",
        }
        pinned = {
            canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
            for pin in pins
            if pin.marker is None or pin.marker.evaluate(python)
        }
        for requirement in (*NEEDED, *EXTRAS, *TESTS):
            if requirement.marker is None or requirement.marker.evaluate(python):
                assert requirement.specifier.contains(
                    pinned[canonicalize_name(requirement.name)]
                ), requirement.name


@pytest.mark.slow
def test_every_imported_package_is_a_declared_dependency() -> None:
    declared = {
        canonicalize_name(requirement.name) for requirement in (*NEEDED, *EXTRAS)
    }
    for path in Path(pytest_llmbench.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            names += (
                [node.module]
                if isinstance(node, ast.ImportFrom) and node.module
                else []
            )
            for name in (
                {name.partition(".")[0] for name in names}
                - sys.stdlib_module_names
                - {"pytest_llmbench"}
            ):
                package = BROUGHT.get(name, MODULES.get(name, name))
                assert canonicalize_name(package) in declared, f"{path}: {name}"
