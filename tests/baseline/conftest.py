"""A small valid baseline file that tests modify."""

from __future__ import annotations

from pathlib import Path

import pytest

VALID = """\
schema: 1
kind: published
recipe: mine
release: "25.05"
title: My model
framework: NeMo-Run
dialect: nemo2
names: [mine]
source: {document: my notes}
timed: last_step
window: {statistic: mean, first: 11, last: 44}
steps: 50
peak_tflops:
  h100: {bf16: "989"}
models:
  8b: {formula: llama, hidden_size: 4096, attention_heads: 32, query_groups: 8, ffn_size: 14336,
       vocabulary_size: 128256}
configurations:
  - {size: 8b, gpu: h100, dtype: bf16, gpus: 8, sequence_length: 8192, layers: 32, gbs: 128,
     cells: {step_time: "12.27", tokens_per_second: "85459", mfu: "62.55%"}}
  - {size: 8b, gpu: h100, dtype: bf16, gpus: 16, sequence_length: 8192, layers: 32, gbs: 256,
     cells: {step_time: "12.30"}}
"""


@pytest.fixture
def valid() -> str:
    """Text of a valid file with two configurations."""
    return VALID


@pytest.fixture
def valid_file(tmp_path: Path) -> Path:
    """Path of the valid file, in a separate folder."""
    path = tmp_path / "own" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(VALID)
    return path
