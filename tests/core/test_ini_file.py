"""Parsing of pytest's configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.core.ini_file import read_tables


def test_toml_tables_of_any_depth_are_read(tmp_path: Path) -> None:
    deep = ".".join(["a"] * 2000)
    file = tmp_path / "pyproject.toml"
    file.write_text(
        f"[{deep}]\nx = 1\n[tool.pytest.ini_options]\ny = 2\n[tool.other]\nz = 3\n"
    )
    tables = read_tables(file)
    assert tables[deep] == {"x": 1}
    assert tables["tool.pytest.ini_options"] == {"y": 2}
    assert [name for name in tables if name and not name.startswith("a")] == [
        "tool",
        "tool.pytest",
        "tool.pytest.ini_options",
        "tool.other",
    ]


def test_deeply_nested_value_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text("x = " + "[" * 5000)
    with pytest.raises(ValueError, match="recursion"):
        read_tables(file)
