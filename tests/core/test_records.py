"""Frozen records: fields, defaults, equality and pickling."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pytest_llmbench.core.statements import (
    CodedStatement,
    NodeFinding,
    SlowStep,
    StatementCode,
    StepList,
)

STEP = SlowStep(20, 120, 2.5)
LIST = StepList((), more=0, count=3)


def test_record_stores_values_by_field() -> None:
    assert (LIST.spans, LIST.more, LIST.count) == ((), 0, 3)
    assert repr(STEP) == "SlowStep(number=20, line=120, ratio=2.5)"


def test_record_applies_defaults() -> None:
    assert NodeFinding().suspects == ()
    assert NodeFinding(suspects=("n1",)).suspects == ("n1",)


def test_record_is_equal_by_class_and_values() -> None:
    same = pickle.loads(pickle.dumps(LIST))  # noqa: S301 (made here)
    assert (same, hash(same)) == (LIST, hash(LIST))
    assert StepList((), 0, 3) == LIST
    assert StepList((), 0, 4) != LIST
    assert STEP != (20, 120, 2.5)


def test_statements_are_equal_if_their_code_and_values_are_equal() -> None:
    spike = CodedStatement(StatementCode.OLDER_RUNS, runs=2)
    same = pickle.loads(pickle.dumps(spike))  # noqa: S301 (made here)
    assert (same, hash(same)) == (spike, hash(spike))
    assert CodedStatement(StatementCode.OLDER_RUNS, runs=3) != spike
    assert CodedStatement(StatementCode.FEW_TIMES, times=2) != spike


def test_record_is_frozen() -> None:
    with pytest.raises(AttributeError, match=r"SlowStep\.line is frozen"):
        STEP.line = 7  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((20, 120), "SlowStep: found 2 values, without ratio, expected 3"),
        ((20, 120, 2.5, 1), "SlowStep: found 4 values, expected 3"),
    ],
)
def test_record_refuses_too_few_or_many_values(
    values: tuple[float, ...], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        SlowStep(*values)  # type: ignore[arg-type]


def test_record_refuses_a_missing_named_value() -> None:
    with pytest.raises(TypeError, match="StepList: found 2 values, without count"):
        StepList((), more=0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"more": 0, "cuont": 3}, "without count, wrongly cuont"),
        ({"more": 0, "count": 3, "spans": ()}, "found 4 values, wrongly spans"),
    ],
)
def test_record_refuses_unknown_or_repeated_fields(
    keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        StepList((), **keywords)
