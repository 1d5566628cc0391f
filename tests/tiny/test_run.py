"""A real run of 50 steps in two processes: its log is read, recorded and judged like
any other."""

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
def test_the_log_is_read(log: Path) -> None:
    found = read_log(log)
    assert (found.dialect, found.dropped, found.ending) == ("nemo2", (), None)
    (segment,) = found.segments
    assert (len(segment.steps), segment.total_steps, segment.finished) == (50, 50, True)
    assert segment.steps.index.tolist() == list(range(50))
    assert found.started is not None


@pytest.mark.slow
def test_it_learns(log: Path) -> None:
    loss = read_log(log).segments[0].steps.loss
    assert np.isfinite(loss).all()
    assert loss[0] == pytest.approx(np.log(1024), abs=0.2)
    assert loss[-10:].mean() < loss[0] - 1


@pytest.mark.slow
def test_what_it_logs_is_the_work_of_its_baseline(log: Path, recipe: Path) -> None:
    (baseline,) = (
        each
        for each in read_recipe(recipe / "tiny_llama.yaml").baselines
        if each.key.id == IDENTIFIER
    )
    steps = read_log(log).segments[0].steps
    assert (steps.global_batch_size == baseline.configuration.global_batch_size).all()
    assert (steps.peak_memory_bytes > 0).all()
    work = steps.tflops_per_gpu * steps.seconds
    assert work == pytest.approx(
        metric_definitions.compute_tflops_per_gpu(baseline.configuration, 1.0), rel=2e-3
    )


@pytest.mark.slow
def test_recorded_and_judged(
    log: Path, recipe: Path, pytester: pytest.Pytester
) -> None:
    """Without a recording nothing passes; with one the same run does, and a run twice
    as slow or of another number of processes does not."""

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
        retimed(log, pytester.path / str(seconds), seconds) for seconds in (0.2, 0.4)
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
    alone = retimed(log, pytester.path / "alone", 0.2)
    copy = alone.joinpath(*log.parts[-6:])
    copy.write_text(copy.read_text().replace("MEMBER: 1/2", "MEMBER: 1/1"))
    code, output = run(alone)
    assert code == 1
    assert "the log states 1 GPUs, the baseline has 2" in output


def retimed(log: Path, folder: Path, seconds: float) -> Path:
    """Write the log with step times around `seconds` and the same work, whatever else
    ran on this machine."""
    copy = folder.joinpath(*log.parts[-6:])
    copy.parent.mkdir(parents=True)
    lines = log.read_text().splitlines()
    copy.write_text(
        "".join(
            f"{with_time(line, seconds + number % 5 / 1000)}\n"
            for number, line in enumerate(lines)
        )
    )
    return folder


def with_time(line: str, seconds: float) -> str:
    """Return the line of a step as if it had taken so long; any other line as it is."""
    found = re.search(
        r"(train_step_timing in s: )(\S+)( \| TFLOPS_per_GPU: )(\S+)", line
    )
    if not found:
        return line
    tflops = float(found[4]) * float(found[2]) / seconds
    return line.replace(found[0], f"{found[1]}{seconds:.4}{found[3]}{tflops:.4}")
