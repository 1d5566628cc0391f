"""Histories of launched runs on known nodes, for tests of the slow-node search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from support.remembered import START, document, outcome

NODES, NODES_PER_JOB = 32, 8
CV = 0.004
KEYS = tuple(
    Key("grok1", "314b", "25.05", "gb200", dtype, 128) for dtype in ("bf16", "fp8")
)


def add_job(
    document: dict[str, Any], nodes: frozenset[str] | set[str], seconds: float
) -> dict[str, Any]:
    """Add a launched job to an outcome."""
    run = document["run"]
    job = {
        "job_id": run["job_id"],
        "purpose": "measure",
        "attempt": 1,
        "repeat": 1,
        "state": "COMPLETED",
        "nodes": sorted(nodes),
        "step_seconds": seconds,
        "text": "",
        "files": [],
        "submission": "submitted",
        "ended_by": "others",
        "started": run["started"],
        "age": "1 h",
        "gpu_hours": {
            "estimated": 1.0,
            "used": 1.0,
            "requeued": 0.0,
            "exact": True,
            "lost": "",
        },
    }
    return {**document, "jobs": [job] if nodes else []}


def make_sessions(
    slow: Mapping[int, float], **options: Any
) -> Iterator[tuple[datetime, list[dict[str, Any]]]]:
    """Yield (start, outcomes) of daily sessions with two configurations.

    `slow` maps a node number to its relative slowdown. `options` are those of
    `_judge_sessions`. Equal arguments are judged once per process; the outcomes are
    copies.
    """
    for start, outcomes in _judge_sessions(tuple(slow.items()), **options):
        yield start, deepcopy(outcomes)


@cache
def _judge_sessions(
    slow_nodes: tuple[tuple[int, float], ...],
    *,
    days: int = 30,
    together: tuple[int, ...] = (),
    shared_slowdown: float = 0.0,
    since: int = 20,
    unknown: bool = False,
    seed: int = 1,
) -> tuple[tuple[datetime, list[dict[str, Any]]], ...]:
    """Judge the runs of daily sessions.

    One job uses all nodes of `together` on two of five days. All jobs are slower by
    `shared` from day `since` on.
    """
    random, slow, sessions = np.random.default_rng(seed), dict(slow_nodes), []
    for day in range(days):
        order = random.permutation(NODES).tolist()
        outcomes = []
        for index, key in enumerate(KEYS):
            nodes = set(
                order[NODES_PER_JOB * index : NODES_PER_JOB * (index + 1)]
            ) - set(together)
            nodes |= set(together) if index == day % 5 else set()
            slowest = max(math.log1p(slow.get(node, 0.0)) for node in nodes)
            level = (
                slowest
                + (math.log1p(shared_slowdown) if day >= since else 0.0)
                + CV * random.standard_normal()
            )
            seconds = 7.4 * math.exp(level)
            job = f"{1000 + 10 * day + index}"
            document = outcome(
                seconds, day, key=key, job=job, logs=f"{day:x}{index}-00ff"
            )
            outcomes.append(
                add_job(
                    document,
                    set() if unknown else {f"n{node:02}" for node in nodes},
                    seconds,
                )
            )
        sessions.append((START + timedelta(days=day, hours=2), outcomes))
    return tuple(sessions)


def write_sessions(
    path: Path, sessions: Iterator[tuple[datetime, list[dict[str, Any]]]]
) -> Path:
    """Write sessions to a history file."""
    location = StoreLocation(path.name, path.absolute())
    for start, outcomes in sessions:
        write(location, document(*outcomes, began=start))
    return path


def store_sessions(path: Path, slow: Mapping[int, float], **options: Any) -> Path:
    """Write the sessions of `make_sessions` to a new history file.

    Equal arguments are judged and stored once per process.
    """
    path.write_bytes(_make_store(tuple(slow.items()), tuple(options.items())))
    return path


@cache
def _make_store(
    slow: tuple[tuple[int, float], ...], options: tuple[tuple[str, Any], ...]
) -> bytes:
    with TemporaryDirectory() as folder:
        return write_sessions(
            Path(folder, "h.db"), make_sessions(dict(slow), **dict(options))
        ).read_bytes()
