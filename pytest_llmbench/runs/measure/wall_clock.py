"""Compare step times with the timestamps of the log lines.

Finds time that passes between steps, and clocks that were changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

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

FEWEST_LINES = 3  # fewer timestamps are not compared

# Lines were written together, some of them late, if their timestamps are closer than
# this share of the step times between them
BURST_SHARE = 0.1

# A gap exceeds its step times by more than this share of them plus these seconds
GAP_SHARE, GAP_SECONDS = 0.2, 2.0
LIKELY_SHARE = 0.5  # a share of GAP_SHARE that suffices if a regular gap is due

RISE = 0.1  # the ratio of wall clock to step times may rise by this much
NOTABLE = 0.05  # a smaller rise that is noted
RISE_SECONDS = 30.0  # a rise also exceeds these seconds
SPREAD_SECONDS = 10.0  # or these seconds, if spread over many steps
# a rise is spread if it persists without this share of the intervals, the longest
LARGEST_GAPS = 0.1

# A larger factor between clock and step times cannot be time between steps: the
# printed times are in another unit
GROSS_FACTOR = 10.0
FEWEST_INTERVALS = 8  # fewer intervals do not show a regular pace
# the share of the intervals whose ratio is within this factor of the median
REGULAR_SHARE, REGULAR_FACTOR = (0.8, 2.0)
# lines written all at once after the run are less than these seconds apart
FASTEST_CLOCK = 0.01

OUTSIDE_SECONDS = 300.0  # gaps outside the window may take this long

# A log has no step times but those between timestamps if at least this share of the
# step times equal them
FROM_STAMPS = 0.9
ROUNDING = 2e-6  # seconds by which equal times may differ after floating-point rounding


class Intervals(Struct, frozen=True, eq=False):
    """The time between timestamped lines, arrays of shape (n,).

    Interval `i` ends at row `row[i]` of the steps.
    """

    row: Integers  # of the steps
    first: Integers  # the first step of the interval
    last: Integers
    passed: Floats  # seconds by the timestamps
    took: Floats  # seconds by the step times
    # the kinds of evaluations and saves in the interval (`PauseKind`), 0 for no pause
    pause: Integers
    # the interval in which the clock was changed by an hour (corrected in `passed`), or
    # -1
    set_clock: int = -1
    # intervals in which the clock otherwise goes back; None if there are none
    set_back: Flags | None = None

    @property
    def lost(self) -> Floats:
        """Seconds between the steps, not part of any step time."""
        return self.passed - self.took

    @property
    def paused(self) -> Flags:
        """Mask of the intervals with an evaluation or a save."""
        paused: Flags = self.pause > 0
        return paused

    def find_gaps(self, share: float = 1.0) -> Flags:
        """Return a mask of the intervals that are much longer than their steps.

        `share` scales the threshold.
        """
        gaps: Flags = self.lost > share * (GAP_SHARE * self.took + GAP_SECONDS)
        return gaps


class ClockRatio(Struct, frozen=True):
    """Wall clock and step times of some steps, in seconds: `passed` and `took`.

    The `spread_` fields omit the longest gaps.
    """

    passed: float
    took: float
    spread_passed: float
    spread_took: float

    @property
    def ratio(self) -> float:
        """Wall clock divided by step times."""
        return self.passed / self.took


class ClockCheck(Struct, frozen=True, eq=False):
    """The comparison of a run's timestamps with its step times."""

    intervals: Intervals
    window: ClockRatio | None  # None without an interval in the window
    run: ClockRatio | None  # after the warm-up
    share: RunShare
    outside_seconds: float  # lost in unexplained gaps outside the window
    outside_row: int  # the row of the longest such gap, or -1
    pauses: Pauses
    from_stamps: bool  # true if the step times are those between the timestamps
    # the printed rate x the step time over the window, NaN if unknown
    work_per_step: float


