"""Tables as documents of other releases have them, each with what was read wrongly, or not at all, of such a one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_llmbench.baseline.documents import ImportedDocument, format_report, import_document, write_drafts
from pytest_llmbench.baseline.documents.document_configurations import (
    DocumentConfigurations,
    ImportDefaults,
    collect_configurations,
)
from pytest_llmbench.baseline.documents.markdown import read_tables
from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.core.errors import BaselineError

TITLED = """\
| Oak 405b BF16 (TP=8, PP=9, VP=7, MBS=1) | 32x H100 GPUs | 96x H100 GPUs |
|---|---|---|
| GBS | 126 | 126 |
| PP | 1 | 3 |
| VP | n/a | 7 |
| Step time (s) | 9.00 | 8.87 |
"""


def read(text: str, **defaults: str) -> DocumentConfigurations:
    return collect_configurations(read_tables(text), ImportDefaults(**defaults))


def unread(document: DocumentConfigurations) -> list[str]:
    return [f"{cell.line} {cell.text}: {cell.reason}" for cell in document.unread]


def draft(text: str, **defaults: str) -> ImportedDocument:
    return import_document(text, "README.md", "25.05", ImportDefaults(**defaults))


def test_a_row_of_a_table_says_more_than_its_title() -> None:
    """`n/a` is no group at all, although the title names one for the other columns."""
    document = read(TITLED)
    assert document.unread == ()
    small, large = (entry.facts for entry in document.configurations)
    assert [(facts["tp"], facts["pp"], facts.get("vp")) for facts in (small, large)] == [(8, 1, None), (8, 3, 7)]


PEAKS = """\
**Peak throughput of GPUs (in TFLOPS)**

| Data Type | GB200 | H100 |
|---|---|---|
| BF16 | 2450 | 989 |
| FP8 | 4900 | 1979 |

Analyze iterations 35\u201344 for the mean. train_step_timing in s: 9.3

| Oak 8b BF16 | 8x GB200 GPUs | 8x H100 GPUs |
|---|---|---|
| Step time (s) | 9.33 | 19.36 |
"""


def test_a_table_of_peaks_gives_peaks_and_no_configuration() -> None:
    document = draft(PEAKS)
    (only,) = document.drafts
    assert "window: {statistic: mean, first: 35, last: 44}   # line 8" in only.text, "with an en dash"
    assert '  gb200:\n    bf16: "2450"   # line 5\n  h100:\n    bf16: "989"   # line 5\n' in only.text
    assert (only.configurations, document.is_whole) == (2, True)
    assert {cell.reason for cell in document.unread} == {"its table is about peaks of GPUs, which no run has reached"}


@pytest.mark.parametrize("row", ["| MFU | 40% |", "| GBS | 128 |"])
def test_a_table_below_the_word_peak_that_says_more_is_not_passed_over(row: str) -> None:
    document = read(f"# Peak throughput of Oak 8b in BF16\n\n| Metric | H100 |\n|---|---|\n{row}\n")
    assert (document.configurations, [cell.decisive for cell in document.unread]) == ((), [True])


@pytest.mark.parametrize("header", ["| Data Type | GB200 (sparse) | H100 |", "| Data Type | GB200 | H100 8x |"])
def test_a_peak_of_something_else_is_not_taken(header: str) -> None:
    (only,) = draft(PEAKS.replace("| Data Type | GB200 | H100 |", header)).drafts
    assert re.search(r'(gb200|h100):\n    bf16: "\d+"   # not stated', only.text)


def test_peaks_that_contradict_the_text_are_listed() -> None:
    document = draft("The peak throughput for H100 BF16 is 990 TFLOPS.\n" + PEAKS)
    told = "the text gives several values of peak h100 bf16: 990, 989"
    assert [(cell.line, cell.reason) for cell in document.unread if cell.decisive] == [(1, told), (6, told)]


TUNED = """\
| Oak 8b Finetuning SFT BF16 (TP=1) | Throughput on 8x H100 GPUs (GBS=32) | Throughput on 16x H100 GPUs (GBS=64) |
|---:|:---:|:---:|
| Training step time (seconds per step) | 1.32 | 1.33 | | | |
| Throughput in tokens per second | 99296 | 197096 | | |

