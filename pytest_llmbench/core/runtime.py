"""What this process runs in: a job of a CI system, or none, and Python with its collector of cycles."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

COMMITS = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",  # GitLab
    "GIT_COMMIT",  # Jenkins
    "BUILDKITE_COMMIT",
    "BUILD_SOURCEVERSION",  # Azure
    "CIRCLE_SHA1",
    "BITBUCKET_COMMIT",
)
"""The variables with the commit."""

ADDRESSES = ("CI_JOB_URL", "CI_PIPELINE_URL", "BUILD_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL")


def read_commit(environment: Mapping[str, str]) -> str:
    """Return the commit that is tested; empty for none, and for a name of one such as HEAD."""
    named = (environment.get(variable, "").strip() for variable in COMMITS)
    return next((name for name in named if re.fullmatch("[0-9a-fA-F]{7,64}", name)), "")


def read_job_url(environment: Mapping[str, str]) -> str:
    """Return where the CI system shows this job, empty elsewhere."""
    # GitHub gives it in three parts.
    parts = [environment.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")]
    if all(parts):
        return "{}/{}/actions/runs/{}".format(*parts)
    return next((environment[name] for name in ADDRESSES if environment.get(name)), "")


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Let Python's collector of cycles rest."""
    # What is made of thousands of runs is kept, and has no cycles, but it would look at all of it again and again.
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
