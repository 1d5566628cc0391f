"""Facts in the names, scripts and configurations of Megatron-Bridge."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from support.shared_data import shared

from pytest_llmbench.core.run_records import AttemptFiles, RunFiles
from pytest_llmbench.runs.discover.names import read_experiment
from pytest_llmbench.runs.layouts.megatron_bridge import (
    Companions,
    collect_hints,
    find_model,
    name_release,
    read_name,
)

RELEASES = ("25.11", "26.02", "26.02.01", "26.04", "26.04.01")


def test_bridge_experiment_name_contains_facts_of_its_table_row() -> None:
    """Uses a table that was made independently; a name contains a subset of its row's
    facts."""
    read = 0
    with shared("documents/megatron_bridge/row_names.tsv").open() as file:
        for row in csv.DictReader(file, delimiter="\t"):
            for name in row["experiment"].split():
                facts = dict(read_name(name))
                precision = {"FP8": "fp8_cs", "MXFP8": "fp8_mx"}.get(
                    row["precision"], row["precision"].lower()
                )
                assert facts["dtype"] in precision.replace(
                    "-", "_"
                )  # one of the two precisions of the row
                assert facts.get("gpus", row["gpus"]) == row["gpus"]
                assert facts.get("global_batch_size", row["gbs"]) == row["gbs"]
                assert (
                    facts.get("gpu", row["system"][4:].lower())
                    == row["system"][4:].lower()
                )
                assert facts["task"] == row["task"]
                assert "variant" not in facts
                assert find_model(row["model"].split(" (")[0]) == facts["size"]
                read += 1
    assert read > 200


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "llama3_8b_pretrain_8gpu_h100",
            {"size": "llama3_8b", "task": "pretrain", "gpus": "8", "gpu": "h100"},
        ),
        (
            "pretrain_kimi_k2_bf16_gpus64_tp1_vpNone_ep8_etpNone",
            {
                "size": "kimi_k2",
                "task": "pretrain",
                "dtype": "bf16",
                "gpus": "64",
                "tp": "1",
                "vp": "1",
                "ep": "8",
            },
        ),
        ("llama3_8b_results", {}),
        ("llama3_8b", {}),
        # DGX Cloud truncates names: the final number is incomplete.
        (
            "pretrain_deepseek_v3_fp8_mx_gpus2",
            {"size": "deepseek_v3", "task": "pretrain", "dtype": "fp8_mx"},
        ),
        (
            "pretrain_llama31_405b_fp8_mx_gpus",
            {"size": "llama31_405b", "task": "pretrain", "dtype": "fp8_mx"},
        ),
        (
            "log-acct-llm.pretrain_kimi_k2_bf16_gpus64_gb300_large_scale_4711_0",
            {
                "size": "kimi_k2",
                "task": "pretrain",
                "dtype": "bf16",
                "gpus": "64",
                "gpu": "gb300",
                "variant": "large_scale",
            },
        ),
    ],
)
def test_experiment_name_is_parsed_into_its_fields(
    name: str, facts: dict[str, str]
) -> None:
    assert read_name(name) == facts


@pytest.mark.parametrize(
    ("recipe", "size", "model"),
    [
        ("llama3.1", "70b", "llama3_70b"),
        ("llama3.1", "405b", "llama31_405b"),
        ("qwen3", "30b_a3b", "qwen3_30b_a3b"),
        ("kimi-k2", "1t", "kimi_k2"),
        ("nemotron_3", "30b", "nemotron_3_nano"),
        ("llama3.1", "7b", ""),
        ("grok1", "314b", ""),
    ],
)
def test_model_of_llmb_run_name_is_found(recipe: str, size: str, model: str) -> None:
    assert find_model(recipe, size) == model


@pytest.mark.parametrize(
    ("tag", "release"),
    [
        ("26.04.00", "26.04"),
        ("26.04.01", "26.04.01"),
        ("25.11.01", "25.11"),  # no patch was published
        ("26.04.02", "26.04.02"),  # ambiguous: 26.04 or 26.04.01
        ("26.04.rc3", "26.04.rc3"),
        ("25.09.00", "25.09"),
    ],
)
def test_container_tag_is_mapped_to_release(tag: str, release: str) -> None:
    assert name_release(tag, RELEASES) == release


def test_megatron_bridge_name_without_model_size_is_parsed_as_an_experiment() -> None:
    """A failed job of it must not be skipped."""
    experiment = read_experiment("pretrain_deepseek_v3_fp8_mx_gpus256_gb300")
    assert experiment is not None
    pairs = dict(experiment.pairs)
    assert (pairs["recipe"], pairs["size"], pairs["gpus"], pairs["gpu"]) == (
        "deepseek_v3",
        "deepseek_v3",
        "256",
        "gb300",
    )
    assert read_experiment("pretrain_notes_bf16") is None


SCRIPT = """\
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=4
srun --container-image nvcr.io/nvidia/nemo:26.04.01 python run.py --model_name llama3 --model_size 70b \\
  --gpu gb300 --compute_dtype fp8 --fp8_recipe cs -tp 4
"""
DUMP = """\
_target_: megatron.bridge.training.config.ConfigContainer
comm_overlap:
  data_parallel_size: 8
mixed_precision: bf16_with_mxfp8_mixed
model:
  fp8: null
  num_layers: 40
  pipeline_model_parallel_size: 2
  tensor_model_parallel_size: 4
  transformer_layer_spec:
    tensor_model_parallel_size: 99
  virtual_pipeline_model_parallel_size: null
