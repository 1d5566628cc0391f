"""Step times against the clock of the lines: time that passes between steps, and clocks
that were set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline, Window
from pytest_llmbench.core.codes import NoteCode, Observed, Reason
from pytest_llmbench.core.formatting import count_noun, format_seconds
from pytest_llmbench.core.log_records import HOUR, SLACK, Checkpoints, PauseKind
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.core.run_records import Note, Problem
from pytest_llmbench.runs.measure import pauses
from pytest_llmbench.runs.measure.outside_steps import RunShare, measure_share
from pytest_llmbench.runs.measure.pauses import Pauses
from pytest_llmbench.runs.measure.window import Timing

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats, Integers, Steps

FEWEST_LINES = 3  # fewer stamps show no course of time

# Lines whose stamps lie nearer than this share of the steps between them were written
# together, some of them late
BURST = 0.1

# A gap is longer than its steps by more than this share of them, and these seconds
GAP, GAP_SECONDS = 0.2, 2.0
LIKELY = 0.5  # by this share of that where a regular gap is due

RISE = 0.1  # the ratio of wall clock to step times may rise by this much
NOTABLE = 0.05  # half as much is worth a caution
RISE_SECONDS = 30.0  # and by these seconds, in whatever few gaps
SPREAD_SECONDS = 10.0  # or by these, if they are spread over many steps
LARGEST_GAPS = (
    0.1  # the share of the intervals, the longest, without which a rise is spread
)

# by this factor no time between steps explains the clock: the printed times are in
# another unit
GROSS = 10.0
FEWEST_INTERVALS = 8  # of fewer nothing shows their usual pace
REGULAR, REGULAR_FACTOR = (
    0.8,
    2.0,
)  # the share of the intervals that keep the pace, give or take this factor
# lines that are written at once, after the run, are less than these seconds apart
FASTEST_CLOCK = 0.01

OUTSIDE_SECONDS = 300.0  # gaps outside the window may take this long

# The share of the steps whose times have to be those between the stamps, for a log that
# prints no other times
FROM_STAMPS = 0.9
ROUNDING = 2e-6  # the seconds that computing leaves of a difference between equal times


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """The time between lines with stamps, arrays of shape (n,): one interval ends at
    each row of `row`."""

    row: Integers  # of the steps
    first: Integers  # the steps that it is of
    last: Integers
    passed: Floats  # seconds by the clock of the lines
    took: Floats  # by the step times
    pause: (
        Integers  # the kinds of evaluations and saves in it (`PauseKind`), 0 for none
    )
    # the interval in which the clock was set by an hour, which `passed` does not
    # contain
    set_clock: int = -1
    set_back: Flags | None = (
        None  # the clock goes back otherwise; None if it never does
    )

    @property
    def lost(self) -> Floats:
        """The seconds that no step took."""
        return self.passed - self.took

    @property
    def paused(self) -> Flags:
        """The intervals with an evaluation or a save."""
        paused: Flags = self.pause > 0
        return paused

    def find_gaps(self, share: float = 1.0) -> Flags:
        """Return the intervals that are much longer than their steps, or by this share
        of that."""
        gaps: Flags = self.lost > share * (GAP * self.took + GAP_SECONDS)
        return gaps


@dataclass(frozen=True, slots=True)
class ClockRatio:
    """Wall clock over step times in some steps, whole and without the longest gaps."""

    passed: float
    took: float
    spread_passed: float
    spread_took: float

    @property
    def ratio(self) -> float:
        """Wall clock over step times."""
        return self.passed / self.took


@dataclass(frozen=True, slots=True, eq=False)
class ClockCheck:
    """What the stamps of a run show beside its step times."""

    intervals: Intervals
    window: ClockRatio | None  # None without an interval in the window
    run: ClockRatio | None  # after the warm-up
    share: RunShare
    outside_seconds: float  # lost in gaps outside the window that nothing explains
    outside_row: int  # of the longest of them, -1 without any
    pauses: Pauses
    from_stamps: bool  # the step times are those between the stamps
    work_per_step: (
        float  # the printed rate x the step time over the window, NaN without either
    )


def compare_clocks(
    timed: Timing, window: Window, checkpoints: Checkpoints, *, announced: bool
) -> ClockCheck | None:
    """Compare the step times of a segment with its stamps; None without stamps.

    Unless evaluations and saves are `announced` in its log, gaps that come back after
    every so many steps are them.
    """
    intervals = find_intervals(timed)
    if intervals is None:
        return None
    if not announced:
        intervals = _mark_regular(intervals)
    share = measure_share(timed, window)
    gaps = intervals.find_gaps()
    free = ~intervals.paused
    inside = free & (intervals.first >= window.first) & (intervals.last <= window.last)
    late = free & (intervals.first >= share.first)
    # Also in the warm-up: a step is slow there, but no time passes that no step takes.
    outside = (
        free
        & ((intervals.first < window.first) | (intervals.last > window.last))
        & gaps
    )
    paused = np.flatnonzero(gaps & intervals.paused)
    lost = np.where(outside, intervals.lost, 0.0)
    from_stamps = bool(
        np.mean(np.abs(intervals.lost) <= ROUNDING * (1 + intervals.took))
        >= FROM_STAMPS
    )
    return ClockCheck(
        intervals=intervals,
        window=_compute_ratio(intervals, inside),
        run=_compute_ratio(intervals, late),
        share=share,
        outside_seconds=float(lost.sum()),
        outside_row=int(intervals.row[int(np.argmax(lost))]) if outside.any() else -1,
        pauses=pauses.make_pauses(
            intervals.row[paused],
            intervals.pause[paused],
            intervals.lost[paused],
            timed.steps.line,
            checkpoints,
        ),
        from_stamps=from_stamps,
        work_per_step=_compute_work(timed) if from_stamps else float("nan"),
    )


def find_intervals(timed: Timing) -> Intervals | None:
    """Return the time between the lines that have a stamp; None for fewer than
    FEWEST_LINES.

    Of lines that were written together the last one counts. An hour by which the clock
    was set is taken out.
    """
    steps = timed.steps
    stamped = np.flatnonzero(np.isfinite(steps.stamp))
    if len(stamped) < FEWEST_LINES:
        return None
    seconds = np.where(timed.usable, steps.seconds, np.nan)
    intervals, own = _measure_intervals(steps, stamped, seconds)
    valid = np.isfinite(intervals.took) & (intervals.took > 0)
    if pauses.is_usual_work(intervals.first, intervals.pause):
        intervals = replace(intervals, pause=np.zeros_like(intervals.pause))
    back = ~own & (intervals.passed < -SLACK)
    if back.any():
        # the clock of another process, which began with its steps
        anew = back & np.isfinite(steps.since[intervals.row])
        back &= ~anew
        untimed = back & ~valid  # steps that are timed by their stamps
        usual = (intervals.last - intervals.first + 1) * float(np.nanmedian(seconds))
        intervals = replace(intervals, took=np.where(untimed, usual, intervals.took))
        valid = (valid & ~anew) | untimed
    if not valid.any():
        return None
    intervals = _take_hour_out(
        Intervals(
            intervals.row[valid],
            intervals.first[valid],
            intervals.last[valid],
            intervals.passed[valid],
            intervals.took[valid],
            intervals.pause[valid],
        )
    )
    return _mirror_jumps_back(intervals, back[valid]) if back.any() else intervals


def _measure_intervals(
    steps: Steps, stamped: Integers, seconds: Floats
) -> tuple[Intervals, Flags]:
    """Return the intervals between stamped lines, and a mask of those that their own
    line times. `took` is NaN if a step of the interval is untimed."""
    took = np.append(0.0, np.diff(steps.index) * seconds[1:])
    known = np.cumsum(np.nan_to_num(took))
    unknown = np.cumsum(np.isnan(took))
    row = _keep_last_of_bursts(stamped, steps.stamp, known)
    start, end = row[:-1], row[1:]
    passed = np.diff(steps.stamp[row])
    expected = np.where(np.diff(unknown[row]) > 0, np.nan, np.diff(known[row]))
    pause = _merge_pauses(steps.paused, row)
    since = steps.since[end]
    own = (
        np.isfinite(since) & (steps.stamp[start] <= since) & (since <= steps.stamp[end])
    )
    if own.any():  # the line itself says from when on its steps are timed
        passed = np.where(own, steps.stamp[end] - since, passed)
        expected = np.where(own, seconds[end] * steps.mean_of[end], expected)
        pause = np.where(own, 0, pause)
    first, last = steps.index[start] + 1, steps.index[end]
    return Intervals(end, first, last, passed, expected, pause), own


def _keep_last_of_bursts(rows: Integers, stamp: Floats, known: Floats) -> Integers:
    """Return the rows without those whose next line has nearly the same stamp, though
    its steps take longer."""
    passed, took = np.diff(stamp[rows]), np.diff(known[rows])
    late = (passed >= 0) & (passed < BURST * took)
    kept: Integers = rows[np.append(~late, True)]
    return kept


def _merge_pauses(paused: Integers, rows: Integers) -> Integers:
    """Return the kinds of pauses between each two of these rows."""
    merged = np.zeros(len(rows) - 1, dtype=np.int64)
    if paused.any():
        for kind in PauseKind:
            merged += kind * (np.diff(np.cumsum(paused & kind > 0)[rows]) > 0)
    return merged


def _mark_regular(intervals: Intervals) -> Intervals:
    """Return the intervals with the gaps marked that come back after every so many
    steps."""
    gaps = intervals.find_gaps() & ~intervals.paused
    regular = pauses.find_regular(
        intervals.first, intervals.last, gaps, intervals.find_gaps(LIKELY)
    )
    return replace(
        intervals, pause=np.where(regular, PauseKind.REGULAR, intervals.pause)
    )


def _take_hour_out(intervals: Intervals) -> Intervals:
    """Return the intervals without an hour by which the clock was set, once, in one of
    them."""
    jumps = np.flatnonzero(
        (np.abs(intervals.lost) >= HOUR - SLACK) | (intervals.passed < -SLACK)
    )
    if len(jumps) != 1:
        return intervals
    place = int(jumps[0])
    lost = float(intervals.lost[place])
    if abs(abs(lost) - HOUR) > SLACK + float(intervals.took[place]):
        return intervals
    passed = intervals.passed.copy()
    passed[place] -= HOUR if lost > 0 else -HOUR
    return replace(intervals, passed=passed, set_clock=place)


def _mirror_jumps_back(intervals: Intervals, back: Flags) -> Intervals:
    """Return the intervals with a gap of the same size where the clock goes back,
    unless it was set by an hour.

    What passed there is unknown: an hour that was set back hides a gap of 50 minutes.
    """
    if intervals.set_clock >= 0:
        back = back.copy()
        back[intervals.set_clock] = False
    passed = np.where(back, intervals.took + np.abs(intervals.lost), intervals.passed)
    pause = np.where(back, 0, intervals.pause)
    return replace(
        intervals, passed=passed, pause=pause, set_back=back if back.any() else None
    )


def _compute_ratio(intervals: Intervals, which: Flags) -> ClockRatio | None:
    if not which.any():
        return None
    passed, took, lost = (
        intervals.passed[which],
        intervals.took[which],
        intervals.lost[which],
    )
    rest = np.argsort(lost)[: len(lost) - max(1, int(LARGEST_GAPS * len(lost)))]
    return ClockRatio(
        float(passed.sum()),
        float(took.sum()),
        float(passed[rest].sum()),
        float(took[rest].sum()),
    )


def _compute_work(timed: Timing) -> float:
    """Return the printed rate x the step time over the window: the work of a step in
    the rate's unit.

    The rate is the median: some logs print that of one step only, which may be the
    stalled one.
    """
    window, rate = timed.window, _get_rates(timed)
    rated = np.isfinite(rate) & (rate > 0)
    if not rated.any():
        return float("nan")
    return compute_median(rate[rated]) * float(
        np.average(window.seconds[rated], weights=window.mean_of[rated])
    )


def _get_rates(timed: Timing) -> Floats:
    """Return the printed rate of each step of the window."""
    rates = timed.window.throughput
    if np.isfinite(rates).any():
        return rates
    return timed.window.tokens_per_second_per_gpu


# --- what a recording keeps, and what is said of a run beside it ----------------------


def observe(check: ClockCheck | None) -> Iterator[tuple[Observed, float]]:
    """Yield what a recording keeps of a run's clock, by a name of `Observed`."""
    if check is None:
        return
    if check.window is not None:
        yield Observed.WALL_CLOCK_RATIO, check.window.ratio
    if check.run is not None and check.run.spread_took > 0:
        yield Observed.RUN_CLOCK_RATIO, check.run.spread_passed / check.run.spread_took
        yield Observed.OUTSIDE_GAPS, check.share.to_fraction(check.outside_seconds)
    yield from pauses.observe(check.pauses)
    if np.isfinite(check.work_per_step):
        yield Observed.WORK_PER_STEP, check.work_per_step


