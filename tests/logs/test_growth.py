"""The work of reading a log is linear in its length, whatever its attempts and ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from support.growth import LINEAR, measure_growth

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.logs import segments
from pytest_llmbench.logs.facts import MOST_VALUES
from pytest_llmbench.logs.log_reader import parse_blocks

SMALL = 60


def step(number: int, rank: str = "", loss: str = "11.0") -> str:
    return (
        f"{rank}Training epoch 0, iteration {number}/99 | global_step: {number} | reduced_train_loss: {loss} | "
        f"train_step_timing in s: 7.31\n"
    )


def attempt(n: int, between: str = "") -> str:
    """Return an attempt of two steps with other lines before it."""
    return f"restart_count={n}\n{between}{step(1)}{step(9)}"


def mlperf(key: str, value: str = "1", step: str = "") -> str:
    metadata = f'{{"file": "a.py", "lineno": 1{step}}}'
    return f':::MLLOG {{"time_ms": 1759985895027, "key": "{key}", "value": {value}, "metadata": {metadata}}}\n'


BODIES: dict[str, Callable[[int], str]] = {
    "attempts": attempt,
    "attempts with ends": lambda n: (
        attempt(n) + "`Trainer.fit` stopped: `max_steps=10` reached.\n"
    ),
    "attempts with settings": lambda n: attempt(
        n, f"|   tensor_model_parallel_size: {n}\n"
    ),
    "attempts that are profiled": lambda n: attempt(n, "Start nsys profiling\n"),
    "attempts with checkpoints": lambda n: attempt(
        n,
        "Global Checkpoint Load : Rank : 0 : Start time : 1.0s : Time spent in load_checkpoint: 9.712s\n",
    ),
    "attempts with skipped updates": lambda n: attempt(
        n, "OVERFLOW! Rank 0 Skipping step.\n"
    ),
    "attempts with validations": lambda n: attempt(
        n, "{'eval_loss': nan, 'eval_runtime': 1.0, 'eval_samples_per_second': 9.0}\n"
    ),
    "attempts with failures": lambda n: attempt(
        n, f"Traceback (most recent call last):\nRuntimeError: fault {n}\n"
    ),
    "ranks": lambda n: step(n, f"{n}: "),
    "ranks beside attempts": lambda n: (
        step(n % 7, "0: ") + step(9 + n % 2, f"{n}: ") + step(n % 7 + 1, "0: ")
    ),
    "ranks that diverge beside attempts": lambda n: (
        step(n % 2, "0: ") + step(n % 2, "1: ", "nan")
    ),
    "runs of MLPerf": lambda n: mlperf("run_start") * 2,
    "totals of MaxText": lambda n: (
        f"Config param steps: {n}\ncompleted step: 0, seconds: 7.3, loss: 1.0\n"
    ),
    "runs of Trainer": lambda n: (
        f"{{'loss': 2.0, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': {n}.5}}\n"
        "{'train_runtime': 90.0, 'train_samples_per_second': 9.0, 'train_steps_per_second': 1.0, 'train_loss': 2.0}\n"
    ),
    "events with validations": lambda n: (
        f"llmb scalar: {2 * n}/0 {1000.0 + n} 7.3 time_metrics/end_to_end(s)\n"
        f"llmb scalar: {2 * n}/0 {1000.5 + n} 2.0 validation_metrics/loss\n"
    ),
}


def parse(text: str) -> ParsedLog:
    data = text.encode()
    return parse_blocks(
        [
            data[start:end]
            for start, end in pairwise([*range(0, len(data), 1 << 16), len(data)])
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES)
def test_work_to_read_a_log_grows_linearly_with_its_length(body: str) -> None:
    def make(size: int) -> Callable[[], object]:
        text = step(1) + "".join(map(BODIES[body], range(size))) + step(2)
        return lambda: parse(text)

    assert measure_growth(make, SMALL) < LINEAR


def test_number_of_values_stored_for_a_repeated_setting_is_limited() -> None:
    values = range(1, 5 * MOST_VALUES)
    lines = "".join(f"|   tensor_model_parallel_size: {value}\n" for value in values)
    (segment,) = parse(lines + step(1) + step(2)).segments
    kept = [int(statement.value.split(": ")[1]) for statement in segment.stated]
    assert kept == list(values)[-MOST_VALUES:]


def test_log_with_too_many_attempts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MOST_ATTEMPTS", 3)
    log = "".join(map(attempt, range(4))).encode()
    assert len(parse_blocks([log[: log.rindex(b"restart_count")]]).segments) == 3
    with pytest.raises(LogError, match="found 4 attempts, expected at most 3"):
        parse_blocks([log])
