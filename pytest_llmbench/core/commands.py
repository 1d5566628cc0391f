"""Execution of operating system commands."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Exit code and output of a command."""

    # As in shells and timeout(1): 127 if the program does not exist, 124 after a
    # time-out.
    code: int
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
        return CommandOutput(
            124, "", f"{arguments[0]} did not end within {timeout:g} s"
        )
    except OSError as error:
        return CommandOutput(127, "", f"{arguments[0]}: {error.strerror}")
    return CommandOutput(completed.returncode, completed.stdout, completed.stderr)