def find_problems(
    check: ClockCheck | None,
    timed: Timing,
    baseline: Baseline,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Problem]:
    """Yield where the clock of the lines contradicts the step times more than it did
    when the baseline was recorded.

    `recorded` are the values of its recording by their names in `Observed`; what it
    lacks is not compared.
    """
    if check is None:
        return
    yield from _find_risen(check, timed, baseline, recorded)
    yield from _find_outside(check, timed, recorded, baseline, tolerance)
    yield from _find_hidden(check, timed, baseline, recorded, tolerance)


def find_unit_mismatch(timed: Timing) -> Iterator[Problem]:
    """Yield step times of another order of magnitude than the time between the stamps
    of their lines."""
    steps = timed.steps
    passed, took = (
        np.diff(steps.stamp),
        np.diff(steps.index) * np.where(timed.usable, steps.seconds, np.nan)[1:],
    )
    known = np.isfinite(passed) & np.isfinite(took) & (took > 0)
    if np.count_nonzero(known) < FEWEST_INTERVALS:
        return
    ratios = passed[known] / took[known]
    ratio = compute_median(ratios)
    if (
        1 / GROSS < ratio < GROSS
        or ratio <= 0
        or compute_median(passed[known]) < FASTEST_CLOCK
    ):
        return
    if (
        np.mean((ratios >= ratio / REGULAR_FACTOR) & (ratios <= ratio * REGULAR_FACTOR))
        >= REGULAR
    ):
        text = (
            f"a step of {format_seconds(compute_median(steps.seconds[1:][known]))} takes "
            f"{format_seconds(compute_median(passed[known] / np.diff(steps.index)[known]))} by the stamps of the "
            "lines: its time is in another unit, or of something else"
        )
        yield Problem(Reason.TIMES_DISAGREE, text, int(steps.line[1:][known][0]))


