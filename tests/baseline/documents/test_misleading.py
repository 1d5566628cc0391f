"""Documents that would put a number where it does not belong: it is listed, never taken."""

from __future__ import annotations

import pytest

from pytest_llmbench.baseline.documents.document_configurations import (
    DocumentConfigurations,
    ImportDefaults,
    collect_configurations,
)
from pytest_llmbench.baseline.documents.markdown import read_tables

ROWS = """\
## Llama 3.1 8b FP8 on H100

| GPUs | Step time (s) | Tokens/s | Days to 1T |
|---|---|---|---|
| 8 | 9.33 | 112,388 | 102.99 |
| 16 | 9.36 | 224,055 | 51.66 |
"""
MORE = "| GPUs | Step time (s) |\n|---|---|\n| 32 | 12.27 |\n"


def read(text: str, **defaults: str) -> DocumentConfigurations:
    return collect_configurations(read_tables(text), ImportDefaults(**defaults))


def cells(found: DocumentConfigurations) -> dict[tuple[int | str, int | str], str]:
    return {(one.facts["dtype"], one.facts["gpus"]): one.cells["step_time"] for one in found.configurations}


def unread(found: DocumentConfigurations) -> str:
    return "; ".join(f"{one.line} {one.text}: {one.reason}" for one in found.unread)


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("9.33[1](#note)", "9.33 1: 'Step time (s)': it is no number"),
        ("~~9.33~~", "~~9.33~~: 'Step time (s)': it is no number"),
        ("<del>9.33</del>", "~~9.33~~: 'Step time (s)': it is no number"),
        ("<!-- 9.33 --> 9.30 <!-- 9.31 --> 9.32", "9.30 9.32: 'Step time (s)': it is no number"),
    ],
)
def test_a_number_that_a_reader_does_not_see_so_is_not_taken(cell: str, told: str) -> None:
    found = read(ROWS.replace("9.33", cell))
    assert cells(found) == {("fp8", 16): "9.36"}
    assert told in unread(found)


def test_a_link_around_the_whole_number_and_a_comment_beside_it_are_taken_out() -> None:
    assert read(ROWS.replace("9.33", "[9.33](#log) <!-- was 9.41 -->")) == read(ROWS)


def test_a_column_that_was_struck_out_is_not_read() -> None:
    text = "| Llama 3.1 8b FP8 | 8x H100 GPUs | ~~16x H100 GPUs~~ |\n|---|---|---|\n| Step time (s) | 9.33 | 9.36 |\n"
    found = read(text)
    assert cells(found) == {("fp8", 8): "9.33"}
    assert "3 9.36: the header of its column" in unread(found)


def test_a_row_that_is_shifted_by_a_cell_is_not_read() -> None:
    found = read(ROWS.replace("9.33 | 112,388 | 102.99", "112388 | 102.99 days | NA"))
    assert cells(found) == {("fp8", 16): "9.36"}
    assert "5 112388: '102.99 days' has the unit of another metric than 'Tokens/s'" in unread(found)


@pytest.mark.parametrize(("label", "stated"), [("Precision", "FP8"), ("Size", "70b"), ("GPU type", "GB200")])
def test_a_cell_that_is_empty_below_another_is_not_what_the_heading_says(label: str, stated: str) -> None:
    rows = f"| {stated} | 16 | 12.27 |\n| | 64 | 12.31 |\n"
    found = read(f"## Llama 3.1 8b BF16 on H100\n\n| {label} | GPUs | Step time (s) |\n|---|---|---|\n{rows}")
    assert [one.facts["gpus"] for one in found.configurations] == [16]
    assert "6 12.31: 'Step time (s)': more than one" in unread(found)


@pytest.mark.parametrize(
    "table",
    [
        "| Llama 3.1 8b FP8 | Unit | 8x H100 GPUs |\n|---|---|---|\n| Step time | ms | 9330 |\n",
        "| Llama 3.1 8b FP8 | 8x H100 GPUs |\n|---|---|\n| | (ms) |\n| Step time | 9330 |\n",
        "# Llama 3.1 8b FP8 H100\n| GPUs | Step time | Unit |\n|---|---|---|\n| 8 | 9330 | ms |\n",
        "# Llama 3.1 8b FP8 H100\n| GPUs | Step time |\n|---|---|\n| | [ms] |\n| 8 | 9330 |\n",
    ],
)
def test_a_unit_in_a_cell_of_its_own_leaves_all_values_in_doubt(table: str) -> None:
    found = read(table)
    assert found.configurations == ()
    assert "9330: a unit stands in a cell of its own (line" in unread(found)


