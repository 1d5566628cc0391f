"""Write drafts of baseline files: a different file at the same path is kept unless
forced."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pytest_llmbench.baseline.read import holds_recorded
from pytest_llmbench.baseline.write import write_beside
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.userfile import is_there


class DraftFate(StrEnum):
    """Result of writing the file of a draft."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    REPLACED = "replaced"
    KEPT = "kept"
    """A different file is there, and `force` was not given."""


@dataclass(frozen=True, slots=True)
class WrittenDraft:
    """The file of a draft, and its difference from the file that was there before."""

    path: Path
    fate: DraftFate
    difference: str = ""


def write_draft(path: Path, text: str, *, force: bool) -> WrittenDraft:
    """Write a draft, unless a different file is there and `force` is False.

    Raises BaselineError for a link, for a path that cannot be written, and for a file
    with recorded baselines.
    """
    if path.is_symlink() and path.exists():
        raise BaselineError(
            f"{path}: a link to the file {os.path.realpath(path)}: give the name of the file itself"
        )
    try:
        before = (
            (path.read_text(encoding="utf-8") or None)
            if is_there(path, follow_links=False)
            else None
        )
        if before == text:
            return WrittenDraft(path, DraftFate.UNCHANGED)
        if before is not None and holds_recorded(path):
            raise BaselineError(
                f"{path}: found recorded baselines, which a document does not replace; move the file or write elsewhere"
            )
        if before is not None and not force:
            return WrittenDraft(path, DraftFate.KEPT, _diff(path, before, text))
        write_beside(path, text)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise BaselineError(
            f"{path}: {why or error}, expected a place that can be written"
        ) from error
    if before is None:
        return WrittenDraft(path, DraftFate.CREATED)
    return WrittenDraft(path, DraftFate.REPLACED, _diff(path, before, text))


def _diff(path: Path, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(),
        after.splitlines(),
        str(path),
        f"{path} (import)",
        lineterm="",
    )
    return "\n".join(lines)
