"""Thirty days on a real Slurm with one node that is 10 % slow: when is it named?

    python -m benchmarks.statistics.slow_node DIR

Starts the test cluster with eight nodes. Each day it launches a simulated recipe on two
nodes, drawn with a fixed seed, then runs `llmbench nodes`. A store dates a run by its
job's start, so each day is moved back by days.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.clusters import Cluster, running
from support.fake_recipe import write_recipe

NIGHTS = 30
NODES = 8
SLOW = "n5"

RUN = f"""\
noise=$(awk -v seed=$SLURM_JOB_ID 'BEGIN {{ srand(seed * 7919); print (rand() + rand() + rand() - 1.5) / 100 }}')
case ",$(scontrol show hostnames | tr '\\n' ',')" in *,{SLOW},*) slow=1.1 ;; *) slow=1.0 ;; esac
steps $(awk "BEGIN {{ print $slow * (1 + $noise) }}")"""
"""Runs differ by 0.5 % (standard deviation)."""


def main(folder: Path) -> None:
    """Create `folder`, then launch and search day after day in it."""
    folder.mkdir(parents=True)
    write_recipe(folder, {"8b": RUN}, gpus=16)
    draw = random.Random(1)
    with running(nodes=NODES) as cluster:
        for day in range(NIGHTS):
            nodes = sorted(
                draw.sample([f"n{number + 1}" for number in range(NODES)], 2)
            )
            began = datetime.now(UTC)
            launch = (
                "-k",
                "fake",
                "--llmb-launch",
                "--llmb-repeats=1",
                f"--llmb-nodelist={','.join(nodes)}",
            )
            call(cluster, folder, "pytest", "-q", *launch, "--llmb-history=h.db")
            date_back(folder / "h.db", began, timedelta(days=NIGHTS - day))
            _, text = call(
                cluster,
                folder,
                "pytest_llmbench.cli.main",
                "nodes",
                "--history=h.db",
                "--json=nodes.json",
            )
            described = json.loads((folder / "nodes.json").read_text())
            named = [
                name for suspect in described["named"] for name in suspect["nodes"]
            ]
            print(
                f"night {day + 1:2}: {' '.join(nodes)}: {described['answer']} {' '.join(named)}",
                flush=True,
            )
    print(text)


def call(cluster: Cluster, folder: Path, module: str, *words: str) -> tuple[int, str]:
    """Run a module in the folder with access to Slurm. Returns its exit code and
    output."""
    return cluster.run_python(folder, "-m", module, *words)


def date_back(store: Path, began: datetime, days: timedelta) -> None:
    """Move everything stored since `began` back by days: session, runs, and jobs of
    runs."""
    with sqlite3.connect(store) as database:
        for table in ("llmb_session", "llmb_run"):
            for number, started in database.execute(
                f"select id, started from {table}"  # noqa: S608
            ).fetchall():
                moment = datetime.fromisoformat(started)
                if moment.replace(tzinfo=moment.tzinfo or UTC) >= began - timedelta(
                    seconds=2
                ):
                    dated = (moment - days).isoformat(sep=started[10])
                    database.execute(
                        f"update {table} set started = ? where id = ?",  # noqa: S608
                        (dated, number),
                    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
