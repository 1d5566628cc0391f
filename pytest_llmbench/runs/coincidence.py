"""Whether two runs print the same steps, and how probable that is by chance.

Honest runs may agree where a log prints few digits, or the means of several steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.core.robust import winsorise
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.logs.dialect_table import get_dialect

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats

# Equal runs are no coincidence where chance makes them in fewer than 10^-9 of pairs.
CERTAIN = -9.0

# Steps in a row that two runs share before they are compared at all.
SHINGLE = 3

# Places of a log that are remembered: those of the smallest hash, most of which a copy
# has too.
MARKS = 4

# Equal pairs of steps that are assumed beyond those seen: of few steps nobody knows how
# often two are equal.
UNSEEN = 3.0

# The share of the fastest and of the slowest steps that do not tell how many values
# there are: a checkpoint slows the same steps of every run.
TAIL = 0.1

# Steps of which anything can be said.
FEWEST = 3

# The largest correlation of neighbours that is believed.
STEADIEST = 0.99

# Other runs of the configuration that are asked how often such steps agree.
WITNESSES = 5

_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


class PrintedSteps(NamedTuple):
    """The steps of one part of a log."""

    steps: Steps
    averaged: int = 1  # each of its times is the mean of so many steps, up to its own


def list_parts(run: Run) -> list[PrintedSteps]:
    """Return the parts of a run's logs that hold steps, in their order."""
    logs = [attempt.log for attempt in run.attempts]
    return [
        PrintedSteps(segment.steps, get_dialect(log.dialect).averages)
        for log in logs
        for segment in log.segments
        if len(segment.steps)
    ]


def hash_steps(steps: Steps) -> tuple[int, list[int]]:
    """Return a hash of a part of a log, and those of a few places of it.

    A copy has the first one; it shares some of the others, though lines were lost or
    added.
    """
    import numpy as np

    factors = [np.uint64(factor) for factor in _FACTORS]
    rows = steps.index.astype(np.uint64) * factors[0]
    for values, factor in zip(
        (read_times(steps), steps.loss), factors[1:], strict=True
    ):
        absent = np.isnan(values)
        bits = (np.where(absent, -1.0, values) if absent.any() else values).view(
            np.uint64
        ) * factor
        rows ^= bits ^ (bits >> np.uint64(29))
    reach = min(SHINGLE, len(rows))
    hashes = rows[: len(rows) - reach + 1].copy()
    for place in range(1, reach):
        hashes = hashes * factors[0] + rows[place : len(rows) - reach + 1 + place]
    hashes ^= hashes >> np.uint64(31)
    return int((hashes * factors[1]).sum()), [
        int(mark) for mark in np.sort(hashes)[:MARKS]
    ]


def read_times(steps: Steps) -> Floats:
    """Return the printed time of each step, shape (n,): negative tokens/s where only
    they are printed."""
    import numpy as np

    absent = np.isnan(steps.seconds)
    seconds: Floats = steps.seconds
    return (
        np.where(absent, -steps.tokens_per_second_per_gpu, seconds)
        if absent.any()
        else seconds
    )


def find_shared_steps(run: Run, other: Run) -> list[tuple[PrintedSteps, Flags]]:
    """Return the parts of a run, each with a mask of its steps that stand in the other
    one, too, where none of those that both have differs in time or loss; empty where a
    part of it has no such counterpart.

    A copy may have lost lines or got some: what counts is how many are left, and that
    no step contradicts it.
    """
    shared = []
    counterparts = list_parts(other)
    for part in list_parts(run):
        masks = (
            _mask_agreeing(part.steps, counterpart.steps)
            for counterpart in counterparts
        )
        mask = max(
            (mask for mask in masks if mask is not None),
            key=lambda mask: int(mask.sum()),
            default=None,
        )
        if mask is None:
            return []
        shared.append((part, mask))
    return shared


def _mask_agreeing(steps: Steps, other: Steps) -> Flags | None:
    """Return a mask of the steps that both have; None where they differ in one, or
    share too few."""
    import numpy as np

    _, mine, theirs = np.intersect1d(steps.index, other.index, return_indices=True)
    if 2 * len(mine) < min(len(steps), len(other)) or not len(mine):
        return None
    for own, of_other in (
        (read_times(steps), read_times(other)),
        (steps.loss, other.loss),
    ):
        if not np.array_equal(own[mine], of_other[theirs], equal_nan=True):
            return None
    mask: Flags = np.zeros(len(steps), dtype=np.bool_)
    mask[mine] = True
    return mask


def estimate_chance(
    shared: Sequence[tuple[PrintedSteps, Flags]], witnesses: Sequence[Run] = ()
) -> float:
    """Return the decimal logarithm of a bound of the probability that two runs print
    such steps by chance.

    Two steps print the same time as often as two of the log's own do: that follows from
    the printed digits and the spread of the steps. `witnesses` are other runs of the
    configuration, whose steps may agree more often than that, as they do where a step's
    time depends on its number. Neighbours that are means over the same steps, or go
    together, count as fewer steps. Losses count nothing: honest runs with one seed may
    print the same.
    """
    return sum(_estimate_part(part, mask, witnesses) for part, mask in shared)


def _estimate_part(part: PrintedSteps, mask: Flags, witnesses: Sequence[Run]) -> float:
    import numpy as np

    values = np.abs(read_times(part.steps))
    mask = mask & np.isfinite(values) & (values > 0)
    if mask.sum() < FEWEST:
        return 0.0
    correlation = _correlate_neighbours(values[mask])
    independent = float(mask.sum()) / max(
        (1 + correlation) / (1 - correlation), part.averaged
    )
    agreement = max(
        (_measure_agreement(values[mask]), *_ask_witnesses(part.steps, witnesses))
    )
    return independent * math.log10(min(agreement, 1.0))


def _correlate_neighbours(values: Floats) -> float:
    """Return the correlation of neighbours, at least 0: that of a mean of five steps is
    0.8, and so it counts a ninth of its steps where a fifth would do."""
    import numpy as np

    clipped = winsorise(values)
    centred = clipped - np.mean(clipped)
    total = float(centred @ centred)
    return (
        min(max(float(centred[1:] @ centred[:-1]) / total, 0.0), STEADIEST)
        if total > 0
        else 0.0
    )


def _measure_agreement(values: Floats) -> float:
    """Return how often two of these values are equal, at most: of those in the middle,
    as if a few more pairs were."""
    import numpy as np

    cut = int(TAIL * len(values))
    _, counts = np.unique(np.sort(values)[cut : len(values) - cut], return_counts=True)
    total = int(counts.sum())
    pairs = total * (total - 1) / 2
    return (float((counts * (counts - 1)).sum()) / 2 + UNSEEN) / pairs if pairs else 1.0


def _ask_witnesses(steps: Steps, witnesses: Sequence[Run]) -> Iterator[float]:
    """Yield how often a step of another run prints the same time as the step of that
    number here."""
    import numpy as np

    for run in witnesses:
        for part in list_parts(run)[-1:]:
            _, mine, theirs = np.intersect1d(
                steps.index, part.steps.index, return_indices=True
            )
            if len(mine) >= FEWEST:
                equal = int(
                    (read_times(steps)[mine] == read_times(part.steps)[theirs]).sum()
                )
                yield (equal + 1) / (len(mine) + 1)
