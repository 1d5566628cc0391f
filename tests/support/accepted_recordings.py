"""Acknowledgement files that allow an otherwise refused recording."""

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
    """Write an acknowledgement file with one entry under `recordings`.

    The entry expires today by default.
    """
    last = expires or datetime.now(UTC).date()
    first = f"since: {since}, " if since else ""
    entry = f"{{configuration: '{configuration}', accept: {accept}, {first}expires: {last}, reason: '{reason}', by: A. Person}}"
    file = folder / "acknowledged.yaml"
    file.write_text(
        f"{{schema: 1, acknowledged: [], recordings: [{entry}]}}\n", encoding="utf-8"
    )
    return file
