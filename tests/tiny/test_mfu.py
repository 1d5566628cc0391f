"""MFU of tiny_llama: on GPUs with a documented peak, and unknown on others."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.core.metric_definitions import compute_model_flops_utilization


def test_h100_mfu_uses_a_peak_of_989_tflops(recipe: Path) -> None:
    by_id = {
        baseline.key.id: baseline
        for baseline in read_recipe(recipe / "tiny_llama.yaml").baselines
    }
    gpu, cpu = (
        by_id["tiny_llama_1b-1.0-h100-bf16-1"],
        by_id["tiny_llama_15m-1.0-cpu-fp32-1"],
    )
    size = gpu.configuration.architecture
    heads = (size.query_groups or 0) / (size.attention_heads or 1)
    attention = (
        12
        * size.layers
        * size.hidden_size**2
        * (1 + heads + size.sequence_length / size.hidden_size)
    )
    mlp = 18 * size.layers * (size.ffn_size or 0) * size.hidden_size
    flops = size.sequence_length * (
        attention + mlp + 6 * size.vocabulary_size * size.hidden_size
    )
    step = gpu.configuration.global_batch_size * flops
    mfu = compute_model_flops_utilization(gpu.configuration, 1.2, gpu.peak_tflops)
    assert mfu == pytest.approx(step / 1.2 / 989e12)
    assert 0.3 < mfu < 0.6
    assert math.isnan(cpu.peak_tflops)


PEAKS = {
    "a100": 312,
    "h100": 989,
    "h200": 989,
    "h100pcie": 756,
    "h100nvl": 835,
    "h200nvl": 835,
    "b200": 2250,
    "gb200": 2450,
    "l4": 121,
    "l40s": 362,
}


@pytest.mark.parametrize("file", ["tiny_llama.yaml", "tiny_llama_compiled.yaml"])
def test_mfu_is_unknown_without_a_documented_peak(recipe: Path, file: str) -> None:
    for baseline in read_recipe(recipe / file).baselines:
        mfu = compute_model_flops_utilization(
            baseline.configuration, 1.2, baseline.peak_tflops
        )
        if baseline.key.gpu in PEAKS:
            assert baseline.peak_tflops == PEAKS[baseline.key.gpu]
            assert mfu > 0
        else:
            assert math.isnan(mfu)


def test_two_readme_lines_add_a_new_gpu_to_the_baseline_file(
    recipe: Path, tmp_path: Path
) -> None:
    """The README lists the two lines to add."""
    peak, row = re.findall(
        r"^  (?:- \{.*)?rtxa6000.*\n", (recipe / "README.md").read_text(), re.MULTILINE
    )
    text = (recipe / "tiny_llama.yaml").read_text()
    text = text.replace("peak_tflops:\n", f"peak_tflops:\n{peak}").replace(
        "configurations:\n", f"configurations:\n{row}"
    )
    (tmp_path / "tiny_llama.yaml").write_text(text)
    baselines = read_recipe(tmp_path / "tiny_llama.yaml").baselines
    (added,) = (
        baseline
        for baseline in baselines
        if baseline.key.id == "tiny_llama_250m-1.0-rtxa6000-bf16-1"
    )
    assert math.isnan(added.peak_tflops)
