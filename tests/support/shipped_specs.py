"""The shipped recipes with their launch facts, for tests of launching."""

from __future__ import annotations

from functools import cache
from typing import Any

from pytest_llmbench.baseline.read import find_shipped_baselines, read_recipe
from pytest_llmbench.core.baseline_records import Baseline, Recipe
from pytest_llmbench.core.job_records import Cluster, JobSpec, LaunchFacts
from pytest_llmbench.launch.plan.fit import read_facts
from pytest_llmbench.launch.plan.job_spec import build_job

CALLER = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/user",
    "STAGE_PATH": "/lustre/stage",
    "LLMB_INSTALL": "/lustre/llmb",
    "LLMB_REPO": "/lustre/recipes",
    "HF_TOKEN": "hf_very_secret",
    "DTYPE": "fp32",
    "LD_PRELOAD": "/home/user/mine.so",
    "SLURM_JOB_ID": "99",
}
"""A shell in which somebody worked before: some of it is meant for the jobs, most of it
is not."""

CLUSTER = Cluster(gpu="h100", account="acct", partition="batch", gres="gpu:8")


@cache
def recipe(name: str) -> Recipe:
    """The recipe of `grok1/25.05`."""
    return read_recipe(find_shipped_baselines() / f"{name}.yaml")


def facts(name: str) -> LaunchFacts:
    """How it is launched."""
    launch_facts = read_facts(recipe(name))
    assert launch_facts is not None
    return launch_facts


def baseline(name: str, ending: str) -> Baseline:
    """The baseline whose id ends so."""
    return next(
        candidate
        for candidate in recipe(name).baselines
        if candidate.key.id.endswith(ending)
    )


def spec(name: str, ending: str, cluster: Cluster = CLUSTER, **changes: Any) -> JobSpec:
    """The job of a shipped configuration."""
    return build_job(
        baseline(name, ending), facts(name), cluster, **{"caller": CALLER, **changes}
    )
