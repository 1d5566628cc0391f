"""Fleets of configurations, and verdicts on their daily runs, for benchmarks of a
history."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / name) for name in ("tests", "benchmarks")
)

import msgspec
import yaml
from generator.__main__ import shipped

from pytest_llmbench.baseline.read import list_shipped_baselines, read_recipes
from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.history.record import write
from pytest_llmbench.history.session_record import (
    SessionRecord,
    StoredSession,
    VerdictRecord,
)
from pytest_llmbench.history.store import StoreLocation


def write_baselines(folder: Path, count: int) -> list[Baseline]:
    """Make `count` configurations: the documented ones, and renamed copies of them.

    The baseline files of the copies are written to `folder`.
    """
    baselines = list(shipped().values())
    copy = 1
    while len(baselines) < count:
        copy += 1
        for path in list_shipped_baselines():
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
            document.pop("errata", None)  # they name configurations
            document["recipe"] += f"copy{copy}"
            document["names"] = [f"{name}copy{copy}" for name in document["names"]]
            document["configurations"] = document["configurations"][
                : count - len(baselines)
            ]
            if document["configurations"]:
                target = folder / document["recipe"] / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(yaml.safe_dump(document, sort_keys=False))
                (recipe,) = read_recipes([target])
                baselines += recipe.baselines
    return baselines[:count]


def describe_run(
    key: Mapping[str, Any], night: int, began: datetime, random: Random, **fields: Any
) -> VerdictRecord:
    """Build the verdict on one day's run of the configuration `key` (with its id).

    It passes unless `fields` differ. `fields` are also the `environment` of the run.
    """
    name, environment = key["id"], fields.pop("environment")
    plain = {
        "item": name,
        "configuration": key,
        "status": "passed",
        "verdict": "PASS",
        "reason": "within-tolerance",
        "tolerance": "5 %",
        "counts": True,
        "mean_of": [],
        **fields,
        "run": {
            "name": f"pretrain_{name}/{night}",
            "job_id": str(1_000_000 + night),
            "launcher": "sbatch",
            "started": began.isoformat(),
            "attempts": 1,
            "log": f"experiments/night-{night}/pretrain_{name}/log-account-pretrain_{name}_{night}_0.out",
            "log_fingerprints": [
                f"{random.getrandbits(20):x}-{random.getrandbits(32):08x}"
            ],
            "nodes": [],
            "jobs": [],
            "environment": environment,
        },
    }
    return msgspec.convert(plain, VerdictRecord)


def store_session(
    place: StoreLocation,
    identifier: str,
    started: datetime,
    verdicts: Sequence[VerdictRecord],
) -> float:
    """Store a daily session. Returns its CPU seconds."""
    session = StoredSession(
        id=identifier,
        started=started,
        host="ci",
        program="0.1.0",
        options=("--llmb-history=history.db",),
        git_commit="",
        ci_url="",
    )
    begin = time.process_time()
    write(place, SessionRecord(session=session, verdicts=tuple(verdicts)))
    return time.process_time() - begin
