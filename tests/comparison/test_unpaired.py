"""Difference of two sides of unpaired runs, and their differing facts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from causes import Cell, simulate
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats
from support.builders import measurement

from pytest_llmbench.comparison.comparison_records import (
    NODES,
    STARTED,
    SideAnswer,
    SideDifferences,
    SideEstimate,
    SideRun,
)
from pytest_llmbench.comparison.unpaired import Sides, compare_all, find_differences
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.judge import noise
from pytest_llmbench.judge.estimate import split_within_error

DAY = datetime(2025, 11, 1, 2, tzinfo=UTC)
QUIET = (10.0, 10.01, 9.99, 10.0)


def make_side(
    seconds: Sequence[float], first: int = 0, **fields: Any
) -> tuple[SideRun, ...]:
    """Make one run per day, each on separate nodes."""
    return tuple(
        replace(
            SideRun(
                f"r{first + day}", value, started=DAY + timedelta(days=first + day)
            ),
            **{"nodes": frozenset({f"n{first + day}"}), **fields},
        )
        for day, value in enumerate(seconds)
    )


def estimate_difference(
    a: Sequence[float] | tuple[SideRun, ...],
    b: Sequence[float] | tuple[SideRun, ...],
    margin: float = 0.01,
    daily: Noise | None = None,
) -> SideEstimate:
    sides = [
        runs if isinstance(runs[0], SideRun) else make_side(runs, 10 * index)  # type: ignore[arg-type]
        for index, runs in enumerate((a, b))
    ]
    return compare_all({"x": Sides(sides[0], sides[1], daily)}, margin, 0.01)["x"][0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("factor", "answer", "within"),
    [
        (1.05, SideAnswer.SLOWER, False),
        (0.95, SideAnswer.FASTER, False),
        (1.005, SideAnswer.SLOWER, True),
        (0.995, SideAnswer.FASTER, True),
        (1.0, SideAnswer.ALIKE, True),
    ],
)
def test_four_low_noise_runs_per_side_detect_a_half_percent_difference(
    factor: float, answer: SideAnswer, within: bool
) -> None:
    estimate = estimate_difference(QUIET, [value * factor for value in QUIET])
    assert estimate.answer is answer
    assert estimate.within_margin is within
    assert math.exp(estimate.difference) == pytest.approx(factor)
    assert estimate.low < estimate.difference < estimate.high


def test_interval_matches_students_t_test() -> None:
    b = (10.2, 10.21, 10.17, 10.24)
    estimate = estimate_difference(QUIET, b)
    test = stats.ttest_ind(
        [math.log(value) for value in b], [math.log(value) for value in QUIET]
    )
    interval = test.confidence_interval(0.95)
    assert (estimate.low, estimate.high) == pytest.approx((interval.low, interval.high))
    assert estimate.degrees_of_freedom == 6


def test_one_run_per_side_assumes_noise() -> None:
    estimate = estimate_difference([10.0], [10.2])
    assert estimate.answer is SideAnswer.CANNOT_TELL
    assert not estimate.noise.measured
    expected = (stats.t.ppf(0.975, 4) + stats.t.ppf(0.8, 4)) * 0.01 * math.sqrt(2)
    assert estimate.smallest == pytest.approx(math.expm1(expected))
    needed = math.ceil(2 * (2.8 * 0.01 / math.log(1.01)) ** 2)
    assert estimate.runs_needed == (needed - 1, needed - 1)


def test_runs_of_one_day_on_same_nodes_count_once() -> None:
    nodes = frozenset({"n1", "n2"})
    a = make_side(QUIET, nodes=nodes, started=DAY)
    b = make_side(
        [1.02 * value for value in QUIET],
        10,
        nodes=nodes,
        started=DAY + timedelta(days=1),
    )
    estimate = estimate_difference(a, b)
    assert (estimate.runs, estimate.groups, estimate.same_nodes) == (
        (4, 4),
        (1, 1),
        True,
    )
    assert estimate.answer is SideAnswer.CANNOT_TELL
    assert not estimate.noise.measured
    elsewhere = [
        replace(run, nodes=frozenset({f"m{number}"})) for number, run in enumerate(b)
    ]
    estimate = estimate_difference(a, tuple(elsewhere))
    assert (estimate.groups, estimate.same_nodes) == ((1, 4), False)


def test_runs_of_one_side_without_node_names_or_start_count_as_one_group() -> None:
    one_day = make_side(QUIET, nodes=frozenset(), started=DAY)
    assert estimate_difference(one_day, make_side(QUIET, 10)).groups == (1, 4)
    assert estimate_difference(one_day, make_side(QUIET, 10)).same_nodes is None
    assert estimate_difference(
        make_side(QUIET, nodes=frozenset(), started=None), make_side(QUIET, 10)
    ).groups == (1, 4)


def test_standard_error_of_a_comparison_is_at_least_the_error_within_runs() -> None:
    a, b = (
        make_side(QUIET, within_error=0.02),
        make_side([1.03 * value for value in QUIET], 10, within_error=0.02),
    )
    estimate = estimate_difference(a, b)
    assert estimate.standard_error == pytest.approx(math.sqrt(8 * 0.02**2 / 16))
    assert estimate.answer is SideAnswer.CANNOT_TELL


# --- printed digits -------------------------------------------------------------------


def make_printed(
    level: float, first: int = 0, digits: int = 1, spread: float = 0.0003
) -> tuple[SideRun, ...]:
    """Make six runs of 34 steps around one level, printed with so many decimals."""
    random = np.random.default_rng(first)
    runs = []
    for run in make_side((level,) * 6, first):
        steps = np.round(level * (1 + spread * random.standard_normal(34)), digits)
        seconds = float(steps.mean())
        rounded = measurement(
            seconds,
            window_seconds=tuple(steps.tolist()),
            resolution_seconds=10.0**-digits,
        )
        within_error, rounding = split_within_error(rounded)
        runs.append(
            replace(
                run,
                statistic_seconds=seconds,
                within_error=within_error,
                rounding=rounding,
            )
        )
    return tuple(runs)


def test_one_printed_unit_is_no_difference() -> None:
    """A slowdown of 0.12 % of 24 s crosses a rounding boundary and is printed as 0.4
    %."""
    a, b = make_printed(24.035), make_printed(24.065, 10)
    estimate = estimate_difference(a, b)
    assert estimate.difference > 0.003
    assert estimate.low < math.log(24.065 / 24.035) < estimate.high
    assert estimate.answer is SideAnswer.ALIKE
    assert estimate_difference(a, make_printed(24.235, 10)).answer is SideAnswer.SLOWER
    exact_a, exact_b = (
        tuple(replace(run, rounding=0.0) for run in runs) for runs in (a, b)
    )
    assert estimate_difference(exact_a, exact_b).answer is SideAnswer.SLOWER


def test_equal_printed_times_are_inconclusive_for_a_margin_below_one_unit() -> None:
    """A slowdown of 0.29 % of 24 s crosses no rounding boundary."""
    a, b = make_printed(23.965), make_printed(24.035, 10)
    estimate = estimate_difference(a, b, 0.002)
    assert estimate.answer is SideAnswer.CANNOT_TELL
    assert estimate.low < math.log(24.035 / 23.965) < estimate.high
    assert estimate.runs_needed == (0, 0)  # no number of runs would suffice
    assert estimate.smallest > 2 * 0.05 / 24
    assert estimate_difference(a, b, 0.01).answer is SideAnswer.ALIKE


def test_rounding_error_averages_out_if_printed_step_times_differ() -> None:
    quantised, fine = (
        make_printed(24.035, spread=0.01),
        make_printed(24.035, digits=6, spread=0.01),
    )
    assert {run.rounding for run in (*quantised, *fine)} == {0.0}
    assert [run.within_error for run in quantised] == pytest.approx(
        [run.within_error for run in fine], rel=0.4
    )
    assert [run.rounding for run in make_printed(24.035)] == pytest.approx(
        [0.05 / 24] * 6, rel=0.01
    )


def test_comparison_without_a_step_time_is_inconclusive() -> None:
    assert (
        estimate_difference(QUIET, (*QUIET[:3], math.nan)).answer
        is SideAnswer.CANNOT_TELL
    )


def test_other_configurations_measure_the_noise() -> None:
    noisy = Sides(make_side([10.0, 10.3]), make_side([10.0, 10.1], 10))
    quiet = {
        f"q{number}": Sides(make_side(QUIET), make_side(QUIET, 10))
        for number in range(5)
    }
    alone = compare_all({"x": noisy}, 0.01, 0.01)["x"][0]
    among = compare_all({**quiet, "x": noisy}, 0.01, 0.01)["x"][0]
    assert "assumed" in alone.noise.source
    assert among.noise.measured
    assert "6 configurations" in among.noise.source


times = st.lists(st.floats(1.0, 1.2), min_size=1, max_size=5)


@pytest.mark.slow
@given(times, times)
def test_swapping_the_sides_gives_the_opposite_answer(
    a: list[float], b: list[float]
) -> None:
    plain, exchanged = estimate_difference(a, b), estimate_difference(b, a)
    assert (exchanged.low, exchanged.high) == pytest.approx(
        (-plain.high, -plain.low), abs=1e-12
    )
    opposite = {
        SideAnswer.SLOWER: SideAnswer.FASTER,
        SideAnswer.FASTER: SideAnswer.SLOWER,
    }
    assert exchanged.answer is opposite.get(plain.answer, plain.answer)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [Cell(1, 20, 0.01), Cell(3, 0, 0.005)])
def test_equally_fast_sides_are_reported_as_different_in_about_five_percent(
    cell: Cell,
) -> None:
    assert 0.03 <= simulate(cell, 1500, seed=3).false / 1500 <= 0.07


def test_spread_is_pooled_about_the_mean_of_each_side() -> None:
    pooled = noise.estimate_from_sides([(0.0, 0.02), (1.0, 1.04, 1.02)])
    assert pooled is not None
    assert pooled.degrees_of_freedom == 3
    assert pooled.sigma == pytest.approx(math.sqrt((0.0002 + 0.0008) / 3))
    assert noise.estimate_from_sides([(0.0,), (1.0,)]) is None
    assert noise.estimate_from_sides([(), ()]) is None


# --- differing facts ------------------------------------------------------------------

KNOWN = {
    "container": "nemo:1",
    "commit": "abc",
    "driver": "570",
    "global batch size": "256",
    "parallelism": "tp=4",
}


def find_fact_differences(a: dict[str, str], b: dict[str, str]) -> SideDifferences:
    return find_differences(
        make_side([1.0, 1.0], started=DAY, nodes=frozenset({"n1"}), facts=a),
        make_side([1.0, 1.0], started=DAY, nodes=frozenset({"n1"}), facts=b),
    )


def test_only_differing_fact_is_the_candidate_cause() -> None:
    single = find_fact_differences(KNOWN, {**KNOWN, "container": "nemo:2"})
    assert [(fact.name, fact.a, fact.b) for fact in single.between] == [
        ("container", "nemo:1", "nemo:2")
    ]
    assert single.candidate == "container"
    assert single.unknown == ()
    equal = find_fact_differences(KNOWN, KNOWN)
    assert (equal.between, equal.varying, equal.unknown, equal.candidate) == (
        (),
        (),
        (),
        "",
    )
    two = find_fact_differences(
        KNOWN, {**KNOWN, "container": "nemo:2", "driver": "580"}
    )
    assert len(two.between) == 2
    assert two.candidate == ""


def test_equal_images_of_different_spelling_do_not_differ() -> None:
    written = [
        {**KNOWN, "container": text}
        for text in ("docker://nvcr.io#nvidia/nemo:1", "nvcr.io/nvidia/nemo:1")
    ]
    assert find_fact_differences(*written).between == ()


def test_fact_that_varies_within_a_side_is_noted() -> None:
    a = (
        *make_side([1.0], facts=KNOWN),
        *make_side([1.0], 1, facts={**KNOWN, "driver": "580"}),
    )
    differences_found = find_differences(
        a, make_side([1.0], 2, facts={**KNOWN, "driver": "590"})
    )
    assert [fact.name for fact in differences_found.varying] == [
        "driver",
        NODES,
        STARTED,
    ]
    assert {fact.name: (fact.a, fact.b) for fact in differences_found.varying}[
        "driver"
    ] == (
        ("570", "580"),
        ("590",),
    )
    assert differences_found.between == ()


def test_missing_fact_of_one_run_is_unknown() -> None:
    without = {name: value for name, value in KNOWN.items() if name != "driver"}
    a = (*make_side([1.0], facts=KNOWN), *make_side([1.0], facts=without))
    differences_found = find_differences(
        a, make_side([1.0], facts={**KNOWN, "cuda": "12.8"})
    )
    assert {fact.name: fact.sides for fact in differences_found.unknown} == {
        "driver": "A",
        "cuda": "A",
    }
    undated = find_differences(
        make_side([1.0], nodes=frozenset(), started=None), make_side([1.0])
    )
    unknown = {fact.name: fact.sides for fact in undated.unknown}
    assert (unknown["container"], unknown[NODES], unknown[STARTED]) == (
        "A and B",
        "A",
        "A",
    )


def test_differing_days_are_listed_but_are_no_candidate_cause() -> None:
    a, b = (
        make_side([1.0], facts=KNOWN),
        make_side([1.0], 1, facts={**KNOWN, "commit": "def"}, nodes=frozenset({"n0"})),
    )
    differences_found = find_differences(a, b)
    assert [fact.name for fact in differences_found.between] == ["commit", STARTED]
    assert differences_found.candidate == "commit"
