"""Any content of a baseline file is read, or a BaselineError names the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_llmbench.baseline.read import (
    find_baseline_files,
    list_shipped_baselines,
    read_recipe,
)
from pytest_llmbench.core.baseline_records import Recipe
from pytest_llmbench.core.errors import BaselineError

SMALLEST = min(
    find_baseline_files(list_shipped_baselines()), key=lambda path: path.stat().st_size
)
LINES = SMALLEST.read_text(encoding="utf-8").splitlines()[:120]
ANY = settings(
    max_examples=80,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
STRANGE_VALUES = (
    *(
        "",
        "~",
        "[]",
        "{}",
        "[1]",
        "{a: 1}",
        "-1",
        "0",
        "1e999",
        ".nan",
        ".inf",
        "0x1F",
        "1_000",
        "12:30:45",
        "yes",
    ),
    *(
        "2026-05-04",
        "&a 1",
        "*a",
        "!!python/name:os.system",
        "!!binary aGk=",
        "|",
        ">",
        "'",
        '"',
        "? x",
        "9" * 400,
    ),
    *("<<: *a", "\ufeff"),
)
VALUES = st.one_of(st.text(max_size=6), st.sampled_from(STRANGE_VALUES))
NO_BASELINES = (
    *(
        "",
        "a",
        "- a",
        "\x00",
        "[" * 5000,
        "{a: " * 5000,
        "schema: 1\n" * 3,
        "&a [*a]",
        "\t",
        "%YAML 9.9\n---\na",
    ),
    "a: !!python/object:os.system x",
)


def read(path: Path, data: bytes) -> Recipe | None:
    """Read the file, or return None if a BaselineError names it."""
    path.write_bytes(data)
    try:
        return read_recipe(path)
    except BaselineError as error:
        if path.name not in str(error):
            raise
        return None


def test_unmodified_example_file_is_valid(tmp_path: Path) -> None:
    assert read(tmp_path / "any.yaml", SMALLEST.read_bytes()) is not None


@pytest.mark.slow
@ANY
@given(
    number=st.integers(0, len(LINES) - 1),
    value=VALUES,
    kind=st.sampled_from(["value", "line", "lost", "twice", "deeper"]),
)
def test_file_with_a_changed_line_is_read_or_refused(
    tmp_path: Path, number: int, value: str, kind: str
) -> None:
    lines = list(LINES)
    key = lines[number].partition(":")[0]
    changed = {
        "value": [f"{key}: {value}"],
        "line": [value],
        "lost": [],
        "twice": [lines[number]] * 2,
    }
    lines[number : number + 1] = changed.get(kind, [f"  {lines[number]}"])
    read(tmp_path / "any.yaml", "\n".join(lines).encode("utf-8", "surrogatepass"))


@pytest.mark.slow
@ANY
@given(data=st.binary(max_size=60), offset=st.integers(0, 3000))
def test_file_with_inserted_bytes_is_read_or_refused(
    tmp_path: Path, data: bytes, offset: int
) -> None:
    text = "\n".join(LINES).encode()
    read(tmp_path / "any.yaml", text[:offset] + data + text[offset:])


@pytest.mark.parametrize("text", NO_BASELINES, ids=range(len(NO_BASELINES)))
def test_non_baseline_content_is_refused(tmp_path: Path, text: str) -> None:
    assert read(tmp_path / "any.yaml", text.encode()) is None
