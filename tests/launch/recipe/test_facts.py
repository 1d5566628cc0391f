"""What the documents say of launching becomes records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shipped_specs import facts, recipe

from pytest_llmbench.core.models.jobs import Checkpointing, Command, Profiling
from pytest_llmbench.launch.recipe.fit import read_facts

SHIPPED = ("grok1/24.11", "grok1/25.05", "llama3.1/25.04", "maxtext_llama2/24.11", "nemotron4/25.01")
ENABLED = (("ENABLE_PROFILE", "true"),)


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
def test_every_document_is_launched_by_one_of_its_commands(name: str, kind: str, commands: list[str]) -> None:
    found = facts(name)
    assert (found.kind, [command.name for command in found.commands]) == (kind, commands)
    assert all(command.via == command.name for command in found.commands)
    assert (found.recipe, found.release) == (recipe(name).name, recipe(name).release)


def test_a_command_keeps_its_template_folder_and_variables() -> None:
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


def test_a_command_of_its_own_name_says_how_it_is_launched_and_what_it_prints() -> None:
    own = ("mine", (("command", "./go"), ("via", "script"), ("job_id", r"id (?P<job>\d+)")))
    launch = (("kind", "mine"), ("commands", (own,)), ("gpus_per_node", ()))
    found = read_facts(replace(recipe("grok1/24.11"), launch=launch))
    assert found is not None
    assert found.commands == (Command("mine", "script", "./go", job_id=r"id (?P<job>\d+)"),)


def test_needs_image_and_nodes() -> None:
    found = facts("grok1/25.05")
    assert found.gpus_per_node == (("gb200", 4), ("h100", 8))
    assert (found.gsw_version, found.python, found.needs_token) == ("25.05.04", "3.12", True)
    assert (found.image, found.image_source) == ("nvidia+nemo+25.04.00.sqsh", "nvcr.io/nvidia/nemo:25.04.00")
    assert [name for name, _ in found.forbidden] == ["STAGE_PATH"]
    assert facts("llama3.1/25.04").virtual_environment
    assert not facts("grok1/24.11").needs_token


@pytest.mark.parametrize(
    ("name", "profiling"),
    [
        ("grok1/24.11", None),
        ("maxtext_llama2/24.11", None),
        (
            "grok1/25.05",
            Profiling(ENABLED, "PROFILE_START_STEP", "PROFILE_STOP_STEP", default_start=45, default_stop=50),
        ),
        (
            "llama3.1/25.04",
            Profiling(ENABLED, "PROFILE_START_STEP", "PROFILE_STOP_STEP", default_start=20, default_stop=25),
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
def test_each_document_profiles_under_its_own_names(name: str, profiling: Profiling | None) -> None:
    assert facts(name).profiling == profiling


@pytest.mark.parametrize(
    ("name", "trace"),
    [
        ("grok1/24.11", ()),
        ("maxtext_llama2/24.11", ()),
        ("nemotron4/25.01", (("ENABLE_NCCL_TRACE", "true"),)),
        ("llama3.1/25.04", (("ENABLE_NCCLTRACE", "true"),)),
        ("grok1/25.05", (("ENABLE_NCCLTRACE", "true"),)),
    ],
)
def test_each_document_traces_under_its_own_name(name: str, trace: tuple[tuple[str, str], ...]) -> None:
    assert facts(name).nccl_trace == trace


def test_checkpoints_have_sizes_in_bytes_and_numbers_of_gpus() -> None:
    assert facts("llama3.1/25.04").checkpoint == Checkpointing(
        save=(("ENABLE_CHECKPOINT", "true"),),
        load=(("LOAD_CHECKPOINT_PATH", "{checkpoint}"),),
        size_bytes=(("8b", 105 * 10**9), ("70b", 920 * 10**9), ("405b", 5200 * 10**9)),
        save_gpus=(("8b", (16, 128)), ("70b", (128, 2048)), ("405b", (512, 2048))),
        load_gpus=(("8b", (16, None)), ("70b", (128, None)), ("405b", (1024, None))),
    )
    assert [name for name in SHIPPED if facts(name).checkpoint] == ["llama3.1/25.04"]


def test_a_recorded_file_says_nothing_of_launching() -> None:
    assert read_facts(replace(recipe("grok1/25.05"), launch=())) is None