def compare_clocks(
    timing: Timing, window: Window, checkpoints: Checkpoints, *, announced: bool
) -> ClockCheck | None:
    """Compare the step times of a segment with its timestamps.

    None if the log has too few timestamps. If the dialect does not announce evaluations
    and saves, gaps that recur at regular intervals count as pauses.
    """
    intervals = find_intervals(timing)
    if intervals is None:
        return None
    if not announced:
        intervals = _mark_regular(intervals)
    share = measure_share(timing, window)
    is_gap = intervals.find_gaps()
    unpaused = ~intervals.paused
    in_window = (intervals.first >= window.first) & (intervals.last <= window.last)
    after_warm_up = intervals.first >= share.first
    # Gaps in the warm-up count, too: only its steps are slow, not the time between.
    outside_gaps = unpaused & ~in_window & is_gap
    lost_outside = np.where(outside_gaps, intervals.lost, 0.0)
    outside_row = -1
    if outside_gaps.any():
        outside_row = int(intervals.row[int(np.argmax(lost_outside))])
    paused_gaps = np.flatnonzero(is_gap & intervals.paused)
    equals_stamps = np.abs(intervals.lost) <= ROUNDING * (1 + intervals.took)
    from_stamps = bool(np.mean(equals_stamps) >= FROM_STAMPS)
    return ClockCheck(
        intervals=intervals,
        window=_compute_ratio(intervals, unpaused & in_window),
        run=_compute_ratio(intervals, unpaused & after_warm_up),
        share=share,
        outside_seconds=float(lost_outside.sum()),
        outside_row=outside_row,
        pauses=pauses.make_pauses(
            intervals.row[paused_gaps],
            intervals.pause[paused_gaps],
            intervals.lost[paused_gaps],
            timing.steps.line,
            checkpoints,
        ),
        from_stamps=from_stamps,
        work_per_step=_compute_work_per_step(timing) if from_stamps else float("nan"),
    )


def find_intervals(timing: Timing) -> Intervals | None:
    """Return the intervals between timestamped lines, None for fewer than FEWEST_LINES.

    If several lines were written together, only the last is used. A clock change of an
    hour is corrected.
    """
    steps = timing.steps
    stamped = np.flatnonzero(np.isfinite(steps.stamp))
    if len(stamped) < FEWEST_LINES:
        return None
    seconds = np.where(timing.usable, steps.seconds, np.nan)
    intervals, timed_by_line = _measure_intervals(steps, stamped, seconds)
    valid = np.isfinite(intervals.took) & (intervals.took > 0)
    if pauses.is_usual_work(intervals.first, intervals.pause):
        intervals = replace(intervals, pause=np.zeros_like(intervals.pause))
    goes_back = ~timed_by_line & (intervals.passed < -SLACK)
    if goes_back.any():
        # The clock of a new process, which started with its steps, is not set back.
        restarted = goes_back & np.isfinite(steps.since[intervals.row])
        goes_back &= ~restarted
        # Steps that only their timestamps time get the median step time instead.
        untimed = goes_back & ~valid
        count = intervals.last - intervals.first + 1
        usual_time = count * float(np.nanmedian(seconds))
        took = np.where(untimed, usual_time, intervals.took)
        intervals = replace(intervals, took=took)
        valid = (valid & ~restarted) | untimed
    if not valid.any():
        return None
    intervals = _correct_clock_change(
        Intervals(
            row=intervals.row[valid],
            first=intervals.first[valid],
            last=intervals.last[valid],
            passed=intervals.passed[valid],
            took=intervals.took[valid],
            pause=intervals.pause[valid],
        )
    )
    if not goes_back.any():
        return intervals
    return _replace_backward_jumps(intervals, goes_back[valid])


def _measure_intervals(
    steps: Steps, stamped: Integers, seconds: Floats
) -> tuple[Intervals, Flags]:
    """Return the intervals, and a mask of those whose start the log states.

    A log states the start if the line at the end of the interval also prints the start
    of its steps. `took` is NaN if a step of the interval is untimed.
    """
    # step time since the previous row, NaN if untimed; `elapsed` counts from row 0
    row_time = np.append(0.0, np.diff(steps.index) * seconds[1:])
    elapsed = np.cumsum(np.nan_to_num(row_time))
    untimed_rows = np.cumsum(np.isnan(row_time))
    row = _drop_early_lines_of_bursts(stamped, steps.stamp, elapsed)
    start, end = row[:-1], row[1:]  # the rows before and at the end of each interval
    passed = np.diff(steps.stamp[row])
    is_untimed = np.diff(untimed_rows[row]) > 0
    took = np.where(is_untimed, np.nan, np.diff(elapsed[row]))
    pause = _merge_pauses(steps.paused, row)
    since = steps.since[end]
    timed_by_line = (
        np.isfinite(since) & (steps.stamp[start] <= since) & (since <= steps.stamp[end])
    )
    if timed_by_line.any():  # the line states when its steps started
        passed = np.where(timed_by_line, steps.stamp[end] - since, passed)
        took = np.where(timed_by_line, seconds[end] * steps.mean_of[end], took)
        pause = np.where(timed_by_line, 0, pause)
    first, last = steps.index[start] + 1, steps.index[end]
    intervals = Intervals(
        row=end, first=first, last=last, passed=passed, took=took, pause=pause
    )
    return intervals, timed_by_line


