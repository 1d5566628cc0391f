"""Execution of operating system commands."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

TIMED_OUT = 124  # exit code after a time-out

NOT_FOUND = 127  # exit code of a program that does not exist or cannot be run


class CommandOutput(Struct, frozen=True):
    """Exit code and output of a command."""

    code: int  # NOT_FOUND and TIMED_OUT as in shells and timeout(1)
    out: str
    err: str


class Runner(Protocol):
    """Runs an argument list without a shell."""

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        """Run a command and return its output.

        `timeout` is in seconds. `environment` defaults to that of this process. Never
        raises for a command that fails, does not exist or exceeds the time-out.
        """


def run(
    arguments: Sequence[str],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> CommandOutput:
    """Run a command as described for `Runner`."""
    try:
        completed = subprocess.run(  # noqa: S603 (the callers build the argument lists)
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env=environment,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        problem = f"{arguments[0]} did not end within {timeout:g} s"
        return CommandOutput(TIMED_OUT, out="", err=problem)
    except OSError as error:
        problem = f"{arguments[0]}: {error.strerror}"
        return CommandOutput(NOT_FOUND, out="", err=problem)
    return CommandOutput(completed.returncode, completed.stdout, completed.stderr)
