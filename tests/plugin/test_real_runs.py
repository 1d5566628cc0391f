"""Real logs, judged against baselines as a user would write them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.custom_baseline import LLAMA_8B, custom_baseline
from support.sessions import Judge
from support.shared_data import shared

BRAHMAI_4B = "hidden_size: 2560, attention_heads: 8, query_groups: 4, ffn_size: 10240, vocabulary_size: 262144"


def written(folder: Path, **values: object) -> str:
    """Write a baseline file and return the option that reads it."""
    folder.joinpath("own.yaml").write_text(custom_baseline(**values))
    return f"--llmb-baselines={folder}"


def placed(log: Path, folder: Path, name: str) -> str:
    """Copy a log into a recipe's folder and return the option that judges it."""
    folder.mkdir(parents=True)
    shutil.copyfile(log, folder / name)
    return f"--llmb-logs={folder}"


@pytest.mark.slow
def test_run_with_nan_loss_is_invalid_despite_good_time(
    judged: Judge, tmp_path: Path
) -> None:
    log = shared("logs/maxtext/nan_loss.out")
    baselines = written(
        tmp_path, recipe="brahmai", release="own", dialect="maxtext", gpu="tpuv6e", peak="918", size="4b",
        model=BRAHMAI_4B, gpus=8, shape="sequence_length: 4096, layers: 36, gbs: 8, mbs: 1", seconds="0.427",
        more="logged_tflops_factor: 0.842",
    )  # fmt: skip
    logs = placed(
        log, tmp_path / "results/own/bf16/4b/8", "log-maxtext_brahmai_4b_8_1.out"
    )
    session = judged(logs, baselines, "-k", "brahmai")
    (outcome,) = session.described.values()
    assert (outcome["verdict"], outcome["reason"]) == ("INVALID", "diverged")
    # grep -n 'loss: nan' nan_loss.out | head -1 gives step 9, and grep -c 41 steps
    assert "loss is nan from step 9 on (41 steps)" in outcome["text"]
    line = log.read_bytes().split(b"\n")[outcome["line"] - 1]
    assert b"completed step: 9," in line
    # steps 1 and 2 were only dispatched: 0.277 s and 0.215 s, before 0.434 s
    assert outcome["metrics"]["step_time_seconds"]["value"] == pytest.approx(
        0.427, abs=0.001
    )


@pytest.mark.slow
def test_launched_run_folder_is_judged_by_its_metadata_files(
    judged: Judge, tmp_path: Path
) -> None:
    tree = shared("logs/llmb_install")
    baselines = written(
        tmp_path, recipe="faketrain", release="26.06", dialect="nemo2", gpu="h100", peak="989", size="8b",
        model=LLAMA_8B, gpus=8, shape="sequence_length: 8192, layers: 32, gbs: 128", seconds="10.03",
        more="logged_tflops_factor: 0.663",
    )  # fmt: skip
    session = judged(
        f"--llmb-logs={tree}", baselines, "--llmb-unmatched=list", "-k", "faketrain"
    )
    (outcome,) = session.described.values()
    assert outcome["verdict"] == "PASS", outcome["text"]
    assert outcome["run"]["job_id"] == "15"
    assert outcome["run"]["started_from"] == "the launch time in the metadata"
