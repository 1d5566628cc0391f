"""Times that folder names carry.

A stamp without a zone is local time of the machine that reads it, as the launchers write it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

_EPOCH = re.compile(r"(?<!\d)(1[4-9]\d{8}|[23]\d{9})(\d{9})?(?!\d)")
_WRITTEN = re.compile(
    r"(?<!\d)(20\d\d)[-_.]?(\d\d)[-_.]?(\d\d)[-_T ](\d\d)[-:_.h]?(\d\d)[-:_.m]?(\d\d)(?:\.\d+)?(Z|UTC)?(?!\d)"
)
_DAY = re.compile(r"(?<!\d)(20\d\d)[-_.](\d\d)[-_.](\d\d)(?!\d)")


def started_by_name(own: Sequence[str], above: Sequence[str], modified: datetime) -> tuple[datetime | None, str]:
    """Return the start time in the innermost folder name that holds one, and which folder that is.

    `own` are the run's folders. A folder above them (`nightly/2026-01-02/`) or a day alone counts only where the file
    was not last written at about that time: then the file is a copy, and its own time says nothing.
    """
    for name in reversed(own):
        if started := stamp(name):
            return started, f"the name of folder {name}"
    for name in (*reversed(own), *reversed(above)):
        started = stamp(name) or _day(name)
        if started and abs(modified - started) > timedelta(days=2):
            return started, f"the name of folder {name}"
    return None, ""


def stamp(name: str) -> datetime | None:
    """Return the moment that a name holds as epoch seconds, epoch nanoseconds or a written date and time, in UTC."""
    if found := _EPOCH.search(name):
        return datetime.fromtimestamp(int(found[1]), UTC) + timedelta(microseconds=int(found[2] or 0) // 1000)
    if found := _WRITTEN.search(name):
        year, month, day, hour, minute, second, zone = found.groups()
        return _moment(f"{year}-{month}-{day}T{hour}:{minute}:{second}{'Z' if zone else ''}")
    return None


def _day(name: str) -> datetime | None:
    found = _DAY.search(name)
    return _moment("-".join(found.groups())) if found else None


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
