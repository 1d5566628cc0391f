"""A written run is what it was asked to be: layout, step times as printed, ending, files beside it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from generator import write_run

from pytest_llmbench.core.models import Baseline

FAMILIES = ["grok1-24.11", "maxtext-24.11", "nemotron4-25.01", "llama3.1-25.04", "grok1-25.05"]
PRINTED = {
    "nemo1": re.compile(r"global_step=([\d.]+),[^\r\n]*?train_step_timing in s=([\d.e+]+)]"),
    "nemo2": re.compile(r"global_step: (\d+) .*?train_step_timing in s: (\S+)"),
    "maxtext": re.compile(r"completed step: (\d+), seconds: ([\d.]+),"),
}


def printed(path: Path, dialect: str) -> dict[int, float]:
    """The last printed seconds of each step, by a pattern of this test's own."""
    text = path.read_bytes().decode()
    return {int(float(step)): float(seconds) for step, seconds in PRINTED[dialect].findall(text)}


def test_step_times_that_were_given(families: dict[str, Baseline], tmp_path: Path) -> None:
    """Given step times are printed as they are, and their number is the number of steps."""
    seconds = (20.0, 12.5, 12.25, 12.25)
    log = write_run(tmp_path, families["llama3.1-25.04"], seconds=seconds)
    assert printed(log, "nemo2") == dict(enumerate((20.0, 12.5, 12.25, 12.25)))
    assert "iteration 3/3 |" in log.read_text(encoding="utf-8")


NAMED = {"job_id": "1407993", "started": datetime(2025, 6, 2, 3, tzinfo=UTC)}
PLACES: list[tuple[str, dict[str, Any], str]] = [
    ("grok1-24.11", {}, "results/24.11/bf16/314b/8/log-nemo_grok1_314b_8_1407993.out"),
    (
        "nemotron4-25.01",
        {"traced": True},
        "results/25.01-nccl-trace/fp8/340b/128/log-nemo_nemotron4_340b_128_1407993.out",
    ),
    (
        "llama3.1-25.04",
        {"profiled": True},
        "experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_1748833200/"
        "pretrain_llama3.1_8b_bf16_8_nsys/log-benchmark-benchmark.pretrain_llama3.1_8b_bf16_8_nsys_1407993_0.out",
    ),
    (
        "grok1-25.05",
        {"layout": "launcher", "release": "26.06"},
        "workloads/pretrain_grok1/experiments/pretrain_grok1_314b_bf16_gpus256/1748833200/log-grok1_1407993_0.out",
    ),
    ("grok1-25.05", {"layout": "sbatch"}, "workloads/pretrain_grok1/slurm-1407993.out"),
    (
        "llama3.1-25.04",
        {"layout": "local"},
        "experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_1748833200/pretrain_llama3.1_8b_bf16_8/"
        "nemo_run/pretrain_llama3.1_8b_bf16_8-b7k2xw4q/pretrain_llama3.1_8b_bf16_8/0/combined.log",
    ),
]


@pytest.mark.parametrize(("family", "options", "path"), PLACES)
def test_place(families: dict[str, Baseline], tmp_path: Path, family: str, options: dict[str, Any], path: str) -> None:
    """Each release's recipes put their logs where the documents and the launchers say."""
    assert write_run(tmp_path, families[family], **NAMED | options) == tmp_path / path
    assert (tmp_path / path).is_file()


def test_a_run_is_never_overwritten(families: dict[str, Baseline], tmp_path: Path) -> None:
    """A second run needs another job id or start."""
    write_run(tmp_path, families["grok1-24.11"])
    with pytest.raises(FileExistsError):
        write_run(tmp_path, families["grok1-24.11"])


@pytest.mark.parametrize("family", FAMILIES)
def test_files_bear_the_time_of_the_run(families: dict[str, Baseline], tmp_path: Path, family: str) -> None:
    """A run that ended long ago must not look as if it was written minutes ago."""
    started = datetime(2025, 5, 6, 7, 8, tzinfo=UTC)
    log = write_run(tmp_path, families[family], started=started)
    modified = datetime.fromtimestamp(log.stat().st_mtime, UTC)
    assert 0 < (modified - started).total_seconds() < 3600
    assert "2025-05-06 07:08:41" in log.read_text(encoding="utf-8")
