"""The last step of a log that is still growing, from its end alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pytest_llmbench.models import RegexDialect
from pytest_llmbench.parse.read import parse_blocks

TAIL_BYTES = 64 * 1024


class LastStep(NamedTuple):
    """How far a run is: steps done, of how many (None: the end of the log does not say), seconds that one takes."""

    done: int
    total: int | None
    seconds: float


def last_step(path: Path, extra: Iterable[RegexDialect] = ()) -> LastStep | None:
    """Return the last step in the last 64 KiB of a log; None where there is none, or no log.

    `extra` are the dialects that baseline files define for it. A step is counted from the first one of the run: NeMo's
    `global_step: 22` is the 23rd. Its time is the median of the last five, of those that a step can take.
    """
    import numpy as np

    extra = tuple(extra)
    segments = parse_blocks([_tail(path)], extra).read_as(*(one.name for one in extra)).segments
    if not segments:
        return None
    steps = segments[-1].steps
    recent = steps.seconds[-5:]
    possible = recent[np.isfinite(recent) & (recent > 0)]
    if not len(possible):
        return None
    done = int(steps.index[-1]) + 1 - segments[-1].first_step
    total = segments[-1].total_steps
    return LastStep(done, total if total is None or total >= done else None, float(np.median(possible)))


def _tail(path: Path) -> bytes:
    """Return the end of a file; nothing where it cannot be read: a log that is not there yet is no error."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except OSError:
        return b""
