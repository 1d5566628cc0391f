"""Files that accept what a recording refuses."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path


def accept_recordings(
    folder: Path,
    accept: str,
    reason: str,
    *,
    configuration: str = "*",
    since: date | None = None,
    expires: date | None = None,
) -> Path:
    """Write a file with one entry under `recordings`; it expires today."""
    last = expires or datetime.now(UTC).date()
    first = f"since: {since}, " if since else ""
    entry = f"{{configuration: '{configuration}', accept: {accept}, {first}expires: {last}, reason: '{reason}', by: A. Person}}"
    file = folder / "acknowledged.yaml"
    file.write_text(
        f"{{schema: 1, acknowledged: [], recordings: [{entry}]}}\n", encoding="utf-8"
    )
    return file
