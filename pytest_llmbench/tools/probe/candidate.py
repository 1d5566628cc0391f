"""Run the user's command that makes one run of a build."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError

FOLDER = "LLMBENCH_RUN"
"""The environment variable with the folder for a run.

In a word of the command, the name in braces stands for the folder, too.
"""


def run_candidate(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> int:
    """Run a command and return its exit code, negative for a signal.

    The command inherits standard output and standard error. Raises LaunchError if it
    cannot be started, which is no verdict on the build.
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
    """Make the next numbered folder in `root`, for the runs of one build.

    Raises LaunchError.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        taken = [int(name) for name in os.listdir(root) if name.isdecimal()]
        folder = root / f"{max(taken, default=0) + 1}"
        folder.mkdir()
    except OSError as error:
        raise LaunchError(
            f"{root}: cannot make a folder for runs: {error.strerror}"
        ) from None
    return folder
