"""Several baseline files define a dialect for a log: the run decides which applies."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_llmbench.core.run_records import Run
from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.collect_runs import ingest
from pytest_llmbench.session.settings import Settings

FILE = """\
schema: 1
kind: recipe
recipe: {recipe}
release: "{release}"
title: A framework of our own
framework: Acorn
names: [{recipe}]
dialect: regex
log: {{find: " ms/step", pattern: 'it (?P<step>\\d+) (?P<seconds>[\\d.]+) ms/step', unit: {unit}}}
source: {{document: our own notes}}
peak_tflops: {{h100: {{bf16: "989"}}}}
models:
  8b:
    {{formula: llama, hidden_size: 4096, vocabulary_size: 128256, attention_heads: 32, query_groups: 8, ffn_size: 9}}
configurations:
  - {{size: 8b, gpu: h100, dtype: bf16, gpus: 8, sequence_length: 8192, layers: 32, gbs: 128}}
"""
LOG = "".join(f"it {step} 2500 ms/step\n" for step in range(50))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ingest_log(folder: Path, *files: tuple[str, str, str], release: str = "") -> Run:
    """Ingest a log of the recipe oak in an unknown release, with these baseline files."""
    for recipe, release_, unit in files:
        (folder / f"{recipe}-{release_}.yaml").write_text(
            FILE.format(recipe=recipe, release=release_, unit=unit)
        )
    log = folder / "runs/bf16/8b/8/log-oak_8b_8_7.out"
    log.parent.mkdir(parents=True)
    log.write_text(LOG)
    settings = Settings(logs=(folder / "runs",), baselines=(folder,), release=release)
    (run,) = ingest(settings, load(settings), NOW).runs
    return run


def get_seconds(run: Run) -> float:
    return float(run.attempts[0].log.segments[0].steps.seconds[0])


@pytest.mark.slow
def test_recipe_decides_dialect_of_log(tmp_path: Path) -> None:
    run = ingest_log(
        tmp_path, ("elm", "1", "s"), ("oak", "1", "us"), ("pine", "1", "min")
    )
    assert run.identity.key is not None
    assert run.identity.key.recipe == "oak"
    assert run.attempts[0].log.dialect == "regex:oak-1"
    assert get_seconds(run) == pytest.approx(0.0025)


@pytest.mark.slow
def test_ambiguous_release_is_not_guessed(
    tmp_path: Path,
) -> None:
    run = ingest_log(tmp_path, ("oak", "1", "ms"), ("oak", "2", "us"))
    assert run.identity.key is None
    assert [key.release for key in run.identity.candidates] == ["1", "2"]


@pytest.mark.slow
def test_requested_release_decides_dialect(tmp_path: Path) -> None:
    run = ingest_log(tmp_path, ("oak", "1", "ms"), ("oak", "2", "us"), release="2")
    assert run.identity.key is not None
    assert (run.identity.key.release, run.attempts[0].log.dialect) == (
        "2",
        "regex:oak-2",
    )
    assert get_seconds(run) == pytest.approx(0.0025)
    assert run.attempts[0].log.readings == ()
