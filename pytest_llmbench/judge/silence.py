"""Configurations that missed their turn: they ran regularly, and others that do so have
run since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.outcome_records import Silence

TURN = timedelta(
    hours=12
)  # runs that start within it after another belong to the same night
LAST = 5  # turns that show the rhythm
FEWEST = 3  # of two turns nobody can tell whether they are regular
# From so many gaps after its last run on a run of another configuration shows that its
# turn was due, and not earlier than a TURN before its own.
SINCE = 0.75
MOST = 14  # gaps without a run from which on a configuration is no longer run


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How regularly a configuration runs."""

    last: datetime  # the beginning of its last turn
    gap: timedelta  # the longest of its last gaps but one


def find_rhythm(starts: Iterable[datetime]) -> Rhythm | None:
    """Return the rhythm of a configuration from the starts of its runs; None if they
    are too few to show one."""
    turns: list[datetime] = []
    for start in sorted(starts):
        if not turns or start - turns[-1] >= TURN:
            turns.append(start)
    turns = turns[-LAST:]
    if len(turns) < FEWEST:
        return None
    gaps = sorted(later - earlier for earlier, later in pairwise(turns))
    return Rhythm(
        turns[-1], gaps[-2]
    )  # a weekend or a holiday makes one gap of a daily rhythm long


def find_silences(
    starts: Mapping[Key, Iterable[datetime]], now: datetime
) -> tuple[Silence, ...]:
    """Return the configurations that missed their turn while others of a like rhythm
    had theirs.

    If none has run since, nobody ran anything (a weekend), and no configuration missed
    its turn.
    """
    found = {key: find_rhythm(of_key) for key, of_key in starts.items()}
    rhythms = {key: rhythm for key, rhythm in found.items() if rhythm is not None}
    silences = []
    for key, rhythm in rhythms.items():
        others = [
            other.last for other in rhythms.values() if other.gap <= 2 * rhythm.gap
        ]
        since = max(others) - rhythm.last
        due = max(SINCE * rhythm.gap, rhythm.gap - TURN)
        if now - rhythm.last >= rhythm.gap and due <= since <= MOST * rhythm.gap:
            silences.append(Silence(key, rhythm.last, max(others)))
    return tuple(silences)
