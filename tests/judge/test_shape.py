"""Shapes of windows: synthetic ones of each kind, real logs, and general properties."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import measurement
from support.shared_data import shared

from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.core.run_records import Measurement, Note
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.pattern import ShapeKind
from pytest_llmbench.judge.shape import Shape, find_shape
from pytest_llmbench.logs.log_reader import read_log
from pytest_llmbench.report.wording import phrase, phrase_all

EVO2 = "nemo2/evo2_slow_after_checkpoint_excerpt.out"
GENEFORMER = "nemo2/geneformer_500_steps.out"
NAN_LOSS = "maxtext/nan_loss.out"

CALM = 7.3 * (1 + 0.003 * np.random.default_rng(3).standard_normal(34))
"""34 step times without a shape, for steps 11 to 44 on lines 111 to 144."""


def make_window(seconds: Sequence[float] | np.ndarray, **fields: Any) -> Measurement:
    """Make a measurement of these step times, numbered from 11."""
    count = len(seconds)
    made = {
        "window_steps": tuple(range(11, 11 + count)),
        "window_lines": tuple(range(111, 111 + count)),
        **fields,
    }
    return measurement(
        1.0, window_seconds=tuple(np.asarray(seconds, dtype=float).tolist()), **made
    )


def read_window(
    name: str, first: int, last: int, *, factor: float = 1.0
) -> Measurement:
    """Read steps of a real log, slowed by a factor."""
    steps: Steps = read_log(shared(f"logs/{name}")).segments[0].steps
    inside = (steps.index >= first) & (steps.index <= last)
    return make_window(
        factor * steps.seconds[inside],
        window_steps=tuple(steps.index[inside].tolist()),
        window_lines=tuple(steps.line[inside].tolist()),
        resolution_seconds=factor * float(np.median(steps.resolution_seconds[inside])),
    )


def slow_steps(factor: float, *steps: int, among: np.ndarray = CALM) -> np.ndarray:
    """Slow down some steps by a factor."""
    changed = among.copy()
    changed[np.array(steps) - 11] *= factor
    return changed


def make_moving_means(seconds: np.ndarray) -> Measurement:
    """Make moving means over 5 of 38 step times, as a log of NeMo 1 prints them."""
    return make_window(np.convolve(seconds, np.ones(5) / 5, "valid"), moving_mean=5)


def map_notes(shape: Shape) -> dict[str, Note]:
    """Return the notes by code."""
    return {
        note.code: note for note in (*shape.notes, *filter(None, [shape.warming_up]))
    }


@pytest.mark.parametrize(
    ("seconds", "kind", "words"),
    [
        (CALM, "even", "no single step stands out"),
        (
            slow_steps(3.1, 23),
            "one-spike",
            r"one spike: step 23 took 3\.\d+ x the median \(line 123\)",
        ),
        (
            slow_steps(1.3, 23, 24),
            "spikes",
            r"spikes: steps 23, 24; step 2[34] took 1.3\d* x the median \(line 12[34]\)",
        ),
        (
            slow_steps(1.25, 15, 25, 35),
            "periodic",
            r"every 10th step is slow, 2[45].* % above the others \(steps 15, 25, 35\)",
        ),
        (
            slow_steps(1.25, *range(12, 45, 2)),
            "periodic",
            r"every 2nd step is slow, 2[45].* % above the others \(steps 12, 14, 16, 18, 20 and 12 more\)",
        ),
        (
            CALM * np.linspace(1, 1.04, 34),
            "drift",
            r"drift: \+[34]\.\d % from the first to the last step",
        ),
        (
            slow_steps(2, 30, among=CALM * np.linspace(1, 1.04, 34)),
            "drift",
            r"drift: \+[34]\.\d % from the first to the last step; one spike: step 30 took .*",
        ),
        (
            slow_steps(2.8, *range(24, 38)),
            "slow-stretch",
            r"slow stretch: steps 24 to 37 at 20\.\d+ s, the others at 7\..* s",
        ),
        (
            slow_steps(1.5, 20, 21, 22),
            "slow-stretch",
            r"slow stretch: steps 20 to 22 at 10\..* s, the others at 7\..* s",
        ),
        (
            slow_steps(1.1, 12, 15, 16, 17, 23, 30, 34, 43),
            "two-levels",
            r"two levels: 8 of 34 steps at 8\.0.* s, the others at 7\..* s \(steps 12, 15 to 17, 23, 30, 34 and .*\)",
        ),
        (
            slow_steps(1 / 1.1, 12, 15, 16, 17, 23, 30, 34, 43),
            "two-levels",
            r"two levels: 8 of 34 steps at 6\.6.* s, the others at 7\..* s \(steps 12, 15 to 17, 23, 30, 34 and .*\)",
        ),
    ],
)
def test_step_time_pattern_is_classified_and_described(
    seconds: np.ndarray, kind: str, words: str
) -> None:
    shape = find_shape(make_window(seconds))
    assert shape.kind == kind
    assert re.fullmatch(words, phrase_all(shape.statements))


def test_note_on_stragglers_states_their_number_time_share_and_log_line() -> None:
    note = map_notes(
        find_shape(
            make_window(
                slow_steps(
                    3,
                    23,
                    among=slow_steps(2, 12, 13, 14, 20, 30, 41, among=np.ones(34)),
                )
            )
        )
    )["stragglers"]
    assert note.line == 123
    assert phrase(note) == (
        "7 stragglers (35.7 % of the time, +23.5 % on the mean): steps 12 to 14, 20, 23, 30, 41; "
        "step 23 took 3 x the median"
    )


@pytest.mark.parametrize(("factor", "noted"), [(1.2, False), (1.5, True), (0.5, True)])
def test_mean_and_trimmed_mean_that_differ_by_one_percent_are_noted(
    factor: float, noted: bool
) -> None:
    note = map_notes(
        find_shape(make_window(slow_steps(factor, 23, among=np.full(34, 7.3))))
    ).get("mean-and-trimmed")
    assert (note is not None) is noted
    if factor == 1.5:
        assert note
        assert (
            phrase(note)
            == "mean 7.407 s, 20 % trimmed mean 7.300 s: slow steps drive the mean"
        )
    if factor == 0.5:
        assert note
        assert phrase(note).endswith("fast steps drive the mean")


def test_window_of_even_step_times_gets_no_note() -> None:
    even = CodedStatement(StatementCode.EVEN_STEPS, averaged=False)
    assert find_shape(make_window(CALM)) == Shape((even,), ShapeKind.EVEN)


# --- moving means ---------------------------------------------------------------------


def test_slow_step_in_a_moving_mean_is_one_spike() -> None:
    shape = find_shape(
        make_moving_means(np.concatenate((CALM[:15], [11.0], CALM[:22])))
    )
    assert shape.kind == "one-spike"
    assert re.fullmatch(
        r"one spike: steps 22 to 26 took up to 1\.1\d* x the median \(line 12\d\)",
        phrase_all(shape.statements),
    )
    assert phrase(map_notes(shape)["stragglers"]).endswith(
        "the median; one slow step raises 5 values"
    )
    assert phrase(map_notes(shape)["moving-mean"]) == (
        "the log prints means of 5 steps: 34 values, about 6 of them independent"
    )


def test_slow_steps_in_a_moving_mean_are_spikes() -> None:
    steps = np.concatenate((CALM, CALM[:4]))
    steps[[8, 27]] *= 1.5
    shape = find_shape(make_moving_means(steps))
    assert shape.kind == "spikes"
    assert phrase_all(shape.statements).startswith("spikes: steps 15 to 19, 34 to 38; ")
    assert "two-levels" not in map_notes(shape)


# --- real logs ------------------------------------------------------------------------


def test_slow_stretch_at_window_start_is_a_warm_up() -> None:
    assert find_shape(read_window(EVO2, 50, 83)).warming_up
    assert not find_shape(read_window(EVO2, 41, 74)).warming_up


def test_one_slow_step_among_499_of_a_real_run_is_a_spike() -> None:
    shape = find_shape(read_window(GENEFORMER, 1, 499))
    assert (shape.kind, phrase_all(shape.statements)) == (
        "one-spike",
        "one spike: step 385 took 1.36 x the median (line 779)",
    )


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        (GENEFORMER, 11, 44),
        (NAN_LOSS, 11, 44),
        ("nemo2/resiliency_five_runs.out", 1, 19),
    ],
)
def test_step_times_of_steady_real_runs_are_classified_as_even(
    name: str, first: int, last: int
) -> None:
    shape = find_shape(read_window(name, first, last))
    assert (shape.kind, shape.notes, shape.warming_up) == ("even", (), None)


# --- general properties ---------------------------------------------------------------


@pytest.mark.slow
@given(
    st.lists(st.floats(1e-6, 1e6), max_size=120),
    st.sampled_from([1, 5]),
    st.sampled_from([0.0, 0.001]),
)
def test_description_of_any_step_times_has_at_most_200_characters(
    seconds: list[float], moving_mean: int, resolution: float
) -> None:
    shape = find_shape(
        make_window(seconds, moving_mean=moving_mean, resolution_seconds=resolution)
    )
    assert shape.kind in set(ShapeKind)
    for text in (
        phrase_all(shape.statements),
        *(phrase(note) for note in map_notes(shape).values()),
    ):
        assert text
        assert "nan" not in text
        assert "\n" not in text
        assert len(text) <= 200


@pytest.mark.parametrize("count", [0, 1, 6, 300])
def test_equal_step_times_are_classified_as_even(count: int) -> None:
    shape = find_shape(make_window([7.325] * count))
    assert (shape.kind, shape.notes, shape.warming_up) == ("even", (), None)


def test_unnumbered_steps_are_counted_from_the_window_start() -> None:
    shape = find_shape(
        make_window(
            slow_steps(3, 23, among=np.ones(34)), window_steps=(), window_lines=()
        )
    )
    assert phrase_all(shape.statements) == "one spike: step 23 took 3 x the median"
    assert map_notes(shape)["stragglers"].line == 0


@pytest.mark.parametrize("digits", [1, 3, 6])
def test_exactly_linear_step_times_are_a_drift(digits: int) -> None:
    """Its residuals are floating-point errors, which are correlated."""
    printed = [
        round(1000 * (1 + 0.005 * step), digits) / 1000 for step in range(11, 45)
    ]
    assert find_shape(make_window(printed)).kind is ShapeKind.DRIFT