def _drop_early_lines_of_bursts(
    rows: Integers, stamp: Floats, elapsed: Floats
) -> Integers:
    """Drop the lines that were written late, together with a later line.

    The timestamp of the next line is then much closer than the step times between them.
    `elapsed` contains the sum of the step times up to each row.
    """
    passed, took = np.diff(stamp[rows]), np.diff(elapsed[rows])
    is_followed_closely = (passed >= 0) & (passed < BURST_SHARE * took)
    kept: Integers = rows[np.append(~is_followed_closely, True)]
    return kept


def _merge_pauses(paused: Integers, rows: Integers) -> Integers:
    """Return the kinds of pauses between each two consecutive rows."""
    merged = np.zeros(len(rows) - 1, dtype=np.int64)
    if paused.any():
        for kind in PauseKind:  # flags, which add up
            pause_count = np.cumsum(paused & kind > 0)
            merged += kind * (np.diff(pause_count[rows]) > 0)
    return merged


def _mark_regular(intervals: Intervals) -> Intervals:
    """Mark gaps that recur at regular intervals as pauses."""
    gaps = intervals.find_gaps() & ~intervals.paused
    likely_gaps = intervals.find_gaps(LIKELY_SHARE)
    regular = pauses.find_regular(intervals.first, intervals.last, gaps, likely_gaps)
    pause = np.where(regular, PauseKind.REGULAR, intervals.pause)
    return replace(intervals, pause=pause)


def _correct_clock_change(intervals: Intervals) -> Intervals:
    """Correct a clock change of one hour, if it is the only jump of the clock."""
    jumps = np.flatnonzero(
        (np.abs(intervals.lost) >= HOUR - SLACK) | (intervals.passed < -SLACK)
    )
    if len(jumps) != 1:
        return intervals
    index = int(jumps[0])
    lost = float(intervals.lost[index])
    if abs(abs(lost) - HOUR) > SLACK + float(intervals.took[index]):
        return intervals  # not an hour
    passed = intervals.passed.copy()
    passed[index] -= HOUR if lost > 0 else -HOUR
    return replace(intervals, passed=passed, set_clock=index)


def _replace_backward_jumps(intervals: Intervals, goes_back: Flags) -> Intervals:
    """Replace each backward jump of the clock by a gap of the same size.

    How much time passed there is unknown. If a clock is set back by an hour during a
    gap of 50 minutes, it only goes back by 10 minutes, which hides the gap. A corrected
    change of an hour is skipped.
    """
    if intervals.set_clock >= 0:
        goes_back = goes_back.copy()
        goes_back[intervals.set_clock] = False
    took_with_gap = intervals.took + np.abs(intervals.lost)
    return replace(
        intervals,
        passed=np.where(goes_back, took_with_gap, intervals.passed),
        pause=np.where(goes_back, 0, intervals.pause),
        set_back=goes_back if goes_back.any() else None,
    )


def _compute_ratio(intervals: Intervals, mask: Flags) -> ClockRatio | None:
    """Return clock time and step time of the masked intervals, None if there are none.

    The `spread_` fields contain the time lost over many intervals: the sums without the
    intervals that lost the most time (LARGEST_GAPS).
    """
    if not mask.any():
        return None
    passed = intervals.passed[mask]
    took = intervals.took[mask]
    lost = intervals.lost[mask]
    omitted = max(1, int(LARGEST_GAPS * len(lost)))
    shorter = np.argsort(lost)[: len(lost) - omitted]
    return ClockRatio(
        passed=float(passed.sum()),
        took=float(took.sum()),
        spread_passed=float(passed[shorter].sum()),
        spread_took=float(took[shorter].sum()),
    )


