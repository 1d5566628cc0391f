"""A job that is to be submitted, with what its recipe's document says of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.job_records import JobSpec, LaunchFacts


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job that is to be submitted, and what its recipe's document says of
    launching."""

    spec: JobSpec
    facts: LaunchFacts


def find_script(planned: PlannedJob) -> Path | None:
    """Return the script that a job runs: the command itself, or its first argument *.sh
    or *.py; None: neither."""
    spec = planned.spec
    arguments = [word for word in spec.command[1:] if word.endswith((".sh", ".py"))]
    name = spec.command[0] if "/" in spec.command[0] else next(iter(arguments), None)
    return None if name is None else spec.directory / name


def digest_script(script: Path) -> str:
    """Return the sha256 of a script; empty where there is none, or none that can be
    read."""
    try:
        with script.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
