"""Letting Python's collector of cycles rest."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Let Python's collector of cycles rest: what is made of thousands of runs is kept, and has no cycles, but the
    collector would look at all of it again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
