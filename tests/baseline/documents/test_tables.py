"""Tables of other shapes than those of the five documents: turned, in one piece, with other units, contradictory."""

from __future__ import annotations

import pytest

from pytest_llmbench.baseline.documents.document_configurations import (
    STRAY,
    DocumentConfigurations,
    ImportDefaults,
    collect_configurations,
)
from pytest_llmbench.baseline.documents.markdown import read_tables, strip_markup

ROWS = """\
# Llama 3.1 8b on H100

| GPUs | Precision | SeqLen | Layers | GBS | Step time (ms) | Tokens/s | MFU (%) | Notes |
|-----:|-----------|-------:|-------:|----:|---------------:|---------:|--------:|-------|
| 8    | BF16      | 8192   | 32     | 128 | 12270          | 85,459   | 62.47   |       |
| 1,024 | FP8      | 8192   | 32     | 128 | 9330           | 112,388  | 41.07   | -     |
"""
TURNED = """\
| Configuration | 8x H100 GPUs | 16x H100 GPUs |
|---|---|---|
| SeqLen | 8192 | 8192 |
| Layers | 32 | 32 |
| TP | 1 | 2 |
| GBS | 128 | 256 |

| Llama 3.1 8b FP8 | 8x H100 GPUs | 16x H100 GPUs |
|---|---|---|
| Step time (s) | 9.33 | 9.36 |
"""


def read(text: str, **defaults: str) -> DocumentConfigurations:
    return collect_configurations(read_tables(text), ImportDefaults(**defaults))


def told(found: DocumentConfigurations) -> list[tuple[int, str, str]]:
    return [(one.line, one.text, one.reason) for one in found.unread]


def test_gpus_in_rows_with_units_and_thousands() -> None:
    found = read(ROWS)
    assert found.unread == ()
    one, two = found.configurations
    assert (one.recipe, one.table, one.line) == ("llama3.1", "Llama 3.1 8b on H100", 5)
    assert one.facts == {
        "size": "8b",
        "gpu": "h100",
        "gpus": 8,
        "dtype": "bf16",
        "sequence_length": 8192,
        "layers": 32,
        "gbs": 128,
    }
    assert one.cells == {"step_time": "12.270", "tokens_per_second": "85459", "mfu": "62.47%"}
    assert (two.facts["gpus"], two.facts["dtype"], two.cells["step_time"]) == (1024, "fp8", "9.330")


def test_a_configuration_table_with_gpus_in_columns() -> None:
    found = read(TURNED)
    assert found.unread == ()
    assert [(one.facts["gpus"], one.facts["tp"], one.facts["gbs"]) for one in found.configurations] == [
        (8, 1, 128),
        (16, 2, 256),
    ]


def test_what_the_tables_do_not_say_is_given() -> None:
    table = "Performance | 8 GPUs | 16 GPUs\n---|---|---\nStep time (s) | 9.33 | 9.36\n"
    assert told(read(table)) == [
        (3, "9.33", "'Step time (s)': no model size is stated for it; give --size"),
        (3, "9.36", "'Step time (s)': no model size is stated for it; give --size"),
    ]
    found = read(table, recipe="mine", size="8b", gpu="h100", dtype="fp8")
    assert [(one.recipe, one.facts["gpu"], one.facts["gpus"]) for one in found.configurations] == [
        ("mine", "h100", 8),
        ("mine", "h100", 16),
    ]
    (reason,) = {why for _, _, why in told(read(table, size="8b", gpu="h100", dtype="fp8"))}
    assert reason == "'Step time (s)': its title names no recipe; give --recipe"


def test_what_the_tables_say_counts_more_than_what_is_given() -> None:
    assert {one.facts["gpu"] for one in read(TURNED, gpu="gb200", dtype="bf16").configurations} == {"h100"}


