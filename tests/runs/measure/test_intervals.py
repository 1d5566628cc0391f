"""Times that are means of several steps: the window they cover, and notes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import BASELINE, NOW, log, means_of, run, segment, steps

from pytest_llmbench.core.baseline_records import Baseline, Window
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import (
    ArraySteps,
    CheckpointAction,
    CheckpointRecord,
    Checkpoints,
    Segment,
    Steps,
)
from pytest_llmbench.core.run_records import Measurement, Note
from pytest_llmbench.report.wording import phrase
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.runs.measure.moving_mean import detect_moving_mean
from pytest_llmbench.runs.measure.window import (
    compute_statistic,
    find_missing_steps,
    mask_window,
)

STEPS = 50


def make_baseline(first: int, last: int, name: str = "mean") -> Baseline:
    return replace(BASELINE, window=Window(first, last, name))


def make_segment(columns: Steps) -> Segment:
    return replace(segment(columns), first_step=1)


def measure_steps(columns: Steps, baseline: Baseline = BASELINE) -> Measurement:
    return measure(run(log(make_segment(columns))), baseline, NOW)


@pytest.mark.parametrize(
    ("window", "missing", "advice"),
    [
        ((11, 50), [], None),
        ((11, 40), [], None),
        ((21, 30), [], None),
        (
            (11, 44),
            [41, 42, 43, 44],
            "every 10th step: 41 to 44 are not covered; a window of whole intervals is 11 to 40",
        ),
        (
            (9, 42),
            [9, 10, 41, 42],
            "every 10th step: 9 to 10, 41 to 42 are not covered; a window of whole intervals is 11 to 40",
        ),
        (
            (40, 40),
            [40],
            "every 10th step: 40 is not covered; a window of whole intervals is 31 to 40",
        ),
        (
            (35, 44),
            list(range(35, 45)),
            "every 10th step: 35 to 44 are not covered; a window of whole intervals is 31 to 50",
        ),
    ],
)
def test_window_contains_only_whole_logging_intervals(
    window: tuple[int, int], missing: list[int], advice: str | None
) -> None:
    columns = means_of(10, [9.0, 7.0, 7.1, 7.2, 7.3])
    assert list(find_missing_steps(columns, Window(*window))) == missing
    problems = measure_steps(columns, make_baseline(*window)).problems
    expected = [f"the log prints {advice}"] if advice else []
    assert [problem.text for problem in problems] == expected
    assert {problem.reason for problem in problems} <= {Reason.WINDOW_INCOMPLETE}
    assert all(problem.line > 100 for problem in problems)


def test_lost_line_is_not_described_as_a_logging_interval() -> None:
    """Where times come from time stamps, the step after a lost line is the mean of
    two."""
    index = np.array([1, 2, *range(4, 11)])
    columns = steps([7.0] * 9, index=index, mean_of=np.array([1, 1, 2, *[1] * 6]))
    (problem,) = measure_steps(
        columns, replace(make_baseline(4, 10), steps=10)
    ).problems
    assert problem.text == (
        "the time at step 4 is the mean of 2 steps: 4 is not covered; a window of whole intervals is 5 to 10"
    )
    assert not measure_steps(columns, replace(make_baseline(3, 10), steps=10)).problems


def test_problems_distinguish_lost_lines_from_intervals_across_the_window_border() -> (
    None
):
    columns = means_of(10, [7.0] * 5)
    lost = ArraySteps(
        **{
            name: np.delete(getattr(columns, name), 1)
            for name in Steps.__dataclass_fields__
        }
    )
    problems = measure_steps(lost, make_baseline(11, 44)).problems
    assert [problem.text for problem in problems] == [
        "the log prints every 10th step: 41 to 44 are not covered; a window of whole intervals is 21 to 40",
        "10 of the steps 11 to 44 are missing: 11, 12, 13, 14, 15 and 5 more",
    ]


def test_printed_mean_is_weighted_by_the_number_of_its_steps() -> None:
    columns = steps([8.0, 6.0], index=np.array([10, 40]), mean_of=np.array([10, 30]))
    measurement = measure_steps(columns, replace(make_baseline(1, 40), steps=40))
    assert measurement.statistic_seconds == pytest.approx((8.0 * 10 + 6.0 * 30) / 40)
    assert measurement.mean_of == (10, 30)
    assert (
        measurement.metric("step_time_mean_seconds").value
        == measurement.statistic_seconds
    )


def test_printed_mean_replaces_an_earlier_time_of_a_step_that_it_includes() -> None:
    """After step 1 Megatron-Bridge prints the mean of steps 1 and 2: step 1 must not
    count twice."""
    columns = steps([30.0, 18.5, 7.0, 7.0], first=1, mean_of=np.array([1, 2, 1, 1]))
    window = Window(1, 4)
    assert mask_window(columns, window).tolist() == [False, True, True, True]
    assert find_missing_steps(columns, window) == ()
    measurement = measure_steps(columns, replace(make_baseline(1, 4), steps=4))
    assert measurement.statistic_seconds == pytest.approx((30 + 7 + 7 + 7) / 4)
    assert find_missing_steps(columns, Window(2, 4)) == (2,)


def list_notes(measurement: Measurement, code: str) -> list[Note]:
    return [note for note in measurement.notes if note.code == code]


def test_interval_means_are_noted() -> None:
    (note,) = list_notes(
        measure_steps(means_of(10, [7.0] * 5), make_baseline(11, 40)), "interval-mean"
    )
    assert (
        phrase(note)
        == "each time is the mean of 10 steps: 3 times for 30 steps; the first is at step 20"
    )
    assert note.line == 120
    one_lost = steps(
        [7.0] * 9,
        index=np.array([1, 2, *range(4, 11)]),
        mean_of=np.array([1, 1, 2, *[1] * 6]),
    )
    (note,) = list_notes(
        measure_steps(one_lost, replace(make_baseline(1, 10), steps=10)),
        "interval-mean",
    )
    assert (
        phrase(note) == "1 of 9 times are the means of 2 steps; the first is at step 4"
    )
    assert not list_notes(measure_steps(steps(first=1)), "interval-mean")


def test_run_with_one_mean_of_all_steps_is_measured() -> None:
    columns = steps([7.4], index=np.array([STEPS]), mean_of=np.array([STEPS]))
    measurement = measure_steps(columns, make_baseline(1, STEPS))
    assert measurement.valid
    assert (measurement.statistic_seconds, measurement.window_seconds) == (7.4, (7.4,))
    (problem,) = measure_steps(columns, make_baseline(11, 44)).problems
    assert problem.text == (
        "the log prints every 50th step: 11 to 44 are not covered; a window of whole intervals is 1 to 50"
    )


def test_long_run_with_one_record_is_not_taken_for_a_checkpoint_load() -> None:
    columns = means_of(50, [7.4])
    loading = Checkpoints((CheckpointRecord(CheckpointAction.LOAD, line=9, part=1),))
    assert (
        measure(
            run(log(make_segment(columns), checkpoints=loading)),
            make_baseline(1, STEPS),
            NOW,
        ).excluded
        is None
    )


def test_interval_means_are_no_moving_means() -> None:
    single = np.array([60.0, *[7.0] * 49])
    moving = [single[max(0, last - 5) : last].mean() for last in range(1, 51)]
    assert detect_moving_mean(steps(moving)) == 5
    assert detect_moving_mean(steps(moving, mean_of=np.array([1, 2, *[1] * 48]))) == 1


widths = st.lists(st.integers(1, 12), min_size=1, max_size=12)


@pytest.mark.slow
@given(widths, st.data())
def test_weighted_mean_of_interval_means_equals_mean_of_single_steps(
    widths: list[int], data: st.DataObject
) -> None:
    single = np.array(
        data.draw(st.lists(st.floats(1, 9), min_size=sum(widths), max_size=sum(widths)))
    )
    printed = np.array(
        [group.mean() for group in np.split(single, np.cumsum(widths)[:-1])]
    )
    assert compute_statistic(printed, "mean", widths) == pytest.approx(single.mean())
    repeated = np.repeat(printed, widths)
    expected = compute_statistic(repeated, "trimmed_mean")
    assert compute_statistic(repeated, "trimmed_mean", [3] * len(repeated)) == expected
    if len(set(widths)) > 1:
        assert compute_statistic(printed, "trimmed_mean", widths) == pytest.approx(
            expected
        )
