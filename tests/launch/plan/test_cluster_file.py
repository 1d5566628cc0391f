"""Reading cluster.yaml, llmb-run's file and this machine; mistakes are reported with
their line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_llmbench.core.commands import CommandOutput
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Cluster, InstalledRecipe
from pytest_llmbench.launch.plan.cluster_file import (
    CLUSTER,
    describe_machine,
    fill_references,
    read_cluster,
    read_llmb_run,
)

WHOLE = """\
schema: 1
name: eos
gpu: H100
gpus_per_node: 8
largest: 1024
gpu_hours: 400
launcher: sbatch
account: coreai_dlalgo.llm
partition: batch,backfill
gres: gpu:8
time_limit: "01:30:00"
exclude: [n7, "n[12-14]"]
environment:
  STAGE_PATH: /lustre/stage
  HF_TOKEN: ${HF_TOKEN}
  NOTE: "two words; $(date) 'quoted'"
  EMPTY: ""
secrets: [NOTE]
installed:
  grok1: {folder: grok1}
  grok1-25.05:
    folder: ${RECIPES}/grok1
    launcher: script
    environment: {LLMB_INSTALL: /lustre/llmb}
    virtual_environment: /lustre/venvs/grok1
  llama3.1-25.04: {}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def refused(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(LaunchError) as caught:
        read_cluster(path)
    return str(caught.value).replace(str(path), "FILE")


def test_every_key_of_the_cluster_file_becomes_a_field(file: Path) -> None:
    file.write_text(WHOLE)
    assert read_cluster(file) == Cluster(
        name="eos",
        gpu="h100",
        gpus_per_node=8,
        largest=1024,
        gpu_hours=400.0,
        launcher="sbatch",
        account="coreai_dlalgo.llm",
        partition="batch,backfill",
        gres="gpu:8",
        time_limit="01:30:00",
        exclude=("n7", "n[12-14]"),
        environment=(
            ("STAGE_PATH", "/lustre/stage"),
            ("HF_TOKEN", "${HF_TOKEN}"),
            ("NOTE", "two words; $(date) 'quoted'"),
            ("EMPTY", ""),
        ),
        secrets=("NOTE",),
        installed=(
            InstalledRecipe(
                "grok1",
                "25.05",
                Path("${RECIPES}/grok1"),
                "script",
                (("LLMB_INSTALL", "/lustre/llmb"),),
                Path("/lustre/venvs/grok1"),
            ),
            InstalledRecipe("llama3.1", "25.04"),
            InstalledRecipe("grok1", "", file.parent / "grok1"),
        ),
        source=file,
    )


def test_cluster_file_requires_only_the_schema_key(file: Path) -> None:
    file.write_text("schema: 1\n")
    assert read_cluster(file) == Cluster(source=file)


def test_cluster_file_entry_for_recipe_and_release_precedes_that_of_the_recipe(
    file: Path,
) -> None:
    file.write_text(
        "schema: 1\ninstalled: {my-model-2: {}, grok1: {}, my-model-2-25.05: {}}\n"
    )
    recipes = [
        (installed.recipe, installed.release)
        for installed in read_cluster(file).installed
    ]
    assert recipes == [("my-model-2", "25.05"), ("my-model-2", ""), ("grok1", "")]


@pytest.mark.parametrize(
    ("text", "gres"), [("8", "gpu:8"), ("gpu:4", "gpu:4"), ("gpu:h100:8", "gpu:h100:8")]
)
def test_gres_in_the_cluster_file_may_be_a_number_or_slurm_text(
    file: Path, text: str, gres: str
) -> None:
    file.write_text(f"schema: 1\ngres: {text}\n")
    assert read_cluster(file).gres == gres


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "FILE:1: found an empty file, expected"),
        ("gpu: h100\n", "FILE:1: found no 'schema', expected that key"),
        ("schema: 2\n", "FILE:1: found 2, expected 1"),
        (
            "schema: 1\ngpus_pr_node: 8\n",
            "FILE:2: found the unknown key 'gpus_pr_node'",
        ),
        ("schema: 1\ngpus_pr_node: 8\n", "(did you mean 'gpus_per_node'?)"),
        (
            "schema: 1\ngpus_per_node: eight\n",
            "FILE:2: found 'eight', expected a whole number",
        ),
        ("schema: 1\nlargest: 0\n", "FILE:2: found 0, expected a whole number from 1"),
        ("schema: 1\ngpu: h 100\n", "FILE:2: found 'h 100', expected a GPU type"),
        (
            "schema: 1\ngres: gpus8\n",
            "FILE:2: found 'gpus8', expected the GPUs of a node",
        ),
        ("schema: 1\ntime_limit: 1:30:00\n", 'write "1:30:00" in quotes'),
        (
            "schema: 1\ntime_limit: soon\n",
            "FILE:2: found 'soon', expected a time limit",
        ),
        (
            'schema: 1\naccount: "--wrap=x"\n',
            "FILE:2: found '--wrap=x', expected a name known to Slurm",
        ),
        ("schema: 1\npartition: $(date)\n", "expected a name known to Slurm"),
        ("schema: 1\nexclude: n7\n", "FILE:2: found 'n7', expected a list"),
        (
            "schema: 1\nexclude: ['n7 --wrap=x']\n",
            "expected nodes as Slurm writes them",
        ),
        (
            "schema: 1\nenvironment:\n  1A: x\n",
            "FILE:3: found '1A', expected the name of an environment variable",
        ),
        (
            "schema: 1\nenvironment:\n  A: 8\n",
            "FILE:3: found 8 without quotes, expected a value as text: write ",
        ),
        (
            "schema: 1\nsecrets: [MY TOKEN]\n",
            "expected the name of an environment variable",
        ),
        (
            "schema: 1\ninstalled:\n  grok1-25.05: /lustre\n",
            "FILE:3: found '/lustre', expected a mapping",
        ),
        (
            "schema: 1\ninstalled:\n  grok1-25.05: {foldr: x}\n",
            "(did you mean 'folder'?)",
        ),
        (
            "schema: 1\ninstalled:\n  ../grok1: {}\n",
            "FILE:3: found '../grok1', expected a recipe",
        ),
        (
            "schema: 1\nname: &a x\naccount: *a\n",
            "FILE:2: found the anchor &a, expected no anchors or aliases",
        ),
        ("schema: 1\nname: [\n", "found a syntax error"),
    ],
)
def test_mistake_in_the_cluster_file_is_named_with_its_line(
    file: Path, text: str, message: str
) -> None:
    assert message in refused(file, text)


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError,
        match=r"none.yaml: No such file or directory, expected a readable cluster file",
    ):
        read_cluster(tmp_path / "none.yaml")


