"""Trees of tiny files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Tree = Callable[[Mapping[str, str] | Iterable[str]], Path]
"""Write files given as {relative path: text} and return the folder."""
