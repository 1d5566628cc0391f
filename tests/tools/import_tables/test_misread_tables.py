"""Numbers that may be misread are listed with their line, without affecting others."""

from __future__ import annotations

import pytest
from support.imported_tables import list_unread, read

ROWS = """\
## Llama 3.1 8b FP8 on H100

| GPUs | Step time (s) | Tokens/s | Days to 1T |
|---|---|---|---|
| 8 | 9.33 | 112,388 | 102.99 |
| 16 | 9.36 | 224,055 | 51.66 |
"""
COLUMNS = """\
| Configuration | 8x H100 GPUs | 16x H100 GPUs |
|---|---|---|
| SeqLen | 8192 | 8192 |
| TP | 1 | 2 |
| GBS | 128 | 256 |

| Llama 3.1 8b FP8 | 8x H100 GPUs | 16x H100 GPUs |
|---|---|---|
| Step time (s) | 9.33 | 9.36 |
| Tokens/s | 112388 | 224055 |
| Days to 1T | 102.99 | 51.66 |
"""
TIMES = {8: "9.33", 16: "9.36"}
NO_NUMBER = "'Step time (s)': the value is not a number"
STRAY = "the cell is outside of Markdown tables"


def times(text: str, **options: str) -> dict[int | str, str]:
    return {
        entry.facts["gpus"]: entry.cells["step_time"]
        for entry in read(text, **options).configurations
    }


def change(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "read_rows", "message"),
    [
        ("9.33", "9.33[1](#note)", (16,), f"5 9.33 1: {NO_NUMBER}"),
        ("9.33", "~~9.33~~", (16,), f"5 ~~9.33~~: {NO_NUMBER}"),
        ("9.33", "<del>9.33</del>", (16,), f"5 ~~9.33~~: {NO_NUMBER}"),
        (
            "9.33",
            "<!-- 9.33 --> 9.30 <!-- 9.31 --> 9.32",
            (16,),
            f"5 9.30 9.32: {NO_NUMBER}",
        ),
        (
            "9.33 | 112,388 | 102.99",
            "112388 | 102.99 days | NA",
            (16,),
            "5 112388: cell '102.99 days' has the unit of ano",
        ),
        (
            "9.33 | 112,388 | 102.99",
            "112388 | 102.99 | ",
            (16,),
            "5 112388: the last cell of the row is empty",
        ),
        (
            "102.99 |",
            "102.9\n9 |",
            (16,),
            "5 9.33: the row does not end with a pipe, but the header does: line 6 may continue",
        ),
        ("102.99 |", "102.9\n9 |", (16,), "6 9: the row has 1 cells"),
        (
            "9.36",
            "9.360 ms",
            (8,),
            "6 9.360 ms: 'Step time (s)': the point of the value may separate thousands",
        ),
        (
            "112,388",
            "112.388",
            (8, 16),
            "5 112.388: 'Tokens/s': the point of the value may separate thousands",
        ),
        (
            "| 16 |",
            "| GPUs | Days to 1T | Tokens/s | Step time (s) |\n| 16 |",
            (8,),
            "7 9.36: line 6 looks like another he",
        ),
        (
            "| 16 |",
            "| | FP8 | BF16 | |\n| 16 |",
            (8,),
            "7 9.36: line 6 looks like another header",
        ),
        ("51.66 |\n", "51.66 |\n\n32\t12.27\n", (8, 16), f"8 12.27: {STRAY}"),
        (
            "51.66 |\n",
            "51.66 |\n\n<tr><td>32</td><td>12.27</td></tr>\n",
            (8, 16),
            f"8 12.27: {STRAY}",
        ),
        (
            "51.66 |\n",
            "51.66 |\n\n<table>\n<tr><td>32</td>\n<td>\n9.41\n</td></tr></table>",
            (8, 16),
            f"11 9.41: {STRAY}",
        ),
        (
            "51.66 |\n",
            "51.66 |\n\n<!--\n| 32 | 12.27 |\n-->",
            (8, 16),
            f"9 12.27: {STRAY}",
        ),
        ("51.66 |\n", "51.66 |\n\nStep time | 7.3 | 7.4 |", (8, 16), f"8 7.3: {STRAY}"),
        (
            "51.66 |\n",
            f"51.66 |\n\n| 7.3 | {'*' * 10_000} |",
            (8, 16),
            f"8 | 7.3 | {'*' * 32}...: {STRAY}",
        ),
        (
            "| GPUs | Step time (s)",
            "| GPUs | Step time (minutes)",
            (),
            "5 9.33: 'Step time (minutes)': the row or column of the value is unknown",
        ),
    ],
)
def test_ambiguous_table_row_is_listed_as_unread_and_other_rows_are_imported(
    old: str, new: str, read_rows: tuple[int, ...], message: str
) -> None:
    text = change(ROWS, old, new)
    assert times(text) == {gpus: TIMES[gpus] for gpus in read_rows}
    assert any(line.startswith(message) for line in list_unread(read(text))), (
        list_unread(read(text))
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("9.33", "[9.33](#log) <!-- was 9.41 -->"),
        ("| 16 |", "|\n| 16 |"),
        (" |\n", "\n"),
        ("51.66 |\n", "51.66 |\n\nFile | Open\n"),
        ("51.66 |\n", f"51.66 |\n\n![](data:image/png;base64,{'A' * 20_000})\n"),
    ],
)
def test_harmless_change_of_a_table_changes_no_imported_value(
    old: str, new: str
) -> None:
    assert times(change(ROWS, old, new)) == TIMES
    assert read(change(ROWS, old, new)).unread == ()


