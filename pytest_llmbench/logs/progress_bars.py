"""Progress bars of tqdm, as the Hugging Face Trainer draws them.

` 61%|██████    | 61/100 [02:00<01:16, 1.97s/it]`
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.scan import REACH_BACK, Hit
from pytest_llmbench.logs.step_records import NAN, RecordOrigin, StepRecord

BEGIN = b"[00:00<?, ?it/s]"
"""Text of a bar when it is first drawn, and in no other drawing."""

# "| 61/100 [02:00<": steps done, total, then hours, minutes and seconds
BAR = compile_on_use(
    rb"\| *(\d{1,15})/(\d{1,15}) \[(?=\d)(?:(?:(\d{1,6}):)?(\d\d):(\d\d)<)?"
)
NOTHING_DONE = compile_on_use(rb"\| *0/(\d{1,15}) \Z")


class Bar(NamedTuple):
    """One drawing of a bar: steps done, total steps, and elapsed seconds.

    `seconds` is whole seconds, or NaN if not shown.
    """

    done: int
    total: int
    seconds: float


def list_bars(text: bytes) -> list[Bar]:
    """Return all drawings of bars in a text, in order."""
    return [_build_bar(match) for match in BAR.finditer(text)]


def read_beginning(hit: Hit) -> StepRecord | None:
    """Read the first drawing with completed steps of the bar that begins at a hit.

    Returns None if no step was completed. The record has no time and mean_of 0. Its `bar`
    contains the steps done at this drawing and at the next (0 if there is none).
    """
    empty_bar = NOTHING_DONE.search(hit.text, max(0, hit.start - REACH_BACK), hit.start)
    if empty_bar is None:
        return None
    total = int(empty_bar[1])
    drawings = [
        bar for bar in list_bars(hit.text[hit.start : hit.end]) if bar.total == total
    ]
    # Drawings from the next empty one on belong to another bar.
    restart = next(
        (index for index, bar in enumerate(drawings) if bar.done == 0), len(drawings)
    )
    if restart == 0:
        return None
    first, *later_drawings = drawings[:restart]
    following = next((bar.done for bar in later_drawings if bar.done > first.done), 0)
    origin = RecordOrigin(hit.offset, hit.line, "")
    return StepRecord(
        origin,
        first.done,
        NAN,
        0.0,
        total,
        mean_of=0,
        stamp=first.seconds,
        bar=(first.done, following),
    )


def _build_bar(match: re.Match[bytes]) -> Bar:
    """Convert a match of BAR; the elapsed time `1:02:03` becomes seconds."""
    done, total, hours, minutes, seconds = match.groups()
    if seconds is None:
        return Bar(int(done), int(total), NAN)
    elapsed = (int(hours or 0) * 60 + int(minutes)) * 60.0 + int(seconds)
    return Bar(int(done), int(total), elapsed)
