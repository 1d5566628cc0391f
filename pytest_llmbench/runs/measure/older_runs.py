"""Measure the older runs of a configuration together, column by column.

An older run only contributes its step time to the noise. Most older runs are regular:
one attempt whose columns are far from every bound of the checks that `measure` makes.
The checks here need not find a problem, only exclude it: they are as strict as those of
`measure` or stricter. A run that fails one of them is measured alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline, Window
from pytest_llmbench.core.codes import Observed
from pytest_llmbench.core.log_records import DropReason, Segment, stack_column
from pytest_llmbench.core.metric_definitions import compute_tflops_per_gpu
from pytest_llmbench.core.robust import TRIMMED
from pytest_llmbench.core.run_records import Measurement, Run
from pytest_llmbench.runs.measure.attempts import (
    Choice,
    is_finished,
    is_profiled,
    list_attempts,
)
from pytest_llmbench.runs.measure.configuration import (
    FEWEST_STEPS,
    KNOWN_FACTOR_BAND,
    LEAST_TARGET_SHARE,
    LESS_THAN_BEFORE,
    LESS_THAN_RECORDED,
    MOST_TARGET_SHARE,
    TOKENS_BAND,
    UNKNOWN_FACTOR_BAND,
    check_claims,
    check_statements,
    count_tokens,
)
from pytest_llmbench.runs.measure.measurement import (
    decode_shared,
    measure,
    select_segment_checkpoints,
)
from pytest_llmbench.runs.measure.moving_mean import (
    count_leading_steps,
    detect_moving_means,
)
from pytest_llmbench.runs.measure.training import FEWEST_EQUAL, GROWTH, count_ends
from pytest_llmbench.runs.measure.wall_clock import GROSS_FACTOR
from pytest_llmbench.runs.measure.window import (
    LONGEST_SECONDS,
    compute_possible_seconds,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_llmbench.core.log_records import Flags, Floats, Integers

MOST_TOGETHER = 512
"""Runs whose columns are in memory at once."""

Rows = Callable[[str], "NDArray[Any]"]
"""Returns a column of the segments, as `stack_column`."""


def measure_older(
    runs: Sequence[Run], baseline: Baseline, now: datetime
) -> list[Measurement]:
    """Measure runs for their step time only, like `measure` with `step_time_only`."""
    by_steps: dict[bytes, list[int]] = defaultdict(list)
    has_right_facts = cache(partial(_has_right_facts, baseline=baseline))
    for position, run in enumerate(runs):
        if _is_plain(run, baseline) and has_right_facts(_Facts(run)):
            by_steps[_get_segment(run).steps.index.tobytes()].append(position)
    measured: dict[int, Measurement] = {}
    for positions in by_steps.values():
        for first in range(0, len(positions), MOST_TOGETHER):
            together = positions[first : first + MOST_TOGETHER]
            regular = _measure_regular([runs[number] for number in together], baseline)
            measured |= {together[row]: measurement for row, measurement in regular}
    return [
        measured[position]
        if position in measured
        else measure(run, baseline, now, step_time_only=True)
        for position, run in enumerate(runs)
    ]


def _get_segment(run: Run) -> Segment:
    """Return the only segment of a plain run."""
    return run.attempts[0].log.segments[0]


def _is_plain(run: Run, baseline: Baseline) -> bool:
    """True if a run is one finished attempt, and nothing but its steps can be wrong."""
    found, duplicate = run.found, run.duplicate_of
    if found.excluded is not None or found.companion_of is not None:
        return False
    if len(run.attempts) != 1 or (duplicate is not None and duplicate.certain):
        return False
    log = run.attempts[0].log
    if (
        len(log.segments) != 1
        or not log.prints_loss
        or log.nccl_line
        or log.begun_again_line
        or log.checkpoints.load_line
        or any(dropped.reason is DropReason.TIMES_DISAGREE for dropped in log.dropped)
    ):
        return False
    segment = log.segments[0]
    if segment.doubt or segment.bad_validation_line or segment.progress:
        return False
    return (
        len(segment.steps) >= FEWEST_EQUAL
        and is_finished(segment, baseline.steps)
        and not is_profiled(segment)
    )


class _Facts:
    """The facts that names, metadata and the log state about a plain run.

    Equal if their fields and values are equal, wherever they are stated.
    """

    __slots__ = ("run", "values")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.values = (
            tuple([(hint.field, hint.value) for hint in run.found.hints]),
            tuple([(fact.field, fact.value) for fact in _get_segment(run).stated]),
        )

    def __hash__(self) -> int:
        return hash(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Facts) and self.values == other.values


def _has_right_facts(facts: _Facts, baseline: Baseline) -> bool:
    """True if no stated fact contradicts the baseline."""
    contradicts_claims = any(check_claims(facts.run, baseline))
    return not contradicts_claims and not any(
        check_statements(_get_segment(facts.run), baseline)
    )


def _measure_regular(
    runs: Sequence[Run], baseline: Baseline
) -> Iterator[tuple[int, Measurement]]:
    """Yield the measurements of the regular runs, with their positions.

    All runs are plain and have the same step numbers.
    """
    index = _get_segment(runs[0]).steps.index
    window = _locate_window(index, baseline.window)
    # Such baselines are measured over two windows.
    has_two_windows = baseline.required is not baseline or baseline.timed_window
    if window is None or has_two_windows:
        return
    rows = cache(partial(stack_column, [_get_segment(run).steps for run in runs]))
    with np.errstate(all="ignore"):  # NaN and infinity are not regular
        is_regular = _find_regular(rows, index, window, baseline)
    regular = np.flatnonzero(np.broadcast_to(is_regular, len(runs)))
    if not len(regular):
        return
    seconds = _select_rows(rows("seconds"), regular)
    units = _select_rows(rows("resolution_seconds"), regular)
    lines = _select_rows(rows("line"), regular)[:, window]
    window_seconds = np.ascontiguousarray(seconds[:, window])
    leading = count_leading_steps(_get_segment(runs[regular[0]]).steps)
    window_steps = decode_shared(index[window].tobytes())
    columns = (
        regular.tolist(),
        _compute_statistics(window_seconds, baseline.window.statistic).tolist(),
        seconds[:, -1].tolist(),
        _share_times(window_seconds),
        repeat(window_steps, len(regular)),
        [decode_shared(line.tobytes()) for line in lines],
        detect_moving_means(seconds[:, :leading], units[:, :leading]).tolist(),
        _compute_medians(units[:, window]).tolist(),
    )
    for row, *values in zip(*columns, strict=True):
        yield row, _make_measurement(runs[row], baseline, _StepTimes._make(values))


class _StepTimes(NamedTuple):
    """The fields of a measurement that follow from the steps."""

    statistic_seconds: float
    last_step_seconds: float
    window_seconds: tuple[float, ...]
    window_steps: tuple[int, ...]
    window_lines: tuple[int, ...]
    moving_mean: int
    resolution_seconds: float


def _make_measurement(run: Run, baseline: Baseline, times: _StepTimes) -> Measurement:
    """Make the measurement of a regular run."""
    (attempt,) = run.attempts
    choice = Choice(attempt, 1, _get_segment(run), others=0)
    return Measurement(
        run=run,
        baseline=baseline,
        files=attempt.files,
        attempt=attempt.files.number,
        segment=choice.number,
        attempts=list_attempts(run, choice, baseline.steps),
        checkpoints=select_segment_checkpoints(attempt.log.checkpoints, choice.number),
        step_time_only=True,
        **times._asdict(),
    )


def _locate_window(index: Integers, window: Window) -> slice | None:
    """Return the rows of the window, None unless each of its steps is one row."""
    begin, end = np.searchsorted(index, (window.first, window.last + 1)).tolist()
    steps = window.last + 1 - window.first
    is_increasing = bool((index[1:] > index[:-1]).all())
    if not is_increasing or end - begin != steps or steps < FEWEST_EQUAL:
        return None
    return slice(begin, end)


def _select_rows(values: NDArray[Any], rows: Integers) -> NDArray[Any]:
    """Return some rows of a column, each contiguous, as sums of floats depend on it."""
    if len(values) == 1:
        return np.repeat(values, len(rows), axis=0)
    return values[rows]


def _share_times(window_seconds: Floats) -> list[tuple[float, ...]]:
    """Return the rows as tuples in which equal times are one object.

    Logs print times with few digits, so that runs of a configuration share most of them.
    """
    shared: dict[float, float] = {}
    share = shared.setdefault
    return [
        tuple([share(time, time) for time in row]) for row in window_seconds.tolist()
    ]


def _compute_statistics(values: Floats, name: str) -> Floats:
    """Return the statistic of each row, as `compute_statistic` of equal weights."""
    if name != "mean":
        cut = int(TRIMMED * values.shape[1])
        values = np.sort(values, axis=1)[:, cut : values.shape[1] - cut]
    means: Floats = np.mean(values, axis=1)
    return means


def _compute_medians(values: Floats) -> Floats:
    """Return the median of each row."""
    ordered, count = np.sort(values, axis=1), values.shape[1]
    medians: Floats = (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2
    return medians


def _has_any(mask: Flags) -> Flags:
    """True for each row with a set flag."""
    return np.asarray(mask.any(axis=1))


# --- regular columns ------------------------------------------------------------------


def _find_regular(
    rows: Rows, index: Integers, window: slice, baseline: Baseline
) -> Flags:
    """Return a mask of the segments whose steps cannot have a problem."""
    return (
        _has_usable_times(rows, baseline)
        & _has_plausible_stamps(rows, index)
        & _updates_weights(rows)
        & _has_falling_losses(rows, window, baseline.observed)
        & _has_right_samples(rows, index, window, baseline)
        & _has_right_rates(rows, window, baseline)
    )


def _has_usable_times(rows: Rows, baseline: Baseline) -> Flags:
    """True if each step has its own, possible time."""
    seconds = rows("seconds")
    is_usable = (seconds >= compute_possible_seconds(baseline)) & (
        seconds < LONGEST_SECONDS
    )
    is_single = (rows("mean_of") == 1) & ~rows("asynchronous")
    has_times: Flags = (is_usable & is_single).all(axis=1)
    return has_times


def _has_plausible_stamps(rows: Rows, index: Integers) -> Flags:
    """True without timestamps, or if they are about the step times apart."""
    passed = np.diff(rows("stamp"), axis=1)
    is_stamped = np.isfinite(passed)
    has_some = _has_any(is_stamped)
    if not has_some.any():
        return ~has_some
    ratios = _compute_medians(passed / (np.diff(index) * rows("seconds")[:, 1:]))
    same_unit = (ratios > 1 / GROSS_FACTOR) & (ratios < GROSS_FACTOR)
    return ~has_some | (is_stamped.all(axis=1) & same_unit)


def _updates_weights(rows: Rows) -> Flags:
    """True if no step prints that it was skipped, a norm or a rate of 0."""
    norms, skipped = rows("grad_norm"), rows("skipped_steps")
    is_finite = ~rows("has_grad_norm") | np.isfinite(norms)
    is_updated = is_finite & (norms != 0) & (np.isnan(skipped) | (skipped == 0))
    # The first rate of a warm-up may be 0.
    has_rate = rows("learning_rate")[:, 1:] != 0
    updates: Flags = is_updated.all(axis=1) & has_rate.all(axis=1)
    return updates


def _has_falling_losses(
    rows: Rows, window: slice, recorded: Mapping[str, float]
) -> Flags:
    """True if all steps print positive losses that change and do not grow."""
    losses = rows("loss")
    is_loss = rows("has_loss") & (losses > 0) & np.isfinite(losses)
    changes = losses[:, window].min(axis=1) < losses[:, window].max(axis=1)
    regular: Flags = is_loss.all(axis=1) & changes
    ends = count_ends(losses.shape[1])
    if losses.shape[1] < 2 * ends:
        return regular
    allowed = GROWTH * _compute_medians(losses[:, :ends])
    recorded_loss = recorded.get(Observed.LAST_LOSS, 0.0)
    if recorded_loss > 0:
        allowed = np.minimum(allowed, GROWTH * recorded_loss)
    return regular & (_compute_medians(losses[:, -ends:]) <= allowed)


def _has_right_samples(
    rows: Rows, index: Integers, window: slice, baseline: Baseline
) -> Flags:
    """True if the printed batches and counts of samples and tokens are the baseline's."""
    batch, recorded = baseline.configuration.global_batch_size, baseline.observed
    batches, counts = rows("global_batch_size"), rows("consumed_samples")
    has_batch: Flags = ~np.isfinite(batches) | (batches == batch) | (batch <= 0)
    recorded_samples = recorded.get(Observed.SAMPLES_PER_STEP)
    # Without counts of samples, the printed batches are the samples of a step.
    has_samples = ~np.isfinite(counts).any(axis=1) & _is_steady(
        batches[:, window], recorded_samples
    )
    if window.start:
        counted = slice(window.start - 1, window.stop)
        growth = np.diff(counts[:, counted], axis=1) / np.diff(index[counted])
        is_right = (growth == batch) | (batch == 0)
        is_counted = np.isfinite(counts[:, counted]).all(axis=1)
        is_right &= growth > 0
        has_samples = has_samples | (
            is_counted & is_right.all(axis=1) & _is_steady(growth, recorded_samples)
        )
    tokens = rows("step_tokens")[:, window]
    targets = rows("target_tokens")[:, window]
    has_targets = ~np.isfinite(targets).any(axis=1)
    if batch_tokens := count_tokens(baseline):
        shares = targets.max(axis=1) / batch_tokens  # NaN if one is missing
        has_targets |= (shares >= LEAST_TARGET_SHARE) & (shares <= MOST_TARGET_SHARE)
    return (
        has_batch.all(axis=1)
        & has_samples
        & has_targets
        & _is_steady(tokens, recorded.get(Observed.TOKENS_PER_STEP))
        & _is_steady(targets, recorded.get(Observed.TARGETS_PER_STEP))
    )


