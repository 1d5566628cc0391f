"""How a log says that it ended: Slurm's cause, a crash, a time-out."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_llmbench.models import Ending, Segment
from pytest_llmbench.parse.dropped import printable
from pytest_llmbench.parse.records import line_stop
from pytest_llmbench.parse.scan import REACH_BACK, Hit

SLURM = rb"error: \*\*\* (?:JOB|STEP) \S{1,99} (?:ON \S{1,99} )?CANCELLED "
CODES = {
    "time-limit": SLURM + rb".{0,99}DUE TO TIME LIMIT",
    "node-failure": SLURM + rb".{0,99}DUE TO NODE.FAIL|srun: error: Node failure on ",
    "out-of-memory": rb"srun: error: \S{1,99}: tasks? .{1,99}: Out Of Memory"
    rb"|slurmstepd\S{0,99}: error: .{0,99}(?:oom.kill|out-of-memory handler)"
    rb"|OutOfMemoryError: |XlaRuntimeError: RESOURCE_EXHAUSTED",
    "preempted": SLURM + rb".{0,99}DUE TO PREEMPTION|\bPreemption detected, saving checkpoint and exiting",
    "requeued": SLURM + rb".{0,99}DUE TO JOB REQUEUE",
    "cancelled": rb"error: \*\*\* JOB \S{1,99} (?:ON \S{1,99} )?CANCELLED ",
    "nccl-timeout": rb"Watchdog caught collective operation timeout",
    "segfault": rb"\bSegmentation fault\b",
    "task-failure": SLURM + rb".{0,99}DUE TO TASK FAILURE"
    rb"|srun: error: \S{1,99}: tasks? .{1,99}: (?:Exited with exit code|Aborted|Killed|Bus error)",
    "traceback": rb"Traceback \(most recent call last\)",
    "step-cancelled": SLURM,
}
"""What says so, the stronger cause first. A step without a reason is cancelled after a crash as well as by hand."""

NEEDLES = (
    b"CANCELLED ",
    b"srun: error: ",
    b"oom_kill",
    b"oom-kill",
    b"out-of-memory handler",
    b"OutOfMemoryError: ",
    b"RESOURCE_EXHAUSTED",
    b"Preemption detected",
    b"collective operation timeout",
    b"Segmentation fault",
    b"Traceback (most recent call last)",
)

_PATTERN = re.compile(b"|".join(b"(%b)" % pattern for pattern in CODES.values()))
_PLACES = {code: place for place, code in enumerate(CODES)}

LINE_LENGTH = 160
KEPT = 10_000


class Endings:
    """Collects the lines that say how a log ended: the latest KEPT of each code, so that no log fills the memory."""

    def __init__(self) -> None:
        self._found: dict[str, deque[Ending]] = {}

    def add(self, hit: Hit) -> None:
        """Take the line of a needle, if it says an ending."""
        begin = hit.text.rfind(b"\n", max(0, hit.start - REACH_BACK), hit.start) + 1 or max(0, hit.start - REACH_BACK)
        line = hit.text[begin : line_stop(hit.text, hit.start, hit.end)]
        codes = [match.lastindex or 0 for match in _PATTERN.finditer(line)]
        if codes:
            code = list(CODES)[min(codes) - 1]
            self._found.setdefault(code, deque(maxlen=KEPT)).append(
                Ending(code, printable(line, LINE_LENGTH), hit.line)
            )

    def result(self, from_line: int = 0) -> Ending | None:
        """Return the strongest ending from a line on, the first of its kind, or None."""
        late = (ending for kind in self._found.values() for ending in kind if ending.line >= from_line)
        ending = min(late, key=lambda each: (_PLACES[each.code], each.line), default=None)
        return replace(ending, code="cancelled") if ending and ending.code == "step-cancelled" else ending


def decisive_line(segments: Sequence[Segment], end_lines: Iterable[int]) -> int:
    """Return the line from which on an ending counts: what came before the last attempt ended is no ending of it.

    That is the end mark or last step of a finished attempt, and the first step of an unfinished one.
    """
    if not segments:
        return 0
    last = segments[-1]
    if not last.finished:
        return last.first_line
    return max((line for line in end_lines if line >= last.first_line), default=last.last_line)
