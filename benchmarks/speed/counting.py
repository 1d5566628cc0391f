"""Count the instructions of a job: write its input, run it once to warm up, then under
callgrind."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from speed.jobs import JOBS

HERE = Path(__file__).resolve().parent
COLLECTED = re.compile(r"Collected : (\d+)")

FROZEN_CLOCK = {
    "FAKETIME": "2026-03-23 04:00:00",
    "NO_FAKE_STAT": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
}
"""The site and the history depend on today's date."""


class CountingError(Exception):
    """A job could not be counted."""


class Count(NamedTuple):
    """The executed instructions of a job, and a short text that states what it did."""

    instructions: int
    done: str


def compile_client(folder: Path) -> Path:
    """Compile the library that switches callgrind's counting; needs gcc and valgrind's
    headers."""
    library = folder / "client.so"
    _run(
        ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "client.c")],
        {"PATH": os.environ["PATH"]},
    )
    return library


def describe_environment() -> dict[str, str]:
    """Return the external versions on which instruction counts depend, by name."""
    packages = (
        "pytest",
        "numpy",
        "scipy",
        "pyyaml",
        "sqlalchemy",
        "jinja2",
        "hyperscan",
        "ahocorasick_rs",
    )
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "libc": platform.libc_ver()[1],
        "valgrind": _run(["valgrind", "--version"], {"PATH": os.environ["PATH"]})
        .strip()
        .removeprefix("valgrind-"),
        **{name: version(name) for name in packages},
    }


def count(name: str, client: Path, processor: int) -> Count:
    """Count the job `name` on one processor. Raises CountingError if it fails or
    varies."""
    with tempfile.TemporaryDirectory(prefix="llmb-speed-") as folder:
        _prepare(name, folder)
        job = JOBS[name]
        counted = _count_part(name, "run", folder, client, processor)
        if job.base is None:
            return counted
        base = _count_part(name, "base", folder, client, processor)
        return Count(counted.instructions - base.instructions, counted.done)


def _prepare(name: str, folder: str) -> None:
    code = "import sys, pathlib, speed.jobs as jobs; jobs.JOBS[sys.argv[1]].prepare(pathlib.Path(sys.argv[2]))"
    paths = (HERE.parent, HERE.parents[1] / "tests")
    _run(
        [sys.executable, "-c", code, name, folder],
        os.environ | {"PYTHONPATH": ":".join(map(str, paths))},
    )


def _count_part(
    name: str, part: str, folder: str, client: Path, processor: int
) -> Count:
    command = [
        sys.executable,
        str(HERE / "counted.py"),
        folder,
        name,
        part,
        str(client),
    ]
    environment = _fix_environment(folder)
    warm = _run(["taskset", "-c", str(processor), *command], environment).strip()
    report = Path(folder) / "callgrind.txt"
    valgrind = [
        "valgrind",
        "--tool=callgrind",
        "--instr-atstart=no",
        f"--log-file={report}",
    ]
    valgrind.append(f"--callgrind-out-file={folder}/callgrind.out")
    done = _run(
        ["taskset", "-c", str(processor), *valgrind, *command], environment
    ).strip()
    collected = COLLECTED.search(report.read_text(encoding="utf-8"))
    if collected is None or not int(collected[1]):
        raise CountingError(f"{name}: callgrind counted nothing")
    if done != warm:
        raise CountingError(f"{name}: did {warm!r} first and then {done!r}")
    return Count(int(collected[1]), done)


def _fix_environment(folder: str) -> dict[str, str]:
    """Return the environment of a counted process, with fixed hash seed, threads,
    clock, cache and plugins."""
    (faketime,) = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))[
        :1
    ] or (None,)
    if faketime is None:
        raise CountingError("libfaketime is missing (Debian: faketime)")
    return {
        "PATH": os.environ["PATH"],
        "HOME": folder,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "XDG_CACHE_HOME": f"{folder}/cache",
        "LD_PRELOAD": str(faketime),
        **FROZEN_CLOCK,
    }


def _run(command: list[str], environment: dict[str, str]) -> str:
    """Run a command and return its output. Raises CountingError with the last lines if
    it fails."""
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise CountingError(
            f"{command[0]} is missing (Debian: valgrind, gcc, util-linux)"
        ) from error
    if ended.returncode:
        printed = "\n".join((ended.stdout + ended.stderr).splitlines()[-20:])
        raise CountingError(
            f"{' '.join(command[-4:])} ended with {ended.returncode}:\n{printed}"
        )
    return ended.stdout