@pytest.mark.parametrize(
    ("old", "new", "unread"),
    [
        ("FP8 | 8x H100", "FP8 on GB200 | 8x H100", "more than one GPU type is stated for it"),
        ("16x H100 GPUs |\n|---|---|---|\n| Step", "8x H100 GPUs |\n|---|---|---|\n| Step", "lines 8, 8 give several"),
        ("Step time (s) |", "Step time (minutes) |", "no such row or column is known"),
        ("| 9.36", "| 9.36 | 9.40", "its row has 4 cells, the header 3"),
        (
            "| 16x H100 GPUs |\n|---|---|---|\n| Seq",
            "| 16x H100 (old) |\n|---|---|---|\n| Seq",
            "is not understood: 'old'",
        ),
        ("| GBS | 128 | 256 |", "| GBS | 128 | 256 |\n| GBS | 128 | 512 |", "several values stand for it: 256, 512"),
        ("| GBS | 128 | 256 |", "| GBS | 128 | 128 * 2 |", "it is no whole number above 0"),
        ("Llama 3.1 8b FP8", "Llama 3.1 8b FP8 (v2)", "'(v2)' in this title is not understood"),
        ("Llama 3.1 8b FP8", "Llama 3.1 8b FP8 (TP=4, TP=8)", "this title states several values of tp"),
        ("8b FP8 | 8x H100 GPUs", "8b FP8 (TP=4) | 8x H100 GPUs (TP=8)", "tp: several values stand for it"),
        ("Llama 3.1 8b FP8 | 8x", "Llama 3.1 8b FP8 | 32x", "nothing was measured of its configuration"),
    ],
)
def test_what_contradicts_or_is_not_understood_is_told(old: str, new: str, unread: str) -> None:
    assert old in TURNED
    found = read(TURNED.replace(old, new))
    assert unread in str(told(found))
    assert all(one.decisive for one in found.unread)


def test_a_column_that_two_tables_state_differently_is_left_out() -> None:
    found = read(
        TURNED.replace(
            "8x H100 GPUs | 16x H100 GPUs |\n|---|---|---|\n| Step",
            "8x H100 GPUs (GBS=64) | 16x H100 GPUs |\n|---|---|---|\n| Step",
        )
    )
    assert "gbs" not in found.configurations[0].facts
    assert found.configurations[1].facts["gbs"] == 256
    assert told(found) == [(1, "gbs 128", "line 8 says 64 of it")]


def test_a_row_that_stands_in_no_table_is_told() -> None:
    assert told(read("Step time | 7.3 | 7.4 |\n\nFile | Open\n")) == [
        (1, cell, STRAY) for cell in ("Step time", "7.3", "7.4")
    ]


def test_a_row_in_a_line_too_long_to_be_read_is_told_and_the_rest_is_read() -> None:
    found = read(ROWS + "\n![](data:image/png;base64," + "A" * 20_000 + ")\n| 7.3 | " + "*" * 10_000 + " |\n")
    assert found.configurations == read(ROWS).configurations
    ((line, cell, why),) = told(found)[len(told(read(ROWS))) :]
    assert (line, cell, why) == (len(ROWS.split("\n")) + 2, "| 7.3 | " + "*" * 32 + "...", STRAY)


@pytest.mark.parametrize("heading", ["## 8b on B200 {}", "<h2>8b on B200 {}</h2>"])
def test_below_a_heading_too_long_to_be_read_no_row_is_of_the_heading_before(heading: str) -> None:
    image = "![](data:image/png;base64," + "A" * 20_000 + ")"
    found = read("# 70b on H100\n\n" + heading.format(image) + "\n" + ROWS.split("\n", 2)[2], recipe="mine")
    assert not any("70b" in str(each.facts) or "h100" in str(each.facts) for each in found.configurations)


def test_a_comment_that_nothing_closes_hides_nothing() -> None:
    assert read("<!-- a <!-- b --> <!--\n<table\n\n" + ROWS).configurations
    assert not read("<!-- a <TABLE>\n\n" + ROWS + "\n</Table> <!-- -->").configurations


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (r"a \| b", "a | b"),
        ("***7.3***", "7.3"),
        ("step_time_seconds", "step_time_seconds"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("[7.3](https://example.com/a_(b))", "7.3"),
        ("7.3[^2]", "7.3"),
        ("7.3<sup>2</sup>", "7.3"),
        ("7.3<br>s", "7.3 s"),
        ("47.59&nbsp;&#37;", "47.59 %"),
    ],
)
def test_markup_is_taken_out_of_a_cell(cell: str, text: str) -> None:
    assert strip_markup(cell) == text


def test_a_pipe_of_a_cell_parts_no_cells() -> None:
    (table,) = read_tables("| a \\| b | c |\n|---|---|\n| 1 \\| 2 | 3 |\n").tables
    assert (table.header.cells, table.rows[0].cells) == (("a | b", "c"), ("1 | 2", "3"))


def test_a_row_of_dashes_is_a_row() -> None:
    (table,) = read_tables("| a | b |\n|---|---|\n| 1 | 2 |\n| - | - |\n| 3 | 4 |\n").tables
    assert [row.cells for row in table.rows] == [("1", "2"), ("-", "-"), ("3", "4")]
