"""Daily runs before and after a container update that slowed down some configurations.

The step times are those of github.com/NVIDIA-NeMo/NeMo/issues/14911 for Nemotron4 340B
under nemo:25.07.01 and nemo:25.09. The issue states neither the number of GPUs nor a
spread: 128 GPUs, 0.2 % from day to day and 0.2 % from step to step are assumptions of
this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from generator import write_run
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Baseline

STEP_SECONDS = {
    ("gb200", "fp8"): (1.28, 1.68),
    ("gb200", "bf16"): (2.013, 2.059),
    ("b200", "fp8"): (1.47, 1.52),
    ("b200", "bf16"): (2.24, 2.24),
}
"""Seconds per step under the first and the second container, by GPU type and
precision."""

CONTAINERS = ("nemo:25.07.01", "nemo:25.09")
FIRST_DAY = datetime(2025, 9, 20, 2, tzinfo=UTC)
BEFORE, AFTER = 10, 5
"""Days under each container."""

SPREAD = 0.002
LIKE = "nemotron4_340b-25.01-h100-{dtype}-128"


class Run(NamedTuple):
    """A baseline to generate a run from, generator options, and the name of the
    container."""

    baseline: Baseline
    options: dict[str, Any]
    container: str


def plan_days(baselines: Mapping[str, Baseline]) -> Iterator[list[Run]]:
    """Yield the runs of each day."""
    for day in range(BEFORE + AFTER):
        updated = day >= BEFORE
        runs = []
        for index, ((gpu, dtype), seconds) in enumerate(STEP_SECONDS.items()):
            template = baselines[LIKE.format(dtype=dtype)]
            key = replace(template.key, release="25.08", gpu=gpu)
            job = str(910000 + 10 * day + index)
            factor = Random(job).gauss(1.0, SPREAD)  # noqa: S311 (a simulation)
            started = FIRST_DAY + timedelta(days=day, minutes=20 * index)
            options = {
                "job_id": job,
                "started": started,
                "factor": factor,
                "noise": 0.002,
            }
            configuration = replace(template.configuration, key=key)
            planned = replace(
                template,
                configuration=configuration,
                step_seconds=seconds[updated],
                dialect="nemo2",
            )
            runs.append(Run(planned, options, CONTAINERS[updated]))
        yield runs


def write_runs(folder: Path, runs: list[Run]) -> None:
    """Write the runs of a day, with the container named in the launcher's metadata."""
    for baseline, options, container in runs:
        log = write_run(folder / baseline.key.gpu, baseline, **options)
        (metadata,) = log.parent.glob("llmb-config_*.yaml")
        text = metadata.read_text(encoding="utf-8")
        metadata.write_text(text.replace("nemo:25.04.00", container), encoding="utf-8")


def date(day: int) -> str:
    """Return the date of a day, as in folder names and `llmbench compare`."""
    return f"{FIRST_DAY + timedelta(days=day):%Y-%m-%d}"
