"""Times in the names of the folders above a log.

A time without a zone is local time of the reading machine, since launchers write local
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.run_records import Clock, StartCandidate

# Epoch seconds of the years 2014 to 2033, optionally with milliseconds or nanoseconds.
_EPOCH = compile_on_use(r"(?<!\d)(1[4-9]\d{8})(\d{9}|\d{3})?(?!\d)")
_DATE_AND_TIME = (
    # `2026-03-02_03-12-45`, `20260302T031245Z`
    compile_on_use(
        r"(?<!\d)(20\d\d)[-_.]?(\d\d)[-_.]?(\d\d)[-_T ](\d\d)[-:_.h]?(\d\d)[-:_.m]?(\d\d)(?:\.\d+)?(Z|UTC)?(?!\d)"
    ),
    # `2026030203`, `20260302031245`
    compile_on_use(
        r"(?<!\d)(20\d\d)(\d\d)(\d\d)(\d\d)(?:(\d\d)(\d\d)?)?(Z|UTC)?(?!\d)"
    ),
)
_DAY = compile_on_use(r"(?<!\d)(20\d\d)([-_.]?)(\d\d)\2(\d\d)(?!\d)")


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
    for name in reversed(folders):
        time = read(name)
        if time:
            return StartCandidate(clock, time, _describe_folder(name), _is_zoned(name))
    return None


@lru_cache(1024)
def _describe_folder(name: str) -> str:
    """Return the source of a time in a folder name.

    Cached, since a run often has two times from one name: they share the text.
    """
    return f"the name of folder {name}"


def read_stamp(name: str) -> datetime | None:
    """Return the time in a name, in UTC, or None.

    Reads epoch seconds, milliseconds or nanoseconds, or a date with a time. Digits
    without separators need at least the hour (`YYYYMMDDHH`); `YYYYMMDD` is only a day.
    """
    time = _read_time(name)
    return _parse_timestamp(time) if isinstance(time, str) else time


def _is_zoned(name: str) -> bool:
    """True if the time in a name is in epoch seconds or has a zone."""
    time = _read_time(name)
    if isinstance(time, str):
        return time.endswith("Z")
    return time is not None


@lru_cache(1024)
def _read_time(name: str) -> datetime | str | None:
    """Return the time in a name, or None.

    Epoch times are returned as datetime, dates as text (`2026-03-02T03:12:00`), because
    the result is cached and the local zone may change.
    """
    epoch_match = _EPOCH.search(name)
    if epoch_match:
        seconds, fraction = epoch_match.groups()  # the fraction has 0, 3 or 9 digits
        nanoseconds = int((fraction or "").ljust(9, "0"))
        return datetime.fromtimestamp(int(seconds), UTC) + timedelta(
            microseconds=nanoseconds // 1000
        )
    for pattern in _DATE_AND_TIME:
        match = pattern.search(name)
        if match:
            year, month, day, hour, minute, second, zone = match.groups()
            clock_time = f"{hour}:{minute or '00'}:{second or '00'}"
            return f"{year}-{month}-{day}T{clock_time}{'Z' if zone else ''}"
    return None


def _read_date(name: str) -> datetime | None:
    """Return the time in a name, or the midnight of a day, or None."""
    return read_stamp(name) or _parse_timestamp(_read_day(name))


@lru_cache(1024)
def _read_day(name: str) -> str:
    """Return the day in a name as `YYYY-MM-DD`, or ""."""
    match = _DAY.search(name)
    return f"{match[1]}-{match[3]}-{match[4]}" if match else ""


def _parse_timestamp(text: str) -> datetime | None:
    """Convert a time to UTC; None if it is "" or invalid."""
    if "T24" in text:  # Python 3.14 reads it as the following midnight
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None
