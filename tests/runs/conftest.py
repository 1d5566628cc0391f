"""Fixture for trees of tiny files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from support.written_trees import Tree


@pytest.fixture
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Return a function that writes files into a new folder, by relative path.

    The folder's name contains no facts of a run.
    """

    def write(files: Mapping[str, str] | Iterable[str]) -> Path:
        root = tmp_path_factory.mktemp("tree")
        texts = files if isinstance(files, Mapping) else dict.fromkeys(files, "")
        for name, text in texts.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return root

    return write
