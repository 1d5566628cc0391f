"""Cost of a year of history for a daily session: all documented configurations, 365
days.

    python -m benchmarks.speed.history [--nights 365] [--url postgresql://...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / name) for name in ("tests", "benchmarks")
)

import msgspec
from generator import write_run
from generator.__main__ import shipped
from speed.environment import ENVIRONMENT

from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.history.queries import read_stored_runs
from pytest_llmbench.history.record import write
from pytest_llmbench.history.session_record import (
    SessionRecord,
    StoredSession,
    VerdictRecord,
)
from pytest_llmbench.history.store import StoreLocation, locate_store, refuse_damaged

START = datetime(2025, 1, 1, 2, tzinfo=UTC)
NO_TESTS = 5  # pytest's exit code

EMPTY_SESSIONS = 3.1
"""A session with a year of history may last so much longer than one without, in
sessions of pytest that collect nothing: half a second where these take 0.16."""

METRICS = (
    "step_time_seconds",
    "step_time_mean_seconds",
    "step_time_trimmed_mean_seconds",
    "step_time_cv",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "mfu",
    "tflops_per_gpu",
    "days_to_1t_tokens",
    "peak_memory_bytes",
)
TOLD = {
    "container": "nvcr.io/nvidia/nemo:25.04.01",
    "driver": "570.86.15",
    "cuda": "12.8.1.012",
    "nccl": "2.25.1+cuda12.8",
    "pytorch": "2.7.0a0+7c8ec84dab.nv25.03",
    "nemo": "2.3.0",
    "megatron": "0.12.0",
    "transformer_engine": "2.2.0",
    "python": "3.12.3",
}


def outcome(baseline: Baseline, night: int, random: Random) -> VerdictRecord:
    """Build the verdict on one day's run, with all fields of a real one."""
    key, seconds = baseline.key, baseline.step_seconds * (1 + random.gauss(0, 0.003))
    steps = [seconds * (1 + random.gauss(0, 0.005)) for _ in range(34)]
    window = {
        "first": baseline.window.first,
        "last": baseline.window.last,
        "statistic": baseline.window.statistic,
    }
    parts = ("recipe", "size", "release", "gpu", "dtype", "gpus")
    plain = {
        "item": key.id,
        "configuration": {"id": key.id, **{name: getattr(key, name) for name in parts}},
        "status": "passed",
        "verdict": "PASS",
        "reason": "within-tolerance",
        "tolerance": "5 %",
        "text": "7.325 s is 0.0 % against 7.325 s (-0.6 to +0.6 %); the bound is 7.691 s",
        "counts": True,
        "run_seconds": seconds,
        "step_time_seconds": seconds * 1.01,
        "expected_seconds": baseline.step_seconds,
        "log_difference": 0.001,
        "bound_seconds": baseline.step_seconds * 1.05,
        "window": window,
        "baseline": str(baseline.kind),
        "metrics": {name: [seconds * 1.01, seconds / 300] for name in METRICS},
        "step_seconds": steps,
        "mean_of": [],
        "run": {
            "name": f"pretrain_{key.id}/{night}",
            "job_id": str(1_000_000 + night),
            "launcher": "sbatch",
            "started": (START + timedelta(days=night)).isoformat(),
            "attempts": 1,
            "log": f"experiments/night-{night}/pretrain_{key.id}/log-account-pretrain_{key.id}_{night}_0.out",
            "log_fingerprints": [
                f"{random.getrandbits(20):x}-{random.getrandbits(32):08x}"
            ],
            "nodes": [],
            "jobs": [],
            "environment": TOLD,
        },
    }
    return msgspec.convert(plain, VerdictRecord)


def fill(
    place: StoreLocation, nights: int, baselines: Sequence[Baseline]
) -> Iterator[float]:
    """Store `nights` daily sessions of these configurations, and yield the CPU seconds
    of each."""
    random = Random(1)
    for day in range(nights):
        outcomes = [outcome(baseline, day, random) for baseline in baselines]
        session = StoredSession(
            id=uuid.UUID(int=random.getrandbits(128)).hex,
            started=START + timedelta(days=day, hours=4),
            host="ci",
            program="0.1.0",
            options=(),
            git_commit="",
            ci_url="",
        )
        begin = time.process_time()
        write(place, SessionRecord(session=session, verdicts=tuple(outcomes)))
        yield time.process_time() - begin


