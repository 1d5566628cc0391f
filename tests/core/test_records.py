"""Frozen records: fields, defaults, equality, and their way to another process."""

from __future__ import annotations

import pickle

import pytest

from pytest_llmbench.core.statements import Hiccup, SlowStep

STEP = SlowStep(20, 120, 2.5)
HICCUP = Hiccup((STEP,), mean=7.5, usual=7.3)


def test_record_has_its_fields_and_defaults() -> None:
    assert (HICCUP.steps, HICCUP.mean, HICCUP.usual, HICCUP.runs) == (
        (STEP,),
        7.5,
        7.3,
        0,
    )
    assert repr(STEP) == "SlowStep(number=20, line=120, ratio=2.5)"


def test_record_is_equal_by_class_and_values() -> None:
    same = pickle.loads(pickle.dumps(HICCUP))  # noqa: S301 -- of this test
    assert (same, hash(same)) == (HICCUP, hash(HICCUP))
    assert Hiccup((STEP,), 7.5, 7.3, 0) == HICCUP
    assert Hiccup((STEP,), 7.5, 7.4) != HICCUP
    assert STEP != (20, 120, 2.5)


def test_record_is_frozen() -> None:
    with pytest.raises(AttributeError, match=r"SlowStep\.line is frozen"):
        STEP.line = 7  # type: ignore[misc]
