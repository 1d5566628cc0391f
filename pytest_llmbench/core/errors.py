"""Everything this project raises on purpose.

LlmbenchError ├── SettingsError    an option or ini value that cannot be used ├──
BaselineError    a baseline file that cannot be trusted (file, line, found, expected)
├── LogError         a log or folder that cannot be read ├── RecordError      a baseline
that cannot be written ├── ReportError      a report that cannot be read ├── LaunchError
a job that cannot be launched or followed, a cluster file that cannot be used └──
HistoryError     a history that cannot be read or written
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class LlmbenchError(Exception):
    """A problem that a user can fix; the message says where, what and what to do
    next."""


class SettingsError(LlmbenchError):
    """An option or ini value that cannot be used."""


class BaselineError(LlmbenchError):
    """A baseline file that cannot be trusted."""


class LogError(LlmbenchError):
    """A log or folder that cannot be read."""


class RecordError(LlmbenchError):
    """A baseline that cannot be written."""


class ReportError(LlmbenchError):
    """A report that cannot be read."""


class LaunchError(LlmbenchError):
    """A job that cannot be launched or followed, or a cluster file that cannot be
    used."""


class HistoryError(LlmbenchError):
    """A history that cannot be read or written."""


def describe_os_error(error: OSError) -> str:
    """Return which file or folder it was, where that is known, and the system's own
    words."""
    words = error.strerror or str(error)
    return (
        words if error.filename is None else f"{os.fsdecode(error.filename)}: {words}"
    )


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest valid name, or an empty
    string."""
    nearest = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""
