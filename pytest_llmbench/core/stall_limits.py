"""Records of the progress and the stalls of running jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path


class StallPosition(StrEnum):
    """The phase of a run in which a job hangs."""

    START = "start"  # before the first step of a process: image, NCCL, compilation
    STEPS = "steps"
    END = "end"  # after the last step: final save or teardown


class LogProgress(Struct, frozen=True):
    """The progress that the log of a running job showed when it was last read."""

    path: Path | None = None  # None: no log was found
    place: str = ""  # the path that was searched
    problem: str = ""  # the error for a log that cannot be read
    steps: int = 0  # the number of lines with a step
    marks: tuple[int, ...] = ()  # changes with every line that proves progress
    starting: bool = False  # True if a process started after the last step
    # the slowest gap between two steps according to the log; 0: unknown
    slowest_seconds: float = 0.0
    taken_seconds: float = 0.0  # the sum of these gaps
    modified: datetime | None = None
    prints_late: bool = False  # True if this log format prints steps only at the end


class Stall(Struct, frozen=True):
    """A job that hangs, or hung when it ended."""

    place: StallPosition
    seconds: float  # since the last progress
    done: int = 0  # the last step
    total: int | None = None  # the total number of steps; None: unknown
    log: str = ""  # the path of the log, or the path that was searched
    found: bool = True  # True if there is a log
    cancelled: bool = False  # True if PYTEST cancels the job for this reason


class StallLimits(Struct, frozen=True):
    """The limits for warning about a hanging job and for cancelling it.

    A job is cancelled after twice the time of the warning.
    """

    tell_seconds: float | None = None  # None: based on the job's step times
    cancels: bool = True
