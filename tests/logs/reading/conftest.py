"""Runs to be read with a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cached_folders import CachedFolder

from pytest_llmbench.logs.reading import cache as log_cache
from pytest_llmbench.logs.reading import file_reader
from pytest_llmbench.logs.reading.codec import ReadResult
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.sources.compressed import Stream


@pytest.fixture
def cached_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CachedFolder:
    """Runs, and a cache that is written even for one log."""
    monkeypatch.setattr(log_cache, "WORTH_FILES", 1)
    created = CachedFolder(tmp_path)
    parse = file_reader.parse

    def counted(source: Any, definitions: Any, **options: Any) -> ReadResult:
        created.read.append(source.path if isinstance(source, Stream) else source)
        return parse(source, definitions, **options)

    monkeypatch.setattr(file_reader, "parse", counted)
    return created


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every log as large, unchanged for long, and on a disk."""
    monkeypatch.setattr(files, "COMPARED_WHOLE", 999)
    monkeypatch.setattr(files, "LATE_WRITES_NS", -(10**9))
    monkeypatch.setattr(
        files, "IN_MEMORY", frozenset()
    )  # as the folder of this test may
