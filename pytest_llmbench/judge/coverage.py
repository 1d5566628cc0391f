"""Which acknowledgement covers which change: no more of them than what was accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta

from pytest_llmbench.judge.changes import Step
from pytest_llmbench.models import Acknowledgement, Nights

PLACED = timedelta(days=7)
"""An acknowledgement may name a day so far from that of the change: noise decides which night is found."""

UNCERTAIN = 0.5
"""A drift of which hardly anything is known is still no other one than twice as much as was accepted."""


def covered(
    kind: str,
    found: Sequence[Step],
    nights: Nights,
    acknowledged: Sequence[Acknowledgement],
    today: date,
) -> list[Acknowledgement | None]:
    """Return for each change, oldest first, the acknowledgement that covers it; None for one that nobody accepted.

    An acknowledgement covers changes of its direction that are found near its day, and together, with what went the
    other way between them, are not shown to be larger than it. Of several that could, one that has not expired
    (`today`) comes first, then the one whose day is nearest.
    """
    spent: list[list[Step]] = [[] for _ in acknowledged]
    chosen: list[Acknowledgement | None] = []
    for step in found:
        near = [place for place, entry in enumerate(acknowledged) if _is_near(entry, kind, step, nights)]
        fits = [place for place in near if _is_enough(acknowledged[place], [*spent[place], step])]

        def order(place: int, began: datetime = nights[step.position].started) -> tuple[bool, timedelta]:
            entry = acknowledged[place]
            return today > entry.expires, abs(entry.since - began.date())

        best = min(fits, key=order, default=None)
        chosen.append(None if best is None else acknowledged[best])
        for place in near:
            if place == best or (spent[place] and step.difference * acknowledged[place].fraction < 0):
                spent[place].append(step)
    return chosen


def _is_near(entry: Acknowledgement, kind: str, one: Step, nights: Nights) -> bool:
    last = nights[-1] if kind == "drift" else nights[one.position]
    first = nights[max(one.position - 1, 0)]
    return first.started.date() - PLACED <= entry.since <= last.started.date() + PLACED


def _is_enough(entry: Acknowledgement, changes: Sequence[Step]) -> bool:
    """Whether the last of these changes is of the direction of an acknowledgement, and their sum not beyond it: not
    shown to be larger, and, however uncertain it is, not larger by more than UNCERTAIN of it."""
    way = math.copysign(1.0, entry.fraction)
    accepted, total = abs(math.log1p(entry.fraction)), way * sum(one.difference for one in changes)
    half = math.hypot(*(one.difference - one.low for one in changes))
    return way * changes[-1].difference > 0 and total - min(half, UNCERTAIN * accepted) <= accepted
