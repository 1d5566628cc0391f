"""The sentences of statements: every record and code has one."""

from __future__ import annotations

import pytest

from pytest_llmbench.core import statements
from pytest_llmbench.core.records import Record
from pytest_llmbench.core.statements import (
    BudgetDoubtCode,
    Figure,
    FigureStatement,
    Remark,
    ShiftReference,
)
from pytest_llmbench.report.wording import (
    BUDGET_DOUBTS,
    CHANGES,
    FIGURES,
    REMARKS,
    phrase,
)

COMPONENTS = {
    statements.DriftLimits,
    statements.LogPlace,
    statements.OrderByFile,
    statements.OrderByJob,
    statements.OrderByLaunch,
    statements.OrderedRun,
    statements.SlowStep,
    statements.SlowestSteps,
    statements.StepList,
    statements.StepSpan,
}
"""Records that are part of a statement."""

RECORDS = [
    record
    for record in vars(statements).values()
    if isinstance(record, type)
    and issubclass(record, (Record, tuple))
    and record.__module__ == statements.__name__
    and record not in COMPONENTS
]


def test_statements_are_found() -> None:
    assert len(RECORDS) > 50


@pytest.mark.parametrize("record", RECORDS)
def test_statement_has_a_sentence(record: type) -> None:
    assert phrase.dispatch(record) is not phrase.dispatch(object)


def test_code_has_a_sentence() -> None:
    assert set(REMARKS) == set(Remark)
    assert set(FIGURES) == set(Figure)
    assert set(BUDGET_DOUBTS) == set(BudgetDoubtCode)
    assert set(CHANGES) == set(ShiftReference)


def test_record_without_a_sentence_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"no sentence for StepSpan"):
        phrase(statements.StepSpan(1, 2, 2))


def test_number_is_part_of_its_sentence() -> None:
    assert phrase(FigureStatement(Figure.ALLOWED_TIME, 7.7)) == "the bound is 7.700 s"