class Taken(NamedTuple):
    """Resources used by a session."""

    cpu: float  # seconds, with all of its processes
    seconds: float  # on a clock


def rounds_of(
    folder: Path, sessions: Sequence[Sequence[str] | None], rounds: int
) -> list[list[Taken]]:
    """Return the resources of each session, by its options, for each round.

    Sessions alternate, since machines are slow for minutes at a time.
    """
    return [[_measure(folder, each) for each in sessions] for _ in range(rounds)]


def _measure(folder: Path, options: Sequence[str] | None) -> Taken:
    """Measure a session in its own process. Without options it collects nothing."""
    arguments = (
        ["--collect-only", "nothing"]
        if options is None
        else [f"--llmb-logs={folder}/runs", *options]
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *arguments,
    ]
    before, begin = os.times(), time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds, after = time.perf_counter() - begin, os.times()
    if done.returncode != (NO_TESTS if options is None else 0):
        sys.exit(f"the session failed: {done.stdout}{done.stderr}")
    cpu = (
        after.children_user
        - before.children_user
        + after.children_system
        - before.children_system
    )
    return Taken(cpu, seconds)


def main() -> int:
    """Print a table. Exit code 1 if the history costs more than allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--url", default="history.db")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "runs").mkdir()
        (folder / "nothing").mkdir()
        for position, baseline in enumerate(shipped().values()):
            started = START + timedelta(days=options.nights, minutes=position)
            write_run(
                folder / "runs",
                baseline,
                started=started,
                job_id=str(2_000_000 + position),
            )
        place = locate_store(options.url, folder)
        writing = list(fill(place, options.nights, list(shipped().values())))
        size = place.file.stat().st_size if place.file else 0
        begin = time.process_time()
        found = read_stored_runs(
            place, [baseline.key.id for baseline in shipped().values()]
        )
        reading = time.process_time() - begin
        begin = time.process_time()
        refuse_damaged(place)
        checking = time.process_time() - begin
        history, reports = (
            [f"--llmb-history={options.url}"],
            ["--llmb-html=page.html", "--llmb-json=session.json"],
        )
        sessions: tuple[list[str] | None, ...] = (
            None,
            [],
            history,
            reports,
            [*history, *reports],
        )
        rounds = rounds_of(folder, sessions, options.times)
    print(
        f"| {options.nights} nights, {len(found)} configurations, {sum(map(len, found.values()))} runs | |"
    )
    print("|---|---|")
    print(f"| size of the store | {size / 1e6:.0f} MB |")
    print(
        f"| storing a night, first and last | {writing[0] * 1000:.0f} and {writing[-1] * 1000:.0f} ms CPU |"
    )
    print(f"| reading the nights | {reading:.2f} s CPU |")
    print(f"| looking at all pages | {checking:.2f} s CPU |")
    cpu = [
        median(taken.cpu for taken in column) for column in zip(*rounds, strict=True)
    ]
    print(f"| an empty session | {cpu[0]:.2f} s CPU |")
    print(
        f"| a session without and with history | {cpu[1]:.2f} and {cpu[2]:.2f} s CPU |"
    )
    print(
        f"| the same with a page and a JSON document | {cpu[3]:.2f} and {cpu[4]:.2f} s CPU |"
    )
    costs = [
        (taken[2].seconds - taken[1].seconds) / taken[0].seconds for taken in rounds
    ]
    print(
        f"| how much longer one with history takes, in empty sessions | {' '.join(f'{cost:.2f}' for cost in costs)} |"
    )
    print(f"| their median, at most {EMPTY_SESSIONS} | {median(costs):.2f} |")
    return 0 if median(costs) <= EMPTY_SESSIONS else 1


if __name__ == "__main__":
    sys.exit(main())
