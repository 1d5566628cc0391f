"""Progress bars of tqdm, as Trainer draws them: ` 61%|██████    | 61/100 [02:00<01:16,
1.97s/it]`."""

from __future__ import annotations

import re
from typing import NamedTuple

from pytest_llmbench.logs.scan import REACH_BACK, Hit
from pytest_llmbench.logs.step_records import NAN, RecordOrigin, StepRecord

BEGIN = b"[00:00<?, ?it/s]"
"""In each bar when it is drawn first, and nowhere else."""

BAR = re.compile(
    rb"\| *(\d{1,15})/(\d{1,15}) \[(?=\d)(?:(?:(\d{1,6}):)?(\d\d):(\d\d)<)?"
)
NOTHING_DONE = re.compile(rb"\| *0/(\d{1,15}) \Z")


class Bar(NamedTuple):
    """One drawing of a bar: steps done, of how many, and the whole seconds since it
    began (NaN if not shown)."""

    done: int
    total: int
    seconds: float


def list_bars(text: bytes) -> list[Bar]:
    """List the bars in a text."""
    return [_build_bar(match) for match in BAR.finditer(text)]


def read_beginning(hit: Hit) -> StepRecord | None:
    """Return how the bar goes on that begins at a marker BEGIN: the next drawing with
    steps; None without any.

    The record has no time and mean_of 0; `bar` holds the steps done at that drawing and
    at the one after it (0: none).
    """
    begun = NOTHING_DONE.search(hit.text, max(0, hit.start - REACH_BACK), hit.start)
    if begun is None:
        return None
    total = int(begun[1])
    drawn = [
        bar for bar in list_bars(hit.text[hit.start : hit.end]) if bar.total == total
    ]
    again = next(
        (place for place, bar in enumerate(drawn) if bar.done == 0), len(drawn)
    )
    if again == 0:
        return None
    first = drawn[0]
    following = next((bar.done for bar in drawn[1:again] if bar.done > first.done), 0)
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
    if match[5] is None:
        return Bar(int(match[1]), int(match[2]), NAN)
    return Bar(
        int(match[1]),
        int(match[2]),
        (int(match[3] or 0) * 60 + int(match[4])) * 60.0 + int(match[5]),
    )
