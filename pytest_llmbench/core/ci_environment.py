"""What a CI system says of the job that runs, in the variables of its process."""

from __future__ import annotations

import re
from collections.abc import Mapping

COMMITS = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",
    "GIT_COMMIT",
    "BUILDKITE_COMMIT",
    "BUILD_SOURCEVERSION",
    "CIRCLE_SHA1",
    "BITBUCKET_COMMIT",
)
"""The variables with the commit: GitHub, GitLab, Jenkins, Buildkite, Azure, CircleCI, Bitbucket."""

ADDRESSES = ("CI_JOB_URL", "CI_PIPELINE_URL", "BUILD_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL")


def read_commit(environment: Mapping[str, str]) -> str:
    """Return the commit that is tested; empty for none, and for a name of one such as HEAD."""
    named = (environment.get(variable, "").strip() for variable in COMMITS)
    return next((name for name in named if re.fullmatch("[0-9a-fA-F]{7,64}", name)), "")


def read_job_url(environment: Mapping[str, str]) -> str:
    """Return where the CI system shows this job, empty elsewhere; GitHub gives it in three parts."""
    parts = [environment.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")]
    if all(parts):
        return "{}/{}/actions/runs/{}".format(*parts)
    return next((environment[name] for name in ADDRESSES if environment.get(name)), "")
