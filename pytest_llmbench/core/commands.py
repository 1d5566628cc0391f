"""Commands of the operating system: the output of one, and the callable that runs
one."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command returned."""

    # 127 where there is no such program, 124 where it did not end in time, as shells
    # and timeout(1) have it
    code: int
    out: str
    err: str


class Runner(Protocol):
    """Runs an argument list, never a shell line; `environment` None is that of this
    process."""

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        """Return what the command said; no exception for one that fails, does not exist
        or does not end."""


def run(
    arguments: Sequence[str],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> CommandOutput:
    """Run a command as `Runner` says; `timeout` in seconds."""
    try:
        done = subprocess.run(  # noqa: S603 (argument lists of our own)
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
    return CommandOutput(done.returncode, done.stdout, done.stderr)
