"""Archives as bytes, built with tarfile or manually."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable

MODIFIED = 1_750_000_000


def archive(
    files: Iterable[tuple[str, bytes]],
    kind: int = tarfile.PAX_FORMAT,
    modified: float = MODIFIED,
) -> bytes:
    """Build an archive of (name, contents) pairs in this order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for name, text in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(text), modified
            tar.addfile(info, io.BytesIO(text))
    return buffer.getvalue()


def make_member(
    name: str, change: Callable[[tarfile.TarInfo], None], kind: int = tarfile.PAX_FORMAT
) -> bytes:
    """Build one member without data, modified by `change`, and without the archive's
    end."""
    info = tarfile.TarInfo(name)
    change(info)
    return info.tobuf(kind)  # type: ignore[arg-type]


END = bytes(1024)
"""The end of an archive."""
