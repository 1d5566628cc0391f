"""Reading launch facts, choosing configurations for a cluster, and estimating their
cost."""

from __future__ import annotations

import math
from functools import partial

import pytest
from msgspec.structs import replace
from support.shipped_specs import CALLER, baseline, facts, recipe, spec

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    Checkpointing,
    Cluster,
    Command,
    InstalledRecipe,
    Profiling,
    Purpose,
)
from pytest_llmbench.launch.plan.fit import (
    count_nodes,
    count_steps,
    estimate_gpu_hours,
    explain_unfit,
    read_facts,
    refuse_hours,
)

SHIPPED = (
    "grok1/24.11",
    "grok1/25.05",
    "llama3.1/25.04",
    "maxtext_llama2/24.11",
    "nemotron4/25.01",
)
ENABLED = (("ENABLE_PROFILE", "true"),)
ALONE = (*ENABLED, ("DISABLE_PERFRUN", "true"))
"""In 25.04 the launch script submits the job of a run as well, unless it is told not
to."""

H100 = Cluster(gpu="h100")


@pytest.mark.parametrize(
    ("name", "kind", "commands"),
    [
        ("grok1/24.11", "sbatch", ["sbatch"]),
        ("grok1/25.05", "llmb-run", ["llmb-run", "script"]),
        ("llama3.1/25.04", "script", ["script"]),
        ("maxtext_llama2/24.11", "sbatch", ["sbatch"]),
        ("nemotron4/25.01", "sbatch", ["sbatch"]),
    ],
)
def test_default_launcher_of_each_document_is_read(
    name: str, kind: str, commands: list[str]
) -> None:
    launch_facts = facts(name)
    assert (launch_facts.kind, [command.name for command in launch_facts.commands]) == (
        kind,
        commands,
    )
    assert all(command.via == command.name for command in launch_facts.commands)
    assert (launch_facts.recipe, launch_facts.release) == (
        recipe(name).name,
        recipe(name).release,
    )


def test_command_keeps_template_folder_and_variables() -> None:
    assert facts("grok1/25.05").commands[1] == Command(
        name="script",
        via="script",
        command="./launch.sh",
        folder="$LLMB_REPO/grok1",
        fixed=(
            ("JOB_TOTAL_GPUS", "{gpus}"),
            ("DTYPE", "{dtype}"),
            ("MODEL_SIZE", "{size}"),
            ("GPU_TYPE", "{gpu}"),
        ),
    )


def test_custom_command_is_read() -> None:
    text = (
        "mine",
        (("command", "./go"), ("via", "script"), ("job_id", r"id (?P<job>\d+)")),
    )
    launch = (("kind", "mine"), ("commands", (text,)), ("gpus_per_node", ()))
    launch_facts = read_facts(replace(recipe("grok1/24.11"), launch=launch))
    assert launch_facts is not None
    assert launch_facts.commands == (
        Command("mine", "script", "./go", job_id=r"id (?P<job>\d+)"),
    )


def test_requirements_image_and_gpus_per_node_of_a_document_are_read() -> None:
    launch_facts = facts("grok1/25.05")
    assert launch_facts.gpus_per_node == (("gb200", 4), ("h100", 8))
    assert (
        launch_facts.gsw_version,
        launch_facts.python,
        launch_facts.needs_token,
    ) == (
        "25.05.04",
        "3.12",
        True,
    )
    assert (launch_facts.image, launch_facts.image_source) == (
        "nvidia+nemo+25.04.00.sqsh",
        "nvcr.io/nvidia/nemo:25.04.00",
    )
    assert [name for name, _ in launch_facts.forbidden] == ["STAGE_PATH"]
    assert facts("llama3.1/25.04").virtual_environment
    assert not facts("grok1/24.11").needs_token


@pytest.mark.parametrize(
    ("name", "profiling"),
    [
        ("grok1/24.11", None),
        (
            "llama3.1/25.04",
            Profiling(
                ALONE,
                "PROFILE_START_STEP",
                "PROFILE_STOP_STEP",
                default_start=20,
                default_stop=25,
            ),
        ),
        (
            "nemotron4/25.01",
            Profiling(
                ENABLED,
                "RUN_CONF_PROFILE_START_STEP",
                "RUN_CONF_PROFILE_STOP_STEP",
                "RUN_CONF_PROFILE_RANKS",
                "RUN_CONF_PROFILE_GPU_METRICS",
                "RUN_CONF_PROFILE_CPU",
                20,
                30,
            ),
        ),
    ],
)
def test_profiling_variables_of_each_document_are_read(
    name: str, profiling: Profiling | None
) -> None:
    assert facts(name).profiling == profiling


