"""What could not be stored is kept in a file, and stored later."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history.record import SCHEMA

NAME = "llmb-history-unsaved-{}.json"


def write_unsaved(document: dict[str, Any], folders: Iterable[Path]) -> Path:
    """Write a document to the first folder that takes it, whole and on disk; OSError of the last where none does."""
    problem: OSError | None = None
    content = json.dumps(document).encode("ascii")
    for folder in folders:
        path = folder / NAME.format(document["session"]["id"])
        try:
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            problem = error
            path.unlink(missing_ok=True) if os.access(folder, os.W_OK) else None
        else:
            return path
    raise problem or FileNotFoundError("no folder")


def read_unsaved(path: Path) -> dict[str, Any]:
    """Return the document in a file; HistoryError where it is none."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise HistoryError(f"{path}: no JSON ({error}): give a file that {NAME.format('*')} names") from None
    if not isinstance(document, dict) or not {"session", "verdicts"} <= document.keys():
        raise HistoryError(f"{path}: no session with verdicts: give a file that {NAME.format('*')} names")
    if document.get("schema") != SCHEMA:
        schema = document.get("schema")
        raise HistoryError(f"{path}: found schema {schema!r}, expected {SCHEMA}: use the pytest-llmbench that wrote it")
    return document
