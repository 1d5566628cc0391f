"""Forms of tables and headings in documents."""

from __future__ import annotations

import pytest
from support.imported_tables import draft, list_unread, read

from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.tools.import_tables.mappings import load_mapping
from pytest_llmbench.tools.import_tables.markdown_tables import (
    read_markdown,
    strip_markup,
)

ROWS = """\
# Llama 3.1 8b on H100

| GPUs | Precision | SeqLen | Layers | GBS | Step time (ms) | Tokens/s | MFU (%) | Notes |
|-----:|-----------|-------:|-------:|----:|---------------:|---------:|--------:|-------|
| 8    | BF16      | 8192   | 32     | 128 | 12270          | 85,459   | 62.47   |       |
| 1,024 | FP8      | 8192   | 32     | 128 | 9330           | 112,388  | 41.07   | -     |
"""
STEP_TIME = "|---|---|\n| Step time (s) | 9.33 |\n"


def test_table_with_gpu_counts_units_and_thousands_separators_in_rows_is_imported() -> (
    None
):
    result = read(ROWS)
    assert result.unread == ()
    first, second = result.configurations
    assert (first.table, first.line) == ("Llama 3.1 8b on H100", 5)
    columns = {"sequence_length": 8192, "layers": 32, "gbs": 128}
    key = {
        "recipe": "llama3.1",
        "size": "8b",
        "gpu": "h100",
        "gpus": 8,
        "dtype": "bf16",
    }
    assert first.facts == key | columns | first.cells
    assert first.cells == {
        "step_time": "12.270",
        "tokens_per_second": "85459",
        "mfu": "62.47%",
    }
    assert (second.facts["gpus"], second.facts["dtype"], second.cells["step_time"]) == (
        1024,
        "fp8",
        "9.330",
    )


TITLED = """\
| Oak 405b BF16 (TP=8, PP=9, VP=7, MBS=1) | 32x H100 GPUs | 96x H100 GPUs |
|---|---|---|
| GBS | 126 | 126 |
| PP | 1 | 3 |
| VP | n/a | 7 |
| Step time (s) | 9.00 | 8.87 |
"""


def test_parallelism_in_a_table_row_overrides_that_in_the_table_title() -> None:
    """`n/a` means no group, although the title states a group size."""
    assert read(TITLED).unread == ()
    result = [
        tuple(entry.facts.get(name) for name in ("tp", "pp", "vp"))
        for entry in read(TITLED).configurations
    ]
    assert result == [(8, 1, None), (8, 3, 7)]


TUNED = """\
| Oak 8b Finetuning SFT BF16 (TP=1) | Throughput on 8x H100 GPUs (GBS=32) | Throughput on 16x H100 GPUs (GBS=64) |
|---:|:---:|:---:|
| Training step time (seconds per step) | 1.32 | 1.33 | | | |
| Throughput in tokens per second | 99296 | 197096 | | |

| Oak 8b Finetuning LORA BF16 (TP=1) | Throughput on 8x H100 GPUs (GBS=32) | Throughput on 16x H100 GPUs (GBS=64) |
|---:|:---:|:---:|
| Training step time (seconds per step) | 0.92 | 0.93 |
"""


def test_finetuning_task_in_the_table_title_distinguishes_configurations() -> None:
    assert read(TUNED).unread == ()
    result = [
        (entry.facts["task"], entry.cells["step_time"])
        for entry in read(TUNED).configurations
    ]
    assert result == [
        ("sft", "1.32"),
        ("sft", "1.33"),
        ("lora", "0.92"),
        ("lora", "0.93"),
    ]


@pytest.mark.parametrize("cells", ["| 1.32 | 1.33 | | 1.34 |", "| | 1.32 | 1.33 | |"])
def test_row_with_values_beyond_the_last_header_column_is_not_imported(
    cells: str,
) -> None:
    result = list_unread(read(TUNED.replace("| 1.32 | 1.33 | | | |", cells)))
    assert any("the row has 5 cells, but the header has 3" in line for line in result)


TASKS = """\
## Fine-tuning (LoRA)

- Results at FP8 precision.
- System: DGX-H100

| Model | Task | #-GPUs | GBS | Packed Sequence Length | Tokens / sec / GPU |
|---|---|---|---|---|---|
| OAK2-7B | SFT | 8 | 32 | 4096 | 16891 |
| OAK2-7B | LoRA | 8 | 32 | 4096 | 24824 |
| OAK2-7B | Pre-training | 8 | 32 | 4096 | 15000 |
"""