@pytest.mark.parametrize(
    ("old", "new", "read_rows", "message"),
    [
        (
            "16x H100 GPUs |\n|---|---|---|\n| Step",
            "~~16x H100 GPUs~~ |\n|---|---|---|\n| Step",
            (8,),
            "in the header of the column",
        ),
        (
            "FP8 | 8x",
            "FP8 on GB200 | 8x",
            (),
            "more than one GPU type is stated for the configuration",
        ),
        (
            "16x H100 GPUs |\n|---|---|---|\n| Step",
            "8x H100 GPUs |\n|---|---|---|\n| Step",
            (),
            "lines 7, 7 give different",
        ),
        (
            "Step time (s) |",
            "Step time (minutes) |",
            (),
            "the row or column of the value is unknown",
        ),
        (
            "| 9.33 | 9.36",
            "| 9.33 | 9.36 | 9.40",
            (),
            "the row has 4 cells, but the header has 3",
        ),
        (
            "16x H100 GPUs |\n|---|---|---|\n| Seq",
            "16x H100 (old) |\n|---|---|---|\n| Seq",
            (8, 16),
            "'old' in the header of the column",
        ),
        (
            "| GBS | 128 | 256 |",
            "| GBS | 128 | 256 |\n| GBS | 128 | 512 |",
            (8, 16),
            "found several values: 256, 512",
        ),
        (
            "| GBS | 128 | 256 |",
            "| GBS | 128 | 128 * 2 |",
            (8, 16),
            "the value is not a whole number above 0",
        ),
        (
            "Llama 3.1 8b FP8",
            "Llama 3.1 8b FP8 (v2)",
            (8, 16),
            "'(v2)' in this title is not understood",
        ),
        (
            "Llama 3.1 8b FP8",
            "Llama 3.1 8b FP8 (TP=4, TP=8)",
            (8, 16),
            "this title states several values of tp",
        ),
        (
            "8b FP8 | 8x H100 GPUs",
            "8b FP8 (TP=4) | 8x H100 GPUs (TP=8)",
            (8, 16),
            "tp: found several values",
        ),
        (
            "8b FP8 | 8x",
            "8b FP8 | 32x",
            (32, 16),
            "the configuration has no measurement",
        ),
        (
            "9.33 | 9.36",
            "9.36 | ",
            (),
            "the last cell of the row is empty, so the row may be shifted",
        ),
        ("9.33 | 9.36", "9.33 | NA", (8,), "the row contains no step time"),
        (
            "102.99 | 51.66",
            "51.66 | NA",
            (16,),
            "tokens/s and days to 1T tokens contradict each other",
        ),
        ("9.33 |", "9330 |", (16,), "tokens/s does not match step time"),
        (
            "112388 | 224055 |\n| Days to 1T | 102.99",
            "112 | 224055 |\n| Days to 1T | NA",
            (16,),
            "may be in another unit",
        ),
        (
            "| GBS | 128",
            "| GBS | 256",
            (8, 16),
            "",
        ),  # half of the batch, as in a real document
        (
            "| Step",
            "| Step time (s) | 9.33 | 9.36 |\n| Llama 3.1 8b BF16 | 8x H100 GPUs | |\n| Step",
            (8, 16),
            "line 10 loo",
        ),
    ],
)
def test_ambiguous_table_column_is_listed_as_unread_and_other_columns_are_imported(
    old: str, new: str, read_rows: tuple[int, ...], message: str
) -> None:
    text = change(COLUMNS, old, new)
    assert times(text).keys() == set(read_rows)
    unread = list_unread(read(text))
    assert any(message in line for line in unread) if message else unread == []
    assert all(cell.decisive for cell in read(text).unread)


@pytest.mark.parametrize(
    "table",
    [
        "| Llama 3.1 8b FP8 | Unit | 8x H100 GPUs |\n|---|---|---|\n| Step time | ms | 9330 |\n",
        "| Llama 3.1 8b FP8 | 8x H100 GPUs |\n|---|---|\n| | (ms) |\n| Step time | 9330 |\n",
        "# Llama 3.1 8b FP8 H100\n| GPUs | Step time | Unit |\n|---|---|---|\n| 8 | 9330 | ms |\n",
        "# Llama 3.1 8b FP8 H100\n| GPUs | Step time |\n|---|---|\n| | [ms] |\n| 8 | 9330 |\n",
    ],
)
def test_values_with_their_unit_in_a_separate_cell_are_not_imported(table: str) -> None:
    assert times(table) == {}
    assert any(
        "contains only a unit" in line and "9330: a cell in line" in line
        for line in list_unread(read(table))
    )