def _find_risen(
    check: ClockCheck, timed: Timing, baseline: Baseline, recorded: Mapping[str, float]
) -> Iterator[Problem]:
    window, run = (
        recorded.get(Observed.WALL_CLOCK_RATIO),
        recorded.get(Observed.RUN_CLOCK_RATIO),
    )
    if (
        window is not None
        and check.window is not None
        and has_risen(check.window, window)
    ):
        text = (
            f"the clock of its lines advances {_describe(check.window)} in the window, recorded was x{window:.3f}: "
            "time passes between the steps that no step time contains"
        )
        yield Problem(
            Reason.WALL_CLOCK, text, _find_longest_line(check, timed, baseline.window)
        )
    elif (
        run is not None
        and check.run is not None
        and has_spread(check.run, run, RISE_SECONDS)
    ):
        text = (
            f"the clock of its lines advances {_describe(check.run)} after the warm-up, recorded was x{run:.3f}: "
            "time passes between the steps that no step time contains"
        )
        yield Problem(Reason.WALL_CLOCK, text, _find_longest_line(check, timed, None))


def _find_outside(
    check: ClockCheck,
    timed: Timing,
    recorded: Mapping[str, float],
    baseline: Baseline,
    tolerance: float,
) -> Iterator[Problem]:
    """Yield gaps that take more than the tolerance of the run, beyond those of recorded
    runs.

    Outside the window those that nothing explains, and anywhere what evaluations and
    saves take beyond others.
    """
    known = recorded.get(Observed.OUTSIDE_GAPS)
    if known is None:
        return
    usual = recorded.get(Observed.WALL_CLOCK_RATIO, 1.0) - 1
    gaps = max(
        0.0, check.outside_seconds - check.share.allow_seconds(known, baseline, usual)
    )
    if is_long(check, gaps, tolerance):
        text = f"{_describe_gaps(check, timed)}; recorded were {known * 100:.3g} %, and no step time contains them"
        yield Problem(Reason.WALL_CLOCK, text, int(timed.steps.line[check.outside_row]))
        return
    excess = pauses.compute_excess(check.pauses, recorded)
    longer = float(np.nansum(excess))
    if longer > 0 and is_long(check, gaps + longer, tolerance):
        yield Problem(Reason.WALL_CLOCK, *_describe_pauses(check, timed, excess))


