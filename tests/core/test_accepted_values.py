"""Recording again and again moves a baseline no further than the drift budget, unless somebody says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.accepted_values import (
    FASTER,
    KEPT,
    explain_refusal,
    find_reference,
    follow_recording,
    is_beyond,
    list_accepted,
)
from pytest_llmbench.core.models import Recording

BUDGET = 0.05


def recorded(seconds: float, date: str = "2025-11-20") -> Recording:
    return Recording(date, 1, seconds, seconds, 0.0, (seconds,), ("0" * 64,), by="alice on login1")


def again(previous: Recording, seconds: float, reason: str = "") -> Recording | None:
    """Return what stands in the file after a recording; None where it is refused."""
    new = recorded(seconds, "2025-12-20")
    return (
        None
        if explain_refusal(new, previous, BUDGET) and not reason
        else follow_recording(new, previous, BUDGET, reason)
    )


@given(st.lists(st.floats(0.95, 1.05), max_size=60))
def test_steps_within_the_tolerance_never_add_up_to_more_than_the_budget(factors: list[float]) -> None:
    """Each step alone looks harmless; what is in the file is never slower than the first value by more than 5 %."""
    standing = recorded(7.3)
    for factor in factors:
        after = again(standing, standing.trimmed_mean_seconds * factor)
        standing = after or standing
        assert standing.trimmed_mean_seconds <= 7.3 * (1 + BUDGET) * (1 + 1e-8)
        assert standing.trimmed_mean_seconds <= find_reference(standing).seconds * (1 + BUDGET) * (1 + 1e-8)
        assert list_accepted(standing)[0].seconds == 7.3


def test_steps_of_two_percent_are_refused_at_the_third_with_both_numbers() -> None:
    first = recorded(7.3)
    second = again(first, 7.3 * 1.02)
    assert second
    third = again(second, 7.3 * 1.02**2)
    assert third
    assert explain_refusal(recorded(7.3 * 1.02**3), third, BUDGET) == (
        "7.747 s is +6.1 % from 7.300 s, accepted on 2025-11-20 by alice on login1, the drift budget is 5 %: "
        'find what makes it slower, or accept it with --llmb-accept-drift="the reason"'
    )


def test_a_reason_is_kept_and_its_value_counts_from_then_on() -> None:
    accepted = again(recorded(7.3), 8.0, "driver 570")
    assert accepted
    assert (accepted.reason, find_reference(accepted).seconds) == ("driver 570", 8.0)
    after = again(accepted, 8.3)
    assert after
    assert (after.reason, find_reference(after).reason) == ("", "driver 570")
    assert again(after, 8.5) is None


def test_a_reason_is_not_kept_where_none_was_needed() -> None:
    """Or one session with a reason would begin the count anew for every configuration."""
    within = again(recorded(7.3), 7.4, "driver 570")
    assert within
    assert (within.reason, find_reference(within).seconds) == ("", 7.3)


def test_a_much_faster_value_counts_without_a_word_and_nothing_goes_back_up_unseen() -> None:
    faster = again(recorded(7.3), 6.5)
    assert faster
    assert (faster.reason, find_reference(faster).seconds) == (FASTER, 6.5)
    assert again(faster, 7.0) is None


def test_the_same_runs_recorded_once_more_replace_nothing() -> None:
    standing = again(recorded(7.3), 8.0, "driver 570")
    assert standing
    new = replace(standing, date="2026-01-01", reason="", earlier=())
    assert follow_recording(new, standing, BUDGET, "another reason") == replace(standing, date="2026-01-01")


def test_the_history_is_bounded_and_keeps_the_first_value_and_every_reason() -> None:
    standing = recorded(7.3)
    for count in range(100):
        reason = "driver 570" if count == 30 else ""
        seconds = 8.0 + count / 1000 if count >= 30 else 7.3 + count / 1000
        standing = again(standing, seconds, reason) or standing
    assert len(standing.earlier) == KEPT + 2
    assert standing.earlier[0].seconds == 7.3
    assert find_reference(standing).reason == "driver 570"


@pytest.mark.parametrize(("seconds", "beyond"), [(7.665, False), (7.6651, True), (7.0, False)])
def test_the_budget_itself_is_allowed(seconds: float, beyond: bool) -> None:
    assert is_beyond(seconds, list_accepted(recorded(7.3))[0], BUDGET) is beyond
