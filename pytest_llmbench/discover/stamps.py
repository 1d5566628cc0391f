"""Times that folder names carry.

A stamp without a zone is local time of the machine that reads it, as the launchers write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

_EPOCH = re.compile(r"(?<!\d)(1[4-9]\d{8})(\d{9}|\d{3})?(?!\d)")
"""Seconds of the years 2014 to 2033, with milliseconds or nanoseconds."""
_WRITTEN = (
    re.compile(
        r"(?<!\d)(20\d\d)[-_.]?(\d\d)[-_.]?(\d\d)[-_T ](\d\d)[-:_.h]?(\d\d)[-:_.m]?(\d\d)(?:\.\d+)?(Z|UTC)?(?!\d)"
    ),
    re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(\d\d)(?:(\d\d)(\d\d)?)?(Z|UTC)?(?!\d)"),
)
_DAY = re.compile(r"(?<!\d)(20\d\d)([-_.]?)(\d\d)\2(\d\d)(?!\d)")


def started_by_name(experiment: Sequence[str]) -> tuple[datetime | None, str]:
    """Return the moment in the innermost name of a run's own folders that holds one, and which folder that is."""
    return _innermost((name, stamp(name)) for name in experiment)


def dated_by_name(folders: Sequence[str]) -> tuple[datetime | None, str]:
    """Return the moment or day in the innermost folder name that holds one, and which folder that is.

    That is weaker than a log's own time stamp: somebody may have filed the log there long after the run.
    """
    return _innermost((name, stamp(name) or _day(name)) for name in folders)


def stamp(name: str) -> datetime | None:
    """Return the moment that a name holds, in UTC: epoch seconds, milliseconds or nanoseconds, or a date with a time.

    Digits without separators are a moment from `YYYYMMDDHH` on; `YYYYMMDD` is a day.
    """
    if found := _EPOCH.search(name):
        return datetime.fromtimestamp(int(found[1]), UTC) + timedelta(
            microseconds=int((found[2] or "").ljust(9, "0")) // 1000
        )
    if found := next(filter(None, (pattern.search(name) for pattern in _WRITTEN)), None):
        year, month, day, hour, minute, second, zone = found.groups()
        return _moment(f"{year}-{month}-{day}T{hour}:{minute or '00'}:{second or '00'}{'Z' if zone else ''}")
    return None


def _innermost(dates: Iterable[tuple[str, datetime | None]]) -> tuple[datetime | None, str]:
    found = [(date, f"the name of folder {name}") for name, date in dates if date]
    return found[-1] if found else (None, "")


def _day(name: str) -> datetime | None:
    found = _DAY.search(name)
    return _moment(f"{found[1]}-{found[3]}-{found[4]}") if found else None


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
