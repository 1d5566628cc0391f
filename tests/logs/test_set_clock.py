"""Step times from stamps if the clock is set during the run."""

from __future__ import annotations

import pytest

from pytest_llmbench.logs.clock import find_set_clock, time_steps
from pytest_llmbench.logs.step_records import NAN, RecordOrigin, StepRecord

ORIGIN = RecordOrigin(0, 1, "")


def make_records(
    jumps: dict[int, float], *, rate: bool = True, every: int = 1, slow: int = 0
) -> list[StepRecord]:
    """Return 50 steps of 2 s, with clock jumps before some steps.

    `jumps` maps steps to seconds; step `slow` takes an hour.
    """
    records, clock = [], 1e9
    for step in range(1, 51):
        seconds = 3600.0 if step == slow else 2.0
        clock += seconds + jumps.get(step, 0.0)
        if step % every == 0:
            tokens = 8192 / seconds if rate else NAN
            records.append(
                StepRecord(ORIGIN, step, NAN, 0.001, stamp=clock, tokens=tokens)
            )
    return records


@pytest.mark.parametrize("hour", [3600.0, -3600.0])
@pytest.mark.parametrize("every", [1, 10])
def test_clock_jump_of_an_hour_that_contradicts_the_rate_is_removed(
    hour: float, every: int
) -> None:
    untimed = make_records({25: hour}, every=every)
    timed = time_steps(untimed)
    assert [record.seconds for record in timed[1:]] == [2.0] * (len(timed) - 1)
    assert [record.stamp for record in timed] == [record.stamp for record in untimed]


def test_backward_clock_jump_of_an_hour_is_found_without_a_printed_rate() -> None:
    assert find_set_clock(make_records({25: -3600.0}, rate=False)) == (24, -3600.0)


@pytest.mark.parametrize(
    "untimed",
    [
        make_records({}),
        make_records({25: 3600.0}, rate=False),  # it may have been a stall
        make_records({}, slow=25),
        make_records({20: 3600.0, 30: 3600.0}),
        make_records({20: 3600.0, 30: -3600.0}),
        make_records({25: 2400.0}),
        make_records({25: -2400.0}),
        make_records(dict.fromkeys(range(5, 50, 10), -1.0)),
    ],
)
def test_ambiguous_clock_jumps_are_kept(untimed: list[StepRecord]) -> None:
    assert find_set_clock(untimed) == (0, 0.0)