| Oak 8b Finetuning LORA BF16 (TP=1) | Throughput on 8x H100 GPUs (GBS=32) | Throughput on 16x H100 GPUs (GBS=64) |
|---:|:---:|:---:|
| Training step time (seconds per step) | 0.92 | 0.93 |
"""


def test_the_task_of_a_title_is_part_of_the_key() -> None:
    """Two tasks are never one key; cells beyond the header that are empty mean nothing."""
    document = read(TUNED)
    assert document.unread == ()
    found = [(entry.facts["task"], entry.facts["gpus"], entry.cells["step_time"]) for entry in document.configurations]
    assert found == [("sft", 8, "1.32"), ("sft", 16, "1.33"), ("lora", 8, "0.92"), ("lora", 16, "0.93")]


def test_a_cell_beyond_the_header_that_is_not_empty_is_not_read() -> None:
    document = read(TUNED.replace("| 1.32 | 1.33 | | | |", "| 1.32 | 1.33 | | 1.34 |"))
    assert any("3 1.32: its row has 5 cells, the header 3" in line for line in unread(document))
    gap = read(TUNED.replace("| 1.32 | 1.33 | | | |", "| | 1.32 | 1.33 | |"))
    assert any("its row has 5 cells, the header 3" in line for line in unread(gap))


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


def test_a_column_of_tasks_says_more_than_a_heading() -> None:
    """GPU type and precision stand in a list above the table."""
    document = read(TASKS)
    assert document.unread == ()
    assert [entry.facts.get("task") for entry in document.configurations] == ["sft", "lora", None]
    facts = [(entry.facts["gpu"], entry.facts["dtype"]) for entry in document.configurations]
    assert facts == [("h100", "fp8")] * 3


def test_a_row_without_its_task_is_not_read() -> None:
    document = read(TASKS.replace("| LoRA |", "| |"))
    assert [entry.facts.get("task") for entry in document.configurations] == ["sft", None]
    assert "9 24824: 'Tokens / sec / GPU': more than one task is stated for it, or none that can be read" in unread(
        document
    )


def test_what_is_reduced_in_another_precision_is_not_that_of_the_table() -> None:
    document = read(TASKS.replace("- Results at FP8 precision.", "- Gradients are reduced in FP32 precision."))
    assert document.configurations == ()
    assert any("no precision is stated for it; give --dtype" in line for line in unread(document))


def test_the_task_may_stand_in_the_header_of_a_column() -> None:
    document = read(
        "| Oak 8b FP8 | 8x H100 GPUs (LoRA) | 8x H100 GPUs (SFT) |\n|---|---|---|\n| Step time (s) | 1 | 2 |\n"
    )
    assert [entry.facts["task"] for entry in document.configurations] == ["lora", "sft"]
    assert document.unread == ()


def test_a_list_above_a_table_that_contradicts_its_heading_says_nothing() -> None:
    document = read(TASKS.replace("## Fine-tuning (LoRA)", "## Fine-tuning on B200"))
    assert document.configurations == ()
    assert any("more than one GPU type is stated for it" in line for line in unread(document))


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


def test_strong_and_weak_scaling_are_variants_with_the_columns_of_their_own_rows() -> None:
    document = read(SCALING)
    assert document.unread == ()
    found = [(entry.facts["variant"], entry.facts["gpus"], entry.facts["tp"]) for entry in document.configurations]
    assert found == [("gbs32", 128, 8), ("gbs64", 256, 8), ("gbs512", 128, 4), ("gbs512", 256, 4)]


def test_rows_whose_batch_no_header_states_are_not_guessed() -> None:
    """Both tables may be about it, so of what they say differently nothing is taken, and all of it is listed."""
    bare = SCALING.partition("| Elm 340b BF16 Strong")[0].replace(" (GBS=32)", "").replace(" (GBS=64)", "")
    document = read(bare)
    assert [entry.facts.get("gbs") for entry in document.configurations] == [None, None]
    assert sorted(cell.text for cell in document.unread) == ["gbs 512", "gbs 512", "tp 4", "tp 4"]


def test_rows_that_differ_by_sequence_length_are_variants() -> None:
    rows = "# Oak 8b BF16 on H100\n\n| GPUs | Seq Length | GBS | Step time (s) |\n|---|---|---|---|\n"
    document = read(rows + "| 8 | 2048 | 64 | 1.1 |\n| 8 | 4096 | 64 | 2.3 |\n| 8 | 4096 | 128 | 4.5 |\n")
    variants = [entry.facts["variant"] for entry in document.configurations]
    assert variants == ["gbs64_seq2048", "gbs64_seq4096", "gbs128_seq4096"]
    alike = read(rows + "| 8 | 2048 | 64 | 1.1 |\n| 8 | 2048 | 64 | 2.3 |\n")
    assert (alike.configurations, len(alike.unread)) == ((), 8)


def test_a_title_without_a_size_names_the_recipe_and_a_configuration_table_the_size() -> None:
    text = "| Size | Precision | GPUs | TP |\n|---|---|---|---|\n| 671B | BF16 | 1024 | 2 |\n\n"
    table = "| Deep Oak V3 BF16 H100 | 1024x H100 GPUs |\n|---|---|\n| Step time (s) | 52.04 |\n"
    table += "| TFLOPS_per_GPU | 163.7 |\n"
    (only,) = read(text + table).configurations
    assert (only.recipe, only.facts["size"], only.facts["tp"]) == ("deep_oak_v3", "671b", 2)
    assert only.cells == {"step_time": "52.04", "tflops_per_gpu": "163.7"}
    (stated,) = read(table, size="671b").configurations
    assert stated.recipe == "deep_oak_v3"


@pytest.mark.parametrize(
    ("title", "recipe", "size"),
    [
        ("Pax GPT175B 24.11 FP8 (MBS=2)", "pax_gpt", "175b"),
        ("Oak 3.1 405b 24.09 FP8 (TP=8)", "oak3.1", "405b"),
        ("Oak 8x7b FP8", "oak", "8x7b"),
    ],
)
def test_titles_with_a_release_or_a_size_behind_the_name(title: str, recipe: str, size: str) -> None:
    document = read(f"| {title} | 8x H100 GPUs |\n|---|---|\n| Step time (s) | 9.33 |\n")
    (only,) = document.configurations
    assert (only.recipe, only.facts["size"], document.unread) == (recipe, size, ())


def test_two_values_in_a_cell_without_two_precisions_are_not_read() -> None:
    rows = "# Oak 8b FP8 on H100\n\n| GPUs | GBS | Seq Length | Tokens/sec/GPU |\n|---|---|---|---|\n"
    document = read(rows + "| 8 | 64 | 4096 | 31357 (29925) |\n")
    assert document.configurations == ()
    told = "'Tokens/sec/GPU': it holds two values, and nothing says of what the second is"
    assert f"5 31357 (29925): {told}" in unread(document)


def test_a_rate_from_which_no_step_time_follows_is_not_read() -> None:
    """A baseline file has no place for it: the draft would be refused."""
    rows = "# Oak 8b FP8 on H100\n\n| GPUs | Tokens/sec/GPU |\n|---|---|\n| 8 | 31357 |\n"
    told = "'Tokens/sec/GPU': no step time follows from it without GBS and sequence length"
    assert f"5 31357: {told}" in unread(read(rows))


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("with Megatron-Bridge", "framework: Megatron-Bridge   # line 1"),
        ("train_step_timing in s=9.3", "framework: NeMo Framework Launcher   # by the log of line 1"),
    ],
)
def test_the_framework_is_known_and_the_draft_complete(tmp_path: Path, text: str, framework: str) -> None:
    (only,) = draft(f"{text}\n\n| Oak 8b FP8 | 8x H100 GPUs |\n|---|---|\n| Step time (s) | 9.33 |\n").drafts
    assert f"\n{framework}\n" in only.text
    assert only.fill_in == ()
    (tmp_path / "own.yaml").write_text(only.text)
    assert read_recipe(tmp_path / "own.yaml").baselines[0].step_seconds == 9.33


def test_sizes_without_a_formula_are_kept() -> None:
    text = "The model flops for Oak 8b for GBS=1 is 4.74E+14.\n" + PEAKS
    document = draft(text)
    (only,) = document.drafts
    assert (
        'formula: none   # not stated: docs/flops.md has those for MFU\n    printed_flops: "4.74E+14"   # line 1'
        in (only.text)
    )
    assert "not stated, oak: line 14 steps: 50; line 23 formula: none" in format_report(document, ())


def test_a_written_draft_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_53cr3t-of-m1ne")
    document = draft(TITLED.replace("| Oak 405b", "| hf_53cr3t-of-m1ne 405b"), recipe="oak")
    (file,) = write_drafts(document, tmp_path / "own.yaml", force=False)
    assert "53cr3t" not in file.path.read_text()
    assert write_drafts(document, tmp_path / "own.yaml", force=False)[0].fate == "unchanged"


def test_a_release_that_no_file_can_have_is_refused_before_anything_is_written() -> None:
    with pytest.raises(BaselineError, match="--release HEAD: expected a name of lower-case letters, digits and"):
        import_document(TITLED, "README.md", "HEAD", ImportDefaults())