train:
  global_batch_size: 128
"""


def collect(companions: Companions, name: str = "friday") -> dict[str, set[str]]:
    folder = Path("/runs") / name
    run = RunFiles(
        name, str(folder), (AttemptFiles(0, str(folder), "log-a_1_0.out"),), ()
    )
    facts: dict[str, set[str]] = {}
    for hint in collect_hints(run, (), companions, RELEASES):
        facts.setdefault(hint.field, set()).add(hint.value)
    return facts


def test_submitted_script_is_parsed() -> None:
    facts = collect(Companions(script=SCRIPT))
    assert facts == {
        "recipe": {"megatron_bridge"},
        "size": {"llama3_70b"},
        "gpu": {"gb300"},
        "dtype": {"fp8_cs"},
        "gpus": {"64"},
        "tp": {"4"},
        "release": {"26.04.01"},
    }


def test_submitted_script_with_short_names_is_parsed() -> None:
    """From 26.08 on, names do not contain the overrides of the command."""
    command = "bash -c x.sh -g gb300 -c fp8_mx -ng 256 -mr deepseek_v3 -pp 4 -vp 2 -mb 2 -gb 2048 -sl 8192 -t 00:30:00"
    facts = collect(Companions(script=command))
    assert {field: value for field, (value,) in facts.items()} == {
        "recipe": "megatron_bridge",
        "size": "deepseek_v3",
        "gpu": "gb300",
        "dtype": "fp8_mx",
        "gpus": "256",
        "pp": "4",
        "vp": "2",
        "micro_batch_size": "2",
        "global_batch_size": "2048",
        "sequence_length": "8192",
    }


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("nvcr.io/nvidia/nemo:26.04.rc3", "26.04.rc3"),
        ("/images/nemo-26.04-ours.sqsh", "26.04"),
        ("nvcr.io/nvidia/nemo:26.04.01", "26.04.01"),
    ],
)
def test_release_candidate_matches_no_release(image: str, release: str) -> None:
    assert collect(
        Companions(script=SCRIPT.replace("nvcr.io/nvidia/nemo:26.04.01", image))
    )["release"] == {release}


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ("model.tensor_model_parallel_size=8", "tp", "8"),
        ("-gb 64 +train.global_batch_size=32", "global_batch_size", "32"),
        ("'model.seq_length=4096'", "sequence_length", "4096"),
        ("-vp None", "vp", "1"),
        ("--use_megatron_fsdp true", "fsdp", "64"),
        ("--use_megatron_fsdp false", "fsdp", "1"),
        ("ddp.use_megatron_fsdp=True", "fsdp", "64"),
    ],
)
def test_script_setting_overrides_argument(more: str, field: str, value: str) -> None:
    """Configuration settings are passed without dashes, and take precedence."""
    assert collect(
        Companions(
            script=f"bash -c x.sh -g gb300 -c fp8_cs -ng 64 -mr llama3_70b {more}"
        )
    )[field] == {value}


def test_fsdp_group_size_is_computed() -> None:
    script = SCRIPT.replace("-tp 4", "--use_megatron_fsdp true")
    dump = DUMP.replace("model:", "ddp:\n  use_megatron_fsdp: true\nmodel:")
    assert collect(Companions(script=script))["fsdp"] == {"64"}
    assert collect(Companions(script=script, configuration=dump))["fsdp"] == {
        "8"
    }  # 64 / (4 x 2)


def test_unrelated_script_is_ignored() -> None:
    assert collect(
        Companions(
            script="#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\nsrun python x.py --lr 1\n"
        )
    ) == {"recipe": {"megatron_bridge"}}


def test_saved_configuration_states_parallelism_and_changed_number_of_layers() -> None:
    facts = collect(
        Companions(configuration=DUMP), "pretrain_llama3_70b_fp8_mx_gpus64_gb300"
    )
    assert facts["gpus"] == {"64"}  # 8 x 4 x 2
    assert (facts["tp"], facts["pp"], facts["vp"], facts["dtype"]) == (
        {"4"},
        {"2"},
        {"1"},
        {"fp8_mx"},
    )
    assert facts["model_overrides"] == {"layers=40"}  # the model has 80
    assert facts["global_batch_size"] == {"128"}


@pytest.mark.parametrize(
    ("lines", "dtype"),
    [
        ("  bf16: true\n  fp8: null\n  fp8_recipe: tensorwise", {"bf16"}),
        ("  bf16: true\n  fp8: hybrid\n  fp8_recipe: tensorwise", {"fp8_cs"}),
        ("  bf16: true\n  fp8: hybrid\n  fp8_recipe: new_one", {"fp8"}),
        ("  fp4: e2m1\n  fp8: hybrid\n  fp8_recipe: tensorwise", {"nvfp4"}),
    ],
)
def test_configuration_precision_is_read(lines: str, dtype: set[str]) -> None:
    dump = DUMP.replace(
        "mixed_precision: bf16_with_mxfp8_mixed", f"mixed_precision:\n{lines}"
    )
    assert collect(Companions(configuration=dump))["dtype"] == dtype


@pytest.mark.parametrize(
    ("peft", "task"),
    [
        ("", None),
        ("peft: null\n", None),
        ("peft: lora\n", "lora"),
        ("peft:\n  _target_: megatron.LoRA\n", "lora"),
    ],
)
def test_configuration_with_adapters_is_fine_tuning(
    peft: str, task: str | None
) -> None:
    assert collect(Companions(configuration=DUMP + peft)).get("task") == (
        {task} if task else None
    )
