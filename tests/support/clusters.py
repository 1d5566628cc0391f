"""A real Slurm cluster, started by tests/integration/slurm/cluster."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "integration" / "slurm" / "cluster"
PROGRAMS = ("munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd", "sbatch", "sacct")
PORTS = range(10_000, 20_000, 100)
"""Below Linux's ephemeral ports. Each cluster uses a hundred ports and claims them by
binding the first."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster with the account `research`.

    The partition `batch` has all nodes with 8 GPUs each, `short` has n1 and a limit of
    10 minutes.
    """

    folder: Path
    nodes: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    """Additional variables that a command needs to reach the cluster."""

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command without checking its exit code."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            arguments,
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def run(self, *arguments: str) -> str:
        """Run a Slurm command, require success, and return its output."""
        result = self.ask(*arguments)
        assert result.returncode == 0, (
            f"{arguments}: {result.returncode} {result.stdout}{result.stderr}"
        )
        return result.stdout.strip()

    def run_python(
        self, folder: Path, *arguments: str, **variables: str
    ) -> tuple[int, str]:
        """Run Python in a folder, 80 columns wide. Returns (exit code, output)."""
        result = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, **self.environment, "COLUMNS": "80", **variables},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        return result.returncode, result.stdout + result.stderr

    def submit(self, script: str, *options: str) -> str:
        """Submit a one-line shell job and return its id."""
        output = str(self.folder / "log" / "job-%j")
        return self.run(
            "sbatch", "--parsable", f"--output={output}", *options, f"--wrap={script}"
        )

    def state(self, job_id: str) -> str:
        """Return a job's state according to slurmctld (PENDING, RUNNING, ...)."""
        match = re.search(
            r"JobState=(\w+)", self.ask("scontrol", "show", "job", job_id).stdout
        )
        return match[1] if match else ""

    def wait(self, job_id: str, *states: str, seconds: float = 180.0) -> str:
        """Wait until a job is in one of the states, and return that state."""
        end = time.monotonic() + seconds
        while (state := self.state(job_id)) not in states:
            assert time.monotonic() < end, (
                f"job {job_id} is {state or 'unknown'}, not {' or '.join(states)}"
            )
            time.sleep(0.03)
        return state

    def end_in_time(self, job_id: str) -> None:
        """Let a running job hit its time limit and wait until Slurm ended it (about 2
        s)."""
        for later in (
            1,
            4,
            16,
        ):  # on a busy machine slurmctld may read the request only after a second
            result = self.ask(
                "scontrol", "update", f"JobId={job_id}", f"EndTime=now+{later}seconds"
            )
            if result.returncode == 0:
                break
        else:
            raise AssertionError(
                f"the end of job {job_id} cannot be set: {result.stdout}{result.stderr}"
            )
        end = time.monotonic() + 180
        while self.state(job_id) != "TIMEOUT":
            assert time.monotonic() < end, f"job {job_id} does not end"
            (
                self.folder / "due"
            ).touch()  # without quick.c Slurm checks only every 30 s
            time.sleep(0.3)

    def jobs(self) -> list[str]:
        """Return the ids of all jobs that have not ended."""
        return self.run("squeue", "--noheader", "--format=%A").split()

    def cancel_all(self) -> None:
        """Cancel every job and wait until all jobs have ended."""
        end = time.monotonic() + 180
        while jobs := self.jobs():
            assert time.monotonic() < end, f"jobs {jobs} cannot be cancelled"
            self.ask("scancel", *jobs)
            time.sleep(0.05)

    def stop_controller(self) -> None:
        """Stop slurmctld: Slurm no longer answers, but running jobs continue."""
        self._script("stop-controller")

    def start_controller(self) -> None:
        """Restart slurmctld and wait until it answers."""
        self._script("start-controller")

    def _script(self, command: str) -> None:
        subprocess.run([SCRIPT, command, str(self.folder)], timeout=120, check=True)


@contextmanager
def running(
    database: bool = True, nodes: int = 4, gpu_type: str = ""
) -> Iterator[Cluster]:
    """Start a separate cluster and stop it at the end.

    The cluster also stops if this process is killed, because its script waits for the
    end of stdin.
    """
    with ExitStack() as stack:
        port, claim = _claimed_ports()
        stack.enter_context(claim)
        folder = Path(
            tempfile.mkdtemp(prefix="llmb-slurm-", dir="/tmp")
        )  # sockets need a short path
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # clients of munged reach its socket
        errors = stack.enter_context(tempfile.TemporaryFile("w+"))
        settings = {
            **os.environ,
            "NODES": str(nodes),
            "GPU_TYPE": gpu_type,
            "DATABASE": str(int(database)),
        }
        server = subprocess.Popen(
            [SCRIPT, "serve", str(folder), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=settings,
            text=True,
            start_new_session=True,
        )
        stack.callback(_end, server)
        assert server.stdout is not None
        if server.stdout.readline() != "up\n":
            errors.seek(0)
            pytest.fail(f"the cluster does not start: {errors.read()}")
        names = tuple(f"n{number}" for number in range(1, nodes + 1))
        yield Cluster(folder, names, {"SLURM_CONF": str(folder / "slurm.conf")})


def missing() -> str:
    """Return a message with the missing Slurm programs, or ""."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    absent = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    return (
        f"needs Slurm, but {', '.join(absent)} is not installed: tests/integration/slurm/cluster install"
        * bool(absent)
    )


def _claimed_ports() -> tuple[int, socket.socket]:
    """Return the first port of a free hundred and the socket that reserves it.

    The ports stay reserved for this test run while the socket is open.
    """
    for port in PORTS:
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        if not any(_taken(port + offset) for offset in (1, 2, 3, 10)):
            return port, claim
        claim.close()
    pytest.fail(f"no free ports between {PORTS.start} and {PORTS.stop}")


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.close()
    server.stdout.close()
    server.wait(timeout=180)
