"""The cluster of these tests leaves nothing behind, whatever ends them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

OWNER = """
import time
from clusters import running

with running(database=False, nodes=1) as cluster:
    cluster.wait(cluster.submit("sleep 100"), "RUNNING")
    {before}
    print(cluster.folder, flush=True)
    time.sleep(100)
"""


def processes_with(text: str) -> list[str]:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if text in line]


@pytest.mark.parametrize("before", ["pass", "cluster.stop_controller()"], ids=["up", "without its controller"])
def test_a_killed_test_run_takes_its_cluster_with_it(before: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER.format(before=before)],
        cwd=Path(__file__).parents[1] / "support",
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        folder = owner.stdout.readline().strip()
        assert folder
        assert processes_with(folder)
        owner.kill()
    end = time.monotonic() + 40
    while Path(folder).exists() or processes_with(folder):
        assert time.monotonic() < end, processes_with(folder)
        time.sleep(0.2)
