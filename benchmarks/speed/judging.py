"""Cost of judging compared with reading: one verdict, and a session of many runs.

python -m benchmarks.speed.judging [--runs 1000]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from generator import write_run
from generator.__main__ import shipped

from pytest_llmbench.judge.decide import judge
from pytest_llmbench.session import evaluate
from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.collect_runs import ingest
from pytest_llmbench.session.settings import Settings

Result = TypeVar("Result")

START = datetime(2025, 6, 1, 2, tzinfo=UTC)


def timed(action: Callable[[], Result]) -> tuple[float, Result]:
    """Return the CPU seconds of an action, and its result."""
    begin = time.process_time()
    result = action()
    return time.process_time() - begin, result


def write(folder: Path, count: int) -> None:
    """Write that many runs: all documented configurations, day after day."""
    baselines = list(shipped().values())
    for number in range(count):
        day, position = divmod(number, len(baselines))
        factor = 1 + 0.003 * ((number * 7919) % 13 - 6) / 6
        write_run(
            folder,
            baselines[position],
            started=START + timedelta(days=day, minutes=position),
            job_id=str(1_000_000 + number),
            factor=factor,
        )


def main() -> int:
    """Print a table. Exit code 1 if judging takes longer than reading, or a verdict
    more than 1 ms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    count = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), count)
        settings = Settings(logs=(Path(name),))
        catalog = load(settings)
        now = START + timedelta(days=count // len(catalog.baselines) + 1)
        reading, found = timed(lambda: ingest(settings, catalog, now))
        measuring, measured = timed(
            lambda: evaluate.measure_runs(found.runs, catalog, now)
        )
        first, _ = timed(
            lambda: evaluate.judge_measured(measured, settings, catalog, now)
        )
        judging, judged = timed(
            lambda: evaluate.judge_measured(measured, settings, catalog, now)
        )
        each = Settings(logs=settings.logs, runs="each")
        every, all_results = timed(
            lambda: evaluate.judge_measured(measured, each, catalog, now)
        )
        of_configurations = [
            one
            for _, per_baseline in judged.by_id.values()
            for one in per_baseline
            if one.measurements
        ]
        engine, _ = timed(lambda: [judge(one) for one in of_configurations])
    per_verdict = engine / len(of_configurations) * 1000
    print(
        f"| {count} runs, {len(of_configurations)} configurations | CPU s | of reading |"
    )
    print("|---|---|---|")
    for label, seconds in (
        ("finding, reading and identifying", reading),
        ("measuring", measuring),
        ("judging the newest of each configuration, with the noise of all", judging),
        ("the same, the first time", first),
        (
            f"judging each run in an item of its own ({len(all_results.by_id)} verdicts)",
            every,
        ),
    ):
        print(f"| {label} | {seconds:.2f} | {seconds / reading:.3f} |")
    of_reading = engine / len(of_configurations) / (reading / count)
    print(f"\none verdict: {per_verdict:.2f} ms, {of_reading:.2f} of reading a run")
    return 0 if judging < reading and every < reading and per_verdict < 1 else 1


if __name__ == "__main__":
    sys.exit(main())
