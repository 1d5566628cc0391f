"""Which configurations a cluster can run, what they cost, and when that is too much."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from shipped_specs import baseline, facts, recipe

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.models.jobs import Cluster, InstalledRecipe
from pytest_llmbench.launch.recipe.fit import count_nodes, estimate_gpu_hours, explain_unfit, refuse_hours

H100 = Cluster(gpu="h100")


def reason(name: str, ending: str, cluster: Cluster, launcher: str = "") -> str:
    return explain_unfit(baseline(name, ending).configuration, facts(name), cluster, launcher)


@pytest.mark.parametrize(
    ("name", "ending", "cluster", "why"),
    [
        ("grok1/24.11", "bf16-8", H100, ""),
        ("grok1/25.05", "gb200-bf16-128", H100, "for gb200, and this cluster has h100"),
        ("grok1/25.05", "gb200-bf16-128", Cluster(gpu="gb200"), ""),
        ("grok1/24.11", "bf16-8", Cluster(), "nothing says which GPUs this cluster has"),
        ("grok1/24.11", "bf16-2048", replace(H100, largest=1024), "larger than 1024 GPUs, the largest job"),
        ("grok1/24.11", "bf16-1024", replace(H100, largest=1024), ""),
        ("grok1/24.11", "bf16-8", replace(H100, installed=(InstalledRecipe("grok1", "24.11"),)), ""),
        ("grok1/24.11", "bf16-8", replace(H100, installed=(InstalledRecipe("grok1", ""),)), ""),
        (
            "grok1/24.11",
            "bf16-8",
            replace(H100, installed=(InstalledRecipe("grok1", "25.05"), InstalledRecipe("llama3.1", ""))),
            "grok1-24.11 is not installed here: there is grok1-25.05, llama3.1 (did you mean 'grok1-25.05'?)",
        ),
        (
            "grok1/24.11",
            "bf16-8",
            replace(H100, launcher="llmb-run"),
            "grok1 24.11 is not launched by 'llmb-run', but by sbatch",
        ),
        (
            "grok1/24.11",
            "bf16-8",
            replace(H100, installed=(InstalledRecipe("llama3.1", "24.11"),)),
            "grok1-24.11 is not installed here: there is llama3.1-24.11",
        ),
        ("grok1/25.05", "h100-bf16-512", replace(H100, launcher="llmb-run"), ""),
        ("grok1/24.11", "bf16-64", replace(H100, gpus_per_node=12), "64 GPUs are no whole number of nodes with 12"),
        ("grok1/24.11", "bf16-64", replace(H100, gpus_per_node=4), ""),
    ],
)
def test_what_a_cluster_cannot_run_is_told_with_the_reason(name: str, ending: str, cluster: Cluster, why: str) -> None:
    found = reason(name, ending, cluster)
    assert found.startswith(why)
    assert bool(found) is bool(why)


def test_a_launcher_that_is_asked_for_counts_more_than_the_clusters() -> None:
    cluster = replace(H100, launcher="sbatch", installed=(InstalledRecipe("grok1", "25.05", launcher="script"),))
    assert reason("grok1/25.05", "h100-bf16-512", cluster) == ""
    assert reason("grok1/25.05", "h100-bf16-512", cluster, "llmb-run") == ""
    assert "(did you mean 'script'?)" in reason("grok1/25.05", "h100-bf16-512", cluster, "scrpt")


def test_without_launch_facts_nothing_is_launched() -> None:
    configuration = baseline("grok1/24.11", "bf16-8").configuration
    assert explain_unfit(configuration, None, H100).startswith("nothing says how grok1 24.11 is launched")


def test_a_node_of_which_nothing_says_the_gpus() -> None:
    unknown = replace(facts("grok1/24.11"), gpus_per_node=())
    assert "set `gpus_per_node`" in explain_unfit(baseline("grok1/24.11", "bf16-8").configuration, unknown, H100)


@pytest.mark.parametrize(
    ("name", "ending", "per_node", "nodes"),
    [
        ("grok1/24.11", "bf16-256", 0, 32),
        ("grok1/25.05", "gb200-bf16-128", 0, 32),
        ("grok1/25.05", "gb200-bf16-128", 8, 16),
        ("grok1/24.11", "bf16-8", 0, 1),
        ("grok1/24.11", "bf16-8", 16, 1),
    ],
)
def test_the_number_of_nodes(name: str, ending: str, per_node: int, nodes: int) -> None:
    """A GB200 node has 4 GPUs, what the cluster says of its own counts more, and less than a node is one."""
    assert count_nodes(baseline(name, ending).key, facts(name), Cluster(gpus_per_node=per_node)) == nodes


def test_gpus_that_do_not_divide_are_refused() -> None:
    with pytest.raises(LaunchError, match="64 GPUs are no whole number of nodes with 12"):
        count_nodes(baseline("grok1/24.11", "bf16-64").key, facts("grok1/24.11"), Cluster(gpus_per_node=12))


def test_gpu_hours_are_those_of_the_steps() -> None:
    grok = baseline("grok1/25.05", "gb200-bf16-128")
    assert estimate_gpu_hours(grok) == pytest.approx(50 * 7.325 * 128 / 3600)
    untimed = replace(grok, step_seconds=math.nan)
    assert (estimate_gpu_hours(untimed), estimate_gpu_hours(untimed, 2.5)) == (0.0, 2.5)
    both = [one for name in ("grok1/24.11", "grok1/25.05") for one in recipe(name).baselines]
    assert sum(map(estimate_gpu_hours, both)) == pytest.approx(2508, abs=1)
    assert len(both) == 26


HOURS = {"a": 10.0, "b": 20.0, "c": 5.0, "d": 5.5, "e": 4.0, "f": 3.0, "g": 2.5}


def test_more_gpu_hours_than_nobody_asked_for_are_refused_with_the_largest() -> None:
    refuse_hours({"a": 50.0}, None)
    with pytest.raises(LaunchError) as caught:
        refuse_hours(HOURS, None, 49.0)
    text = str(caught.value)
    assert "the steps of 7 configurations take 50.0 GPU-hours; without being told a session uses at most 49:" in text
    assert [line.split()[-1] for line in text.splitlines()[1:7]] == ["b", "a", "d", "c", "e", "more"]
    assert "5.5  2 more" in text
    assert "--llmb-gpu-hours=50" in text


def test_a_limit_counts_in_place_of_the_default() -> None:
    refuse_hours({"a": 500.0}, 500.0)
    with pytest.raises(LaunchError, match="allowed are 20:"):
        refuse_hours(HOURS, 20.0)
    with pytest.raises(LaunchError, match="allowed are 0:"):
        refuse_hours({"a": 0.1}, 0.0)


def test_hours_that_are_no_number_are_not_below_the_limit() -> None:
    with pytest.raises(LaunchError):
        refuse_hours({"a": math.nan}, None)
