"""Times in the names of the folders above a log.

A time without a zone is local time of the reading machine, since launchers write local
time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from pytest_llmbench.core.run_records import Clock, StartCandidate

# Epoch seconds of the years 2014 to 2033, optionally with milliseconds or nanoseconds.
_EPOCH = re.compile(r"(?<!\d)(1[4-9]\d{8})(\d{9}|\d{3})?(?!\d)")
_DATE_AND_TIME = (
    re.compile(
        r"(?<!\d)(20\d\d)[-_.]?(\d\d)[-_.]?(\d\d)[-_T ](\d\d)[-:_.h]?(\d\d)[-:_.m]?(\d\d)(?:\.\d+)?(Z|UTC)?(?!\d)"
    ),
    re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(\d\d)(?:(\d\d)(\d\d)?)?(Z|UTC)?(?!\d)"),
)
_DAY = re.compile(r"(?<!\d)(20\d\d)([-_.]?)(\d\d)\2(\d\d)(?!\d)")


def read_start(experiment: Sequence[str]) -> StartCandidate | None:
    """Return the time in the innermost folder name of a run that contains one."""
    return _read_innermost(Clock.FOLDER_NAME, experiment, read_stamp)


def read_filing_date(folders: Sequence[str]) -> StartCandidate | None:
    """Return the time or day in the innermost folder name that contains one.

    Weaker than a timestamp in the log: the log may have been moved there long after the
    run.
    """
    return _read_innermost(Clock.FOLDER_ABOVE, folders, _read_date)


def _read_innermost(
    clock: Clock, folders: Sequence[str], read: Callable[[str], datetime | None]
) -> StartCandidate | None:
    """Return the start candidate of the innermost folder with a date, or None."""
    dates = ((read(name), name) for name in reversed(folders))
    return next(
        (
            StartCandidate(clock, date, f"the name of folder {name}", _is_zoned(name))
            for date, name in dates
            if date
        ),
        None,
    )


def read_stamp(name: str) -> datetime | None:
    """Return the time in a name, in UTC, or None.

    Reads epoch seconds, milliseconds or nanoseconds, or a date with a time. Digits
    without separators need at least the hour (`YYYYMMDDHH`); `YYYYMMDD` is only a day.
    """
    text = _read_text(name)
    return _parse_timestamp(text) if isinstance(text, str) else text


def _is_zoned(name: str) -> bool:
    """True if the time in a name is in epoch seconds or has a zone."""
    text = _read_text(name)
    return isinstance(text, datetime) or (text or "").endswith("Z")


@lru_cache(1024)
def _read_text(name: str) -> datetime | str | None:
    """Return the time in a name, or None.

    Dates are returned as text, because the result is cached and the local zone may
    change.
    """
    if match := _EPOCH.search(name):
        return datetime.fromtimestamp(int(match[1]), UTC) + timedelta(
            microseconds=int((match[2] or "").ljust(9, "0")) // 1000
        )
    if match := next(
        filter(None, (pattern.search(name) for pattern in _DATE_AND_TIME)), None
    ):
        year, month, day, hour, minute, second, zone = match.groups()
        return f"{year}-{month}-{day}T{hour}:{minute or '00'}:{second or '00'}{'Z' if zone else ''}"
    return None


def _read_date(name: str) -> datetime | None:
    return read_stamp(name) or _parse_timestamp(_read_day(name))


@lru_cache(1024)
def _read_day(name: str) -> str:
    match = _DAY.search(name)
    return f"{match[1]}-{match[3]}-{match[4]}" if match else ""


def _parse_timestamp(text: str) -> datetime | None:
    if "T24" in text:  # Python 3.14 reads it as the following midnight
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None
