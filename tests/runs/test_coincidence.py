"""How probable it is that two runs print the same steps: no honest pair is a copy, and
every copy of fine digits is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from support.builders import log, run, segment, steps, without

from pytest_llmbench.core.run_records import Run
from pytest_llmbench.runs.coincidence import (
    CERTAIN,
    PrintedSteps,
    estimate_chance,
    find_shared_steps,
    hash_steps,
)

EVERY = np.ones(50, dtype=bool)


def printed(
    seconds: float,
    spread: float,
    decimals: int,
    averaged: int,
    random: np.random.Generator,
) -> list[float]:
    """Return what a log prints of a run: rounded, each time the mean of the last few
    steps."""
    single = seconds * (1 + spread * random.standard_normal(50))
    means = [
        single[max(0, step + 1 - averaged) : step + 1].mean() for step in range(50)
    ]
    return [float(value) for value in np.round(means, decimals)]


def chance(values: list[float], averaged: int = 1) -> float:
    return estimate_chance([(PrintedSteps(steps(values), averaged), EVERY)])


@pytest.mark.parametrize(
    ("seconds", "spread", "decimals"), [(12.39, 0.002, 2), (7.908, 0.0003, 3)]
)
def test_fifty_steps_of_four_digits_are_no_coincidence(
    seconds: float, spread: float, decimals: int
) -> None:
    random = np.random.default_rng(1)
    assert (
        max(chance(printed(seconds, spread, decimals, 1, random)) for _ in range(50))
        < CERTAIN
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "spread", "decimals", "averaged"),
    [(24.0, 0.002, 1, 5), (24.0, 0.001, 1, 1)],
)
def test_no_honest_pair_is_certain_to_be_a_copy(
    seconds: float, spread: float, decimals: int, averaged: int
) -> None:
    """Of some millions of pairs those that print the same, which are up to every third,
    may all be chance."""
    random = np.random.default_rng(2)
    nights: dict[tuple[float, ...], int] = defaultdict(int)
    for _ in range(3000):
        nights[tuple(printed(seconds, spread, decimals, averaged, random))] += 1
    equal = [list(values) for values, count in nights.items() if count > 1]
    assert equal
    assert min(chance(values, averaged) for values in equal) > CERTAIN / 2


def test_few_steps_or_equal_ones_prove_nothing() -> None:
    assert chance([7.325] * 50) == 0.0
    few = steps([7.325, 7.331])
    assert estimate_chance([(PrintedSteps(few), EVERY[:2])]) == 0.0
    ten = steps(printed(7.325, 0.003, 3, 1, np.random.default_rng(3))[:10])
    assert estimate_chance([(PrintedSteps(ten), EVERY[:10])]) > 2 * CERTAIN


def test_steps_that_depend_on_their_number_alone_prove_nothing() -> None:
    """Another run of the configuration agrees as well in most steps: the times follow
    from the steps."""
    values = printed(7.325, 0.003, 3, 1, np.random.default_rng(4))
    witness = values.copy()
    witness[20] += 0.001
    shared = [(PrintedSteps(steps(values)), EVERY)]
    assert estimate_chance(shared) < CERTAIN
    assert estimate_chance(shared, [of(witness)]) > CERTAIN


def of(*values: list[float]) -> Run:
    return run(log(*(segment(steps(one)) for one in values)))


def test_a_part_without_a_counterpart_makes_a_run_of_its_own() -> None:
    random = np.random.default_rng(5)
    first, second, third = (printed(7.325, 0.003, 3, 1, random) for _ in range(3))
    assert len(find_shared_steps(of(first, second), of(second, first))) == 2
    assert find_shared_steps(of(first, third), of(first, second)) == []
    assert len(find_shared_steps(of(first), of(first, second))) == 1


def test_other_losses_make_another_run() -> None:
    values = printed(7.325, 0.003, 3, 1, np.random.default_rng(6))
    losses = np.full(50, 12.0)
    losses[49] = 11.99
    other = run(log(segment(steps(values, loss=losses))))
    assert find_shared_steps(of(values), other) == []


def test_a_copy_that_lost_lines_is_found_by_its_marks() -> None:
    whole = steps(printed(7.325, 0.003, 3, 1, np.random.default_rng(7)))
    whole = replace(whole, loss=np.linspace(12, 11, 50))
    for lost in (range(30, 50), range(20), (5, 17, 33)):
        assert set(hash_steps(whole)[1]) & set(hash_steps(without(whole, *lost))[1])
        assert hash_steps(whole)[0] != hash_steps(without(whole, *lost))[0]
    assert hash_steps(steps([7.3])) != hash_steps(steps([7.4]))
