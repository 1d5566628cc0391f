"""Lines besides the steps that show whether a run trains: validation losses without a
number, and skipped updates."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from pytest_llmbench.core.log_records import Segment, Steps
from pytest_llmbench.logs.recognisers import (
    BAD_VALIDATIONS,
    SKIPPED_UPDATES,
    SkippedUpdate,
)
from pytest_llmbench.logs.scan import REACH_BACK, Hit
from pytest_llmbench.logs.step_records import find_line_stop

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers

MARKERS = (*BAD_VALIDATIONS.markers, *SKIPPED_UPDATES.markers)

# Bytes before a text beside a step that its pattern may look at.
BEFORE = 300

# In the line of a step, or shortly before it, by a text that stands in it: counts since
# the run began of DeepSpeed and InternEvo, and the single updates of MindFormers.
BESIDE_STEPS = {
    b"skipped=": re.compile(
        rb"step=\d{1,12}, skipped=(?P<count>\d{1,12}), lr=(?:\[{1,2}(?P<rates>[\d.e, +-]{1,200})\])?"
    ),
    b"skip_batches=": re.compile(rb"inf_nan_skip_batches=(?P<count>\d{1,12})(?!\d)"),
    b"overflow cond: True": re.compile(rb"overflow cond: True\b"),
}


_Row = TypeVar("_Row")


class SkipCount(NamedTuple):
    """How many updates were skipped up to a line, and the largest learning rate that it
    prints."""

    line: int
    total: int
    rate: float = math.nan


class TrainingLines:
    """The lines of one log, in its order."""

    def __init__(self) -> None:
        self._bad_validations: list[int] = []
        self._counts: list[SkipCount] = []
        self._count_lines: list[int] = []
        self._skips: list[int] = []
        self._rank: bytes | None = None
        self._last_scale = b""

    def add(self, hit: Hit) -> None:
        """Add the line of a marker, if it shows that an update or a validation
        failed."""
        for _, update in SKIPPED_UPDATES.read(hit):
            self._add_skip(hit.line, update)
        if any(BAD_VALIDATIONS.read(hit)):
            self._bad_validations.append(hit.line)

    def add_beside_step(self, hit: Hit) -> None:
        """Add what stands in the line of a step, or shortly before it."""
        begin, end = (
            max(0, hit.start - REACH_BACK),
            find_line_stop(hit.text, hit.start, hit.end),
        )
        for text, pattern in BESIDE_STEPS.items():
            place = hit.text.rfind(text, begin, end)
            matches = (
                list(pattern.finditer(hit.text, max(begin, place - BEFORE), end))
                if place >= 0
                else []
            )
            if not matches:
                continue
            match = matches[-1]
            if "count" in pattern.groupindex:
                rates = match["rates"] if "rates" in pattern.groupindex else None
                self._counts.append(
                    SkipCount(
                        hit.line, int(match["count"]), _read_largest(rates or b"")
                    )
                )
            elif hit.text.find(b"\n", match.start(), hit.start) < 0 and self._skips[
                -1:
            ] != [hit.line]:
                self._skips.append(hit.line)

    def add_to_segments(
        self, segments: Sequence[Segment], bad_validations: Sequence[int] = ()
    ) -> tuple[Segment, ...]:
        """Return segments with what the lines behind the one before show of each, to
        the first of the next one.

        `bad_validations` are lines of records that print a validation loss that is NaN
        or infinite.
        """
        self._skips.sort()
        self._counts.sort(key=attrgetter("line"))
        self._count_lines = [each.line for each in self._counts]
        lines = sorted({*self._bad_validations, *bad_validations})
        if not (lines or self._counts or self._skips):
            return tuple(segments)
        begins = [0, *(segment.last_line for segment in segments[:-1])]
        ends = [*(segment.first_line for segment in segments[1:]), None]
        return tuple(
            self._add_to(segment, begin, end, lines)
            for segment, begin, end in zip(segments, begins, ends, strict=True)
        )

    def _add_to(
        self, segment: Segment, begin: int, end: int | None, lines: Sequence[int]
    ) -> Segment:
        first = segment.progress[0].line if segment.progress else segment.first_line
        place = bisect_left(lines, first)
        bad = (
            lines[place]
            if place < len(lines) and (end is None or lines[place] < end)
            else 0
        )
        steps = segment.steps
        if len(steps) and (self._counts or self._skips):
            counts = _cut_between(self._counts, self._count_lines, begin, end)
            skips = _cut_between(self._skips, self._skips, begin, end)
            if counts or skips:
                # Records may count them, too: GPT-NeoX, below those of DeepSpeed.
                skipped = np.fmax(
                    steps.skipped_steps, _count_skipped(steps, counts, skips)
                )
                steps = replace(steps, skipped_steps=skipped)
            if counts and np.isnan(steps.learning_rate).all():
                steps = replace(steps, learning_rate=_place_rates(steps, counts))
        return replace(segment, steps=steps, bad_validation_line=bad)

    def _add_skip(self, line: int, update: SkippedUpdate) -> None:
        """Add a skipped update, once if every rank prints it."""
        if update.rank is not None:
            self._rank = self._rank or update.rank
            if update.rank != self._rank:
                return
        elif update.scale and update.scale == self._last_scale and update.halved:
            return  # no loss scale is reduced twice from the same value
        self._last_scale = update.scale
        self._skips.append(line)


def _cut_between(
    rows: Sequence[_Row], lines: Sequence[int], begin: int, end: int | None
) -> Sequence[_Row]:
    """Return the rows behind a line and before another one; `lines` are those of the
    rows, ascending."""
    return rows[
        bisect_right(lines, begin) : len(rows)
        if end is None
        else bisect_left(lines, end)
    ]


def _read_largest(rates: bytes) -> float:
    """Return the largest of some numbers, NaN without any."""
    try:
        return max(map(float, rates.split(b",")))
    except ValueError:
        return math.nan


def _place_rates(steps: Steps, counts: Sequence[SkipCount]) -> Floats:
    """Return the learning rate that is printed with each step, NaN where none is."""
    rates = np.full(len(steps), math.nan)
    rows = np.searchsorted(steps.line, [each.line for each in counts]).clip(
        max=len(steps) - 1
    )
    rates[rows] = [each.rate for each in counts]
    return rates


def _count_skipped(
    steps: Steps, counts: Sequence[SkipCount], skips: Sequence[int]
) -> Floats:
    """Return how many updates were skipped since the line before, for each step; counts
    rather than single lines."""
    most: Integers = steps.mean_of
    if not counts:
        rows = np.searchsorted(steps.line, skips).clip(max=len(steps) - 1)
        return np.minimum(np.bincount(rows, minlength=len(steps)), most).astype(float)
    rows = np.searchsorted(steps.line, [each.line for each in counts]).clip(
        max=len(steps) - 1
    )
    totals = np.zeros(len(steps))
    np.maximum.at(totals, rows, [each.total for each in counts])
    since_start = np.maximum.accumulate(totals)
    return np.minimum(np.diff(since_start, prepend=0.0), most)