@pytest.mark.parametrize(
    ("name", "trace"),
    [
        ("grok1/24.11", ()),
        ("nemotron4/25.01", (("ENABLE_NCCL_TRACE", "true"),)),
        ("llama3.1/25.04", (("ENABLE_NCCLTRACE", "true"), ("DISABLE_PERFRUN", "true"))),
    ],
)
def test_trace_variables_of_each_document_are_read(
    name: str, trace: tuple[tuple[str, str], ...]
) -> None:
    assert facts(name).nccl_trace == trace


def test_checkpoint_sizes_and_gpu_limits_are_read() -> None:
    assert facts("llama3.1/25.04").checkpoint == Checkpointing(
        save=(("ENABLE_CHECKPOINT", "true"),),
        load=(("LOAD_CHECKPOINT_PATH", "{checkpoint}"),),
        size_bytes=(("8b", 105 * 10**9), ("70b", 920 * 10**9), ("405b", 5200 * 10**9)),
        save_gpus=(("8b", (16, 128)), ("70b", (128, 2048)), ("405b", (512, 2048))),
        load_gpus=(("8b", (16, None)), ("70b", (128, None)), ("405b", (1024, None))),
    )
    assert [name for name in SHIPPED if facts(name).checkpoint] == ["llama3.1/25.04"]


def test_recorded_baseline_file_contains_no_launch_facts() -> None:
    assert read_facts(replace(recipe("grok1/25.05"), launch=())) is None


def reason(name: str, ending: str, cluster: Cluster, launcher: str = "") -> str:
    return explain_unfit(
        baseline(name, ending).configuration, facts(name), cluster, launcher
    )


@pytest.mark.parametrize(
    ("name", "ending", "cluster", "expected"),
    [
        ("grok1/24.11", "bf16-8", H100, ""),
        ("grok1/25.05", "gb200-bf16-128", H100, "for gb200, but this cluster has h100"),
        ("grok1/25.05", "gb200-bf16-128", Cluster(gpu="gb200"), ""),
        # a cluster file with the driver's name
        ("grok1/25.05", "gb200-bf16-128", Cluster(gpu="NVIDIA GB200"), ""),
        (
            "grok1/24.11",
            "bf16-8",
            Cluster(),
            "the GPU type of this cluster is unknown",
        ),
        (
            "grok1/24.11",
            "bf16-2048",
            replace(H100, largest=1024),
            "larger than 1024 GPUs, the largest job",
        ),
        ("grok1/24.11", "bf16-1024", replace(H100, largest=1024), ""),
        (
            "grok1/24.11",
            "bf16-8",
            replace(H100, installed=(InstalledRecipe("grok1", "24.11"),)),
            "",
        ),
        (
            "grok1/24.11",
            "bf16-8",
            replace(H100, installed=(InstalledRecipe("grok1", ""),)),
            "",
        ),
        (
            "grok1/24.11",
            "bf16-8",
            replace(
                H100,
                installed=(
                    InstalledRecipe("grok1", "25.05"),
                    InstalledRecipe("llama3.1", ""),
                ),
            ),
            "grok1-24.11 is not installed here; installed: grok1-25.05, llama3.1 (did you mean 'grok1-25.05'?)",
        ),
        (
            "grok1/24.11",
            "bf16-8",
            replace(H100, launcher="llmb-run"),
            "grok1 24.11 has no launcher 'llmb-run', only sbatch",
        ),
        ("grok1/25.05", "h100-bf16-512", replace(H100, launcher="llmb-run"), ""),
        (
            "grok1/24.11",
            "bf16-64",
            replace(H100, gpus_per_node=12),
            "64 GPUs do not fill whole nodes of 12 GPUs",
        ),
        ("grok1/24.11", "bf16-64", replace(H100, gpus_per_node=4), ""),
    ],
)
def test_configuration_that_cannot_be_launched_has_a_reason(
    name: str, ending: str, cluster: Cluster, expected: str
) -> None:
    actual = reason(name, ending, cluster)
    assert actual.startswith(expected)
    assert bool(actual) is bool(expected)


def test_requested_launcher_overrides_the_clusters() -> None:
    cluster = replace(
        H100,
        launcher="sbatch",
        installed=(InstalledRecipe("grok1", "25.05", launcher="script"),),
    )
    assert reason("grok1/25.05", "h100-bf16-512", cluster) == ""
    assert reason("grok1/25.05", "h100-bf16-512", cluster, "llmb-run") == ""
    assert "(did you mean 'script'?)" in reason(
        "grok1/25.05", "h100-bf16-512", cluster, "scrpt"
    )


def test_configuration_without_launch_facts_cannot_be_launched() -> None:
    configuration = baseline("grok1/24.11", "bf16-8").configuration
    assert explain_unfit(configuration, None, H100).startswith(
        "no launch facts for grok1 24.11"
    )


