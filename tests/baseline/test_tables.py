"""The shipped tables of Megatron-Bridge: what the script writes, without a
contradiction, with their roundings."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from support.shared_data import shared

from pytest_llmbench.baseline.lint import lint_file
from pytest_llmbench.baseline.read import (
    find_baseline_files,
    find_shipped_tables,
    read_file,
    read_recipes,
)
from pytest_llmbench.core.baseline_records import Window

SCRIPT = Path(__file__).parents[2] / "scripts" / "megatron_bridge_tables"


@pytest.mark.parametrize(
    "path", find_baseline_files([find_shipped_tables()]), ids=lambda path: path.stem
)
def test_a_table_contradicts_nothing_and_says_what_is_assumed(path: Path) -> None:
    file = read_file(path)
    assert lint_file(file).findings == ()
    for baseline in file.recipe.baselines:
        assert baseline.window == Window(11, 44)
        assert baseline.timed_window == Window(35, 44)
        assert "at 4ab94dfad" in baseline.source.document
        assert baseline.key.dtype in ("bf16", "fp8_cs", "fp8_mx", "nvfp4")


@pytest.mark.slow
def test_the_script_writes_the_files_that_are_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared("documents/megatron_bridge/rows.tsv").parent
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(folder), str(tmp_path)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {
        path.name: path.read_bytes()
        for path in find_baseline_files([find_shipped_tables()])
    }
    assert len(capsys.readouterr().out.splitlines()) == 8


@pytest.mark.slow
def test_the_exact_column_decides_where_the_other_is_coarse() -> None:
    """LLAMA3_70B on H100 is 13 samples/s of 64 GPUs in 26.04.01: 19.69 s by tokens/s,
    20.14 s by TFLOP/s."""
    rows = {
        baseline.key.id: baseline
        for recipe in read_recipes([find_shipped_tables()])
        for baseline in recipe.baselines
    }
    exact = rows["megatron_bridge_llama3_70b-26.04.01-h100-fp8_cs-64"]
    assert dict(exact.cells) == {
        "tokens_per_second_per_gpu": "1664",
        "tflops_per_gpu": "731",
    }
    assert exact.step_seconds == pytest.approx(20.137, rel=1e-4)
    assert exact.resolution_seconds / exact.step_seconds == pytest.approx(1 / 731)
    coarse = rows["megatron_bridge_nemotron_3_5_lightning-26.08-gb200-fp8_mx-8"]
    assert coarse.configuration.logged_tflop is None
    assert coarse.resolution_seconds / coarse.step_seconds == pytest.approx(
        1 / 28
    )  # 28 samples/s