def _has_right_rates(rows: Rows, window: slice, baseline: Baseline) -> Flags:
    """True if the printed rates x step times are the work of the baseline's step."""
    configuration, recorded = baseline.configuration, baseline.observed
    seconds = rows("seconds")[:, window]
    tflop = rows("tflops_per_gpu")[:, window] * seconds
    tokens = rows("tokens_per_second_per_gpu")[:, window] * seconds
    samples = rows("samples_per_second")[:, window] * seconds
    tflop_per_step = compute_tflops_per_gpu(configuration, 1.0)
    expected_tflop = tflop_per_step * (baseline.logged_tflops_factor or 1.0)
    has_known_factor = baseline.logged_tflops_factor or configuration.logged_tflop
    band = KNOWN_FACTOR_BAND if has_known_factor else UNKNOWN_FACTOR_BAND
    gpus = configuration.key.gpus
    expected_tokens = float(count_tokens(baseline) if gpus else 0) or math.nan
    return (
        _is_about(tflop, expected_tflop, band)
        & _is_about(tokens, expected_tokens, TOKENS_BAND, factor=gpus)
        & _is_steady(samples, recorded.get(Observed.SAMPLES_BY_RATE))
        & _is_steady(tokens, recorded.get(Observed.TOKENS_BY_RATE))
    )