def test_configuration_cannot_be_launched_if_gpus_per_node_are_unknown() -> None:
    unknown = replace(facts("grok1/24.11"), gpus_per_node=())
    assert "set `gpus_per_node`" in explain_unfit(
        baseline("grok1/24.11", "bf16-8").configuration, unknown, H100
    )


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
def test_nodes_are_counted_from_gpus(
    name: str, ending: str, per_node: int, nodes: int
) -> None:
    """A GB200 node has 4 GPUs; the cluster file overrides that. A job has at least one
    node."""
    assert (
        count_nodes(
            baseline(name, ending).key, facts(name), Cluster(gpus_per_node=per_node)
        )
        == nodes
    )


@pytest.mark.parametrize(
    ("name", "purpose", "environment", "steps"),
    [
        ("grok1/25.05", Purpose.MEASURE, {}, 50),
        ("grok1/25.05", Purpose.NCCL_TRACE, {}, 5),
        ("grok1/25.05", Purpose.LOAD_CHECKPOINT, {}, 1),
        ("llama3.1/25.04", Purpose.MEASURE, {"PROFILE_STOP_STEP": "40"}, 50),
        ("llama3.1/25.04", Purpose.NCCL_TRACE, {}, 5),
        ("llama3.1/25.04", Purpose.PROFILE, {}, 25),
        ("llama3.1/25.04", Purpose.PROFILE, {"PROFILE_STOP_STEP": "40"}, 40),
        ("llama3.1/25.04", Purpose.PROFILE, {"PROFILE_STOP_STEP": "late"}, 25),
        ("llama3.1/25.04", Purpose.SAVE_CHECKPOINT, {}, 50),
        ("nemotron4/25.01", Purpose.NCCL_TRACE, {}, 10),
        ("nemotron4/25.01", Purpose.PROFILE, {"RUN_CONF_PROFILE_STOP_STEP": "30"}, 50),
    ],
)
def test_unmeasured_job_may_make_fewer_steps(
    name: str, purpose: Purpose, environment: dict[str, str], steps: int
) -> None:
    """The launch scripts of these releases set the steps. A profile of Nemotron 4 does
    not end its run."""
    assert (
        count_steps(recipe(name).baselines[0], facts(name), purpose, environment)
        == steps
    )


def test_gpu_hours_estimate_of_a_profile_grows_with_its_stop_step() -> None:
    profile = partial(
        spec, "llama3.1/25.04", "8b-25.04-h100-bf16-128", purpose=Purpose.PROFILE
    )
    usual, longer = profile(), profile(caller={**CALLER, "PROFILE_STOP_STEP": "50"})
    assert usual.gpu_hours == pytest.approx(25 * 12.33 * 128 / 3600)
    assert longer.gpu_hours == pytest.approx(2 * usual.gpu_hours)


def test_gpu_hours_are_estimated_from_steps() -> None:
    grok = baseline("grok1/25.05", "gb200-bf16-128")
    assert estimate_gpu_hours(grok, 50) == pytest.approx(50 * 7.325 * 128 / 3600)
    untimed = replace(grok, step_seconds=math.nan)
    assert estimate_gpu_hours(untimed, 50) == 0.0
    both = [
        baseline
        for name in ("grok1/24.11", "grok1/25.05")
        for baseline in recipe(name).baselines
    ]
    assert sum(estimate_gpu_hours(baseline, 50) for baseline in both) == pytest.approx(
        2508, abs=1
    )
    assert len(both) == 26


HOURS = {"a": 10.0, "b": 20.0, "c": 5.0, "d": 5.5, "e": 4.0, "f": 3.0, "g": 2.5}


def test_hours_above_the_default_limit_are_refused() -> None:
    refuse_hours({"a": 50.0}, None)
    with pytest.raises(LaunchError) as caught:
        refuse_hours({**HOURS, "c": 6.0}, None)
    text = str(caught.value)
    assert (
        "the steps of 7 configurations take 51.0 GPU-hours; by default a session may use 50:"
        in text
    )
    assert [line.split()[-1] for line in text.splitlines()[1:7]] == [
        "b",
        "a",
        "c",
        "d",
        "e",
        "more",
    ]
    assert "5.5  2 more" in text
    assert "--llmb-gpu-hours=51" in text


def test_given_gpu_hours_limit_replaces_the_default() -> None:
    refuse_hours({"a": 500.0}, 500.0)
    with pytest.raises(LaunchError, match="the limit is 20:"):
        refuse_hours(HOURS, 20.0)
    with pytest.raises(LaunchError, match="the limit is 0:"):
        refuse_hours({"a": 0.1}, 0.0)


def test_launch_with_unknown_gpu_hours_is_refused() -> None:
    with pytest.raises(LaunchError):
        refuse_hours({"a": math.nan}, None)
