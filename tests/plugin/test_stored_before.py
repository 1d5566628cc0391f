"""Files of earlier versions: history, launch journal, recorded baseline."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (its compiled parts cannot be imported twice, as pytester would)
from support.fake_recipe import WELL, write_recipe
from support.sessions import Judge

from pytest_llmbench.cli import main as cli

STORED = Path(__file__).parents[1] / "support" / "stored"
"""Two sessions of the program of 2026-11-22: one launched `good` and `slow`, one
submitted `late` and went away."""

SESSION, JOB = "20261122-1736-f821", "5-fake_late-24.11-h100-bf16-8"
SLOW, LATE = "fake_slow-24.11-h100-bf16-8", "fake_late-24.11-h100-bf16-8"

METADATA = """\
job_info: {job_id: '7', launch_time: '2026-11-22T17:36:00+00:00'}
workload_info: {gsw_version: '24.11', workload_type: pretrain}
model_info: {model_name: fake, model_size: slow, dtype: bf16, scale: 8, gpu_type: h100}
"""


@pytest.fixture
def old(pytester: pytest.Pytester) -> Path:
    """The folder as it was left, with the log of the job that had gone on alone."""
    folder = pytester.path
    write_recipe(folder, dict.fromkeys(("good", "slow", "late"), WELL), kind="local")
    for name, path in (("history", "history.db"), ("launch", ".llmbench/launch.db")):
        file = folder / path
        file.parent.mkdir(exist_ok=True)
        with sqlite3.connect(file) as database:
            database.executescript(
                (STORED / f"{name}.sql").read_text().replace("FOLDER", str(folder))
            )
        database.close()
    job = folder / ".llmbench" / "jobs" / SESSION / JOB
    job.mkdir(parents=True)
    (folder / ".llmbench" / "sessions").mkdir()
    size = {
        "DTYPE": "bf16",
        "MODEL_SIZE": "late",
        "JOB_TOTAL_GPUS": "8",
        "STAGE_PATH": str(folder / "stage"),
    }
    with (job / "log-pretrain_fake_late_bf16_8_5_0.out").open("wb") as log:
        subprocess.run(
            ["./launch.sh"],
            cwd=folder / "recipe",
            env={**os.environ, **size},
            stdout=log,
            check=True,
        )
    (job / "job.exit").write_text("0\n")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("old")
def test_launch_of_an_earlier_version_is_resumed(
    judged: Judge,
) -> None:
    session = judged(
        "--llmb-collect",
        "-k",
        "fake",
        "--llmb-cluster=cluster.yaml",
        "--llmb-history=history.db",
    )
    assert session.verdicts[LATE] == "PASS"
    assert session.described[LATE]["jobs"][0]["job_id"] == "5"


@pytest.mark.usefixtures("old")
def test_history_of_an_earlier_version_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["history", "show", SLOW, "--history", "history.db"]) == 0
    output = capsys.readouterr().out
    assert "REGRESSION" in output
    assert "1.200 s" in output


@pytest.mark.slow
def test_baseline_of_an_earlier_version_is_used(old: Path, judged: Judge) -> None:
    folder = old / "experiments" / "pretrain_fake_slow_bf16_8"
    folder.mkdir(parents=True)
    (folder / "llmb-config_7.yaml").write_text(METADATA)
    log = folder / "log-pretrain_fake_slow_bf16_8_7_0.out"
    steps = "\n".join(
        f"Training epoch 0, iteration {step}/49 | lr: 1e-05 | global_batch_size: 128 | global_step: {step} | "
        f"reduced_train_loss: {12 - step / 10} | train_step_timing in s: 1.2 | consumed_samples: {(step + 1) * 128}"
        for step in range(50)
    )
    log.write_text(f"{steps}\n`Trainer.fit` stopped: `max_steps=50` reached.\n")
    session = judged(
        "--llmb-logs=experiments", f"--llmb-baselines={STORED / 'own'}", "-k", SLOW
    )
    assert session.verdicts[SLOW] == "PASS"
    assert session.described[SLOW]["baseline"]["kind"] == "recorded"
