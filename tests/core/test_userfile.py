"""JSON documents and folders of any depth."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_llmbench.core.userfile import DEEPEST_JSON, parse_json, walk_folders

Listed = tuple[str, list[str], list[str]]


def nest(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (nest(DEEPEST_JSON + 1), "levels of nesting"),
        (nest(700), "levels of nesting"),
        (b'{"a":' * 700 + b"1" + b"}" * 700, "levels of nesting"),
        (b"[" * 100_000, "recursion"),
        (b"[1", "Expecting"),
        (b"\xff", "codec"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
    ],
    ids=[
        "one level more",
        "lists",
        "objects",
        "endless",
        "truncated",
        "not UTF-8",
        "long number",
    ],
)
def test_json_that_is_too_deep_or_damaged_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(data)


@pytest.mark.parametrize(
    "value",
    [1, None, "[[[", [], {"a": [1, {"b": [2]}]}, json.loads(nest(DEEPEST_JSON))],
    ids=["number", "null", "text", "empty", "nested", "deepest"],
)
def test_json_of_few_levels_is_parsed(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def test_walk_is_that_of_the_standard_library(tmp_path: Path) -> None:
    for name in ("a/b/x", "a/y", "c/z", "w"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "up").symlink_to(tmp_path)

    def list_sorted(walk: Iterable[Listed]) -> list[Listed]:
        return sorted(
            (folder, sorted(folders), sorted(names)) for folder, folders, names in walk
        )

    expected = list_sorted(os.walk(tmp_path))
    assert [name for name, _, _ in expected] == [
        str(tmp_path / name) for name in (".", "a", "a/b", "c")
    ]
    walked = [
        (folder, [*folders], names) for folder, folders, names in walk_folders(tmp_path)
    ]
    assert list_sorted(walked) == expected


def test_walk_leaves_out_folders_that_are_taken_away(tmp_path: Path) -> None:
    for name in ("a/b", "c/d"):
        (tmp_path / name).mkdir(parents=True)
    left = []
    for folder, folders, _ in walk_folders(tmp_path):
        left.append(Path(folder).name)
        folders[:] = sorted(name for name in folders if name != "a")
    assert left == [tmp_path.name, "c", "d"]
