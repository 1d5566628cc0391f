"""Replay an update of the container as logs, day by day, and print what finds the
cause.

    python -m benchmarks.statistics.container_update DIR

Writes DIR/runs and DIR/history.db (see tests/support/updated_container.py) and prints
every answer.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from generator.__main__ import shipped
from speed.environment import ENVIRONMENT
from support.updated_container import AFTER, BEFORE, date, plan_days, write_runs

RECORDED = 5
"""Nights that the baselines are recorded from."""

MODULES = {"pytest": "pytest", "llmbench": "pytest_llmbench.cli.main"}


def run(folder: Path, command: str) -> None:
    """Run a command in `folder`, and print its output and exit code."""
    print(f"\n$ {command}", flush=True)
    name, *words = command.split()
    done = subprocess.run(
        [sys.executable, "-m", MODULES[name], *words],
        cwd=folder,
        env=ENVIRONMENT,
        check=False,
    )
    print(f"exit code {done.returncode}", flush=True)


def main(folder: Path) -> None:
    """Create `folder`, then write and judge runs day after day in it."""
    folder.mkdir(parents=True)
    for day, runs in enumerate(plan_days(shipped())):
        write_runs(folder / "runs" / date(day), runs)
        if day == RECORDED - 1:
            run(folder, "pytest -q --llmb-logs=runs --llmb-record=own")
        elif day >= RECORDED:
            logs = f"--llmb-logs=runs/{date(day)}"
            run(
                folder,
                f"pytest -q {logs} --llmb-baselines=own --llmb-history=history.db -k own",
            )
    sides = f"{date(0)}..{date(BEFORE - 1)} {date(BEFORE)}..{date(BEFORE + AFTER - 1)}"
    run(folder, f"llmbench compare {sides} --history=history.db --baselines=own")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
