"""Evaluations and saves between steps: which gaps are one, and how much longer one
takes than others of its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.codes import Observed
from pytest_llmbench.core.log_records import CheckpointAction, Checkpoints, PauseKind
from pytest_llmbench.core.robust import compute_median

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats, Integers

VARIES = 1.5  # a pause may take so many times as long as others of its kind
# and so many times as long as recorded ones, if most of the run's own are as long
MOST = 3.0

FEW = 2  # so many pauses of a kind do not show how long one usually is

KINDS = {
    PauseKind.EVALUATION: Observed.LONGEST_EVALUATION,
    PauseKind.SAVE: Observed.LONGEST_SAVE,
    PauseKind.REGULAR: Observed.LONGEST_REGULAR_PAUSE,
}

# steps: what is announced more often than that is data loading, or whatever runs at
# each step
SHORTEST_DISTANCE = 5
SHORTEST_PERIOD = (
    10  # steps: a gap that comes back sooner is data loading, and no pause
)
USUALLY = 0.75  # the share of distances that are short if steps are near to each other
ON_PERIOD = 0.9  # the share of its places at which a regular pause is
MOST_TRIED = 12  # periods for one gap, and gaps without a period


@dataclass(frozen=True, slots=True, eq=False)
class Pauses:
    """The gaps of a run in which evaluations or saves are announced, arrays of shape
    (n,)."""

    row: Integers  # of the step that follows
    kind: Integers  # of `PauseKind`, added up
    seconds: Floats
    printed: Floats  # the seconds that the log prints for its saves, NaN without any


def make_pauses(
    row: Integers,
    kind: Integers,
    seconds: Floats,
    line: Integers,
    checkpoints: Checkpoints,
) -> Pauses:
    """Return pauses with the durations that the log prints; `line` is that of each
    step."""
    printed = np.full(len(row), np.nan)
    saves = [
        record
        for record in checkpoints.records
        if record.action is CheckpointAction.SAVE
        and record.seconds is not None
        and not record.dispatched
    ]
    if saves and len(row):
        places = np.searchsorted(line[row], [save.line for save in saves])
        for place, save in zip(places.tolist(), saves, strict=True):
            if place < len(row) and save.line > line[row[place] - 1]:
                printed[place] = np.nansum([printed[place], save.seconds])
    return Pauses(row, kind, seconds, printed)


def observe(pauses: Pauses) -> Iterator[tuple[Observed, float]]:
    """Yield the longest pause of each kind, 0 without any, by a name of `Observed`."""
    for kind, name in KINDS.items():
        yield (
            name,
            float(max(pauses.seconds[pauses.kind == kind], default=0.0))
            if len(pauses.kind)
            else 0.0,
        )


def compute_excess(pauses: Pauses, recorded: Mapping[str, float]) -> Floats:
    """Return the seconds of each pause that neither others of its kind nor recorded
    ones explain.

    NaN for a pause that nothing can be compared with.
    """
    allowed = [_allow(pauses, place, recorded) for place in range(len(pauses.row))]
    excess: Floats = np.maximum(0.0, pauses.seconds - np.array(allowed, dtype=float))
    return excess


def _allow(pauses: Pauses, place: int, recorded: Mapping[str, float]) -> float:
    """Return how many seconds a pause may take, NaN if nothing is known of its kind."""
    kind = int(pauses.kind[place])
    others = np.delete(pauses.seconds, place)[np.delete(pauses.kind, place) == kind]
    usual = VARIES * compute_median(others) if len(others) else np.nan
    known = _sum_recorded(kind, recorded)
    if known > 0:
        return float(np.clip(np.nan_to_num(usual), VARIES * known, MOST * known))
    if np.isnan(usual) and not np.isnan(pauses.printed[place]):
        return VARIES * float(pauses.printed[place])
    return usual


def is_usual_work(first: Integers, kinds: Integers) -> bool:
    """Tell whether evaluations or saves come back so often that they are work between
    steps, and no pauses."""
    return _are_dense(first[kinds > 0], SHORTEST_DISTANCE)


def _are_dense(steps: Integers, distance: int) -> bool:
    """Tell whether steps are usually nearer to each other than a distance."""
    return len(steps) > FEW and float(np.quantile(np.diff(steps), USUALLY)) < distance


def _sum_recorded(kind: int, recorded: Mapping[str, float]) -> float:
    return sum(recorded.get(name, 0.0) for part, name in KINDS.items() if kind & part)


def find_new(pauses: Pauses, recorded: Mapping[str, float]) -> Flags:
    """Return the pauses of kinds that recorded runs did not have.

    Without a recording those of kinds that are rare, or that nothing announces.
    """
    is_recorded = Observed.LONGEST_SAVE in recorded
    kinds: list[int] = pauses.kind.tolist()
    new = {
        kind
        for kind, count in Counter(kinds).items()
        if not _sum_recorded(kind, recorded)
        and (is_recorded or count <= FEW or kind == PauseKind.REGULAR)
    }
    return np.array([kind in new for kind in kinds], dtype=np.bool_)


def find_regular(first: Integers, last: Integers, gaps: Flags, likely: Flags) -> Flags:
    """Return the gaps that come back after every so many steps, from the beginning to
    the end of a run.

    `first` and `last` are the steps of each interval between two stamps, in order;
    `likely` holds the intervals that count as a gap where one is due.
    """
    regular = np.zeros(len(gaps), dtype=np.bool_)
    if 2 * np.count_nonzero(gaps) > len(gaps) or _are_dense(
        first[gaps], SHORTEST_PERIOD
    ):
        return regular
    tried = 0
    for place in np.flatnonzero(gaps).tolist():
        if regular[place]:
            continue
        due = _find_period(place, first, last, gaps, likely)
        regular[due[gaps[due]]] = True
        tried += not len(due)
        if tried > MOST_TRIED:
            break
    return regular


def _find_period(
    place: int, first: Integers, last: Integers, gaps: Flags, likely: Flags
) -> Integers:
    """Return the intervals at which the gap at `place` comes back, none if it does
    not."""
    later = np.flatnonzero(gaps[place + 1 :])[:MOST_TRIED] + place + 1
    for other in later.tolist():
        period = int(first[other] - first[place])
        early = first[place] - first[0] > period
        if early or period < SHORTEST_PERIOD:
            continue
        due = np.searchsorted(last, np.arange(first[place], last[-1] + 1, period))
        aligned = first[place] - period in (
            0,
            1,
        )  # after the first `period` steps, of numbers from 0 or 1
        if np.mean(likely[due]) >= ON_PERIOD and (len(due) > FEW or aligned):
            found: Integers = due[likely[due]]
            return found
    return np.zeros(0, dtype=np.int64)