def test_finetuning_task_in_a_column_overrides_that_in_the_heading() -> None:
    """The list above the table states GPU type and precision."""
    assert read(TASKS).unread == ()
    result = [
        (entry.facts.get("task"), entry.facts["gpu"], entry.facts["dtype"])
        for entry in read(TASKS).configurations
    ]
    assert result == [
        ("sft", "h100", "fp8"),
        ("lora", "h100", "fp8"),
        (None, "h100", "fp8"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "tasks", "message"),
    [
        (
            "| LoRA |",
            "| |",
            ["sft", None],
            "9 24824: 'Tokens / sec / GPU': more than one task, or an unknown task",
        ),
        (
            "- Results at FP8 precision.",
            "- Gradients are reduced in FP32.",
            [],
            "no precision is stated for the configuration; give",
        ),
        (
            "## Fine-tuning (LoRA)",
            "## Fine-tuning on B200",
            [],
            "more than one GPU type is stated for the configuration",
        ),
    ],
)
def test_row_without_task_precision_or_gpu_is_listed(
    old: str, new: str, tasks: list[object], message: str
) -> None:
    result = read(TASKS.replace(old, new))
    assert [entry.facts.get("task") for entry in result.configurations] == tasks
    assert any(message in line for line in list_unread(result))


SCALING = """\
| Size | Precision | GPUs | TP | GBS |
|---|---|---|---|---|
| 340b | BF16 | 128 | 8 | 32 |
| 340b | BF16 | 256 | 8 | 64 |

- Strong scaling:

| Size | Precision | GPUs | TP | GBS |
|---|---|---|---|---|
| 340b | BF16 | 128 | 4 | 512 |
| 340b | BF16 | 256 | 4 | 512 |

| Elm 340b BF16 | 128x GB200 GPUs (GBS=32) | 256x GB200 GPUs (GBS=64) |
|---|---|---|
| Step time (s) | 2.189 | 2.19 |

| Elm 340b BF16 Strong Scaling | 128x GB200 GPUs (GBS=512) Strong Scaling | 256x GB200 GPUs (GBS=512) Strong Scaling |
|---|---|---|
| Step time (s) | 32.66 | 16.58 |
"""


def test_strong_and_weak_scaling_tables_become_batch_size_variants() -> None:
    assert read(SCALING).unread == ()
    result = [
        tuple(entry.facts[name] for name in ("variant", "gpus", "tp"))
        for entry in read(SCALING).configurations
    ]
    assert result == [
        ("gbs32", 128, 8),
        ("gbs64", 256, 8),
        ("gbs512", 128, 4),
        ("gbs512", 256, 4),
    ]


def test_configurations_of_unknown_batch_size_inherit_no_batch_size_specific_column() -> (
    None
):
    bare = (
        SCALING.partition("| Elm 340b BF16 Strong")[0]
        .replace(" (GBS=32)", "")
        .replace(" (GBS=64)", "")
    )
    result = read(bare)
    assert [entry.facts.get("gbs") for entry in result.configurations] == [None, None]
    assert sorted(cell.text for cell in result.unread) == [
        "gbs 512",
        "gbs 512",
        "tp 4",
        "tp 4",
    ]


def test_rows_that_differ_in_sequence_length_become_variants() -> None:
    rows = "# Oak 8b BF16 on H100\n\n| GPUs | Seq Length | GBS | Step time (s) |\n|---|---|---|---|\n"
    result = read(
        f"{rows}| 8 | 2048 | 64 | 1.1 |\n| 8 | 4096 | 64 | 2.3 |\n| 8 | 4096 | 128 | 4.5 |\n"
    )
    variants = [entry.facts["variant"] for entry in result.configurations]
    assert variants == ["gbs64_seq2048", "gbs64_seq4096", "gbs128_seq4096"]
    alike = read(f"{rows}| 8 | 2048 | 64 | 1.1 |\n| 8 | 2048 | 64 | 2.3 |\n")
    assert (alike.configurations, len(alike.unread)) == ((), 8)


@pytest.mark.parametrize(
    ("title", "recipe", "size"),
    [
        ("Pax GPT175B 24.11 FP8 (MBS=2)", "pax_gpt", "175b"),
        ("Oak 3.1 405b 24.09 FP8 (TP=8)", "oak3.1", "405b"),
        ("Oak 8x7b FP8", "oak", "8x7b"),
    ],
)
def test_title_names_recipe_and_size(title: str, recipe: str, size: str) -> None:
    result = read(f"| {title} | 8x H100 GPUs |\n{STEP_TIME}")
    (only,) = result.configurations
    assert (only.recipe, only.facts["size"], result.unread) == (recipe, size, ())


def test_title_without_size_takes_it_from_a_configuration_table() -> None:
    text = "| Size | Precision | GPUs | TP |\n|---|---|---|---|\n| 671B | BF16 | 8 | 2 |\n\n"
    table = f"| Deep Oak V3 BF16 H100 | 8x H100 GPUs |\n{STEP_TIME}| TFLOPS_per_GPU | 163.7 |\n"
    (only,) = read(text + table).configurations
    assert (only.recipe, only.facts["size"], only.facts["tp"]) == (
        "deep_oak_v3",
        "671b",
        2,
    )
    assert only.cells == {"step_time": "9.33", "tflops_per_gpu": "163.7"}
    (stated,) = read(table, size="671b").configurations
    assert stated.recipe == "deep_oak_v3"


