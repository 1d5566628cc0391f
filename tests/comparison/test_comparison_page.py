"""The HTML page of `llmbench compare`."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from support.compared_sides import NOW, make_result

from pytest_llmbench.comparison.comparison_document import describe
from pytest_llmbench.comparison.comparison_page import render_sides
from pytest_llmbench.comparison.comparison_text import format_text


def render_page(*factors: float, **fields: str) -> str:
    return render_sides(
        describe(make_result(*factors, **fields), NOW, strict=False), NOW
    )


def test_slower_configurations_are_listed_first() -> None:
    text = render_page(0.9, 1.0, 1.1)
    words = re.findall(r"</span> ([\w %]+)</span></td>", text)
    assert words == ["B is slower", "alike within 1 %", "B is faster"]
    lines = format_text(
        describe(make_result(0.9, 1.0, 1.1), NOW, strict=False)
    ).splitlines()
    assert [
        line.split()[0] for line in lines if re.match(r"(slower|alike|faster) ", line)
    ] == [
        "slower",
        "alike",
        "faster",
    ]


def test_page_escapes_names_of_configurations_and_sides() -> None:
    text = render_page(1.1, container="<img src=x>")
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "<b>no number" not in text
    assert "&lt;img src=x&gt;" in text


def test_page_lists_unused_runs_and_uncompared_configurations() -> None:
    text = render_page(1.1)
    assert "y: only in A: B has no run" in text
    assert "B/r99 (x): diverged: the loss is" in text
    assert "container is the only known difference" in text
    assert (
        "<title>1 configuration compared: 1 slower; 1 not compared; 1 run without data - llmbench</title>"
        in text
    )


@pytest.mark.parametrize(
    ("factors", "strict", "code"),
    [((1.1,), True, 1), ((1.0,), True, 4), ((1.0,), False, 0), ((), True, 3)],
)
def test_worst_answer_sets_the_exit_code(
    factors: tuple[float, ...], strict: bool, code: int
) -> None:
    assert describe(make_result(*factors), NOW, strict=strict).exit_code == code


def test_long_names_and_values_fit_a_terminal() -> None:
    described = describe(
        make_result(1.1, container="registry.example.com/" + "very-long/" * 20),
        NOW,
        strict=False,
    )
    name = f"{'model_' * 20}-25.05-h100-bf16-8"
    long = replace(described.comparisons[0], configuration=name)
    lines = format_text(replace(described, comparisons=(long,))).splitlines()
    assert max(map(len, lines)) < 80
    assert "    model_model" in "\n".join(lines)


def test_empty_comparison_is_rendered() -> None:
    text = render_page()
    assert "<title>" in text
    assert "<svg" not in text
