"""The test cluster ends with its test run, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support import clusters

OWNER = """
import time
from support.clusters import running

with running(database=False, nodes=1) as cluster:
    cluster.wait(cluster.submit("sleep 600"), "RUNNING")
    {before}
    print(cluster.folder, flush=True)
    time.sleep(600)
"""


def processes_with(text: str) -> list[str]:
    found = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in found if text in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    ["pass", "cluster.stop_controller()"],
    ids=["up", "without its controller"],
)
def test_killed_test_run_ends_its_cluster(before: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER.format(before=before)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        folder = owner.stdout.readline().strip()
        assert folder
        assert processes_with(folder)
        owner.kill()
    end = time.monotonic() + 180
    while Path(folder).exists() or processes_with(folder):
        assert time.monotonic() < end, processes_with(folder)
        time.sleep(0.2)


@pytest.mark.slow
def test_cluster_that_fails_to_start_prints_its_logs() -> None:
    folder = Path(tempfile.mkdtemp(prefix="llmb-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    environment = {
        **os.environ,
        "GPU_TYPE": " =",
        "DATABASE": "0",
    }  # an option that Slurm cannot parse
    process = subprocess.run(
        [clusters.SCRIPT, "serve", folder, "31900"],
        env=environment,
        input="",
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert (process.returncode, process.stdout) == (1, "")
    assert "Unable to process configuration file" in process.stderr
    assert "Starting munge" in process.stderr
    assert not folder.exists()
