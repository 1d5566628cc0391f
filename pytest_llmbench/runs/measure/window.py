"""The steps that count: which times of a segment are in the window, and what the window
lacks."""

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
"""A run of up to so many steps is measured over the usual window, a longer one over its
last half."""

WARM_UP_STEPS = 10
WARM_UP_SHARE = 0.1
"""The first steps of a run, at least so many and this share of all, are its warm-up."""

LONGEST_SECONDS = 1e6  # a step time from here on (11 days) is no step time

FEWEST_GAPS = 3  # so many equal gaps between printed steps are an interval

# The share of a time that its rounding is at most, where a log prints that of all
# steps: Trainer prints four digits
ROUNDED_SHARE = 1e-3


def begins(steps: Steps) -> Integers:
    """Return for each printed time the first step that it covers: itself, or that of
    the steps it is the mean of."""
    first: Integers = steps.index - steps.mean_of + 1
    return first


def count_warm_up(steps: int) -> int:
    """Return how many of the first steps of a run of so many are its warm-up."""
    return max(WARM_UP_STEPS, int(np.ceil(WARM_UP_SHARE * steps)))


def find_missing_steps(steps: Steps, window: Window) -> tuple[int, ...]:
    """Return the step numbers of the window that no time wholly inside it covers."""
    return find_uncovered(steps, mask_window(steps, window), window)


def find_uncovered(steps: Steps, which: Flags, window: Window) -> tuple[int, ...]:
    """Return the step numbers of the window that the times of these rows, a mask of
    shape (n,), do not cover."""
    covered, wanted = (
        find_covered_steps(steps, which, window),
        range(window.first, window.last + 1),
    )
    return (
        ()
        if len(covered) == len(wanted)
        else tuple(step for step in wanted if step not in covered)
    )


def find_covered_steps(steps: Steps, which: Flags, window: Window) -> frozenset[int]:
    """Return the step numbers of the window that the times of these rows, a mask of
    shape (n,), cover."""
    if (steps.mean_of == 1).all():  # single steps, as nearly every log prints them
        return frozenset(steps.index[which & is_inside(steps, window)].tolist())
    bounds = np.array(
        [begins(steps)[which] - window.first, steps.index[which] + 1 - window.first]
    )
    # A mean may claim any number of steps: what opens and closes is counted, and no
    # step of it is listed.
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
    """Return a mask of shape (n,): the times that count, those inside the window."""
    counted = is_inside(steps, window)
    first = begins(steps)[counted]
    if (first[1:] > first[:-1]).all():
        return counted
    # A time whose steps are all in a later one that counts is left out, or they would
    # count twice: the mean of steps 1 and 2 that Megatron prints after step 1.
    rows = np.flatnonzero(counted)
    later = np.minimum.accumulate(first[::-1])[::-1][1:]
    counted[rows[:-1][first[:-1] >= later]] = False
    return counted


def fits(steps: Steps, window: Window) -> bool:
    """Whether steps reach over the whole window, and at least one time lies wholly
    inside it."""
    first, last = int(begins(steps)[0]), int(steps.index[-1])
    return (
        first <= window.first
        and window.last <= last
        and bool(is_inside(steps, window).any())
    )


def choose_mean_steps(steps: Steps, window: Window) -> Window:
    """Return the part of a window that whole means cover, where a log prints the mean
    of every n steps."""
    inside = is_inside(steps, window)
    if (steps.mean_of[inside] == 1).any():
        return window
    return Window(int(begins(steps)[inside].min()), int(steps.index[inside].max()))


