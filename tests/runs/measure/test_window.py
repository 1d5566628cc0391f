"""The judged segment, and its steps that count: also missing and dispatch times."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import (
    BASELINE,
    NOW,
    at,
    log,
    means_of,
    run,
    segment,
    steps,
    without,
)

from pytest_llmbench.core.baseline_records import Baseline, RunMatch, Window
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import Segment, Steps
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.report.wording import phrase
from pytest_llmbench.runs.measure.attempts import choose_segment, is_finished, is_traced
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.runs.measure.window import (
    WindowFrom,
    choose_last_half,
    choose_mean_steps,
    choose_window,
    compute_statistic,
    covers_window,
    find_covered_steps,
    find_missing_steps,
    mask_window,
)

WINDOW = Window(11, 44)


def test_first_and_last_step_of_the_window_must_not_be_missing() -> None:
    assert find_missing_steps(steps([1.0] * 34, first=11), WINDOW) == ()
    assert find_missing_steps(steps([1.0] * 33, first=11), WINDOW) == (44,)
    assert find_missing_steps(without(steps(), 11, 20), WINDOW) == (11, 20)


@pytest.mark.parametrize(
    ("count", "marker", "total", "finished"),
    [
        (50, True, 50, True),
        (50, False, None, True),
        (25, True, 25, True),
        (60, False, 100, False),
    ],
)
def test_segment_is_complete_at_its_printed_total_or_the_steps_of_the_baseline(
    count: int, marker: bool, total: int | None, finished: bool
) -> None:
    assert (
        is_finished(segment(steps([1.0] * count), finished=marker, total=total), 50)
        is finished
    )


def test_last_complete_segment_is_judged_unless_a_later_one_restarted_training() -> (
    None
):
    profile = segment(steps([1.0] * 15), finished=True, total=15)
    first, second = segment(steps(7.0)), segment(steps(8.0))
    cut = segment(steps([9.0] * 20), finished=False)
    late = segment(steps([9.0] * 3, first=47), finished=False)
    inside = segment(steps([9.0] * 38, first=12))
    for segments, expected in (
        ((profile, first), first),
        ((first, second), second),
        ((first, cut), cut),
        ((first, late), first),
        ((first, inside), inside),
        ((profile, cut), cut),
    ):
        choice = choose_segment(run(log(*segments)).attempts, WINDOW, 50)
        assert choice is not None
        assert choice.segment is expected
        assert choice.others == 1


def test_resumed_segments_are_joined_to_cover_window() -> None:
    died = segment(steps([2.0] * 40), finished=False)
    resumed = segment(steps([3.0] * 30, first=21))
    choice = choose_segment(run(log(died, resumed)).attempts, WINDOW, 50)
    assert choice is not None
    assert (choice.number, choice.segment.finished) == (1, True)
    assert choice.segment.steps.index.tolist() == list(range(51))
    assert choice.segment.steps.seconds.tolist() == [2.0] * 40 + [3.0] * 11


def test_first_steps_after_a_resume_are_dropped_outside_the_window() -> None:
    died = segment(steps([2.0] * 40), finished=False)
    resumed = segment(steps([3.0] * 20, first=40), total=60)
    choice = choose_segment(run(log(died, resumed)).attempts, WINDOW, 60)
    assert choice is not None
    assert choice.segment.steps.index.tolist() == [*range(45), *range(50, 60)]


def test_joined_segment_contains_problems_of_the_segment_before_the_resume() -> None:
    died = replace(
        segment(steps([2.0] * 40), finished=False),
        bad_validation_line=30,
        doubt="its times disagree",
    )
    choice = choose_segment(
        run(log(died, segment(steps([3.0] * 30, first=21)))).attempts, WINDOW, 50
    )
    assert choice is not None
    assert (choice.segment.bad_validation_line, choice.segment.doubt) == (
        30,
        "its times disagree",
    )


@pytest.mark.parametrize("last_traced", [200, 350])
def test_traced_resumed_segment_is_judged_alone(last_traced: int) -> None:
    died = replace(
        segment(steps([2.0] * 40), finished=False), first_line=1, last_line=100
    )
    resumed = replace(
        segment(steps([3.0] * 30, first=21)), first_line=150, last_line=300
    )
    traced = replace(log(died, resumed, nccl_line=50), nccl_last_line=last_traced)
    choice = choose_segment(run(traced).attempts, WINDOW, 50)
    assert choice is not None
    assert choice.segment is resumed


@pytest.mark.parametrize(
    ("died", "resumed"),
    [
        (
            segment(steps([2.0] * 40), finished=False),
            segment(steps([3.0] * 9, first=42)),
        ),  # a step is lost
        (
            segment(steps([2.0] * 40), finished=False),
            segment(steps([3.0] * 20, first=21), finished=False),
        ),
        (
            segment(steps([2.0] * 40), total=40),
            segment(steps([3.0] * 30, first=21)),
        ),  # another run
    ],
)
def test_unrelated_segments_are_not_joined(died: Segment, resumed: Segment) -> None:
    choice = choose_segment(run(log(died, resumed)).attempts, WINDOW, 50)
    assert choice is not None
    assert choice.segment is resumed


def test_appended_traced_segment_does_not_replace_run() -> None:
    clean = replace(segment(), last_line=200)
    traced = replace(segment(steps([7.0] * 5), total=5), first_line=300, last_line=310)
    choice = choose_segment(run(log(clean, traced, nccl_line=250)).attempts, WINDOW, 50)
    assert choice is not None
    assert choice.segment is clean
    choice = choose_segment(run(log(clean, traced, nccl_line=150)).attempts, WINDOW, 50)
    assert choice is not None
    assert choice.segment is traced


def test_segment_counted_from_1_ends_at_total() -> None:
    for first, last, finished in ((1, 50, True), (1, 49, False), (0, 49, True)):
        one = replace(
            segment(
                steps([7.0] * (last + 1 - first), first=first),
                finished=False,
                total=None,
            ),
            first_step=first,
        )
        assert is_finished(one, 50) is finished


def test_segment_whose_first_interval_starts_in_the_window_is_judged() -> None:
    """The first line of the later segment is after the window, but its mean starts
    before it."""
    whole = segment(means_of(10, [7.0] * 5))
    later = segment(means_of(10, [9.0], first=44), finished=False)
    window = Window(11, 50)
    choice = choose_segment(run(log(whole, later)).attempts, window, 50)
    assert choice is not None
    assert choice.segment is later


@pytest.mark.slow
@given(st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=60))
def test_trimmed_mean_equals_scipy(seconds: list[float]) -> None:
    from scipy import stats

    values = np.array(seconds)
    assert compute_statistic(values, "trimmed_mean") == pytest.approx(
        stats.trim_mean(values, 0.2)
    )


def test_nccl_trace_that_spans_two_segments_excludes_both() -> None:
    first, second = (
        replace(segment(), last_line=200),
        replace(segment(), first_line=300, last_line=500),
    )
    (attempt,) = run(log(first, second, nccl_line=50, nccl_last_line=350)).attempts
    assert [is_traced(attempt, number) for number in (1, 2)] == [True, True]
    (attempt,) = run(log(first, second, nccl_line=50, nccl_last_line=180)).attempts
    assert [is_traced(attempt, number) for number in (1, 2)] == [True, False]


ROWS = st.lists(st.tuples(st.integers(-2, 30), st.integers(1, 6)), max_size=20)


@pytest.mark.slow
@given(ROWS, st.booleans(), st.integers(0, 20), st.integers(0, 12))
def test_steps_covered_by_times_in_the_window_equal_those_counted_one_by_one(
    rows: list[tuple[int, int]], single: bool, first: int, length: int
) -> None:
    """Compared with counting step by step."""
    made = steps([7.0] * len(rows))
    index = np.array([one for one, _ in rows], dtype=np.int64)
    mean_of = np.array([1 if single else one for _, one in rows], dtype=np.int64)
    made, window = (
        dataclasses.replace(made, index=index, mean_of=mean_of),
        Window(first, first + length),
    )
    spans = [
        range(last - count + 1, last + 1)
        for last, count in zip(index.tolist(), mean_of.tolist(), strict=True)
    ]
    inside = [window.first <= span[0] and span[-1] <= window.last for span in spans]
    kept = []
    for row, span in enumerate(spans):
        later_starts = [
            other[0]
            for other, counts in zip(spans[row + 1 :], inside[row + 1 :], strict=True)
            if counts
        ]
        kept.append(inside[row] and all(span[0] < start for start in later_starts))
    assert mask_window(made, window).tolist() == kept
    covered = {
        step for span, is_in in zip(spans, kept, strict=True) if is_in for step in span
    }
    assert find_covered_steps(made, mask_window(made, window), window) == covered
    assert (
        set(find_missing_steps(made, window))
        == set(range(first, first + length + 1)) - covered
    )


@pytest.mark.parametrize(
    ("columns", "fit"),
    [
        (steps([7.0] * 45), True),
        (steps([7.0] * 44), False),
        (steps([7.0] * 38, first=11), True),
        (steps([7.0] * 38, first=12), False),
        (means_of(10, [7.0] * 5), True),
        (steps([7.0] * 50, first=12510), False),
    ],
)
def test_window_coverage_is_detected(columns: Steps, fit: bool) -> None:
    assert covers_window(columns, Window(11, 44)) is fit


@pytest.mark.parametrize(
    ("columns", "first", "last"),
    [
        (steps([7.0] * 20), 10, 19),
        (steps([7.0] * 5, first=1), 3, 5),
        (steps([7.0]), 0, 0),
        (means_of(10, [7.0] * 4), 21, 40),
        (means_of(100, [7.0]), 1, 100),
    ],
)
def test_last_half_of_a_run_contains_only_whole_logging_intervals(
    columns: Steps, first: int, last: int
) -> None:
    assert choose_last_half(columns) == Window(first, last)
    assert find_missing_steps(columns, choose_last_half(columns)) == ()


def test_steps_beyond_the_planned_number_are_outside_the_default_window() -> None:
    """OLMo runs ten steps more than planned."""
    assert choose_last_half(means_of(10, [7.0] * 5), 40) == Window(21, 40)
    assert choose_last_half(steps([7.0] * 20), 15) == Window(8, 15)


@pytest.mark.parametrize(
    ("of", "expected"),
    [(10, Window(11, 40)), (20, Window(21, 40)), (1, Window(11, 44))],
)
def test_window_shrinks_to_whole_logging_intervals(of: int, expected: Window) -> None:
    assert choose_mean_steps(means_of(of, [7.0] * 60), Window(11, 44)) == expected


@pytest.mark.parametrize(
    ("columns", "total", "first", "expected"),
    [
        (steps([7.0] * 50), None, 0, Window(11, 44)),
        (steps([7.0] * 100), 100, 0, Window(11, 44)),
        (steps([7.0] * 101), None, 0, Window(50, 100)),
        (steps([7.0] * 50), 500, 0, Window(25, 49)),
        (steps([7.0] * 40), None, 0, Window(20, 39)),
        (means_of(10, [7.0] * 60), 600, 1, Window(301, 600)),
        (means_of(10, [7.0] * 10), 100, 1, Window(11, 40)),
        (means_of(100, [7.0] * 5), 500, 1, Window(201, 500)),
        (means_of(10, [7.0] * 13), 120, 1, Window(61, 120)),
    ],
)
def test_default_window_of_a_run_without_baseline_depends_on_its_number_of_steps(
    columns: Steps, total: int | None, first: int, expected: Window
) -> None:
    assert (
        choose_window(replace(segment(columns, total=total), first_step=first))[0]
        == expected
    )


@pytest.mark.parametrize(
    ("of_baseline", "requested", "expected"),
    [
        (Window(21, 30), Window(5, 6), (Window(5, 6), WindowFrom.OPTION)),
        (Window(21, 30), None, (Window(21, 30), WindowFrom.BASELINE)),
        (Window(21, 60), None, (Window(25, 49), WindowFrom.LAST_HALF)),
        (None, None, (Window(11, 44), WindowFrom.DEFAULT)),
    ],
)
def test_window_is_taken_from_option_baseline_or_default_in_this_order(
    of_baseline: Window | None,
    requested: Window | None,
    expected: tuple[Window, WindowFrom],
) -> None:
    assert choose_window(segment(steps([7.0] * 50)), of_baseline, requested) == expected


# --- which times count ----------------------------------------------------------------

TOKENS = 8192 * 256 / 128
"""Tokens of a step on one GPU."""


def mask_steps(*numbers: int) -> Any:
    """Return a mask of 50 steps that selects these."""
    return np.isin(np.arange(50), numbers)


def measure_columns(baseline: Baseline = BASELINE, **columns: Any) -> Measurement:
    return measure(run(log(segment(steps(**columns)))), baseline, NOW)


def list_codes(measurement: Measurement) -> list[str]:
    return [note.code for note in measurement.notes]


def test_step_outside_the_window_timed_only_until_dispatch_is_noted() -> None:
    seconds = np.full(50, 7.325)
    seconds[1:3] = 5.0
    measurement = measure_columns(seconds=seconds, asynchronous=mask_steps(1, 2))
    assert measurement.valid
    (note,) = measurement.notes
    assert (note.code, note.line) == ("asynchronous-dispatch", 101)
    assert phrase(note) == "2 steps timed only until dispatch, set aside; first step 1"


@pytest.mark.parametrize("seconds", [0.215, 7.325])
def test_step_in_the_window_timed_only_until_dispatch_makes_a_run_invalid(
    seconds: float,
) -> None:
    times = np.full(50, 7.325)
    times[11] = seconds
    measurement = measure_columns(seconds=times, asynchronous=mask_steps(1, 11))
    (problem,) = measurement.problems
    assert (problem.reason, problem.line) == (Reason.ASYNCHRONOUS_DISPATCH, 111)
    assert problem.text.startswith(
        f"step 11 took {seconds:.4g} s only to be dispatched"
    )
    assert "(1 such step in the window)" in problem.text
    assert 11 not in measurement.window_steps


def test_missing_time_is_computed_from_tokens() -> None:
    seconds, speed = np.full(50, 7.325), np.full(50, round(TOKENS / 7.325))
    seconds[20], speed[20] = np.nan, round(TOKENS / 9.0)
    measurement = measure_columns(
        seconds=seconds,
        tokens_per_second_per_gpu=speed,
        global_batch_size=np.full(50, np.nan),
    )
    assert measurement.valid
    assert measurement.window_seconds[9] == pytest.approx(9.0, rel=1e-3)
    assert measurement.statistic_seconds == pytest.approx(
        (33 * 7.325 + 9.0) / 34, rel=1e-4
    )
    assert list_codes(measurement) == ["time-from-tokens"]
    assert (
        phrase(measurement.notes[0])
        == "1 step without a printed time (computed from tokens/s), first step 20"
    )


def test_printed_step_time_is_never_replaced_by_a_computed_one() -> None:
    speed = np.full(50, TOKENS / 7.325 * 1.015)
    assert measure_columns(
        tokens_per_second_per_gpu=speed
    ).statistic_seconds == pytest.approx(7.325, rel=1e-12)


def test_step_times_computed_from_tokens_do_not_verify_the_batch_size() -> None:
    """Whatever tokens/s are, times made of them agree with them: only printed times
    tell another batch."""
    unknown = np.full(50, np.nan)
    speed = np.full(50, TOKENS / 7.325)
    alone = measure_columns(
        seconds=unknown, tokens_per_second_per_gpu=speed, global_batch_size=unknown
    )
    assert "unverified-batch" in list_codes(alone)
    first = np.where(mask_steps(11), np.nan, 7.325)
    doubled = measure_columns(
        seconds=first, tokens_per_second_per_gpu=2 * speed, global_batch_size=unknown
    )
    assert [problem.reason for problem in doubled.problems] == [
        Reason.WRONG_CONFIGURATION
    ]


def test_zero_tokens_per_second_do_not_verify_the_batch_size() -> None:
    unknown = np.full(50, np.nan)
    speeds = (np.zeros(50), np.full(50, TOKENS / 7.325))
    zero, printed = (
        measure_columns(tokens_per_second_per_gpu=speed, global_batch_size=unknown)
        for speed in speeds
    )
    assert "unverified-batch" in list_codes(zero)
    assert "unverified-batch" not in list_codes(printed)


def test_step_times_from_tokens_per_second_have_the_resolution_of_that_rate() -> None:
    speed = np.full(50, 100.0)
    baseline = replace(BASELINE, peak_tflops=float("nan"))
    measurement = measure_columns(
        baseline, seconds=np.full(50, np.nan), tokens_per_second_per_gpu=speed
    )
    assert measurement.resolution_seconds == pytest.approx(TOKENS / 100 / 100)


def test_untimed_step_outside_window_is_noted() -> None:
    measurement = measure_columns(seconds=np.where(mask_steps(3), np.nan, 7.325))
    assert measurement.valid
    assert list_codes(measurement) == ["untimed-steps"]


@pytest.mark.parametrize(("step", "valid"), [(10, True), (11, False), (47, False)])
def test_loss_may_be_missing_before_the_window_only(step: int, valid: bool) -> None:
    """In half precision the first steps overflow and are skipped, without a loss."""
    measurement = measure_columns(has_loss=~mask_steps(step))
    assert measurement.valid is valid
    assert ("loss-missing-before" in list_codes(measurement)) is valid


def measure_whole_run(
    of: int, seconds: float, resolution: float, match: RunMatch | None = None
) -> Measurement:
    """Measure a run of a 1921-step recipe whose log prints one mean of `of` steps."""
    baseline = at(BASELINE, steps=1921, window=Window(1, 1921), match=match)
    columns = means_of(of, [seconds], resolution_seconds=np.array([resolution]))
    return measure(run(log(segment(columns, total=of))), baseline, NOW)


def test_uncertain_number_of_steps_is_taken_from_the_recipe() -> None:
    measurement = measure_whole_run(1909, 7.4, 7.4 * 24 / 1909)
    assert measurement.valid
    assert measurement.statistic_seconds == pytest.approx(7.4 * 1909 / 1921)
    assert [phrase(note) for note in measurement.notes if note.code == "steps"] == [
        "the log's rounded values suggest about 1909 steps; assumed are the recipe's 1921"
    ]


@pytest.mark.parametrize(("of", "choice"), [(1909, 60), (1700, 600), (2400, 1000)])
def test_very_uncertain_number_of_steps_is_taken_from_the_recipe(
    of: int, choice: float
) -> None:
    measurement = measure_whole_run(of, 7.4, 7.4 * choice / of)
    assert measurement.valid
    assert measurement.statistic_seconds == pytest.approx(7.4 * of / 1921)
    assert measurement.resolution_seconds == pytest.approx(
        7.4 * of / 1921 / 1000
    )  # the ratio of two runtimes is certain


def test_uncertain_step_counts_of_run_and_recorded_baseline_have_to_overlap() -> None:
    """The recorded count is uncertain, too: both runs may have a count in between."""
    recorded = RunMatch("my_7b/train.log")
    assert measure_whole_run(1945, 7.4, 7.4 * 30 / 1945, recorded).valid
    assert not measure_whole_run(1945, 7.4, 7.4 * 30 / 1945).valid
    assert not measure_whole_run(1955, 7.4, 7.4 * 30 / 1955, recorded).valid


@pytest.mark.parametrize(("of", "choice"), [(1909, 20), (1950, 24), (1200, 1000)])
def test_number_of_steps_that_contradicts_the_recipe_is_not_changed(
    of: int, choice: float
) -> None:
    measurement = measure_whole_run(of, 7.4, 7.4 * choice / of)
    assert measurement.statistic_seconds in (None, pytest.approx(7.4))
    assert not measurement.valid
