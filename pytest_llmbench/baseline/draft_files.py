"""Write drafts of baseline files.

A different file at the same path is kept unless overwriting is forced.
"""

from __future__ import annotations

import difflib
import os
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from pytest_llmbench.baseline.read import contains_recorded
from pytest_llmbench.baseline.write import write_atomically
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.userfile import path_exists


class DraftFate(StrEnum):
    """Result of writing the file of a draft."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    REPLACED = "replaced"
    KEPT = "kept"
    """A different file exists, and `force` was not given."""


class WrittenDraft(Struct, frozen=True):
    """File of a draft, with its difference from the previous file."""

    path: Path
    fate: DraftFate
    difference: str = ""


def write_draft(path: Path, text: str, *, force: bool) -> WrittenDraft:
    """Write a draft, unless a different file exists and `force` is False.

    Raises BaselineError for a link, for a path that cannot be written, and for a file
    with recorded baselines.
    """
    if path.is_symlink() and path.exists():
        raise BaselineError(
            f"{path}: this is a link to {os.path.realpath(path)}; give the path of that file"
        )
    try:
        existing_text = None
        if path_exists(path, follow_links=False):
            # An empty file counts as missing.
            existing_text = path.read_text(encoding="utf-8") or None
        if existing_text == text:
            return WrittenDraft(path, DraftFate.UNCHANGED)
        if existing_text is not None and contains_recorded(path):
            raise BaselineError(
                f"{path}: contains recorded baselines, which an import never replaces; move the file or write elsewhere"
            )
        if existing_text is not None and not force:
            return WrittenDraft(path, DraftFate.KEPT, _diff(path, existing_text, text))
        write_atomically(path, text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BaselineError(
            f"{path}: {reason or error}, expected a writable path"
        ) from error
    if existing_text is None:
        return WrittenDraft(path, DraftFate.CREATED)
    return WrittenDraft(path, DraftFate.REPLACED, _diff(path, existing_text, text))


def _diff(path: Path, existing_text: str, draft_text: str) -> str:
    """Return the unified diff from the existing text of a file to that of the draft."""
    lines = difflib.unified_diff(
        existing_text.splitlines(),
        draft_text.splitlines(),
        fromfile=str(path),
        tofile=f"{path} (import)",
        lineterm="",
    )
    return "\n".join(lines)
