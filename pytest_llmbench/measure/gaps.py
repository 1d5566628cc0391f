"""What a window lacks, in words: steps without a time, with one that no step can have, or cut by a mean of several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Baseline, Problem, Reason, Steps, Window
from pytest_llmbench.measure.timing import Timing, possible_seconds
from pytest_llmbench.measure.window import begins, find_covered_steps, find_uncovered, is_inside

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Flags


def find_gaps(timed: Timing, baseline: Baseline) -> Iterator[Problem]:
    """Yield what makes the window incomplete, the steps with a time that cannot count first."""
    steps, window = timed.steps, baseline.window
    bad = is_inside(steps, window) & ~timed.usable
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
        fastest = possible_seconds(baseline)
        bound = "" if math.isnan(baseline.peak_tflops) else f"; 100 % MFU would be {fastest:.4g} s"
        text = f"step {steps.index[row]} took {steps.seconds[row]:.4g} s{bound}"
        yield Problem(Reason.IMPOSSIBLE_SAMPLE, text, int(steps.line[row]))


def _find_missing(steps: Steps, untimed: Flags, lost: set[int], window: Window) -> Iterator[Problem]:
    where = f"of the steps {window.first} to {window.last}"
    alone = f"step {window.first}" if window.first == window.last else ""
    if untimed.any():
        numbers = formatting.join_first(steps.index[untimed].tolist())
        text = f"{alone} has no time" if alone else f"{int(untimed.sum())} {where} have no time: {numbers}"
        yield Problem(Reason.WINDOW_INCOMPLETE, text, int(steps.line[int(np.argmax(untimed))]))
    if lost:
        text = (
            f"{alone} is missing"
            if alone
            else f"{len(lost)} {where} are missing: {formatting.join_first(sorted(lost))}"
        )
        yield Problem(Reason.WINDOW_INCOMPLETE, text)


def _mask_cut(timed: Timing, window: Window) -> Flags:
    """Return a mask of shape (n,): means over steps on both sides of an end of the window."""
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
    width = int(np.median(steps.mean_of[across]))
    usual = len(steps) == 1 or int(np.median(steps.mean_of)) == width
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
    """Return step numbers with consecutive ones as one, and the verb: `11 to 14, 41 to 44 are`, `7 is`."""
    ordered = sorted(numbers)
    breaks = np.flatnonzero(np.diff(ordered) > 1) + 1
    parts = [(int(part[0]), int(part[-1])) for part in np.split(np.array(ordered), breaks)]
    texts = [f"{first}" if first == last else f"{first} to {last}" for first, last in parts]
    return f"{formatting.join_first(texts)} {'is' if len(ordered) == 1 else 'are'}"
