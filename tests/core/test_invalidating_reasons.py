"""Every reason for INVALID or NOT_COMPARABLE is in exactly one list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pytest_llmbench
from pytest_llmbench.core.codes import ACCEPTABLE, EXCLUDING, INVALIDATING, Reason
from pytest_llmbench.core.run_records import Problem

PACKAGE = Path(pytest_llmbench.__file__).parent
MADE = re.compile(
    r"(?:Problem\(|RunProblem\(|(?<!else )Verdict\.INVALID,)\s*(?:reason=)?Reason\.(\w+)"
)


def test_reasons_of_invalid_results_are_in_the_lists() -> None:
    made = {
        Reason[name]
        for module in PACKAGE.rglob("*.py")
        for name in MADE.findall(module.read_text(encoding="utf-8"))
    }
    assert len(made) > 20
    assert made <= INVALIDATING | EXCLUDING


@pytest.mark.parametrize("reason", sorted(set(Reason) - INVALIDATING - EXCLUDING))
def test_problem_refuses_reasons_that_are_not_invalid(reason: Reason) -> None:
    with pytest.raises(ValueError, match=f"{reason} invalidates no run"):
        Problem(reason, "")


def test_acceptable_reasons_invalidate_except_wide_interval() -> None:
    assert {Reason.INTERVAL_TOO_WIDE} == ACCEPTABLE - INVALIDATING
    assert not EXCLUDING & INVALIDATING