@pytest.mark.parametrize("shifted", ["| 51.66 | NA |", "| | 102.99 |"])
def test_days_that_do_not_follow_from_the_tokens_beside_them_are_not_read(shifted: str) -> None:
    """All rows of a table may have moved by a cell, and none of them says so."""
    table = "| Llama 3.1 8b FP8 | 8x H100 GPUs | 16x H100 GPUs |\n|---|---|---|\n| Step time (s) | 9.33 | 9.36 |\n"
    table += "| Tokens/s | 112388 | 224055 |\n| Days to 1T {}\n"
    assert cells(read(table.format("| 102.99 | 51.66 |"))) == {("fp8", 8): "9.33", ("fp8", 16): "9.36"}
    found = read(table.format(shifted))
    assert len(found.configurations) == 1
    assert "its tokens/s and its days to 1T tokens contradict each other" in unread(found)


def test_a_row_of_a_configuration_with_an_empty_cell_at_its_end_may_be_shifted() -> None:
    found = read(ROWS.replace("9.33 | 112,388 | 102.99", "112388 | 102.99 | "))
    assert cells(found) == {("fp8", 16): "9.36"}
    assert "5 112388: the last cell of its row is empty, which may be shifted" in unread(found)
    notes = ROWS.replace(" |\n", " | |\n").replace("1T | |", "1T | Notes |").replace("---| |", "---|---|")
    assert cells(read(notes)) == cells(read(ROWS))


@pytest.mark.parametrize(
    ("time", "tokens"), [("9330", "112388"), ("9.33", "112"), ("9.33", "14048"), ("0.156", "112388")]
)
def test_a_step_time_that_is_not_that_of_its_tokens_is_not_read(time: str, tokens: str) -> None:
    """Milliseconds or minutes, thousands of tokens or those of one GPU, without a word of it."""
    table = "| Llama 3.1 8b FP8 (SeqLen=8192, GBS={}) | 8x H100 GPUs |\n|---|---|\n"
    table += "| Step time | {} |\n| Tokens/s | {} |\n"
    assert cells(read(table.format(128, "9.33", "112388"))) == {("fp8", 8): "9.33"}
    assert cells(read(table.format(256, "9.33", "112388"))) == {("fp8", 8): "9.33"}  # as a document has it
    found = read(table.format(128, time, tokens))
    assert cells(found) == {}
    assert f"3 {time}: 'Step time': its tokens/s are not those of its step time" in unread(found)


def test_below_the_header_of_a_further_table_nothing_is_read() -> None:
    """Its line of dashes was lost; nothing of it stands twice."""
    table = "| Llama 3.1 8b BF16 | 8x H100 GPUs |\n|---|---|\n| Step time (s) | 12.27 |\n"
    found = read(f"{table}| Llama 3.1 8b FP8 | 8x H100 GPUs |\n| Tokens/s | 112388 |\n")
    assert [one.cells for one in found.configurations] == [{"step_time": "12.27"}]
    assert "5 112388: line 4 looks like a header" in unread(found)


def test_a_row_that_was_cut_in_its_last_number_is_not_read() -> None:
    found = read(ROWS.replace("102.99 |", "102.9\n9 |"))
    assert cells(found) == {("fp8", 16): "9.36"}
    assert "5 9.33: its row has no pipe at its end, as the header has: line 6 may be the rest of it" in unread(found)
    assert "6 9: its row has 1 cells" in unread(found)
    open_rows = ROWS.replace(" |\n", "\n")
    assert cells(read(open_rows)) == cells(read(ROWS))


def test_a_row_of_values_with_an_empty_cell_at_its_end_may_be_shifted() -> None:
    """The value of the first column is missing, and each stands below the column before its own."""
    table = "| Llama 3.1 8b FP8 | 8x H100 GPUs | 16x H100 GPUs |\n|---|---|---|\n| Step time (s) | 9.36 | {} |\n"
    assert cells(read(table.format(""))) == {}
    assert "9.36: the last cell of its row is empty, which may be shifted" in unread(read(table.format("")))
    assert cells(read(table.format("NA"))) == {("fp8", 8): "9.36"}


