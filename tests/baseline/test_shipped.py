"""The shipped files state what the five documents say of timing and launching, and are found in each layout."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from shipped_documents import DOCUMENTS, recipe, text_of

from pytest_llmbench.baseline import read
from pytest_llmbench.baseline.read import (
    find_shipped_baselines,
    find_shipped_tables,
    list_shipped_baselines,
)
from pytest_llmbench.core.errors import BaselineError


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *[(name, "we are using the last training step timing to obtain throughput value") for name in DOCUMENTS],
        ("grok1/25.05", "to analyze iterations 11-44 and calculate mean and standard deviation"),
    ],
)
def test_what_is_timed_is_what_the_document_says(name: str, words: str) -> None:
    timed = {baseline.timed for baseline in recipe(name).baselines}
    assert (words in text_of(name)) is (timed == {"last_step" if "last" in words else "mean"})


@pytest.mark.parametrize(
    ("name", "logged", "seconds", "sequences", "flops"),
    [
        ("grok1/25.05", 1192.94, 7.382, 512 / 256, 4.27e15),
        ("maxtext_llama2/24.11", 460.480, 7.908, 128 / 64, 1.82e15),
    ],
)
def test_the_factor_of_logged_tflops_is_that_of_the_documents_example(
    name: str, logged: float, seconds: float, sequences: float, flops: float
) -> None:
    factors = {baseline.logged_tflops_factor for baseline in recipe(name).baselines}
    assert factors == {round(logged * 1e12 * seconds / sequences / flops, 4)}
    assert f"{logged}" in text_of(name)
    assert f"{seconds}" in text_of(name)


@pytest.mark.parametrize(
    ("name", "kind", "command"),
    [
        ("grok1/24.11", "sbatch", "DTYPE=fp8 sbatch -A {account} -p {partition} -N 32 ./launch.sh"),
        ("grok1/25.05", "llmb-run", "llmb-run single -w pretrain_grok1 -s 314b --dtype fp8 --scale 256"),
        ("grok1/25.05", "script", "JOB_TOTAL_GPUS=256 DTYPE=fp8 MODEL_SIZE=314b GPU_TYPE=gb200 ./launch.sh"),
        ("llama3.1/25.04", "script", "DTYPE=fp8 MODEL_SIZE=70b JOB_TOTAL_GPUS=256 GPUS_PER_NODE=8 ./launch.sh"),
    ],
)
def test_launch_commands_are_those_of_the_documents(name: str, kind: str, command: str) -> None:
    found = recipe(name)
    launch: dict[str, Any] = dict(found.launch)
    wanted: dict[str, Any] = dict(dict(launch["commands"])[kind])
    template = "".join(f"{key}={value} " for key, value in wanted.get("fixed", ())) + wanted["command"]
    size, gpu = found.baselines[-1].key.size if found.name != "llama3.1" else "70b", found.baselines[0].key.gpu
    values = {"size": size, "gpu": gpu, "dtype": "fp8", "gpus": 256, "nodes": 32}
    per_node = dict(launch["gpus_per_node"])[gpu]
    kept = {"account": "{account}", "partition": "{partition}"}
    assert template.format(**values, **kept, gpus_per_node=per_node) == command


def test_the_files_stand_where_their_keys_say() -> None:
    root = find_shipped_baselines()
    paths = {path.relative_to(root).with_suffix("") for path in list_shipped_baselines()}
    assert paths == {Path(name) for name in DOCUMENTS}


def package(root: Path) -> Path:
    path = root / "pytest_llmbench"
    path.mkdir(parents=True)
    return path


def test_a_wheel_has_them_inside(tmp_path: Path) -> None:
    inside = package(tmp_path) / "baselines"
    inside.mkdir()
    (tmp_path / "baselines").mkdir()
    assert find_shipped_baselines(tmp_path / "pytest_llmbench") == inside


def test_a_checkout_has_them_beside(tmp_path: Path) -> None:
    (tmp_path / "baselines").mkdir()
    (tmp_path / "pyproject.toml").touch()
    assert find_shipped_baselines(package(tmp_path)) == tmp_path / "baselines"


def test_an_installation_that_has_only_the_tables_left_judges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(find_shipped_tables(), tmp_path / "megatron_bridge")
    monkeypatch.setattr(read, "find_shipped_baselines", lambda: tmp_path)
    with pytest.raises(BaselineError, match="expected the shipped baseline files"):
        list_shipped_baselines()


def test_a_folder_of_that_name_in_site_packages_is_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "baselines").mkdir()
    with pytest.raises(BaselineError, match="expected the shipped baseline files"):
        find_shipped_baselines(package(tmp_path))