@pytest.mark.parametrize(
    ("columns", "cells", "message"),
    [
        (
            "GBS | Seq Length | Tokens/sec/GPU",
            "64 | 4096 | 31357 (29925)",
            "the value contains two values, and the second is not explained",
        ),
        (
            "Tokens/sec/GPU",
            "31357",
            "a step time cannot be computed from tokens/s per GPU without GBS and sequence length",
        ),
    ],
)
def test_tokens_per_second_without_derivable_step_time_are_listed_as_unread(
    columns: str, cells: str, message: str
) -> None:
    dashes = "|---" * (columns.count("|") + 2)
    result = read(
        f"# Oak 8b FP8 on H100\n\n| GPUs | {columns} |\n{dashes}|\n| 8 | {cells} |\n"
    )
    assert result.configurations == ()
    assert any(f"'Tokens/sec/GPU': {message}" in line for line in list_unread(result))


@pytest.mark.parametrize(
    "heading",
    [
        "Llama 3.1 8b FP8 on B200\n-----\n",
        "Llama 3.1 8b FP8 on B200\n===\n",
        "**Llama 3.1 8b FP8 on B200**:\n",
        "<h2>Llama 3.1 8b FP8 on B200</h2>",
        "<details><summary><b>Llama 3.1 8b FP8 on B200</b></summary>",
        f"<h2>8b FP8 on B200 ![](data:{'A' * 20_000})</h2>",
        f"## 8b FP8 on B200 ![](data:{'A' * 20_000})",
    ],
)
def test_every_kind_of_heading_ends_the_section_of_the_previous_heading(
    heading: str,
) -> None:
    more = f"{heading}\n| GPUs | Step time (s) |\n|---|---|\n| 32 | 12.27 |\n"
    result = [
        (entry.facts["gpus"], entry.facts["gpu"])
        for entry in read(f"{ROWS}\n{more}").configurations
    ]
    is_read = "AAA" not in heading
    assert result == [(8, "h100"), (1024, "h100"), *([(32, "b200")] if is_read else [])]


def test_comment_in_code_is_not_a_heading() -> None:
    code = "```bash\n# Oak 70b on B200\n```\n"
    assert read(ROWS.replace("\n\n", f"\n\n{code}", 1)).unread == ()


@pytest.mark.parametrize("indent", ["  ", "    ", "\t", "> ", "> > "])
def test_table_in_list_code_or_quote_is_read(indent: str) -> None:
    head, _, rows = ROWS.partition("\n\n")
    text = f"{head}\n\n- Results:\n{indent}{rows.rstrip().replace(chr(10), chr(10) + indent)}\n"
    assert [entry.cells for entry in read(text).configurations] == [
        entry.cells for entry in read(ROWS).configurations
    ]
    fenced = f"{head}\n\n```\n{rows}```\n"
    assert len(read(fenced).configurations) == 2


def test_unclosed_html_comment_hides_no_table() -> None:
    assert read(f"<!-- a <!-- b --> <!--\n<table\n\n{ROWS}").configurations
    assert not read(f"<!-- a <TABLE>\n\n{ROWS}\n</Table> <!-- -->").configurations


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (r"a \| b", "a | b"),
        ("`a | b`", "a | b"),
        ("`log_<gpus>.out`", "log_<gpus>.out"),
        ("***7.3***", "7.3"),
        ("step_time_seconds", "step_time_seconds"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("[7.3](https://example.com/a_(b))", "7.3"),
        ("![chart](https://example.com/a.png)", "chart"),
        ("7.3[^2]", "7.3"),
        ("7.3<sup>2</sup>", "7.3"),
        ("7.3<br>s", "7.3 s"),
        ("47.59&nbsp;&#37;", "47.59 %"),
    ],
)
def test_markup_is_removed_from_a_cell(cell: str, text: str) -> None:
    assert strip_markup(cell) == text


def test_escaped_pipe_splits_no_cell() -> None:
    text = "| a \\| b | c |\n|---|---|\n| 1 \\| 2 | 3 |\n| - | - |\n"
    (table,) = read_markdown(text, load_mapping()).tables
    assert [
        [cell.text for cell in row.cells] for row in (table.header, *table.rows)
    ] == [["a | b", "c"], ["1 | 2", "3"], ["-", "-"]]


def test_release_selects_tables_by_heading() -> None:
    text = f"## 25.04\n\n| Oak 8b FP8 | 8x H100 GPUs |\n{STEP_TIME}"
    assert draft(text, release="25.04").is_complete
    with pytest.raises(
        BaselineError,
        match=r"found tables of 25\.04, but not of 25\.05: give one of these releases as --release",
    ):
        draft(text, release="25.05")


@pytest.mark.parametrize(("name", "value"), [("recipe", "../x"), ("size", "8 b")])
def test_invalid_file_name_is_refused(name: str, value: str) -> None:
    with pytest.raises(
        BaselineError,
        match=f"--{name} {value}: expected a name of lower-case letters, digits and",
    ):
        draft(TITLED, **{name: value})
    with pytest.raises(
        BaselineError,
        match="--release HEAD: expected a name of lower-case letters, digits and",
    ):
        draft(TITLED, release="HEAD")