def _is_about(work: Floats, expected: float, band: float, factor: int = 1) -> Flags:
    """True if no work is printed, or if the median x `factor` is about `expected`.

    Also true if the expected work is unknown (NaN).
    """
    is_printed = np.isfinite(work)
    has_some = _has_any(is_printed)
    if math.isnan(expected) or not has_some.any():
        return np.ones_like(has_some)
    ratios = _compute_medians(work) * factor / expected
    return ~has_some | (is_printed.all(axis=1) & (np.abs(ratios - 1) <= band))


def _is_steady(work: Floats, recorded: float | None) -> Flags:
    """True if no work is printed, or if it is neither less than recorded nor falls."""
    is_printed = np.isfinite(work) & (work > 0)
    has_some = _has_any(is_printed)
    if not has_some.any():
        return ~has_some
    is_steady = is_printed.all(axis=1)
    if recorded:
        shares = _compute_medians(work) / recorded
        is_steady &= shares >= 1 - LESS_THAN_RECORDED
    if work.shape[1] >= FEWEST_STEPS:
        third = work.shape[1] // 3
        first, last = (
            _compute_medians(work[:, :third]),
            _compute_medians(work[:, -third:]),
        )
        is_steady &= last / first >= 1 - LESS_THAN_BEFORE
    return ~has_some | is_steady
