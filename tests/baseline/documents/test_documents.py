"""Drafts: what stands in them, where they are written, and that no file is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.baseline.documents import (
    ImportedDocument,
    format_report,
    import_document,
    read_document,
    write_drafts,
)
from pytest_llmbench.baseline.documents.document_configurations import ImportDefaults
from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.core.errors import BaselineError

DOCUMENT = """\
The peak theoretical throughput for H100 FP8 is 1979 TFLOPS. Analyze iterations 11-44 and calculate mean and deviation.
The training will run for the first 60 steps and will stop. train_step_timing in s: 9.3
The model flops for Oak "8b" for GBS=1 is 4.74E+14.
Oak 8b calculation:
attention flops = 12 * 32 * 4096^2 * (1 + 8/32 + 8192/4096) = 20,937,965,568
mlp flops = 18 * 32 * 14336 * 4096 = 33,822,867,456
embedding flops = 6 * 128256 * 4096 = 3,152,019,456

| Oak 8b FP8 | 8x H100 GPUs (GBS=128) | 16x H100 GPUs (GBS=256) |
|---|---|---|
| Step time (s) | 9.33 | 9.36 |
| MFU | 41.07% | NA |
"""


def imported(text: str = DOCUMENT, **defaults: str) -> ImportedDocument:
    return import_document(text, "README.md", "25.05", ImportDefaults(**defaults))


def test_a_draft_states_where_each_value_stands() -> None:
    (draft,) = imported().drafts
    for line in (
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
        assert f"\n{line}\n" in draft.text, draft.text
    assert "\nframework: NeMo-Run   # by the log of line 2\n" in draft.text
    assert (draft.fill_in, draft.assumed) == ((), ())


def test_of_values_that_contradict_each_other_in_the_text_none_is_taken() -> None:
    """Which of them counts nobody knows; what says the same twice does no harm, and a comment says nothing."""
    again = "The peak theoretical throughput for H100 FP8 is 989 TFLOPS. Analyze iterations 11-44 for the mean.\n"
    found = imported(f"{again}<!-- training will run for the first 70 steps -->\n{DOCUMENT}")
    (draft,) = found.drafts
    assert [what for _, what in draft.assumed] == ['fp8: "1979"']
    assert "\nsteps: 60   # line 4\n" in draft.text
    told = "the text gives several values of peak h100 fp8: 989, 1979"
    assert [(one.line, one.text, one.reason) for one in found.unread] == [(1, "989", told), (3, "1979", told)]


def test_a_draft_is_read_as_it_is(tmp_path: Path) -> None:
    (draft,) = imported(DOCUMENT.replace("| Oak 8b", '| Oak "8b: # {x}" 8b')).drafts
    path = tmp_path / "own.yaml"
    path.write_text(draft.text)
    one, two = read_recipe(path).baselines
    assert (one.step_seconds, dict(two.cells)) == (9.33, {"step_time": "9.36", "mfu": "NA"})
    assert one.source.table == 'Oak "8b: # {x}" 8b FP8'


def test_a_document_that_says_little_leaves_the_kind_of_log_to_fill_in(tmp_path: Path) -> None:
    """Nothing else is needed to judge step times; what was assumed for it is said, each with its line."""
    (draft,) = imported(DOCUMENT.partition("\n\n")[2]).drafts
    assert [what.partition(",")[0] for _, what in draft.fill_in] == ["dialect"]
    assert [what for _, what in draft.assumed] == [
        *("framework: unknown", "timed: mean", "window: {statistic: mean, first: 11, last: 44}", "steps: 50"),
        'fp8: "1979"',
    ]
    path = tmp_path / "own.yaml"
    path.write_text(draft.text)
    with pytest.raises(BaselineError, match=r"own.yaml:9: found nothing"):
        read_recipe(path)
    path.write_text(draft.text.replace("dialect: null", "dialect: megatron"))
    assert [baseline.step_seconds for baseline in read_recipe(path).baselines] == [9.33, 9.36]


def test_a_recipe_that_nothing_has_timed(tmp_path: Path) -> None:
    text = "| Oak 8b FP8 | 8x H100 GPUs |\n|---|---|\n| GBS | 128 |\n| SeqLen | 8192 |\n| Layers | 32 |\n"
    (draft,) = imported(DOCUMENT.partition("\n\n")[0].replace("Analyze", "") + "\n\n" + text).drafts
    path = tmp_path / "own.yaml"
    path.write_text(draft.text)
    recipe = read_recipe(path)
    assert (recipe.kind, recipe.baselines[0].configuration.global_batch_size) == ("recipe", 128)


def test_each_recipe_has_a_file(tmp_path: Path) -> None:
    both = imported(DOCUMENT + "\n" + DOCUMENT.partition("\n\n")[2].replace("Oak", "Elm"))
    written = write_drafts(both, tmp_path, force=False)
    assert [file.path for file in written] == [tmp_path / "oak" / "25.05.yaml", tmp_path / "elm" / "25.05.yaml"]
    assert [file.fate for file in written] == ["created", "created"]
    with pytest.raises(BaselineError, match=r"found 2 recipes \(oak, elm\), expected one; give a folder"):
        write_drafts(both, tmp_path / "one.yaml", force=False)


def test_a_file_that_is_another_one_is_kept_and_the_difference_shown(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    (file,) = write_drafts(imported(), path, force=False)
    assert (file.fate, file.difference) == ("created", "")
    assert write_drafts(imported(), path, force=False)[0].fate == "unchanged"
    changed = imported(DOCUMENT.replace("9.36", "9.40"))
    before = path.read_bytes()
    (file,) = write_drafts(changed, path, force=False)
    assert (file.fate, path.read_bytes()) == ("kept", before)
    assert '-     cells: {step_time: "9.36", mfu: "NA"}}' in file.difference
    assert '+     cells: {step_time: "9.40", mfu: "NA"}}' in file.difference
    assert "is another file and was kept; --force replaces it" in "\n".join(format_report(changed, [file]))
    (file,) = write_drafts(changed, path, force=True)
    assert file.fate == "replaced"
    assert '"9.40"' in path.read_text()
    assert '+     cells: {step_time: "9.40"' in file.difference
    assert list(tmp_path.iterdir()) == [path]


def test_the_report_lists_what_is_missing_and_what_was_not_read() -> None:
    told = imported(DOCUMENT.replace("| MFU | 41.07% | NA |", "| MFU | 0.4107 | 41,07% |"))
    lines = list(format_report(told, ()))
    assert lines[0] == "oak 25.05: 2 configurations, 2 cells"
    bare = imported(DOCUMENT.partition("\n\n")[2])
    assert "not stated, oak: line 7 framework: unknown; line 12 timed: mean; line 13" in format_report(bare, ())
    assert "to fill in, oak line 9: dialect, that of the log: nemo1, nemo2, maxtext," in format_report(bare, ())
    joined = " ".join(" ".join(lines).split())
    assert "line 12 of README.md: '0.4107': 'MFU': nothing says whether it is a percentage or a fraction" in joined
    assert "'41,07%': 'MFU': its comma may be a decimal one" in joined
    assert lines[-1] == "2 cells not read"
    assert not told.is_whole
    assert imported().is_whole
    assert max(map(len, lines)) < 80


@pytest.mark.parametrize("text", ["", "# No table\n", "| a | b |\n|---|---|\n| 1 | 2 |\n"])
def test_a_document_without_configurations_is_an_error(text: str) -> None:
    with pytest.raises(BaselineError, match=r"README.md: found no configuration"):
        imported(text)


def test_a_document_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    with pytest.raises(BaselineError, match="No such file"):
        read_document(path)
    path.write_bytes(b"a\nb\xff")
    with pytest.raises(BaselineError, match=r"README.md:2: found byte 0xff, expected UTF-8 text"):
        read_document(path)
    path.write_bytes(b"\xef\xbb\xbfa")
    assert read_document(path) == "a"


def test_an_empty_file_takes_a_draft_and_a_link_to_a_file_does_not(tmp_path: Path) -> None:
    empty, link = tmp_path / "empty.yaml", tmp_path / "link.yaml"
    empty.touch()
    link.symlink_to(empty)
    with pytest.raises(BaselineError, match=r"link.yaml: a link to the file .*: give the name of the file itself"):
        write_drafts(imported(), link, force=True)
    assert empty.read_bytes() == b""
    (file,) = write_drafts(imported(), empty, force=False)
    assert file.fate == "created"


@pytest.mark.parametrize("stated", ["kind: recorded", "'kind' : \"recorded\"", "kind: recorded\nbroken: ["])
def test_a_document_never_replaces_what_was_recorded(tmp_path: Path, stated: str) -> None:
    """With the file would go every value that was accepted, and drift would begin anew."""
    (file,) = write_drafts(imported(), tmp_path, force=False)
    text = file.path.read_text(encoding="utf-8").replace("kind: published", stated)
    file.path.write_text(text, encoding="utf-8")
    with pytest.raises(BaselineError, match="found recorded baselines, which a document does not replace"):
        write_drafts(imported(), tmp_path, force=True)
    assert file.path.read_text(encoding="utf-8") == text
