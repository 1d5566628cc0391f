"""Report files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_whole(path: Path, content: bytes, *, make_folders: bool = True) -> None:
    """Write a file beside its place and move it there.

    Raises OSError where that is impossible; what stood at `path` is then still there.
    """
    if make_folders:
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # /dev/stdout or a pipe: must not be replaced by a file
        return
    target = Path(os.path.realpath(path))  # a link stays one; Path.resolve raises RuntimeError for one to itself
    temporary = target.with_name(f".llmb-{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
