"""A planned job: its specification and the launch facts of its recipe."""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec import Struct

from pytest_llmbench.core.job_records import JobSpec, LaunchFacts


class PlannedJob(Struct, frozen=True):
    """A job to submit, with the launch facts of its recipe's document."""

    spec: JobSpec
    facts: LaunchFacts


def find_script(planned: PlannedJob) -> Path | None:
    """Find the script that a job runs, or return None.

    The command itself if it is a path (`./launch.sh`), else its first argument *.sh or
    *.py (`sbatch launch.sh`).
    """
    program, *arguments = planned.spec.command
    scripts = [word for word in arguments if word.endswith((".sh", ".py"))]
    if "/" in program:
        return planned.spec.directory / program
    return planned.spec.directory / scripts[0] if scripts else None


def digest_script(script: Path) -> str:
    """Hash a script with SHA-256, or return "" if it cannot be read."""
    try:
        with script.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