def _compute_work_per_step(timing: Timing) -> float:
    """Return the work of a step: the median printed rate x the mean step time of the
    window.

    In the rate's unit; NaN if no rate is printed. The median is used because some logs
    print the rate of a single step, which may be stalled.
    """
    window, rate = timing.window, _get_rates(timing)
    rated = np.isfinite(rate) & (rate > 0)
    if not rated.any():
        return float("nan")
    mean_seconds = np.average(window.seconds[rated], weights=window.mean_of[rated])
    return compute_median(rate[rated]) * float(mean_seconds)


def _get_rates(timing: Timing) -> Floats:
    """Return the printed rate of each step of the window, NaN if not printed.

    The throughput if any step prints it, else tokens per second and GPU.
    """
    rates = timing.window.throughput
    if np.isfinite(rates).any():
        return rates
    return timing.window.tokens_per_second_per_gpu


# --- values to record, and the comparison with recorded values ------------------------


def observe(check: ClockCheck | None) -> Iterator[tuple[Observed, float]]:
    """Yield the values of a run's clock, to be recorded with a baseline."""
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
    timing: Timing,
    baseline: Baseline,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Problem]:
    """Yield contradictions between clock and step times that recorded runs did not have.

    A contradiction as large as in the recorded runs is no problem.

    `recorded` contains recorded values by `Observed` name; missing values are not
    compared.
    """
    if check is None:
        return
    yield from _find_clock_excess(check, timing, baseline, recorded)
    yield from _find_outside_gaps(check, timing, recorded, baseline, tolerance)
    yield from _find_hidden_time(check, timing, baseline, recorded, tolerance)


def find_unit_mismatch(timing: Timing) -> Iterator[Problem]:
    """Yield a problem if step times and timestamps differ by an order of magnitude."""
    steps = timing.steps
    step_counts = np.diff(steps.index)
    passed = np.diff(steps.stamp)
    took = step_counts * np.where(timing.usable, steps.seconds, np.nan)[1:]
    timed = np.isfinite(passed) & np.isfinite(took) & (took > 0)
    if np.count_nonzero(timed) < FEWEST_INTERVALS:
        return
    ratios = passed[timed] / took[timed]
    ratio = compute_median(ratios)
    same_unit = 1 / GROSS_FACTOR < ratio < GROSS_FACTOR
    written_at_once = compute_median(passed[timed]) < FASTEST_CLOCK
    if same_unit or ratio <= 0 or written_at_once:
        return
    near_median = (ratios >= ratio / REGULAR_FACTOR) & (
        ratios <= ratio * REGULAR_FACTOR
    )
    if np.mean(near_median) >= REGULAR_SHARE:
        printed = compute_median(steps.seconds[1:][timed])
        by_stamps = compute_median(passed[timed] / step_counts[timed])
        text = (
            f"a step of {format_seconds(printed)} takes {format_seconds(by_stamps)} by the timestamps of the "
            "lines: the printed time is in another unit, or measures something else"
        )
        first_line = int(steps.line[1:][timed][0])
        yield Problem(Reason.TIMES_DISAGREE, text, first_line)


def _find_clock_excess(
    check: ClockCheck, timing: Timing, baseline: Baseline, recorded: Mapping[str, float]
) -> Iterator[Problem]:
    """Yield a problem if the clock advances more per step time than was recorded."""
    window_ratio = recorded.get(Observed.WALL_CLOCK_RATIO)
    run_ratio = recorded.get(Observed.RUN_CLOCK_RATIO)
    if (
        window_ratio is not None
        and check.window is not None
        and has_risen(check.window, window_ratio)
    ):
        text = (
            f"the log's clock advances {_describe_ratio(check.window)} in the window, recorded: x{window_ratio:.3f}: "
            "time passes between the steps that is part of no step time"
        )
        line = _find_line_after_longest_gap(check, timing, baseline.window)
        yield Problem(Reason.WALL_CLOCK, text, line)
    elif (
        run_ratio is not None
        and check.run is not None
        and has_risen_without_longest_gaps(check.run, run_ratio, RISE_SECONDS)
    ):
        text = (
            f"the log's clock advances {_describe_ratio(check.run)} after the warm-up, recorded: x{run_ratio:.3f}: "
            "time passes between the steps that is part of no step time"
        )
        line = _find_line_after_longest_gap(check, timing, None)
        yield Problem(Reason.WALL_CLOCK, text, line)


