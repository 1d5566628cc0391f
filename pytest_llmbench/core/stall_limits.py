"""What is known of a running job by its log, and of one that stands still. Records
only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path


class StallPosition(StrEnum):
    """Where in its run a job stands still."""

    START = "start"  # before the first step of a process: image, NCCL, compilation
    STEPS = "steps"
    END = "end"  # after its last step: its final save, or its teardown


@dataclass(frozen=True, slots=True)
class LogProgress:
    """What one look at the log of a running job shows, counted from its beginning."""

    path: Path | None = None  # None: none was found
    place: str = ""  # where one was looked for
    problem: str = ""  # why one that was found cannot be read
    steps: int = 0  # the lines that tell of a step
    marks: tuple[
        int, ...
    ] = ()  # another one with each line that shows that the run lives
    starting: bool = False  # whether a process started behind its last step
    # the slowest gap between two steps that the log itself tells, 0: it tells none
    slowest_seconds: float = 0.0
    taken_seconds: float = 0.0  # all of them together
    modified: datetime | None = None
    prints_late: bool = False  # this kind of log holds no step before the run ends


@dataclass(frozen=True, slots=True)
class Stall:
    """That a job stands still, or stood still when it ended."""

    place: StallPosition
    seconds: float  # since there was a sign of life
    done: int = 0  # the last step, and of how many (None: unknown)
    total: int | None = None
    log: str = ""  # its path, or where none was found
    found: bool = True  # whether there is a log
    cancelled: bool = False  # PYTEST cancels it for that


@dataclass(frozen=True, slots=True)
class StallLimits:
    """When a job that stands still is told, and whether it is cancelled at twice
    that."""

    tell_seconds: float | None = None  # None: by the gaps between its own steps
    cancels: bool = True
