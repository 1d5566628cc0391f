"""pytest sessions in one folder that use a real Slurm cluster."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from support.clusters import Cluster
from support.forked_sessions import ForkedSession, poll_quickly


class Gate:
    """Runs pytest sessions in one folder, each in a separate process."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self.started: list[ForkedSession] = []
        self.gone_seconds = 600.0
        """How long a session waits for lost nodes, in seconds."""

    def start(self, *arguments: str) -> ForkedSession:
        """Start pytest. Its output is appended to out.txt."""
        (self.folder / "out.txt").touch()
        process = ForkedSession(
            ("-p", "no:cacheprovider", "-k", "fake", *arguments),
            self.folder,
            {**os.environ, **self.cluster.environment, "COLUMNS": "80"},
            self.folder / "out.txt",
            partial(poll_quickly, gone_seconds=self.gone_seconds),
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str) -> int:
        """Run pytest to its end and return its exit code."""
        return self.start(*arguments).wait(timeout=180)

    @property
    def output(self) -> str:
        return (self.folder / "out.txt").read_text(errors="replace")

    @property
    def plain(self) -> str:
        """The output as one line."""
        return " ".join(self.output.split())

    @property
    def outcomes(self) -> dict[str, str]:
        """The verdict and reason of each model size, from the JUnit report."""
        cases = ElementTree.parse(self.folder / "junit.xml").iter("testcase")  # noqa: S314 (our own file)
        outcomes = {}
        for case in (case for case in cases if "fake_" in str(case.get("name"))):
            properties = {
                property_.get("name"): property_.get("value")
                for property_ in case.iter("property")
            }
            outcomes[str(case.get("name")).partition("fake_")[2].partition("-")[0]] = (
                f"{properties['verdict']} {properties['reason']}"
            )
        return outcomes

    @property
    def gpu_hours(self) -> dict[str, Any]:
        """The GPU-hours of the last session, from its JSON document."""
        hours: dict[str, Any] = json.loads((self.folder / "session.json").read_text())[
            "gpu_hours"
        ]
        return hours

    def go(self) -> None:
        """Let waiting jobs continue."""
        (self.folder / "stage" / "go").touch()

    def submitted(self) -> list[str]:
        """Return the ids of all jobs that ever started, in ascending order."""
        file = self.folder / "stage" / "started"
        return sorted(file.read_text().split(), key=int) if file.exists() else []

    def wait_for(self, true: Callable[[], object], seconds: float = 180.0) -> None:
        """Wait until `true` returns a true value."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.output
            time.sleep(0.03)

    def end(self) -> None:
        """Kill all sessions that are still running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
