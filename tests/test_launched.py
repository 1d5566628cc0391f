"""What is known of launched runs while they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from launch.specs import START, job, running

from pytest_llmbench.catalogue import load
from pytest_llmbench.discover import find
from pytest_llmbench.launched import LaunchedRuns
from pytest_llmbench.models import Discovery
from pytest_llmbench.settings import Settings

LINE = (
    "Training epoch 0, iteration {0}/49 | lr: 1e-05 | global_batch_size: 128 | global_step: {0} |"
    " reduced_train_loss: 11.9 | train_step_timing in s: 2.5 | consumed_samples: 128\n"
)


def test_a_running_jobs_log_is_looked_for_until_it_has_steps_and_again_after_a_requeue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[Sequence[Path]] = []

    def find_runs(paths: Sequence[Path]) -> Discovery:
        searched.append(paths)
        return found(paths)

    found = find.find_runs
    monkeypatch.setattr(find, "find_runs", find_runs)
    settings = Settings()
    runs = LaunchedRuns(settings, load(settings), "session", 0.05, lambda: START)
    one = job(tmp_path, log_folder=tmp_path, status=running())
    log = tmp_path / f"log-nemo_fake_8b_8_{one.job_id}.out"
    assert runs.last_step(one) is None
    log.write_text("no step yet\n")
    assert runs.last_step(one) is None
    assert len(searched) == 2
    for step in range(3):
        log.write_text("".join(LINE.format(number) for number in range(step + 1)))
        assert runs.last_step(one) == (step + 1, 50, 2.5)
    assert len(searched) == 3
    assert runs.last_step(replace(one, status=running(restarts=1))) == (3, 50, 2.5)
    assert len(searched) == 4
