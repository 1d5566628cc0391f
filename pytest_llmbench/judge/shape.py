"""What the step times of a window look like, and what a reader should know of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Measurement, Note, NoteCode
from pytest_llmbench.core.robust import mean, trimmed_mean
from pytest_llmbench.judge.pattern import (
    Pattern,
    WindowColumns,
    describe_slowest,
    find_pattern,
    format_percent,
    list_steps,
)
from pytest_llmbench.judge.slope_within_run import Slope, WarmUp, find_slope, find_warm_up

FEWEST = 3
"""Fewer steps have no shape."""

DISAGREE = 0.01
"""The mean and the trimmed mean say different things if they differ by more than this."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a window, in words and as a kind, and its notes, which change no verdict.

    Kinds: even, one-spike, spikes, periodic, drift, two-levels (slow steps among the others), slow-stretch (slow steps
    in a row). `warming_up`, which is not among the notes, is there if the first third is slower than the rest.
    """

    words: str
    kind: str
    notes: tuple[Note, ...] = ()
    warming_up: Note | None = None


def find_shape(measurement: Measurement) -> Shape:
    """Return the shape of the measured window; it is the same in another unit of time.

    Less than three steps are even: nothing can be told.
    """
    window = _make_columns(measurement)
    if len(window.steps) < FEWEST:
        return Shape("too few steps to show a shape", "even", tuple(filter(None, [_note_moving_mean(window)])))
    resolution = measurement.resolution_seconds
    pattern = find_pattern(window, resolution)
    drifting = find_slope(window.seconds, window.moving_mean)
    warming = _note_warm_up(window, find_warm_up(window.seconds, window.moving_mean, resolution))
    notes = (
        _note_stragglers(window, pattern),
        _note_levels(window, pattern),
        _note_drift(window, drifting),
        _note_means(window),
    )
    kind, words = _name_shape(pattern, drifting, warming)
    return Shape(words, kind, tuple(filter(None, (*notes, _note_moving_mean(window)))), warming)


def _make_columns(measurement: Measurement) -> WindowColumns:
    count, first = len(measurement.window_seconds), measurement.baseline.window.first
    return WindowColumns(
        np.array(measurement.window_seconds, dtype=float),
        measurement.window_steps or tuple(range(first, first + count)),
        measurement.window_lines or (0,) * count,
        measurement.moving_mean,
        measurement.mean_of,
    )


def _name_shape(pattern: Pattern, drifting: Slope | None, warming: Note | None) -> tuple[str, str]:
    """Return kind and words. Levels explain a slope; a slope comes before the stragglers on it."""
    if pattern.kind in ("periodic", "slow-stretch", "two-levels"):
        return pattern.kind, pattern.words
    rest = "" if pattern.kind == "even" else f"; {pattern.words}"
    if drifting:
        return (
            "drift",
            f"drift: {formatting.format_difference(1 + drifting.change)} from the first to the last step{rest}",
        )
    if warming:
        return "drift", warming.text + rest
    return pattern.kind, pattern.words


def _note_stragglers(window: WindowColumns, pattern: Pattern) -> Note | None:
    slow, seconds = pattern.stragglers, window.seconds
    number = int(np.count_nonzero(slow))
    if not number:
        return None
    weights = np.array(window.mean_of or [1] * len(seconds), dtype=float)
    share = float(seconds[slow] @ weights[slow] / (seconds @ weights))
    added = float(np.average(seconds, weights=weights) / np.average(seconds[~slow], weights=weights[~slow])) - 1
    steps, worst = list_steps(window, slow), describe_slowest(window, slow)
    which = "" if worst.startswith(steps) else f"{steps}; "
    several = f"; one slow step shows in {window.moving_mean} values" if window.moving_mean > 1 else ""
    slow_ones = formatting.count_noun(number, "slow mean" if window.mean_of else "straggler")
    text = f"{slow_ones}, {format_percent(share)} of the time, +{format_percent(added)} on the mean"
    text = f"{text}: {which}{worst}{several}"
    return Note(NoteCode.STRAGGLERS, text, window.lines[int(np.argmax(seconds))])


def _note_levels(window: WindowColumns, pattern: Pattern) -> Note | None:
    """Return the note on slow steps that are more than stragglers; a moving mean makes levels of a few of those."""
    if pattern.kind not in ("slow-stretch", "two-levels") and not (pattern.levels and pattern.kind == "periodic"):
        return None
    slow = pattern.levels.slow if pattern.levels else pattern.stragglers
    return Note(NoteCode.TWO_LEVELS, pattern.words, window.lines[int(np.argmax(slow))])


def _note_drift(window: WindowColumns, drifting: Slope | None) -> Note | None:
    if drifting is None:
        return None
    text = f"{formatting.format_difference(1 + drifting.change)} from step {window.begin(0)} to step {window.steps[-1]}"
    return Note(NoteCode.DRIFT, f"drift: {text} (p {drifting.p:.1g})", window.lines[0])


def _note_warm_up(window: WindowColumns, warm_up: WarmUp | None) -> Note | None:
    if warm_up is None:
        return None
    first, last = window.begin(0), window.steps[warm_up.steps - 1]
    text = f"warm-up not over: steps {first} to {last} are {format_percent(warm_up.excess)} slower than the rest"
    return Note(NoteCode.WARM_UP, f"{text} (z {min(warm_up.z, 99):.3g})", window.lines[0])


def _note_means(window: WindowColumns) -> Note | None:
    """Return the note that the mean and the trimmed mean differ by more than 1 %, and which steps do it."""
    middle, trimmed = mean(window.seconds, window.mean_of), trimmed_mean(window.seconds, window.mean_of)
    if abs(middle / trimmed - 1) <= DISAGREE:
        return None
    driver = "slow steps" if middle > trimmed else "fast steps"
    text = f"mean {formatting.format_seconds(middle)}, 20 % trimmed mean {formatting.format_seconds(trimmed)}"
    return Note(NoteCode.MEAN_AND_TRIMMED, f"{text}: {driver} drive the mean")


def _note_moving_mean(window: WindowColumns) -> Note | None:
    if window.moving_mean == 1:
        return None
    count = len(window.steps)
    independent = max(count // window.moving_mean, 1)
    text = f"the log prints means of {window.moving_mean} steps: {formatting.count_noun(count, 'value')}"
    return Note(NoteCode.MOVING_MEAN, f"{text}, about {independent} of them independent")
