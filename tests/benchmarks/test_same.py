"""The short form of benchmarks/equivalence/same.py finds all differences between two
readers, and no others."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same import compare, differences, read_results, start, steps
from same_inputs import examples
from same_reading import plain, read_file
from source_trees import ROOT

import pytest_llmbench
from pytest_llmbench.core.log_records import DroppedRecords, DropReason, Ending

Change = tuple[str, str, str]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [
        path
        for path in examples(tmp_path_factory.mktemp("examples"))
        if path.suffix == ".out"
    ][:15]


@pytest.fixture(scope="module")
def read_here(logs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file with this tree's results for the logs, next to the list of paths."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "paths").write_text("".join(f"{path}\n" for path in logs))
    assert start(ROOT, folder / "paths", folder / "one").wait() == 0
    return folder / "one"


def test_parsed_log_values_are_equal_only_if_all_bits_and_types_are() -> None:
    def same(one: Any, other: Any) -> bool:
        return json.dumps(plain(one), default=repr) == json.dumps(
            plain(other), default=repr
        )

    nan = np.array([math.nan, 0.1])
    assert same(nan, nan.copy())
    assert not same(nan, np.array([math.nan, np.nextafter(0.1, 1)]))
    assert not same(np.array([0.0]), np.array([-0.0]))
    assert not same(np.array([1]), np.array([1.0]))
    assert not same(np.array([1]), np.array([1], dtype=np.int32))
    assert not same(Ending("a", "b", 1), Ending("a", "b", np.int64(1)))  # type: ignore[arg-type]
    assert not same(
        (DroppedRecords(DropReason.TORN, 1, 1, "x"),),
        (DroppedRecords(DropReason.TORN, 1, 1, "y"),),
    )


def test_difference_is_reported_with_its_path() -> None:
    one = {"file": {"segments": [{"line": [1, 2]}], "ending": None}}
    other = {"file": {"segments": [{"line": [1, 3]}], "ending": None, "new": 1}}
    assert list(differences(one, other)) == [
        ("/file/segments/0/line/1", 2, 3),
        ("/file/new", "(absent)", 1),
    ]


@pytest.mark.slow
def test_log_is_read_as_a_file_in_blocks_and_as_standard_error(
    logs: list[Path],
) -> None:
    result = read_file(logs[0], 1)
    assert list(result) == ["file", "blocks of 509", "standard error"]
    assert steps(result) == 2 * steps(result["file"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (("logs/dialects/nemo2.py", "", ""), False),
        (("logs/dialects/nemo2.py", "Training epoch", "Training_epoch"), True),
        (("logs/scan.py", "REACH = 8192", "REACH = 64"), True),
    ],
    ids=["none", "a marker", "reach"],
)
def test_altered_log_parser_is_found_by_comparing_parsed_logs(
    change: Change, differs: bool, logs: list[Path], read_here: Path, tmp_path: Path
) -> None:
    """The package reads other files than a copy of it with one altered text."""
    name, old, new = change
    other = tmp_path / "tree" / "pytest_llmbench"
    shutil.copytree(
        Path(pytest_llmbench.__file__).parent,
        other,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    source = (other / name).read_text()
    assert old in source
    (other / name).write_text(source.replace(old, new))
    assert (
        start(other.parent, read_here.with_name("paths"), tmp_path / "other").wait()
        == 0
    )
    result = compare(
        dict.fromkeys(logs, ""),
        read_results(ROOT, read_here),
        read_results(other.parent, tmp_path / "other"),
    )
    assert bool(result) is differs


@pytest.mark.slow
def test_results_of_a_package_imported_from_another_source_tree_are_refused(
    logs: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "paths").write_text(f"{logs[0]}\n")
    assert start(ROOT, tmp_path / "paths", tmp_path / "out").wait() == 0
    with pytest.raises(RuntimeError, match="was imported instead of the package of"):
        list(read_results(tmp_path, tmp_path / "out"))