def is_long(check: ClockCheck, seconds: float, tolerance: float) -> bool:
    """Tell whether gaps take longer than the tolerance of the run, and
    OUTSIDE_SECONDS."""
    return seconds > max(OUTSIDE_SECONDS, check.share.to_seconds(tolerance))


def _describe_gaps(check: ClockCheck, timed: Timing) -> str:
    seconds = check.outside_seconds
    return (
        f"gaps between steps outside the window take {format_seconds(seconds)}, "
        f"{check.share.to_fraction(seconds) * 100:.3g} % of the run's step time; the longest is before step "
        f"{timed.steps.index[check.outside_row]}"
    )


def _describe_pauses(
    check: ClockCheck, timed: Timing, excess: Floats
) -> tuple[str, int]:
    """Return what is said of pauses that are longer than others, and the line behind
    the longest."""
    longest = int(np.argmax(np.nan_to_num(excess)))
    name, line = _name_pause_before_step(check, timed, longest)
    text = (
        f"the {name} takes "
        f"{format_seconds(float(check.pauses.seconds[longest]))}, longer than others of this run or recorded ones "
        f"allow: {format_seconds(float(np.nansum(excess)))} in all, which no step time contains"
    )
    return text, line


def _name_pause_before_step(
    check: ClockCheck, timed: Timing, pause: int
) -> tuple[str, int]:
    """Return `save before step 30` for a pause by its index, and the line of that
    step."""
    row = int(check.pauses.row[pause])
    name = name_pause(PauseKind(int(check.pauses.kind[pause])))
    return f"{name} before step {timed.steps.index[row]}", int(timed.steps.line[row])