@pytest.mark.parametrize(
    ("label", "cell"), [("Precision", "FP8"), ("Size", "70b"), ("GPU type", "GB200")]
)
def test_empty_cell_does_not_inherit_from_heading(label: str, cell: str) -> None:
    rows = f"| {cell} | 16 | 12.27 |\n| | 64 | 12.31 |\n"
    text = f"## Llama 3.1 8b BF16 on H100\n\n| {label} | GPUs | Step time (s) |\n|---|---|---|\n{rows}"
    assert times(text) == {16: "12.27"}
    assert any(
        "6 12.31: 'Step time (s)': more than one" in line
        for line in list_unread(read(text))
    )


@pytest.mark.parametrize(
    ("time", "tokens"), [("9330", "112388"), ("9.33", "14048"), ("0.156", "112388")]
)
def test_step_time_that_contradicts_its_tokens_per_second_is_not_imported(
    time: str, tokens: str
) -> None:
    """The times and rates are in milliseconds, per GPU or in minutes, without unit."""
    table = "| Llama 3.1 8b FP8 (SeqLen=8192, GBS=128) | 8x H100 GPUs |\n|---|---|\n"
    text = f"{table}| Step time | {time} |\n| Tokens/s | {tokens} |\n"
    assert times(text) == {}
    assert (
        f"3 {time}: 'Step time': tokens/s does not match step time"
        in list_unread(read(text))[0]
    )


def test_precision_in_a_second_header_line_overrides_the_dtype_option() -> None:
    text = "# Llama 3.1 8b\n| | 8x H100 GPUs | |\n|---|---|---|\n| {} | FP8 | BF16 |\n| Step time (s) | 9.33 | 12.27 |\n"
    options = {"dtype": "bf16", "recipe": "llama3.1", "size": "8b"}
    assert times(text.format(""), **options) == {}
    unread = list_unread(read(text.format(""), **options))
    assert any(
        "5 9.33: 'Step time (s)': more than one precision is stated for the configuration"
        in line
        for line in unread
    )
    assert times(text.format("Precision:"), **options) == {8: "9.33"}


def test_value_is_not_imported_if_heading_and_following_line_contradict() -> None:
    more = "| GPUs | Step time (s) |\n|---|---|\n| 32 | 12.27 |\n"
    text = f"{ROWS}\nAnd with BF16:\n\n{more}"
    assert times(text) == TIMES
    assert (
        "12 12.27: 'Step time (s)': more than one precision is stated for the configuration"
        in list_unread(read(text))
    )
    assert times(f"{ROWS}\nMore GPUs in FP8:\n\n{more}") == TIMES | {32: "12.27"}


def test_column_with_contradictory_tables_is_omitted() -> None:
    text = change(
        COLUMNS,
        "8x H100 GPUs | 16x H100 GPUs |\n|---|---|---|\n| Step",
        "8x H100 GPUs (GBS=64) | 16x H100 GPUs |\n|---|---|---|\n| Step",
    )
    first, second = read(text).configurations
    assert ("gbs" not in first.facts, second.facts["gbs"]) == (True, 256)
    assert list_unread(read(text)) == ["1 gbs 128: line 7 states 64"]


def test_configuration_rows_of_another_recipe_are_not_used() -> None:
    table = "| {} 8b FP8 | 8x H100 GPUs |\n|---|---|\n| Step time (s) | {} |\n\n"
    rows = "## Llama 3.1 8b FP8\n| GPUs | GBS |\n|---|---|\n| 8 | 128 |\n\n"
    document = read(
        rows + table.format("Llama 3.1", "9.33") + table.format("Mistral", "8.33")
    )
    assert [entry.facts.get("gbs") for entry in document.configurations] == [128, None]


def test_command_line_options_complete_facts_that_a_table_lacks() -> None:
    table = "Performance | 8 GPUs | 16 GPUs\n---|---|---\nStep time (s) | 9.33 | 9.36\n"
    missing = (
        "'Step time (s)': no model size is stated for the configuration; give --size"
    )
    assert list_unread(read(table)) == [f"3 9.33: {missing}", f"3 9.36: {missing}"]
    options = {"size": "8b", "gpu": "h100", "dtype": "fp8"}
    assert times(table, recipe="mine", **options) == TIMES
    assert list_unread(read(table, **options))[0].endswith(
        "the title names no recipe; give --recipe"
    )


def test_tables_override_values_stated_in_the_text() -> None:
    configurations = read(COLUMNS, gpu="gb200", dtype="bf16").configurations
    assert {(entry.facts["gpu"], entry.facts["dtype"]) for entry in configurations} == {
        ("h100", "fp8")
    }
