"""A planned job: its specification and the launch facts of its recipe."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.job_records import JobSpec, LaunchFacts


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to submit, with the launch facts of its recipe's document."""

    spec: JobSpec
    facts: LaunchFacts


def find_script(planned: PlannedJob) -> Path | None:
    """Find the script that a job runs, or return None.

    The command itself if it is a path, else its first argument *.sh or *.py.
    """
    spec = planned.spec
    arguments = [word for word in spec.command[1:] if word.endswith((".sh", ".py"))]
    name = spec.command[0] if "/" in spec.command[0] else next(iter(arguments), None)
    return None if name is None else spec.directory / name


def digest_script(script: Path) -> str:
    """Hash a script with SHA-256, or return "" if it cannot be read."""
    try:
        with script.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