def _find_outside_gaps(
    check: ClockCheck,
    timing: Timing,
    recorded: Mapping[str, float],
    baseline: Baseline,
    tolerance: float,
) -> Iterator[Problem]:
    """Yield a problem if gaps take more than the tolerance, beyond the recorded ones.

    Counts the unexplained gaps outside the window, and the excess of all pauses over
    other pauses of their kind.
    """
    recorded_fraction = recorded.get(Observed.OUTSIDE_GAPS)
    if recorded_fraction is None:
        return
    usual_excess = recorded.get(Observed.WALL_CLOCK_RATIO, 1.0) - 1
    allowed = check.share.allow_seconds(recorded_fraction, baseline, usual_excess)
    gap_excess = max(0.0, check.outside_seconds - allowed)
    if are_gaps_long(check, gap_excess, tolerance):
        text = f"{_describe_gaps(check, timing)}; recorded: {recorded_fraction * 100:.3g} %. No step time contains them"
        line = int(timing.steps.line[check.outside_row])
        yield Problem(Reason.WALL_CLOCK, text, line)
        return
    pause_excesses = pauses.compute_excess(check.pauses, recorded)
    pause_excess = float(np.nansum(pause_excesses))
    if pause_excess > 0 and are_gaps_long(check, gap_excess + pause_excess, tolerance):
        text, line = _describe_pauses(check, timing, pause_excesses)
        yield Problem(Reason.WALL_CLOCK, text, line)


def are_gaps_long(check: ClockCheck, seconds: float, tolerance: float) -> bool:
    """True if gaps exceed the tolerance of the run and OUTSIDE_SECONDS."""
    return seconds > max(OUTSIDE_SECONDS, check.share.to_seconds(tolerance))


def _describe_gaps(check: ClockCheck, timing: Timing) -> str:
    seconds = check.outside_seconds
    return (
        f"gaps between steps outside the window take {format_seconds(seconds)}, "
        f"{check.share.to_fraction(seconds) * 100:.3g} % of the run's step time; the longest is before step "
        f"{timing.steps.index[check.outside_row]}"
    )


def _describe_pauses(
    check: ClockCheck, timing: Timing, excess: Floats
) -> tuple[str, int]:
    """Describe pauses that are too long; also return the line after the longest.

    `excess` contains the seconds by which each pause is too long, NaN if unknown.
    """
    longest = int(np.argmax(np.nan_to_num(excess)))
    name, line = _name_pause_before_step(check, timing, longest)
    seconds = format_seconds(float(check.pauses.seconds[longest]))
    total_excess = format_seconds(float(np.nansum(excess)))
    text = (
        f"the {name} takes {seconds}, longer than others of this run or the recorded "
        f"runs allow: {total_excess} too long in all, not part of any step time"
    )
    return text, line


def _name_pause_before_step(
    check: ClockCheck, timing: Timing, pause: int
) -> tuple[str, int]:
    """Return a name like `save before step 30` for a pause, and the line of that step."""
    row = int(check.pauses.row[pause])
    name = name_pause(PauseKind(int(check.pauses.kind[pause])))
    return f"{name} before step {timing.steps.index[row]}", int(timing.steps.line[row])


def name_pause(kind: PauseKind) -> str:
    """Return the name of a kind of pause, such as `evaluation and save`."""
    names = {
        PauseKind.EVALUATION: "evaluation",
        PauseKind.SAVE: "save",
        PauseKind.REGULAR: "regular gap",
    }
    return " and ".join(name for flag, name in names.items() if kind & flag)


