"""Two sides of runs: how far B is from A, and what differs between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from causes import Cell, simulate
from hypothesis import given
from hypothesis import strategies as st
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


def side(
    seconds: Sequence[float], first: int = 0, **fields: Any
) -> tuple[SideRun, ...]:
    """Return a run a night, each on nodes of its own."""
    return tuple(
        replace(
            SideRun(
                f"r{first + night}", value, started=DAY + timedelta(days=first + night)
            ),
            **{"nodes": frozenset({f"n{first + night}"}), **fields},
        )
        for night, value in enumerate(seconds)
    )


def estimated(
    a: Sequence[float] | tuple[SideRun, ...],
    b: Sequence[float] | tuple[SideRun, ...],
    margin: float = 0.01,
    nights: Noise | None = None,
) -> SideEstimate:
    sides = [
        runs if isinstance(runs[0], SideRun) else side(runs, 10 * at)  # type: ignore[arg-type]
        for at, runs in enumerate((a, b))
    ]
    return compare_all({"x": Sides(sides[0], sides[1], nights)}, margin, 0.01)["x"][0]  # type: ignore[arg-type]


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
def test_four_quiet_runs_per_side_measure_the_difference(
    factor: float, answer: SideAnswer, within: bool
) -> None:
    estimate = estimated(QUIET, [value * factor for value in QUIET])
    assert estimate.answer is answer
    assert estimate.within_margin is within
    assert math.exp(estimate.difference) == pytest.approx(factor)
    assert estimate.low < estimate.difference < estimate.high


def test_interval_follows_students_test() -> None:
    b = (10.2, 10.21, 10.17, 10.24)
    estimate = estimated(QUIET, b)
    test = stats.ttest_ind(
        [math.log(value) for value in b], [math.log(value) for value in QUIET]
    )
    interval = test.confidence_interval(0.95)
    assert (estimate.low, estimate.high) == pytest.approx((interval.low, interval.high))
    assert estimate.degrees_of_freedom == 6


def test_one_run_per_side_assumes_noise() -> None:
    estimate = estimated([10.0], [10.2])
    assert estimate.answer is SideAnswer.CANNOT_TELL
    assert not estimate.noise.measured
    expected = (stats.t.ppf(0.975, 4) + stats.t.ppf(0.8, 4)) * 0.01 * math.sqrt(2)
    assert estimate.smallest == pytest.approx(math.expm1(expected))
    needed = math.ceil(2 * (2.8 * 0.01 / math.log(1.01)) ** 2)
    assert estimate.runs_needed == (needed - 1, needed - 1)


def test_runs_of_one_day_on_same_nodes_count_once() -> None:
    nodes = frozenset({"n1", "n2"})
    a = side(QUIET, nodes=nodes, started=DAY)
    b = side(
        [1.02 * value for value in QUIET],
        10,
        nodes=nodes,
        started=DAY + timedelta(days=1),
    )
    estimate = estimated(a, b)
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
    estimate = estimated(a, tuple(elsewhere))
    assert (estimate.groups, estimate.same_nodes) == ((1, 4), False)


def test_unknown_nodes_and_starts_do_not_differ() -> None:
    one_night = side(QUIET, nodes=frozenset(), started=DAY)
    assert estimated(one_night, side(QUIET, 10)).groups == (1, 4)
    assert estimated(one_night, side(QUIET, 10)).same_nodes is None
    assert estimated(
        side(QUIET, nodes=frozenset(), started=None), side(QUIET, 10)
    ).groups == (1, 4)


def test_error_within_runs_is_a_floor() -> None:
    a, b = (
        side(QUIET, within_error=0.02),
        side([1.03 * value for value in QUIET], 10, within_error=0.02),
    )
    estimate = estimated(a, b)
    assert estimate.standard_error == pytest.approx(math.sqrt(8 * 0.02**2 / 16))
    assert estimate.answer is SideAnswer.CANNOT_TELL


# --- printed digits -------------------------------------------------------------------


def printed(
    level: float, first: int = 0, digits: int = 1, spread: float = 0.0003
) -> tuple[SideRun, ...]:
    """Return six runs of 34 steps around one level, as a log prints them that rounds to
    so many decimals."""
    random = np.random.default_rng(first)
    runs = []
    for run in side((level,) * 6, first):
        steps = np.round(level * (1 + spread * random.standard_normal(34)), digits)
        seconds = float(steps.mean())
        taken = measurement(
            seconds,
            window_seconds=tuple(steps.tolist()),
            resolution_seconds=10.0**-digits,
        )
        within_error, rounding = split_within_error(taken)
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
    """+0.12 % of 24 s crosses a bound of three digits, and is printed as +0.4 %."""
    a, b = printed(24.035), printed(24.065, 10)
    estimate = estimated(a, b)
    assert estimate.difference > 0.003
    assert estimate.low < math.log(24.065 / 24.035) < estimate.high
    assert estimate.answer is SideAnswer.ALIKE
    assert estimated(a, printed(24.235, 10)).answer is SideAnswer.SLOWER
    exact_a, exact_b = (
        tuple(replace(run, rounding=0.0) for run in runs) for runs in (a, b)
    )
    assert estimated(exact_a, exact_b).answer is SideAnswer.SLOWER


def test_equal_printed_times_are_inconclusive_below_one_unit() -> None:
    """+0.29 % of 24 s crosses no bound."""
    a, b = printed(23.965), printed(24.035, 10)
    estimate = estimated(a, b, 0.002)
    assert estimate.answer is SideAnswer.CANNOT_TELL
    assert estimate.low < math.log(24.035 / 23.965) < estimate.high
    assert estimate.runs_needed == (0, 0)  # no number of runs would
    assert estimate.smallest > 2 * 0.05 / 24
    assert estimated(a, b, 0.01).answer is SideAnswer.ALIKE


def test_rounding_of_differing_steps_is_averaged() -> None:
    coarse, fine = printed(24.035, spread=0.01), printed(24.035, digits=6, spread=0.01)
    assert {run.rounding for run in (*coarse, *fine)} == {0.0}
    assert [run.within_error for run in coarse] == pytest.approx(
        [run.within_error for run in fine], rel=0.4
    )
    assert [run.rounding for run in printed(24.035)] == pytest.approx(
        [0.05 / 24] * 6, rel=0.01
    )


def test_run_without_a_time_is_inconclusive() -> None:
    assert estimated(QUIET, (*QUIET[:3], math.nan)).answer is SideAnswer.CANNOT_TELL


def test_other_configurations_measure_the_noise() -> None:
    noisy = Sides(side([10.0, 10.3]), side([10.0, 10.1], 10))
    quiet = {f"q{number}": Sides(side(QUIET), side(QUIET, 10)) for number in range(5)}
    alone = compare_all({"x": noisy}, 0.01, 0.01)["x"][0]
    among = compare_all({**quiet, "x": noisy}, 0.01, 0.01)["x"][0]
    assert "assumed" in alone.noise.source
    assert among.noise.measured
    assert "6 configurations" in among.noise.source


times = st.lists(st.floats(1.0, 1.2), min_size=1, max_size=5)


@pytest.mark.slow
@given(times, times)
def test_exchanged_sides_give_the_opposite_answer(
    a: list[float], b: list[float]
) -> None:
    plain, exchanged = estimated(a, b), estimated(b, a)
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
def test_equal_sides_differ_in_one_of_twenty_cases(cell: Cell) -> None:
    assert 0.03 <= simulate(cell, 1500, seed=3).false / 1500 <= 0.07


def test_spread_is_pooled_about_the_mean_of_each_side() -> None:
    pooled = noise.estimate_from_sides([(0.0, 0.02), (1.0, 1.04, 1.02)])
    assert pooled is not None
    assert pooled.degrees_of_freedom == 3
    assert pooled.sigma == pytest.approx(math.sqrt((0.0002 + 0.0008) / 3))
    assert noise.estimate_from_sides([(0.0,), (1.0,)]) is None
    assert noise.estimate_from_sides([(), ()]) is None


# --- what differs ---------------------------------------------------------------------

KNOWN = {
    "container": "nemo:1",
    "commit": "abc",
    "driver": "570",
    "global batch size": "256",
    "parallelism": "tp=4",
}


def differences(a: dict[str, str], b: dict[str, str]) -> SideDifferences:
    return find_differences(
        side([1.0, 1.0], started=DAY, nodes=frozenset({"n1"}), facts=a),
        side([1.0, 1.0], started=DAY, nodes=frozenset({"n1"}), facts=b),
    )


def test_only_fact_that_differs_is_the_candidate() -> None:
    found = differences(KNOWN, {**KNOWN, "container": "nemo:2"})
    assert [(fact.name, fact.a, fact.b) for fact in found.between] == [
        ("container", "nemo:1", "nemo:2")
    ]
    assert found.candidate == "container"
    assert found.unknown == ()
    equal = differences(KNOWN, KNOWN)
    assert (equal.between, equal.varying, equal.unknown, equal.candidate) == (
        (),
        (),
        (),
        "",
    )
    both = differences(KNOWN, {**KNOWN, "container": "nemo:2", "driver": "580"})
    assert len(both.between) == 2
    assert both.candidate == ""


def test_equal_images_of_different_spelling_do_not_differ() -> None:
    written = [
        {**KNOWN, "container": text}
        for text in ("docker://nvcr.io#nvidia/nemo:1", "nvcr.io/nvidia/nemo:1")
    ]
    assert differences(*written).between == ()


def test_fact_that_varies_within_a_side_is_noted() -> None:
    a = (*side([1.0], facts=KNOWN), *side([1.0], 1, facts={**KNOWN, "driver": "580"}))
    found = find_differences(a, side([1.0], 2, facts={**KNOWN, "driver": "590"}))
    assert [fact.name for fact in found.varying] == ["driver", NODES, STARTED]
    assert {fact.name: (fact.a, fact.b) for fact in found.varying}["driver"] == (
        ("570", "580"),
        ("590",),
    )
    assert found.between == ()


def test_missing_fact_of_one_run_is_unknown() -> None:
    without = {name: value for name, value in KNOWN.items() if name != "driver"}
    a = (*side([1.0], facts=KNOWN), *side([1.0], facts=without))
    found = find_differences(a, side([1.0], facts={**KNOWN, "cuda": "12.8"}))
    assert {fact.name: fact.sides for fact in found.unknown} == {
        "driver": "A",
        "cuda": "A",
    }
    nothing = find_differences(
        side([1.0], nodes=frozenset(), started=None), side([1.0])
    )
    unknown = {fact.name: fact.sides for fact in nothing.unknown}
    assert (unknown["container"], unknown[NODES], unknown[STARTED]) == (
        "A and B",
        "A",
        "A",
    )


def test_other_day_is_listed_but_no_candidate() -> None:
    a, b = (
        side([1.0], facts=KNOWN),
        side([1.0], 1, facts={**KNOWN, "commit": "def"}, nodes=frozenset({"n0"})),
    )
    found = find_differences(a, b)
    assert [fact.name for fact in found.between] == ["commit", STARTED]
    assert found.candidate == "commit"
