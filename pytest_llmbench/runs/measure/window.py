"""Select the step times of a segment that count, and find the steps the window lacks."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from pytest_llmbench.core import formatting, metric_definitions
from pytest_llmbench.core.baseline_records import USUAL_WINDOW, Baseline, Window
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import LazySteps, Steps, replace_columns
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
    if len(covered) == len(required):
        return ()
    return tuple(step for step in required if step not in covered)


def find_covered_steps(steps: Steps, mask: Flags, window: Window) -> frozenset[int]:
    """Return the steps of the window that the times of a mask cover.

    The mask has shape (n,).
    """
    if (steps.mean_of == 1).all():  # single steps, as in nearly every log
        return frozenset(steps.index[mask & is_inside(steps, window)].tolist())
    # A mean may cover any number of steps, so count its bounds instead of its steps:
    # the number of means that cover a step is the sum of the changes up to it. Steps
    # are counted from the window's first step.
    size = window.last + 1 - window.first
    begins = np.clip(get_first_steps(steps)[mask] - window.first, 0, size)
    ends = np.clip(steps.index[mask] + 1 - window.first, 0, size)
    change = np.zeros(size + 1, dtype=np.int64)
    np.add.at(change, begins, 1)
    np.add.at(change, ends, -1)
    covered = np.flatnonzero(np.cumsum(change) > 0)
    return frozenset((covered + window.first).tolist())


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
    earliest_later_first = np.minimum.accumulate(first[::-1])[::-1][1:]
    is_repeated = first[:-1] >= earliest_later_first
    counted[rows[:-1][is_repeated]] = False
    return counted


def covers_window(steps: Steps, window: Window) -> bool:
    """True if steps extend over the window and at least one time is inside it."""
    first, last = int(get_first_steps(steps)[0]), int(steps.index[-1])
    extends_over_window = first <= window.first and window.last <= last
    return extends_over_window and bool(is_inside(steps, window).any())


def choose_mean_steps(steps: Steps, window: Window) -> Window:
    """Shrink a window to the whole means inside it, if a log prints means of n steps."""
    inside = is_inside(steps, window)
    if (steps.mean_of[inside] == 1).any():
        return window
    first = int(get_first_steps(steps)[inside].min())
    last = int(steps.index[inside].max())
    return Window(first, last)


def choose_last_half(steps: Steps, last_planned: float = math.inf) -> Window:
    """Return the window of the last half of the printed times.

    `last_planned` is the last step that the run was to make; later times are ignored.
    """
    # the first times are warm-up; OLMo runs ten steps more than planned
    last_steps = steps.index
    if last_steps[0] <= last_planned:
        last_steps = last_steps[last_steps <= last_planned]
    middle = len(last_steps) // 2
    return Window(int(get_first_steps(steps)[middle]), int(last_steps[-1]))


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

    Weighted by the steps in each value. `name`: "mean" or "trimmed_mean".
    """
    if name == "mean":
        return compute_mean(values, mean_of)
    return compute_trimmed_mean(values, mean_of)


# --- which times count ----------------------------------------------------------------


class Timing(Struct, frozen=True, eq=False):
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
    corrected = _apply_planned_steps(steps, baseline)
    complete, filled = _fill_times_from_tokens(corrected, baseline)
    seconds = complete.seconds
    is_possible = (seconds >= compute_possible_seconds(baseline)) & (
        seconds < LONGEST_SECONDS
    )
    usable = is_possible & ~complete.asynchronous
    counted = np.zeros(len(steps), dtype=np.bool_)
    counted[usable] = mask_window(select_rows(complete, usable), baseline.window)
    return Timing(
        steps=complete,
        filled=filled,
        usable=usable,
        counted=counted,
        window=select_rows(complete, counted),
    )


