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


def test_reasons_of_all_run_problems_are_declared_invalidating_or_excluding() -> None:
    made = {
        Reason[name]
        for module in PACKAGE.rglob("*.py")
        for name in MADE.findall(module.read_text(encoding="utf-8"))
    }
    assert len(made) > 20
    assert made <= INVALIDATING | EXCLUDING


@pytest.mark.parametrize("reason", sorted(set(Reason) - INVALIDATING - EXCLUDING))
def test_run_problem_refuses_a_reason_that_invalidates_no_run(reason: Reason) -> None:
    with pytest.raises(ValueError, match=f"{reason} invalidates no run"):
        Problem(reason, "")


def test_every_acceptable_reason_except_a_wide_interval_is_invalidating() -> None:
    assert {Reason.INTERVAL_TOO_WIDE} == ACCEPTABLE - INVALIDATING
    assert not EXCLUDING & INVALIDATING
