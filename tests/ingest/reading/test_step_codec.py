"""Steps as bytes: every bit of every column comes out, and a column is only made when somebody looks at it."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
from compared import bits
from hypothesis import given
from hypothesis import strategies as some

from pytest_llmbench.core.models import Steps
from pytest_llmbench.ingest.reading.codec import LazySteps, pack_steps, unpack_steps

FLOATS = [0.0, -0.0, 1.5, float("nan"), -float("nan"), float("inf"), 5e-324]
INTEGERS = [0, 1, 2, 3, -(2**63), 2**63 - 1]


def steps_of(rows: list[tuple[float, int, bool]]) -> Steps:
    """Return steps whose columns of one type are equal, moved by a row each."""
    parts = {"Floats": 0, "Integers": 1, "Flags": 2}
    types = {"Floats": np.float64, "Integers": np.int64, "Flags": np.bool_}
    columns = {}
    for number, one in enumerate(dataclasses.fields(Steps)):
        values: Any = np.array([row[parts[str(one.type)]] for row in rows], types[str(one.type)])
        columns[one.name] = np.roll(values, number)
    return Steps(**columns)


def evenly(count: int, first: int = 0) -> Steps:
    return steps_of([(1.5, number, True) for number in range(first, first + count)])


def again(steps: list[Steps]) -> list[Steps]:
    layout, data = pack_steps(steps)
    return unpack_steps(b"".join(data), 0, layout)


rows = some.tuples(some.sampled_from(FLOATS), some.sampled_from(INTEGERS), some.booleans())
repeated = some.lists(some.tuples(rows, some.integers(1, 60)), max_size=6).map(
    lambda runs: steps_of([row for row, times in runs for _ in range(times)])
)


@given(some.lists(repeated, max_size=5))
def test_all_columns_come_out_bit_for_bit(steps: list[Steps]) -> None:
    """Signed zeros, each NaN, and integers whose differences have no place in 64 bits; also unpacked ones."""
    first = again(steps)
    assert bits(tuple(first)) == bits(tuple(steps))
    assert bits(tuple(again(again(steps)))) == bits(tuple(steps))


def test_what_repeats_or_grows_evenly_takes_little_room() -> None:
    layout, data = pack_steps([evenly(5000)])
    assert layout[0] == [5000]
    assert sum(map(len, data)) < 1000


def test_a_column_is_cut_out_when_it_is_looked_at_and_only_once() -> None:
    first, second = again([evenly(50), evenly(40, first=7)])
    missing = object()
    taken = object.__getattribute__
    with pytest.raises(AttributeError):
        taken(second, "seconds")
    assert second.seconds is second.seconds
    assert taken(second, "seconds") is second.seconds
    assert (len(first), len(second)) == (50, 40)
    assert getattr(second, "second", missing) is missing
    with pytest.raises(ValueError, match="read-only"):
        second.seconds[0] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        second.seconds = first.seconds  # type: ignore[misc]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, dataclasses.replace])
def test_copies_are_whole_and_can_be_packed(copied: Any) -> None:
    steps = again([evenly(50), evenly(40), evenly(30)])
    copies = [steps[0], copied(steps[1]), steps[2]]
    assert bits(tuple(again(copies))) == bits(tuple(steps))


def test_steps_are_packed_in_any_order() -> None:
    """Neighbours are packed as one piece: only those that follow each other are neighbours."""
    one, two, three = again([evenly(3), evenly(4, first=9), evenly(5, first=99)])
    (other,) = again([evenly(2, first=7)])
    for order in ([one, two, three], [three, two, one], [one, one], [two, other, three], [one, evenly(2), two]):
        assert bits(tuple(again(order))) == bits(tuple(order))
    assert isinstance(one, LazySteps)


def test_missing_bytes_are_an_error() -> None:
    layout, data = pack_steps(
        [evenly(50), steps_of([(float(number), number**3, number % 3 == 0) for number in range(50)])]
    )
    whole = b"".join(data)
    with pytest.raises(ValueError):  # noqa: PT011 (numpy's words)
        unpack_steps(whole[: len(whole) // 2], 0, layout)
    with pytest.raises(ValueError):  # noqa: PT011
        unpack_steps(whole, 0, (layout[0], layout[1][:-1]))