def name_pause(kind: PauseKind) -> str:
    """Return what a pause is called."""
    names = {
        PauseKind.EVALUATION: "evaluation",
        PauseKind.SAVE: "save",
        PauseKind.REGULAR: "regular gap",
    }
    return " and ".join(name for each, name in names.items() if kind & each)


def _find_hidden(
    check: ClockCheck,
    timed: Timing,
    baseline: Baseline,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Problem]:
    """Yield a step time by the clock that is shorter than the printed rate allows (the
    clock was set back), and rates of 0, which allow any."""
    work = recorded.get(Observed.WORK_PER_STEP)
    if work is None or not check.from_stamps or not len(timed.window):
        return
    line = int(timed.window.line[0])
    seconds = float(np.average(timed.window.seconds, weights=timed.window.mean_of))
    # A rate below 1 may be printed as 0.
    if work >= seconds and _prints_zero_rates(timed):
        text = (
            f"each step of the window prints a rate of 0, the recorded runs did {work:.6g} samples or tokens a step by "
            "theirs: nothing but the stamps of the lines shows how long a step takes"
        )
        yield Problem(Reason.TIMES_DISAGREE, text, line)
    if not check.work_per_step > 0:
        return
    hidden = work / check.work_per_step
    by_rate = seconds * hidden
    if hidden - 1 > tolerance + _get_rate_unit(
        timed
    ) and by_rate > baseline.step_seconds * (1 + tolerance):
        text = (
            f"a step takes {format_seconds(seconds)} by the stamps of its lines and {format_seconds(by_rate)} by the "
            f"rate that they print, with {work:.6g} samples or tokens a step as recorded: the clock was set back, or "
            "a step does less"
        )
        yield Problem(Reason.TIMES_DISAGREE, text, line)


