"""Exceptions of this package.

LlmbenchError
├── SettingsError    an option or ini value that cannot be used
├── BaselineError    a baseline file that cannot be trusted
├── LogError         a log or folder that cannot be read
├── RecordError      a baseline that cannot be written
├── ReportError      a report that cannot be read
├── LaunchError      a job or cluster file that cannot be used
└── HistoryError     a history that cannot be read or written
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class LlmbenchError(Exception):
    """A problem that the user can fix.

    The message contains the place, the problem and the remedy.
    """


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
    """A job that cannot be launched or followed, or an unusable cluster file."""


class HistoryError(LlmbenchError):
    """A history that cannot be read or written."""


def describe_os_error(error: OSError) -> str:
    """Return the path, if known, and the system's message."""
    message = error.strerror or str(error)
    if error.filename is None:
        return message
    return f"{os.fsdecode(error.filename)}: {message}"


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest valid name, or ""."""
    nearest = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""
