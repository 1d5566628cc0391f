"""Find overdue configurations: they ran regularly, but not in the latest session."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from operator import attrgetter

from msgspec import Struct

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.outcome_records import Silence

# runs that start within this time after a session's first run belong to that session
SAME_SESSION = timedelta(hours=12)
RHYTHM_SESSIONS = 5  # number of sessions that determine the rhythm
MIN_SESSIONS = 3  # two sessions have a single gap, which shows no regularity
# A configuration is due once other configurations have run this many gaps after its
# last run, but not more than SAME_SESSION before its full gap.
DUE_GAPS = 0.75
RETIRED_GAPS = 14  # a configuration without a run for this many gaps is retired


class Rhythm(Struct, frozen=True):
    """Regularity of a configuration's runs."""

    last: datetime  # start of its last session
    gap: timedelta  # second longest of its last gaps


def find_rhythm(starts: Iterable[datetime]) -> Rhythm | None:
    """Return the rhythm of a configuration from the starts of its runs.

    None if there are too few sessions.
    """
    sessions: list[datetime] = []
    for start in _select_last(sorted(starts)):
        if not sessions or start - sessions[-1] >= SAME_SESSION:
            sessions.append(start)
    sessions = sessions[-RHYTHM_SESSIONS:]
    if len(sessions) < MIN_SESSIONS:
        return None
    gaps = sorted(later - earlier for earlier, later in pairwise(sessions))
    # the longest gap of a daily rhythm may be a weekend or a holiday
    second_longest = gaps[-2]
    return Rhythm(last=sessions[-1], gap=second_longest)


def _select_last(starts: Sequence[datetime]) -> Sequence[datetime]:
    """Return the last sorted starts, with at least RHYTHM_SESSIONS sessions, or all.

    A start at least SAME_SESSION after the previous start always begins a session.
    """
    sessions = 0
    for index in range(len(starts) - 1, 0, -1):
        sessions += starts[index] - starts[index - 1] >= SAME_SESSION
        if sessions == RHYTHM_SESSIONS:
            return starts[index:]
    return starts


def find_silences(
    starts: Mapping[Key, Iterable[datetime]], now: datetime
) -> tuple[Silence, ...]:
    """Find configurations that did not run although others of similar rhythm did.

    A configuration is not reported while all others pause as well, as on a weekend.
    """
    rhythm_by_key = {key: find_rhythm(key_starts) for key, key_starts in starts.items()}
    rhythms = {
        key: rhythm for key, rhythm in rhythm_by_key.items() if rhythm is not None
    }
    by_gap = sorted(rhythms.values(), key=attrgetter("gap"))
    gaps = [rhythm.gap for rhythm in by_gap]
    latest_runs = list(accumulate((rhythm.last for rhythm in by_gap), max))
    silences = []
    for key, rhythm in rhythms.items():
        # the latest run of any configuration with a similar rhythm, itself included
        latest = latest_runs[bisect_right(gaps, 2 * rhythm.gap) - 1]
        missed = latest - rhythm.last
        due = max(DUE_GAPS * rhythm.gap, rhythm.gap - SAME_SESSION)
        is_gap_over = now - rhythm.last >= rhythm.gap
        if is_gap_over and due <= missed <= RETIRED_GAPS * rhythm.gap:
            silences.append(Silence(key, rhythm.last, latest))
    return tuple(silences)