def _find_hidden_time(
    check: ClockCheck,
    timing: Timing,
    baseline: Baseline,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Problem]:
    """Yield a problem if timestamps and the printed rate contradict each other.

    Applies to step times that are computed from timestamps. If they are shorter than
    the rate allows, the clock was set back or a step does less work. Rates of 0 are a
    problem, too, because they fit any step time.
    """
    work = recorded.get(Observed.WORK_PER_STEP)
    if work is None or not check.from_stamps or not len(timing.window):
        return
    line = int(timing.window.line[0])
    seconds = float(np.average(timing.window.seconds, weights=timing.window.mean_of))
    # A rate below 1 may be printed as 0. The recorded work implies work / seconds.
    is_rate_printable = work >= seconds
    if is_rate_printable and _prints_zero_rates(timing):
        text = (
            f"each step of the window prints a rate of 0 (recorded runs: {work:.6g} samples or tokens a step): "
            "only the timestamps of the lines show how long a step takes"
        )
        yield Problem(Reason.TIMES_DISAGREE, text, line)
    if not check.work_per_step > 0:
        return
    # More recorded work than printed work: the rate implies a longer step.
    factor = work / check.work_per_step
    by_rate = seconds * factor
    contradicts = factor - 1 > tolerance + _get_rate_unit(timing)
    is_slow_by_rate = by_rate > baseline.step_seconds * (1 + tolerance)
    if contradicts and is_slow_by_rate:
        text = (
            f"a step takes {format_seconds(seconds)} by the timestamps of its lines and {format_seconds(by_rate)} by the "
            f"printed rate, with {work:.6g} samples or tokens a step as recorded: the clock was set back, or "
            "a step does less work"
        )
        yield Problem(Reason.TIMES_DISAGREE, text, line)


def _prints_zero_rates(timing: Timing) -> bool:
    """True if a rate of each step of the window is printed, and all are 0."""
    window = timing.window
    columns = (window.throughput, window.tokens_per_second_per_gpu)
    printed = [rates for rates in columns if np.isfinite(rates).any()]
    return bool(printed) and all((rates == 0).all() for rates in printed)


def _get_rate_unit(timing: Timing) -> float:
    """Return one unit of the last printed digit, relative to the median rate.

    0 unless all rates are integers.
    """
    rates = _get_rates(timing)
    rates = rates[np.isfinite(rates) & (rates > 0)]
    if not len(rates) or not (rates == np.floor(rates)).all():
        return 0.0
    return 1 / compute_median(rates)


def has_risen(ratio: ClockRatio, usual: float) -> bool:
    """True if the clock advances more than usual.

    The excess is in long gaps, or it is smaller but spread over many steps.
    """
    has_long_gaps = _exceeds_expected(ratio.passed, usual * ratio.took, RISE_SECONDS)
    return has_long_gaps or has_risen_without_longest_gaps(ratio, usual, SPREAD_SECONDS)


def is_notable(ratio: ClockRatio, usual: float | None) -> bool:
    """True if the clock advances notably more than usual, but not enough for a problem.

    Without a recorded ratio (`usual` is None), true if the clock has risen above 1.
    """
    if usual is None:
        return has_risen(ratio, 1.0)
    notable = _exceeds_expected(
        ratio.passed, usual * ratio.took, RISE_SECONDS, share=NOTABLE
    )
    return notable and not has_risen(ratio, usual)


def has_risen_without_longest_gaps(
    ratio: ClockRatio, usual: float, seconds: float
) -> bool:
    """True if the clock advances more than usual even without the longest gaps.

    The excess must be at least `seconds`.
    """
    expected = usual * ratio.spread_took
    return _exceeds_expected(ratio.spread_passed, expected, seconds)


def _exceeds_expected(
    passed: float, expected: float, seconds: float, share: float = RISE
) -> bool:
    """True if more time passed than expected, by at least `seconds` and `share`.

    `share` is a share of the expected time.
    """
    excess = passed - expected
    return excess >= seconds and excess >= share * expected


def _describe_ratio(ratio: ClockRatio) -> str:
    passed, took = format_seconds(ratio.passed), format_seconds(ratio.took)
    return f"{passed} while the step times add up to {took} (x{ratio.ratio:.3f})"


def _find_line_after_longest_gap(
    check: ClockCheck, timing: Timing, window: Window | None
) -> int:
    """Return the line after the longest gap in `window`, or after the warm-up if None.

    Pauses do not count.
    """
    intervals = check.intervals
    first, last = check.share.first, int(timing.steps.index[-1])
    if window:
        first, last = window.first, window.last
    counts = ~intervals.paused & (intervals.first >= first) & (intervals.last <= last)
    longest = int(np.argmax(np.where(counts, intervals.lost, -np.inf)))
    return int(timing.steps.line[int(intervals.row[longest])])


