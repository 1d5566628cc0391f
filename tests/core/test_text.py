"""Width and line breaks of texts."""

from __future__ import annotations

import pytest

from pytest_llmbench.core.text import count_columns, wrap


@pytest.mark.parametrize(
    ("text", "columns"), [("grok1", 5), ("日志", 4), ("e\u0301", 1)]
)
def test_columns_of_a_text_are_counted(text: str, columns: int) -> None:
    assert count_columns(text) == columns


def test_wrap_adds_prefixes_to_lines() -> None:
    lines = wrap("one two three", 9, first="- ", rest="  ")
    assert lines == ["- one two", "  three"]


def test_wide_characters_count_as_two_columns() -> None:
    assert wrap("日志 日志 a", 6) == ["日志", "日志 a"]


def test_long_word_is_broken_unless_whole_words() -> None:
    assert wrap("grok1-314b", 6) == ["grok1-", "314b"]
    assert wrap("grok1-314b", 6, whole_words=True) == ["grok1-314b"]
    assert wrap("to grok1-3b", 8) == ["to", "grok1-3b"]
