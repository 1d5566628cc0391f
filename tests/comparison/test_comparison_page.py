"""The page of `llmbench compare`."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from support.two_sides import NOW, result

from pytest_llmbench.comparison.comparison_document import describe
from pytest_llmbench.comparison.comparison_page import render_sides
from pytest_llmbench.comparison.comparison_text import format_text


def page(*factors: float, **fields: str) -> str:
    return render_sides(describe(result(*factors, **fields), NOW, strict=False), NOW)


def test_what_needs_a_reader_comes_first_in_the_page_and_the_text() -> None:
    text = page(0.9, 1.0, 1.1)
    words = re.findall(r"</span> ([\w %]+)</span></td>", text)
    assert words == ["B is slower", "alike within 1 %", "B is faster"]
    lines = format_text(describe(result(0.9, 1.0, 1.1), NOW, strict=False)).splitlines()
    assert [
        line.split()[0] for line in lines if re.match(r"(slower|alike|faster) ", line)
    ] == [
        "slower",
        "alike",
        "faster",
    ]


def test_nothing_that_a_name_says_is_obeyed() -> None:
    text = page(1.1, container="<img src=x>")
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "<b>no number" not in text
    assert "&lt;img src=x&gt;" in text


def test_what_is_no_data_and_what_was_not_compared_is_listed() -> None:
    text = page(1.1)
    assert "y: only in A: B has no run of it" in text
    assert "B/r99 (x): diverged: the loss is" in text
    assert "container is the only thing known that differs" in text
    assert (
        "<title>1 configuration compared: 1 slower; 1 not compared; 1 run without data - llmbench</title>"
        in text
    )


@pytest.mark.parametrize(
    ("factors", "strict", "code"),
    [((1.1,), True, 1), ((1.0,), True, 4), ((1.0,), False, 0), ((), True, 3)],
)
def test_the_exit_code_follows_the_worst(
    factors: tuple[float, ...], strict: bool, code: int
) -> None:
    assert describe(result(*factors), NOW, strict=strict).exit_code == code


def test_a_long_name_and_long_values_fit_a_terminal() -> None:
    described = describe(
        result(1.1, container="registry.example.com/" + "very-long/" * 20),
        NOW,
        strict=False,
    )
    name = f"{'model_' * 20}-25.05-h100-bf16-8"
    long = replace(described.comparisons[0], configuration=name)
    lines = format_text(replace(described, comparisons=(long,))).splitlines()
    assert max(map(len, lines)) < 80
    assert "    model_model" in "\n".join(lines)


def test_a_comparison_of_nothing_is_a_page_too() -> None:
    text = page()
    assert "<title>" in text
    assert "<svg" not in text
