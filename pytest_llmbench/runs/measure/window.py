"""Select the step times of a segment that count, and find the steps the window lacks."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_llmbench.core import formatting, metric_definitions
from pytest_llmbench.core.baseline_records import USUAL_WINDOW, Baseline, Window
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import LazySteps, Steps
from pytest_llmbench.core.robust import (
    compute_mean,
    compute_median,
    compute_trimmed_mean,
)
from pytest_llmbench.core.run_records import Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_llmbench.core.log_records import Flags, Floats, Integers, Segment

LONGEST_USUAL = 100
"""Longest run, in steps, that is measured over the usual window.

Longer runs are measured over their last half.
"""

WARM_UP_STEPS = 10
WARM_UP_SHARE = 0.1
"""The warm-up is this share of a run's steps, at least WARM_UP_STEPS."""

LONGEST_SECONDS = 1e6  # longer step times (11 days) are invalid

FEWEST_GAPS = 3  # this many equal gaps between printed steps form an interval

# Largest rounding error of a time of all steps, as a share: Trainer prints four digits
ROUNDED_SHARE = 1e-3


def get_first_steps(steps: Steps) -> Integers:
    """Return the first step that each printed time covers.

    If the time is a mean of several steps, this is the first of these steps.
    """
    first: Integers = steps.index - steps.mean_of + 1
    return first


def count_warm_up(steps: int) -> int:
    """Return the number of warm-up steps of a run with `steps` steps."""
    return max(WARM_UP_STEPS, int(np.ceil(WARM_UP_SHARE * steps)))


def find_missing_steps(steps: Steps, window: Window) -> tuple[int, ...]:
    """Return the steps of the window that no time inside it covers."""
    return find_uncovered(steps, mask_window(steps, window), window)


def find_uncovered(steps: Steps, mask: Flags, window: Window) -> tuple[int, ...]:
    """Return the steps of the window that the times of a mask do not cover.

    The mask has shape (n,).
    """
    covered = find_covered_steps(steps, mask, window)
    required = range(window.first, window.last + 1)
    return (
        ()
        if len(covered) == len(required)
        else tuple(step for step in required if step not in covered)
    )


def find_covered_steps(steps: Steps, mask: Flags, window: Window) -> frozenset[int]:
    """Return the steps of the window that the times of a mask cover.

    The mask has shape (n,).
    """
    if (steps.mean_of == 1).all():  # single steps, as in nearly every log
        return frozenset(steps.index[mask & is_inside(steps, window)].tolist())
    bounds = np.array(
        [
            get_first_steps(steps)[mask] - window.first,
            steps.index[mask] + 1 - window.first,
        ]
    )
    # A mean may cover any number of steps, so count its bounds instead of its steps.
    opened, closed = np.clip(bounds, 0, window.last + 1 - window.first)
    change = np.zeros(window.last + 2 - window.first, dtype=np.int64)
    np.add.at(change, opened, 1)
    np.add.at(change, closed, -1)
    return frozenset((np.flatnonzero(np.cumsum(change) > 0) + window.first).tolist())


def is_inside(steps: Steps, window: Window) -> Flags:
    """Return a mask of shape (n,) of the times whose steps are all in the window."""
    inside: Flags = (get_first_steps(steps) >= window.first) & (
        steps.index <= window.last
    )
    return inside


def mask_window(steps: Steps, window: Window) -> Flags:
    """Return a mask of shape (n,) of the times that count in the window."""
    counted = is_inside(steps, window)
    first = get_first_steps(steps)[counted]
    if (first[1:] > first[:-1]).all():
        return counted
    # Omit a time whose steps a later time contains, too, or they would count twice:
    # Megatron prints the mean of steps 1 and 2 after step 1.
    rows = np.flatnonzero(counted)
    later = np.minimum.accumulate(first[::-1])[::-1][1:]
    counted[rows[:-1][first[:-1] >= later]] = False
    return counted


def covers_window(steps: Steps, window: Window) -> bool:
    """True if steps extend over the window and at least one time is inside it."""
    first, last = int(get_first_steps(steps)[0]), int(steps.index[-1])
    return (
        first <= window.first
        and window.last <= last
        and bool(is_inside(steps, window).any())
    )


def choose_mean_steps(steps: Steps, window: Window) -> Window:
    """Shrink a window to the whole means inside it, if a log prints means of n steps."""
    inside = is_inside(steps, window)
    if (steps.mean_of[inside] == 1).any():
        return window
    return Window(
        int(get_first_steps(steps)[inside].min()), int(steps.index[inside].max())
    )


