"""Runs `llmbench` and pytest in forked processes.

They are forked from a process that has imported the package, and end as a Python
program ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FORKING = """\
import gc, importlib, json, os, pkgutil, pytest, runpy, sys, pytest_llmbench
import scipy.stats
from pytest_llmbench.cli.main import main

for module in pkgutil.walk_packages(pytest_llmbench.__path__, "pytest_llmbench."):
    if not module.name.startswith("pytest_llmbench.suite."):
        importlib.import_module(module.name)
gc.collect()
gc.freeze()  # otherwise the final collection would visit, and copy, all imported modules
for line in sys.stdin:
    program, words, folder, environment, outputs = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        break
else:
    sys.exit()
os.setsid()
os.chdir(folder)
os.environ.clear()
os.environ.update(environment)
for stream, path in zip((1, 2), outputs):
    if path not in ("pipe", "terminal"):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    else:
        reading, file = os.pipe() if path == "pipe" else os.openpty()
        os.close(reading)
    os.dup2(file, stream)
    os.close(file)
sys.argv = [program, *words]
if program == "llmbench":
    sys.exit(main(words))
runpy.run_module(program, run_name="__main__")
"""
"""Runs the programs described by its input lines one by one, and prints their exit
codes."""

UNREAD = "pipe"
"""Output to a pipe whose reading end is closed."""

CLOSED_TERMINAL = "terminal"
"""Output to a closed terminal."""


class Programs:
    """Starts programs one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self,
        program: str,
        words: Sequence[str],
        folder: Path,
        output: str | Path,
        errors: str | Path,
    ) -> int:
        """Run "llmbench" or "pytest" in a folder and return its exit code.

        The exit code is negative after a signal. `output` and `errors` are UNREAD,
        CLOSED_TERMINAL, or files to append to.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "PYTHONUNBUFFERED"
        }
        request = (
            program,
            list(words),
            str(folder),
            environment,
            [str(output), str(errors)],
        )
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@contextmanager
def forking() -> Iterator[Programs]:
    """Start the process that programs are forked from. Its output is buffered as in a
    shell."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"
    }
    command = [sys.executable, "-Ic", FORKING]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Programs(process)
        finally:
            process.communicate(timeout=60)
