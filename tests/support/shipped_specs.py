"""Shipped recipes with their launch facts."""

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
"""Environment of a shell with leftovers of earlier work. Only a part of it is meant for
jobs."""

CLUSTER = Cluster(gpu="h100", account="acct", partition="batch", gres="gpu:8")


@cache
def recipe(name: str) -> Recipe:
    """Read a shipped recipe by name, such as `grok1/25.05`."""
    return read_recipe(find_shipped_baselines() / f"{name}.yaml")


def facts(name: str) -> LaunchFacts:
    """Read the launch facts of a recipe."""
    launch_facts = read_facts(recipe(name))
    assert launch_facts is not None
    return launch_facts


def baseline(name: str, ending: str) -> Baseline:
    """Return the recipe's baseline whose id ends with `ending`."""
    return next(
        candidate
        for candidate in recipe(name).baselines
        if candidate.key.id.endswith(ending)
    )


def spec(name: str, ending: str, cluster: Cluster = CLUSTER, **changes: Any) -> JobSpec:
    """Build the job of a shipped configuration."""
    return build_job(
        baseline(name, ending), facts(name), cluster, **{"caller": CALLER, **changes}
    )