def test_a_line_that_is_a_pipe_alone_is_a_row_without_values() -> None:
    assert cells(read(ROWS.replace("| 16 |", "|\n| 16 |"))) == cells(read(ROWS))


def test_points_for_thousands_are_not_read_as_decimal_ones() -> None:
    found = read(ROWS.replace("112,388", "112.388").replace("9.36", "9.360 ms"))
    assert cells(found) == {("fp8", 8): "9.33"}
    assert "9.360 ms: 'Step time (s)': its point may be one for thousands" in unread(found)
    assert "tokens_per_second" not in found.configurations[0].cells
    assert "112.388: 'Tokens/s': its point may be one for thousands" in unread(found)


@pytest.mark.parametrize("header", ["| GPUs | Days to 1T | Tokens/s | Step time (s) |", "| | FP8 | BF16 | |"])
def test_below_a_second_header_nothing_is_read(header: str) -> None:
    found = read(ROWS.replace("| 16 |", f"{header}\n| 16 |"))
    assert cells(found) == {("fp8", 8): "9.33"}
    assert "7 9.36: line 6 looks like a header" in unread(found)


def test_a_second_line_of_the_header_decides_more_than_an_option() -> None:
    text = (
        "# Llama 3.1 8b\n| | 8x H100 GPUs | |\n|---|---|---|\n| {} | FP8 | BF16 |\n| Step time (s) | 9.33 | 12.27 |\n"
    )
    found = read(text.format(""), dtype="bf16", recipe="llama3.1", size="8b")
    assert found.configurations == ()
    assert "5 9.33: 'Step time (s)': more than one precision is stated for it" in unread(found)
    assert cells(read(text.format("Precision:"), dtype="bf16", recipe="llama3.1", size="8b")) == {("fp8", 8): "9.33"}


@pytest.mark.parametrize(
    "heading",
    [
        "Llama 3.1 8b BF16 on H100\n-----\n",
        "Llama 3.1 8b BF16 on H100\n===\n",
        "<h2>Llama 3.1 8b BF16 on H100</h2>",
        "<details><summary><b>Llama 3.1 8b BF16 on H100</b></summary>",
    ],
)
def test_every_kind_of_heading_counts(heading: str) -> None:
    found = read(f"{ROWS}\n{heading}\n\n{MORE}")
    assert cells(found) == {("fp8", 8): "9.33", ("fp8", 16): "9.36", ("bf16", 32): "12.27"}


def test_a_line_that_contradicts_the_heading_leaves_both_in_doubt() -> None:
    found = read(f"{ROWS}\nAnd with BF16:\n\n{MORE}")
    assert ("fp8", 32) not in cells(found)
    assert "12 12.27: 'Step time (s)': more than one precision is stated for it" in unread(found)
    assert ("fp8", 32) in cells(read(f"{ROWS}\nMore GPUs in FP8:\n\n{MORE}"))


def test_tables_in_comments_and_in_html_are_listed() -> None:
    markup = "<table>\n<tr><th>GPUs</th><th>Step time (s)</th></tr>\n<tr><td>32</td>\n<td>\n9.41\n</td></tr>\n</table>"
    for hidden, line in ((f"<!--\n{MORE}-->", 11), (markup, 12)):
        found = read(f"{ROWS}\n{hidden}\n")
        assert cells(found) == cells(read(ROWS))
        assert f"{line} {'12.27' if line == 11 else '9.41'}: it stands in no Markdown table" in unread(found)


@pytest.mark.parametrize("row", ["32\t12.27", "<tr><td>32</td><td>12.27</td></tr>"])
def test_rows_between_tabs_or_in_a_table_that_does_not_end_are_listed(row: str) -> None:
    found = read(f"{ROWS}\n{row}\n")
    assert cells(found) == cells(read(ROWS))
    assert "8 12.27: it stands in no Markdown table" in unread(found)


def test_the_configuration_of_one_recipe_is_not_that_of_another() -> None:
    text = """\
## Llama 3.1 8b FP8
| GPUs | GBS |
|---|---|
| 8 | 128 |

| Llama 3.1 8b FP8 | 8x H100 GPUs |
|---|---|
| Step time (s) | 9.33 |

| Mistral 8b FP8 | 8x H100 GPUs |
|---|---|
| Step time (s) | 8.33 |
"""
    assert [one.facts.get("gbs") for one in read(text).configurations] == [128, None]
