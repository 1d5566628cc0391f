"""The time to find and read runs grows linearly with their number, for any file names."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from support.growth import LINEAR, measure_growth

from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.collect_runs import ingest
from pytest_llmbench.session.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SMALL = 60

HARD_LINK = "a hard link"
TABLE = "step,loss,step_time\n1,2.0,7.3\n"


def step(number: int, seconds: float = 7.3) -> str:
    """Return a step line of NeMo 2."""
    return f"Training epoch 0, iteration {number}/9 | global_step: {number} | train_step_timing in s: {seconds:.4f}\n"


def make_log(number: int) -> str:
    """Return a log whose steps are unique to its number."""
    return step(0, 7.3 + number / 1000) + step(1, 7.2)


Tree = Callable[[int], dict[str, str]]

TREES: dict[str, Tree] = {
    "empty logs": lambda n: {f"log-train_{n}_0.out": ""},
    "logs": lambda n: {f"log-train_{n}_0.out": make_log(n)},
    "logs in folders": lambda n: {f"job{n}/log-train_{n}_0.out": make_log(n)},
    "output of Slurm": lambda n: {f"slurm-{n}.out": make_log(n)},
    "two logs of a job": lambda n: {
        f"slurm-{n}.out": make_log(n),
        f"train_{n}.log": make_log(n + 5000),
    },
    "standard errors": lambda n: {
        f"log-train_{n}_0.err": "srun: error: n1: task 0: Killed\n"
    },
    "metadata": lambda n: {f"llmb-config_{n}.yaml": f"job_info: {{job_id: {n}}}\n"},
    "logs without a job next to metadata": lambda n: {
        f"llmb-config_{n}.yaml": f"job_info: {{job_id: {n}}}\n",
        f"train{chr(97 + n % 26)}x{n}.log": make_log(n),
    },
    "unknown names": lambda n: {
        f"console{n}": "".join(step(k, 7.3 + n) for k in range(10))
    },
    "tables": lambda n: {f"run{n}/metrics.csv": TABLE},
    "tables below logs": lambda n: {
        f"log-train_{n}_0.out": make_log(n),
        f"run{n}/metrics.csv": TABLE,
    },
    "tables next to the folders of logs": lambda n: {
        f"job{n}/log-train_{n}_0.out": make_log(n),
        f"run{n}/metrics.csv": TABLE,
    },
    "hard links": lambda n: {f"log-train_{n}_0.out": HARD_LINK},
}


def write_files(root: Path, tree: Tree, number: int) -> None:
    """Write the files for one number; HARD_LINK makes a link to a common file."""
    for name, text in tree(number).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is HARD_LINK:
            first = root / "log-first_1_0.out"
            first.write_text(make_log(0))
            os.link(first, path)
        else:
            path.write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("tree", TREES)
def test_ingestion_time_grows_linearly_with_files(tmp_path: Path, tree: str) -> None:
    numbers = count()

    def make(size: int) -> Callable[[], object]:
        root = tmp_path / str(next(numbers))
        root.mkdir()
        for number in range(size):
            write_files(root, TREES[tree], 100_000 + number)
        return lambda: ingest(Settings(logs=(root,)), Catalog((), {}), NOW)

    assert measure_growth(make, SMALL) < LINEAR