def choose_last_half(steps: Steps, planned: float = math.inf) -> Window:
    """Return the window of the last half of the printed times.

    It ends at the last of the `planned` steps.
    """
    # the first times are warm-up; OLMo runs ten steps more than planned
    kept = (
        steps.index[steps.index <= planned]
        if steps.index[0] <= planned
        else steps.index
    )
    return Window(int(get_first_steps(steps)[len(kept) // 2]), int(kept[-1]))


def count_steps(segment: Segment) -> int:
    """Return the total number of steps in the log, else up to the last printed step."""
    return segment.total_steps or int(segment.steps.index[-1]) + 1 - segment.first_step


class WindowFrom(StrEnum):
    """The source of the measured window."""

    BASELINE = "baseline"
    OPTION = "option"
    DEFAULT = "default"
    LAST_HALF = "last-half"


def choose_window(
    segment: Segment,
    baseline_window: Window | None = None,
    requested: Window | None = None,
) -> tuple[Window, WindowFrom]:
    """Choose the steps to measure, for recordings and `llmbench summary`.

    Uses the requested window, else the baseline's if the segment covers it. Without a
    baseline, uses USUAL_WINDOW for runs of up to LONGEST_USUAL steps. Otherwise, uses
    the last half of the steps.
    """
    steps = segment.steps
    if requested is not None:
        return requested, WindowFrom.OPTION
    if baseline_window is not None:
        if covers_window(steps, baseline_window):
            return baseline_window, WindowFrom.BASELINE
        return choose_last_half(steps), WindowFrom.LAST_HALF
    total = count_steps(segment)
    if total <= LONGEST_USUAL and covers_window(steps, USUAL_WINDOW):
        return choose_mean_steps(steps, USUAL_WINDOW), WindowFrom.DEFAULT
    return choose_last_half(steps, total - 1 + segment.first_step), WindowFrom.LAST_HALF


def compute_statistic(values: Floats, name: str, mean_of: Sequence[int] = ()) -> float:
    """Return the mean, or the 20 % trimmed mean, of values of shape (n,), n > 0.

    Weighted by the steps in each value.
    """
    return (
        compute_mean(values, mean_of)
        if name == "mean"
        else compute_trimmed_mean(values, mean_of)
    )


# --- which times count ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """The steps of a segment, with masks of shape (n,).

    `filled`: times that are not printed but computed from tokens/s. `usable`: possible
    times, except times of the dispatch alone. `counted`: usable times in the window.
    """

    steps: Steps
    filled: Flags
    usable: Flags
    counted: Flags
    window: Steps  # the counted steps


def compute_timing(steps: Steps, baseline: Baseline) -> Timing:
    """Determine which times of a segment count in the baseline's window."""
    complete, filled = _fill_times_from_tokens(
        _apply_planned_steps(steps, baseline), baseline
    )
    possible = (complete.seconds >= compute_possible_seconds(baseline)) & (
        complete.seconds < LONGEST_SECONDS
    )
    usable = possible & ~complete.asynchronous
    counted = np.zeros(len(steps), dtype=np.bool_)
    counted[usable] = mask_window(select_rows(complete, usable), baseline.window)
    return Timing(complete, filled, usable, counted, select_rows(complete, counted))


def select_rows(steps: Steps, mask: Flags) -> Steps:
    """Return the steps of a mask of shape (n,)."""
    if mask.all():
        return steps
    first, count = int(np.argmax(mask)), np.count_nonzero(mask)
    is_contiguous = mask[first : first + count].all()
    selected = _SelectedSteps.__new__(_SelectedSteps)
    object.__setattr__(selected, "_of", steps)
    # a slice is twice as fast, and safe because columns are read-only
    object.__setattr__(
        selected, "_rows", slice(first, first + count) if is_contiguous else mask
    )
    return selected


class _SelectedSteps(LazySteps):
    """A lazy selection of rows of other steps."""

    __slots__ = ("_of", "_rows")
    _of: Steps
    _rows: slice | Flags

    def _make_column(self, name: str) -> NDArray[Any]:
        return getattr(self._of, name)[self._rows]  # type: ignore[no-any-return]


def compute_possible_seconds(baseline: Baseline) -> float:
    """Return the step time in seconds at 100 % MFU, the fastest possible."""
    # Without a peak or FLOPs, only a time of 0 is known to be impossible.
    if math.isnan(baseline.peak_tflops):
        return sys.float_info.min
    fastest = metric_definitions.compute_model_flops_utilization(
        baseline.configuration, 1.0, baseline.peak_tflops
    )
    return sys.float_info.min if math.isnan(fastest) else fastest


def _apply_planned_steps(steps: Steps, baseline: Baseline) -> Steps:
    """Correct the number of steps of a log that prints one mean over the whole run.

    The recipe's number of steps is used if it is compatible with the digits of the log.
    Otherwise the steps are returned unchanged.
    """
    # If a log prints the time of all steps and a rate with few digits, the number of
    # steps is uncertain, and so is the step time. With the recipe's number of steps,
    # only the rounding of the total time is left.
    if len(steps) != 1 or steps.index[0] < 2 or steps.mean_of[0] != steps.index[0]:
        return steps
    nearest = int(steps.index[0])
    candidates = float(steps.resolution_seconds[0] / steps.seconds[0]) * nearest
    if (
        not candidates > 1
        or abs(baseline.steps - nearest)
        > (candidates + 1 + _count_recorded_candidates(baseline, candidates)) / 2
    ):
        return steps
    planned = np.array([baseline.steps], dtype=np.int64)
    seconds = steps.seconds * nearest / baseline.steps
    unit = np.minimum(steps.resolution_seconds, seconds * ROUNDED_SHARE)
    return dataclasses.replace(
        steps, index=planned, mean_of=planned, seconds=seconds, resolution_seconds=unit
    )


def _count_recorded_candidates(baseline: Baseline, candidates: float) -> float:
    """Return the number of step counts that are compatible with a baseline's runs.

    It is assumed to be that of the judged run (`candidates`) for a baseline made from
    runs. The number of steps in a recipe is certain: 0.
    """
    return (
        candidates
        if baseline.recording is not None or baseline.match is not None
        else 0.0
    )


def _fill_times_from_tokens(steps: Steps, baseline: Baseline) -> tuple[Steps, Flags]:
    """Compute missing step times from tokens/s; also return a mask of the computed
    ones."""
    speed = steps.tokens_per_second_per_gpu
    filled: Flags = np.isnan(steps.seconds)
    if filled.any():
        filled &= np.isfinite(speed) & (speed > 0)
    if not filled.any():
        return steps, filled
    tokens_per_gpu = metric_definitions.compute_tokens_per_second(
        baseline.configuration, 1.0
    ) / (baseline.key.gpus or math.inf)
    if tokens_per_gpu == 0:  # the baseline's tokens per step are unknown
        return steps, np.zeros_like(filled)
    seconds, unit = steps.seconds.copy(), steps.resolution_seconds.copy()
    seconds[filled] = tokens_per_gpu / speed[filled]
    # the error of the time if tokens/s is off by 1
    unit[filled] = seconds[filled] / speed[filled]
    return dataclasses.replace(steps, seconds=seconds, resolution_seconds=unit), filled


# --- messages on incomplete windows ---------------------------------------------------


def find_gaps(timing: Timing, baseline: Baseline) -> Iterator[Problem]:
    """Yield the problems of an incomplete window, unusable times first."""
    steps, window = timing.steps, baseline.window
    bad = is_inside(steps, window) & ~timing.usable
    required, counted = range(window.first, window.last + 1), timing.window.index
    if (
        not bad.any()
        and (steps.mean_of == 1).all()
        and counted.tolist() == list(required)
    ):
        return  # all steps of the window count, as in nearly every run
    uncounted = set(find_uncovered(steps, timing.counted, window))
    if not uncounted and not bad.any():
        return
    untimed = bad & np.isnan(steps.seconds) & ~steps.asynchronous
    yield from _find_dispatched_steps(steps, bad & steps.asynchronous)
    yield from _find_impossible_steps(
        steps, bad & ~untimed & ~steps.asynchronous, baseline
    )
    lost = uncounted - find_covered_steps(steps, bad, window)
    straddled = lost & find_covered_steps(
        steps, _mask_straddling(timing, window), window
    )
    yield from _find_straddling(timing, straddled, window)
    yield from _find_missing(steps, untimed, lost - straddled, window)


def _find_dispatched_steps(steps: Steps, bad: Flags) -> Iterator[Problem]:
    if bad.any():
        row = int(np.argmax(bad))
        text = (
            f"step {steps.index[row]} took {steps.seconds[row]:.4g} s only to be dispatched: its run time is unknown "
            f"({formatting.count_noun(int(bad.sum()), 'such step')} in the window)"
        )
        yield Problem(Reason.ASYNCHRONOUS_DISPATCH, text, int(steps.line[row]))


def _find_impossible_steps(
    steps: Steps, bad: Flags, baseline: Baseline
) -> Iterator[Problem]:
    """Yield a problem if a step is faster than 100 % MFU allows."""
    if bad.any():
        row = int(np.argmax(bad))
        fastest = compute_possible_seconds(baseline)
        bound = (
            ""
            if fastest == sys.float_info.min
            else f"; 100 % MFU would be {fastest:.4g} s"
        )
        text = f"step {steps.index[row]} took {steps.seconds[row]:.4g} s{bound}"
        yield Problem(Reason.IMPOSSIBLE_SAMPLE, text, int(steps.line[row]))


def _find_missing(
    steps: Steps, untimed: Flags, lost: set[int], window: Window
) -> Iterator[Problem]:
    """Yield problems for steps of the window that are missing or have no time."""
    extent = f"of the steps {window.first} to {window.last}"
    only_step = f"step {window.first}" if window.first == window.last else ""
    if untimed.any():
        numbers = formatting.join_first(steps.index[untimed].tolist())
        text = (
            f"{only_step} has no time"
            if only_step
            else f"{int(untimed.sum())} {extent} have no time: {numbers}"
        )
        yield Problem(
            Reason.WINDOW_INCOMPLETE, text, int(steps.line[int(np.argmax(untimed))])
        )
    if lost:
        missing = (
            f"{len(lost)} {extent} are missing: {formatting.join_first(sorted(lost))}"
        )
        text = (
            f"{only_step} is missing"
            if only_step
            else _describe_sample(steps, lost) or missing
        )
        yield Problem(Reason.WINDOW_INCOMPLETE, text)


def _describe_sample(steps: Steps, lost: set[int]) -> str:
    """Describe a log that prints the times of every n-th step only, or ""."""
    gaps = np.diff(steps.index)
    interval = int(compute_median(gaps)) if len(gaps) >= FEWEST_GAPS else 1
    if interval < 2 or (gaps != interval).any() or (steps.mean_of != 1).any():
        return ""
    return (
        f"the log prints only the time of every {formatting.format_ordinal(interval)} step: the times of the "
        f"{len(lost)} others in the window are unknown"
    )


def _mask_straddling(timing: Timing, window: Window) -> Flags:
    """Return a mask of shape (n,) of the means that cross a bound of the window."""
    steps = timing.steps
    touching = (get_first_steps(steps) <= window.last) & (steps.index >= window.first)
    straddling: Flags = touching & ~is_inside(steps, window) & timing.usable
    return straddling


def _find_straddling(
    timing: Timing, straddled: set[int], window: Window
) -> Iterator[Problem]:
    """Yield a problem if a bound of the window lies within a mean, with a better
    window."""
    if not straddled:
        return
    steps = timing.steps
    rows = np.flatnonzero(_mask_straddling(timing, window))
    width = int(compute_median(steps.mean_of[rows]))
    is_usual_width = len(steps) == 1 or int(compute_median(steps.mean_of)) == width
    row = int(rows[0])
    intervals = (
        f"the log prints every {formatting.format_ordinal(width)} step"
        if is_usual_width
        else f"the time at step {steps.index[row]} is the mean of {steps.mean_of[row]} steps"
    )
    whole = timing.counted if timing.counted.any() else _mask_straddling(timing, window)
    first = int(get_first_steps(steps)[whole].min())
    last = int(steps.index[whole].max())
    text = f"{intervals}: {format_ranges(straddled)} not covered; a window of whole intervals is {first} to {last}"
    yield Problem(Reason.WINDOW_INCOMPLETE, text, int(steps.line[row]))


def format_ranges(numbers: Iterable[int]) -> str:
    """Format step numbers as ranges with a verb: `11 to 14, 41 to 44 are`, `7 is`."""
    ordered = sorted(numbers)
    breaks = np.flatnonzero(np.diff(ordered) > 1) + 1
    ranges = [
        (int(group[0]), int(group[-1])) for group in np.split(np.array(ordered), breaks)
    ]
    texts = [
        f"{first}" if first == last else f"{first} to {last}" for first, last in ranges
    ]
    return f"{formatting.join_first(texts)} {'is' if len(ordered) == 1 else 'are'}"
