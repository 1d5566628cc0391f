"""Memory that the C library keeps."""

from __future__ import annotations

import ctypes

import pytest

from pytest_llmbench.core.runtime import return_freed_memory


def test_freed_memory_is_returned_if_the_c_library_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[int] = []

    class Glibc:
        malloc_trim = staticmethod(kept.append)

    for library in (Glibc, object):
        monkeypatch.setattr(ctypes, "CDLL", lambda _name, found=library: found)
        return_freed_memory()
    assert kept == [0]