def _prints_zero_rates(timed: Timing) -> bool:
    """True if a rate of each step of the window is printed, and all are 0."""
    window = timed.window
    printed = (window.throughput, window.tokens_per_second_per_gpu)
    known = [rates for rates in printed if np.isfinite(rates).any()]
    return bool(known) and all((rates == 0).all() for rates in known)


def _get_rate_unit(timed: Timing) -> float:
    """Return how much of a printed rate one unit in its last place is, as far as whole
    numbers show it."""
    rates = _get_rates(timed)
    rates = rates[np.isfinite(rates) & (rates > 0)]
    whole = len(rates) and (rates == np.floor(rates)).all()
    return 1 / compute_median(rates) if whole else 0.0


def has_risen(ratio: ClockRatio, usual: float) -> bool:
    """Tell whether the clock advances more than usual: by long gaps, or by less that is
    spread over many steps."""
    return _exceeds(ratio.passed, usual * ratio.took, RISE_SECONDS) or has_spread(
        ratio, usual, SPREAD_SECONDS
    )


def is_notable(ratio: ClockRatio, usual: float | None) -> bool:
    """Tell whether the clock advances so much more than usual that it is worth a
    caution, and is not red."""
    if usual is None:
        return has_risen(ratio, 1.0)
    notable = _exceeds(ratio.passed, usual * ratio.took, RISE_SECONDS, NOTABLE)
    return notable and not has_risen(ratio, usual)


def has_spread(ratio: ClockRatio, usual: float, seconds: float) -> bool:
    """Tell whether it advances more than usual, by these seconds, without the longest
    gaps."""
    return _exceeds(ratio.spread_passed, usual * ratio.spread_took, seconds)


def _exceeds(
    passed: float, expected: float, seconds: float, share: float = RISE
) -> bool:
    """True if more time passed than expected: by these seconds and this share of it."""
    excess = passed - expected
    return excess >= seconds and excess >= share * expected


def _describe(ratio: ClockRatio) -> str:
    passed, took = format_seconds(ratio.passed), format_seconds(ratio.took)
    return f"{passed} while the step times add up to {took} (x{ratio.ratio:.3f})"


def _find_longest_line(check: ClockCheck, timed: Timing, window: Window | None) -> int:
    """Return the line behind the longest gap, in a window or after the warm-up."""
    intervals = check.intervals
    first, last = (
        (window.first, window.last)
        if window
        else (check.share.first, int(timed.steps.index[-1]))
    )
    inside = ~intervals.paused & (intervals.first >= first) & (intervals.last <= last)
    row = int(intervals.row[int(np.argmax(np.where(inside, intervals.lost, -np.inf)))])
    return int(timed.steps.line[row])


