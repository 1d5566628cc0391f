"""Reading, recording and judging the log of a real run on two processes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.core import metric_definitions
from pytest_llmbench.logs.log_reader import read_log

IDENTIFIER = "tiny_llama_1m-1.0-cpu-fp32-2"


@pytest.mark.slow
def test_log_is_complete_and_readable(log: Path) -> None:
    parsed = read_log(log)
    assert (parsed.dialect, parsed.dropped, parsed.ending) == ("nemo2", (), None)
    (segment,) = parsed.segments
    assert (len(segment.steps), segment.total_steps, segment.finished) == (50, 50, True)
    assert segment.steps.index.tolist() == list(range(50))
    assert parsed.started is not None


@pytest.mark.slow
def test_loss_decreases(log: Path) -> None:
    loss = read_log(log).segments[0].steps.loss
    assert np.isfinite(loss).all()
    assert loss[0] == pytest.approx(np.log(1024), abs=0.2)
    assert loss[-10:].mean() < loss[0] - 1


@pytest.mark.slow
def test_logged_tflops_match_the_baseline(log: Path, recipe: Path) -> None:
    (baseline,) = (
        candidate
        for candidate in read_recipe(recipe / "tiny_llama.yaml").baselines
        if candidate.key.id == IDENTIFIER
    )
    steps = read_log(log).segments[0].steps
    assert (steps.global_batch_size == baseline.configuration.global_batch_size).all()
    assert (steps.peak_memory_bytes > 0).all()
    work = steps.tflops_per_gpu * steps.seconds
    assert work == pytest.approx(
        metric_definitions.compute_tflops_per_gpu(baseline.configuration, 1.0), rel=2e-3
    )


@pytest.mark.slow
def test_run_is_recorded_and_judged(
    log: Path, recipe: Path, pytester: pytest.Pytester
) -> None:
    """A run fails without a recorded baseline, and passes with one.

    It fails if it is twice as slow, or if it has another number of processes.
    """

    def run(logs: Path, *arguments: str) -> tuple[int, str]:
        done = pytester.runpytest(
            "-p",
            "no:cacheprovider",
            "-q",
            f"--llmb-logs={logs}",
            f"--llmb-baselines={recipes}",
            *arguments,
        )
        return int(done.ret), done.stdout.str()

    recipes = pytester.mkdir("recipes")
    shutil.copy(recipe / "tiny_llama.yaml", recipes)
    usual, slow = (
        write_retimed_log(log, pytester.path / str(seconds), seconds)
        for seconds in (0.2, 0.4)
    )
    code, output = run(usual)
    assert code == 1, output
    code, output = run(usual, f"--llmb-record={recipes / 'recorded'}")
    assert code == 0, output
    code, output = run(usual, "-rA")
    assert code == 0, output
    assert IDENTIFIER in output
    code, output = run(slow)
    assert code == 1
    assert "REGRESSION" in output
    single = write_retimed_log(log, pytester.path / "single", 0.2)
    path = single.joinpath(*log.parts[-6:])
    path.write_text(path.read_text().replace("MEMBER: 1/2", "MEMBER: 1/1"))
    code, output = run(single)
    assert code == 1
    assert "the log states 1 GPUs, the baseline has 2" in output


def write_retimed_log(log: Path, folder: Path, seconds: float) -> Path:
    """Rewrite a log with step times of about `seconds` and matching TFLOP/s."""
    path = folder.joinpath(*log.parts[-6:])
    path.parent.mkdir(parents=True)
    lines = log.read_text().splitlines()
    path.write_text(
        "".join(
            f"{replace_time(line, seconds + number % 5 / 1000)}\n"
            for number, line in enumerate(lines)
        )
    )
    return folder


def replace_time(line: str, seconds: float) -> str:
    """Replace the step time and TFLOP/s of a step's line; keep other lines."""
    match = re.search(
        r"(train_step_timing in s: )(\S+)( \| TFLOPS_per_GPU: )(\S+)", line
    )
    if not match:
        return line
    tflops = float(match[4]) * float(match[2]) / seconds
    return line.replace(match[0], f"{match[1]}{seconds:.4}{match[3]}{tflops:.4}")