def select_rows(steps: Steps, mask: Flags) -> Steps:
    """Return the steps of a mask of shape (n,)."""
    if mask.all():
        return steps
    first, count = int(np.argmax(mask)), np.count_nonzero(mask)
    rows: slice | Flags = mask
    if mask[first : first + count].all():
        # a slice is twice as fast, and safe because columns are read-only
        rows = slice(first, first + count)
    selected = _SelectedSteps.__new__(_SelectedSteps)
    # the class is frozen, and its `__init__` would need all columns
    object.__setattr__(selected, "_of", steps)
    object.__setattr__(selected, "_rows", rows)
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
    """Correct the step count of a log that prints one mean over the whole run.

    Uses the baseline's step count if the digits of the log allow it, and otherwise
    returns `steps` unchanged. Such a log prints the time of all steps and a rate with
    few digits: "train_runtime: 100.0, train_steps_per_second: 0.5" may be 45 to 55
    steps, so the step time is uncertain, too. If the step count is known, only the
    rounding of the total time is left.
    """
    has_one_mean = len(steps) == 1 and steps.mean_of[0] == steps.index[0]
    if not has_one_mean or steps.index[0] < 2:
        return steps
    printed_count, planned_count = int(steps.index[0]), baseline.steps
    relative_unit = float(steps.resolution_seconds[0] / steps.seconds[0])
    # the number of step counts that one unit of the printed rate includes
    candidate_count = relative_unit * printed_count
    recorded_candidate_count = _count_recorded_candidates(baseline, candidate_count)
    # Each count is known to half of its range; the 1 is for rounding to whole steps.
    allowed = (candidate_count + 1 + recorded_candidate_count) / 2
    is_certain = not candidate_count > 1
    if is_certain or abs(planned_count - printed_count) > allowed:
        return steps
    count = np.array([planned_count], dtype=np.int64)
    seconds = steps.seconds * printed_count / planned_count
    unit = np.minimum(steps.resolution_seconds, seconds * ROUNDED_SHARE)
    return replace_columns(
        steps, index=count, mean_of=count, seconds=seconds, resolution_seconds=unit
    )


def _count_recorded_candidates(baseline: Baseline, candidate_count: float) -> float:
    """Return the number of step counts that are compatible with a baseline's runs.

    For a baseline made from runs, it is assumed to be that of the judged run,
    `candidate_count`. The step count of a recipe is certain: 0.
    """
    is_from_runs = baseline.recording is not None or baseline.match is not None
    return candidate_count if is_from_runs else 0.0


def _fill_times_from_tokens(steps: Steps, baseline: Baseline) -> tuple[Steps, Flags]:
    """Compute missing step times from tokens/s; also return a mask of the computed
    ones."""
    speed = steps.tokens_per_second_per_gpu
    filled: Flags = np.isnan(steps.seconds)
    if filled.any():
        filled &= np.isfinite(speed) & (speed > 0)
    if not filled.any():
        return steps, filled
    tokens_per_step = metric_definitions.compute_tokens_per_second(
        baseline.configuration, 1.0
    )
    tokens_per_gpu = tokens_per_step / (baseline.key.gpus or math.inf)
    if tokens_per_gpu == 0:  # the baseline's tokens per step are unknown
        return steps, np.zeros_like(filled)
    seconds, unit = steps.seconds.copy(), steps.resolution_seconds.copy()
    seconds[filled] = tokens_per_gpu / speed[filled]
    # the error of the time if tokens/s is off by 1
    unit[filled] = seconds[filled] / speed[filled]
    return replace_columns(steps, seconds=seconds, resolution_seconds=unit), filled


# --- messages on incomplete windows ---------------------------------------------------


def find_gaps(timing: Timing, baseline: Baseline) -> Iterator[Problem]:
    """Yield the problems of an incomplete window, unusable times first."""
    steps, window = timing.steps, baseline.window
    unusable = is_inside(steps, window) & ~timing.usable
    required, counted = range(window.first, window.last + 1), timing.window.index
    if (
        not unusable.any()
        and (steps.mean_of == 1).all()
        and counted.tolist() == list(required)
    ):
        return  # all steps of the window count, as in nearly every run
    # steps of the window that no counted time covers
    uncounted = set(find_uncovered(steps, timing.counted, window))
    if not uncounted and not unusable.any():
        return
    # A time is unusable for one of three reasons.
    dispatched = unusable & steps.asynchronous
    untimed = unusable & np.isnan(steps.seconds) & ~dispatched
    impossible = unusable & ~untimed & ~dispatched
    yield from _find_dispatched_steps(steps, dispatched)
    yield from _find_impossible_steps(steps, impossible, baseline)
    # The steps that no time inside the window covers, not even an unusable one, are
    # missing, or in a straddling mean: a mean that crosses a bound of the window.
    uncovered = uncounted - find_covered_steps(steps, unusable, window)
    straddling = _mask_straddling(timing, window)
    straddled = uncovered & find_covered_steps(steps, straddling, window)
    yield from _find_straddling(timing, straddled, window)
    yield from _find_missing(steps, untimed, uncovered - straddled, window)


