"""Find the pauses of a run, and measure their excess.

A pause is a gap between steps that contains an evaluation or a save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from pytest_llmbench.core.codes import Observed
from pytest_llmbench.core.log_records import CheckpointAction, Checkpoints, PauseKind
from pytest_llmbench.core.robust import compute_median

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats, Integers

MOST_OTHERS = 1.5  # largest ratio of a pause to others of its kind
# largest ratio of a pause to recorded ones, if most pauses of the run are as long
MOST_RECORDED = 3.0

FEW = 2  # this many pauses of a kind do not show their usual length

KINDS = {
    PauseKind.EVALUATION: Observed.LONGEST_EVALUATION,
    PauseKind.SAVE: Observed.LONGEST_SAVE,
    PauseKind.REGULAR: Observed.LONGEST_REGULAR_PAUSE,
}

# steps: more frequent announcements are regular work, such as data loading
SHORTEST_DISTANCE = 5
SHORTEST_PERIOD = 10  # steps: gaps that recur sooner are data loading, not pauses
USUALLY = 0.75  # steps are dense if this share of their distances is short
ON_PERIOD = 0.9  # the share of due positions at which a regular pause occurs
MOST_TRIED = 12  # periods to try for each gap, and gaps without a period


class Pauses(Struct, frozen=True, eq=False):
    """The gaps of a run with evaluations or saves, arrays of shape (n,)."""

    row: Integers  # row of the step after the gap
    kind: Integers  # sum of `PauseKind` values
    seconds: Floats
    printed: Floats  # the seconds that the log prints for its saves, NaN if not printed


def make_pauses(
    row: Integers,
    kind: Integers,
    seconds: Floats,
    line: Integers,
    checkpoints: Checkpoints,
) -> Pauses:
    """Make pauses with the save durations that the log prints.

    `row` contains the index of the step that ends each pause (1 or more), `kind` its
    kinds (`PauseKind`), `seconds` its duration; `line` contains the line of each step.
    """
    printed = np.full(len(row), np.nan)
    saves = [
        record
        for record in checkpoints.records
        if record.action is CheckpointAction.SAVE
        and record.seconds is not None
        and not record.dispatched
    ]
    if saves and len(row):
        # the index of the first pause that ends at or after the line of each save
        indices = np.searchsorted(line[row], [save.line for save in saves])
        for index, save in zip(indices.tolist(), saves, strict=True):
            # the save must lie between the step before the pause and the step after it
            if index < len(row) and save.line > line[row[index] - 1]:
                printed[index] = np.nansum([printed[index], save.seconds])
    return Pauses(row=row, kind=kind, seconds=seconds, printed=printed)


def observe(pauses: Pauses) -> Iterator[tuple[Observed, float]]:
    """Yield the longest pause of each kind in seconds, 0 if there are none."""
    for kind, name in KINDS.items():
        longest = 0.0
        if len(pauses.kind):
            longest = float(max(pauses.seconds[pauses.kind == kind], default=0.0))
        yield name, longest


def compute_excess(pauses: Pauses, recorded: Mapping[str, float]) -> Floats:
    """Return the seconds by which each pause exceeds its limit.

    The limit follows from the other pauses of the same kind and from the recorded
    pauses. Shape (n,); NaN for a pause that cannot be compared.
    """
    allowed = [
        _compute_limit(pauses, index, recorded) for index in range(len(pauses.row))
    ]
    excess: Floats = np.maximum(0.0, pauses.seconds - np.array(allowed, dtype=float))
    return excess


def _compute_limit(pauses: Pauses, index: int, recorded: Mapping[str, float]) -> float:
    """Return the longest allowed duration of a pause in seconds, NaN if unknown."""
    kind = int(pauses.kind[index])
    is_same_kind = np.delete(pauses.kind, index) == kind
    others = np.delete(pauses.seconds, index)[is_same_kind]
    limit = MOST_OTHERS * compute_median(others) if len(others) else np.nan
    recorded_seconds = _sum_recorded(kind, recorded)
    if recorded_seconds > 0:
        least = MOST_OTHERS * recorded_seconds
        most = MOST_RECORDED * recorded_seconds
        # The run's other pauses set the limit, within bounds from the recorded pauses.
        return float(np.clip(np.nan_to_num(limit), least, most))
    if np.isnan(limit) and not np.isnan(pauses.printed[index]):
        return MOST_OTHERS * float(pauses.printed[index])
    return limit


def is_usual_work(first: Integers, kinds: Integers) -> bool:
    """True if evaluations or saves recur so often that they are regular work, not
    pauses."""
    return _are_dense(first[kinds > 0], SHORTEST_DISTANCE)


def _are_dense(steps: Integers, distance: int) -> bool:
    """True if most consecutive steps are closer than `distance`."""
    if len(steps) <= FEW:
        return False
    return float(np.quantile(np.diff(steps), USUALLY)) < distance


def _sum_recorded(kind: int, recorded: Mapping[str, float]) -> float:
    """Return the longest recorded pauses of the kinds in `kind`, in sum; 0 if none."""
    return sum(recorded.get(name, 0.0) for flag, name in KINDS.items() if kind & flag)


def find_new(pauses: Pauses, recorded: Mapping[str, float]) -> Flags:
    """Return a mask of the pauses of kinds that recorded runs did not have.

    If nothing was recorded, only rare kinds and unannounced regular gaps are new.
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
    """Return a mask of the gaps that recur periodically throughout a run.

    `first` and `last` are the first and the last step of each logging interval, in
    order. `likely` is a mask of the logging intervals that are long enough to count as
    a gap where the period predicts a gap.
    """
    regular = np.zeros(len(gaps), dtype=np.bool_)
    most_are_gaps = 2 * np.count_nonzero(gaps) > len(gaps)
    if most_are_gaps or _are_dense(first[gaps], SHORTEST_PERIOD):
        return regular
    without_period = 0
    for index in np.flatnonzero(gaps).tolist():
        if regular[index]:
            continue
        due = _find_period(index, first, last, gaps, likely)
        regular[due[gaps[due]]] = True
        if not len(due):
            without_period += 1
        if without_period > MOST_TRIED:
            break
    return regular


def _find_period(
    index: int, first: Integers, last: Integers, gaps: Flags, likely: Flags
) -> Integers:
    """Return the intervals at which the gap at `index` recurs, empty if it does not."""
    later_gaps = np.flatnonzero(gaps[index + 1 :])[:MOST_TRIED] + index + 1
    for later in later_gaps.tolist():
        period = int(first[later] - first[index])
        # A gap was due a period earlier already, so this is not the first gap.
        is_late = first[index] - first[0] > period
        if is_late or period < SHORTEST_PERIOD:
            continue
        # the intervals with the steps that begin every `period` steps
        due = np.searchsorted(last, np.arange(first[index], last[-1] + 1, period))
        # the gap follows the first `period` steps, numbered from 0 or 1
        aligned = first[index] - period in (0, 1)
        if np.mean(likely[due]) >= ON_PERIOD and (len(due) > FEW or aligned):
            recurring: Integers = due[likely[due]]
            return recurring
    return np.zeros(0, dtype=np.int64)