def list_notes(
    check: ClockCheck | None,
    timing: Timing,
    window: Window,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Note]:
    """Yield notes on the clock: changes, pauses, and excess that cannot be compared."""
    if check is None:
        return
    intervals, steps = check.intervals, timing.steps
    if intervals.set_clock >= 0:
        row = int(intervals.row[intervals.set_clock])
        text = f"the clock was changed by an hour before step {steps.index[row]}: the hour is corrected"
        yield Note(NoteCode.CLOCK_SET, text, int(steps.line[row]))
    if intervals.set_back is not None:
        index = int(np.argmax(intervals.set_back))
        seconds = format_seconds(float(intervals.lost[index]))
        row = int(intervals.row[index])
        text = f"the clock goes back by {seconds} before step {steps.index[row]}: how long that step took is unknown"
        yield Note(NoteCode.CLOCK_SET, text, int(steps.line[row]))
    if len(check.pauses.row):
        yield from _list_pause_notes(check, timing)
    yield from _list_uncompared_notes(check, timing, window, recorded, tolerance)


def _list_pause_notes(check: ClockCheck, timing: Timing) -> Iterator[Note]:
    """Yield a note that counts the gaps of evaluations and saves."""
    row = int(check.pauses.row[0])
    count = count_noun(len(check.pauses.row), "gap")
    seconds = format_seconds(float(check.pauses.seconds.sum()))
    context = "around evaluations or saves"
    if (check.pauses.kind == PauseKind.REGULAR).all():
        context = "at regular intervals, as for evaluations or saves"
    text = (
        f"{count} of {seconds} in all {context}, not part of any step time; "
        f"the first is before step {timing.steps.index[row]}"
    )
    yield Note(NoteCode.PAUSES, text, int(timing.steps.line[row]))


def _list_uncompared_notes(
    check: ClockCheck,
    timing: Timing,
    window: Window,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Note]:
    """Yield notes on time between steps that is notable or cannot be compared."""
    steps = timing.steps
    usual = recorded.get(Observed.WALL_CLOCK_RATIO)
    if check.window is not None and is_notable(check.window, usual):
        comparison = (
            "no recording to compare it with"
            if usual is None
            else f"recorded: x{usual:.3f}"
        )
        text = f"the log's clock advances {_describe_ratio(check.window)} in the window; {comparison}"
        line = _find_line_after_longest_gap(check, timing, window)
        yield Note(NoteCode.WALL_CLOCK, text, line)
    pause_excesses = pauses.compute_excess(check.pauses, recorded)
    if Observed.OUTSIDE_GAPS not in recorded:
        if are_gaps_long(check, check.outside_seconds, tolerance):
            text = f"{_describe_gaps(check, timing)}; no recording to compare them with"
            line = int(steps.line[check.outside_row])
            yield Note(NoteCode.WALL_CLOCK, text, line)
        if are_gaps_long(check, float(np.nansum(pause_excesses)), tolerance):
            text, line = _describe_pauses(check, timing, pause_excesses)
            yield Note(NoteCode.WALL_CLOCK, text, line)
    yield from _list_new_pause_notes(check, timing, recorded, tolerance)


def _list_new_pause_notes(
    check: ClockCheck, timing: Timing, recorded: Mapping[str, float], tolerance: float
) -> Iterator[Note]:
    """Yield a note on long pauses of a kind that the recorded runs did not have.

    There are too few of them to know their usual length.
    """
    is_new = pauses.find_new(check.pauses, recorded)
    seconds = np.where(is_new, check.pauses.seconds, 0.0)
    total = float(seconds.sum())
    if not are_gaps_long(check, total, tolerance):
        return
    longest = int(np.argmax(seconds))
    name, line = _name_pause_before_step(check, timing, longest)
    count = count_noun(int(is_new.sum()), "gap")
    text = (
        f"{count} of {format_seconds(total)} in all, absent from the recorded "
        f"runs; the longest is the {name}"
    )
    yield Note(NoteCode.WALL_CLOCK, text, line)