def list_notes(
    check: ClockCheck | None,
    timed: Timing,
    window: Window,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Note]:
    """Yield what the clock shows that makes a run no worse, or that nothing recorded
    can be compared with."""
    if check is None:
        return
    intervals, steps = check.intervals, timed.steps
    if intervals.set_clock >= 0:
        row = int(intervals.row[intervals.set_clock])
        text = f"the clock was set by an hour before step {steps.index[row]}: the hour is taken out"
        yield Note(NoteCode.CLOCK_SET, text, int(steps.line[row]))
    if intervals.set_back is not None:
        place = int(np.argmax(intervals.set_back))
        seconds = format_seconds(float(intervals.lost[place]))
        row = int(intervals.row[place])
        text = f"the clock goes back by {seconds} before step {steps.index[row]}: how long that step took is unknown"
        yield Note(NoteCode.CLOCK_SET, text, int(steps.line[row]))
    if len(check.pauses.row):
        yield from _note_pauses(check, timed)
    yield from _note_uncompared(check, timed, window, recorded, tolerance)


def _note_pauses(check: ClockCheck, timed: Timing) -> Iterator[Note]:
    row = int(check.pauses.row[0])
    count, seconds = (
        count_noun(len(check.pauses.row), "gap"),
        format_seconds(float(check.pauses.seconds.sum())),
    )
    regular = bool((check.pauses.kind == PauseKind.REGULAR).all())
    where = (
        "at regular distances, as of evaluations or saves"
        if regular
        else "around evaluations or saves"
    )
    text = f"{count} of {seconds} in all {where}, not part of any step time; the first is before step"
    yield Note(
        NoteCode.PAUSES, f"{text} {timed.steps.index[row]}", int(timed.steps.line[row])
    )


def _note_uncompared(
    check: ClockCheck,
    timed: Timing,
    window: Window,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Note]:
    """Yield the time outside the steps that no recording can be compared with, and that
    would be red beside one."""
    steps = timed.steps
    usual = recorded.get(Observed.WALL_CLOCK_RATIO)
    if check.window is not None and is_notable(check.window, usual):
        beside = (
            "no recording to compare it with"
            if usual is None
            else f"recorded was x{usual:.3f}"
        )
        text = f"the clock of its lines advances {_describe(check.window)} in the window; {beside}"
        yield Note(NoteCode.WALL_CLOCK, text, _find_longest_line(check, timed, window))
    excess = pauses.compute_excess(check.pauses, recorded)
    if Observed.OUTSIDE_GAPS not in recorded:
        if is_long(check, check.outside_seconds, tolerance):
            line = int(steps.line[check.outside_row])
            yield Note(
                NoteCode.WALL_CLOCK,
                f"{_describe_gaps(check, timed)}; no recording to compare them with",
                line,
            )
        if is_long(check, float(np.nansum(excess)), tolerance):
            yield Note(NoteCode.WALL_CLOCK, *_describe_pauses(check, timed, excess))
    yield from _note_new_pauses(check, timed, recorded, tolerance)


def _note_new_pauses(
    check: ClockCheck, timed: Timing, recorded: Mapping[str, float], tolerance: float
) -> Iterator[Note]:
    """Yield long pauses that recorded runs did not have, and that are too few to show
    how long they usually are."""
    new = pauses.find_new(check.pauses, recorded)
    seconds = np.where(new, check.pauses.seconds, 0.0)
    if not is_long(check, float(seconds.sum()), tolerance):
        return
    name, line = _name_pause_before_step(check, timed, int(np.argmax(seconds)))
    text = (
        f"{count_noun(int(new.sum()), 'gap')} of {format_seconds(float(seconds.sum()))} in all that recorded runs did "
        f"not have; the longest is the {name}"
    )
    yield Note(NoteCode.WALL_CLOCK, text, line)
