"""Drafts: their values and places, the files that are written, and that no file is
lost."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.imported_tables import draft

from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.cli.main import main
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.tools.import_tables.import_command import format_report
from pytest_llmbench.tools.import_tables.imported_documents import (
    read_document,
    write_drafts,
)
from pytest_llmbench.tools.import_tables.mappings import load_mapping

PROSE = """\
The peak theoretical throughput for H100 FP8 is 1979 TFLOPS. Analyze iterations 11-44 and calculate mean and deviation.
The training will run for the first 60 steps and will stop. train_step_timing in s: 9.3
The model flops for Oak "8b" for GBS=1 is 4.74E+14.
Oak 8b calculation:
attention flops = 12 * 32 * 4096^2 * (1 + 8/32 + 8192/4096) = 20,937,965,568
mlp flops = 18 * 32 * 14336 * 4096 = 33,822,867,456
embedding flops = 6 * 128256 * 4096 = 3,152,019,456

"""
TABLE = """\
| Oak 8b FP8 | 8x H100 GPUs (GBS=128) | 16x H100 GPUs (GBS=256) |
|---|---|---|
| Step time (s) | 9.33 | 9.36 |
| MFU | 41.07% | NA |
"""
DOCUMENT = PROSE + TABLE
UNTIMED = "| Oak 8b FP8 | 8x H100 GPUs |\n|---|---|\n| GBS | 128 |\n| SeqLen | 8192 |\n| Layers | 32 |\n"


def test_draft_cites_the_source_of_each_value() -> None:
    (made,) = draft(DOCUMENT).drafts
    for line in (
        "framework: NeMo-Run   # by the log of line 2",
        "dialect: nemo2   # line 2",
        "timed: mean   # line 1",
        "window: {statistic: mean, first: 11, last: 44}   # line 1",
        "steps: 60   # line 2",
        '    fp8: "1979"   # line 1',
        "    formula: llama:3   # line 5",
        "    ffn_size: 14336   # line 6",
        "  # Oak 8b FP8 (line 9 of the document)",
        "     sequence_length: 8192, layers: 32, gbs: 128,   # sequence_length: line 5, layers: line 5",
        '     cells: {step_time: "9.33", mfu: "41.07%"}}',
    ):
        assert f"\n{line}\n" in made.text, made.text
    assert (made.missing_keys, made.assumed_values) == ((), ())


def test_contradictory_values_of_the_text_are_listed() -> None:
    """Equal values may be repeated, and comments are ignored."""
    again = "The peak theoretical throughput for H100 FP8 is 989 TFLOPS. Analyze iterations 11-44 for the mean.\n"
    result = draft(
        f"{again}<!-- training will run for the first 70 steps -->\n{DOCUMENT}"
    )
    (made,) = result.drafts
    assert [what for _, what in made.assumed_values] == ['fp8: "1979"']
    assert "\nsteps: 60   # line 4\n" in made.text
    told = "the text gives several values of peak h100 fp8: 989, 1979"
    assert [cell[:3] for cell in result.unread] == [(1, "989", told), (3, "1979", told)]


def test_complete_draft_is_valid(tmp_path: Path) -> None:
    (made,) = draft(DOCUMENT.replace("| Oak 8b", '| Oak "8b: # {x}" 8b')).drafts
    path = tmp_path / "own.yaml"
    path.write_text(made.text)
    first, second = read_recipe(path).baselines
    assert (first.step_seconds, dict(second.cells)) == (
        9.33,
        {"step_time": "9.36", "mfu": "NA"},
    )
    assert first.source.table == 'Oak "8b: # {x}" 8b FP8'


def test_draft_from_a_bare_table_leaves_the_log_dialect_to_fill_in(
    tmp_path: Path,
) -> None:
    (made,) = draft(TABLE).drafts
    assert [what.partition(",")[0] for _, what in made.missing_keys] == ["dialect"]
    usual = (
        "timed: mean",
        "window: {statistic: mean, first: 11, last: 44}",
        "steps: 50",
    )
    assert [what for _, what in made.assumed_values] == [
        "framework: unknown",
        *usual,
        'fp8: "1979"',
    ]
    path = tmp_path / "own.yaml"
    path.write_text(made.text)
    with pytest.raises(BaselineError, match=r"own.yaml:9: found nothing"):
        read_recipe(path)
    path.write_text(made.text.replace("dialect: null", "dialect: megatron"))
    assert [baseline.step_seconds for baseline in read_recipe(path).baselines] == [
        9.33,
        9.36,
    ]


def test_document_without_step_times_is_imported_as_an_untimed_recipe(
    tmp_path: Path,
) -> None:
    (made,) = draft(PROSE.replace("Analyze", "") + UNTIMED).drafts
    path = tmp_path / "own.yaml"
    path.write_text(made.text)
    recipe = read_recipe(path)
    assert (recipe.kind, recipe.baselines[0].configuration.global_batch_size) == (
        "recipe",
        128,
    )


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("with Megatron-Bridge", "framework: Megatron-Bridge   # line 1"),
        ("with NeMo AutoModel", "framework: NeMo AutoModel   # line 1"),
        (
            "train_step_timing in s=9.3",
            "framework: NeMo Framework Launcher   # by the log of line 1",
        ),
    ],
)
def test_framework_stated_in_the_document_makes_the_draft_complete(
    tmp_path: Path, text: str, framework: str
) -> None:
    (made,) = draft(f"{text}\n\n{TABLE}").drafts
    assert f"\n{framework}\n" in made.text
    assert made.missing_keys == ()
    (tmp_path / "own.yaml").write_text(made.text)
    assert read_recipe(tmp_path / "own.yaml").baselines[0].step_seconds == 9.33


def test_model_flops_printed_without_a_formula_are_copied_into_the_draft() -> None:
    (made,) = draft(
        f"The model flops for Oak 8b for GBS=1 is 4.74E+14.\n\n{TABLE}"
    ).drafts
    constant = 'formula: none   # not stated: docs/explanation/flops.md has formulas for MFU\n    printed_flops: "4.74E+14"   # line 1'
    assert constant in made.text
    assert "formula: none" in [what for _, what in made.assumed_values]


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


def test_peak_table_gives_peaks_but_no_configuration() -> None:
    result = draft(PEAKS)
    (made,) = result.drafts
    assert "window: {statistic: mean, first: 35, last: 44}   # line 8" in made.text, (
        "with an en dash"
    )
    assert (
        '  gb200:\n    bf16: "2450"   # line 5\n  h100:\n    bf16: "989"   # line 5\n'
        in made.text
    )
    assert (made.configurations, result.is_complete) == (2, True)
    assert {cell.reason for cell in result.unread} == {
        "the table of the cell is about peak FLOPS of GPUs, not about measurements"
    }


@pytest.mark.parametrize("row", ["| MFU | 40% |", "| GBS | 128 |"])
def test_measurements_in_a_table_titled_peak_throughput_are_listed_as_unread(
    row: str,
) -> None:
    result = draft(
        f"# Peak throughput of Oak 8b in BF16\n\n| Metric | H100 |\n|---|---|\n{row}\n"
    )
    assert (result.drafts, [cell.decisive for cell in result.unread]) == ((), [True])


@pytest.mark.parametrize(
    "header",
    ["| Data Type | GB200 (sparse) | H100 |", "| Data Type | GB200 | H100 8x |"],
)
def test_sparse_peak_is_ignored(header: str) -> None:
    (made,) = draft(PEAKS.replace("| Data Type | GB200 | H100 |", header)).drafts
    assert re.search(r'(gb200|h100):\n    bf16: "\d+"   # not stated', made.text)


def test_peak_tflops_that_contradict_the_document_are_listed() -> None:
    result = draft("The peak throughput for H100 BF16 is 990 TFLOPS.\n" + PEAKS)
    told = "the text gives several values of peak h100 bf16: 990, 989"
    assert [(cell.line, cell.reason) for cell in result.unread if cell.decisive] == [
        (1, told),
        (6, told),
    ]


# --- files and report -----------------------------------------------------------------


def test_each_recipe_is_written_to_its_file(tmp_path: Path) -> None:
    both = draft(f"{DOCUMENT}\n{TABLE.replace('Oak', 'Elm')}")
    written = write_drafts(both, tmp_path, force=False)
    assert [file.path for file in written] == [
        tmp_path / "oak" / "25.05.yaml",
        tmp_path / "elm" / "25.05.yaml",
    ]
    assert [file.fate for file in written] == ["created", "created"]
    with pytest.raises(
        BaselineError,
        match=r"found 2 recipes \(oak, elm\), expected one; give a folder",
    ):
        write_drafts(both, tmp_path / "one.yaml", force=False)


def test_existing_draft_is_replaced_only_with_force_and_its_diff_is_printed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own.yaml"
    (file,) = write_drafts(draft(DOCUMENT), path, force=False)
    assert (file.fate, file.difference) == ("created", "")
    assert write_drafts(draft(DOCUMENT), path, force=False)[0].fate == "unchanged"
    changed = draft(DOCUMENT.replace("9.36", "9.40"))
    before = path.read_bytes()
    (file,) = write_drafts(changed, path, force=False)
    assert (file.fate, path.read_bytes()) == ("kept", before)
    assert '-     cells: {step_time: "9.36", mfu: "NA"}}' in file.difference
    assert '+     cells: {step_time: "9.40", mfu: "NA"}}' in file.difference
    assert "another file exists and was kept; give --force to replace it" in "\n".join(
        format_report(changed, [file])
    )
    (file,) = write_drafts(changed, path, force=True)
    assert (file.fate, '"9.40"' in path.read_text()) == ("replaced", True)
    assert '+     cells: {step_time: "9.40"' in file.difference
    assert list(tmp_path.iterdir()) == [path]


def test_report_lists_gaps_and_unread_cells() -> None:
    result = draft(
        DOCUMENT.replace("| MFU | 41.07% | NA |", "| MFU | 0.4107 | 41,07% |")
    )
    lines = list(format_report(result, ()))
    joined = " ".join(" ".join(lines).split())
    assert (lines[0], lines[-1]) == (
        "oak 25.05: 2 configurations, 2 cells",
        "2 cells not read",
    )
    assert (
        "line 12 of README.md: '0.4107': 'MFU': the value may be a percentage or a fraction"
        in joined
    )
    assert "'41,07%': 'MFU': the comma may be a decimal comma" in joined
    assert max(map(len, lines)) < 80
    assert (result.is_complete, draft(DOCUMENT).is_complete) == (False, True)
    bare = list(format_report(draft(TABLE), ()))
    assert (
        "not stated, oak: line 7 framework: unknown; line 12 timed: mean; line 13"
        in bare
    )
    assert (
        "to fill in, oak line 9: dialect, that of the log: nemo1, nemo2, maxtext,"
        in bare
    )


@pytest.mark.parametrize(
    "text", ["", "# No table\n", "| a | b |\n|---|---|\n| 1 | 2 |\n"]
)
def test_document_without_configurations_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    document = tmp_path / "README.md"
    document.write_text(text)
    assert main(["baselines", "import", str(document), "--release", "25.05"]) == 2
    assert "README.md: found no configuration" in capsys.readouterr().err


def test_unreadable_document_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    with pytest.raises(BaselineError, match="No such file"):
        read_document(path, load_mapping())
    path.write_bytes(b"a\nb\xff")
    with pytest.raises(
        BaselineError, match=r"README.md:2: found byte 0xff, expected UTF-8 text"
    ):
        read_document(path, load_mapping())
    path.write_bytes(b"\xef\xbb\xbfa")
    assert read_document(path, load_mapping()).lines == ("a",)


def test_missing_markdown_package_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    with pytest.raises(BaselineError, match=r"pip install 'pytest-llmbench\[import\]'"):
        read_document(tmp_path / "README.md", load_mapping())


def test_empty_file_is_replaced_but_link_is_not(tmp_path: Path) -> None:
    empty, link = tmp_path / "empty.yaml", tmp_path / "link.yaml"
    empty.touch()
    link.symlink_to(empty)
    with pytest.raises(
        BaselineError,
        match=r"link.yaml: this is a link to .*; give the path of that file",
    ):
        write_drafts(draft(DOCUMENT), link, force=True)
    assert empty.read_bytes() == b""
    (file,) = write_drafts(draft(DOCUMENT), empty, force=False)
    assert file.fate == "created"


@pytest.mark.parametrize(
    "stated", ["kind: recorded", "'kind' : \"recorded\"", "kind: recorded\nbroken: ["]
)
def test_draft_never_replaces_recorded_baselines(tmp_path: Path, stated: str) -> None:
    """Replacing the file would lose all accepted values and restart the drift."""
    (file,) = write_drafts(draft(DOCUMENT), tmp_path, force=False)
    text = file.path.read_text(encoding="utf-8").replace("kind: published", stated)
    file.path.write_text(text, encoding="utf-8")
    with pytest.raises(
        BaselineError,
        match="contains recorded baselines, which an import never replaces",
    ):
        write_drafts(draft(DOCUMENT), tmp_path, force=True)
    assert file.path.read_text(encoding="utf-8") == text


def test_written_draft_contains_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_53cr3t-of-m1ne")
    made = draft(TABLE.replace("| Oak 8b", "| hf_53cr3t-of-m1ne 8b"), recipe="oak")
    (file,) = write_drafts(made, tmp_path / "own.yaml", force=False)
    assert "53cr3t" not in file.path.read_text()
    assert write_drafts(made, tmp_path / "own.yaml", force=False)[0].fate == "unchanged"
