"""Layout, step times and file times of a generated run."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from generator import write_run

from pytest_llmbench.core.baseline_records import Baseline

LLAMA = "llama3.1_70b-25.04-h100-bf16-64"
GROK = "grok1_314b-25.05-gb200-bf16-128"
IDENTITY = {"job_id": "1407993", "started": datetime(2025, 6, 2, 3, tzinfo=UTC)}


def test_generated_log_prints_the_requested_step_times(
    documented: dict[str, Baseline], tmp_path: Path
) -> None:
    log = write_run(tmp_path, documented[LLAMA], seconds=(20.0, 12.5, 12.25)).read_text(
        encoding="utf-8"
    )
    assert re.findall(r"train_step_timing in s: (\S+)", log) == ["20", "12.5", "12.25"]
    assert "iteration 2/2 |" in log


LLAMA_TASK = "pretrain_llama3.1_70b_bf16_64"
LLAMA_FOLDER = f"experiments/{LLAMA_TASK}/{LLAMA_TASK}_1748833200"


@pytest.mark.parametrize(
    ("configuration", "options", "path"),
    [
        (
            LLAMA,
            {"profiled": True},
            f"{LLAMA_FOLDER}/{LLAMA_TASK}_nsys/log-benchmark-benchmark.{LLAMA_TASK}_nsys_1407993_0.out",
        ),
        (
            LLAMA,
            {"layout": "local"},
            f"{LLAMA_FOLDER}/{LLAMA_TASK}/nemo_run/{LLAMA_TASK}-b7k2xw4q/{LLAMA_TASK}/0/combined.log",
        ),
        (
            GROK,
            {"layout": "launcher", "release": "26.06"},
            "workloads/pretrain_grok1/experiments/pretrain_grok1_314b_bf16_gpus128/1748833200/log-grok1_1407993_0.out",
        ),
        (GROK, {"layout": "sbatch"}, "workloads/pretrain_grok1/slurm-1407993.out"),
    ],
)
def test_layout_determines_the_log_path(
    documented: dict[str, Baseline],
    tmp_path: Path,
    configuration: str,
    options: dict[str, Any],
    path: str,
) -> None:
    """The committed examples cover the other layouts."""
    assert (
        write_run(tmp_path, documented[configuration], **IDENTITY | options)
        == tmp_path / path
    )
    assert (tmp_path / path).is_file()


def test_run_is_never_overwritten(
    documented: dict[str, Baseline], tmp_path: Path
) -> None:
    """A second run needs another job id or start."""
    write_run(tmp_path, documented[GROK])
    with pytest.raises(FileExistsError):
        write_run(tmp_path, documented[GROK])


def test_generated_log_file_has_the_modification_time_of_its_run(
    documented: dict[str, Baseline], tmp_path: Path
) -> None:
    """Recent files would count as a run in progress."""
    started = datetime(2025, 5, 6, 7, 8, tzinfo=UTC)
    log = write_run(tmp_path, documented[GROK], started=started)
    modified = datetime.fromtimestamp(log.stat().st_mtime, UTC)
    assert 0 < (modified - started).total_seconds() < 3600
    assert "2025-05-06 07:08:41" in log.read_text(encoding="utf-8")
