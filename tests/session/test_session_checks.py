"""Every check on several configurations has a row in CHECKS and a file in the suite."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest
from msgspec import structs

import pytest_llmbench.suite
from pytest_llmbench.core.outcome_records import Check, CheckKind, Finding, Status
from pytest_llmbench.report.describe_outcome import describe_check
from pytest_llmbench.report.explain import explain
from pytest_llmbench.session.session_checks import CHECKS

OTHERS = {"test_performance", "test_unmatched_run"}
"""The suite files whose tests are about single runs."""


def test_every_check_has_a_test_file_in_the_suite() -> None:
    files = {
        path.stem
        for path in Path(pytest_llmbench.suite.__file__).parent.glob("test_*.py")
    }
    assert files - OTHERS == {kind.test_name for kind in CheckKind}


@pytest.mark.parametrize("kind", CheckKind)
def test_suite_test_of_each_check_requests_the_fixture_named_like_the_check(
    kind: CheckKind,
) -> None:
    name = kind.test_name
    test = getattr(import_module(f"pytest_llmbench.suite.{name}"), name)
    assert list(inspect.signature(test).parameters) == [name.replace("test_", "llmb_")]


@pytest.mark.parametrize("kind", CheckKind)
def test_every_fixture_has_a_description(kind: CheckKind) -> None:
    _, meaning = CHECKS[kind]
    assert meaning[0].isupper()
    assert meaning.endswith(".")


def test_unknown_check_kind_is_reported() -> None:
    """A new check needs only a kind, a row and a suite file."""
    described = describe_check(
        Check(CheckKind.TREND, "all", Status.FAILED, Finding.SLOWER, "3 of them")
    )
    new = structs.replace(
        described, check="new-kind", reason="new-kind", suite="new kind"
    )
    message = explain(new, short=False)
    assert "NEW-KIND SLOWER  all" in message
    assert "look at the configurations that it covers" in " ".join(message.split())
