"""Folders of small logs, and their readings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generator import write_run
from generator.__main__ import shipped

from pytest_llmbench.logs.reading.run_reader import Reading
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover.discovery import find_runs

CONFIGURATION = "llama3.1_8b-25.04-h100-bf16-16"


def write_runs(root: Path, count: int, **options: Any) -> list[Path]:
    """Write runs of one configuration and return their logs."""
    baseline = shipped()[CONFIGURATION]
    return [
        write_run(root, baseline, job_id=str(1000 + number), **options)
        for number in range(count)
    ]


def read_runs(root: Path, definitions: Sequence[Any] = (), **options: Any) -> Reading:
    """Read all runs in a folder."""
    stores = Stores()
    return Reading(stores, find_runs([root], stores).runs, definitions, **options)