def test_references_to_variables_are_resolved_from_the_callers_environment() -> None:
    caller = {"A": "x y", "B": "${A}"}
    assert fill_references("${A}/${B}", caller, "here") == "x y/${A}", (
        "a value is never read again"
    )
    assert fill_references("$A $(date) ${}", {}, "here") == "$A $(date) ${}"
    with pytest.raises(
        LaunchError,
        match=r"cluster.yaml: environment: HF_TOKEN refers to \$\{TOKEN\}, which is",
    ):
        fill_references("${TOKEN}", caller, "cluster.yaml: environment: HF_TOKEN")


def test_cluster_page_examples_are_read(file: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cluster.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert example
    file.write_text(example[1])
    assert [installed.release for installed in read_cluster(file).installed] == [
        "25.05",
        "",
    ]
    assert [
        name
        for name in CLUSTER.optional
        if not re.search(rf"^{name}:|`{name}`", page, re.MULTILINE)
    ] == []


# --- the file of llmb-run -------------------------------------------------------------

OLDER = """\
launcher:
  llmb_repo: /lustre/recipes
  llmb_install: /lustre/llmb
  gpu_type: h100
environment:
  HF_TOKEN: hf_secret
slurm:
  account: acct
  gpu_partition: batch
  gpu_gres: 8
  cpu_partition: cpu
  cpu_gres: null
workloads:
  installed:
  - pretrain_grok1
  - pretrain_llama3.1
  config:
    pretrain_grok1:
      venv_path: /lustre/llmb/venvs/grok1
      venv_type: venv
      environment:
        LEVEL: 3
    pretrain_llama3.1:
      venv_path: null
      venv_type: null
"""
NEWER = """\
schema_version: 2
llmb_repo: /lustre/recipes
llmb_install: /lustre/llmb
gpu_type: GB200
cluster_name: eos
install: {node_architecture: aarch64}
slurm:
  account: acct
  gpu: {partition: gpus, gres: null}
  cpu: {partition: cpus, gres: null}
workloads: {installed: [], config: {}}
"""
FOLDERS = (("LLMB_INSTALL", "/lustre/llmb"), ("LLMB_REPO", "/lustre/recipes"))


def test_older_llmb_run_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cluster_config.yaml"
    path.write_text(OLDER)
    assert read_llmb_run(tmp_path) == Cluster(
        gpu="h100",
        launcher="llmb-run",
        account="acct",
        partition="batch",
        gres="gpu:8",
        environment=(*FOLDERS, ("HF_TOKEN", "hf_secret")),
        installed=(
            InstalledRecipe(
                "grok1",
                "",
                environment=(("LEVEL", "3"),),
                virtual_environment=Path("/lustre/llmb/venvs/grok1"),
            ),
            InstalledRecipe("llama3.1", ""),
        ),
        source=path,
    )


def test_newer_llmb_run_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(NEWER)
    assert read_llmb_run(path) == Cluster(
        name="eos",
        gpu="gb200",
        launcher="llmb-run",
        account="acct",
        partition="gpus",
        environment=FOLDERS,
        source=path,
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "  gpu_type: h100\n",
            "",
            "FILE:1: found no 'gpu_type', expected it at the top level or in 'launcher'",
        ),
        ("slurm:", "slrm:", "FILE:1: found no 'slurm', expected that key"),
        (
            "gpu_gres: 8",
            "gpu_gres: many",
            "FILE:10: found 'many', expected the GPUs of a node",
        ),
        (
            "  installed:\n",
            "  installed: yes\n  other:\n",
            "FILE:14: found yes, expected a list",
        ),
    ],
)
def test_mistake_in_the_llmb_run_file_is_named(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "cluster_config.yaml"
    path.write_text(OLDER.replace(old, new))
    with pytest.raises(LaunchError) as caught:
        read_llmb_run(path)
    assert message in str(caught.value).replace(str(path), "FILE")


def test_cluster_file_keys_override_llmb_run(tmp_path: Path) -> None:
    (tmp_path / "llmb").mkdir()
    (tmp_path / "llmb" / "cluster_config.yaml").write_text(NEWER, encoding="utf-8")
    whole = read_llmb_run(tmp_path / "llmb")
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "schema: 1\nllmb_run: llmb\nlargest: 64\npartition: small\nenvironment: {A: b}\n"
    )
    environment = (*whole.environment, ("A", "b"))
    changed = replace(
        whole, largest=64, partition="small", environment=environment, source=file
    )
    assert read_cluster(file) == changed != whole


