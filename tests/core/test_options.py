"""The table of options: every option is used, and has a valid default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pytest_llmbench
from pytest_llmbench.core.job_records import PURPOSE_FLAGS
from pytest_llmbench.core.option import Option, list_rows
from pytest_llmbench.core.options import OPTIONS, LaunchOptions, SessionOptions

PACKAGE = Path(pytest_llmbench.__file__).parent

READ_BY_FLAG = {*PURPOSE_FLAGS.values(), "--llmb-history", "--llmb-junit"}
"""Options that are read by their flag, or together with all reports."""


def test_every_option_is_used_by_the_package() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if path.name != "options.py"
    )
    rows = {**list_rows(SessionOptions), **list_rows(LaunchOptions)}
    unused = [
        row.flag
        for name, row in rows.items()
        if row.flag not in READ_BY_FLAG
        and not re.search(rf"\b(?:settings|launch|self)\.{name}\b", source)
        and f'fields["{name}"]' not in source
    ]
    assert len(rows) == len(OPTIONS)
    assert unused == []


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.flag)
def test_default_of_every_option_is_valid(row: Option) -> None:
    value = row.make_default()
    if row.default:
        assert value == row.convert(row.default)
    if row.choices:
        assert row.unset in (None, "")
        with pytest.raises(ValueError, match=f"expected {row.choices[0]}"):
            row.convert("another")
