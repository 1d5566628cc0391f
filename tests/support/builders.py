"""Small complete baselines, logs, runs and measurements."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import (
    Architecture,
    Baseline,
    BaselineKind,
    Configuration,
    Key,
    Parallelism,
    Source,
    Tolerance,
    Window,
)
from pytest_llmbench.core.judgement_records import Evidence, Noise
from pytest_llmbench.core.log_records import ArraySteps, ParsedLog, Segment, Steps
from pytest_llmbench.core.robust import compute_trimmed_mean
from pytest_llmbench.core.run_records import (
    Attempt,
    AttemptFiles,
    Identity,
    Measurement,
    Run,
    RunFiles,
)

NOW = datetime(2025, 11, 20, 6, 0, tzinfo=UTC)

KEY = Key("grok1", "314b", "25.05", "gb200", "bf16", 128)

BASELINE = Baseline(
    configuration=Configuration(
        key=KEY,
        architecture=Architecture(
            formula="grok:3",
            sequence_length=8192,
            layers=64,
            hidden_size=6144,
            vocabulary_size=128256,
            ffn_size=32768,
            attention_heads=48,
            query_groups=8,
            top_k=2,
        ),
        parallelism=Parallelism(tp=4, pp=1, cp=1, ep=8, etp=4, dp=32, vp=1),
        global_batch_size=256,
        micro_batch_size=1,
        gradient_accumulation=8,
    ),
    kind=BaselineKind.PUBLISHED,
    step_seconds=7.325,
    cells=(("step_time", "7.325"),),
    window=Window(11, 44),
    timed="mean",
    steps=50,
    dialect="nemo2",
    peak_tflops=2450.0,
    source=Source("Grok 1", "Grok1 314b BF16", "25.05.yaml", 42),
)


def steps(
    seconds: Sequence[float] | float = 7.325, first: int = 0, **columns: Any
) -> Steps:
    """Build columns of consecutive steps (by default 50 equal steps).

    Step k is on line 100 + k of the log.
    """
    values = (
        np.full(50, seconds, dtype=float)
        if isinstance(seconds, float | int)
        else np.array(seconds, dtype=float)
    )
    count = len(values)
    index = np.arange(first, first + count)
    absent = np.full(count, np.nan)
    values_by_column: dict[str, Any] = {
        "index": index,
        "seconds": values,
        "resolution_seconds": np.full(count, 0.001),
        "line": index + 100,
        "mean_of": np.ones(count, dtype=np.int64),
        "asynchronous": np.zeros(count, dtype=bool),
        "loss": 12.0 - 0.01 * np.arange(count),
        "has_loss": np.ones(count, dtype=bool),
        "grad_norm": absent,
        "has_grad_norm": np.zeros(count, dtype=bool),
        "tflops_per_gpu": absent,
        "tokens_per_second_per_gpu": absent,
        "global_batch_size": np.full(count, 256.0),
        "peak_memory_bytes": absent,
        "learning_rate": absent,
        "consumed_samples": absent,
        "target_tokens": absent,
        "skipped_steps": absent,
        "step_tokens": absent,
        "samples_per_second": absent,
        "stamp": absent,
        "since": absent,
        "paused": np.zeros(count, dtype=np.int64),
        "throughput": absent,
    }
    return ArraySteps(**{**values_by_column, **columns})


def without(columns: Steps, *numbers: int) -> Steps:
    """Drop the steps with these numbers from the columns."""
    keep = ~np.isin(columns.index, numbers)
    return ArraySteps(
        **{name: getattr(columns, name)[keep] for name in Steps.__dataclass_fields__}
    )


def segment(
    columns: Steps | None = None, *, finished: bool = True, total: int | None = 50
) -> Segment:
    """Build a log segment (by default complete, with 50 steps)."""
    columns = steps() if columns is None else columns
    return Segment(
        columns, first_line=1, last_line=200, total_steps=total, finished=finished
    )


def log(*segments: Segment, **fields: Any) -> ParsedLog:
    """Build a NeMo 2 log with these segments."""
    return ParsedLog(dialect="nemo2", segments=segments, fingerprint="00ff", **fields)


@cache
def _make_whole_log() -> ParsedLog:
    return log(segment())


def run(
    *logs: ParsedLog,
    started: datetime | None = NOW - timedelta(hours=3),
    key: Key | None = KEY,
    **run_facts: Any,
) -> Run:
    """Build a run with one attempt per log, or with one complete attempt."""
    logs = logs or (_make_whole_log(),)
    files = tuple(
        AttemptFiles(number, "/runs", f"log-x_1_{number}.out")
        for number in range(len(logs))
    )
    fields: dict[str, Any] = {
        "id": "x_1",
        "folder_text": "/runs",
        "attempts": files,
        "hints": (),
        "job_id": "1",
    }
    fields |= {"launcher": "sbatch", **run_facts}
    attempts = tuple(
        Attempt(files_of_attempt, content)
        for files_of_attempt, content in zip(files, logs, strict=True)
    )
    return Run(
        RunFiles(**fields), attempts, Identity(key, "by name"), started, "folder name"
    )


ASSUMED = Noise(0.01, 4.0, "assumed, nothing was measured", measured=False)


def measurement(seconds: float | None = 7.4, **fields: Any) -> Measurement:
    """Build a valid measurement of one run.

    Its window has 34 equal steps, numbered from 11; step k is on line 100 + k.
    """
    defaults: dict[str, Any] = {
        "run": fields.get("run") or run(),
        "baseline": BASELINE,
        "files": AttemptFiles(0, "/runs", "log-x_1_0.out"),
        "attempt": 0,
        "segment": 1,
        "statistic_seconds": seconds,
        "last_step_seconds": seconds,
        "window_seconds": () if seconds is None else (seconds,) * 34,
        "window_steps": tuple(range(11, 45)),
        "window_lines": tuple(range(111, 145)),
        "metrics": (),
    }
    return Measurement(**{**defaults, **fields})


def noisy(
    seconds: float,
    cv: float = 0.01,
    *,
    seed: int = 0,
    statistic: str = "mean",
    **fields: Any,
) -> Measurement:
    """Build a valid measurement whose window statistic is exactly `seconds`.

    The steps have independent noise with the coefficient of variation `cv`.
    """
    values = 1 + cv * np.random.default_rng(seed).standard_normal(34)
    middle = (
        compute_trimmed_mean(values)
        if statistic == "trimmed_mean"
        else float(np.mean(values))
    )
    return measurement(
        seconds, window_seconds=tuple((values / middle * seconds).tolist()), **fields
    )


def nights(*seconds: float, first: int = 1, **fields: Any) -> tuple[Measurement, ...]:
    """Build measurements of one run per day, newest first.

    The newest run started `first` days before NOW.
    """
    return tuple(
        measurement(value, run=run(started=NOW - timedelta(days=first + day)), **fields)
        for day, value in enumerate(seconds)
    )


HISTORY = nights(
    *(
        7.325 * (1 + 0.003 * wobble)
        for wobble in (0, 1, -1, 2, 0, -2, 1, 0, -1, 1, 0, 2)
    )
)
"""Twelve daily runs around the baseline, with a standard deviation of 0.3 to 0.4 %."""


def evidence(
    *measurements: Measurement, tolerance: float = 0.05, **fields: Any
) -> Evidence:
    """Build the evidence for one baseline from measurements, newest first."""
    baseline = fields.pop("baseline", BASELINE)
    return Evidence(
        baseline,
        measurements,
        Tolerance(tolerance),
        NOW,
        **{"prior": ASSUMED, **fields},
    )


def at(baseline: Baseline, **changes: Any) -> Baseline:
    """Replace fields of a baseline."""
    return replace(baseline, **changes)


def means_of(
    count: int, seconds: Sequence[float], first: int = 1, **columns: Any
) -> Steps:
    """Build columns of a log that prints every `count`-th step.

    Each printed time is the mean over the `count` steps up to its step.
    """
    index = first - 1 + count * np.arange(1, len(seconds) + 1)
    return steps(
        seconds,
        **{
            "index": index,
            "line": index + 100,
            "mean_of": np.full(len(seconds), count),
            **columns,
        },
    )
