"""Launches of Megatron-Bridge: commands as documented, refusals, and the runs left."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (its compiled parts cannot be imported twice, as pytester would)
from generator.bridge import (
    CONFIGURATION,
    METADATA,
    SCRIPT,
    BridgeRun,
    write_bridge_run,
)
from msgspec.structs import replace
from support.shared_data import shared

from pytest_llmbench.baseline.read import find_shipped_tables, read_recipes
from pytest_llmbench.core.baseline_records import Baseline, Key
from pytest_llmbench.core.job_records import Cluster, JobSpec, LaunchFacts
from pytest_llmbench.launch.plan.fit import explain_unfit, read_facts
from pytest_llmbench.launch.plan.job_spec import build_job, list_missing
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.collect_runs import ingest_job

MODELS = {
    "LLAMA3_8B": ("llama", "llama3_8b"),
    "LLAMA3_70B": ("llama", "llama3_70b"),
    "LLAMA3.1_405B": ("llama", "llama31_405b"),
    "DeepSeekV3": ("deepseek", "deepseek_v3"),
    "DeepSeekV4 Flash": ("deepseek", "deepseek_v4_flash"),
    "GPT OSS 120B": ("gpt_oss", "gpt_oss_120b"),
    "Kimi_K2": ("kimi", "kimi_k2"),
    "Qwen3_30B_a3B": ("qwen", "qwen3_30b_a3b"),
    "Qwen3_235B_a22B": ("qwen", "qwen3_235b_a22b"),
    **{
        f"Nemotron_3_{name}": ("nemotronh", f"nemotron_3_{name.lower()}")
        for name in ("Nano", "Super", "Ultra")
    },
    "Nemotron_3_5_Lightning": ("nemotronh", "nemotron_3_5_lightning"),
}
"""Family and recipe of setup_experiment.py since v0.3.0, by the names of the tables."""

OLDEST = {
    "LLAMA3_8B": ("llama3", "8b"),
    "LLAMA3_70B": ("llama3", "70b"),
    "LLAMA3.1_405B": ("llama31", "405b"),
    "DeepSeekV3": ("deepseek", "v3"),
    "GPT OSS 120B": ("gpt_oss", "120b"),
    "Qwen3_30B_a3B": ("qwen3", "30b_a3b"),
    "Qwen3_235B_a22B": ("qwen3", "235b_a22b"),
}
"""Name and size of that of v0.2.0."""

DTYPES = {"BF16": "bf16", "NVFP4": "nvfp4"} | dict.fromkeys(("FP8", "FP8-CS"), "fp8_cs")
DTYPES |= dict.fromkeys(("MXFP8", "FP8-MX"), "fp8_mx")

Row = tuple[str, str, str, str, str, str, str]
CALLER = {"PATH": "/usr/bin", "HF_TOKEN": "hf_very_secret", "STAGE_PATH": "/stage"}


@cache
def read_printed() -> dict[Row, dict[str, Any]]:
    """Return each documented row by precision, with the names in the scripts of its
    tag."""
    rows: dict[Row, dict[str, Any]] = {}
    files = (
        shared(f"documents/megatron_bridge/{name}.tsv").read_text().splitlines()
        for name in ("row_names", "rows")
    )
    for row, cells in zip(
        *(csv.DictReader(lines, delimiter="\t") for lines in files), strict=True
    ):
        assert [row[name] for name in list(row)[:7]] == [
            cells[name] for name in list(row)[:7]
        ]
        model, task = (
            row["model"].partition(" (")[0],
            row["task"] if row["task"] != "pretrain" else "",
        )
        configs, rates = (
            row["config"].split() or [""],
            re.findall(r"\d+", cells["tokens_per_s_per_gpu"]),
        )
        for number, precision in enumerate(re.findall(r"[\w-]+", row["precision"])):
            tokens = 50 * int(row["gbs"]) * int(cells["seq"]) / int(row["gpus"])
            match = {
                "model": model,
                "dtype": DTYPES[precision],
                "gpu": row["system"][4:].lower(),
                "config": configs[min(number, len(configs) - 1)],
                "seconds": tokens / int(rates[number]),
            }
            sizes = (row["gpus"], row["gbs"], task)
            rows[
                row["release"], MODELS[model][1], match["gpu"], match["dtype"], *sizes
            ] = {**cells, **row, **match}
    return rows


@cache
def read_shipped() -> dict[Row, tuple[Baseline, LaunchFacts]]:
    """Return each shipped baseline, with its launch facts."""
    rows = {}
    for recipe in read_recipes([find_shipped_tables()]):
        facts = read_facts(recipe)
        assert facts is not None
        for base in recipe.baselines:
            key, batch = base.key, str(base.configuration.global_batch_size)
            rows[
                key.release,
                key.size,
                key.gpu,
                key.dtype,
                str(key.gpus),
                batch,
                key.task,
            ] = (base, facts)
    return rows


@cache
def find_catalog() -> Catalog:
    recipes = read_recipes([find_shipped_tables()])
    return Catalog(
        recipes,
        {base.key: (base,) for recipe in recipes for base in recipe.baselines},
        tables=recipes,
    )


def find_one(
    release: str, size: str, gpu: str, dtype: str
) -> tuple[Baseline, LaunchFacts]:
    return next(
        pair
        for row, pair in read_shipped().items()
        if row[:4] == (release, size, gpu, dtype) and not pair[0].key.task
    )


def make_cluster(key: Key) -> Cluster:
    return Cluster(gpu=key.gpu, account="acct", partition="batch")


def plan(base: Baseline, facts: LaunchFacts, launcher: str = "") -> JobSpec:
    return build_job(
        base, facts, make_cluster(base.key), caller=CALLER, launcher=launcher
    )


def refuse(base: Baseline, facts: LaunchFacts, launcher: str = "") -> str:
    return explain_unfit(base.configuration, facts, make_cluster(base.key), launcher)


SIZES = {
    "-tp": "tp",
    "-pp": "pp",
    "-cp": "cp",
    "-vp": "vp",
    "-ep": "ep",
    "-mb": "mbs",
    "-gb": "gbs",
}
SETTINGS = ("model.seq_length", "dataset.sequence_length")
TAKEN_AWAY = {
    "ddp.use_megatron_fsdp": "false",
    "ddp.data_parallel_sharding_strategy": "no_shard",
    "ddp.average_in_collective": "true",
    "ddp.fsdp_double_buffer": "false",
    "ddp.num_distributed_optimizer_instances": "1",
    "model.init_model_with_meta_device": "false",
    "model.gradient_accumulation_fusion": "true",
    "model.cpu_offloading": "false",
    "model.cpu_offloading_num_layers": "0",
}
"""What a row without FSDP says of a configuration that has it: the values of a
configuration without it."""


def check_setting(name: str, value: str, row: dict[str, Any]) -> None:
    """Check a setting in a command against the printed row."""
    if name == "model.pipeline_model_parallel_layout":
        stages = [
            stage.split(",")
            for stage in value.removeprefix("[[").removesuffix("]]").split("],[")
        ]
        assert len(stages) == int(row["pp"]) * int(row["vp"])
        layers = [layer for stage in stages for layer in stage]
        assert layers == ["embedding", *["decoder"] * 61, "loss"]
    elif name == "model.mtp_num_layers":
        assert (value, row["note"]) == ("0", "w/o MTP")
    elif name in TAKEN_AWAY:
        assert (value, row["fsdp"]) == (TAKEN_AWAY[name], "0")
    else:
        assert name in SETTINGS
        assert value == row["seq"]


def take_sizes(command: Sequence[str], row: dict[str, Any]) -> Sequence[str]:
    """Return a command without the arguments for the documented sizes of its row."""
    words, remaining, sizes = iter(command), [], 0
    for word in words:
        name, _, value = word.partition("=")
        if value:
            check_setting(name, value, row)
        elif word == "--use_megatron_fsdp":
            assert (next(words), row["fsdp"]) == ("true", row["gpus"])
        elif word in SIZES:
            assert next(words) == row[SIZES[word]].replace("n/a", "None")
        else:
            remaining.append(word)
            continue
        sizes += 1
    assert bool(sizes) != bool(row["config"]), "only where no configuration has them"
    return remaining


def list_words(row: dict[str, Any]) -> Iterator[str]:
    """Yield the arguments of setup_experiment.py, as argument_parser.py of the tag."""
    model, release = row["model"], row["release"]
    names = (
        ("model_name", "model_size")
        if release == "25.11"
        else ("model_family_name", "model_recipe_name")
    )
    stated = dict(
        zip(names, (OLDEST if release == "25.11" else MODELS)[model], strict=True)
    )
    if row["config"] and not row["config"].endswith(
        ("_V1", "_V2", "_MX", "_CS", "_CONFIG", "_BF16", "_NVFP4", "_config")
    ):
        stated["config_variant"] = row["config"].rpartition("_")[2].lower()
    if row["task"] != "pretrain":
        stated |= {"task": row["task"], "data": "squad_packed"}
        stated["dataset_root"] = f"/stage/squad/{row['gpus']}_{row['dtype']}"
        stated["custom_mounts"] = "/stage:/stage"
    if row["task"] == "lora":
        stated["pretrained_checkpoint"] = "$PRETRAINED_CHECKPOINT"
    if row["seconds"] > 15 * 60:
        stated["time_limit"] = "02:00:00"
    per_node = 4 if row["gpu"].startswith("gb") else 8
    container = {"25.11": "25.11.01", "26.02": "26.02.00", "26.04": "26.04.00"}.get(
        release, release
    )
    stated |= {
        "gpu": row["gpu"],
        "compute_dtype": row["dtype"],
        "num_gpus": row["gpus"],
    }
    stated |= {"gpus_per_node": str(min(per_node, int(row["gpus"]))), "max_steps": "50"}
    stated |= {
        "container_image": f"/stage/nvidia+nemo+{container}.sqsh",
        "hf_token": "hf_very_secret",
    }
    stated |= {"account": "acct", "partition": "batch", "log_dir": "/stage"}
    for name, value in stated.items():
        yield from (f"--{name}", value)


@pytest.mark.slow
def test_every_row_is_launched_with_valid_arguments() -> None:
    printed, shipped = read_printed(), read_shipped()
    assert printed.keys() == shipped.keys()
    assert len(printed) == 265
    for name, row in printed.items():
        spec = plan(*shipped[name])
        expected = (
            "python",
            "scripts/performance/setup_experiment.py",
            *list_words(row),
        )
        assert tuple(take_sizes(spec.command, row)) == expected, name
        assert dict(spec.environment)["NEMORUN_HOME"] == "/stage"
        assert (spec.via, spec.secrets) == ("script", ("HF_TOKEN",))
        assert ("PRETRAINED_CHECKPOINT" in list_missing(spec, shipped[name][1])) == (
            row["task"] == "lora"
        ), name
        assert not refuse(*shipped[name])


@pytest.mark.slow
def test_table_row_with_a_recorded_baseline_has_the_same_launch_command() -> None:
    base, facts = find_one("26.04", "llama3_70b", "h100", "fp8_cs")
    recorded = replace(base, configuration=replace(base.configuration, arguments=()))
    assert plan(recorded, facts).command == plan(base, facts).command
    assert not refuse(recorded, facts)


TUNED = ("26.06", "llama3_70b", "gb300", "fp8_cs", "8", "32", "lora")


def test_lora_needs_a_checkpoint() -> None:
    """LoRA needs a checkpoint, so the launch is refused if it is unset or empty."""
    base, facts = read_shipped()[TUNED]
    for caller in (CALLER, {**CALLER, "PRETRAINED_CHECKPOINT": ""}):
        spec = build_job(base, facts, make_cluster(base.key), caller=caller)
        assert "PRETRAINED_CHECKPOINT" in list_missing(spec, facts)
    for cluster, caller in (
        (
            Cluster(
                gpu="gb300", environment=(("PRETRAINED_CHECKPOINT", "/weights/70b"),)
            ),
            CALLER,
        ),
        (Cluster(gpu="gb300"), {**CALLER, "PRETRAINED_CHECKPOINT": "/weights/70b"}),
    ):
        spec = build_job(base, facts, cluster, caller=caller)
        assert (
            spec.command[spec.command.index("--pretrained_checkpoint") + 1]
            == "/weights/70b"
        )
        assert "PRETRAINED_CHECKPOINT" not in list_missing(spec, facts)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            ("26.04.01", "llama31_405b", "h100", "fp8_cs"),
            "-w pretrain_llama3.1 -s 405b --dtype fp8 --scale 1024",
        ),
        (
            ("26.04", "nemotron_3_super", "gb300", "nvfp4"),
            "-w pretrain_nemotron_3 -s 120b --dtype nvfp4 --scale 64",
        ),
        (
            ("26.02.01", "gpt_oss_120b", "h100", "bf16"),
            "-w pretrain_gpt_oss -s 120b --dtype bf16 --scale 64",
        ),
    ],
)
def test_table_rows_with_an_llmb_run_recipe_are_launched_by_llmb_run(
    row: tuple[str, str, str, str], words: str
) -> None:
    spec = build_job(
        *find_one(*row),
        Cluster(gpu=row[2]),
        caller={"LLMB_INSTALL": "/llmb"},
        launcher="llmb-run",
    )
    assert spec.command == ("llmb-run", "submit", *words.split())
    assert (spec.via, spec.directory) == ("llmb-run", Path("/llmb"))


def test_llmb_run_refuses_table_rows_whose_settings_differ_from_its_recipe() -> None:
    """405B MXFP8 would use current scaling, Llama 3 70B on H100 has another batch size,
    and nothing runs 26.08."""
    every = [pair for pair in read_shipped().values() if not refuse(*pair, "llmb-run")]
    assert len(every) == 18 + 16 + 4
    assert {base.key.release for base, _ in every} == {"26.02.01", "26.04", "26.04.01"}
    for row in (("llama31_405b", "gb300", "fp8_mx"), ("llama3_70b", "h100", "fp8_cs")):
        problem = refuse(*find_one("26.04", *row), "llmb-run")
        assert problem == "no recipe of llmb-run 26.05 has these numbers"
    problem = refuse(*find_one("26.08", "gpt_oss_120b", "gb300", "fp8_mx"), "llmb-run")
    assert problem == "megatron_bridge 26.08 has no launcher 'llmb-run', only script"


def test_container_image_is_found_in_the_images_folder_of_the_installation(
    tmp_path: Path,
) -> None:
    base, facts = find_one("26.04", "llama3_70b", "h100", "fp8_cs")
    image = tmp_path / "images" / "nvidia+nemo+26.04.00.sqsh"

    def find(caller: dict[str, str]) -> str:
        command = build_job(base, facts, Cluster(gpu="h100"), caller=caller).command
        return command[command.index("--container_image") + 1]

    assert find({"STAGE_PATH": str(tmp_path)}) == str(tmp_path / image.name)
    image.parent.mkdir()
    image.touch()
    assert (
        find({"STAGE_PATH": str(tmp_path)})
        == find({"LLMB_INSTALL": str(tmp_path)})
        == str(image)
    )
    assert (
        find({"STAGE_PATH": str(tmp_path), "RUN_CONF_IMAGE": "/mine.sqsh"})
        == "/mine.sqsh"
    )


ROWS = [
    ("25.11", "llama3_8b", "gb200", "fp8_mx"),
    ("26.04", "llama3_70b", "gb300", "nvfp4"),
    ("26.04.01", "llama31_405b", "h100", "fp8_cs"),
    ("26.08", "nemotron_3_ultra", "gb200", "fp8_mx"),
]


def ingest_launched(folder: Path, base: Baseline, run: BridgeRun) -> Key | None:
    """Return the configuration of the run that a launched row left."""
    log = write_bridge_run(folder, run)
    job = re.findall(r"_(\d+)_0\.out$", log.name)[0]
    left_run = ingest_job(
        [folder / "experiments"],
        job,
        base.key,
        find_catalog(),
        datetime.now(UTC),
        since=None,
    )
    assert left_run is not None
    return left_run.identity.key


@pytest.mark.parametrize("row", ROWS, ids="-".join)
@pytest.mark.parametrize("files", [(), (CONFIGURATION, SCRIPT, METADATA)], ids=len)
def test_launched_run_matches_the_table_row_of_its_launch(
    row: tuple[str, ...], files: tuple[str, ...], tmp_path: Path
) -> None:
    (base, _), printed = (
        find_one(*row),
        next(
            printed_row
            for name, printed_row in read_printed().items()
            if name[:4] == row
        ),
    )
    name = printed["experiment"].split(" ")[-1]
    assert (
        ingest_launched(tmp_path, base, BridgeRun(base, files=files, name=name))
        == base.key
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "changed"),
    [
        (
            ("25.11", "llama31_405b", "gb300", "fp8_cs", "256", "1536", ""),
            {"fsdp": "true"},
        ),
        (("25.11", "deepseek_v3", "gb200", "fp8_mx", "256", "4096", ""), {"vp": "8"}),
        (
            ("26.06", "llama3_70b", "h100", "fp8_cs", "32", "32", "sft"),
            {"task": "lora"},
        ),
        (TUNED, {"task": "sft"}),
        (TUNED, {"dtype": "bf16"}),
        (TUNED, {"container": "25.11"}),
        (TUNED, {"gpu": "b300"}),
    ],
    ids=str,
)
def test_launched_run_with_changed_settings_does_not_match_the_launched_table_row(
    row: Row, changed: dict[str, str], tmp_path: Path
) -> None:
    """For example a checkout of another version, or llmb-run of another release."""
    base, _ = read_shipped()[row]
    assert ingest_launched(tmp_path / "same", base, BridgeRun(base)) == base.key
    assert (
        ingest_launched(tmp_path / "other", base, BridgeRun(base, changed=changed))
        != base.key
    )


@pytest.fixture
def _environment(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    monkeypatch.setenv("STAGE_PATH", str(pytester.path))
    monkeypatch.delenv("PRETRAINED_CHECKPOINT", raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("_environment")
def test_lora_launch_without_a_pretrained_checkpoint_submits_no_job(
    pytester: pytest.Pytester,
) -> None:
    options = ("-k", "26.06 and h100 and lora", "--llmb-launch", "--llmb-gpu=h100")
    result = pytester.runpytest_inprocess(*options)
    assert result.ret != pytest.ExitCode.OK
    text = " ".join((result.stdout.str() + result.stderr.str()).split())
    assert (
        "PRETRAINED_CHECKPOINT is not set: folder of Llama 3 70B in Megatron's format"
        in text
    )
    assert (
        "export PRETRAINED_CHECKPOINT=..., or set it under `environment:` in the cluster file"
        in text
    )
    printed = pytester.runpytest_inprocess(*options, "--llmb-dry-run").stdout.str()
    assert "--pretrained_checkpoint '$PRETRAINED_CHECKPOINT'" in printed
    assert "Nothing was submitted." in printed


@pytest.mark.slow
@pytest.mark.usefixtures("_environment")
def test_dry_run_shows_each_command_and_no_secret(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("cluster.yaml").write_text(
        "{schema: 1, gpu: b300, largest: 2048}\n"
    )
    result = pytester.runpytest_inprocess(
        "-k", "megatron_bridge", "--llmb-launch", "--llmb-dry-run"
    )
    text = result.stdout.str()
    assert (
        text.count(
            "\n  python scripts/performance/setup_experiment.py --model_family_name "
        )
        == 29
    )
    assert set(re.findall("not launched: .*: (.*)", text)) == {
        f"for {gpu}, but this cluster has b300"
        for gpu in ("b200", "gb200", "gb300", "h100")
    }
    assert "--hf_token ***" in text
    assert "PRETRAINED_CHECKPOINT is not set" not in text
    assert "hf_very_secret" not in text
    folders = " ".join(text.split())
    assert (
        "the folder of megatron_bridge 26.04 is unknown: setup_experiment.py was not found"
        in folders
    )