def test_error_names_the_cluster_config_missing_in_the_llmb_run_folder(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        LaunchError, match=r"cluster_config.yaml: No such file or directory"
    ):
        read_llmb_run(tmp_path)


# --- this machine ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "out", "gpu", "count"),
    [
        (127, "", "cpu", 1),
        (
            9,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
            "cpu",
            1,
        ),
        (0, "", "cpu", 1),
        (0, "NVIDIA H100 80GB HBM3\n" * 8, "h100", 8),
        (0, "NVIDIA H100 PCIe\n" * 4, "h100pcie", 4),
        (0, "NVIDIA A100-SXM4-80GB\n", "a100", 1),
        (0, "NVIDIA L40S\n", "l40s", 1),
        (0, "NVIDIA RTX A6000\nNVIDIA H100 PCIe\nNVIDIA RTX A6000\n", "rtxa6000", 2),
    ],
)
def test_local_machine_is_described_by_the_gpus_that_nvidia_smi_lists(
    code: int, out: str, gpu: str, count: int
) -> None:
    commands: list[tuple[str, ...]] = []

    def run(arguments: Sequence[str], **_: object) -> CommandOutput:
        commands.append(tuple(arguments))
        return CommandOutput(code, out, "")

    assert describe_machine(run) == Cluster(gpu=gpu, gpus_per_node=count, largest=count)
    assert commands == [("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")]