def choose_last_half(steps: Steps, planned: float = math.inf) -> Window:
    """Return the window of the last half of the printed times, up to the last step of
    those that were planned."""
    # the first ones are those of a warm-up; OLMo does ten steps more than it was told
    kept = (
        steps.index[steps.index <= planned]
        if steps.index[0] <= planned
        else steps.index
    )
    return Window(int(begins(steps)[len(kept) // 2]), int(kept[-1]))


def count_steps(segment: Segment) -> int:
    """Return how many steps a run has: the total of its log, else those up to its last
    printed step."""
    return segment.total_steps or int(segment.steps.index[-1]) + 1 - segment.first_step


class WindowFrom(StrEnum):
    """What determines the steps that are measured."""

    BASELINE = "baseline"
    OPTION = "option"
    DEFAULT = "default"
    LAST_HALF = "last-half"


def choose_window(
    segment: Segment, of_baseline: Window | None = None, requested: Window | None = None
) -> tuple[Window, WindowFrom]:
    """Choose the steps to measure, for recordings and `llmbench summary`.

    The requested window, else the baseline's if the segment covers it. Without a
    baseline USUAL_WINDOW for runs of up to LONGEST_USUAL steps. Otherwise the last half
    of the steps.
    """
    steps = segment.steps
    if requested is not None:
        return requested, WindowFrom.OPTION
    if of_baseline is not None:
        if fits(steps, of_baseline):
            return of_baseline, WindowFrom.BASELINE
        return choose_last_half(steps), WindowFrom.LAST_HALF
    total = count_steps(segment)
    if total <= LONGEST_USUAL and fits(steps, USUAL_WINDOW):
        return choose_mean_steps(steps, USUAL_WINDOW), WindowFrom.DEFAULT
    return choose_last_half(steps, total - 1 + segment.first_step), WindowFrom.LAST_HALF


def compute_statistic(values: Floats, name: str, mean_of: Sequence[int] = ()) -> float:
    """Return the mean, or the 20 % trimmed mean, of values of shape (n,), n > 0,
    weighted by the steps in each."""
    return (
        compute_mean(values, mean_of)
        if name == "mean"
        else compute_trimmed_mean(values, mean_of)
    )


# --- which times count ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """The steps of a segment, all that its log holds, and masks of shape (n,) over
    them.

    `filled`: the log prints no time there, and the one in `steps` follows from its
    tokens/s. `usable`: a time that a step can take, and not only that of dispatching
    it. `counted`: usable, and in the window.
    """

    steps: Steps
    filled: Flags
    usable: Flags
    counted: Flags
    window: Steps  # those that count


def compute_timing(steps: Steps, baseline: Baseline) -> Timing:
    """Return which times of a segment count in the baseline's window."""
    complete, filled = _with_times_from_tokens(_apply_plan(steps, baseline), baseline)
    possible = (complete.seconds >= compute_possible_seconds(baseline)) & (
        complete.seconds < LONGEST_SECONDS
    )
    usable = possible & ~complete.asynchronous
    counted = np.zeros(len(steps), dtype=np.bool_)
    counted[usable] = mask_window(select_rows(complete, usable), baseline.window)
    return Timing(complete, filled, usable, counted, select_rows(complete, counted))


def select_rows(steps: Steps, which: Flags) -> Steps:
    """Return the steps of a mask of shape (n,)."""
    if which.all():
        return steps
    first, count = int(np.argmax(which)), np.count_nonzero(which)
    in_a_row = which[first : first + count].all()
    selected = _SelectedSteps.__new__(_SelectedSteps)
    object.__setattr__(selected, "_of", steps)
    # a slice takes half as long, and nobody writes to columns
    object.__setattr__(
        selected, "_rows", slice(first, first + count) if in_a_row else which
    )
    return selected


class _SelectedSteps(LazySteps):
    """Rows of other steps."""

    __slots__ = ("_of", "_rows")
    _of: Steps
    _rows: slice | Flags

    def _make_column(self, name: str) -> NDArray[Any]:
        return getattr(self._of, name)[self._rows]  # type: ignore[no-any-return]


def compute_possible_seconds(baseline: Baseline) -> float:
    """Return the step time in seconds at 100 % MFU: no step of this configuration can
    be faster."""
    # Without a peak, or FLOPs, only a step that takes no time can be excluded.
    if math.isnan(baseline.peak_tflops):
        return sys.float_info.min
    fastest = metric_definitions.compute_model_flops_utilization(
        baseline.configuration, 1.0, baseline.peak_tflops
    )
    return sys.float_info.min if math.isnan(fastest) else fastest


def _apply_plan(steps: Steps, baseline: Baseline) -> Steps:
    """Return the mean of a whole run as that of the recipe's number of steps, where its
    digits leave that choice."""
    # A log that prints the time of all steps and a rate of few digits says how many
    # there were as roughly as that; the resolution of its time is as wide as the
    # choice. With the recipe's number it is that of the time alone: two runs of as many
    # steps differ as their times do, however roughly their number is known.
    if len(steps) != 1 or steps.index[0] < 2 or steps.mean_of[0] != steps.index[0]:
        return steps
    nearest = int(steps.index[0])
    numbers = float(steps.resolution_seconds[0] / steps.seconds[0]) * nearest
    if (
        not numbers > 1
        or abs(baseline.steps - nearest)
        > (numbers + 1 + _count_recorded_choice(baseline, numbers)) / 2
    ):
        return steps
    planned = np.array([baseline.steps], dtype=np.int64)
    seconds = steps.seconds * nearest / baseline.steps
    unit = np.minimum(steps.resolution_seconds, seconds * ROUNDED_SHARE)
    return dataclasses.replace(
        steps, index=planned, mean_of=planned, seconds=seconds, resolution_seconds=unit
    )


def _count_recorded_choice(baseline: Baseline, numbers: float) -> float:
    """Return how many numbers of steps the runs that a baseline was made from left: as
    many as this one.

    The number of a recipe is certain.
    """
    return (
        numbers if baseline.recording is not None or baseline.match is not None else 0.0
    )


def _with_times_from_tokens(steps: Steps, baseline: Baseline) -> tuple[Steps, Flags]:
    """Return the steps with a time where none is printed and tokens/s are, and which
    those are."""
    speed = steps.tokens_per_second_per_gpu
    filled: Flags = np.isnan(steps.seconds)
    if filled.any():
        filled &= np.isfinite(speed) & (speed > 0)
    if not filled.any():
        return steps, filled
    of_one_gpu = metric_definitions.compute_tokens_per_second(
        baseline.configuration, 1.0
    ) / (baseline.key.gpus or math.inf)
    if of_one_gpu == 0:  # the baseline's tokens of a step are not known
        return steps, np.zeros_like(filled)
    seconds, unit = steps.seconds.copy(), steps.resolution_seconds.copy()
    seconds[filled] = of_one_gpu / speed[filled]
    unit[filled] = (
        seconds[filled] / speed[filled]
    )  # one digit of tokens/s is one of the time
    return dataclasses.replace(steps, seconds=seconds, resolution_seconds=unit), filled


# --- what a window lacks, in words ----------------------------------------------------


def find_gaps(timed: Timing, baseline: Baseline) -> Iterator[Problem]:
    """Yield what makes the window incomplete, the steps with a time that cannot count
    first."""
    steps, window = timed.steps, baseline.window
    bad = is_inside(steps, window) & ~timed.usable
    wanted, counted = range(window.first, window.last + 1), timed.window.index
    if (
        not bad.any()
        and (steps.mean_of == 1).all()
        and counted.tolist() == list(wanted)
    ):
        return  # each step of the window counts, as in nearly every run
    uncounted = set(find_uncovered(steps, timed.counted, window))
    if not uncounted and not bad.any():
        return
    untimed = bad & np.isnan(steps.seconds) & ~steps.asynchronous
    yield from _find_dispatched(steps, bad & steps.asynchronous)
    yield from _find_impossible(steps, bad & ~untimed & ~steps.asynchronous, baseline)
    lost = uncounted - find_covered_steps(steps, bad, window)
    cut = lost & find_covered_steps(steps, _mask_cut(timed, window), window)
    yield from _find_straddling(timed, cut, window)
    yield from _find_missing(steps, untimed, lost - cut, window)


def _find_dispatched(steps: Steps, bad: Flags) -> Iterator[Problem]:
    if bad.any():
        row = int(np.argmax(bad))
        text = (
            f"step {steps.index[row]} took {steps.seconds[row]:.4g} s only to be dispatched, which says nothing of how "
            f"long it ran ({formatting.count_noun(int(bad.sum()), 'such step')} in the window)"
        )
        yield Problem(Reason.ASYNCHRONOUS_DISPATCH, text, int(steps.line[row]))


def _find_impossible(steps: Steps, bad: Flags, baseline: Baseline) -> Iterator[Problem]:
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
    where = f"of the steps {window.first} to {window.last}"
    alone = f"step {window.first}" if window.first == window.last else ""
    if untimed.any():
        numbers = formatting.join_first(steps.index[untimed].tolist())
        text = (
            f"{alone} has no time"
            if alone
            else f"{int(untimed.sum())} {where} have no time: {numbers}"
        )
        yield Problem(
            Reason.WINDOW_INCOMPLETE, text, int(steps.line[int(np.argmax(untimed))])
        )
    if lost:
        missing = (
            f"{len(lost)} {where} are missing: {formatting.join_first(sorted(lost))}"
        )
        text = (
            f"{alone} is missing" if alone else _describe_sample(steps, lost) or missing
        )
        yield Problem(Reason.WINDOW_INCOMPLETE, text)


def _describe_sample(steps: Steps, lost: set[int]) -> str:
    """Return that a log prints the times of every n-th step alone; empty for one that
    prints them in another way."""
    gaps = np.diff(steps.index)
    every = int(compute_median(gaps)) if len(gaps) >= FEWEST_GAPS else 1
    if every < 2 or (gaps != every).any() or (steps.mean_of != 1).any():
        return ""
    return (
        f"the log prints every {formatting.format_ordinal(every)} step, and its time alone: nothing says how long the "
        f"{len(lost)} others of the window took"
    )


def _mask_cut(timed: Timing, window: Window) -> Flags:
    """Return a mask of shape (n,): means over steps on both sides of an end of the
    window."""
    steps = timed.steps
    touching = (begins(steps) <= window.last) & (steps.index >= window.first)
    cut: Flags = touching & ~is_inside(steps, window) & timed.usable
    return cut


def _find_straddling(timed: Timing, cut: set[int], window: Window) -> Iterator[Problem]:
    """Yield that the window ends within a mean, and which window would not."""
    if not cut:
        return
    steps = timed.steps
    across = np.flatnonzero(_mask_cut(timed, window))
    width = int(compute_median(steps.mean_of[across]))
    usual = len(steps) == 1 or int(compute_median(steps.mean_of)) == width
    row = int(across[0])
    how = (
        f"the log prints every {formatting.format_ordinal(width)} step"
        if usual
        else f"the time at step {steps.index[row]} is the mean of {steps.mean_of[row]} steps"
    )
    whole = timed.counted if timed.counted.any() else _mask_cut(timed, window)
    first, last = int(begins(steps)[whole].min()), int(steps.index[whole].max())
    text = f"{how}: {format_ranges(cut)} not covered; a window of whole intervals is {first} to {last}"
    yield Problem(Reason.WINDOW_INCOMPLETE, text, int(steps.line[row]))


def format_ranges(numbers: Iterable[int]) -> str:
    """Return step numbers with consecutive ones as one, and the verb: `11 to 14, 41 to
    44 are`, `7 is`."""
    ordered = sorted(numbers)
    breaks = np.flatnonzero(np.diff(ordered) > 1) + 1
    parts = [
        (int(part[0]), int(part[-1])) for part in np.split(np.array(ordered), breaks)
    ]
    texts = [
        f"{first}" if first == last else f"{first} to {last}" for first, last in parts
    ]
    return f"{formatting.join_first(texts)} {'is' if len(ordered) == 1 else 'are'}"
