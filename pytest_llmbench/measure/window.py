"""Which part of a run is judged, and its statistic over the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.models import PROFILER, Attempt, Segment, Steps, Window
from pytest_llmbench.core.robust import mean, trimmed_mean

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Flags, Floats, Integers


@dataclass(frozen=True, slots=True)
class Choice:
    """The segment that is judged, where it stands, and how many other segments with steps the run holds.

    `rivals` are the other ones that finished, cover the window and may be judged in its place, in their order.
    """

    attempt: Attempt
    number: int
    segment: Segment
    others: int
    rivals: tuple[Choice, ...] = ()


def choose_segment(attempts: Sequence[Attempt], window: Window, steps: int) -> Choice | None:
    """Choose the last finished segment that covers the window, with its rivals; None without steps.

    A requeued job is judged on the attempt that finished. Where the last segment started over after a finished one, or
    none is finished, the last one is judged: what is newer must not be hidden by what went well before it.
    """
    choices = [
        (attempt, number, segment)
        for attempt in attempts
        for number, segment in enumerate(attempt.log.segments, start=1)
        if len(segment.steps)
    ]
    if len(choices) < 2:  # of one there is nothing to choose
        return Choice(*choices[0], others=0) if choices else None
    unprofiled = [part for part in choices if not is_profiled(part[2])]
    untraced = [part for part in unprofiled if not is_traced(part[0], part[1])]
    whole = [part for part in untraced if is_finished(part[2], steps) and not find_missing_steps(part[2].steps, window)]
    chosen = whole[-1] if whole else (unprofiled or choices)[-1]
    after = untraced[untraced.index(chosen) + 1 :] if whole else []
    if any(begins(segment.steps)[0] <= window.last for _, _, segment in after):
        chosen, whole = after[-1], []
    others = len(choices) - 1
    rivals = tuple(Choice(*part, others=others) for part in whole if part is not chosen)
    return Choice(*chosen, others=others, rivals=rivals)


def is_traced(attempt: Attempt, number: int) -> bool:
    """Whether NCCL trace records stand within a segment (1-based number), or between it and the one before."""
    parts, first = attempt.log.segments, attempt.log.nccl_line
    last = max(first, attempt.log.nccl_last_line)
    before = parts[number - 2].last_line if number > 1 else 0
    return bool(first) and last > before and (first <= parts[number - 1].last_line or number == len(parts))


def is_profiled(segment: Segment) -> bool:
    """Whether a profiler was switched on or off within a segment."""
    return any(statement.field == PROFILER for statement in segment.stated)


def is_finished(segment: Segment, steps: int) -> bool:
    """Whether the segment reached its end: by the log's own total or end marker, else by the baseline's `steps`."""
    if segment.finished or not len(segment.steps):
        return segment.finished
    return segment.total_steps is None and int(segment.steps.index[-1]) + 1 - segment.first_step >= steps


def begins(steps: Steps) -> Integers:
    """Return for each printed time the first step that it covers: itself, or that of the steps it is the mean of."""
    first: Integers = steps.index - steps.mean_of + 1
    return first


def find_missing_steps(steps: Steps, window: Window) -> tuple[int, ...]:
    """Return the step numbers of the window that no time wholly inside it covers."""
    return find_uncovered(steps, mask_window(steps, window), window)


def find_uncovered(steps: Steps, which: Flags, window: Window) -> tuple[int, ...]:
    """Return the step numbers of the window that the times of these rows, a mask of shape (n,), do not cover."""
    covered, wanted = find_covered_steps(steps, which, window), range(window.first, window.last + 1)
    return () if len(covered) == len(wanted) else tuple(step for step in wanted if step not in covered)


def find_covered_steps(steps: Steps, which: Flags, window: Window) -> frozenset[int]:
    """Return the step numbers of the window that the times of these rows, a mask of shape (n,), cover."""
    if (steps.mean_of == 1).all():
        return frozenset(steps.index[which & is_inside(steps, window)].tolist())
    bounds = np.array([begins(steps)[which] - window.first, steps.index[which] + 1 - window.first])
    opened, closed = np.clip(bounds, 0, window.last + 1 - window.first)
    change = np.zeros(window.last + 2 - window.first, dtype=np.int64)
    np.add.at(change, opened, 1)
    np.add.at(change, closed, -1)
    return frozenset((np.flatnonzero(np.cumsum(change) > 0) + window.first).tolist())


def is_inside(steps: Steps, window: Window) -> Flags:
    """Return a mask of shape (n,): the times all of whose steps are in the window."""
    inside: Flags = (begins(steps) >= window.first) & (steps.index <= window.last)
    return inside


def mask_window(steps: Steps, window: Window) -> Flags:
    """Return a mask of shape (n,): the times that count, those inside the window.

    One whose steps are all in a later one that counts is left out, or they would count twice: the mean of steps 1 and 2
    that Megatron prints after step 1.
    """
    counted = is_inside(steps, window)
    first = begins(steps)[counted]
    if (first[1:] > first[:-1]).all():
        return counted
    rows = np.flatnonzero(counted)
    later = np.minimum.accumulate(first[::-1])[::-1][1:]
    counted[rows[:-1][first[:-1] >= later]] = False
    return counted


def fits(steps: Steps, window: Window) -> bool:
    """Whether steps reach over the whole window, and at least one time lies wholly inside it."""
    first, last = int(begins(steps)[0]), int(steps.index[-1])
    return first <= window.first and window.last <= last and bool(is_inside(steps, window).any())


def choose_last_half(steps: Steps) -> Window:
    """Return the window of the last half of the printed times: the first ones are those of a warm-up."""
    return Window(int(begins(steps)[len(steps) // 2]), int(steps.index[-1]))


def compute_statistic(values: Floats, name: str, mean_of: Sequence[int] = ()) -> float:
    """Return the mean, or the 20 % trimmed mean, of values of shape (n,), n > 0, weighted by the steps in each."""
    return mean(values, mean_of) if name == "mean" else trimmed_mean(values, mean_of)
