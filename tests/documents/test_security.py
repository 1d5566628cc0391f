"""Every promise of docs/explanation/security.md is held by tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
PROMISES = re.findall(
    r"(?m)^\| (?!promise|---)(.*) \| (.*) \|$",
    PAGE.partition("## What is promised")[2].partition("\n## ")[0],
)


@pytest.mark.parametrize(
    ("promise", "held_by"), PROMISES, ids=[promise[:40] for promise, _ in PROMISES]
)
def test_tests_named_by_security_promises_exist(promise: str, held_by: str) -> None:
    tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", held_by)
    assert promise.startswith("**")
    assert tests
    for path, name in tests:
        assert f"def {name}(" in (CHECKOUT / path).read_text(encoding="utf-8"), name