def _find_dispatched_steps(steps: Steps, dispatched: Flags) -> Iterator[Problem]:
    """Yield a problem if steps have only the time of their asynchronous dispatch."""
    if dispatched.any():
        row = int(np.argmax(dispatched))
        text = (
            f"step {steps.index[row]} took {steps.seconds[row]:.4g} s only to be dispatched: its run time is unknown "
            f"({formatting.count_noun(int(dispatched.sum()), 'such step')} in the window)"
        )
        yield Problem(Reason.ASYNCHRONOUS_DISPATCH, text, int(steps.line[row]))


def _find_impossible_steps(
    steps: Steps, impossible: Flags, baseline: Baseline
) -> Iterator[Problem]:
    """Yield a problem if a step is faster than 100 % MFU allows, or has a time that
    is too long."""
    if impossible.any():
        row = int(np.argmax(impossible))
        fastest = compute_possible_seconds(baseline)
        bound = f"; 100 % MFU would be {fastest:.4g} s"
        if fastest == sys.float_info.min:  # the FLOPs or the peak are unknown
            bound = ""
        text = f"step {steps.index[row]} took {steps.seconds[row]:.4g} s{bound}"
        yield Problem(Reason.IMPOSSIBLE_SAMPLE, text, int(steps.line[row]))


def _find_missing(
    steps: Steps, untimed: Flags, missing: set[int], window: Window
) -> Iterator[Problem]:
    """Yield problems for steps of the window that are missing or have no time."""
    extent = f"of the steps {window.first} to {window.last}"
    is_single_step = window.first == window.last
    if untimed.any():
        numbers = formatting.join_first(steps.index[untimed].tolist())
        text = f"{int(untimed.sum())} {extent} have no time: {numbers}"
        if is_single_step:
            text = f"step {window.first} has no time"
        first_line = int(steps.line[int(np.argmax(untimed))])
        yield Problem(Reason.WINDOW_INCOMPLETE, text, first_line)
    if missing:
        numbers = formatting.join_first(sorted(missing))
        text = f"{len(missing)} {extent} are missing: {numbers}"
        if is_single_step:
            text = f"step {window.first} is missing"
        elif sample := _describe_sample(steps, missing):
            text = sample
        yield Problem(Reason.WINDOW_INCOMPLETE, text)


def _describe_sample(steps: Steps, missing: set[int]) -> str:
    """Describe a log that prints the times of every n-th step only, or ""."""
    gaps = np.diff(steps.index)
    if len(gaps) < FEWEST_GAPS:
        return ""
    interval = int(compute_median(gaps))
    if interval < 2 or (gaps != interval).any() or (steps.mean_of != 1).any():
        return ""
    return (
        f"the log prints only the time of every {formatting.format_ordinal(interval)} step: the times of the "
        f"{len(missing)} others in the window are unknown"
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
    """Yield a problem if a mean crosses a bound of the window, and suggest a window.

    `straddled` contains the steps of the window that only such means cover.
    """
    if not straddled:
        return
    steps = timing.steps
    straddling = _mask_straddling(timing, window)
    width = int(compute_median(steps.mean_of[straddling]))
    is_usual_width = len(steps) == 1 or int(compute_median(steps.mean_of)) == width
    row = int(np.argmax(straddling))
    intervals = (
        f"the time at step {steps.index[row]} is the mean of {steps.mean_of[row]} steps"
    )
    if is_usual_width:
        intervals = f"the log prints every {formatting.format_ordinal(width)} step"
    whole_intervals = timing.counted if timing.counted.any() else straddling
    first = int(get_first_steps(steps)[whole_intervals].min())
    last = int(steps.index[whole_intervals].max())
    text = f"{intervals}: {format_ranges(straddled)} not covered; a window of whole intervals is {first} to {last}"
    yield Problem(Reason.WINDOW_INCOMPLETE, text, int(steps.line[row]))


def format_ranges(numbers: Iterable[int]) -> str:
    """Format step numbers as ranges with a verb: `11 to 14, 41 to 44 are`, `7 is`."""
    ordered = sorted(numbers)
    breaks = np.flatnonzero(np.diff(ordered) > 1) + 1
    texts = []
    for consecutive in np.split(np.array(ordered), breaks):
        first, last = int(consecutive[0]), int(consecutive[-1])
        texts.append(f"{first}" if first == last else f"{first} to {last}")
    verb = "is" if len(ordered) == 1 else "are"
    return f"{formatting.join_first(texts)} {verb}"
