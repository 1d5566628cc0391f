"""Trees of tiny files, as tests write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Tree = Callable[[Mapping[str, str] | Iterable[str]], Path]
"""Write files by relative path, with their texts, and return the folder."""
