"""Parsing of deep JSON documents, and walking deep folders."""

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
    ("data", "message"),
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
def test_deep_or_damaged_json_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(data)


@pytest.mark.parametrize(
    "value",
    [1, None, "[[[", [], {"a": [1, {"b": [2]}]}, json.loads(nest(DEEPEST_JSON))],
    ids=["number", "null", "text", "empty", "nested", "deepest"],
)
def test_json_with_few_levels_is_parsed(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def test_folder_walk_matches_os_walk(tmp_path: Path) -> None:
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


def test_folder_walk_skips_removed_folders(tmp_path: Path) -> None:
    for name in ("a/b", "c/d"):
        (tmp_path / name).mkdir(parents=True)
    visited = []
    for folder, folders, _ in walk_folders(tmp_path):
        visited.append(Path(folder).name)
        folders[:] = sorted(name for name in folders if name != "a")
    assert visited == [tmp_path.name, "c", "d"]
