"""A command that the user gave to make one run of a build: started, and waited for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError

FOLDER = "LLMBENCH_RUN"
"""The variable, and in braces the word of a command, that names the folder for its
run."""


def run_candidate(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> int:
    """Run a command and return its exit code, negative for a signal; what it prints
    goes where this program prints.

    LaunchError where there is no such command: that says nothing of a build.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = [word.replace(f"{{{FOLDER}}}", str(folder)) for word in command]
    try:
        done = subprocess.run(  # noqa: S603 (the user's own command)
            words,
            env={**environment, FOLDER: str(folder)},
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        raise LaunchError(f"{words[0]} cannot be started: {error.strerror}") from None
    return done.returncode


def make_candidate_folder(root: Path) -> Path:
    """Make and return a folder for the runs of one build: the next number below `root`.
    Raises LaunchError."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        taken = [int(name) for name in os.listdir(root) if name.isdecimal()]
        folder = root / f"{max(taken, default=0) + 1}"
        folder.mkdir()
    except OSError as error:
        raise LaunchError(
            f"{root}: no folder can be made for runs: {error.strerror}"
        ) from None
    return folder
